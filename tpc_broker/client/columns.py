"""Fetched batches as Arrow record batches: compression, transactions and damage are dealt with here. Needs pyarrow."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.isolation import AbortedTransactions
from tpc_broker.client.reading import Chunk
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.compression import decompress
from tpc_broker.kafka.errors import CodecError
from tpc_broker.kafka.records import Batch, ControlType, read_batch, read_control
from tpc_broker.native_bytes import crc32c
from tpc_broker.native_columns import ColumnBuilder, Stop


class DamagedBatch(NamedTuple):
    """Bytes of the log that cannot be read, in the place of the rows that they should have given.

    ``offset`` is the first one of the range that is missing with it.
    """

    offset: int
    data: bytes
    error: DamagedDataError


class ColumnReader:
    """The rows of [first_offset, end_offset) of one partition from chunks of its log.

    With ``keeps_damage``, a batch that cannot be read is given as a `DamagedBatch` in its place instead of being
    raised; what no batch can be told from is raised all the same, unless the chunks say it themselves.
    """

    def __init__(  # noqa: PLR0913 - where, what and how
        self,
        where: TopicPartition,
        columns: Sequence[str],
        first_offset: int,
        end_offset: int,
        *,
        keeps_damage: bool = False,
        place: str = "",
    ) -> None:
        """``place`` is named with what is damaged: a file, if it comes from one."""
        self._where = where
        self._place = f" ({place})" if place else ""
        self._keeps_damage = keeps_damage
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._builder = ColumnBuilder(where.topic, where.partition, columns)

    def read(self, chunks: Iterable[Chunk | DamagedBatch]) -> Iterator[Any]:
        """``pyarrow.RecordBatch`` objects, none of them empty, and what is damaged if it is kept.

        `DamagedDataError` names the offset.
        """
        for chunk in chunks:
            if isinstance(chunk, DamagedBatch):
                yield from self._damaged(chunk)
            else:
                yield from self._read_chunk(chunk)
        yield from self._flush()

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
                continue
            batch = self._batch_at(chunk.records, position, offset)
            if walk.stop == Stop.NEEDS_CALLER:
                yield from self._append(batch, aborted)
            else:
                why = "its CRC is wrong" if walk.stop == Stop.BAD_CRC else "it is malformed"
                yield from self._unreadable(batch, why)
            position += len(batch.data)
            offset = batch.last_offset + 1

    def _append(self, batch: Batch, aborted: AbortedTransactions) -> Iterator[Any]:
        if crc32c(batch.data[21:]) != batch.crc:
            yield from self._unreadable(batch, "its CRC is wrong")
            return
        try:
            is_empty = batch.records_count == 0  # what is left of a batch, also of a marker, when it was cleaned
            is_abort = (
                batch.is_control and not is_empty and read_control(next(batch.records()))[0] == ControlType.ABORT
            )
            if not aborted.admits(batch, is_abort=is_abort) or is_empty:
                return
            records = decompress(batch.compression, batch.data[61:])
            while not self._builder.append_records(batch.data, records, self._first_offset, self._end_offset):
                yield from self._make_room()
        except (CodecError, ValueError, StopIteration) as error:
            yield from self._unreadable(batch, str(error))

    def _unreadable(self, batch: Batch, why: str) -> Iterator[Any]:
        offset = max(batch.base_offset, self._first_offset)
        name = f"{self._where}, offset {offset}{self._place}"
        error = DamagedDataError(f"{name}: the record batch cannot be read: {why}")
        yield from self._damaged(DamagedBatch(offset, bytes(batch.data), error))

    def _damaged(self, damage: DamagedBatch) -> Iterator[Any]:
        if not self._keeps_damage:
            raise damage.error
        yield from self._flush()
        yield damage

    def _flush(self) -> Iterator[Any]:
        if self._builder.rows_count:
            yield self._builder.take()

    def _make_room(self) -> Iterator[Any]:
        if self._builder.rows_count:
            yield self._builder.take()
        else:
            self._builder.grow()

    def _batch_at(self, data: memoryview, position: int, offset: int) -> Batch:
        try:
            return read_batch(data, position)
        except CodecError as error:
            text = f"{self._where}, offset {offset}{self._place}: no record batch can be told there: {error}"
            raise DamagedDataError(text) from error
