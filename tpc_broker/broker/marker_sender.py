"""Markers that end transactions, on their way from the coordinator to the partitions, and what is done with them there.

The coordinators of a core hand them over; those of a turn that go to one core go in one call: to this core itself, to
another one of the node by its mailbox, to another node by way of its core 0. There each is appended, and answered for
when it is committed. What was not written is sent again for ever, to whoever leads the partition then; a marker that is
there already ends nothing, so sending one twice does no harm. A partition that is gone needs none.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import trio

from tpc_broker.broker.calls_to_leaders import CallsToLeaders
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.producers_port import EndMarker
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, MailboxError, PartitionOfflineError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, CoreId, PartitionIndex, Replica
from tpc_broker.model import TopicPartition as PartitionKey
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Sequence

    from tpc_broker.broker.group_service import CoreWithGroups
    from tpc_broker.broker.payloads import Row
    from tpc_broker.broker.ports import AppendResult
    from tpc_broker.coordinator.transactions.messages import Marker
    from tpc_broker.coordinator.transactions.transaction import TopicPartition

log = logging.getLogger(__name__)

WRITE = "transactions.write_markers"
MARKERS_PER_CALL: Final = 256
"""They are appended in one step where they are written, for which everything else of that core waits."""
SORTED_AT_ONCE: Final = 4 * MARKERS_PER_CALL
"""By where they go, some microseconds each: a transaction has thousands, and many may end in a turn."""
CALLS_MAX: Final = 16
"""To one core at a time."""
UNDER_WAY_MAX: Final = 65_536
"""Of a core; those that wait to be sent again are none of them. Above it ends wait."""
AGAIN_S, AGAIN_S_MAX = 0.1, 10.0
"""Until what was not written is sent again; twice as long each time."""
COMMIT_S: Final = 2.0
"""A marker that is not committed in so long is answered for as not written."""
NEWEST_S: Final = 10.0

Written = tuple[str, int, EndMarker]
"""Topic, partition, and the marker."""


class OwesMarkers(Protocol):
    """A coordinator."""

    is_unloaded: bool

    def markers_written(self, markers: Sequence[Marker]) -> None: ...

    def was_fenced(self, marker: Marker) -> None:
        """A partition has had a marker of a later coordinator."""


@dataclass(slots=True, eq=False)
class _Owed:
    coordinator: OwesMarkers
    marker: Marker
    attempts: int = 0


@dataclass(slots=True)
class _Destination:
    waiting: deque[_Owed] = field(default_factory=deque)
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of markers."""

    under_way: int
    written: int
    sent_again: int


class MarkerSender:
    """Of one core."""

    def __init__(self, core: CoreWithGroups, nursery: trio.Nursery) -> None:
        self._core = core
        self._nursery = nursery
        self._new: list[_Owed] = []
        self._has_new = trio.Event()
        self._destinations: dict[Replica, _Destination] = defaultdict(_Destination)
        self._under_way = self._written = self._sent_again = 0
        self.calls = CallsToLeaders(core, WRITE, self._write_here)
        with in_queue(TaskQueue.COORDINATORS):
            nursery.start_soon(self._run)

    def statistics(self) -> Statistics:
        return Statistics(self._under_way, self._written, self._sent_again)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, coordinator: OwesMarkers, markers: Iterable[Marker]) -> None:
        """Until each is written, which `markers_written` hears, or the coordinator is unloaded."""
        self._new.extend(_Owed(coordinator, marker) for marker in markers)
        self._has_new.set()

    def can_be_appended(self, place: TopicPartition) -> bool:
        """Whether a marker for that partition could be, behind a record of this core's journal: not where a quorum
        decides what is there, nor for offsets, which a group's coordinator writes.
        """
        return self._alone(place) is not None

    def _alone(self, place: TopicPartition) -> Partition | None:
        image = self._core.view.topic(place.topic)
        if image is None or place.topic == CONSUMER_OFFSETS_TOPIC:
            return None
        found = self._core.partitions.get(PartitionKey(image.topic_id, PartitionIndex(place.partition)))
        return None if found is None or found.is_replicated else found

    def append_now(self, markers: Sequence[Marker]) -> bool:
        """Append all of them in this step; False where one cannot be, when others may have been."""
        for marker in markers:
            found = self._alone(marker.partition)
            result = None if found is None else _append(self._core, found, _written(marker)[-1])
            if result is None or isinstance(result, ErrorCode) or result.error_code:
                return False
        self._written += len(markers)
        return True

    async def _run(self) -> None:
        """Once in a turn: what came in it goes together."""
        while True:
            await self._has_new.wait()
            self._has_new = trio.Event()
            new, self._new = self._new, []
            for begin in range(0, len(new), SORTED_AT_ONCE):
                if begin:
                    await trio.lowlevel.checkpoint()
                self._sort(new[begin : begin + SORTED_AT_ONCE])
                self._begin_calls()

    def _sort(self, owed: Iterable[_Owed]) -> None:
        """By who leads the partitions, as this core knows now."""
        unknown, leaderless = [], []
        for each in owed:
            topic, index = each.marker.partition
            image = self._core.view.topic(topic)
            if image is None or index >= image.partitions_count:
                unknown.append(each)
                continue
            place = self._core.view.place_of(image, index)
            if self._core.is_available(place):
                self._destinations[place].waiting.append(each)
            else:
                leaderless.append(each)
        if unknown:
            self._nursery.start_soon(self._look_for, unknown)
        if leaderless:
            self._nursery.start_soon(self._send_again, leaderless)

    # Rule: A partition is taken for gone only by metadata that are no older than the question: what this core does not
    # know may have been made elsewhere, and a transaction there would never end. Held by
    # tests/broker/test_transaction_markers.py.
    async def _look_for(self, owed: Sequence[_Owed]) -> None:
        """Partitions that are not known here."""
        is_certain = False
        try:
            with trio.move_on_after(NEWEST_S):
                await self._core.metadata.take_newest()
                is_certain = True
        except MailboxError as error:
            log.debug("markers wait for the metadata: %s", error)
        gone: list[_Owed] = []
        there: list[_Owed] = []
        for each in owed:
            topic, index = each.marker.partition
            image = self._core.view.topic(topic)
            is_gone = is_certain and (image is None or index >= image.partitions_count)
            (gone if is_gone else there).append(each)
        self._tell_written(gone)
        if there:
            await self._send_again(there)

    def _begin_calls(self) -> None:
        for place, destination in list(self._destinations.items()):
            while destination.waiting and destination.calls < CALLS_MAX and self._under_way < UNDER_WAY_MAX:
                batch: list[_Owed] = []
                while destination.waiting and len(batch) < MARKERS_PER_CALL:
                    each = destination.waiting.popleft()
                    if not each.coordinator.is_unloaded:
                        batch.append(each)
                if batch:
                    destination.calls += 1
                    self._under_way += len(batch)
                    self._nursery.start_soon(self._call, place, destination, batch)
            if not destination.waiting and not destination.calls:
                del self._destinations[place]

    async def _call(self, place: Replica, destination: _Destination, batch: list[_Owed]) -> None:
        try:
            errors = await self._ask(place, [each.marker for each in batch])
        except MailboxError as error:
            log.debug("%d markers may not have come to core %d of node %d: %s", len(batch), place.core, place.node,
                      error)  # fmt: skip
            errors = [ErrorCode.NETWORK_EXCEPTION] * len(batch)
        destination.calls -= 1
        self._under_way -= len(batch)
        written, left = [], []
        for each, code in zip(batch, errors, strict=True):
            if code is ErrorCode.NONE:
                written.append(each)
                continue
            left.append(each)
            if code in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
                self._note_refused(each, code)
        self._tell_written(written)
        self._begin_calls()
        if left:
            await self._send_again(left)

    def _note_refused(self, owed: _Owed, code: ErrorCode) -> None:
        marker = owed.marker
        label = f"{marker.partition.topic}-{marker.partition.partition}"
        text = f"{label} refuses the marker that ends a transaction of {marker.transactional_id!r}: {code.name}"
        self._core.log_limiter.say(log, "markers of transactions refused", label, text)
        if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED and not owed.coordinator.is_unloaded:
            owed.coordinator.was_fenced(marker)

    def _tell_written(self, owed: Iterable[_Owed]) -> None:
        by_coordinator: dict[OwesMarkers, list[Marker]] = defaultdict(list)
        for each in owed:
            by_coordinator[each.coordinator].append(each.marker)
        for coordinator, markers in by_coordinator.items():
            self._written += len(markers)
            if not coordinator.is_unloaded:
                coordinator.markers_written(markers)

    async def _send_again(self, owed: Iterable[_Owed]) -> None:
        """After a while, to whoever leads the partitions then."""
        left = [each for each in owed if not each.coordinator.is_unloaded]
        if not left:
            return
        attempts = max(each.attempts for each in left)
        await trio.sleep(min(AGAIN_S_MAX, AGAIN_S * 2 ** min(attempts, 16)))
        for each in left:
            each.attempts += 1
        self._sent_again += len(left)
        self._new.extend(left)
        self._has_new.set()

    async def _ask(self, place: Replica, markers: Sequence[Marker]) -> list[ErrorCode]:
        return [ErrorCode(code) for code in await self.calls.ask(place, [_row(*_written(each)) for each in markers])]

    async def _write_here(self, rows: Sequence[Row]) -> Row:
        markers = [(topic, index, EndMarker(*fields)) for topic, index, *fields in rows]
        return [int(code) for code in await write_markers(self._core, markers)]

    async def write_on_node(self, markers: Sequence[Written]) -> list[ErrorCode]:
        """By the cores of this node that lead the partitions; what others lead is refused."""
        errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * len(markers)
        by_core: dict[CoreId, list[int]] = defaultdict(list)
        for number, (topic, index, _marker) in enumerate(markers):
            image = self._core.view.topic(topic)
            if image is None or not 0 <= index < image.partitions_count:
                errors[number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif (place := self._core.view.place_of(image, index)).node == self._core.view.node:
                by_core[place.core].append(number)

        async def ask(owner: CoreId, numbers: list[int]) -> None:
            for begin in range(0, len(numbers), MARKERS_PER_CALL):
                some = numbers[begin : begin + MARKERS_PER_CALL]
                try:
                    found = await self.calls.ask_core(owner, [_row(*markers[each]) for each in some])
                except MailboxError:
                    return  # not its leader, as long as nobody answers
                for number, code in zip(some, found, strict=True):
                    errors[number] = ErrorCode(code)

        async with trio.open_nursery() as nursery:
            for owner, numbers in by_core.items():
                nursery.start_soon(ask, owner, numbers)
        return errors


async def write_markers(core: CoreWithGroups, markers: Sequence[Written]) -> list[ErrorCode]:
    """Into partitions that are led here, and what became of each: NONE is committed. All are appended at once, and
    waited for by one task; one has its own that finds no room, or goes by way of a group's coordinator.
    """
    errors = [ErrorCode.REQUEST_TIMED_OUT] * len(markers)
    appended: deque[tuple[int, Partition, AppendResult]] = deque()

    async def write(number: int, partition: Partition, written: Awaitable[ErrorCode]) -> None:
        errors[number] = await _became(core, partition, written)

    with trio.move_on_after(COMMIT_S):
        async with trio.open_nursery() as nursery:
            for number, (topic, index, marker) in enumerate(markers):
                found = core.partitions.find(topic, index)
                if not isinstance(found, Partition):
                    errors[number] = found
                elif topic == CONSUMER_OFFSETS_TOPIC:
                    nursery.start_soon(write, number, found, core.groups.write_marker(found, marker))
                elif (result := _append(core, found, marker)) is None:
                    nursery.start_soon(write, number, found, found.append_marker(marker))
                elif isinstance(result, ErrorCode):
                    errors[number] = result
                else:
                    appended.append((number, found, result))
            while appended:
                number, found, result = appended[0]
                await write(number, found, found.marker_committed(result))
                appended.popleft()
    for number, found, result in appended:  # behind one that is not committed in time
        with trio.move_on_after(0):
            await write(number, found, found.marker_committed(result))
    return errors


def _append(core: CoreWithGroups, partition: Partition, marker: EndMarker) -> AppendResult | ErrorCode | None:
    """What is to be waited for, if there is room."""
    try:
        return partition.append_marker_nowait(marker)
    except Exception as error:  # noqa: BLE001 - as below
        return _fault_of(core, partition, error)


async def _became(core: CoreWithGroups, partition: Partition, written: Awaitable[ErrorCode]) -> ErrorCode:
    try:
        return await written
    except Exception as error:  # noqa: BLE001 - this core would have to write the same again when it has restarted
        return _fault_of(core, partition, error)


def _fault_of(core: CoreWithGroups, partition: Partition, error: Exception) -> ErrorCode:
    if isinstance(error, LeadershipLostError):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if isinstance(error, PartitionOfflineError):
        return ErrorCode.KAFKA_STORAGE_ERROR
    label = partition.label
    core.log_limiter.say(log, "markers that failed", label, f"{label}: a marker failed: {error!r}")
    return ErrorCode.UNKNOWN_SERVER_ERROR


def _written(marker: Marker) -> Written:
    topic, index = marker.partition
    return topic, index, EndMarker(
        marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, marker.commit, marker.transaction_version
    )  # fmt: skip


def _row(topic: str, index: int, marker: EndMarker) -> Row:
    return [topic, index, *marker]
