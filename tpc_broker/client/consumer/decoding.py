"""What a fetch answer holds of one partition, read piece by piece: batches to records, without I/O.

Compression, aborted transactions, control batches, gaps, batches that begin before the offset or are cut off, and
damage are dealt with here. Nothing is unpacked before it is asked for, and one batch at a time.
"""

from __future__ import annotations

from collections import deque
from operator import length_hint
from typing import TYPE_CHECKING, Any

from tpc_broker.client.consumer.rows import HEADER_BYTES, RowReader, Stop, Walk
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import AbortedTransactions, Isolation
from tpc_broker.kafka.compression import DECOMPRESSED_BYTES_MAX, decompress
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import ControlType, read_batch, read_batches, read_control
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Record
    from tpc_broker.kafka.records import Batch


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
        self._unpacked: tuple[Any, Any] | None = None
        """Of the batch at the walk's position, when it was unpacked: its header and its records."""

    @property
    def next_offset(self) -> int:
        """Everything below was read or passed over."""
        return self._walk.next_offset

    @property
    def is_over(self) -> bool:
        """Nothing is left to be read."""
        return self._unpacked is None and self._walk.position >= self.records.nbytes

    @property
    def unpacked_bytes(self) -> int:
        """What it holds beside ``records``."""
        if self._unpacked is None or len(self._unpacked[1]) <= len(self.records):
            return 0
        return len(self._unpacked[1])

    @property
    def last_epoch(self) -> int:
        """The leader epoch of the last batch."""
        [last] = deque(read_batches(self.records), maxlen=1)
        return last.partition_leader_epoch

    def keep_apart(self) -> None:
        """Copy what is held, so that the answer it came in can go."""
        self.records = memoryview(bytes(self.records))

    def read(self, rows: RowReader, records_max: int) -> Piece | None:
        """The next records; None: there are no more. `DamagedDataError`, after the records before the damage."""
        rows.begin(records_max)
        walk = self._walk
        data: Any = self.records
        while True:
            if self._unpacked is not None:
                header, data = self._unpacked
                stop = rows.append_batch(header, data, walk)
                if stop == Stop.END:
                    self._unpacked = None
            else:
                data = self.records
                stop = rows.append_batches(data, walk)
            if rows.rows_count:
                return self._piece(rows, data)
            if stop == Stop.NEEDS_CALLER:
                self._unpack(self._batch())
            elif stop == Stop.END and data is self.records:
                return None
            elif stop != Stop.END:
                raise self._damaged("its CRC is wrong" if stop == Stop.BAD_CRC else "it is malformed")

    def _piece(self, rows: RowReader, data: Any) -> Piece:
        walk = self._walk
        records, offsets, counted = rows.records(data, self.where.topic, self.where.partition, walk.leader_epoch)
        return Piece(self.where, records, offsets, counted, walk.next_offset, walk.leader_epoch)

    def _batch(self) -> Batch:
        try:
            return read_batch(self.records, self._walk.position)
        except CodecError as error:
            raise self._damaged(str(error)) from error

    def _unpack(self, batch: Batch) -> None:
        """Make the batch's records ready, or pass over it when it is not to be seen. The CRC was checked."""
        try:
            is_abort = (
                batch.is_control
                and batch.records_count > 0  # compaction may have emptied a marker
                and read_control(next(batch.records()))[0] == ControlType.ABORT
            )
            is_seen = self._aborted.admits(batch, is_abort=is_abort) and batch.last_offset >= self._walk.next_offset
            if not is_seen:
                self._walk.pass_over(len(batch.data), batch.last_offset + 1)
                return
            plain = decompress(batch.compression, batch.data[HEADER_BYTES:], DECOMPRESSED_BYTES_MAX)
        except (CodecError, StopIteration) as error:
            raise self._damaged(str(error)) from error
        header = ffi.new("tpc_batch_header *")
        lib.tpc_batch_header_read(ffi.from_buffer(batch.data), batch.data.nbytes, header)
        self._unpacked = header, plain

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
