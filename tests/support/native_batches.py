"""Record batches as the C helpers judge, scan, read and stamp them: a face that tests hold them through.

The broker calls these functions from C. ``ValueError``: malformed. Calls that take a ``bytearray`` change it in place;
what is returned is Python's own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tpc_broker.native_bytes import Buffer, ffi, lib

BATCH_HEADER_BYTES: Final = 61
INT64_MAX: Final = 2**63 - 1
SCAN_ENTRIES_PER_CALL: Final = 1024
RECORDS_PER_CALL: Final = 256


def crc32c_method() -> str:
    """How checksums are computed here: ``vpclmulqdq``, ``sse4.2``, ``armv8`` or ``portable``."""
    return _text(lib.tpc_crc32c_method())


class BatchHeader(NamedTuple):
    """The header of a record batch of magic 2. ``batch_bytes`` is the size of the whole batch."""

    base_offset: int
    batch_bytes: int
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
    def compression(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return int(self.attributes & lib.TPC_BATCH_COMPRESSION_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & lib.TPC_BATCH_IS_CONTROL)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & lib.TPC_BATCH_TRANSACTIONAL)

    @property
    def is_append_time(self) -> bool:
        return bool(self.attributes & lib.TPC_BATCH_LOG_APPEND_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What a topic allows, at one instant. Times in ms; the defaults are Kafka's."""

    now_ms: int
    timestamp_before_ms_max: int = INT64_MAX
    timestamp_after_ms_max: int = 3_600_000
    batch_bytes_max: int = 1_048_588
    segment_bytes_max: int = 0
    produce_version: int = lib.TPC_PRODUCE_VERSION_MAX
    log_append_time: bool = False
    compacted: bool = False


class BadRecord(NamedTuple):
    """A record that was refused by itself. Index 0 stands for the batch when it was judged without unpacking."""

    record_index: int
    error_code: int


class BatchReport(NamedTuple):
    """The judgement on a records field. ``error_code`` is Kafka's, 0 when the batch may be appended.

    ``header`` is None when none could be read. ``records_max_timestamp`` is what ``max_timestamp`` ought to say.
    ``bad_records`` lists the first of ``bad_records_count``. ``tells_log_start``: the answer names the log's start.
    """

    error_code: int
    reason: str
    header: BatchHeader | None
    walked: bool
    has_null_key: bool
    max_timestamp_wrong: bool
    tail_dropped: bool
    tells_log_start: bool
    records_max_timestamp: int
    bad_records_count: int
    bad_records: tuple[BadRecord, ...]


class BatchEntry(NamedTuple):
    """One batch of a scanned range. ``position`` counts from the beginning of the scanned bytes."""

    position: int
    batch_bytes: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    partition_leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int
    attributes: int


class BatchScan(NamedTuple):
    """Valid batches from the beginning on. ``end_position`` is where the last ends; ``reason`` says why not further
    (``ok`` at the end of the bytes).
    """

    batches: list[BatchEntry]
    end_position: int
    reason: str


class Record(NamedTuple):
    """One record of a batch; deltas count from the batch's base timestamp and base offset."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


def batch_header(data: Buffer) -> BatchHeader:
    """The header of the batch that ``data`` begins with. ``ValueError``: no whole batch of magic 2 begins there."""
    out = ffi.new("tpc_batch_header *")
    view = ffi.from_buffer(data)
    if lib.tpc_batch_header_read(view, len(view), out) < 0:
        raise ValueError("no whole record batch of magic 2 begins here")
    return _header(out)


def validate_batch(records: Buffer, limits: BatchLimits) -> BatchReport:
    """Judges the records field of one partition in a Produce request, in Kafka's order and with Kafka's codes."""
    report = ffi.new("tpc_batch_report *")
    view = ffi.from_buffer(records)
    lib.tpc_batch_validate(view, len(view), _limits(limits), report)
    return _report(report)


def validate_unpacked_records(batch: Buffer, unpacked: Buffer, limits: BatchLimits) -> BatchReport:
    """The same judgement of single records for a compressed ``batch`` whose records the caller has unpacked."""
    report = ffi.new("tpc_batch_report *")
    view = ffi.from_buffer(batch)
    if lib.tpc_batch_header_read(view, len(view), ffi.addressof(report, "header")) < 0:
        raise ValueError("no whole record batch of magic 2 begins here")
    records = ffi.from_buffer(unpacked)
    lib.tpc_records_validate(records, len(records), _limits(limits), report)
    return _report(report)


def scan_batches(
    data: Buffer, *, next_offset: int = -1, check_crc: bool = True, allow_gaps: bool = False, position: int = 0
) -> BatchScan:
    """Walks consecutive batches from ``position``. ``next_offset`` is the offset that the first one must have, -1 takes
    any; ``allow_gaps`` is for compacted logs.
    """
    state = ffi.new("tpc_scan_state *", {"position": position, "next_offset": next_offset})
    out = ffi.new("tpc_batch_entry[]", SCAN_ENTRIES_PER_CALL)
    view = ffi.from_buffer(data)
    flags = (lib.TPC_SCAN_CHECK_CRC if check_crc else 0) | (lib.TPC_SCAN_ALLOW_GAPS if allow_gaps else 0)
    batches: list[BatchEntry] = []
    while True:
        filled = lib.tpc_batch_scan(view, len(view), flags, state, out, SCAN_ENTRIES_PER_CALL)
        if filled < 0:
            raise ValueError(f"position {position} is outside of {len(view)} bytes")
        batches += [BatchEntry(*(getattr(out[i], name) for name in BatchEntry._fields)) for i in range(filled)]
        if state.reason != lib.TPC_BATCH_ARRAY_FULL:
            return BatchScan(batches, state.position, reason_text(state.reason))


def read_records(records: Buffer) -> Iterator[Record]:
    """The records inside a batch (after its header; unpacked when it was compressed). ``ValueError``: malformed."""
    view = ffi.from_buffer(records)
    position = ffi.new("size_t *", 0)
    out = ffi.new("tpc_record[]", RECORDS_PER_CALL)
    while position[0] < len(view):
        taken = lib.tpc_records_read(view, len(view), position, out, RECORDS_PER_CALL)
        if taken < 0:
            raise ValueError("malformed record")
        for i in range(taken):
            yield _record(out[i])


def stamp(batch: bytearray | memoryview, base_offset: int, partition_leader_epoch: int) -> None:
    """Sets the two fields that belong to the broker; they are outside of the checksum."""
    view = ffi.from_buffer(batch, require_writable=True)
    if len(view) < BATCH_HEADER_BYTES:
        raise ValueError("shorter than the header of a record batch")
    lib.tpc_batch_stamp(ffi.cast("uint8_t *", view), base_offset, partition_leader_epoch)


def stamp_append_time(
    batch: bytearray | memoryview, base_offset: int, partition_leader_epoch: int, timestamp_ms: int
) -> None:
    """As :func:`stamp`, and gives all records the time of the append; the checksum is made anew."""
    view = ffi.from_buffer(batch, require_writable=True)
    at = ffi.cast("uint8_t *", view)
    _sealed(lib.tpc_batch_stamp_append_time(at, len(view), base_offset, partition_leader_epoch, timestamp_ms))


def set_max_timestamp(batch: bytearray | memoryview, max_timestamp: int) -> None:
    """CreateTime with this greatest timestamp; the checksum is made anew when that changes anything."""
    view = ffi.from_buffer(batch, require_writable=True)
    _sealed(lib.tpc_batch_set_max_timestamp(ffi.cast("uint8_t *", view), len(view), max_timestamp))


def seal_batch(batch: bytearray | memoryview) -> None:
    """Makes the checksum of a batch anew."""
    view = ffi.from_buffer(batch, require_writable=True)
    _sealed(lib.tpc_batch_seal(ffi.cast("uint8_t *", view), len(view)))


def reason_text(reason: int) -> str:
    """The words for an ``enum tpc_batch_reason``."""
    return _text(lib.tpc_batch_reason_text(reason))


def _text(pointer: Any) -> str:
    return bytes(ffi.string(pointer)).decode()


def _sealed(result: int) -> None:
    if result < 0:
        raise ValueError("not exactly one record batch of magic 2")


def _limits(limits: BatchLimits) -> Any:
    return ffi.new("tpc_batch_limits *", {name: getattr(limits, name) for name in BatchLimits.__slots__})


def _header(header: Any) -> BatchHeader:
    return BatchHeader(*(getattr(header, name) for name in BatchHeader._fields))


def _report(report: Any) -> BatchReport:
    listed = min(report.bad_records_count, lib.TPC_BATCH_BAD_RECORDS_MAX)
    return BatchReport(
        error_code=report.error_code,
        reason=reason_text(report.reason),
        header=_header(report.header) if report.header.batch_bytes else None,
        walked=bool(report.flags & lib.TPC_BATCH_WALKED),
        has_null_key=bool(report.flags & lib.TPC_BATCH_HAS_NULL_KEY),
        max_timestamp_wrong=bool(report.flags & lib.TPC_BATCH_MAX_TIMESTAMP_WRONG),
        tail_dropped=bool(report.flags & lib.TPC_BATCH_TAIL_DROPPED),
        tells_log_start=bool(report.flags & lib.TPC_BATCH_TELLS_LOG_START),
        records_max_timestamp=report.records_max_timestamp,
        bad_records_count=report.bad_records_count,
        bad_records=tuple(BadRecord(report.bad_records[i], report.bad_record_errors[i]) for i in range(listed)),
    )


def _bytes(pointer: Any, count: int) -> bytes | None:
    return None if count < 0 else bytes(ffi.buffer(pointer, count))


def _record(record: Any) -> Record:
    headers = _record_headers(bytes(ffi.buffer(record.headers, record.headers_bytes)), record.headers_count)
    return Record(
        record.offset_delta,
        record.timestamp_delta,
        _bytes(record.key, record.key_bytes),
        _bytes(record.value, record.value_bytes),
        headers,
    )


def _record_headers(data: bytes, count: int) -> tuple[tuple[bytes, bytes | None], ...]:
    """Key and value pairs; the C walk has already checked that they fit."""
    pairs: list[tuple[bytes, bytes | None]] = []
    position = 0
    for _ in range(count):
        key, position = _sized(data, position)
        value, position = _sized(data, position)
        pairs.append((key or b"", value))
    return tuple(pairs)


def _sized(data: bytes, position: int) -> tuple[bytes | None, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    length = (raw >> 1) ^ -(raw & 1)
    return (None, position) if length < 0 else (data[position : position + length], position + length)
