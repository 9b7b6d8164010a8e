"""Record batches made byte by byte, right or wrong on purpose, and read back: independent of the broker's own code, but
for the checksums of long ones.

Source of the format: Kafka's documentation, "Record Batch" (magic 2) and "Old Message Format" (magic 0 and 1).
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import cramjam

from tests.support.definitions import _Reader, zigzag_varint
from tpc_broker.native_bytes import crc32c as native_crc32c

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
LOG_APPEND_TIME = 8
TRANSACTIONAL = 16
CONTROL = 32
DELETE_HORIZON = 64

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
CRC_START = 21

_CRC_TABLE: list[int] = []
for _value in range(256):
    for _ in range(8):
        _value = _value >> 1 ^ (0x82F63B78 if _value & 1 else 0)
    _CRC_TABLE.append(_value)


_CHECKED_HERE_BYTES_MAX = 8192


def crc32c(data: bytes) -> int:
    """Castagnoli, one table: the second opinion to the hardware one, which long data are left to: 0.1 s a megabyte."""
    if len(data) > _CHECKED_HERE_BYTES_MAX:
        return native_crc32c(data)
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _CRC_TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


@dataclass(frozen=True)
class Record:
    value: bytes | None = b""
    key: bytes | None = None
    timestamp_delta: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


def _sized(data: bytes | None) -> bytes:
    return zigzag_varint(-1) if data is None else zigzag_varint(len(data)) + data


def encode_record(record: Record, offset_delta: int) -> bytes:
    headers = b"".join(_sized(name.encode()) + _sized(value) for name, value in record.headers)
    body = (
        b"\0"
        + zigzag_varint(record.timestamp_delta)
        + zigzag_varint(offset_delta)
        + _sized(record.key)
        + _sized(record.value)
        + zigzag_varint(len(record.headers))
        + headers
    )
    return zigzag_varint(len(body)) + body


def compress(payload: bytes, codec: int) -> bytes:
    """`payload` in one of Kafka's four formats: snappy without framing, LZ4 with independent blocks, as Kafka asks."""
    if codec == GZIP:
        packer = zlib.compressobj(wbits=31)
        return packer.compress(payload) + packer.flush()
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(payload))
    if codec == LZ4:
        packer = cramjam.lz4.Compressor(block_linked=False)
        packer.compress(payload)
        return bytes(packer.finish())
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(payload))
    return payload


def batch(
    records: list[Record],
    *,
    base_timestamp_ms: int = 1_700_000_000_000,
    base_offset: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = -1,
    magic: int = 2,
    crc: int | None = None,
    batch_length: int | None = None,
    records_count: int | None = None,
    last_offset_delta: int | None = None,
    max_timestamp_ms: int | None = None,
    payload: bytes | None = None,
) -> bytes:
    """One batch of magic 2; every keyword from `magic` on replaces the right value by a wrong one.

    `producer` is producer id, epoch, base sequence.
    """
    if payload is None:
        payload = b"".join(encode_record(record, index) for index, record in enumerate(records))
    payload = compress(payload, codec)
    count = len(records) if records_count is None else records_count
    latest = base_timestamp_ms + max((record.timestamp_delta for record in records), default=0)
    tail = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        len(records) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp_ms,
        latest if max_timestamp_ms is None else max_timestamp_ms,
        *producer,
        count,
    )
    checked = tail + payload
    length = len(checked) + 9 if batch_length is None else batch_length
    sum_ = crc32c(checked) if crc is None else crc
    return struct.pack(">qiibI", base_offset, length, leader_epoch, magic, sum_) + checked


def old_message(value: bytes, magic: int, timestamp_ms: int = 1_700_000_000_000) -> bytes:
    """One message of the format before record batches (magic 0 or 1), as a message set."""
    stamp = struct.pack(">q", timestamp_ms) if magic == 1 else b""
    body = struct.pack(">bb", magic, 0) + stamp + struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def read_batches(data: bytes) -> list[dict[str, Any]]:
    """The header of every whole batch, the records of those that are not compressed; an incomplete tail is left."""
    batches = []
    position = 0
    while position + HEADER_BYTES <= len(data):
        (base_offset, length, epoch, magic, crc, attributes, last_delta, base_ms, max_ms, producer_id, producer_epoch,
         sequence, count) = _HEADER.unpack_from(data, position)  # fmt: skip
        end = position + 12 + length
        if end > len(data):
            break
        payload = data[position + HEADER_BYTES : end]
        batches.append(
            {
                "base_offset": base_offset,
                "leader_epoch": epoch,
                "magic": magic,
                "crc_right": crc32c(data[position + CRC_START : end]) == crc,
                "attributes": attributes,
                "last_offset_delta": last_delta,
                "base_timestamp": base_ms,
                "max_timestamp": max_ms,
                "producer": (producer_id, producer_epoch, sequence),
                "records_count": count,
                "records": payload if attributes & 7 else _read_records(payload, count),
            }
        )
        position = end
    return batches


def _zigzag(reader: _Reader) -> int:
    value = shift = 0
    while True:
        byte = reader.take(1)[0]
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return value >> 1 ^ -(value & 1)


def _read_sized(reader: _Reader) -> bytes | None:
    length = _zigzag(reader)
    return None if length < 0 else reader.take(length)


def _read_records(payload: bytes, count: int) -> list[tuple[int, int, bytes | None, bytes | None, list[Any]]]:
    """Per record: offset delta, time stamp delta, key, value, headers."""
    reader = _Reader(payload)
    records = []
    for _ in range(count):
        _zigzag(reader)
        reader.take(1)
        stamp, offset = _zigzag(reader), _zigzag(reader)
        key, value = _read_sized(reader), _read_sized(reader)
        headers = [(_read_sized(reader), _read_sized(reader)) for _ in range(_zigzag(reader))]
        records.append((offset, stamp, key, value, headers))
    return records
