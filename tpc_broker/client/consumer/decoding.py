"""What a fetch answer holds of one partition, read piece by piece: batches to records, without I/O.

Compression, aborted transactions, control batches, gaps, batches that begin before the offset or are cut off, and
damage are dealt with here. Nothing is unpacked before it is asked for, and one batch at a time.
"""

from __future__ import annotations

from collections import deque
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client.consumer.rows import HEADER_BYTES, RowReader, Stop, Walk
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import AbortedTransactions, Isolation
from tpc_broker.kafka.compression import DECOMPRESSED_BYTES_MAX, Compression, decompress, decompress_into
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import (
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    TRANSACTIONAL,
    read_batch,
    read_batches,
)
from tpc_broker.native_bytes import crc32c, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Record


PACKED_SHARE: Final = 4
"""A batch is unpacked beside others when so many times its bytes fit."""


class Piece:
    """Some records of one partition, made one by one as they are asked for. All have one leader epoch."""

    __slots__ = ("_counted", "_offsets", "leader_epoch", "next_offset", "records", "where")

    def __init__(  # noqa: PLR0913 - what it is made of
        self,
        where: TopicPartition,
        records: Iterator[Record],
        offsets: list[int],
        counted: Any,
        next_offset: int,
        leader_epoch: int,
    ) -> None:
        self.where = where
        self.records = records
        self._offsets = offsets
        self._counted = counted
        self.next_offset = next_offset
        """Where reading goes on behind all of them."""
        self.leader_epoch = leader_epoch

    @property
    def records_count(self) -> int:
        return len(self._offsets)

    @property
    def taken_count(self) -> int:
        """How many of the records were made."""
        return len(self._offsets) - length_hint(self._counted)

    def offset(self, index: int) -> int:
        """Of the record with that place in the piece; ``next_offset`` behind the last."""
        return self._offsets[index] if index < len(self._offsets) else self.next_offset


class _Admitted:
    """A batch at a place in an answer, by its header. ``bytes`` -1: there is none."""

    def __init__(self, records: memoryview, position: int) -> None:
        self.header = header = ffi.new("tpc_batch_header *")
        behind = records[position:]
        is_read = lib.tpc_batch_header_read(ffi.from_buffer(behind), behind.nbytes, header) == 0
        self.bytes = header.batch_bytes if is_read else -1
        self.data = behind[: max(self.bytes, 0)]
        self.attributes: int = header.attributes
        self.producer_id: int = header.producer_id
        self.last_offset: int = header.base_offset + header.last_offset_delta
        self.is_large = False

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def compression(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def is_abort(self) -> bool:
        """Whether it marks the end of an aborted transaction. Compaction may have emptied a marker."""
        if not self.is_control or not self.header.records_count:
            return False
        marker = ffi.new("tpc_control_marker *")
        is_marker = lib.tpc_control_read(ffi.from_buffer(self.data), self.header, marker)
        return bool(is_marker) and marker.kind == lib.TPC_CONTROL_ABORT


class _Place(NamedTuple):
    """Records in some bytes."""

    data: Any
    place: slice


_ELSEWHERE: Final = _Place(None, slice(0, 0))


class Part:
    """The records of one partition in one answer, fetched from ``offset`` on. ``records`` is a view of the answer."""

    def __init__(
        self,
        where: TopicPartition,
        offset: int,
        records: memoryview,
        aborted: Iterable[tuple[int, ...]] = (),
        isolation: Isolation = Isolation.READ_COMMITTED,
    ) -> None:
        self.where = where
        self.records = records
        transactions = list(aborted) if isolation == Isolation.READ_COMMITTED else []
        self._aborted = AbortedTransactions(transactions)
        self._walk = Walk(offset, is_plain=not transactions)
        self._admitted: _Admitted | None = None
        """The batch at the walk's position, when it is to be read and the walk alone cannot do it."""
        self._unpacked: Any = None
        """Its records, when they are read piece by piece."""
        self._scratch_used = 0

    @property
    def next_offset(self) -> int:
        """Everything below was read or passed over."""
        return self._walk.next_offset

    @property
    def is_over(self) -> bool:
        """Nothing is left to be read."""
        return self._walk.position >= self.records.nbytes

    @property
    def unpacked_bytes(self) -> int:
        """What it holds beside ``records``."""
        return 0 if self._unpacked is None else len(self._unpacked)

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch."""
        [last] = deque(read_batches(self.records), maxlen=1)
        return last.partition_leader_epoch

    def keep_apart(self) -> None:
        """Copy what is held, so that the answer it came in can go."""
        self.records = memoryview(bytes(self.records))
        if self._admitted is not None:
            self._admitted = _Admitted(self.records, self._walk.position)

    def read(self, rows: RowReader, records_max: int) -> Piece | None:
        """The next records; None: there are no more. `DamagedDataError`, after the records before the damage."""
        rows.begin(records_max)
        source: Any = None
        """The bytes that the rows so far are from: all of a piece are from the same ones."""
        stop: Stop | None = Stop.NEEDS_CALLER
        while stop == Stop.NEEDS_CALLER:
            try:
                stop, source = self._read_next(rows, source if rows.rows_count else None)
            except DamagedDataError:
                if not rows.rows_count:
                    raise
                break
        if rows.rows_count:
            return self._piece(rows, source)
        if stop in {Stop.BAD_BATCH, Stop.BAD_CRC}:
            raise self._damaged("its CRC is wrong" if stop == Stop.BAD_CRC else "it is malformed")
        return None

    def _read_next(self, rows: RowReader, source: Any) -> tuple[Stop | None, Any]:
        """Some batches, or one; `Stop.NEEDS_CALLER`: more may follow. None: none does, or its records lie elsewhere
        than those so far.
        """
        if self._admitted is None and (source is None or source is self.records):
            stop = rows.append_batches(self.records, self._walk)
            if stop != Stop.NEEDS_CALLER:
                return stop, self.records
            source = self.records if rows.rows_count else None
        if self._admitted is None:
            if self._walk.position >= self.records.nbytes:
                return None, source
            self._admit_next()
            if self._admitted is None:
                return Stop.NEEDS_CALLER, source
        place = self._place(self._admitted, rows, source)
        if place is None:
            return None, source
        stop = rows.append_batch(self._admitted.header, place.data, place.place, self._walk)
        if stop == Stop.END:
            self._admitted = self._unpacked = None
            stop = Stop.NEEDS_CALLER
        return stop, place.data

    def _piece(self, rows: RowReader, data: Any) -> Piece:
        walk = self._walk
        records, offsets, counted = rows.records(data, self.where.topic, self.where.partition, walk.leader_epoch)
        return Piece(self.where, records, offsets, counted, walk.next_offset, walk.leader_epoch)

    def _admit_next(self) -> None:
        """The next batch is passed over, or is `_admitted`."""
        batch = _Admitted(self.records, self._walk.position)
        if batch.bytes < 0:
            raise self._damaged("it is malformed")
        if crc32c(batch.data[CRC_START:]) != batch.header.crc:
            raise self._damaged("its CRC is wrong")
        if self._aborted.admits(batch, is_abort=batch.is_abort) and batch.last_offset >= self._walk.next_offset:
            self._admitted = batch
        else:
            self._walk.pass_over(batch.bytes, batch.last_offset + 1)

    def _place(self, admitted: _Admitted, rows: RowReader, source: Any) -> _Place | None:
        """Where its records are, unpacked; None when that is not where the rows so far are from."""
        begin = self._walk.position
        if source is not None and admitted.header.partition_leader_epoch != self._walk.leader_epoch:
            return None
        if admitted.compression == Compression.NONE:
            place = _Place(self.records, slice(begin + HEADER_BYTES, begin + admitted.bytes))
        elif self._unpacked is not None:
            place = _Place(self._unpacked, slice(0, len(self._unpacked)))
        elif source is None or source is rows.scratch:
            place = self._unpack(admitted, rows, self._scratch_used if source is rows.scratch else 0)
        else:
            return None
        return place if source is None or source is place.data else None

    def _unpack(self, admitted: _Admitted, rows: RowReader, begin: int) -> _Place:
        """Small batches one behind the other where they are read at once, others each in memory of its own."""
        packed = admitted.data[HEADER_BYTES:]
        room = memoryview(rows.scratch)[begin:]
        is_small = admitted.header.records_count <= rows.rows_left and PACKED_SHARE * len(packed) <= len(room)
        if is_small and not admitted.is_large:
            try:
                self._scratch_used = begin + decompress_into(admitted.compression, packed, room)
            except CodecError:
                admitted.is_large = begin == 0  # or damaged, which is told when it is unpacked by itself
            else:
                return _Place(rows.scratch, slice(begin, self._scratch_used))
        if begin:
            return _ELSEWHERE
        try:
            self._unpacked = decompress(admitted.compression, packed, DECOMPRESSED_BYTES_MAX)
        except CodecError as error:
            raise self._damaged(str(error)) from error
        return _Place(self._unpacked, slice(0, len(self._unpacked)))

    def _damaged(self, why: str) -> DamagedDataError:
        offset, advice = self.next_offset, ""
        try:
            batch = read_batch(self.records, self._walk.position)
        except CodecError:
            pass
        else:
            offset = max(offset, batch.base_offset)
            if batch.last_offset_delta + 1 == batch.records_count:  # else the header is not to be believed either
                advice = f". seek(…, Offset({batch.last_offset + 1})) goes on behind it"
        return DamagedDataError(f"{self.where}, offset {offset}: the record batch cannot be read: {why}{advice}")
