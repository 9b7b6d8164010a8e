"""Drives the group coordinators of this core: one machine per owned partition of ``__consumer_offsets``.

Duties (the machine's docstring numbers them): replay the partition at its opening; hand requests in with a token and
send the replies; append writes in their order and report each as written when it is durable; keep one timer; append a
snapshot and move the log's start when the log has grown; unload when the partition goes.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, TypeVar

import trio

from tpc_broker import limits
from tpc_broker.coordinator import Effects, Fate, GroupCoordinator, GroupLimits, Write
from tpc_broker.coordinator.records import RecordDamagedError
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError, OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka.records import Record, build_batch, in_parts, read_records
from tpc_broker.metadata.image import ClusterImage, changed_topics
from tpc_broker.model import (
    CONSUMER_OFFSETS_TOPIC,
    NO_TOPIC_ID,
    PartitionIndex,
    TopicId,
    TopicPartition,
    coordinator_partition,
)
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.partition import Partition
    from tpc_broker.coordinator.messages import Response

log = logging.getLogger(__name__)

LOAD_BYTES = 1 << 20
LOAD_STEP_RECORDS = 64
"""Replayed at once: some 11 µs each, for which everything else of this core waits."""
AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
"""Until groups that could not be loaded are loaded again; twice as long each time."""
COMMIT_HELD_S = 2.0
"""As long as records are held between two leaders."""
CLOCK_SET_MS = 1_000
"""A wall clock that differs by so much from what the monotonic one says was set."""
TIMER_LATE_MS = 500
TIMER_GRACE_MS_MAX = 5_000
SNAPSHOT_GROWTH_RECORDS = 20_000
"""A snapshot is due when the log holds this many records more than twice the live ones."""
SNAPSHOT_BATCH_RECORDS = 1_000


R = TypeVar("R")


class PendingReply:
    """A request that waits for its reply; the token the machine sees."""

    __slots__ = ("done", "response")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.response: Response | None = None


# Rule: An offset that was acknowledged to a group is there until a later one was sent, whatever became of its
# coordinator. See also tpc_broker/coordinator/machine.py. Held by tests/broker/test_groups_random.py,
# tests/broker/test_group_service.py, tests/simulator/nodes_groups.py (members across failovers).
class LoadedCoordinator:
    """One partition's machine with its log and its timer."""

    def __init__(self, core: Core, partition: Partition, group_limits: GroupLimits) -> None:
        self.machine = GroupCoordinator(group_limits, self._fate_of, core.groups.bytes_left)
        self._core = core
        self._knows_all_topics = False
        """Of those of which offsets were stored when it was loaded: later ones are of topics that are known here."""
        self._partition = partition
        self._writes: deque[Write] = deque()
        self._writes_bytes = 0
        self._has_writes = trio.Event()
        self._timer_changed = trio.Event()
        self._records_in_log = 0
        self._live_at_snapshot = 0
        self._ahead_ms = core.clock.wall_ms() - core.clock.monotonic_ms()
        self.is_loaded = self.is_unloaded = False
        self.has_loaded = trio.Event()
        """Set once it is loaded, or will never be."""

    async def run(self) -> None:
        """Load, then write and keep time until cancelled."""
        await self._load()
        self.perform(self.machine.finish_loading(self.now_ms()))
        self.is_loaded = True
        self.has_loaded.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_in_order)
            nursery.start_soon(self._keep_time)
            nursery.start_soon(self._learn_which_topics_are_gone)

    def now_ms(self) -> int:
        """By the wall clock, whose times are stored. Where it was set, deadlines go with it: sessions and rounds are as
        long as they would have been. Set forward is also the clock of a machine that stood still, where members could
        not be heard: they have a little longer.
        """
        now_ms = self._core.clock.wall_ms()
        set_by_ms = now_ms - self._core.clock.monotonic_ms() - self._ahead_ms
        if abs(set_by_ms) >= CLOCK_SET_MS:
            self._ahead_ms += set_by_ms
            self.machine.clock_was_set(set_by_ms + max(0, min(set_by_ms, TIMER_GRACE_MS_MAX)))
        return now_ms

    async def call(self, kind: type[R], step: Callable[[PendingReply, int], Effects]) -> R:
        """One request: hand it in, wait for its reply, which is of that kind."""
        pending = PendingReply()
        self.perform(step(pending, self.now_ms()))
        await pending.done.wait()
        assert isinstance(pending.response, kind), pending.response
        return pending.response

    def perform(self, effects: Effects) -> None:
        """Send replies, queue writes, look at the clock again."""
        for reply in effects.replies:
            token = reply.token
            assert isinstance(token, PendingReply)
            token.response = reply.response
            token.done.set()
        refused = [(write, error) for write in effects.writes if (error := self._queue(write)) is not ErrorCode.NONE]
        self._timer_changed.set()
        for write, error in refused:  # when all are queued: what follows from it comes behind them
            self._fail(write, error)

    def _queue(self, write: Write) -> ErrorCode:
        size = write.size_bytes
        if size > limits.OWN_BATCH_BYTES_MAX:
            return ErrorCode.MESSAGE_TOO_LARGE
        is_full = self._writes_bytes + size > limits.GROUP_WRITES_BYTES_MAX
        if is_full or len(self._writes) >= limits.GROUP_WRITES_MAX:  # the disk is far behind: clients are to come back
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._writes.append(write)
        self._writes_bytes += size
        self._has_writes.set()
        return ErrorCode.NONE

    def timer_changed(self) -> None:
        """To be called after a step without effects that may have moved a deadline."""
        self._timer_changed.set()

    def unload(self) -> None:
        """Answer everybody who waits; what becomes of writes under way is nobody's concern any more."""
        self.is_loaded, self.is_unloaded = False, True
        self.perform(self.machine.unload())

    def _fate_of(self, name: str, topic_id: TopicId) -> Fate:
        image = self._core.view.image
        is_there = image.topic(name) is not None if topic_id == NO_TOPIC_ID else topic_id in image.topics
        if is_there:
            return Fate.THERE
        return Fate.GONE if self._knows_all_topics or image.is_deleted(topic_id) else Fate.UNKNOWN

    async def _learn_which_topics_are_gone(self) -> None:
        """The log may name topics that this core's image does not: they were deleted, or another coordinator knew more
        than this core does by now. By the newest image it is certain.
        """
        self.perform(self.machine.topics_changed())
        again_s = AGAIN_S
        while self.machine.has_unknown_topics:
            try:
                await self._core.metadata.take_newest()
                break
            except MailboxError as error:
                log.info(
                    "%s: offsets of topics that are not known here wait for the metadata: %s",
                    self._partition.label, error,
                )  # fmt: skip
            await trio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)
        self._knows_all_topics = True
        self.perform(self.machine.topics_changed())

    async def _load(self) -> None:
        try:
            await self._replay()
        except (ValueError, RecordDamagedError) as error:
            raise RecordsDamagedError(f"{self._partition.label}: {error}") from error

    async def _replay(self) -> None:
        partition = self._partition
        bounds = partition.bounds()
        offset = bounds.log_start_offset
        while offset < bounds.high_watermark:
            data, begin = await partition.read_bytes(offset, bounds.high_watermark, LOAD_BYTES), offset
            for record in read_records(data):
                offset = record.offset + 1
                self._records_in_log += 1
                if record.key is not None:
                    self.machine.replay(record.key, record.value)
                if self._records_in_log % LOAD_STEP_RECORDS == 0:
                    await trio.lowlevel.checkpoint()
            if offset == begin:
                raise RecordDamagedError(f"nothing can be read at offset {offset}")
            await trio.lowlevel.checkpoint()

    async def _write_in_order(self) -> None:
        """Append what is queued, as it was queued; several writes share one wait for the disk."""
        while True:
            await self._has_writes.wait()
            await self._write(self._next_writes())
            if not self._writes:
                self._has_writes = trio.Event()
                await self._snapshot_if_due()

    def _next_writes(self) -> list[Write]:
        """As many as one batch takes, and at least one."""
        writes, total = [], 0
        while self._writes and total + (size := self._writes[0].size_bytes) <= limits.OWN_BATCH_BYTES_MAX:
            writes.append(self._writes.popleft())
            total += size
        self._writes_bytes -= total
        assert writes
        assert self._writes_bytes >= 0, self._writes_bytes
        return writes

    async def _write(self, writes: list[Write]) -> None:
        now_ms = self.now_ms()
        records = [Record(r.value, r.key, now_ms) for write in writes for r in write.records]
        try:
            await self._partition.append_durably(build_batch(records))
        except PartitionOfflineError as error:
            if self.is_unloaded:
                return
            text = f"{self._partition.label}: {len(writes)} writes failed: {error}"
            self._core.log_limiter.say(log, "writes of groups failed", self._partition.label, text)
            for write in writes:
                self._fail(write, ErrorCode.KAFKA_STORAGE_ERROR)
            return
        if self.is_unloaded:
            return
        self._records_in_log += len(records)
        for write in writes:
            self.perform(self.machine.written(write.write_id, self.now_ms()))

    def _fail(self, write: Write, error: ErrorCode) -> None:
        self.perform(self.machine.write_failed(write.write_id, error, self.now_ms()))

    async def _snapshot_if_due(self) -> None:
        if self._records_in_log < 2 * self._live_at_snapshot + SNAPSHOT_GROWTH_RECORDS:
            return
        if self.machine.statistics().writes_pending:
            return
        records = self.machine.snapshot()
        now_ms = self.now_ms()
        start = self._partition.bounds().log_end_offset
        try:
            stamped = (Record(r.value, r.key, now_ms) for r in records)
            for part in in_parts(
                stamped, bytes_max=limits.OWN_BATCH_BYTES_MAX, overhead_bytes=limits.OWN_RECORD_OVERHEAD_BYTES,
                records_max=SNAPSHOT_BATCH_RECORDS,
            ):  # fmt: skip
                await self._partition.append_durably(build_batch(part))
            await self._partition.move_log_start(start)
        except PartitionOfflineError as error:
            text = f"{self._partition.label}: snapshot failed: {error}"
            self._core.log_limiter.say(log, "snapshots of groups failed", self._partition.label, text)
            return
        self._live_at_snapshot = self._records_in_log = len(records)

    # Rule: Deadlines of groups go with the wall clock when it is set: no session or rebalance is longer or shorter for
    # it. See also tpc_broker/coordinator/machine.py. Held by tests/broker/test_group_service.py.
    async def _keep_time(self) -> None:
        while True:
            self._timer_changed = trio.Event()
            now_ms = self.now_ms()  # first: it may move the deadlines
            deadline_ms = self.machine.next_deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                await self._hear_members_first(now_ms - deadline_ms)
                self.perform(self.machine.on_deadline(self.now_ms()))
                continue
            with trio.move_on_after(float("inf") if deadline_ms is None else (deadline_ms - now_ms) / 1000):
                await self._timer_changed.wait()

    async def _hear_members_first(self, late_ms: int) -> None:
        """Before sessions end: what members have sent is attended to. And when this core itself comes late, because the
        machine was paused or the clock was set, they have as long, now that they can be heard.
        """
        if late_ms > TIMER_LATE_MS:
            await trio.sleep(min(late_ms, TIMER_GRACE_MS_MAX) / 1000)
        await self._core.dispatcher.wait_caught_up()


class GroupService:
    def __init__(self, core: Core, nursery: trio.Nursery) -> None:
        self._core = core
        self._nursery = nursery
        self._coordinators: dict[TopicPartition, tuple[LoadedCoordinator, trio.CancelScope]] = {}

    async def wait_coordinator(self, group_id: str) -> None:
        """Where the group's coordinator may be here soon, wait for it, or until it is somebody else.

        librdkafka sends a commit that came too early twice more within 0.3 s, and one that found no coordinator once
        more, before it tells its user of the error.
        """
        key = self._key_of(group_id)
        partition = None if key is None else self._core.partitions.get(key)
        if key is None or partition is None:
            return
        with trio.move_on_after(COMMIT_HELD_S):
            if self._core.replicated is not None and partition.is_replicated:
                await self._core.replicated.wait_leaders([partition])
            found = self._coordinators.get(key)
            if found is not None and not found[0].is_loaded:
                await found[0].has_loaded.wait()

    def _key_of(self, group_id: str) -> TopicPartition | None:
        topic = self._core.view.topic(CONSUMER_OFFSETS_TOPIC)
        if topic is None:
            return None
        return TopicPartition(topic.topic_id, coordinator_partition(group_id, topic.partitions_count))

    def coordinator_of(self, group_id: str) -> LoadedCoordinator | ErrorCode:
        """The coordinator of a group when it is here and loaded, else the error that clients understand."""
        topic, key = self._core.view.topic(CONSUMER_OFFSETS_TOPIC), self._key_of(group_id)
        if topic is None or key is None:
            return ErrorCode.NOT_COORDINATOR
        found = self._coordinators.get(key)
        if found is None:
            self._core.note_asked(topic.owner_on(self._core.view.node, key.partition))
            return ErrorCode.NOT_COORDINATOR
        return found[0] if found[0].is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def confirm(self, group_id: str) -> bool:
        """Whether it is certain that no other node has coordinated the group before this call."""
        topic, key = self._core.view.topic(CONSUMER_OFFSETS_TOPIC), self._key_of(group_id)
        replicated = self._core.replicated
        if topic is None or key is None or replicated is None:
            return True
        return not topic.is_replicated(key.partition) or await replicated.replication.confirm(key)

    def loaded(self) -> list[LoadedCoordinator]:
        return [coordinator for coordinator, _scope in self._coordinators.values() if coordinator.is_loaded]

    def bytes_left(self) -> int:
        """For members of groups of this core; below 0 where more was stored than would be taken now."""
        held = sum(coordinator.machine.size_bytes for coordinator, _scope in self._coordinators.values())
        return limits.GROUPS_BYTES_MAX - held

    @property
    def is_loading(self) -> bool:
        """One that could not be loaded is not: it is tried again after a while."""
        coordinators = (coordinator for coordinator, _scope in self._coordinators.values())
        return any(not (coordinator.is_loaded or coordinator.is_unloaded) for coordinator in coordinators)

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Begin and end coordinators as ``__consumer_offsets`` comes and goes; forget offsets of deleted topics."""
        deleted = [old.name for old, new in changed_topics(before, after) if new is None and old is not None]
        topic = after.topic(CONSUMER_OFFSETS_TOPIC)
        wanted: set[TopicPartition] = set()
        if topic is not None:
            wanted = {TopicPartition(topic.topic_id, PartitionIndex(index)) for index in range(topic.partitions_count)}
        for key in [key for key in self._coordinators if key not in wanted]:
            self.end(key)
        for key in wanted - self._coordinators.keys():
            self.begin_if_coordinates(key)
        if deleted:
            for coordinator in self.loaded():
                coordinator.perform(coordinator.machine.topics_changed(deleted))

    def begin_if_coordinates(self, key: TopicPartition) -> None:
        """A partition is led here: if it is one of groups, they are coordinated here now."""
        topic = self._core.view.topic(CONSUMER_OFFSETS_TOPIC)
        partition = self._core.partitions.get(key)
        is_of_groups = topic is not None and topic.topic_id == key.topic_id
        if is_of_groups and partition is not None and partition.is_led and key not in self._coordinators:
            self._begin(key, partition)

    def end(self, key: TopicPartition) -> None:
        """A partition is served here no more; its groups, if it has any, find their coordinator anew."""
        found = self._coordinators.pop(key, None)
        if found is not None:
            coordinator, scope = found
            coordinator.unload()
            scope.cancel()

    def _begin(self, key: TopicPartition, partition: Partition) -> None:
        coordinator, scope = self._new_coordinator(partition), trio.CancelScope()
        self._coordinators[key] = coordinator, scope
        with in_queue(TaskQueue.COORDINATORS):
            self._nursery.start_soon(self._run, key, partition, coordinator, scope)

    def _new_coordinator(self, partition: Partition) -> LoadedCoordinator:
        settings = self._core.settings
        group_limits = GroupLimits(
            session_timeout_ms_min=settings.group_min_session_timeout_ms,
            session_timeout_ms_max=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            group_size_max=settings.group_max_size,
            offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
            offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        )
        return LoadedCoordinator(self._core, partition, group_limits)

    async def _run(
        self, key: TopicPartition, partition: Partition, coordinator: LoadedCoordinator, scope: trio.CancelScope
    ) -> None:
        """Until the partition is served here no more. What cannot be loaded now may be later, so it is tried again."""
        again_s = AGAIN_S
        with scope:
            while True:
                try:
                    await coordinator.run()
                except (PartitionOfflineError, OffsetOutOfRangeError) as error:
                    log.error(
                        "__consumer_offsets-%d: its groups cannot be loaded, which is tried again in %.0f s: %s",
                        key.partition, again_s, str(error) or "it is about to close",
                    )  # fmt: skip
                    coordinator.unload()
                finally:
                    coordinator.has_loaded.set()
                await trio.sleep(again_s)
                again_s = min(2 * again_s, AGAIN_S_MAX)
                if scope.cancel_called:
                    return
                coordinator = self._new_coordinator(partition)
                self._coordinators[key] = coordinator, scope

    async def prepare_drain(self) -> None:
        """Answer everybody who waits for others (joins, syncs): they go to the next coordinator."""
        for coordinator, scope in self._coordinators.values():
            if coordinator.is_loaded:
                coordinator.unload()
            scope.cancel()
        self._coordinators.clear()
