"""The three indexes of a segment, byte for byte Kafka's (big-endian, no header) but for the end of the third one.

    .index       relative offset i32, position i32       last offset of the batch that starts at the position
    .timeindex   timestamp i64, relative offset i32      largest timestamp up to that offset; strictly rising
    .txnindex    version i16 = 0, producer id, first offset, last offset, last stable offset (i64 each);
                 behind them, of a sealed segment: "TXC1", number of entries u32, CRC-32C of the entries u32

Kafka passes over less than an entry at the end. A file without that end, which an earlier release has written, is read
unchecked. An active segment's has none, nor that of one that was cleaned: its seal has a checksum of the file.

Indexes are hints. They are sparse, small, never trusted (`problem` says what is wrong with one) and can always be made
again from the log. Lookups answer "not further than": the search goes on from there over batch headers.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OFFSET_ENTRY: Final = struct.Struct(">ii")
_TIME_ENTRY: Final = struct.Struct(">qi")
_TRANSACTION_ENTRY: Final = struct.Struct(">hqqqq")
_TRANSACTION_END: Final = struct.Struct(">4sII")
_TRANSACTION_END_MAGIC: Final = b"TXC1"
OFFSET_ENTRY_BYTES: Final = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES: Final = _TIME_ENTRY.size
TRANSACTION_ENTRY_BYTES: Final = _TRANSACTION_ENTRY.size
TRANSACTION_END_BYTES: Final = _TRANSACTION_END.size
assert TRANSACTION_END_BYTES < TRANSACTION_ENTRY_BYTES, "a next entry covers all of it, and Kafka passes over it"


class OffsetEntry(NamedTuple):
    """A batch whose last offset is `offset` starts at `position`."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """No record up to and including `offset` in this segment is younger than `timestamp`."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """`last_offset` is the offset of the abort marker; `last_stable_offset` the one in force behind it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class OffsetIndex:
    """Offsets to file positions, for one segment. The entries are kept as the file's bytes: `data`."""

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self.base_offset = base_offset
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // OFFSET_ENTRY_BYTES

    def __getitem__(self, number: int) -> OffsetEntry:
        relative, position = _OFFSET_ENTRY.unpack_from(self.data, number * OFFSET_ENTRY_BYTES)
        return OffsetEntry(self.base_offset + relative, position)

    def __iter__(self) -> Iterator[OffsetEntry]:
        return (
            OffsetEntry(self.base_offset + relative, position)
            for relative, position in _OFFSET_ENTRY.iter_unpack(bytes(self.data))
        )

    @property
    def last(self) -> OffsetEntry | None:
        return self[len(self) - 1] if self.data else None

    def append(self, last_offset: int, position: int) -> None:
        """Name the batch at a position by its last offset; both must be behind the last entry's."""
        last = self.last
        assert last is None or (last_offset > last.offset and position > last.position), (last, last_offset, position)
        self.data += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)

    def lookup(self, offset: int) -> OffsetEntry:
        """The last entry not above an offset; (base offset, 0) when there is none."""
        number = self._first_above(0, offset)
        return self[number - 1] if number else OffsetEntry(self.base_offset, 0)

    def entries_upto(self, offset: int) -> int:
        """How many entries, the first ones, are not above an offset."""
        return self._first_above(0, offset)

    def positions_upto(self, position: int) -> int:
        """How many entries, the first ones, name batches that begin at most there."""
        return self._first_above(1, position)

    def _first_above(self, field: int, bound: int) -> int:
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle][field] <= bound:
                low = middle + 1
            else:
                high = middle
        return low

    def truncate(self, position: int) -> None:
        """Forget batches that start at or behind a position."""
        del self.data[self._first_above(1, position - 1) * OFFSET_ENTRY_BYTES :]

    def problem(self, log_bytes: int) -> str | None:
        """What is wrong with the entries, in all of them (None: nothing). The log is not read for it."""
        if len(self.data) % OFFSET_ENTRY_BYTES:
            return f"{len(self.data)} bytes are not a whole number of entries"
        before = OffsetEntry(self.base_offset - 1, -1)
        for entry in self:
            if entry.offset <= before.offset or entry.position <= before.position:
                return f"{entry} does not lie behind {before}"
            before = entry
        if self.data and before.position >= log_bytes:
            return f"{before} points behind the log's end at {log_bytes}"
        return None


class TimeIndex:
    """Timestamps to offsets, for one segment. The entries are kept as the file's bytes: `data`."""

    def __init__(self, base_offset: int, data: bytes = b"") -> None:
        self.base_offset = base_offset
        self.data = bytearray(data)

    def __len__(self) -> int:
        return len(self.data) // TIME_ENTRY_BYTES

    def __getitem__(self, number: int) -> TimeEntry:
        timestamp, relative = _TIME_ENTRY.unpack_from(self.data, number * TIME_ENTRY_BYTES)
        return TimeEntry(timestamp, self.base_offset + relative)

    def __iter__(self) -> Iterator[TimeEntry]:
        return (
            TimeEntry(timestamp, self.base_offset + relative)
            for timestamp, relative in _TIME_ENTRY.iter_unpack(bytes(self.data))
        )

    @property
    def last(self) -> TimeEntry | None:
        return self[len(self) - 1] if self.data else None

    def append_if_later(self, timestamp: int, offset: int) -> bool:
        """Add an entry when its timestamp is above the last one's (or the first, and not negative)."""
        last = self.last
        if timestamp <= (last.timestamp if last else -1):
            return False
        assert last is None or offset >= last.offset, (last, timestamp, offset)
        self.data += _TIME_ENTRY.pack(timestamp, offset - self.base_offset)
        return True

    def lookup(self, timestamp: int) -> TimeEntry:
        """The last entry not above a timestamp; (-1, base offset) when there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle].timestamp <= timestamp:
                low = middle + 1
            else:
                high = middle
        return self[low - 1] if low else TimeEntry(-1, self.base_offset)

    def before(self, end_offset: int) -> TimeEntry:
        """The last entry in front of an offset; (-1, base offset) when there is none."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self[middle].offset < end_offset:
                low = middle + 1
            else:
                high = middle
        return self[low - 1] if low else TimeEntry(-1, self.base_offset)

    def truncate(self, end_offset: int) -> None:
        """Forget entries at or behind an offset."""
        while (last := self.last) is not None and last.offset >= end_offset:
            del self.data[-TIME_ENTRY_BYTES:]

    def problem(self, end_offset: int) -> str | None:
        """What is wrong with the entries (None: nothing); `end_offset` is where the segment ends."""
        if len(self.data) % TIME_ENTRY_BYTES:
            return f"{len(self.data)} bytes are not a whole number of entries"
        before = TimeEntry(-1, self.base_offset)
        for entry in self:
            if entry.timestamp <= before.timestamp or entry.offset < before.offset:
                return f"{entry} does not lie behind {before}"
            before = entry
        if before.offset >= end_offset and self.data:
            return f"{before} points behind the segment's end at offset {end_offset}"
        return None


def _end_of(entries: bytes) -> bytes:
    count = len(entries) // TRANSACTION_ENTRY_BYTES
    return _TRANSACTION_END.pack(_TRANSACTION_END_MAGIC, count, crc32c(entries))


class TransactionIndex:
    """Aborted transactions whose abort marker lies in one segment, in the order of their markers."""

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.entries = list(entries)

    @classmethod
    def decode(cls, data: bytes, *, is_checked: bool = True) -> TransactionIndex:
        """Raises ValueError when the bytes are no such index, or not those that were written. `is_checked`: False where
        a wrong entry is better than none.
        """
        behind = len(data) % TRANSACTION_ENTRY_BYTES
        entries_data, end = data[: len(data) - behind], data[len(data) - behind :]
        if behind not in (0, TRANSACTION_END_BYTES):
            raise ValueError(f"{len(data)} bytes are not a whole number of entries")
        if end and is_checked and end != _end_of(entries_data):
            raise ValueError("its checksum is wrong")
        entries = []
        before = -1
        for version, *fields in _TRANSACTION_ENTRY.iter_unpack(entries_data):
            entry = AbortedTransaction._make(fields)
            if version != 0 or entry.first_offset > entry.last_offset or entry.last_offset <= before:
                raise ValueError(f"version {version}, {entry} behind last offset {before}")
            before = entry.last_offset
            entries.append(entry)
        return cls(entries)

    def encode(self) -> bytes:
        """The entries."""
        return b"".join(_TRANSACTION_ENTRY.pack(0, *entry) for entry in self.entries)

    def encode_end(self) -> bytes:
        """What follows them when there will be no more."""
        return _end_of(self.encode()) if self.entries else b""

    def append(self, entry: AbortedTransaction) -> None:
        assert not self.entries or entry.last_offset > self.entries[-1].last_offset, (self.entries[-1], entry)
        self.entries.append(entry)

    def truncate(self, end_offset: int) -> None:
        """Forget transactions whose marker lies at or behind an offset."""
        while self.entries and self.entries[-1].last_offset >= end_offset:
            self.entries.pop()

    def collect(self, fetch_offset: int, upper_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Aborted transactions that touch [fetch_offset, upper_offset), and whether later segments cannot add any.

        They cannot once a transaction's last stable offset has reached the upper bound: everything that begins below
        the bound has ended by then.
        """
        found = []
        for place in range(self._place(fetch_offset), len(self.entries)):
            entry = self.entries[place]
            if entry.first_offset < upper_offset:
                found.append(entry)
            if entry.last_stable_offset >= upper_offset:
                return found, True
        return found, False

    def between(self, begin: int, end: int) -> list[AbortedTransaction]:
        """Those whose markers lie in [begin, end)."""
        return self.entries[self._place(begin) : self._place(end)]

    def _place(self, offset: int) -> int:
        """Of the first entry whose marker lies at or behind an offset."""
        return bisect_left(self.entries, offset, key=lambda entry: entry.last_offset)
