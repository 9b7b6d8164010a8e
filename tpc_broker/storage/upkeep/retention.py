"""Where the logs of one core's partitions start: moved by DeleteRecords and by retention, durably, before segments go.

The journal's entry comes first, then whole segments below the new start are renamed, as far as write-behind has come;
what it has not reached yet follows with the next checkpoint. Their space comes back later (`deletion`).
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.journal import EntryKind

if TYPE_CHECKING:
    from tpc_broker.log.segment import SegmentView
    from tpc_broker.storage.ports import Clock, StoragePlane
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.deletion import Deletions
    from tpc_broker.storage.upkeep.journal_upkeep import JournalUpkeep

log = logging.getLogger(__name__)

HELD_BACK_LINE_MS: Final = 3_600_000


class Retention:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        clock: Clock,
        partitions: CorePartitions,
        *,
        journal: JournalUpkeep,
        deletions: Deletions,
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._led = partitions.led
        self._journal = journal
        self._deletions = deletions

    async def set_log_start(self, handle: int, offset: int) -> None:
        """The log starts here from now on, durably; whole segments below it go."""
        led = self._led.get(handle)
        if led is None or led.is_leaving:
            raise PartitionOfflineError("the partition is closed")

        def begin_there() -> None:
            led.files.log_start_offset = max(led.files.log_start_offset, offset)
            led.files.mark_changed()
            self._plane.set_log_start(handle, offset)

        led.log_starts_under_way += 1
        try:
            await self._journal.append_entry(EntryKind.LOG_START, led.files.key, offset, 0, begin_there)
        finally:
            led.log_starts_under_way -= 1
        if handle in self._led:
            await self.advance(led, offset)

    async def advance(self, led: LeaderPartition, offset: int) -> int:
        """Drop segments wholly below an offset, as far as write-behind has come; how many."""
        async with led.lock:
            reached = min(offset, led.files.written_end_offset)
            try:
                gone = await led.files.advance_log_start(reached, self._clock.wall_ms())
            except StorageFailedError as error:
                raise PartitionOfflineError(str(error)) from error
        if gone:
            self._deletions.segments_doomed(led.files)
        return gone

    def forget_producers(self, led: LeaderPartition) -> None:
        """Those that the data plane has forgotten, because they were silent for long or those of all partitions too
        many. With each checkpoint: until a round of retention there may be any number of new ones.
        """
        left = self._plane.expire_producers(led.handle)
        if left is not None:
            led.files.producers.forget_longest_unchanged(left)

    async def retain(self, files: PartitionStorage, handle: int, now_ms: int) -> int:
        """One round of retention by age and size; how many segments went. PartitionOfflineError: it cannot be done, or
        a segment is damaged; then only those below the log's start go.
        """
        led = self._led.get(handle)
        if led is None or files.failed is not None:
            return 0
        self.forget_producers(led)
        files.producers.expire(now_ms, self._clock.monotonic_ms(), files.settings.producer_id_expiration_ms)
        try:
            plan, start = await files.plan_retention(now_ms, self._plane.bounds(handle).high_watermark)
            if plan.held_back is not None:
                self._tell_held_back(led, plan.held_back)
            if plan.roll:
                await files.roll()
            if start > files.log_start_offset:
                log.info("%s-%d: the log starts at offset %d (%s)", files.topic, files.key.partition, start,
                         ", ".join(sorted(set(plan.reasons))))  # fmt: skip
                before = len(files.segments)
                await self.set_log_start(handle, start)
                gone = before - len(files.segments)
            else:
                gone = await self.advance(led, self._plane.bounds(handle).log_start_offset)
        except BatchDamageError as error:  # how old the segment is nobody knows
            await self.advance(led, self._plane.bounds(handle).log_start_offset)
            raise PartitionOfflineError(f"nothing goes by age or size, a segment is damaged ({error})") from error
        except (OSError, StorageFailedError) as error:
            raise PartitionOfflineError(str(error)) from error
        return gone

    def _tell_held_back(self, led: LeaderPartition, segment: SegmentView) -> None:
        """Once an hour for each partition: it may last as long as `message.timestamp.after.max.ms`, or for ever."""
        now_ms, files = self._clock.monotonic_ms(), led.files
        if led.held_back_told_ms is not None and now_ms - led.held_back_told_ms < HELD_BACK_LINE_MS:
            return
        led.held_back_told_ms = now_ms
        log.warning(
            "%s-%d: from offset %d on nothing goes by age before %s: a record there is dated %s, after it came, and "
            "retention.ms counts from the dates of records; segment.age.ms counts from the last append "
            "(said once an hour)",
            files.topic, files.key.partition, max(segment.base_offset, files.log_start_offset),
            moment(segment.largest_timestamp + files.settings.retention_ms), moment(segment.largest_timestamp),
        )  # fmt: skip


def moment(time_ms: int) -> str:
    """Of a record's date, which may be any number."""
    try:
        return f"{dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (OverflowError, ValueError, OSError):
        return f"the end of time ({time_ms} ms)"
