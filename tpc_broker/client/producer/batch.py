"""Records of one partition that go together: columns while it is filled, bytes from the moment it is sealed. A record
that is alone stays in its columns and becomes bytes in each request.

What a record's slip tells is worked out from its batch, so an answer costs as much for one record as for thousands.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.errors import DeliveryError, RecordRefusedError
from tpc_broker.client.values import Delivered, Fate
from tpc_broker.kafka.compression import Compression, compress
from tpc_broker.kafka.records import HEADER_BYTES, TRANSACTIONAL, read_batches
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from tpc_broker.client.net.loops import Event
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import HeadersLike

RECORD_BYTES: Final = int(lib.TPC_PACKED_RECORD_BYTES_MAX)
"""What a record counts beside its key and value, against a batch's size and the budget: its lengths and deltas in the
batch at most, and about what it takes in memory before.
"""
HEADER_FIELD_BYTES: Final = int(lib.TPC_PACKED_HEADER_BYTES_MAX)
HeaderPairs = tuple[tuple[bytes, bytes | None], ...]
"""Names in UTF-8."""
WAITING: Final = Fate.WAITING
UNDER_WAY: Final = Fate.UNDER_WAY
DELIVERED: Final = Fate.DELIVERED
"""Looking for a member in its enum costs a hundredth of a record that is sent alone, each time."""
_delivered: Final = partial(tuple.__new__, Delivered)
"""`Delivered` of a tuple, without Python's part of its constructor."""
NO_PRODUCER: Final = ProducerIdentity(-1, -1)
_NO_LENGTHS: Final = array("i")
_NO_ROWS: Final[list[int]] = []


class Failure(NamedTuple):
    """Why a batch was not delivered. ``code``: the broker's, None when it is not the broker's word."""

    text: str
    code: int | None = None

    def error(self, where: TopicPartition, fate: Fate) -> DeliveryError:
        """A new one: an exception that several tasks raise would collect all their tracebacks."""
        if self.code is None:
            return DeliveryError(self.text, where, fate)
        return RecordRefusedError(self.code, self.text, where, fate)


class Batch:
    """``deadline`` on `time.monotonic`. ``size``: what its records count."""

    __slots__ = (
        "attributes", "base_offset", "base_sequence", "count", "data", "deadline", "decided",
        "failure", "fate", "headers", "identity", "in_doubt", "is_decided", "is_flying", "is_void", "keys",
        "log_append_time", "parent", "parts", "rows_seen", "rows_withdrawn", "size", "timestamps", "values", "where",
    )  # fmt: skip

    attributes: int
    identity: ProducerIdentity
    base_sequence: int
    """From when it is sealed."""
    base_offset: int
    log_append_time: int
    """From when it is delivered."""

    def __init__(self, where: TopicPartition, deadline: float) -> None:
        self.where = where
        self.deadline = deadline
        self.size = 0
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        """None: no record has one."""
        self.headers: list[HeaderPairs] | None = None
        self.timestamps: Any = []
        self.rows_withdrawn = _NO_ROWS
        self.count = 0
        """Of the records in the sealed batch."""
        self.data: bytearray | None = None
        """Its bytes. None: those of a lone record are written anew for each request."""
        self.is_flying = False
        self.in_doubt = False
        """An attempt had no answer that tells: it may be in the log."""
        self.is_void = False
        """Certainly not in the log, and not to be sent: its sequence numbers are free."""
        self.fate = WAITING
        self.is_decided = False
        """Or all of its parts are."""
        self.failure: Failure | None = None
        self.decided: Event | None = None
        """Made by who waits first."""
        self.rows_seen: set[int] = set()
        """Records whose end somebody waits for, or was told."""
        self.parent: Batch | None = None
        self.parts: list[Batch] | None = None
        """It was too large for the broker: these have its records."""

    # -- filled --------------------------------------------------------------------------------------------------------

    def add(self, key: bytes | None, value: bytes | None, headers: HeaderPairs, timestamp: int, size: int) -> int:
        """The record's row."""
        values = self.values
        row = len(values)
        values.append(value)
        self.timestamps.append(timestamp)
        self.size += size
        if self.keys is not None:
            self.keys.append(key)
        elif key is not None:
            self.keys = [None] * row
            self.keys.append(key)
        if self.headers is not None:
            self.headers.append(headers)
        elif headers:
            self.headers = [()] * row
            self.headers.append(headers)
        return row

    def add_many(self, keys: list[bytes] | None, values: list[bytes], timestamp: int, size: int) -> int:
        """Records without headers; the first one's row."""
        count, row = len(values), len(self.values)
        self.values += values
        self.timestamps += [timestamp] * count
        self.size += size
        if self.keys is None and keys is not None:
            self.keys = [None] * row
        if self.keys is not None:
            self.keys += [None] * count if keys is None else keys
        if self.headers is not None:
            self.headers += [()] * count
        return row

    def withdraw(self, row: int, size: int) -> bool:
        """Take a record out again; False: it is too late."""
        if self.fate is not WAITING or self.is_withdrawn(row):
            return False
        if self.rows_withdrawn:
            insort(self.rows_withdrawn, row)
        else:
            self.rows_withdrawn = [row]
        self.rows_seen.discard(row)
        self.size -= size
        return True

    def is_withdrawn(self, row: int) -> bool:
        rows = self.rows_withdrawn
        if not rows:
            return False
        place = bisect_left(rows, row)
        return place < len(rows) and rows[place] == row

    @property
    def rows_count(self) -> int:
        """Of the records that are not withdrawn."""
        return len(self.values) - len(self.rows_withdrawn) if self.fate is WAITING else self.count

    # -- sealed --------------------------------------------------------------------------------------------------------

    def seal(self, codec: Compression, identity: ProducerIdentity, base_sequence: int, *, transactional: bool) -> None:
        """The columns become bytes."""
        if self.rows_withdrawn:
            self._drop_withdrawn()
        self.count = len(self.values)
        self.fate = UNDER_WAY
        self.attributes = codec | TRANSACTIONAL if transactional else codec
        self.identity, self.base_sequence = identity, base_sequence
        if self.count == 1 and self.headers is None and not codec:
            return
        self.timestamps = array("q", self.timestamps)
        self.data = _packed(self.timestamps, self.values, self.keys, self.headers, self.size)
        if codec:
            self.data[HEADER_BYTES:] = compress(codec, memoryview(self.data)[HEADER_BYTES:])
        self.values, self.keys, self.headers = [], None, None
        self._write_header()

    def _drop_withdrawn(self) -> None:
        for row in reversed(self.rows_withdrawn):
            for column in (self.values, self.timestamps, self.keys, self.headers):
                if column is not None:
                    del column[row]

    def encoded(self) -> bytearray:
        """Sealed and not released: its bytes."""
        if self.data is not None:
            return self.data
        out_bytes = HEADER_BYTES + record_size(None if self.keys is None else self.keys[0], self.values[0], ())
        out = ffi.new("uint8_t[]", out_bytes)
        used = self.write_alone(out, out_bytes, ffi.NULL, 0)
        assert used > 0, (used, out_bytes)
        return bytearray(ffi.buffer(out, used))

    def write_alone(self, out: Any, out_bytes: int, around: Any, correlation_id: int) -> int:
        """That of a lone record, with what lies ``around`` it in a request. The bytes written; < 0: too few."""
        value, key = self.values[0], None if self.keys is None else self.keys[0]
        identity = self.identity
        return lib.tpc_packed_one(
            out, out_bytes, around, correlation_id, self.timestamps[0],
            b"" if key is None else key, -1 if key is None else len(key),
            b"" if value is None else value, -1 if value is None else len(value),
            self.attributes, identity.producer_id, identity.producer_epoch, self.base_sequence,
        )  # fmt: skip

    def renumber(self, identity: ProducerIdentity, base_sequence: int) -> None:
        """Other sequence numbers, while nothing of it is on its way to a broker."""
        assert not self.is_flying, "renumbered on its way"
        assert self.fate is not WAITING, "renumbered before it was sealed"
        self.identity, self.base_sequence = identity, base_sequence
        if self.data is not None:
            self._write_header()

    def _write_header(self) -> None:
        assert self.data is not None
        times, identity = self.timestamps, self.identity
        lib.tpc_packed_header(
            ffi.from_buffer(self.data), len(self.data), self.attributes, self.count, times[0], max(times),
            identity.producer_id, identity.producer_epoch, self.base_sequence,
        )  # fmt: skip

    def release(self) -> int:
        """Nothing more is sent of it; what it counted."""
        size, self.size = self.size, 0
        self.data = self.keys = None
        self.values.clear()
        return size

    def split(self) -> list[Batch]:
        """Two batches with the same records and sequence numbers, in place of this one. Sealed, and of two records at
        least.
        """
        assert self.data is not None, "split before it was sealed"
        (found,) = read_batches(self.data)
        records = list(found.records())
        codec, transactional = Compression(self.attributes & 7), bool(self.attributes & TRANSACTIONAL)
        middle = len(records) // 2
        parts = []
        for first, rows in ((0, records[:middle]), (middle, records[middle:])):
            part = Batch(self.where, self.deadline)
            part.parent = self
            for record in rows:
                headers = tuple((name.encode(), value) for name, value in record.headers)
                size = record_size(record.key, record.value, headers)
                part.add(record.key, record.value, headers, record.timestamp_ms, size)
            sequence = self.base_sequence if self.base_sequence < 0 else (self.base_sequence + first) & 0x7FFF_FFFF
            part.seal(codec, self.identity, sequence, transactional=transactional)
            parts.append(part)
        self.parts = parts
        self.data = None
        return parts

    # -- decided -------------------------------------------------------------------------------------------------------

    def decide(self, fate: Fate, failure: Failure | None = None) -> None:
        assert self.parts is None, "decided instead of its parts"
        self.fate, self.failure = fate, failure
        batch: Batch | None = self
        while batch is not None and (batch.parts is None or all(part.is_decided for part in batch.parts)):
            batch.is_decided = True
            if batch.decided is not None:
                batch.decided.set()
            batch = batch.parent

    def deliver(self, base_offset: int, log_append_time: int) -> None:
        self.base_offset, self.log_append_time = base_offset, log_append_time
        self.decide(DELIVERED)

    def _place(self, row: int) -> tuple[Batch, int]:
        """The batch that a record went in, and its number there."""
        number = row - bisect_left(self.rows_withdrawn, row) if self.rows_withdrawn else row
        batch = self
        while batch.parts is not None:
            first, second = batch.parts
            batch, number = (first, number) if number < first.count else (second, number - first.count)
        return batch, number

    def unseen_failures(self) -> dict[Fate, int]:
        """Of a decided batch: records that failed and that nobody was told of."""
        leaves = self.leaves()
        counts: dict[Fate, int] = {}
        for leaf in leaves:
            if leaf.fate is not DELIVERED:
                counts[leaf.fate] = counts.get(leaf.fate, 0) + leaf.count
        for row in self.rows_seen:
            fate = self.fate_of(row)
            if fate in counts:
                counts[fate] -= 1
        return {fate: count for fate, count in counts.items() if count}

    def leaves(self) -> list[Batch]:
        """Itself, or what it was split into."""
        return [self] if self.parts is None else [leaf for part in self.parts for leaf in part.leaves()]

    def fate_of(self, row: int) -> Fate:
        return Fate.WITHDRAWN if self.is_withdrawn(row) else self._place(row)[0].fate

    def reason_of(self, row: int) -> str:
        """Why a record was not delivered."""
        failure = self._place(row)[0].failure
        return "" if failure is None else failure.text

    def result_of(self, row: int) -> Delivered:
        """Of a decided record. `DeliveryError`."""
        batch, number = (self, row) if self.parts is None and not self.rows_withdrawn else self._place(row)
        if batch.fate is not DELIVERED:
            assert batch.failure is not None, batch.fate
            raise batch.failure.error(batch.where, batch.fate)
        topic, partition = batch.where
        timestamp = batch.log_append_time if batch.log_append_time >= 0 else batch.timestamps[number]
        offset = batch.base_offset
        return _delivered((topic, partition, offset + number if offset >= 0 else -1, timestamp))


def record_size(key: bytes | None, value: bytes | None, headers: HeaderPairs) -> int:
    size = RECORD_BYTES
    if key is not None:
        size += len(key)
    if value is not None:
        size += len(value)
    for name, held in headers:
        size += HEADER_FIELD_BYTES + len(name) + (0 if held is None else len(held))
    return size


def header_pairs(headers: HeadersLike) -> HeaderPairs:
    """`TypeError` for what is no header."""
    pairs = []
    for name, value in headers.items() if isinstance(headers, Mapping) else headers:
        if not isinstance(name, str):
            raise TypeError(f"the name of a header is str, not {type(name).__name__}")
        pairs.append((name.encode(), as_cell(f"header {name!r}", value)))
    return tuple(pairs)


def as_cell(what: str, value: Any) -> bytes | None:
    """`TypeError` for what is neither bytes nor None."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"the {what} of a record is bytes or None, not {type(value).__name__}")


def as_timestamp(timestamp: Any) -> int:
    """`TypeError`, `ValueError` for what is no time stamp: in a batch it would be every other record's trouble."""
    if not isinstance(timestamp, int):
        raise TypeError(f"the time stamp of a record is an int, ms since 1970, not {type(timestamp).__name__}")
    if not 0 <= timestamp < 2**63:
        raise ValueError(f"the time stamp of a record is in ms since 1970, not {timestamp}")
    return timestamp


def _lengths(column: list[bytes | None] | None) -> Any:
    if column is None:
        return _NO_LENGTHS
    try:
        return array("i", map(len, cast("list[bytes]", column)))  # a null is rare, and found by this
    except TypeError:
        return array("i", [-1 if cell is None else len(cell) for cell in column])


def _joined(column: list[bytes | None] | None) -> bytes:
    if column is None:
        return b""
    try:
        return b"".join(cast("list[bytes]", column))
    except TypeError:
        return b"".join(filter(None, column))


def _packed(
    timestamps: Any,
    values: list[bytes | None],
    keys: list[bytes | None] | None,
    headers: list[HeaderPairs] | None,
    size: int,
) -> bytearray:
    """Room for the header, and the records."""
    cells = None if headers is None else list(chain.from_iterable(chain.from_iterable(headers)))
    counts = _NO_LENGTHS if headers is None else array("i", map(len, headers))
    out = bytearray(HEADER_BYTES + size)
    records = memoryview(out)[HEADER_BYTES:]
    used = lib.tpc_packed_records(
        len(values), ffi.from_buffer("int64_t[]", timestamps), _joined(values),
        ffi.from_buffer("int32_t[]", _lengths(values)), keys is not None, _joined(keys),
        ffi.from_buffer("int32_t[]", _lengths(keys)), headers is not None,
        ffi.from_buffer("int32_t[]", counts), _joined(cells), ffi.from_buffer("int32_t[]", _lengths(cells)),
        ffi.from_buffer(records), size,
    )  # fmt: skip
    assert used > 0, (used, size, len(values))
    records.release()
    del out[HEADER_BYTES + used :]
    return out

