"""The Python face of ``native/bytes/arrow_*.c``: record batches to Arrow columns and back, no Python step per row.

`ColumnBuilder` gathers rows in Arrow buffers and gives them as a ``pyarrow.RecordBatch``; `RecordsWriter` writes chosen
rows of Arrow columns as the records of a batch. Needs pyarrow, which is in the extra ``spark``. What belongs to
transactions and compression is the caller's (`tpc_broker.client.columns`).

Invariants: a batch of the log is taken whole or not at all; malformed input is a ``ValueError``, never a crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple

import pyarrow as pa

from tpc_broker._bytes import ffi, lib

ROWS_PER_BATCH: Final = 16_384
BYTES_PER_COLUMN: Final = 4 * 1024 * 1024
BYTES_PER_COLUMN_MAX: Final = 2**31 - 1
_ENOSPC: Final = 28

HEADERS_TYPE: Final = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
COLUMN_TYPES: Final[dict[str, Any]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""The columns there are, in the order and with the types of Spark's own Kafka source."""


class Stop(IntEnum):
    """Why `ColumnBuilder.append_batches` stopped."""

    END = lib.TPC_COLUMNS_END
    FULL = lib.TPC_COLUMNS_FULL
    NEEDS_CALLER = lib.TPC_COLUMNS_NEEDS_CALLER
    BAD_BATCH = lib.TPC_COLUMNS_BAD_BATCH
    BAD_CRC = lib.TPC_COLUMNS_BAD_CRC


class Walk(NamedTuple):
    """Where a walk over batches ended: `next_offset` is -1 when no batch was consumed."""

    stop: Stop
    position: int
    next_offset: int


class _Room(NamedTuple):
    """What one builder can hold."""

    rows: int
    bytes_per_column: int
    headers: int


class _BinaryBuffers:
    """The three buffers of a binary column."""

    def __init__(self, room: int, bytes_capacity: int, builder: Any) -> None:
        self.offsets = pa.allocate_buffer(4 * (room + 1))
        self.data = pa.allocate_buffer(bytes_capacity)
        self.valid = pa.allocate_buffer((room + 7) // 8 + 1)
        self._builder = builder
        builder.offsets = ffi.cast("int32_t *", self.offsets.address)
        builder.data = ffi.cast("uint8_t *", self.data.address)
        builder.valid = ffi.cast("uint8_t *", self.valid.address)
        builder.data_capacity = bytes_capacity
        builder.offsets[0] = 0

    def array(self, type_: Any, count: int) -> Any:
        nulls = int(self._builder.nulls_count)
        used = int(self._builder.offsets[count])
        buffers = [self.valid if nulls else None, self.offsets.slice(0, 4 * (count + 1)), self.data.slice(0, used)]
        return pa.Array.from_buffers(type_, count, buffers, nulls)


class ColumnBuilder:
    """Rows of one topic-partition on their way into Arrow record batches.

    ``columns`` are names of `COLUMN_TYPES` in the order wanted; what is left out is not copied. A builder that is full
    is emptied with `take`; one batch of the log that is larger than an empty builder makes the builder grow.
    """

    def __init__(self, topic: str, partition: int, columns: Sequence[str], rows_max: int = ROWS_PER_BATCH) -> None:
        unknown = [name for name in columns if name not in COLUMN_TYPES]
        if unknown:
            raise ValueError(f"no such column: {', '.join(unknown)}; there are {', '.join(COLUMN_TYPES)}")
        self.schema = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
        self._topic = topic
        self._partition = partition
        self._names = tuple(columns)
        self._room = _Room(rows_max, BYTES_PER_COLUMN, rows_max * 4)
        self._allocate()

    @property
    def rows_count(self) -> int:
        return int(self._columns.rows_count)

    def _allocate(self) -> None:
        room = self._room
        columns = self._columns = ffi.new("tpc_columns *")
        columns.rows_capacity, columns.headers_capacity = room.rows, room.headers
        self._offsets, self._timestamps = pa.allocate_buffer(8 * room.rows), pa.allocate_buffer(8 * room.rows)
        self._types = pa.allocate_buffer(4 * room.rows)
        columns.offsets = ffi.cast("int64_t *", self._offsets.address)
        columns.timestamps_us = ffi.cast("int64_t *", self._timestamps.address)
        columns.timestamp_types = ffi.cast("int32_t *", self._types.address)
        self._binary: dict[str, _BinaryBuffers] = {
            name: _BinaryBuffers(room.rows, room.bytes_per_column, getattr(columns, name))
            for name in self._names
            if name in ("key", "value")
        }
        if "headers" in self._names:
            self._header_offsets = pa.allocate_buffer(4 * (room.rows + 1))
            columns.header_offsets = ffi.cast("int32_t *", self._header_offsets.address)
            columns.header_offsets[0] = 0
            for name in ("header_name", "header_value"):
                self._binary[name] = _BinaryBuffers(room.headers, room.bytes_per_column, getattr(columns, name))

    def append_batches(self, data: Any, position: int, first_offset: int, end_offset: int) -> Walk:
        """Take whole batches from ``position`` on: rows of [first_offset, end_offset). Stops as `Stop` says."""
        walk = ffi.new("tpc_columns_walk *")
        walk.position, walk.first_offset, walk.end_offset, walk.next_offset = position, first_offset, end_offset, -1
        lib.tpc_columns_append_batches(self._columns, ffi.from_buffer(data), memoryview(data).nbytes, walk)
        return Walk(Stop(walk.stop), int(walk.position), int(walk.next_offset))

    def append_records(self, batch: Any, records: Any, first_offset: int, end_offset: int) -> bool:
        """Take the records of one batch that the caller has unpacked; False when there is no room for them.

        ``batch`` begins with the batch's header. `ValueError`: malformed records.
        """
        header = ffi.new("tpc_batch_header *")
        if lib.tpc_batch_header_read(ffi.from_buffer(batch), memoryview(batch).nbytes, header) < 0:
            raise ValueError("no whole record batch of magic 2 begins here")
        size = memoryview(records).nbytes
        result = lib.tpc_columns_append(
            self._columns, header, ffi.from_buffer(records), size, first_offset, end_offset
        )
        if result == -_ENOSPC:
            return False
        if result < 0:
            raise ValueError("malformed records")
        return True

    def grow(self) -> None:
        """Make an empty builder larger, as a single batch did not fit. `ValueError` beyond what Arrow can hold."""
        assert self.rows_count == 0, self.rows_count
        room = self._room
        if room.bytes_per_column >= BYTES_PER_COLUMN_MAX:
            raise ValueError(f"a record batch needs more than {BYTES_PER_COLUMN_MAX} bytes in a column")
        self._room = _Room(
            room.rows * 4, min(room.bytes_per_column * 4, BYTES_PER_COLUMN_MAX), min(room.headers * 4, 2**28)
        )
        self._allocate()

    def take(self) -> Any:
        """The rows so far as a ``pyarrow.RecordBatch`` with `schema`; the builder is empty then."""
        count = self.rows_count
        arrays = [self._array(name, count) for name in self._names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._allocate()
        return batch

    def _array(self, name: str, count: int) -> Any:
        fixed = {"offset": self._offsets, "timestamp": self._timestamps, "timestampType": self._types}
        type_ = COLUMN_TYPES[name]
        if name in fixed:
            return pa.Array.from_buffers(type_, count, [None, fixed[name].slice(0, count * type_.bit_width // 8)], 0)
        if name == "topic":
            return pa.repeat(pa.scalar(self._topic, type_), count)
        if name == "partition":
            return pa.repeat(pa.scalar(self._partition, type_), count)
        if name == "headers":
            return self._headers_array(count)
        return self._binary[name].array(type_, count)

    def _headers_array(self, count: int) -> Any:
        items = int(self._columns.headers_count)
        names = self._binary["header_name"].array(pa.string(), items)
        values = self._binary["header_value"].array(pa.binary(), items)
        struct = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
        offsets = self._header_offsets.slice(0, 4 * (count + 1))
        return pa.Array.from_buffers(HEADERS_TYPE, count, [None, offsets], 0, children=[struct])


@dataclass(frozen=True, slots=True)
class WrittenRecords:
    """The records part of a batch. The header's own fields follow from it and from the producer."""

    data: bytes
    records_count: int
    base_timestamp: int
    max_timestamp: int


class RecordsWriter:
    """Rows of Arrow columns as records. ``key``, ``value`` are binary arrays or None, ``timestamps_ms`` has no nulls.

    ``headers`` is None or a list of structs (key string, value binary).
    """

    def __init__(self, *, key: Any, value: Any, timestamps_ms: Any, headers: Any = None) -> None:
        self._kept: list[Any] = []
        self._input = ffi.new("tpc_records_input *")
        self._rows = len(timestamps_ms)
        self._out = bytearray()
        self._bind(self._input.key, key)
        self._bind(self._input.value, value)
        assert timestamps_ms.null_count == 0, "timestamps have nulls"
        times = timestamps_ms.buffers()[1]
        self._kept.append(timestamps_ms)
        if self._rows:
            self._input.timestamps_ms = ffi.cast("const int64_t *", times.address + 8 * timestamps_ms.offset)
        if headers is not None:
            self._bind_headers(headers)

    def _bind(self, column: Any, array: Any) -> None:
        if array is None or len(array) == 0 or array.null_count == len(array):
            return
        array = array if pa.types.is_binary(array.type) else array.cast(pa.binary())
        valid, offsets, data = array.buffers()
        self._kept.append(array)
        column.offsets = ffi.cast("const int32_t *", offsets.address + 4 * array.offset)
        column.data = ffi.cast("const uint8_t *", data.address if data is not None and data.size else 0)
        if valid is not None:
            column.valid = ffi.cast("const uint8_t *", valid.address)
            column.valid_bit_offset = array.offset

    def _bind_headers(self, headers: Any) -> None:
        if headers.null_count == len(headers):
            return
        if headers.null_count or headers.offset:
            headers = pa.array(headers.to_pylist(), HEADERS_TYPE)  # a null list may hide items; rare, so row by row
        items = headers.values
        self._kept.append(headers)
        self._input.header_offsets = ffi.cast("const int32_t *", headers.buffers()[1].address)
        self._bind(self._input.header_name, items.field(0).cast(pa.binary()))
        self._bind(self._input.header_value, items.field(1))

    def partitions(self, partitions_count: int) -> Any:
        """Kafka's default choice by key as an int32 array, null where the key is null."""
        out = pa.allocate_buffer(4 * max(1, self._rows))
        if self._rows:
            at = ffi.cast("int32_t *", out.address)
            lib.tpc_records_partitions(ffi.addressof(self._input, "key"), self._rows, partitions_count, at)
        chosen = pa.Array.from_buffers(pa.int32(), self._rows, [None, out], 0)
        import pyarrow.compute as pc  # noqa: PLC0415 - slow to import, and only the sink needs it

        return pc.if_else(pc.less(chosen, 0), pa.scalar(None, pa.int32()), chosen)

    def write(self, rows: Any, first: int, bytes_max: int) -> WrittenRecords:
        """Records for ``rows[first:]`` (an int32 array of row numbers), as many as fit in ``bytes_max``.

        `ValueError` when not even the first one fits.
        """
        assert rows.null_count == 0, "row numbers have nulls"
        assert rows.type == pa.int32(), rows.type
        if len(self._out) < bytes_max:
            self._out = bytearray(bytes_max)
        result = ffi.new("tpc_records_output *")
        at = ffi.cast("const int32_t *", rows.buffers()[1].address + 4 * (rows.offset + first))
        used = lib.tpc_records_write(self._input, at, len(rows) - first, ffi.from_buffer(self._out), bytes_max, result)
        if result.records_count == 0:
            raise ValueError(f"row {rows[first].as_py()} is larger than {bytes_max} bytes")
        data = bytes(memoryview(self._out)[:used])
        return WrittenRecords(data, result.records_count, result.base_timestamp, result.max_timestamp)
