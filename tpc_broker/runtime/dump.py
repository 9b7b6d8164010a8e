"""``tpc-broker dump``: what a segment file holds, batch by batch and record by record, without a broker.

The file is only read, one batch at a time, so it may be one that a broker writes to: what is beyond its last whole
batch (space that is reserved, or an append that is under way) is told as such.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.kafka import DecodeError
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import read_batch
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header
from tpc_broker.runtime.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpc_broker.kafka.records import Batch

BATCH_BYTES_MAX: Final = 1 << 30
"""No broker takes a batch that is larger: a length beyond it is damage, and no reason to take memory."""

_USER_RECORD: Final = b'{"type":"scram_credential_changed",'
"""What a user's record in the metadata begins with; its credential is nothing to be shown, or pasted somewhere."""
Row = dict[str, Any]


def dump(path: Path, *, records: bool) -> Iterator[Row]:
    """A row for each batch, with `records` one for each of its records behind it; the last row is what the file has
    behind its last batch. A row of damage has `problem`. StartError: the file cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    try:
        yield from _rows(descriptor, os.fstat(descriptor).st_size, records=records)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _rows(descriptor: int, size: int, *, records: bool) -> Iterator[Row]:
    position = 0
    while position + BATCH_HEADER_BYTES <= size:
        head = os.pread(descriptor, BATCH_HEADER_BYTES, position)
        if not any(head):
            break
        try:
            length = decode_header(head).size_bytes
        except BatchDamageError as error:
            yield {"position": position, "problem": str(error)}
            return
        if length > BATCH_BYTES_MAX or position + length > size:
            yield {"position": position, "problem": f"a batch of {length} bytes, and {size - position} are there"}
            return
        batch = read_batch(os.pread(descriptor, length, position))
        problem = _problem_of(batch)
        yield _of_batch(batch, position, length) | ({"problem": problem} if problem else {})
        if records and not problem:
            yield from _of_records(batch)
        position += length
    if position < size:
        yield {"position": position, "unused_bytes": size - position}


def _problem_of(batch: Batch) -> str | None:
    try:
        batch.check_crc()
    except DecodeError as error:
        return error.reason
    return None


def _of_batch(batch: Batch, position: int, length: int) -> Row:
    compression = batch.compression
    return {
        "position": position,
        "bytes": length,
        "first_offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.records_count,
        "leader_epoch": batch.partition_leader_epoch,
        "max_timestamp_ms": batch.max_timestamp,
        "compression": Compression(compression).name.lower() if compression in list(Compression) else compression,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "first_sequence": batch.base_sequence,
        "is_transactional": batch.is_transactional,
        "is_control": batch.is_control,
    }


def _of_records(batch: Batch) -> Iterator[Row]:
    try:
        for record in batch.records():
            yield {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": _text(record.key),
                "value": _text(without_credential(record.value)),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
    except DecodeError as error:
        yield {"first_offset": batch.base_offset, "problem": error.reason}


def without_credential(value: bytes | None) -> bytes | None:
    """A record's value as it is, but of a user in the metadata only who it is."""
    if value is None or not value.startswith(_USER_RECORD):
        return value
    try:
        record = json.loads(value)
    except ValueError:
        return _USER_RECORD + b"..."
    shown = {name: record[name] for name in ("type", "v", "user", "mechanism", "iterations") if name in record}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode()


def _text(data: bytes | None) -> str | None:
    """Bytes that are no UTF-8 as Python writes them."""
    return None if data is None else data.decode(errors="backslashreplace")


def line_of(row: Row) -> str:
    """A row as a line for people."""
    if "unused_bytes" in row:
        return f"at {row['position']}: {row['unused_bytes']} bytes without a batch"
    if "records" not in row and "problem" in row:
        where = f"at {row['position']}" if "position" in row else f"batch from offset {row['first_offset']}"
        return f"{where}: DAMAGED: {row['problem']}"
    if "offset" in row:
        headers = f" headers {json.dumps(row['headers'])}" if row["headers"] else ""
        return f"  {row['offset']} time {row['timestamp_ms']} key {row['key']!r} value {row['value']!r}{headers}"
    kinds = [name for name in ("transactional", "control") if row[f"is_{name}"]]
    producer = (
        f", producer {row['producer_id']} epoch {row['producer_epoch']} sequence {row['first_sequence']}"
        if row["producer_id"] >= 0
        else ""
    )
    damage = f", DAMAGED: {row['problem']}" if "problem" in row else ""
    return (
        f"at {row['position']}: offsets {row['first_offset']} to {row['last_offset']}, {row['records']} records, "
        f"{row['bytes']} bytes, {row['compression']}, epoch {row['leader_epoch']}, time {row['max_timestamp_ms']}"
        f"{producer}{''.join(f', {kind}' for kind in kinds)}{damage}"
    )
