"""The transaction coordinators of this core: what transactions add to the driver of their machines.

A machine is a leader epoch's: markers say which. They go by way of the core's `MarkerSender`. What a request is
answered without a write comes from memory, and is told when it is certain that nobody else coordinates the id by then.

Nothing of it lives below the feature level that has transactions.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from inspect import isawaitable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

from tpc_broker.broker.coordinator_driver import MachineDriver, PendingReply
from tpc_broker.broker.coordinators import Coordinators
from tpc_broker.broker.group_service import CoreWithGroups
from tpc_broker.broker.marker_sender import MARKERS_PER_CALL, MarkerSender
from tpc_broker.broker.transaction_calls import TransactionCalls
from tpc_broker.coordinator.transactions import TransactionCoordinator, TransactionEffects, TransactionLimits
from tpc_broker.coordinator.transactions.limits import Ended
from tpc_broker.coordinator.transactions.records import name_of
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.feature_levels import TRANSACTION_FEATURE, kafka_level
from tpc_broker.model import TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.ports import AppendResult
    from tpc_broker.broker.producer_ids import ProducerIds
    from tpc_broker.coordinator import Effects, Write, WriteId
    from tpc_broker.coordinator.transactions.messages import Marker
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import TopicPartition

log = logging.getLogger(__name__)

MARKERS_PER_COORDINATOR: Final = 8_192
"""Sent and not written: those for a partition without a leader hold up no other coordinator's."""
TO_BE_TRIED_AGAIN: Final = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""Answers that need not be certain: whoever gets one asks once more."""


class Answered(Protocol):
    """A response of the machine."""

    @property
    def error_code(self) -> ErrorCode: ...


R = TypeVar("R", bound=Answered)


@dataclass(frozen=True, slots=True)
class TransactionStatistics:
    """Of a core. `ids`, `open` and `ending` are those that it coordinates; `markers_owed` are sent and not written yet,
    of which `markers_under_way` are in a call just now. Those and the first three are what is; the others only grow.
    """

    ids: int
    open: int
    ending: int
    committed: int
    aborted: int
    timed_out: int
    markers_owed: int
    markers_under_way: int
    markers_written: int
    markers_sent_again: int
    verifications: int


class CoreWithTransactions(CoreWithGroups):
    """And transactions."""

    producer_ids: ProducerIds
    transactions: TransactionService


class LoadedTransactions(MachineDriver[TransactionCoordinator]):
    """The transactional ids of one partition."""

    _core: CoreWithTransactions

    def __init__(
        self, core: CoreWithTransactions, partition: Partition, limits: TransactionLimits, ended: Ended
    ) -> None:
        machine = TransactionCoordinator(
            partition.leader_epoch,
            core.producer_ids.take_nowait,
            limits,
            lambda: kafka_level(TRANSACTION_FEATURE, core.view.image.level),
            ended,
            lambda place: not partition.is_replicated and core.transactions.markers.can_be_appended(place),
        )
        super().__init__(core, partition, machine, "transactions")
        self._settled: dict[str, trio.Event] = {}
        """Of ids for which somebody waits."""

    def _parts_of_end_of_loading(self) -> Iterator[None]:
        return self.machine.transactions_finished(self.now_ms())

    def perform(self, effects: Effects) -> None:
        super().perform(effects)
        if isinstance(effects, TransactionEffects) and effects.markers and not self.is_unloaded:
            self._core.transactions.markers.send(self, effects.markers)

    async def _append(self, writes: list[Write]) -> list[ErrorCode]:
        """Of ends in one step in three parts, one behind the other: the records that say how transactions end, their
        markers, and the records that say that those are written.
        """
        last = [write for write in writes if write.markers]
        if not last:
            return await super()._append(writes)
        appended: AppendResult | None = None
        written: set[WriteId] = set()

        def append_rest() -> None:
            nonlocal appended, written
            marked = self._marked(last)
            if marked:
                appended = self._partition.append_nowait(b"".join(self._batches(marked)))
            if appended is not None:
                written = {write.write_id for write in marked}

        first = b"".join(self._batches([write for write in writes if not write.markers]))
        await self._partition.append_durably(
            first, then=append_rest, more_bytes=sum(write.size_bytes for write in last)
        )
        if written and appended is not None:
            try:
                await self._partition.until_committed(appended)
            except PartitionOfflineError:
                written = set()
        return [
            ErrorCode.NONE if not write.markers or write.write_id in written else ErrorCode.KAFKA_STORAGE_ERROR
            for write in writes
        ]

    def _marked(self, last: list[Write]) -> list[Write]:
        """Those whose markers are appended now."""
        found: list[Write] = []
        room = MARKERS_PER_CALL
        for write in last:
            room -= len(write.markers)
            if room >= 0 and not self._partition.is_replicated and (
                self._core.transactions.markers.append_now(write.markers)
            ):
                found.append(write)
        return found

    async def _write(self, writes: list[Write]) -> None:
        await super()._write(writes)
        self._note_settled(writes)

    def _fail(self, write: Write, error: ErrorCode) -> None:
        super()._fail(write, error)
        self._note_settled([write])

    def _note_settled(self, writes: Iterable[Write]) -> None:
        """What changes an id ends with a write of it; those that others wait for are not looked at."""
        if not self._settled:
            return
        for name in (name_of(record.key) for write in writes for record in write.records):
            if name in self._settled and not self.machine.is_pending(name):
                self._settled.pop(name).set()

    async def until_settled(self, transactional_id: str) -> None:
        """While something is under way that changes the id. For ever, where the machine is unloaded meanwhile."""
        if self.machine.is_pending(transactional_id):
            await self._settled.setdefault(transactional_id, trio.Event()).wait()

    def markers_written(self, markers: Sequence[Marker]) -> None:
        """Of some transactions."""
        self.do(lambda now_ms: self.machine.markers_written(markers, now_ms))

    def was_fenced(self, marker: Marker) -> None:
        """Somebody else coordinates since a later epoch; or somebody has written markers that are no coordinator's, for
        which the other ids of this partition need not suffer.
        """
        self._core.start_soon(self._end_if_replaced, marker.transactional_id)

    async def _end_if_replaced(self, transactional_id: str) -> None:
        service = self._core.transactions
        if not self.is_unloaded and not await service.confirm(transactional_id) and not self.is_unloaded:
            log.warning("%s: another node coordinates its transactions by now", self._partition.label)
            service.end(self._partition.key)


class TransactionService(Coordinators[LoadedTransactions]):
    _core: CoreWithTransactions

    def __init__(self, core: CoreWithTransactions, nursery: trio.Nursery) -> None:
        super().__init__(core, nursery, TRANSACTION_STATE_TOPIC)
        self.markers = MarkerSender(core, nursery)
        self.calls = TransactionCalls(core, nursery)
        self._ended = Ended()
        core.plane.bound_producers(core.settings.producer_states_bytes_max)
        core.groups.verify_offsets = self.calls.verify_offsets

    def statistics(self) -> TransactionStatistics:
        found = [each.machine.statistics() for each in self.loaded()]
        markers = self.markers.statistics()
        return TransactionStatistics(
            ids=sum(each.ids_count for each in found),
            open=sum(each.open_count for each in found),
            ending=sum(each.ending_count for each in found),
            **asdict(self._ended),
            markers_owed=sum(each.markers_sent for each in found),
            markers_under_way=markers.under_way,
            markers_written=markers.written,
            markers_sent_again=markers.sent_again,
            verifications=self.calls.verifications,
        )

    @property
    def is_there(self) -> bool:
        """Whether the cluster has transactions."""
        return self._core.view.image.knows_transactions

    def begin_if_coordinates(self, key: TopicPartition) -> None:
        if self.is_there:
            super().begin_if_coordinates(key)

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        self._core.plane.take_transactions(on=after.knows_transactions)
        await super().follow(before, after)

    def _new_coordinator(self, partition: Partition) -> LoadedTransactions:
        settings = self._core.settings
        return LoadedTransactions(
            self._core,
            partition,
            TransactionLimits(
                max_timeout_ms=settings.transaction_max_timeout_ms,
                expiration_ms=settings.transactional_id_expiration_ms,
                expiration_interval_ms=settings.transaction_remove_expired_transaction_cleanup_interval_ms,
                ids_max=settings.transactional_ids_max,
                markers_max=MARKERS_PER_COORDINATOR,
            ),
            self._ended,
        )

    # Rule: What a transaction coordinator answers without a write is told when a quorum has said, since it was looked
    # up, that it follows this leader: one that was replaced while it stood still would verify a batch of a transaction
    # that its successor has aborted, which then never ends. Why: docs/raft-rules.md. Held by
    # tests/broker/test_transaction_service.py.
    async def answer(
        self,
        transactional_id: str,
        kind: type[R],
        step: Callable[[TransactionCoordinator, PendingReply, int], Effects],
    ) -> R | ErrorCode:
        """What the id's coordinator says to a request; why there is none here. MachineFailedError."""
        coordinator = self.coordinator_of(transactional_id)
        if isinstance(coordinator, ErrorCode):
            return coordinator
        machine = coordinator.machine
        found = coordinator.ask(kind, lambda token, now_ms: step(machine, token, now_ms))
        if isawaitable(found):
            written: R = await found
            return written
        assert isinstance(found, kind)
        if found.error_code in TO_BE_TRIED_AGAIN or await self.is_certain(transactional_id, coordinator):
            return found
        return ErrorCode.NOT_COORDINATOR

    async def is_certain(self, transactional_id: str, coordinator: LoadedTransactions) -> bool:
        """Whether that was the id's coordinator when this was called."""
        await self.until_confirmed(transactional_id)
        return self.coordinator_of(transactional_id) is coordinator

    async def until_all_confirmed(self, transactional_ids: Iterable[str]) -> None:
        """`until_confirmed` of some."""
        of_each_partition = {self._key_of(each): each for each in transactional_ids}
        async with trio.open_nursery() as nursery:
            for each in of_each_partition.values():
                nursery.start_soon(self.until_confirmed, each)
