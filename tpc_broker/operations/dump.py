"""``tpc-broker dump``: what a segment file holds, batch by batch and record by record, without a broker.

The file is only read, one batch at a time, so it may be one that a broker writes to: what is beyond its last whole
batch (space that is reserved, or an append that is under way) is told as such. Of a segment that was cleaned it is told
first what its seal says, and whether the file is what the seal names: gaps in it are right. A seal may be shown alone.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.engine.sealed_files import read_seal, unlike_its_seal
from tpc_broker.kafka import DecodeError
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import read_batch
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header
from tpc_broker.log.files import (
    CLEANED_SUFFIXES,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    cleaned_file_name,
    parse_segment_file_name,
    segment_file_name,
)
from tpc_broker.log.seals import SealError
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tpc_broker.kafka.records import Batch
    from tpc_broker.log.seals import Seal

READ_BYTES: Final = 1024 * 1024
DELETE_HORIZON: Final = 64
"""The attribute of a batch that a cleaner has set: its first timestamp is when its tombstones may go."""
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
        parsed = parse_segment_file_name(path.name)
        if parsed is not None and parsed[1] in (LOG_SUFFIX, SEAL_SUFFIX):
            yield from _of_seal(path, parsed[0])
        if parsed is None or parsed[1] != SEAL_SUFFIX:
            yield from _rows(descriptor, os.fstat(descriptor).st_size, records=records)
    except OSError as error:
        raise StartError(f"{path}: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _of_seal(path: Path, base_offset: int) -> Iterator[Row]:
    """What the seal beside a log says; nothing where there is none. OSError."""
    try:
        seal = read_seal(path.parent, base_offset)
    except SealError as error:
        yield {"seal": segment_file_name(base_offset, SEAL_SUFFIX), "problem": str(error)}
        return
    if seal is None:
        return
    try:
        unlike = unlike_its_seal(path.parent, seal, _pieces)
    except FileNotFoundError:
        unlike = []  # a broker removes it
    row: Row = {
        "seal": segment_file_name(base_offset, SEAL_SUFFIX), "first_offset": seal.base_offset,
        "end_offset": seal.end_offset, "batches": seal.batches_count, "replaced": list(seal.replaced),
        "first_dirty_offset": seal.first_dirty_offset, "removed_upto": seal.removed_upto,
        "generation": seal.generation,
    }  # fmt: skip
    cut_short = [name for name in _made_names(seal) if (path.parent / name).exists()]
    if cut_short:
        row["not_in_place"] = cut_short
    if unlike:
        row["problem"] = "; ".join(f"{one.name}: {one.reason}" for one in unlike)
    yield row


def _made_names(seal: Seal) -> list[str]:
    names = (segment_file_name(seal.base_offset, suffix) for suffix in CLEANED_SUFFIXES)
    return [cleaned_file_name(name, seal.generation) for name in names]


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            yield data


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
    } | ({"delete_horizon_ms": batch.base_timestamp} if batch.attributes & DELETE_HORIZON else {})


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
    if "seal" in row:
        return _line_of_seal(row)
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
    horizon = f", delete horizon {row['delete_horizon_ms']}" if "delete_horizon_ms" in row else ""
    damage = f", DAMAGED: {row['problem']}" if "problem" in row else ""
    return (
        f"at {row['position']}: offsets {row['first_offset']} to {row['last_offset']}, {row['records']} records, "
        f"{row['bytes']} bytes, {row['compression']}, epoch {row['leader_epoch']}, time {row['max_timestamp_ms']}"
        f"{producer}{''.join(f', {kind}' for kind in kinds)}{horizon}{damage}"
    )


def _line_of_seal(row: Row) -> str:
    if "end_offset" not in row:
        return f"{row['seal']}: DAMAGED: {row['problem']}"
    of_others = ", ".join(map(str, row["replaced"]))
    cut_short = f", not in their places yet: {', '.join(row['not_in_place'])}" if "not_in_place" in row else ""
    damage = f", DAMAGED: {row['problem']}" if "problem" in row else ""
    return (
        f"{row['seal']}: cleaned, offsets {row['first_offset']} to {row['end_offset'] - 1}, {row['batches']} batches, "
        f"in place of {of_others}{cut_short}{damage}"
    )
