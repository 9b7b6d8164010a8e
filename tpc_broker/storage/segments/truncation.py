"""The end of one partition's log, put where it belongs: cut back, or found in files that came from another replica."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.files import SNAPSHOT_SUFFIX
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.storage.segments.batch_ranges import end_of_batches
from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES, aligned_buffer
from tpc_broker.storage.segments.files_life import Change
from tpc_broker.storage.segments.segment_appender import SegmentAppender
from tpc_broker.storage.segments.segments import Segment

if TYPE_CHECKING:
    from tpc_broker.log.batch import Buffer
    from tpc_broker.storage.segments.segment_log import SegmentLog

SETTLED_BYTES: Final = 4 * 1024 * 1024
"""Of a segment that came from another replica, at a time."""


class Truncation:
    """See the module."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    async def truncate(self, offset: int, *, trust_indexes: bool = True) -> None:
        """Cut the log: everything at or above a batch's base offset is void. The journal's CUT is durable before.

        `trust_indexes` is false in recovery, where an earlier life may have cut already and written behind the cut.
        ValueError: the offset lies inside a batch, or the segments end in front of it.
        """
        log = self._log
        async with log.changing(Change.CUT):
            if offset >= log.written_end_offset:
                if log.active.written_end_position > log.active.size_bytes:  # of a batch that is void now
                    await log.folder.shorten(log.active)
                return
            cleaned_upto = max((one.seal.end_offset for one in log.segments if one.seal is not None), default=0)
            if offset < cleaned_upto:
                raise ValueError(f"offset {offset} is in front of {cleaned_upto}, up to which the log was cleaned")
            while len(log.segments) > 1 and log.active.base_offset >= offset:
                last = log.active
                if log.segments[-2].seal is not None:  # a cleaned segment takes nothing more, and is not cut
                    break
                log.publish(last.base_offset, log.segments[:-1])
                await self._remove_segment(last, offset)
            segment, others = log.active, log.segments[:-1]
            if segment.base_offset > offset or (others and segment.base_offset == offset):
                fresh = Segment(offset, indexes=SegmentIndexes(offset, log.settings.index_interval_bytes))
                log.publish(offset, (*others, fresh))
                await self._remove_segment(segment, offset)
            else:
                await self._cut_segment(segment, offset, trust_indexes=trust_indexes)
            log.log_state.cut_epochs(offset)
            log.publish(offset)
            log.log_start_offset = min(log.log_start_offset, offset)
            producers = await self._producers_at(offset)
            producers.complete(log.log_state.producers)
            log.log_state.cut_producers(offset, producers)

    async def begin_settling(self, offset: int) -> None:
        """Of files that came from another replica: the log ends at an offset of the last segment, by what the segments
        hold. Of that one nothing was looked at yet. BatchDamageError, ValueError: what is in front of it is no log.
        """
        log, active = self._log, self._log.active
        for name in active.file_names[1:4]:
            await log.folder.remove(name)
        active.written_end_position, active.size_bytes = active.size_bytes, 0
        active.indexes = SegmentIndexes(active.base_offset, log.settings.index_interval_bytes)
        log.publish(active.base_offset)
        producers = log.log_state.producers = await self._producers_at(active.base_offset)
        await log.folder.complete_snapshot(active.base_offset, producers)
        log.rolls.hold_until(offset)

    async def take_settled(self, batches: Buffer, next_offset: int, upto: int) -> bool:
        """Append whole batches that end at `next_offset`, as far as they begin in front of `upto`: they are in the
        active segment's file already, or will be. False: what comes next is behind `upto`.
        """
        log, view = self._log, memoryview(batches)
        if log.written_end_offset >= upto:
            return False
        end = len(view) if next_offset <= upto else end_of_batches(view, 0, len(view), upto)
        await SegmentAppender(log).append([view[:end]])
        return end == len(view)

    async def settle(self, offset: int, *, is_sealed: bool = False, has_gaps: bool = False) -> None:
        """The file is there: what was not taken is read, and the log ends at the offset. `is_sealed`: the segment is
        complete. `has_gaps`: it was cleaned, and no batch need end there. BatchDamageError, ValueError: they hold no
        log that ends there.
        """
        log, active = self._log, self._log.active
        await self._take_in(active.written_end_position, offset)
        if has_gaps and log.written_end_offset < offset:
            log.publish(offset)
        if log.written_end_offset != offset:
            raise ValueError(f"segment {active.base_offset} ends at {log.written_end_offset}, not at {offset}")
        await log.folder.shorten(active)
        if is_sealed:
            log.active_indexes().seal()
            await log.folder.flush_indexes(active, sealed=True)

    async def _take_in(self, size_bytes: int, upto: int) -> None:
        """Append what is in the active segment's file already."""
        log, position, length = self._log, self._log.active.size_bytes, SETTLED_BYTES
        if position >= size_bytes or log.written_end_offset >= upto:
            return
        buffer = aligned_buffer(length + DIRECT_BLOCK_BYTES, log.folder.disk.poll_ring)
        while position < size_bytes and log.written_end_offset < upto:
            wanted = min(length, size_bytes - position)
            data = await log.folder.read_direct(log.active.log_name, position, wanted, buffer)
            end, next_offset = find_batches_end(data, log.written_end_offset)
            if not end:
                if len(data) < length:
                    raise BatchDamageError(f"no batch at {position} of segment {log.active.base_offset}")
                length *= 2
                buffer = aligned_buffer(length + DIRECT_BLOCK_BYTES, log.folder.disk.poll_ring)
                continue
            if not await self.take_settled(data[:end], next_offset, upto):
                return
            position, length = position + end, SETTLED_BYTES

    async def _remove_segment(self, segment: Segment, cut_offset: int) -> None:
        """Its files go; a snapshot of the producers in front of the cut is still right."""
        for name in segment.file_names:
            if segment.base_offset != cut_offset or not name.endswith(SNAPSHOT_SUFFIX):
                await self._log.folder.remove(name)

    async def _cut_segment(self, segment: Segment, offset: int, *, trust_indexes: bool) -> None:
        log, position = self._log, 0
        interval_bytes = log.settings.index_interval_bytes
        indexes = None
        if trust_indexes:  # those in memory, if they are: files have the active segment's as of the last checkpoint
            indexes = segment.indexes or await log.folder.load_indexes(segment, offset, interval_bytes)
        if indexes is not None and offset > segment.base_offset:
            position = indexes.offsets.lookup(offset - 1).position
        end_offset = segment.base_offset
        async with aclosing(log.folder.walk(segment, position if offset > segment.base_offset else 0)) as batches:
            while end_offset < offset:
                found = await anext(batches, None)  # not a tuple: CPython 3.11 makes the end's arguments of it
                if found is None or found[0].base_offset < offset < found[0].next_offset:
                    raise ValueError(f"offset {offset} does not end a batch of segment {segment.base_offset}")
                header, place = found
                if header.base_offset >= offset:
                    break
                position, end_offset = place + header.size_bytes, header.next_offset
        if indexes is None:
            await log.folder.cut(segment, position, surplus=())  # of the index files one says what was aborted
            indexes = await log.folder.rebuild_indexes(segment, interval_bytes)
        else:  # readers of the files find what they have of the indexes until the next checkpoint
            indexes.truncate(position, offset)
            lengths = [min(pair) for pair in zip(segment.flushed_bytes, indexes.lengths, strict=True)]
            await log.folder.cut(segment, position, lengths)
        segment.indexes = indexes
        await log.folder.resume(segment)

    # Rule: A marker that was cleaned away has ended its transaction all the same: what was cleaned is decided, so where
    # a segment may have lost one no transaction from in front of its end is open. See also
    # tpc_broker/storage/recovery/repair.py. Held by tests/storage/test_compaction_of_transactions.py,
    # tests/storage/test_aborted_kept.py.
    async def _producers_at(self, offset: int) -> ProducerState:
        """Producer state in front of an offset: the nearest good snapshot, and the batches since."""
        log, state = self._log, ProducerState()
        from_offset = log.segments[0].base_offset
        for segment in reversed(log.segments):
            if segment.base_offset > offset:
                continue
            stored = await log.folder.stored_producers(segment.base_offset)
            if stored is not None:
                state, from_offset = stored, segment.base_offset
                break
        for segment in log.segments[log.segment_number(from_offset) :]:
            async with aclosing(log.folder.walk(segment, 0)) as batches:
                async for header, place in batches:
                    if header.next_offset > offset:
                        return state
                    state.apply(header, await log.folder.control_data(segment, header, place))
            if segment.seal is not None and segment.seal.may_lack_markers:
                state.end_transactions(segment.seal.end_offset)
        return state
