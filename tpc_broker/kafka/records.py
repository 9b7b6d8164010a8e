"""Record batches of format 2: build them and read them, in plain Python.

For coordinators, the admin tools and tests; the produce and fetch path has C of its own. `build_batch` makes one
batch, `control_batch` a transaction marker, `read_batches` walks a buffer of batches as a fetch response has them (the
last one may be cut off), and `Batch.records` gives the records of one.

Layout: 61 bytes of header, then the records, compressed together if at all. The CRC-32C covers everything after itself,
so the first 21 bytes (base offset, length, leader epoch, magic, CRC) can be changed without it. Source: Kafka's
documentation, "Record Batch".
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception class
from typing import Any, NamedTuple

from tpc_broker.native_bytes import crc32c

from .compression import DECOMPRESSED_BYTES_MAX, Compression, compress, decompress
from .errors import DecodeError, EncodeError

HEADER = Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
LENGTH_END = 12
"""Bytes of base offset and length, which the length does not count."""
CRC_START = 21
"""First byte that the CRC covers: the attributes."""
MAGIC = 2
RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, key length, value length, header count: one byte each."""
COMPRESSION_MASK, LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x07, 0x08, 0x10, 0x20
CONTROL_KEY = Struct(">hh")
END_TRANSACTION_VALUE = Struct(">hi")


class Record(NamedTuple):
    """One record. To build, ``offset`` may be left out: records then follow each other.

    ``leader_epoch`` is that of the batch it was read from, and not used to build.
    """

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = -1
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = -1
    leader_epoch: int = -1


class ControlType(IntEnum):
    """The second number in the key of a control record."""

    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


def zigzag(value: int) -> bytes:
    """A signed varint, at most 64 bits."""
    bits = value << 1 ^ value >> 63
    if bits < 0x80:
        return bytes((bits,))
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    return bytes(out)


def read_zigzag(data: Any, position: int) -> tuple[int, int]:
    """A signed varint of at most 64 bits and the position after it; IndexError at the end of the data."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), position
    bits, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise DecodeError("a varint is longer than ten bytes", "RecordBatch", 2, "records", position)
        byte = data[position]
        position += 1
        bits |= (byte & 0x7F) << shift
        shift += 7
    if bits >> 64:
        raise DecodeError("a varint does not fit in 64 bits", "RecordBatch", 2, "records", position)
    return bits >> 1 ^ -(bits & 1), position


def _sized(data: bytes | None) -> bytes:
    return b"\x01" if data is None else zigzag(len(data)) + data


def _record_bytes(record: Record, timestamp_delta: int, offset_delta: int) -> bytes:
    parts = [b"\0", zigzag(timestamp_delta), zigzag(offset_delta), _sized(record.key), _sized(record.value)]
    parts.append(zigzag(len(record.headers)))
    for name, value in record.headers:
        parts += [_sized(name.encode()), _sized(value)]
    body = b"".join(parts)
    return zigzag(len(body)) + body


def in_parts(
    records: Iterable[Record], *, bytes_max: int, overhead_bytes: int, records_max: int
) -> Iterator[list[Record]]:
    """For batches of so many bytes and records at most; a record that is larger by itself is a part of its own."""
    part: list[Record] = []
    part_bytes = 0
    for record in records:
        size = len(record.key or b"") + len(record.value or b"") + overhead_bytes
        if part and (part_bytes + size > bytes_max or len(part) == records_max):
            yield part
            part, part_bytes = [], 0
        part.append(record)
        part_bytes += size
    if part:
        yield part


def build_batch(  # noqa: PLR0913 - the fields of the format
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    partition_leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    """One batch. Records without an offset follow their predecessor, the first one at ``base_offset``.

    With ``log_append_time_ms`` the batch has that time for all its records.
    """
    if not records:
        raise EncodeError("a batch without records", "RecordBatch", 2)
    base_timestamp = records[0].timestamp_ms
    bodies = []
    delta = -1
    for record in records:
        following = record.offset - base_offset if record.offset >= 0 else delta + 1
        if following <= delta:
            raise EncodeError(f"offset {record.offset} does not come after its predecessor", "RecordBatch", 2)
        delta = following
        bodies.append(_record_bytes(record, record.timestamp_ms - base_timestamp, delta))
    attributes = compression | (TRANSACTIONAL if is_transactional else 0) | (CONTROL if is_control else 0)
    max_timestamp = max(record.timestamp_ms for record in records)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME
        max_timestamp = log_append_time_ms
    payload = compress(compression, b"".join(bodies))
    header = bytearray(HEADER_BYTES)
    HEADER.pack_into(
        header, 0, base_offset, HEADER_BYTES - LENGTH_END + len(payload), partition_leader_epoch, MAGIC, 0, attributes,
        delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    batch = header + payload
    with memoryview(batch) as view:
        crc = crc32c(view[CRC_START:])
    batch[17:CRC_START] = crc.to_bytes(4, "big")
    return bytes(batch)


def control_batch(  # noqa: PLR0913 - the fields of the format
    control: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    partition_leader_epoch: int = -1,
) -> bytes:
    """A transaction marker, COMMIT or ABORT: a control batch of one record."""
    key = CONTROL_KEY.pack(0, control)
    value = END_TRANSACTION_VALUE.pack(0, coordinator_epoch)
    return build_batch(
        [Record(value, key, timestamp_ms)],
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        partition_leader_epoch=partition_leader_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_control(record: Record) -> tuple[ControlType, int]:
    """Type and coordinator epoch of a transaction marker's record; the epoch is -1 for other control records."""
    try:
        _, number = CONTROL_KEY.unpack_from(record.key or b"")
        control = ControlType(number)
        is_marker = control in (ControlType.ABORT, ControlType.COMMIT)
        epoch = END_TRANSACTION_VALUE.unpack_from(record.value or b"")[1] if is_marker else -1
    except (ValueError, StructError) as error:
        raise DecodeError(f"not a control record: {error}", "RecordBatch", 2) from None
    return control, epoch


@dataclass(frozen=True, slots=True)
class Batch:
    """The header of a batch and the bytes it came from (``data``: the whole batch, not copied)."""

    base_offset: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    data: memoryview

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> int:
        """A `Compression`, or 5 to 7, which do not exist."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    def check_crc(self) -> None:
        """`DecodeError` unless the CRC is right."""
        found = crc32c(self.data[CRC_START:])
        if found != self.crc:
            raise DecodeError(f"the CRC is {found:#010x}, the batch says {self.crc:#010x}", "RecordBatch", 2)

    def plain(self, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> bytes | memoryview:
        """The records as bytes, unpacked. `DecodeError`: they cannot be, or would be more."""
        return decompress(self.compression, self.data[HEADER_BYTES:], decompressed_bytes_max)

    def records(self, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """The records, one at a time; a `DecodeError` may come after some of them. Offsets are absolute."""
        plain = self.plain(decompressed_bytes_max)
        position = 0
        if not 0 <= self.records_count <= len(plain) // RECORD_BYTES_MIN:
            raise DecodeError(f"{self.records_count} records in {len(plain)} bytes", "RecordBatch", 2, "records_count")
        for index in range(self.records_count):
            try:
                record, position = self._read_record(plain, position)
            except (IndexError, UnicodeDecodeError) as error:
                reason = "the record ends early" if isinstance(error, IndexError) else "a header's name is not UTF-8"
                raise DecodeError(reason, "RecordBatch", 2, f"records[{index}]", position) from None
            yield record
        if position != len(plain):
            raise DecodeError(f"{len(plain) - position} bytes after the last record", "RecordBatch", 2, "", position)

    def _read_record(self, plain: bytes | memoryview, position: int) -> tuple[Record, int]:
        size, position = read_zigzag(plain, position)
        end = position + size
        if not 0 <= size <= len(plain) - position:
            raise DecodeError(f"a record of {size} bytes", "RecordBatch", 2, "records", position)
        timestamp_delta, position = read_zigzag(plain, position + 1)
        offset_delta, position = read_zigzag(plain, position)
        key, position = _read_sized(plain, position, end)
        value, position = _read_sized(plain, position, end)
        count, position = read_zigzag(plain, position)
        if not 0 <= count * 2 <= end - position:
            raise DecodeError(f"{count} headers in {end - position} bytes", "RecordBatch", 2, "records", position)
        headers = []
        for _ in range(count):
            name, position = _read_sized(plain, position, end)
            if name is None:
                raise DecodeError("a header without a name", "RecordBatch", 2, "records", position)
            content, position = _read_sized(plain, position, end)
            headers.append((name.decode(), content))
        if position != end:
            raise DecodeError("a record's size is not that of its content", "RecordBatch", 2, "records", position)
        timestamp = self.max_timestamp if self.is_log_append_time else self.base_timestamp + timestamp_delta
        offset = self.base_offset + offset_delta
        return Record(value, key, timestamp, tuple(headers), offset, self.partition_leader_epoch), position


def _read_sized(plain: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_zigzag(plain, position)
    if size == -1:
        return None, position
    if not 0 <= size <= end - position:
        raise DecodeError(f"{size} bytes where {end - position} are left", "RecordBatch", 2, "records", position)
    return bytes(plain[position : position + size]), position + size


def read_batch(data: bytes | bytearray | memoryview, position: int = 0) -> Batch:
    """The batch at ``position``, which must be whole. The CRC is not checked here."""
    view = memoryview(data).cast("B")
    if len(view) - position < HEADER_BYTES:
        raise DecodeError("a batch header is cut off", "RecordBatch", 2, "", position)
    base_offset, length, leader_epoch, magic, crc, attributes, *rest = HEADER.unpack_from(view, position)
    last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, records_count = rest
    if magic != MAGIC:
        raise DecodeError(f"magic {magic} instead of {MAGIC}", "RecordBatch", 2, "magic", position)
    end = position + LENGTH_END + length
    if length < HEADER_BYTES - LENGTH_END or end > len(view):
        raise DecodeError(f"a batch of {length} bytes", "RecordBatch", 2, "length", position)
    return Batch(
        base_offset=base_offset,
        partition_leader_epoch=leader_epoch,
        crc=crc,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=records_count,
        data=view[position:end],
    )


def read_batches(data: bytes | bytearray | memoryview) -> Iterator[Batch]:
    """The whole batches in a buffer, in order. One that is cut off at the end is left out, as a fetch may have it."""
    view = memoryview(data).cast("B")
    position = 0
    while len(view) - position > LENGTH_END + 4:
        length = int.from_bytes(view[position + 8 : position + LENGTH_END], "big", signed=True)
        if length >= HEADER_BYTES - LENGTH_END and position + LENGTH_END + length > len(view):
            return
        batch = read_batch(view, position)
        yield batch
        position += len(batch.data)


def read_records(data: bytes | bytearray | memoryview, *, with_control: bool = False) -> Iterator[Record]:
    """The records of all whole batches in a buffer, CRCs checked; control records only when asked for.

    `DecodeError` where something is damaged.
    """
    for batch in read_batches(data):
        batch.check_crc()
        if with_control or not batch.is_control:
            yield from batch.records()
