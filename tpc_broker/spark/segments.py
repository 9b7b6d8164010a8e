"""The segment files of a data folder, read without the broker that writes them.

What is believed is what the broker's recovery believes: the checkpoint of each core says which offsets of a partition
are certainly in its segment files. What was appended after the last checkpoint is in the journal only, and is not
seen here; a broker that was stopped in order has written everything. Checkpoints are read once, when a read is planned.

A broker may be writing, rolling and deleting meanwhile. Nothing is locked, as bytes below a checkpointed position never
change in place: segments are only removed from the front, or replaced by cleaned ones, which hold what was kept of the
same offsets (`tpc_broker.spark.swapped`). So a plan names offsets, not positions: a task opens its file, looks its
place up in the index and checks the batch that it finds there. A file that is gone by then, or merged into another one,
is the caller's business (`tpc_broker.spark.task_rows`); one that is open stays readable to its end whatever happens to
its name.

Aborted transactions are left out with the segments' transaction indexes: those of the segment itself and of later
ones, where a transaction's end may lie.
"""

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tpc_broker.client.columns import DamagedBatch
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.reading import Chunk, last_batch, whole_batches
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import read_batch, read_batches
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, batch_size_at
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_checkpoint
from tpc_broker.log.files import (
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    TRANSACTION_INDEX_SUFFIX,
    TextFileError,
    decode_partition_metadata,
    encode_topic_id,
    partition_folder_name,
    segment_file_name,
)
from tpc_broker.log.folder_view import ViewedSegment, names_of
from tpc_broker.log.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from tpc_broker.native_bytes import crc32c
from tpc_broker.spark.swapped import (
    LOOKS_MAX,
    SegmentIndexData,
    list_folder,
    open_segment,
    read_listed,
    read_time_index,
)

WINDOW_BYTES: Final = 8 * 1024 * 1024
DAMAGED_BYTES_MAX: Final = 1024 * 1024
"""How much of what cannot be told apart is handed on as one corrupt record."""


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """What one task reads: offsets [first_offset, end_offset) of the segment that begins at ``base_offset``.

    ``end_position`` bounds the file ``inode``, which was being written when the read was planned; another file of that
    name, and a file that was sealed (-1), is read to its end.
    """

    where: TopicPartition
    folder: str
    base_offset: int
    first_offset: int
    end_offset: int
    inode: int = -1
    end_position: int = -1
    aborted: tuple[AbortedTransaction, ...] = ()
    topic_id: str = ""
    """Of which topic; empty: of any that has the name."""
    size_bytes: int = field(default=-1, compare=False)
    """About; -1: nobody knows."""

    @property
    def size(self) -> int:
        return self.end_offset - self.first_offset

    @property
    def path(self) -> Path:
        return Path(self.folder) / segment_file_name(self.base_offset, LOG_SUFFIX)


@dataclass(frozen=True, slots=True)
class _Segment:
    """``end_offset`` is where the next one begins, or where the checkpoint ends."""

    base_offset: int
    end_offset: int


# Rule: Reading files beside a running broker gives each record once, or names what is lost. Deleted records are no
# rows. See also tpc_broker/spark/task_rows.py, tpc_broker/spark/folder_log.py, tpc_broker/spark/log_starts.py. Held by
# tests/spark/test_direct.py, tests/spark/test_segments.py.
class PartitionFolder:
    """The segment files of one partition, as the checkpoint has them."""

    def __init__(self, data_folder: Path, checkpoint: PartitionCheckpoint) -> None:
        self.where = TopicPartition(checkpoint.topic, checkpoint.partition)
        self.checkpoint = checkpoint
        self.topic_id = encode_topic_id(checkpoint.topic_id)
        self._folder = data_folder / "topics" / partition_folder_name(*self.where)
        self.segments = self._list()
        self._aborted: list[AbortedTransaction] | None = None

    def _list(self) -> list[_Segment]:
        """Segments up to the checkpointed one, without a hole; what lies behind it is not believed.

        Segments are removed from the front. When even the checkpointed one is gone, all before it are, unless it was
        cleaned since and merged into one of those.
        """
        try:
            view = list_folder(self._folder).view
        except FileNotFoundError:
            return []
        there = [one for one in view.segments if one.base_offset <= self.checkpoint.segment_base]
        if not there:
            return []
        bases, last = [one.base_offset for one in there], there[-1]
        is_merged = last.seal is not None and last.seal.end_offset > self.checkpoint.segment_base
        if last.base_offset != self.checkpoint.segment_base and not is_merged:
            return []
        committed = int(self.checkpoint.committed_end_offset)
        ends = [min(end, committed) for end in (*bases[1:], committed)]
        return [_Segment(base, end) for base, end in zip(bases, ends, strict=True) if base <= end]

    @property
    def start_offset(self) -> int:
        """The first offset that the files still hold; the committed end when they hold nothing."""
        if not self.segments:
            return int(self.checkpoint.committed_end_offset)
        return max(int(self.checkpoint.log_start_offset), self.segments[0].base_offset)

    def end_offset(self, isolation: Isolation) -> int:
        """Where what the files hold ends for readers: what was committed, or the first transaction open then."""
        end = int(self.checkpoint.committed_end_offset)
        return self.checkpoint.log_state().last_stable_offset(end) if isolation == Isolation.READ_COMMITTED else end

    def pieces(self, first_offset: int, end_offset: int, isolation: Isolation) -> Iterator[SegmentPiece]:
        """The segments that hold something of [first_offset, end_offset), in order."""
        for segment in self.segments:
            first, end = max(first_offset, segment.base_offset), min(end_offset, segment.end_offset)
            if first >= end:
                continue
            aborted = self._aborted_between(first, end) if isolation == Isolation.READ_COMMITTED else ()
            piece = SegmentPiece(
                self.where, str(self._folder), segment.base_offset, first, end, aborted=aborted, topic_id=self.topic_id
            )
            yield self._measured(self._bounded(piece), segment)

    def _measured(self, piece: SegmentPiece, segment: _Segment) -> SegmentPiece:
        """With its share of the file's bytes."""
        try:
            size_bytes = piece.path.stat().st_size if piece.end_position < 0 else piece.end_position
        except FileNotFoundError:
            return piece
        return replace(piece, size_bytes=size_bytes * piece.size // (segment.end_offset - segment.base_offset))

    def _bounded(self, piece: SegmentPiece) -> SegmentPiece:
        """With the checkpointed position, when it is the segment that was being written."""
        if piece.base_offset != self.checkpoint.segment_base:
            return piece
        try:
            inode = piece.path.stat().st_ino
        except FileNotFoundError:
            return piece
        return replace(piece, inode=inode, end_position=self.checkpoint.segment_position)

    def offset_at(self, time_ms: int) -> int:
        """The first offset whose record is at or after a time; -1 when none is. Found with the time indexes.

        `FileNotFoundError`: a segment was removed meanwhile; list the folder again. `DamagedDataError`: times of
        records that may be the one asked for cannot be read.
        """
        for segment in self.segments:
            begin = segment.base_offset
            data = self._time_index_bytes(segment)
            index = TimeIndex(segment.base_offset, b"" if len(data) % TIME_ENTRY_BYTES else data)
            if index.last and segment.base_offset <= index.last.offset < segment.end_offset:
                if index.last.timestamp < time_ms and not self._is_active(segment):
                    continue  # sealed: its last entry is its youngest record
                if index.problem(segment.end_offset) is None:
                    begin = index.lookup(time_ms - 1).offset
            found = self._scan_for_time(segment, begin, time_ms)
            if found >= 0:
                return max(found, int(self.checkpoint.log_start_offset))
        return -1

    def _scan_for_time(self, segment: _Segment, first_offset: int, time_ms: int) -> int:
        piece = SegmentPiece(
            self.where, str(self._folder), segment.base_offset, first_offset, segment.end_offset, topic_id=self.topic_id
        )
        for chunk in read_chunks(self._bounded(piece)):
            assert isinstance(chunk, Chunk), chunk
            for batch in read_batches(chunk.records):
                if crc32c(batch.data[21:]) != batch.crc:  # its times are not to be believed either
                    where = f"{self.where}, offset {batch.base_offset} ({piece.path})"
                    raise DamagedDataError(f"{where}: no time can be looked up there: the CRC of a batch is wrong")
                if batch.max_timestamp < time_ms or batch.is_control or batch.last_offset < first_offset:
                    continue
                for record in batch.records():
                    if record.timestamp_ms >= time_ms and record.offset >= self.checkpoint.log_start_offset:
                        return record.offset
        return -1

    def _time_index_bytes(self, segment: _Segment) -> bytes:
        data = read_time_index(self._folder, segment.base_offset)
        return data[: self.checkpoint.time_index_bytes] if self._is_active(segment) else data

    def _aborted_between(self, first_offset: int, end_offset: int) -> tuple[AbortedTransaction, ...]:
        if self._aborted is None:
            self._aborted = self._all_aborted()
        index = bisect_right(self._aborted, first_offset - 1, key=lambda entry: entry.last_offset)
        return tuple(entry for entry in self._aborted[index:] if entry.first_offset < end_offset)

    def _all_aborted(self) -> list[AbortedTransaction]:
        """As all indexes say it, each of the version that counts when it is read. A file that is opened later is of
        that version or of a newer one, which has no records of transactions that it says nothing of any more.
        """
        for _look in range(LOOKS_MAX):
            try:
                names, view = list_folder(self._folder)
                segments = [one for one in view.segments if one.base_offset <= self.checkpoint.segment_base]
                return [entry for one in segments for entry in self._aborted_of(one, names)]
            except FileNotFoundError:
                if not self._folder.is_dir():
                    return []
        raise DamagedDataError(f"{self.where}: {self._folder} changes faster than it can be read")

    def _aborted_of(self, segment: ViewedSegment, names: frozenset[str]) -> list[AbortedTransaction]:
        name: str | None = segment_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        if segment.seal is not None:
            name = names_of(segment.seal, names)[-1]
        data = read_listed(self._folder, names, name)
        if segment.seal is None and segment.base_offset == self.checkpoint.segment_base:
            data = data[: self.checkpoint.transaction_index_bytes]
        try:
            return TransactionIndex.decode(data).entries
        except ValueError as error:
            path = self._folder / str(name)
            raise DamagedDataError(f"{self.where}, offset {segment.base_offset}: {path}: {error}") from error

    def _is_active(self, segment: _Segment) -> bool:
        return segment.base_offset == self.checkpoint.segment_base


def is_folder_of(folder: Path, topic_id: str) -> bool:
    """Whether a partition's folder is that of the topic with this id, and no other's of the same name."""
    try:
        found = decode_partition_metadata((folder / PARTITION_METADATA_FILE).read_bytes())
    except (FileNotFoundError, NotADirectoryError, TextFileError):
        return False
    return encode_topic_id(found) == topic_id


def read_chunks(piece: SegmentPiece, *, keeps_damage: bool = False) -> Iterator[Chunk | DamagedBatch]:
    """The piece's bytes in windows of whole batches.

    `FileNotFoundError` before the first chunk when the file is gone, or is another topic's by now; `DamagedDataError`
    where no batch can be told from the bytes. With ``keeps_damage`` that is a `DamagedBatch`, and reading goes on at
    the next place that the index has.
    """
    with open_segment(Path(piece.folder), piece.base_offset) as (file, index):
        if piece.topic_id and not is_folder_of(Path(piece.folder), piece.topic_id):  # asked when the file is open
            raise FileNotFoundError(piece.folder)
        status = os.fstat(file.fileno())
        end_position = status.st_size
        is_bounded = piece.end_position >= 0 and status.st_ino == piece.inode and index.seal is None
        if is_bounded:
            if status.st_size < piece.end_position and not keeps_damage:
                raise DamagedDataError(
                    f"{piece.where}, offset {piece.first_offset}: {piece.path} has {status.st_size} bytes, and had "
                    f"{piece.end_position} at the checkpoint"
                )
            end_position = min(piece.end_position, status.st_size)
        walk = _Walk(piece, file, end_position, index, bound=piece.end_position if is_bounded else None)
        yield from walk.chunks(keeps_damage=keeps_damage)


class _Walk:
    """From the batch that holds the first offset to the end of a piece."""

    def __init__(
        self, piece: SegmentPiece, file: Any, end_position: int, index: SegmentIndexData, *, bound: int | None
    ) -> None:
        """``bound`` is where the file should end; None: where it does end, or where its seal says."""
        self._piece = piece
        self._bound = index.seal.log.size_bytes if index.seal is not None else bound
        self._file = file
        self._end_position = end_position
        data = index.data
        self._index = OffsetIndex(piece.base_offset, b"" if len(data) % OFFSET_ENTRY_BYTES else data)
        """Not checked whole, which takes long: every place that it names is looked at before it is believed."""

    def chunks(self, *, keeps_damage: bool) -> Iterator[Chunk | DamagedBatch]:
        """With ``keeps_damage``, what a damaged header claims about the offsets behind it is not believed."""
        piece, window = self._piece, WINDOW_BYTES
        offset, position = piece.first_offset, self._first_position()
        while position < self._end_position and offset < piece.end_offset:
            data = self._read(position, window)
            whole, next_offset = whole_batches(data)
            if whole and keeps_damage:
                begin, is_sure = last_batch(data[:whole])
                next_offset = next_offset if is_sure else begin + 1
            if whole:
                yield Chunk(offset, max(offset, next_offset), data[:whole], self._aborted_from(offset))
                offset, position, window = max(offset, next_offset), position + whole, WINDOW_BYTES
                continue
            size = _cut_batch_bytes(data)
            if size and position + size <= self._end_position:
                window = size
                continue
            error = DamagedDataError(f"{piece.where}, offset {offset}: {piece.path} holds no record batch there")
            if not keeps_damage:
                raise error
            position, between = self._resume(position)
            yield DamagedBatch(offset, between, error)
            if position >= self._end_position:
                return
        if offset < piece.end_offset and self._is_cut():
            error = DamagedDataError(f"{piece.where}, offset {offset}: {piece.path} is cut off there")
            if not keeps_damage:
                raise error
            yield DamagedBatch(offset, b"", error)

    def _is_cut(self) -> bool:
        """Whether bytes are missing at the end: a segment's index knows more, or its seal."""
        if self._bound is not None:
            return self._bound > self._end_position
        last = self._index.last
        return last is not None and last.position >= self._end_position and self._index.problem(2**31) is None

    def _aborted_from(self, offset: int) -> list[tuple[int, int, int]]:
        """Those whose marker is still to come: behind it, the producer's next transaction is another one."""
        return [entry[:3] for entry in self._piece.aborted if entry.last_offset >= offset]

    def _first_position(self) -> int:
        """The place of the batch that the index names for the first offset; 0 when the index is wrong there."""
        position = self._index.lookup(self._piece.first_offset).position
        return position if self._is_batch(position, self._piece.first_offset) else 0

    def _is_batch(self, position: int, offset_max: int) -> bool:
        """Whether a batch that begins at or before an offset lies whole at a position."""
        if position < 0:
            return False
        try:
            size = batch_size_at(head := self._read(position, BATCH_HEADER_BYTES), 0)
            if size is None or len(head) < BATCH_HEADER_BYTES or position + size > self._end_position:
                return False
            batch = read_batch(self._read(position, size))
        except (BatchDamageError, CodecError):
            return False
        return self._piece.base_offset <= batch.base_offset <= offset_max and crc32c(batch.data[21:]) == batch.crc

    def _resume(self, position: int) -> tuple[int, bytes]:
        """The next place behind ``position`` where the index knows a batch (or the end), and what lies before it."""
        following = (entry.position for entry in self._index if entry.position > position)
        next_position = next((place for place in following if self._is_batch(place, 2**63)), self._end_position)
        return next_position, bytes(self._read(position, min(next_position - position, DAMAGED_BYTES_MAX)))

    def _read(self, position: int, count: int) -> memoryview:
        self._file.seek(position)
        return memoryview(self._file.read(max(0, min(count, self._end_position - position))))


def _cut_batch_bytes(data: memoryview) -> int:
    """The size of a batch that a window did not hold whole; 0: there is none."""
    try:
        size = batch_size_at(data, 0)
    except BatchDamageError:
        return 0
    return 0 if size is None or size <= len(data) or len(data) < BATCH_HEADER_BYTES else size


def read_checkpoints(data_folder: Path) -> dict[TopicPartition, PartitionCheckpoint]:
    """All partitions that the checkpoints of a data folder know: none, before a new broker's first checkpoint.

    `FileNotFoundError` when it is no data folder.
    """
    found: dict[TopicPartition, PartitionCheckpoint] = {}
    journals = data_folder / "journals"
    if not journals.is_dir():
        raise FileNotFoundError(f"{data_folder} is no data folder of a broker: there is no {journals}")
    files = sorted(journals.glob("[0-9][0-9][0-9][0-9].checkpoint"))
    for file in files:
        try:
            _generation, partitions = decode_checkpoint(file.read_bytes())
        except CheckpointError as error:
            raise DamagedDataError(f"{file}: {error}") from error
        for entry in partitions.values():
            where = TopicPartition(entry.topic, entry.partition)
            if where not in found or found[where].log_end_offset < entry.log_end_offset:
                found[where] = entry
    return found
