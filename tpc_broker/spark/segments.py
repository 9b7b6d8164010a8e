"""Reading a data folder without a broker: one task per segment file.

What is believed is what the broker's recovery believes: the checkpoint of each core says which offsets of a partition
are certainly in its segment files. What was appended after the last checkpoint is in the journal only, and is not
seen here; a broker that was stopped in order has written everything. The checkpoint is read once, when the read is
planned, so the result is that moment's log however long the tasks take.

A broker may be writing, rolling and deleting meanwhile. Bytes below a checkpointed position never change, so nothing
has to be locked. A segment that retention removes after the planning is data loss, reported or passed over as
`failOnDataLoss` says.

Aborted transactions are left out with the segments' transaction indexes: those of the segment itself and of later
ones, where a transaction's end may lie. With `read_committed`, what follows the first open transaction is not read.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from tpc_broker.client.columns import ColumnReader
from tpc_broker.client.errors import DamagedDataError, OffsetsMissingError, UnknownTopicError
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.reading import Chunk, whole_batches
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import read_batches
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, batch_size_at
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_checkpoint
from tpc_broker.log.files import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_file_name,
    partition_folder_name,
    segment_file_name,
)
from tpc_broker.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex
from tpc_broker.spark.options import OptionError, Position, ReadOptions
from tpc_broker.spark.ranges import select

WINDOW_BYTES: Final = 8 * 1024 * 1024
logger = logging.getLogger("tpc.spark")


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """What one task reads: offsets [first_offset, end_offset) between two positions of a file."""

    where: TopicPartition
    path: str
    first_offset: int
    end_offset: int
    first_position: int
    end_position: int
    aborted: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Segment:
    base_offset: int
    end_offset: int
    end_position: int


class PartitionFolder:
    """The segment files of one partition, as the checkpoint has them."""

    def __init__(self, folder: Path, checkpoint: PartitionCheckpoint) -> None:
        self._folder = folder
        self.checkpoint = checkpoint
        self.where = TopicPartition(checkpoint.topic, checkpoint.partition)
        self.segments = self._list()
        self._aborted: list[AbortedTransaction] | None = None

    def _list(self) -> list[_Segment]:
        """Segments up to the checkpointed one; what lies behind it is not believed."""
        parsed = [parse_segment_file_name(path.name) for path in self._folder.iterdir()]
        bases = sorted(name[0] for name in parsed if name and name[1] == LOG_SUFFIX)
        bases = [base for base in bases if base <= self.checkpoint.segment_base]
        segments = []
        for number, base in enumerate(bases):
            if base == self.checkpoint.segment_base:
                segments.append(_Segment(base, self.checkpoint.log_end_offset, self.checkpoint.segment_position))
            else:
                size = self._file(base, LOG_SUFFIX).stat().st_size
                following = bases[number + 1] if number + 1 < len(bases) else self.checkpoint.log_end_offset
                segments.append(_Segment(base, following, size))
        return segments

    def end_offset(self, isolation: Isolation) -> int:
        """Where a read ends: the log's end, or the first open transaction."""
        end = int(self.checkpoint.log_end_offset)
        return self.checkpoint.producers.last_stable_offset(end) if isolation == Isolation.READ_COMMITTED else end

    def pieces(self, first_offset: int, end_offset: int, isolation: Isolation) -> Iterator[SegmentPiece]:
        """The segments that hold something of [first_offset, end_offset)."""
        for segment in self.segments:
            first, end = max(first_offset, segment.base_offset), min(end_offset, segment.end_offset)
            if first >= end:
                continue
            aborted = self._aborted_between(first, end) if isolation == Isolation.READ_COMMITTED else ()
            path = self._file(segment.base_offset, LOG_SUFFIX)
            position = self._position(segment, first)
            yield SegmentPiece(self.where, str(path), first, end, position, segment.end_position, aborted)

    def offset_at(self, time_ms: int) -> int:
        """The first offset whose record is at or after a time; -1 when none is. Found with the time indexes."""
        for segment in self.segments:
            index = TimeIndex(segment.base_offset, self._index_bytes(segment, TIME_INDEX_SUFFIX))
            begin = segment.base_offset
            if index.problem(segment.end_offset) is None:
                is_last = segment.base_offset == self.checkpoint.segment_base
                if index.last and index.last.timestamp < time_ms and not is_last:
                    continue
                begin = index.lookup(time_ms - 1).offset
            found = self._scan_for_time(segment, begin, time_ms)
            if found >= 0:
                return max(found, int(self.checkpoint.log_start_offset))
        return -1

    def _scan_for_time(self, segment: _Segment, first_offset: int, time_ms: int) -> int:
        path = str(self._file(segment.base_offset, LOG_SUFFIX))
        position = self._position(segment, first_offset)
        piece = SegmentPiece(self.where, path, first_offset, segment.end_offset, position, segment.end_position, ())
        for chunk in read_chunks(piece):
            for batch in read_batches(chunk.records):
                if batch.max_timestamp < time_ms or batch.is_control:
                    continue
                for record in batch.records():
                    if record.timestamp_ms >= time_ms and record.offset >= self.checkpoint.log_start_offset:
                        return record.offset
        return -1

    def _position(self, segment: _Segment, offset: int) -> int:
        """A place at or before the batch that holds the offset. An index that is not right is not used."""
        index = OffsetIndex(segment.base_offset, self._index_bytes(segment, INDEX_SUFFIX))
        return index.lookup(offset).position if index.problem(segment.end_position) is None else 0

    def _index_bytes(self, segment: _Segment, suffix: str) -> bytes:
        try:
            data = self._file(segment.base_offset, suffix).read_bytes()
        except FileNotFoundError:
            return b""
        if segment.base_offset != self.checkpoint.segment_base:
            return data
        is_offsets = suffix == INDEX_SUFFIX
        return data[: self.checkpoint.index_bytes if is_offsets else self.checkpoint.time_index_bytes]

    def _aborted_between(self, first_offset: int, end_offset: int) -> tuple[tuple[int, int], ...]:
        if self._aborted is None:
            self._aborted = [entry for segment in self.segments for entry in self._aborted_of(segment)]
        index = bisect_right(self._aborted, first_offset - 1, key=lambda entry: entry.last_offset)
        return tuple(
            (entry.producer_id, entry.first_offset)
            for entry in self._aborted[index:]
            if entry.first_offset < end_offset
        )

    def _aborted_of(self, segment: _Segment) -> list[AbortedTransaction]:
        path = self._file(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return []
        if segment.base_offset == self.checkpoint.segment_base:
            data = data[: self.checkpoint.transaction_index_bytes]
        try:
            return TransactionIndex.decode(data).entries
        except ValueError as error:
            raise DamagedDataError(f"{self.where}, offset {segment.base_offset}: {path.name}: {error}") from error

    def _file(self, base_offset: int, suffix: str) -> Path:
        return self._folder / segment_file_name(base_offset, suffix)


def read_chunks(piece: SegmentPiece) -> Iterator[Chunk]:
    """The piece's bytes in windows of whole batches. `DamagedDataError` where no batch can be told from the bytes."""
    offset, position, window = piece.first_offset, piece.first_position, WINDOW_BYTES
    with Path(piece.path).open("rb") as file:
        while position < piece.end_position and offset < piece.end_offset:
            file.seek(position)
            data = memoryview(file.read(min(window, piece.end_position - position)))
            whole, next_offset = whole_batches(data)
            if whole == 0:
                window = _batch_bytes(piece, data, offset)
                continue
            yield Chunk(offset, next_offset, data[:whole], list(piece.aborted))
            offset, position, window = max(offset, next_offset), position + whole, WINDOW_BYTES


def _batch_bytes(piece: SegmentPiece, data: memoryview, offset: int) -> int:
    """The size of a batch that a window did not hold."""
    try:
        size = batch_size_at(data, 0)
    except BatchDamageError:
        size = None
    if size is None or size <= len(data) or len(data) < BATCH_HEADER_BYTES:
        raise DamagedDataError(f"{piece.where}, offset {offset}: {Path(piece.path).name} holds no record batch there")
    return size


def read_checkpoints(data_folder: Path) -> dict[TopicPartition, PartitionCheckpoint]:
    """All partitions that the checkpoints of a data folder know. `OptionError` when it is no data folder."""
    found: dict[TopicPartition, PartitionCheckpoint] = {}
    files = sorted((data_folder / "journals").glob("[0-9][0-9][0-9][0-9].checkpoint"))
    if not files:
        raise OptionError(f"path {data_folder} holds no checkpoint of a broker (journals/0000.checkpoint)")
    for file in files:
        try:
            _generation, partitions = decode_checkpoint(file.read_bytes())
        except CheckpointError as error:
            raise DamagedDataError(f"{file.name}: {error}") from error
        for entry in partitions.values():
            where = TopicPartition(entry.topic, entry.partition)
            if where not in found or found[where].log_end_offset < entry.log_end_offset:
                found[where] = entry
    return found


class SegmentReader(DataSourceReader):
    """A batch read of a data folder."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(piece) for folder in self._folders() for piece in self._pieces(folder)]

    def _folders(self) -> list[PartitionFolder]:
        data_folder = Path(self._options.path)
        checkpoints = read_checkpoints(data_folder)
        places = select(self._options.selection, sorted(checkpoints))
        return [
            PartitionFolder(data_folder / "topics" / partition_folder_name(*where), checkpoints[where])
            for where in places
            if (data_folder / "topics" / partition_folder_name(*where)).is_dir() or self._gone(where)
        ]

    def _gone(self, where: TopicPartition) -> bool:
        raise UnknownTopicError(f"{where} has no folder under {self._options.path}")

    def _pieces(self, folder: PartitionFolder) -> Iterator[SegmentPiece]:
        isolation, where = self._options.isolation, folder.where
        start, end = int(folder.checkpoint.log_start_offset), folder.end_offset(isolation)
        first = self._resolve(self._options.start, folder, start, end, is_start=True)
        stop = self._resolve(self._options.end, folder, start, end, is_start=False)
        if stop > end:
            raise OffsetsMissingError(f"{where}: endingOffsets says {stop}, the log's files end at {end}")
        if first < min(start, stop):
            self._lost(f"{where}: offsets [{first}, {min(start, stop)}) are not in the log any more")
        yield from folder.pieces(max(first, start), stop, isolation)

    def _resolve(self, position: Position, folder: PartitionFolder, start: int, end: int, *, is_start: bool) -> int:
        time_ms = position.times_ms.get(folder.where, position.time_ms)
        if time_ms is not None:
            found = folder.offset_at(time_ms)
            if found < 0 and is_start and not self._options.late_is_latest:
                raise OffsetsMissingError(f"{folder.where} has no record at or after {time_ms} ms")
            return end if found < 0 else min(found, end)
        offset = position.offsets.get(folder.where, position.default)
        return {EARLIEST: start, LATEST: end}.get(offset, offset)

    def _lost(self, what: str) -> None:
        if self._options.fails_on_data_loss:
            raise OffsetsMissingError(f"{what}; to go on without them, set failOnDataLoss to false")
        logger.warning("%s; going on without them", what)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        piece: SegmentPiece | None = partition.value
        if piece is None:
            return
        columns = ColumnReader(piece.where, self._options.columns, piece.first_offset, piece.end_offset)
        try:
            yield from columns.read(read_chunks(piece))
        except FileNotFoundError:
            self._lost(f"{piece.where}: offsets [{piece.first_offset}, {piece.end_offset}): the segment was deleted")
        except CodecError as error:
            raise DamagedDataError(f"{piece.where}, {Path(piece.path).name}: {error}") from error
