"""The segments of one partition, as readers see them: by offset, by time, and as stretches that C may read by itself.

A reader holds the version of the moment at which it began (`segment_log.SegmentsVersion`). Leading segments may be
renamed, and the end may be cut, while it waits for the disk: what it finds is still what was stored there, or
FileNotFoundError. Segments may give way to cleaned ones: what it has open stays, else it is SegmentReplacedError, and
whoever has called begins again with the version of then (`SegmentLog.begin_again`).
"""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import NO_TIMESTAMP, BatchDamageError, BatchHeader
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES, OffsetEntry
from tpc_broker.storage.ports import SegmentWindow
from tpc_broker.storage.segments.batch_ranges import end_of_batches, find_offset
from tpc_broker.storage.segments.files_life import FilesState
from tpc_broker.storage.segments.segments import are_sealed
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.log.segment import SegmentIndexes
    from tpc_broker.storage.segments.segment_log import SegmentLog
    from tpc_broker.storage.segments.segments import Segment

READ_SLACK_BYTES: Final = 16 * 1024
WINDOW_ENTRIES_MAX: Final = 16 * 1024


class TimestampMatch(NamedTuple):
    """The first batch that may hold the record wanted; the record itself is found by whoever can unpack the batch."""

    header: BatchHeader
    batch: bytes


class SegmentReader:
    """See the module."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    async def read(self, offset: int, bytes_max: int, upto_offset: int | None = None) -> Buffer:
        """Whole batches from the one that holds `offset` on, as stored, from one segment.

        Batches that begin at or behind `upto_offset` are left out. The first batch comes even if it is larger than
        `bytes_max`. Empty when nothing at or behind the offset was written here yet (look in memory).
        """
        version = self._log.version
        upto = version.end_offset if upto_offset is None else min(upto_offset, version.end_offset)
        for segment in version.segments[version.number_of(offset) :]:
            if offset >= upto:
                break
            if not version.size_of(segment):  # it may have no file yet
                continue
            data = await self._read_segment(segment, version.size_of(segment), offset, bytes_max, upto)
            if data:
                return data
        return b""

    @asynccontextmanager
    async def window(self, offset: int) -> AsyncIterator[SegmentWindow]:
        """The stretch of a segment from an offset on, as far as WINDOW_ENTRIES_MAX entries of its index lead.

        As it is when the block is entered, where its descriptor is open. Sealed segments do not change any more.
        """
        version = self._log.version
        segment = version.segments[version.number_of(offset)]
        offsets = (await self.load(segment)).offsets
        async with self._log.folder.use_log(segment) as file:
            version = self._log.version
            is_sealed = segment is not version.active
            first = offsets.entries_upto(offset)
            last = min(first + WINDOW_ENTRIES_MAX, len(offsets))
            begin = offsets[first - 1] if first else OffsetEntry(segment.base_offset, 0)
            to_end = last == len(offsets)
            if not to_end:
                end_position, upto_offset = offsets[last].position, offsets[last - 1].offset + 1
            else:
                end_position, upto_offset = version.size_of(segment), version.end_of(segment)
            entries = bytes(offsets.data[max(first - 1, 0) * OFFSET_ENTRY_BYTES : last * OFFSET_ENTRY_BYTES])
            yield SegmentWindow(
                file.fd, segment.base_offset, begin.offset, upto_offset, begin.position, end_position, entries,
                to_end, is_sealed,
            )  # fmt: skip

    async def _read_segment(self, segment: Segment, size_bytes: int, offset: int, bytes_max: int, upto: int) -> Buffer:
        indexes, log = await self.load(segment), self._log
        position = indexes.offsets.lookup(offset).position
        async with log.folder.use_log(segment) as file:
            while position < size_bytes:
                wanted = min(size_bytes - position, bytes_max + log.settings.index_interval_bytes + READ_SLACK_BYTES)
                ahead = log.folder.files.read_ahead.bytes_from(
                    log.key, segment.base_offset, position, wanted, size_bytes
                )
                if ahead:
                    with suppress(OSError):  # a hint: what is wrong with the file its reading says
                        await log.folder.disk.read_ahead(file.fd, ahead, position)
                data = await log.folder.disk.read_view(file.fd, wanted, position)
                start, header = find_offset(data, offset)
                if header is None:
                    if start == 0:
                        raise _ends_early(segment, position + len(data), size_bytes)
                    position += start
                    continue
                if header.base_offset >= upto:
                    return b""
                if start > READ_SLACK_BYTES and len(data) < size_bytes - position:  # room was lost to what is skipped
                    position += start
                    data = await log.folder.disk.read_view(file.fd, min(size_bytes - position, wanted), position)
                    start = 0
                if start + header.size_bytes > len(data):
                    data = await log.folder.disk.read_view(file.fd, header.size_bytes, position + start)
                    if len(data) < header.size_bytes:
                        raise _ends_early(segment, position + start + len(data), size_bytes)
                    return data
                return data[start : end_of_batches(data, start, bytes_max, upto)]
        return b""

    async def offset_for_timestamp(self, timestamp: int, start_offset: int) -> TimestampMatch | None:
        """The first batch at or behind an offset whose largest timestamp is not below the one wanted."""
        async with aclosing(self.look_through(max(start_offset, self._log.segments[0].base_offset))) as segments:
            async for segment, indexes in segments:
                if segment.size_bytes == 0 or indexes.largest_timestamp < timestamp:
                    continue
                near = indexes.times.lookup(timestamp)
                position = indexes.offsets.lookup(max(near.offset, start_offset)).position
                async with aclosing(self._log.folder.walk(segment, position)) as batches:
                    async for header, place in batches:
                        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                            batch = await self._log.folder.read(segment, place, header.size_bytes)
                            return TimestampMatch(header, batch)
        return None

    async def largest_timestamp(self, start_offset: int, upto_offset: int) -> TimestampMatch | None:
        """The batch in [start, upto) that holds the record with the largest timestamp; the first of equals."""
        best, best_offset = NO_TIMESTAMP, start_offset
        async with aclosing(self.look_through(max(start_offset, self._log.segments[0].base_offset))) as segments:
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
        async with aclosing(self._log.folder.walk(segment, position)) as batches:
            async for header, _place in batches:
                if header.next_offset > upto_offset:
                    break
                if header.last_offset >= start_offset and header.max_timestamp > best:
                    best, best_offset = header.max_timestamp, header.last_offset
        return best, best_offset

    async def aborted_transactions(self, fetch_offset: int, upper_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions that touch [fetch_offset, upper_offset), for readers of committed records."""
        found: list[AbortedTransaction] = []
        async with aclosing(self.look_through(fetch_offset)) as segments:
            async for _segment, indexes in segments:
                more, complete = indexes.transactions.collect(fetch_offset, upper_offset)
                found += more
                if complete:
                    break
        return found

    def aborted_now(
        self, offset: int, upto_offset: int, bytes_max: int | None = None
    ) -> list[AbortedTransaction] | None:
        """Aborted transactions that reach into what `read` would find now, or into all of [offset, upto_offset).

        They may be more than these. None: not all of the indexes that say so are loaded (`load_aborted`).
        """
        version = self._log.version
        number = version.number_of(offset)
        found: list[AbortedTransaction] = []
        for segment in version.segments[number:]:
            if segment.indexes is None:
                return None
            if bytes_max is not None and segment is version.segments[number]:
                end_offset = version.end_of(segment)
                upto_offset = _end_of_read(segment.indexes, offset, bytes_max, end_offset, upto_offset)
            more, complete = segment.indexes.transactions.collect(offset, upto_offset)
            found += more
            if complete:
                break
        return found

    async def load_aborted(self, offset: int, upto_offset: int, bytes_max: int | None = None) -> None:
        """Load the indexes that `aborted_now` lacks."""
        if bytes_max is not None:
            version = self._log.version
            segment = version.segments[version.number_of(offset)]
            end_offset = version.end_of(segment)
            upto_offset = _end_of_read(await self.load(segment), offset, bytes_max, end_offset, upto_offset)
        await self.aborted_transactions(offset, upto_offset)

    def aborted_below(self, offset: int, upto_offset: int, count_max: int) -> tuple[int, list[AbortedTransaction]]:
        """The newest aborted transactions with markers in [offset, upto_offset), as far as indexes are loaded: from
        which offset on these are all, and they.
        """
        version = self._log.version
        found: list[AbortedTransaction] = []
        begin = upto_offset
        for number in range(version.number_of(upto_offset - 1), -1, -1):
            segment = version.segments[number]
            if segment.indexes is None or begin <= offset:
                break
            entries = segment.indexes.transactions.between(offset, begin)
            left_out = len(entries) + len(found) - count_max
            if left_out > 0:
                return entries[left_out - 1].last_offset + 1, entries[left_out:] + found
            begin, found = max(offset, segment.base_offset), entries + found
        return begin, found

    async def look_through(self, offset: int) -> AsyncGenerator[tuple[Segment, SegmentIndexes], None]:
        """Segments from the one that has an offset on, with their indexes; leading ones may go, and others come, at
        each await. OffsetOutOfRangeError, SegmentReplacedError.
        """
        version = self._log.version
        for segment in version.segments[version.number_of(offset) :]:
            segment.check_present()
            try:
                indexes = await self.load(segment) if segment in self._log.segments else None
            except FileNotFoundError:
                if segment in self._log.segments:
                    raise
                continue
            if indexes is not None:
                yield segment, indexes

    async def load(self, segment: Segment) -> SegmentIndexes:
        """A segment's indexes, found when they are first wanted. ValueError: it is not there any more.
        SegmentReplacedError. BatchDamageError: they are not stored, and the log is damaged.
        """
        segment.check_present()
        if segment.indexes is not None:
            return segment.indexes
        log = self._log
        end_offset = log.end_of(segment)
        stored = await log.folder.stored_indexes(segment, end_offset, log.settings.index_interval_bytes)
        if stored is None:
            return await self._load_by_log(segment, end_offset)
        return self._keep(segment, end_offset, *stored)

    async def _load_by_log(self, segment: Segment, end_offset: int) -> SegmentIndexes:
        """The files are replaced while nothing else changes the log; it may be walked through beside changes."""
        log = self._log
        try:
            made = await log.folder.indexes_by_log(segment, log.settings.index_interval_bytes)
        except BatchDamageError:
            async with UncontendedLock(log.lock):  # it may be the end of a cut that is under way
                if segment.indexes is None:
                    raise
                return segment.indexes
        async with UncontendedLock(log.lock):
            segment.check_present()
            indexes = self._keep(segment, end_offset, made, [0, 0, 0])
            is_right = segment.seal is None or are_sealed(segment.seal, made.contents)  # else it is a repair's
            if segment.indexes is made and log.life.state is FilesState.OPEN and is_right:
                await log.folder.replace_index_files(segment)
            return indexes

    def _keep(
        self, segment: Segment, end_offset: int, indexes: SegmentIndexes, flushed_bytes: list[int]
    ) -> SegmentIndexes:
        """What was found of a segment that ended there, unless somebody was faster: another reader, or who has cut the
        log in it, and appends to it since.
        """
        log = self._log
        if segment.indexes is not None:
            return segment.indexes
        if segment in log.segments and log.end_of(segment) == end_offset:
            segment.indexes, segment.flushed_bytes = indexes, flushed_bytes
        return indexes


def _end_of_read(indexes: SegmentIndexes, offset: int, bytes_max: int, end_offset: int, upto_offset: int) -> int:
    """An offset that no read of so many bytes goes beyond, in a segment that ends there."""
    offsets = indexes.offsets
    first = offsets.entries_upto(offset - 1)  # that batch holds the offset, or lies behind it
    if first == len(offsets):  # perhaps nothing does here, and the next segment is read
        return upto_offset
    last = offsets.positions_upto(offsets[first].position + bytes_max)
    return min(offsets[last].offset if last < len(offsets) else end_offset, upto_offset)


def _ends_early(segment: Segment, end: int, size_bytes: int) -> BatchDamageError:
    return BatchDamageError(f"{segment.log_name} ends at byte {end}, in the midst of a batch; it had {size_bytes}")
