"""Fetched batches as Arrow record batches: compression, transactions and damage are dealt with here. Needs pyarrow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import AbortedTransactions
from tpc_broker.client.reading import Chunk
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.compression import decompress
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import Batch, ControlType, read_batch, read_control
from tpc_broker.native_bytes import crc32c
from tpc_broker.native_columns import ColumnBuilder, Stop


class ColumnReader:
    """The rows of [first_offset, end_offset) of one partition from chunks of its log."""

    def __init__(self, where: TopicPartition, columns: Sequence[str], first_offset: int, end_offset: int) -> None:
        self._where = where
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._builder = ColumnBuilder(where.topic, where.partition, columns)

    def read(self, chunks: Iterable[Chunk]) -> Iterator[Any]:
        """``pyarrow.RecordBatch`` objects, none of them empty. `DamagedDataError` names the offset."""
        for chunk in chunks:
            yield from self._read_chunk(chunk)
        if self._builder.rows_count:
            yield self._builder.take()

    def _read_chunk(self, chunk: Chunk) -> Iterator[Any]:
        aborted = AbortedTransactions(chunk.aborted)
        position, offset = 0, chunk.fetch_offset
        while True:
            walk = self._builder.append_batches(chunk.records, position, self._first_offset, self._end_offset)
            position = walk.position
            offset = max(offset, walk.next_offset)
            if walk.stop == Stop.END:
                return
            if walk.stop == Stop.FULL:
                yield from self._make_room()
            elif walk.stop == Stop.NEEDS_CALLER:
                batch = self._batch_at(chunk.records, position)
                yield from self._append(batch, aborted)
                position += len(batch.data)
                offset = batch.last_offset + 1
            else:
                what = "its CRC is wrong" if walk.stop == Stop.BAD_CRC else "it is malformed"
                raise self._damage(offset, f"the record batch cannot be read: {what}")

    def _append(self, batch: Batch, aborted: AbortedTransactions) -> Iterator[Any]:
        if crc32c(batch.data[21:]) != batch.crc:
            raise self._damage(batch.base_offset, "the record batch cannot be read: its CRC is wrong")
        try:
            is_abort = batch.is_control and read_control(next(batch.records()))[0] == ControlType.ABORT
            if not aborted.admits(batch, is_abort=is_abort):
                return
            records = decompress(batch.compression, batch.data[61:])
            while not self._builder.append_records(batch.data, records, self._first_offset, self._end_offset):
                yield from self._make_room()
        except (CodecError, ValueError, StopIteration) as error:
            raise self._damage(batch.base_offset, f"the record batch cannot be read: {error}") from error

    def _make_room(self) -> Iterator[Any]:
        if self._builder.rows_count:
            yield self._builder.take()
        else:
            self._builder.grow()

    def _batch_at(self, data: memoryview, position: int) -> Batch:
        return read_batch(data, position)

    def _damage(self, offset: int, what: str) -> DamagedDataError:
        return DamagedDataError(f"{self._where}, offset {offset}: {what}")
