"""The segments of one partition, as readers see them: by offset, by time, and as stretches that C may read by itself.

A reader holds the segments of the moment at which it began (`segments` is a tuple, and every change makes another one),
below `written_end_offset` of that moment. Leading segments may be renamed, and the end may be cut, while it waits for
the disk: what it finds is still what was stored there, or FileNotFoundError.
"""

from __future__ import annotations

import bisect
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import NO_TIMESTAMP, BatchHeader, decode_header
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES, OffsetEntry
from tpc_broker.storage.batch_ranges import end_of_batches, find_offset
from tpc_broker.storage.ports import SegmentWindow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.log.segment import LogSettings, SegmentIndexes
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.segments import Segment, SegmentFolder

READ_SLACK_BYTES: Final = 16 * 1024
WINDOW_ENTRIES_MAX: Final = 16 * 1024


class OffsetOutOfRangeError(LookupError):
    """No segment holds the offset: it lies in front of the first one."""


class TimestampMatch(NamedTuple):
    """The first batch that may hold the record wanted; the record itself is found by whoever can unpack the batch."""

    header: BatchHeader
    batch: bytes


class SegmentReader:
    """See the module. Whoever changes the segments is `PartitionStorage`."""

    def __init__(
        self, folder: SegmentFolder, key: TopicPartition, segments: Iterable[Segment], written_end_offset: int,
        settings: LogSettings,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.key = key
        self.settings = settings
        self.segments: tuple[Segment, ...] = tuple(segments)
        """By base offset, never empty; the last one is the active segment."""
        self.written_end_offset = written_end_offset

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def segment_number(self, offset: int) -> int:
        number = bisect.bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        if number < 0:
            raise OffsetOutOfRangeError(f"offset {offset} lies in front of {self.segments[0].base_offset}")
        return number

    async def read(self, offset: int, bytes_max: int, upto_offset: int | None = None) -> Buffer:
        """Whole batches from the one that holds `offset` on, as stored, from one segment.

        Batches that begin at or behind `upto_offset` are left out. The first batch comes even if it is larger than
        `bytes_max`. Empty when nothing at or behind the offset was written here yet (look in memory).
        """
        upto = self.written_end_offset if upto_offset is None else min(upto_offset, self.written_end_offset)
        for segment in self.segments[self.segment_number(offset) :]:
            if offset >= upto:
                break
            data = await self._read_segment(segment, segment.size_bytes, offset, bytes_max, upto)
            if data:
                return data
        return b""

    @asynccontextmanager
    async def window(self, offset: int) -> AsyncIterator[SegmentWindow]:
        """The stretch of a segment from an offset on, as far as WINDOW_ENTRIES_MAX entries of its index lead.

        As it is when the block is entered, where its descriptor is open. Sealed segments do not change any more.
        """
        number = self.segment_number(offset)
        segment = self.segments[number]
        offsets = (await self.load(segment)).offsets
        async with self.folder.use(segment.log_name) as file:
            is_sealed = segment is not self.active
            first = offsets.entries_upto(offset)
            last = min(first + WINDOW_ENTRIES_MAX, len(offsets))
            begin = offsets[first - 1] if first else OffsetEntry(segment.base_offset, 0)
            to_end = last == len(offsets)
            if not to_end:
                end_position, upto_offset = offsets[last].position, offsets[last - 1].offset + 1
            else:
                end_position = segment.size_bytes
                upto_offset = self.written_end_offset
                if is_sealed:
                    upto_offset = self.end_of(segment)
            entries = bytes(offsets.data[max(first - 1, 0) * OFFSET_ENTRY_BYTES : last * OFFSET_ENTRY_BYTES])
            yield SegmentWindow(
                file.fd, segment.base_offset, begin.offset, upto_offset, begin.position, end_position, entries,
                to_end, is_sealed,
            )  # fmt: skip

    async def _read_segment(self, segment: Segment, size_bytes: int, offset: int, bytes_max: int, upto: int) -> Buffer:
        indexes = await self.load(segment)
        position = indexes.offsets.lookup(offset).position
        async with self.folder.use(segment.log_name) as file:
            while position < size_bytes:
                wanted = min(size_bytes - position, bytes_max + self.settings.index_interval_bytes + READ_SLACK_BYTES)
                data = await self.folder.disk.read_view(file.fd, wanted, position)
                start, header = find_offset(data, offset)
                if header is None:
                    assert start > 0 or len(data) < size_bytes - position, (self.key, segment, position)
                    position += start
                    if start == 0:
                        position += decode_header(data).size_bytes
                    continue
                if header.base_offset >= upto:
                    return b""
                if start > READ_SLACK_BYTES and len(data) < size_bytes - position:  # room was lost to what is skipped
                    position += start
                    data = await self.folder.disk.read_view(file.fd, min(size_bytes - position, wanted), position)
                    start = 0
                if start + header.size_bytes > len(data):
                    return await self.folder.disk.read_view(file.fd, header.size_bytes, position + start)
                return data[start : end_of_batches(data, start, bytes_max, upto)]
        return b""

    async def offset_for_timestamp(self, timestamp: int, start_offset: int) -> TimestampMatch | None:
        """The first batch at or behind an offset whose largest timestamp is not below the one wanted."""
        first = self.segment_number(max(start_offset, self.segments[0].base_offset))
        async with aclosing(self.look_through(first)) as segments:
            async for segment, indexes in segments:
                if segment.size_bytes == 0 or indexes.largest_timestamp < timestamp:
                    continue
                near = indexes.times.lookup(timestamp)
                position = indexes.offsets.lookup(max(near.offset, start_offset)).position
                async with aclosing(self.folder.walk(segment, position)) as batches:
                    async for header, place in batches:
                        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                            return TimestampMatch(header, await self.folder.read(segment, place, header.size_bytes))
        return None

    async def largest_timestamp(self, start_offset: int, upto_offset: int) -> TimestampMatch | None:
        """The batch in [start, upto) that holds the record with the largest timestamp; the first of equals."""
        best, best_offset = NO_TIMESTAMP, start_offset
        first = self.segment_number(max(start_offset, self.segments[0].base_offset))
        async with aclosing(self.look_through(first)) as segments:
            async for segment, indexes in segments:
                if segment.base_offset >= upto_offset:
                    break
                largest, offset = indexes.largest_timestamp, indexes.largest_timestamp_offset
                if largest > best and not start_offset <= offset < upto_offset:
                    largest, offset = await self._largest_within(segment, indexes, start_offset, upto_offset)
                if largest > best:
                    best, best_offset = largest, offset
        return None if best == NO_TIMESTAMP else await self.offset_for_timestamp(best, best_offset)

    async def _largest_within(
        self, segment: Segment, indexes: SegmentIndexes, start_offset: int, upto_offset: int
    ) -> tuple[int, int]:
        """The largest timestamp of a segment's batches in [start, upto), and the last offset of the first that has it.

        The time index knows it of all up to its last entry in front of `upto`, if that is one of them; the batches
        behind that entry are looked at.
        """
        near = indexes.times.before(upto_offset)
        best, best_offset = (near.timestamp, near.offset) if near.offset >= start_offset else (NO_TIMESTAMP, -1)
        position = indexes.offsets.lookup(max(near.offset, start_offset)).position
        async with aclosing(self.folder.walk(segment, position)) as batches:
            async for header, _place in batches:
                if header.next_offset > upto_offset:
                    break
                if header.last_offset >= start_offset and header.max_timestamp > best:
                    best, best_offset = header.max_timestamp, header.last_offset
        return best, best_offset

    async def aborted_transactions(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that touch [fetch_offset, upper_offset), for readers of committed records."""
        found: list[AbortedTransaction] = []
        async with aclosing(self.look_through(self.segment_number(fetch_offset))) as segments:
            async for _segment, indexes in segments:
                more, complete = indexes.transactions.collect(fetch_offset, upper_offset)
                found += more
                if complete:
                    break
        return found

    async def look_through(self, first: int) -> AsyncGenerator[tuple[Segment, SegmentIndexes], None]:
        """Segments from a number on, with their indexes; leading ones may go, and others come, at each await."""
        for segment in self.segments[first:]:
            try:
                indexes = await self.load(segment) if segment in self.segments else None
            except FileNotFoundError:
                if segment in self.segments:
                    raise
                continue
            if indexes is not None:
                yield segment, indexes

    async def load(self, segment: Segment) -> SegmentIndexes:
        if segment.indexes is None:
            end_offset = self.end_of(segment)
            segment.indexes = await self.folder.load_indexes(segment, end_offset, self.settings.index_interval_bytes)
        return segment.indexes

    def end_of(self, segment: Segment) -> int:
        """ValueError: it is not there any more."""
        following = self.segments[self.segments.index(segment) + 1 :]
        return following[0].base_offset if following else self.written_end_offset
