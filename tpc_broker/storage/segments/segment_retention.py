"""Which leading segments of one partition may go, and how they do: the log's start moves first, then whole segments
below it are renamed, and unlinked after `file.delete.delay.ms`.

When a core's partitions are looked at, and how a new start becomes durable, is said in `retention`.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from tpc_broker.log.segment import RetentionPlan, SegmentView, plan_retention
from tpc_broker.storage.segments.files_life import Change
from tpc_broker.storage.segments.segment_appender import SegmentAppender
from tpc_broker.storage.segments.segment_reader import SegmentReader

if TYPE_CHECKING:
    from tpc_broker.storage.segments.segment_log import SegmentLog
    from tpc_broker.storage.segments.segments import Segment


class SegmentRetention:
    """See the module."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    async def plan(self, now_ms: int, high_watermark: int) -> tuple[RetentionPlan, int]:
        """Which leading segments may go, and the log start offset this leads to.

        The caller makes the new log start durable (a LOG_START entry), then calls `advance_log_start`.
        SegmentReplacedError.
        """
        log, views = self._log, []
        async with aclosing(SegmentReader(log).look_through(log.segments[0].base_offset)) as segments:
            async for segment, indexes in segments:
                if segment not in log.segments:
                    continue
                looked_at_end = log.end_of(segment)
                try:
                    appended_ms = await self._appended_ms(segment, now_ms)
                except FileNotFoundError:
                    if segment in log.segments:
                        raise
                if segment in log.segments:
                    end = log.end_of(segment)
                    if end != looked_at_end:  # the file may have been looked at before
                        appended_ms = now_ms
                    largest = indexes.largest_timestamp
                    views.append(SegmentView(segment.base_offset, end, segment.size_bytes, largest, appended_ms))
        plan = plan_retention(
            views,
            log.settings,
            log_start_offset=log.log_start_offset,
            high_watermark=min(high_watermark, log.written_end_offset),
            now_ms=now_ms,
        )
        start = views[plan.segments_count - 1].end_offset if plan.segments_count else log.log_start_offset
        return plan, max(start, log.log_start_offset)

    async def _appended_ms(self, segment: Segment, now_ms: int) -> int:
        """An empty active segment has nothing that is old, and perhaps no file."""
        is_empty = segment is self._log.active and not segment.size_bytes
        return now_ms if is_empty else await self._log.folder.modified_ms(segment)

    async def advance_log_start(self, offset: int, now_ms: int) -> int:
        """The log starts at an offset from now on (its journal entry is durable); how many segments went.

        Segments wholly below it are renamed, and unlinked by `purge` after `file.delete.delay.ms` (one that had
        in-place writes not before the next checkpoint). Called as often as needed: an offset not above the present
        start only removes what is left over.
        """
        log = self._log
        async with log.changing(Change.RETAIN):
            log.log_start_offset = max(log.log_start_offset, offset)
            log.log_state.advance_start(log.log_start_offset)
            all_gone = log.active.size_bytes and log.written_end_offset <= log.log_start_offset
            if all_gone and log.rolls.may_roll(log.written_end_offset):
                await SegmentAppender(log).roll_at(log.written_end_offset)
            gone = 0
            while len(log.segments) > 1 and log.segments[1].base_offset <= log.log_start_offset:
                first = log.segments[0]
                if first.has_in_place_writes and log.checkpointed.segment_base <= first.base_offset:
                    break  # recovery may have to read batches in it that were written in place
                log.publish(log.written_end_offset, log.segments[1:])
                names = await log.folder.doom(first)
                log.doomed.append((now_ms + log.settings.file_delete_delay_ms, names))
                gone += 1
            return gone

    async def purge(self, now_ms: int) -> None:
        """Unlink files whose delay is over. OSError: those that are left are tried again by the next call."""
        doomed = self._log.doomed
        while doomed and doomed[0][0] <= now_ms:
            first = doomed[0]
            for name in first[1]:
                await self._log.folder.remove(name)
            if first in doomed:  # two may be at it
                doomed.remove(first)
