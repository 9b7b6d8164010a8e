"""The files of one partition's folder, and the segments in it, below the level of offsets that readers ask for.

`SegmentFolder` knows which of its files were written since the last sync and whether names changed, so that `sync`
makes exactly those durable. It also makes indexes: loads them, checks them cheaply, and builds them again from the log.
"""

from __future__ import annotations

import errno
import zlib
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, BatchHeader, decode_header, is_abort
from tpc_broker.log.files import (
    DELETED_SUFFIX,
    EPOCHS_FILE,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    encode_epochs,
    segment_file_name,
)
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES, OffsetIndex, TimeIndex, TransactionIndex
from tpc_broker.log.producer_state import ProducerState, SnapshotError
from tpc_broker.log.segment import SegmentIndexes
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.ports import FileWrite
from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES
from tpc_broker.storage.segments.readable_runs import OFFSETS_PER_SEGMENT
from tpc_broker.storage.segments.short_steps import PRODUCERS_AT_ONCE, in_short_steps
from tpc_broker.storage.segments.swap_guard import SegmentReplacedError
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
    from pathlib import Path

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.files import EpochStart
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.log.seals import Seal
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.segments.files import FileCache, OpenFile

WALK_WINDOW_BYTES: Final = 256 * 1024
DIRECT_READ_BYTES: Final = 1024 * 1024
"""At once, past the page cache."""
DIRECT_READ_BYTES_MIN: Final = 256 * 1024
INDEX_SAMPLES: Final = 32
INDEX_LAG_ENTRIES: Final = 16
"""With fewer that are not in its files, a checkpoint leaves the indexes of an active segment as they are: two small
writes for each of thousands of partitions, and at first two files to be made, take longer than all of their records.
After a restart what is not in the files is looked for in the log: with Kafka's interval 64 KiB, or up to four times as
much."""
INDEX_LAG_SPREAD: Final = 48
_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


@dataclass(slots=True, eq=False)
class Segment:
    """One segment. `indexes` is None until they are wanted; the active segment always has them."""

    base_offset: int
    size_bytes: int = 0
    indexes: SegmentIndexes | None = None
    reserved_end_position: int = 0
    """Disk space was taken up to here."""
    written_end_position: int = 0
    """Direct writes end with a whole block, so the beginning of the next batch may be in the file already."""
    has_in_place_writes: bool = False
    """Batches may have been written in place into it, which the journal only names."""
    flushed_bytes: list[int] = field(default_factory=lambda: [0, 0, 0])
    """How much of the three indexes is in their files."""
    seal: Seal | None = None
    """Of a segment that was cleaned: where gaps in it are right, and what its files are."""
    first_batch: tuple[int, int] | None = None
    """How large it was when that was looked at for its largest timestamp, and that: for looks at thousands of them."""
    is_replaced: bool = False
    """Its names are, or will be, a cleaned segment's: nothing is opened by them for this one any more."""

    def give_way(self) -> None:
        """For good; before the first of its names is another file's, or none's."""
        self.is_replaced = True

    def check_present(self) -> None:
        """Behind each opening by name. SegmentReplacedError: what was opened may be another segment's."""
        if self.is_replaced:
            raise SegmentReplacedError(f"segment {self.base_offset} gave way to a cleaned one")

    @property
    def log_name(self) -> str:
        return segment_file_name(self.base_offset, LOG_SUFFIX)

    @property
    def file_names(self) -> list[str]:
        return [segment_file_name(self.base_offset, suffix) for suffix in SEGMENT_SUFFIXES]


class SegmentFolder:
    """The files of one partition."""

    def __init__(self, files: FileCache, path: Path) -> None:
        self.files = files
        self.path = path
        self.names_changed = False
        self._written: set[str] = set()
        self._epochs_written: bytes | None = None
        self._epochs_right: Sequence[EpochStart] | None = None
        """For which it was seen that they are written: what thousands of partitions are asked again and again."""
        self._written_last: OpenFile | None = None
        """Need not be looked for by its path as long as it is open: that takes longer than a short write to it."""
        self.syncing = trio.Lock()
        """Held for a sync of the folder, or of the whole file system that counts for it: who came in between would
        take for durable what is still on its way.
        """

    @property
    def disk(self) -> Disk:
        return self.files.disk

    @asynccontextmanager
    async def use(self, name: str, *, create: bool = False) -> AsyncIterator[OpenFile]:
        """A file of the folder, open for reading and writing."""
        async with self.files.use(self.path / name, create=create) as file:
            yield file

    # Rule: A segment's files are those that were there when it was made, whatever their names are given to: who opens
    # one by its name looks behind the opening whether the segment has given way. An index is never used with another
    # log. Held by tests/storage/test_segment_identity.py, tests/engine/test_segment_swaps.py.
    @asynccontextmanager
    async def use_log(self, segment: Segment) -> AsyncIterator[OpenFile]:
        """A segment's log, open for reading. SegmentReplacedError."""
        async with _present(segment), self.use(segment.log_name) as file:
            segment.check_present()
            yield file

    @asynccontextmanager
    async def _writing(self, name: str, position: int = -1) -> AsyncIterator[OpenFile]:
        """A file that is written to, or cut, in the block; made when it is not there.

        It is marked behind the block: a sync that begins in the midst takes marks off and may cover nothing of this.
        """
        async with self.files.use(self.path / name, create=True) as file:
            try:
                yield file
            finally:
                self._mark_written(file, position)

    def _mark_written(self, file: OpenFile, position: int) -> None:
        file.dirty = True
        self._written.add(file.name)
        self.names_changed |= position == 0

    async def write(self, name: str, buffers: Sequence[Buffer], position: int) -> None:
        """Write to a file, made when it is not there; `sync` has to make it durable."""
        async with self._writing(name, position) as file:
            await self.disk.writev(file.fd, buffers, position)

    def begin_write(self, name: str) -> OpenFile | None:
        """A file that the caller writes to until `end_write`, if it is open (`FileCache.begin_use_nowait`)."""
        file = self._written_last_as(name)
        if file is None:
            file = self._written_last = self.files.begin_use_nowait(self.path / name)
        else:
            self.files.use_again_nowait(file)
        return file

    def path_to_open(self, name: str) -> Path | None:
        """None: the file is open."""
        return None if self._written_last_as(name) is not None else self.path / name

    def _written_last_as(self, name: str) -> OpenFile | None:
        file = self._written_last
        return file if file is not None and file.name == name and not file.forgotten else None

    def end_write(self, file: OpenFile, position: int) -> None:
        """The caller has written there, or tried to."""
        self._mark_written(file, position)
        self.files.end_use_nowait(file)

    async def write_parts(self, name: str, parts: Sequence[tuple[Sequence[Buffer], int]]) -> None:
        """As `write`, of parts with their positions; several, which are short, in one job: a turn of the ring for each
        may cost more than the kernel needs for all.
        """
        if len(parts) <= 1:
            for buffers, position in parts:
                await self.write(name, buffers, position)
            return
        async with self._writing(name, parts[0][1]) as file:
            writes = [FileWrite(file.fd, b"".join(buffers), position) for buffers, position in parts]
            for error in await self.disk.write_many(writes):
                if error is not None:
                    raise error

    async def write_direct(self, name: str, data: memoryview, position: int) -> None:
        """The same past the page cache: address, length and position are multiples of DIRECT_BLOCK_BYTES.

        Where the file system refuses it, through the page cache.
        """
        async with self._writing(name, position) as file:
            descriptor = await self.files.direct_descriptor(file)
            if descriptor is not None:
                with self.files.noting_refusal(self.path / name):
                    await self.disk.write_at(descriptor, data, position)
                    self.files.direct_proven = True
                    return
            await self.disk.write_at(file.fd, data, position)

    async def shorten(self, segment: Segment) -> None:
        """Cut what lies behind the last batch: reserved space, and what a direct write put there already."""
        async with self._writing(segment.log_name) as file:
            await self.disk.truncate(file.fd, segment.size_bytes)
        segment.written_end_position = segment.reserved_end_position = segment.size_bytes

    async def write_file(self, name: str, data: bytes) -> None:
        """Give a small file a new content. Not atomic: readers of such files check them."""
        async with self.use(name, create=True) as file:
            await self.disk.truncate(file.fd, 0)
        if data:
            await self.write(name, [data], 0)

    async def read_file(self, name: str) -> bytes | None:
        """A whole small file, None when it is not there."""
        try:
            status = await self.disk.stat(self.path / name)
            async with self.use(name) as file:
                return await self.disk.read(file.fd, status.size_bytes, 0)
        except FileNotFoundError:
            return None

    async def remove(self, name: str) -> None:
        """Unlink a file; one that is not there is fine."""
        await self.files.forget(self.path / name)
        self._written.discard(name)
        try:
            await self.disk.unlink(self.path / name)
        except FileNotFoundError:
            return
        finally:
            await self.files.forget(self.path / name)  # if somebody opened it meanwhile
        self.names_changed = True

    async def rename(self, source: str, target: str) -> None:
        """Rename a file; it has to be opened again under its new name."""
        await self.files.forget(self.path / source)
        await self.disk.rename(self.path / source, self.path / target)
        await self.files.forget(self.path / source)  # if somebody opened it meanwhile
        self.names_changed = True

    async def rename_over(self, source: str, target: str) -> None:
        """The same where a file may have that name: it is gone, and whoever has it open keeps it."""
        self._written.discard(target)
        await self.files.forget(self.path / target)
        try:
            await self.rename(source, target)
        finally:
            await self.files.forget(self.path / target)  # if somebody opened it meanwhile

    async def doom(self, segment: Segment) -> list[str]:
        """Rename a segment's files, to be removed later; their new names."""
        names = []
        for name in segment.file_names:
            self._written.discard(name)
            try:
                await self.rename(name, name + DELETED_SUFFIX)
            except FileNotFoundError:
                continue
            names.append(name + DELETED_SUFFIX)
        return names

    async def modified_ms(self, segment: Segment) -> int:
        """When the newest of its records was appended. Of a cleaned one its seal says it: a repair or a copy may have
        made its file younger. SegmentReplacedError.
        """
        if segment.seal is not None:
            segment.check_present()
            return segment.seal.modified_ms
        async with _present(segment):
            status = await self.disk.stat(self.path / segment.log_name)
        segment.check_present()
        return status.modified_ms

    async def read(self, segment: Segment, position: int, length: int) -> bytes:
        """SegmentReplacedError."""
        async with self.use_log(segment) as file:
            return await self.disk.read(file.fd, length, position)

    async def read_direct(self, name: str, position: int, length: int, buffer: memoryview) -> memoryview:
        """Bytes of a file, in a buffer that begins with a page and has a block more than they need. Fewer only at the
        end of the file. OSError.

        Past the page cache, where that can be: what is read once need not push out what others read.
        """
        begin = position % DIRECT_BLOCK_BYTES
        wanted, done = buffer[begin : begin + length], 0
        async with self.use(name) as file:
            whole = (begin + length) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
            if whole >= DIRECT_READ_BYTES_MIN and await self._read_blocks(file, buffer[:whole], position - begin):
                done = whole - begin
            return wanted[: done + await self.disk.read_into(file.fd, wanted[done:], position + done)]

    async def _read_blocks(self, file: OpenFile, blocks: memoryview, position: int) -> bool:
        """Whole blocks that are there, a few at a time: a commit of the journal has to wait for these only."""
        descriptor = await self.files.direct_descriptor(file)
        if descriptor is None:
            return False
        with self.files.noting_refusal(file.path):
            for first in range(0, len(blocks), DIRECT_READ_BYTES):
                part = blocks[first : first + DIRECT_READ_BYTES]
                if await self.disk.read_into(descriptor, part, position + first) != len(part):
                    return False
            return True
        return False

    async def control_data(self, segment: Segment, header: BatchHeader, place: int) -> bytes:
        """What producer state needs of a batch besides its header: a control batch itself, nothing of others."""
        return await self.read(segment, place, header.size_bytes) if header.is_control else b""

    async def walk(self, segment: Segment, position: int) -> AsyncGenerator[tuple[BatchHeader, int], None]:
        """Headers of a segment's batches from a position on, and their places. BatchDamageError when one is none.
        SegmentReplacedError.

        To be closed (`aclosing`) by whoever may leave early.
        """
        if position >= segment.size_bytes:
            return
        async with self.use_log(segment) as file:
            while position < segment.size_bytes:
                data = await self.disk.read(file.fd, min(WALK_WINDOW_BYTES, segment.size_bytes - position), position)
                if len(data) < BATCH_HEADER_BYTES:
                    raise BatchDamageError(f"{len(data)} bytes at the end of segment {segment.base_offset}")
                at = 0
                while at + BATCH_HEADER_BYTES <= len(data):
                    header = decode_header(data, at)
                    yield header, position + at
                    at += header.size_bytes
                position += at

    # -- indexes ---------------------------------------------------------------------------------------------------

    async def flush_indexes(self, segment: Segment, *, sealed: bool) -> None:
        """Write what was added to the indexes. A sealed segment gets its two main indexes even when they are empty."""
        writes, lengths = self.index_writes(segment, sealed=sealed)
        for name, data, position in writes:
            await self.write(name, [data], position)
        segment.flushed_bytes = lengths

    def index_writes(self, segment: Segment, *, sealed: bool) -> tuple[list[tuple[str, bytes, int]], list[int]]:
        """What `flush_indexes` writes: names, bytes and positions; and `flushed_bytes` as it is then."""
        indexes = segment.indexes
        assert indexes is not None, segment
        contents = (indexes.offsets.data, indexes.times.data, indexes.transactions.encode())
        lengths, writes = [len(content) for content in contents], []
        end = indexes.transactions.encode_end() if sealed and segment.seal is None else b""
        if lengths == segment.flushed_bytes and all(lengths[:2]) and not end:
            return [], lengths
        if not sealed and self._may_lag(segment, lengths):
            return [], segment.flushed_bytes
        either = sealed or any(lengths[:2])
        for suffix, content, done in zip(_INDEX_SUFFIXES, contents, segment.flushed_bytes, strict=True):
            what_ends = end if suffix == TRANSACTION_INDEX_SUFFIX else b""
            if len(content) > done or what_ends:
                added = bytes(content[done:]) + what_ends
                writes.append((segment_file_name(segment.base_offset, suffix), added, done))
            elif not content and either and suffix != TRANSACTION_INDEX_SUFFIX:
                writes.append((segment_file_name(segment.base_offset, suffix), b"", 0))
        return writes, lengths

    # Rule: Few new entries of an active segment's indexes may be missing in its files, and after a restart in memory.
    # Nothing that is read depends on them, and what only they say (aborted transactions) is always there. Why:
    # docs/decisions/2026-11-26-first-writes.md. Held by tests/storage/test_index_lag.py,
    # tests/durability/test_crash_images.py.
    def _may_lag(self, segment: Segment, lengths: Sequence[int]) -> bool:
        """Whether what was added to the indexes may wait: few entries, and none of aborted transactions, which are
        nowhere else. How few differs by partition, so that those of a topic are not written all at the same time.
        """
        added_bytes = lengths[0] - segment.flushed_bytes[0]
        entries_max = INDEX_LAG_ENTRIES + zlib.crc32(self.path.name.encode()) % INDEX_LAG_SPREAD
        return lengths[2] == segment.flushed_bytes[2] and 0 <= added_bytes < entries_max * OFFSET_ENTRY_BYTES

    async def load_indexes(self, segment: Segment, end_offset: int, interval_bytes: int) -> SegmentIndexes:
        """A segment's indexes: from their files when these stand a cheap check, else from the log. For whoever alone
        works on the segment; readers look (`SegmentReader.load`).
        """
        stored = await self.stored_indexes(segment, end_offset, interval_bytes)
        if stored is None:
            return await self.rebuild_indexes(segment, interval_bytes)
        indexes, segment.flushed_bytes = stored
        return indexes

    async def stored_indexes(
        self, segment: Segment, end_offset: int, interval_bytes: int
    ) -> tuple[SegmentIndexes, list[int]] | None:
        """A sealed segment's indexes as their files have them, and how much that is; None: they are not right.
        SegmentReplacedError.
        """
        indexes = SegmentIndexes(segment.base_offset, interval_bytes)
        async with _present(segment):
            stored = [
                await self.read_file(segment_file_name(segment.base_offset, suffix)) or b""
                for suffix in _INDEX_SUFFIXES
            ]
        segment.check_present()
        if segment.seal is not None and not are_sealed(segment.seal, stored):
            return None
        indexes.offsets = OffsetIndex(segment.base_offset, stored[0])
        indexes.times = TimeIndex(segment.base_offset, stored[1])
        try:
            indexes.transactions = TransactionIndex.decode(stored[2])
            sound = await self._sound(segment, indexes, end_offset)
        except ValueError:
            sound = False
        if not sound:
            return None
        last = indexes.times.last
        if last is not None:
            indexes.resume(last.timestamp, last.offset, -1)
        return indexes, list(indexes.lengths)

    async def _sound(self, segment: Segment, indexes: SegmentIndexes, end_offset: int) -> bool:
        """Whether indexes look like this log's: shape, samples in order, and the last entry against the log itself."""
        if segment.size_bytes and not indexes.times.data and not indexes.offsets.data:
            return False
        for entries, size in ((indexes.offsets, 8), (indexes.times, 12)):
            if len(entries.data) % size:
                return False
            step = max(len(entries) // INDEX_SAMPLES, 1)
            samples = [
                entries[number] for number in [*range(0, len(entries) - 1, step), len(entries) - 1] if number >= 0
            ]
            if any(later[0] <= earlier[0] or later[1] < earlier[1] for earlier, later in pairwise(samples)):
                return False
        if indexes.times.last is not None and indexes.times.last.offset >= end_offset:
            return False
        last = indexes.offsets.last
        if last is None:
            return True
        if last.position == 0 or last.position + BATCH_HEADER_BYTES > segment.size_bytes:
            return False
        data = await self.read(segment, last.position, BATCH_HEADER_BYTES)  # fewer when the log is cut meanwhile
        return len(data) == BATCH_HEADER_BYTES and decode_header(data).last_offset == last.offset

    async def rebuild_indexes(self, segment: Segment, interval_bytes: int) -> SegmentIndexes:
        """`indexes_by_log`, and the stored ones are replaced."""
        segment.indexes = await self.indexes_by_log(segment, interval_bytes)
        await self.replace_index_files(segment)
        return segment.indexes

    async def indexes_by_log(self, segment: Segment, interval_bytes: int) -> SegmentIndexes:
        """Indexes made from the log, sealed as if the segment ended here. Where the producers in front of it are not
        known, its index of transactions says where those began whose markers it has, if it is there.

        BatchDamageError: it holds something that is no batch, or does not follow. SegmentReplacedError.
        """
        snapshot = await self.stored_producers(segment.base_offset)
        producers = snapshot or ProducerState()
        stored = await self._stored_aborted(segment)
        indexes = SegmentIndexes(segment.base_offset, interval_bytes)
        next_offset, limit = segment.base_offset, segment.base_offset + OFFSETS_PER_SEGMENT
        async with aclosing(self.walk(segment, 0)) as batches:
            async for header, place in batches:
                if not next_offset <= header.base_offset <= header.last_offset < limit:
                    where = f"at {place} of segment {segment.base_offset}"
                    raise BatchDamageError(f"the batch {where} begins at offset {header.base_offset}")
                next_offset = header.next_offset
                control = await self.control_data(segment, header, place)
                aborted = producers.apply(header, control)
                if (aborted is None or snapshot is None) and is_abort(header, control):
                    aborted = stored.get((header.producer_id, header.last_offset), aborted)
                indexes.add(header, place, aborted)
        indexes.seal()
        segment.check_present()
        return indexes

    async def _stored_aborted(self, segment: Segment) -> dict[tuple[int, int], AbortedTransaction]:
        """What a segment's index of transactions says, by producer and offset of the marker; not in whole entries:
        nothing.
        """
        data = await self.read_file(segment_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)) or b""
        try:
            entries = TransactionIndex.decode(data, is_checked=False).entries
            return {(one.producer_id, one.last_offset): one for one in entries}
        except ValueError:
            return {}

    async def stored_producers(self, base_offset: int) -> ProducerState | None:
        """Those in front of a segment, by its snapshot; None: it is not there, or damaged."""
        data = await self.read_file(segment_file_name(base_offset, SNAPSHOT_SUFFIX))
        try:
            parts = None if data is None else ProducerState.decode_snapshot_in_parts(data, PRODUCERS_AT_ONCE)
            return None if parts is None else await in_short_steps(parts)
        except SnapshotError:
            return None

    # Rule: Who makes a segment's indexes anew finds beside it which transactions were open in front of it, or would
    # not know of those that were aborted in it. See also tpc_broker/storage/recovery/repair.py,
    # tpc_broker/storage/segments/truncation.py. Held by tests/storage/test_aborted_kept.py,
    # tests/storage/test_compaction_of_transactions.py.
    async def complete_snapshot(self, base_offset: int, producers: ProducerState) -> None:
        """A segment that was not begun by a roll gets a snapshot of the producers in front of it, unless it has one."""
        if len(producers) and await self.stored_producers(base_offset) is None:
            name = segment_file_name(base_offset, SNAPSHOT_SUFFIX)
            await self.write_file(name, producers.encode_snapshot(self.disk.poll_ring))

    async def replace_index_files(self, segment: Segment) -> None:
        """They get what is in memory; for whoever alone works on the segment. The index of transactions stays if it is
        right: what it says may be said nowhere else, if this is cut short.
        """
        assert segment.indexes is not None, segment
        data = segment.indexes.transactions.encode()
        name = segment_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        stored = await self.read_file(name) or b""
        is_right = bool(data) and stored in (data, data + segment.indexes.transactions.encode_end())
        segment.flushed_bytes = [0, 0, len(data) if is_right else 0]
        for suffix in _INDEX_SUFFIXES[: 2 if is_right else 3]:
            await self.remove(segment_file_name(segment.base_offset, suffix))
        await self.flush_indexes(segment, sealed=True)

    async def cut(
        self,
        segment: Segment,
        position: int,
        index_bytes: Sequence[int] | None = None,
        surplus: Collection[str] | None = None,
        kept_position: int = 0,
    ) -> None:
        """Cut the log file at a position, and the index files at their sizes (None: they are removed).

        `kept_position`: what lies in front of it stays in the log file all the same.

        `surplus`: those of the files without a size that are there, where that is known.
        """
        async with self._writing(segment.log_name, 0) as file:
            await self.disk.truncate(file.fd, max(position, kept_position))
        segment.size_bytes = segment.reserved_end_position = segment.written_end_position = position
        suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        for suffix, size in zip(suffixes, index_bytes or (0, 0, 0), strict=True):
            name = segment_file_name(segment.base_offset, suffix)
            if not size:
                if surplus is None or name in surplus:
                    await self.remove(name)
                continue
            async with self._writing(name) as file:
                await self.disk.truncate(file.fd, size)
        segment.flushed_bytes = list(index_bytes or (0, 0, 0))

    async def resume(self, segment: Segment) -> None:
        """Make a segment whose indexes are loaded and cut the active one: find its largest timestamp by the log."""
        indexes = segment.indexes
        assert indexes is not None, segment
        largest = indexes.times.last
        timestamp, offset = (largest.timestamp, largest.offset) if largest else (-1, -1)
        position = indexes.offsets.lookup(offset).position if largest else 0
        first_timestamp = -1
        if segment.size_bytes:
            first_timestamp = decode_header(await self.read(segment, 0, BATCH_HEADER_BYTES)).max_timestamp
        async with aclosing(self.walk(segment, position)) as batches:
            async for header, _place in batches:
                if header.max_timestamp > timestamp:
                    timestamp, offset = header.max_timestamp, header.last_offset
        indexes.resume(timestamp, offset, first_timestamp)

    # -- durability ------------------------------------------------------------------------------------------------

    async def sync(self, epochs: Sequence[EpochStart]) -> None:
        """Everything written before the call is durable after it, names included."""
        async with UncontendedLock(self.syncing):
            await self._sync(epochs)

    async def _sync(self, epochs: Sequence[EpochStart]) -> None:
        await self.write_epochs(epochs)
        names, self._written = self._written, set()
        try:
            for name in sorted(names):
                await self.files.sync(self.path / name)
            if self.names_changed:
                self.names_changed = False
                await self.disk.fsync_directory(self.path)
        except BaseException:
            self._written |= names
            self.names_changed = True
            raise

    async def write_epochs(self, epochs: Sequence[EpochStart]) -> None:
        """Bring `leader-epoch-checkpoint` up to date: written beside, renamed over."""
        data = encode_epochs(epochs)
        if data == self._epochs_written:
            return
        await self.write_file(EPOCHS_FILE + TEMPORARY_SUFFIX, data)
        await self.files.sync(self.path / (EPOCHS_FILE + TEMPORARY_SUFFIX))
        self._written.discard(EPOCHS_FILE + TEMPORARY_SUFFIX)
        await self.rename(EPOCHS_FILE + TEMPORARY_SUFFIX, EPOCHS_FILE)
        self._epochs_written, self._epochs_right = data, None

    def epochs_to_write(self, epochs: Sequence[EpochStart]) -> tuple[Path, bytes] | None:
        """For whoever replaces the files of many folders at once, then calls `epochs_written`; None: it is right."""
        if epochs == self._epochs_right:
            return None
        data = encode_epochs(epochs)
        if data == self._epochs_written:
            self._epochs_right = epochs
            return None
        return self.path / EPOCHS_FILE, data

    def epochs_written(self, data: bytes) -> None:
        """Not durable: a sync of the file system follows."""
        self._epochs_written, self._epochs_right, self.names_changed = data, None, True

    def written_names(self) -> frozenset[str]:
        """Files that a sync would have to cover now."""
        return frozenset(self._written)

    # Rule: What was still on its way to a file when a sync of it began is left to the next sync. A sync that begins
    # during another one waits for it. See also tpc_broker/storage/recovery/checkpoint.py. Held by
    # tests/storage/test_sync_beside_writes.py.
    def begin_sync(self) -> frozenset[str]:
        """The caller holds `syncing`, and syncs the whole file system now: what was written up to here counts as
        durable (`undo_sync`: it is not). What is written meanwhile waits for the next sync.
        """
        names, self._written, self.names_changed = frozenset(self._written), set(), False
        for name in names:
            file = self._written_last_as(name)
            if file is not None:
                self.files.note_synced(file)
            else:
                self.files.mark_synced(self.path / name)
        return names

    def undo_sync(self, names: frozenset[str]) -> None:
        """The sync of the file system that `begin_sync` announced has failed."""
        self._written |= names
        self.names_changed = True
        for name in names:
            self.files.mark_dirty(self.path / name)

    async def close(self) -> None:
        """Close the folder's files."""
        await self.files.forget_folder(self.path)


@asynccontextmanager
async def _present(segment: Segment) -> AsyncIterator[None]:
    """A file that is not there is no damage when the segment has given way."""
    segment.check_present()
    try:
        yield
    except FileNotFoundError:
        segment.check_present()
        raise


def are_sealed(seal: Seal, stored: Sequence[bytes]) -> bool:
    """Whether a cleaned segment's indexes are those that its seal names."""
    return all(
        len(data) == file.size_bytes and crc32c(data) == file.crc
        for data, file in zip(stored, seal.files[1:], strict=True)
    )


async def make_folder(disk: Disk, path: Path) -> bool:
    """Make a folder whose parent is there; False when it is there already. The parent is not synced."""
    try:
        await disk.mkdir(path)
    except OSError as error:
        if error.errno != errno.EEXIST:
            raise
        return False
    return True
