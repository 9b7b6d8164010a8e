"""Records of fetched batches as `Record` objects, cut out in C: the Python face of ``native/bytes/record_rows.c``.

One `RowReader` serves all partitions of a reader, one after the other: what it has read is taken out with `records`
before the next call. CRCs are checked. Malformed input is an answer, never a crash.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from itertools import islice, repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.values import Record
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tpc_broker.client.values import Headers

HEADERS_AT_ONCE: Final = 4096
HEADER_BYTES: Final = 61
SCRATCH_BYTES: Final = 256 * 1024
_ENOSPC: Final = 28
_make_record = partial(tuple.__new__, Record)
"""`Record._make` without a Python frame for each."""


class Stop(IntEnum):
    """Why `RowReader.append_batches` stopped."""

    END = lib.TPC_ROWS_END
    FULL = lib.TPC_ROWS_FULL
    NEEDS_CALLER = lib.TPC_ROWS_NEEDS_CALLER
    BAD_BATCH = lib.TPC_ROWS_BAD_BATCH
    BAD_CRC = lib.TPC_ROWS_BAD_CRC
    EPOCH = lib.TPC_ROWS_EPOCH


class Walk:
    """Where one answer's walk is: kept by whoever reads it piece by piece."""

    def __init__(self, next_offset: int, *, is_plain: bool) -> None:
        """``is_plain``: no transaction matters, so that all but control batches are visible."""
        self.state = ffi.new("tpc_rows_walk *")
        self.state.next_offset, self.state.is_plain = next_offset, is_plain

    @property
    def position(self) -> int:
        return int(self.state.position)

    @property
    def next_offset(self) -> int:
        """Behind what was taken or passed over."""
        return int(self.state.next_offset)

    @property
    def leader_epoch(self) -> int:
        return int(self.state.leader_epoch)

    def pass_over(self, batch_bytes: int, next_offset: int) -> None:
        """The batch at the position is not for the reader."""
        state = self.state
        state.position += batch_bytes
        state.record_position = state.records_seen = 0
        state.next_offset = max(self.next_offset, next_offset)


class _Names(dict[bytes, str]):
    """Names of headers repeat: each is made once, as long as there are few. One that is not UTF-8 is told all the
    same.
    """

    def __missing__(self, raw: bytes) -> str:
        made = raw.decode(errors="surrogateescape")
        if len(self) < HEADERS_AT_ONCE:
            self[raw] = made
        return made


class RowReader:
    """Room for ``rows_max`` records at a time to begin with."""

    def __init__(self, rows_max: int) -> None:
        self.scratch = bytearray(SCRATCH_BYTES)
        """For what is unpacked and read between `begin` and `records`."""
        self._rows = ffi.new("tpc_rows *")
        self._names = _Names()
        self._make_room(rows_max)
        self._make_room_for_headers(HEADERS_AT_ONCE)

    def _make_room(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self._offsets = ffi.new("int64_t[]", rows_max)
        self._timestamps = ffi.new("int64_t[]", rows_max)
        self._present = ffi.new("uint8_t[]", rows_max)
        self._format = ffi.new("char[]", rows_max * lib.TPC_ROWS_FORMAT_BYTES)
        self._header_counts = ffi.new("int32_t[]", rows_max)
        rows = self._rows
        rows.offsets, rows.timestamps_ms, rows.present = self._offsets, self._timestamps, self._present
        rows.cells.text, rows.header_counts = self._format, self._header_counts

    def _make_room_for_headers(self, count: int) -> None:
        self._header_nulls = ffi.new("uint8_t[]", count)
        self._header_format = ffi.new("char[]", count * lib.TPC_ROWS_FORMAT_BYTES)
        rows = self._rows
        rows.header_nulls, rows.header_cells.text = self._header_nulls, self._header_format
        rows.headers_capacity = count

    def begin(self, rows_max: int) -> None:
        """Forget what was read; take at most so many rows from now on."""
        if rows_max > self.rows_max:
            self._make_room(rows_max)
        rows = self._rows
        rows.rows_capacity = rows_max
        rows.rows_count = rows.keys_count = rows.values_count = 0
        rows.headers_count = rows.header_nulls_count = 0
        for format_ in (rows.cells, rows.header_cells):
            format_.bytes = format_.begin = format_.end = 0

    @property
    def rows_count(self) -> int:
        return int(self._rows.rows_count)

    @property
    def rows_left(self) -> int:
        return int(self._rows.rows_capacity - self._rows.rows_count)

    def append_batches(self, data: memoryview, walk: Walk) -> Stop:
        """Whole batches of a fetch answer from the walk's position on. Stops as `Stop` says."""
        while True:
            lib.tpc_rows_append_batches(self._rows, ffi.from_buffer(data), data.nbytes, walk.state)
            stop = Stop(walk.state.stop)
            if stop != Stop.FULL or self.rows_count:
                return stop
            self._make_room_for_headers(4 * self._rows.headers_capacity)  # a single record has more

    def append_batch(self, header: Any, data: Any, place: slice, walk: Walk) -> Stop:
        """Records of the batch at the walk's position, unpacked: at a place in the bytes that the rows so far are from.
        `Stop.END`: all of them; `FULL`, `BAD_BATCH`.
        """
        size = place.stop - place.start
        while True:
            result = lib.tpc_rows_append(self._rows, header, ffi.from_buffer(data), place.start, size, walk.state)
            if result != -_ENOSPC:
                return Stop.BAD_BATCH if result else Stop.END
            if self.rows_count:
                return Stop.FULL
            self._make_room_for_headers(4 * self._rows.headers_capacity)

    def records(
        self, data: Any, topic: str, partition: int, leader_epoch: int
    ) -> tuple[Iterator[Record], list[int], Iterator[str]]:
        """Each row as a record, made when it is asked for; the offsets of all; an iterator whose `length_hint` says how
        many were not asked for. ``data``: what they were read from, which may change afterwards.
        """
        count = self.rows_count
        headers = self._headers_of(data, count) if self._rows.headers_count else repeat((), count)
        keys, values = self._keys_and_values(data, count)
        offsets: list[int] = ffi.unpack(self._offsets, count)
        counted = repeat(topic, count)
        columns = zip(
            counted,
            repeat(partition),
            offsets,
            ffi.unpack(self._timestamps, count),
            keys,
            values,
            headers,
            repeat(leader_epoch),
        )
        return map(_make_record, columns), offsets, counted

    def _keys_and_values(self, data: Any, count: int) -> tuple[Iterable[bytes | None], Iterable[bytes | None]]:
        rows = self._rows
        cells = _cut(rows.cells, data)
        if rows.values_count == count:
            if rows.keys_count == count:
                return cells[::2], cells[1::2]
            if not rows.keys_count:
                return repeat(None, count), cells
        cell = iter(cells)
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for present in ffi.buffer(self._present, count)[:]:
            keys.append(next(cell) if present & lib.TPC_ROWS_KEY else None)
            values.append(next(cell) if present & lib.TPC_ROWS_VALUE else None)
        return keys, values

    def _headers_of(self, data: Any, count: int) -> list[Headers]:
        rows = self._rows
        cells = _cut(rows.header_cells, data)
        names: Iterable[bytes] = cells[::2]
        values: Iterable[bytes | None] = cells[1::2]
        if rows.header_nulls_count:
            cell = iter(cells)
            pairs = [
                (next(cell), None if is_null else next(cell))
                for is_null in ffi.buffer(self._header_nulls, rows.headers_count)[:]
            ]
            names, values = zip(*pairs, strict=True)
        made = zip(map(self._names.__getitem__, names), values, strict=True)
        return [tuple(islice(made, counted)) for counted in ffi.unpack(self._header_counts, count)]


def _cut(format_: Any, data: Any) -> tuple[bytes, ...]:
    text = b"<" + ffi.buffer(format_.text, format_.bytes)[:]
    return Struct(text).unpack_from(data, format_.begin)
