"""Headers of record batches (magic 2), and walking over batches without touching their records.

A batch is 61 bytes of header followed by its records; `batch_length` counts everything behind itself, so the whole
batch has `batch_length + 12` bytes. Source: the Kafka protocol guide, "Record Batch".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    Buffer = bytes | bytearray | memoryview

BATCH_HEADER_BYTES: Final = 61
LENGTH_PREFIX_BYTES: Final = 12
"""Base offset and length: what `batch_length` does not count."""

MAGIC: Final = 2
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
SEQUENCE_MAX: Final = 2**31 - 1

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_CRC_END: Final = 21
_OFFSET_AND_LENGTH: Final = struct.Struct(">qi")
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_CONTROL_KEY: Final = struct.Struct(">hh")
_CONTROL_VALUE: Final = struct.Struct(">hi")
CONTROL_ABORT: Final = 0
CONTROL_COMMIT: Final = 1


class BatchDamageError(ValueError):
    """Bytes that should be a record batch and are not."""


class BatchHeader(NamedTuple):
    """The header's fields in the order of the bytes.

    Of a batch that is stored: `kafka.records.Batch`, which reads the records too, is of one that is sent.
    The rooms do not know each other, and their errors have different culprits: the disk here, the peer there.
    """

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap from 2^31-1 to 0."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)


def empty_batch(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """A batch without records that takes the offsets [base_offset, end_offset), as compaction leaves them: readers go
    on behind it.
    """
    fields = (0, end_offset - base_offset - 1, NO_TIMESTAMP, NO_TIMESTAMP, NO_PRODUCER_ID, -1, NO_SEQUENCE, 0)
    length = BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES
    crc = crc32c(_HEADER.pack(base_offset, length, leader_epoch, MAGIC, 0, *fields)[_CRC_END:])
    return _HEADER.pack(base_offset, length, leader_epoch, MAGIC, crc, *fields)


class ControlMarker(NamedTuple):
    """End of a transaction: `kind` is CONTROL_ABORT or CONTROL_COMMIT."""

    kind: int
    coordinator_epoch: int


def decode_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at a place. The caller has made sure that 61 bytes are there; relations are checked here."""
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.magic != MAGIC or header.batch_length < BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise BatchDamageError(f"no record batch: magic {header.magic}, length {header.batch_length}")
    if header.last_offset_delta < 0 or header.base_offset < 0:
        raise BatchDamageError(f"no record batch: offset {header.base_offset}, delta {header.last_offset_delta}")
    return header


def walk_headers(data: Buffer, position: int = 0) -> Iterator[tuple[BatchHeader, int]]:
    """Headers of whole batches and the place of each. Ends before a batch that is not all there; raises on damage."""
    end = len(data)
    while position + BATCH_HEADER_BYTES <= end:
        header = decode_header(data, position)
        if position + header.size_bytes > end:
            return
        yield header, position
        position += header.size_bytes


def batch_size_at(data: Buffer, position: int) -> int | None:
    """Size of the batch at a place, None when not even its length is there. Checks only that it can be a size."""
    if position + LENGTH_PREFIX_BYTES > len(data):
        return None
    _offset, length = _OFFSET_AND_LENGTH.unpack_from(data, position)
    if length < BATCH_HEADER_BYTES - LENGTH_PREFIX_BYTES:
        raise BatchDamageError(f"no record batch: length {length}")
    return int(length) + LENGTH_PREFIX_BYTES


def _varint(data: Buffer, position: int) -> tuple[int, int]:
    shift = value = 0
    while True:
        if position >= len(data) or shift > 63:
            raise BatchDamageError("a control record ends early")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7


def decode_control_marker(data: Buffer, position: int = 0) -> ControlMarker:
    """The marker in the first record of a control batch that starts at a place. Control batches are never compressed.

    A kind other than abort and commit (Raft's own control records, for example) is handed back as it stands.
    """
    place = position + BATCH_HEADER_BYTES
    _length, place = _varint(data, place)
    place += 1  # record attributes
    for _field in ("timestamp delta", "offset delta"):
        _value, place = _varint(data, place)
    key_length, place = _varint(data, place)
    if key_length < _CONTROL_KEY.size or place + key_length > len(data):
        raise BatchDamageError(f"a control record's key has {key_length} bytes")
    _version, kind = _CONTROL_KEY.unpack_from(data, place)
    place += key_length
    value_length, place = _varint(data, place)
    if value_length < _CONTROL_VALUE.size or place + value_length > len(data):
        return ControlMarker(kind, -1)
    _version, coordinator_epoch = _CONTROL_VALUE.unpack_from(data, place)
    return ControlMarker(kind, coordinator_epoch)


def is_abort(header: BatchHeader, data: Buffer) -> bool:
    """Whether a batch is the marker of an aborted transaction; one that compaction has emptied is none."""
    return bool(header.is_control and header.records_count) and decode_control_marker(data).kind == CONTROL_ABORT
