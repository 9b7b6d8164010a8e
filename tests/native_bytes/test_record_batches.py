import struct

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given
from hypothesis import strategies as st

from tests.native_bytes.built_batches import NOW_MS, batch, patched, seal, varint, with_records
from tests.support.native_batches import (
    INT64_MAX,
    BatchLimits,
    batch_header,
    read_records,
    scan_batches,
    seal_batch,
    set_max_timestamp,
    stamp,
    stamp_append_time,
    validate_batch,
    validate_unpacked_records,
)
from tests.support.record_batches import Record, encode_record
from tpc_broker.native_bytes import crc32c, keyless_records

CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE = 2, 10, 18
INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE, INVALID_RECORD, UNKNOWN_SERVER_ERROR = 32, 76, 87, -1


def limits(**changes):
    return BatchLimits(now_ms=NOW_MS + 1000, **changes)


def judged(data, **changes):
    return validate_batch(data, limits(**changes))


def test_a_good_batch_and_its_header():
    data = batch(5, headers=[("h", b"1"), ("n", None)], producer=(7, 3, 40))
    report = judged(data)
    assert (report.error_code, report.reason) == (0, "ok")
    assert report.walked
    assert (report.has_null_key, report.max_timestamp_wrong, report.tail_dropped) == (False, False, False)
    header = report.header
    assert header == batch_header(data)
    assert (header.batch_bytes, header.magic, header.records_count, header.last_offset_delta) == (len(data), 2, 5, 4)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 40)
    assert (header.base_timestamp, header.max_timestamp) == (NOW_MS, NOW_MS + 4)
    assert report.records_max_timestamp == NOW_MS + 4


def test_aiokafka_agrees():
    builder = AioBuilder(2, 0, 0, 9, 1, 0, 1 << 20)
    for index in range(200):
        builder.append(index, NOW_MS + index, None if index % 2 else b"key", b"v" * index, [("a", b"b")])
    data = bytes(builder.build())
    report = judged(data)
    assert report.error_code == 0
    assert report.has_null_key
    records = list(read_records(data[61:]))
    assert [r.offset_delta for r in records] == list(range(200))
    assert records[3].value == b"vvv"
    assert records[3].headers == ((b"a", b"b"),)


FIELD_FAULTS = [
    ("base offset", 0, ">q", 5, INVALID_RECORD),
    ("count above delta", 57, ">i", 4, INVALID_RECORD),
    ("count zero", 57, ">i", 0, INVALID_RECORD),
    ("count negative", 57, ">i", -1, INVALID_RECORD),
    ("delta negative", 23, ">i", -1, INVALID_RECORD),
    ("delta above count", 23, ">i", 3, INVALID_RECORD),
    ("control", 21, ">h", 0x20, INVALID_RECORD),
    ("codec 5", 21, ">h", 5, UNKNOWN_SERVER_ERROR),
    ("codec 7", 21, ">h", 7, UNKNOWN_SERVER_ERROR),
    ("producer without sequence", 43, ">q", 1, INVALID_RECORD),
    ("magic 3", 16, ">b", 3, CORRUPT_MESSAGE),
    ("magic -1", 16, ">b", -1, CORRUPT_MESSAGE),
    ("magic 1", 16, ">b", 1, INVALID_RECORD),
    ("magic 0", 16, ">b", 0, INVALID_RECORD),
    ("length 13", 8, ">i", 13, CORRUPT_MESSAGE),
    ("length negative", 8, ">i", -5, CORRUPT_MESSAGE),
    ("length huge", 8, ">i", 2**31 - 1, INVALID_RECORD),
]


@pytest.mark.parametrize("fault", FIELD_FAULTS, ids=lambda fault: fault[0])
def test_field_faults_get_kafkas_code(fault):
    _, position, layout, value, code = fault
    assert judged(patched(batch(3), position, layout, value)).error_code == code


def test_an_empty_or_short_field():
    data = batch(1)
    for cut in range(len(data)):
        report = judged(data[:cut])
        assert (report.error_code, report.reason) == (INVALID_RECORD, "no whole record batch")


def test_every_flipped_bit_behind_the_crc_is_found():
    data = batch(2)
    for position in range(17, len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[position] ^= 1 << bit
            assert judged(changed).error_code == CORRUPT_MESSAGE


def test_two_batches_and_tails():
    data = batch(1)
    assert judged(data + data).reason == "more than one record batch"
    assert judged(data + data[:-1]).tail_dropped
    assert judged(data + data[:-1]).error_code == 0
    assert judged(data + bytes(11)).tail_dropped
    assert judged(data + bytes(12)).error_code == CORRUPT_MESSAGE


def test_sizes():
    data = batch(1, value=bytes(1000))
    assert judged(data, batch_bytes_max=len(data)).error_code == 0
    assert judged(data, batch_bytes_max=len(data) - 1).error_code == MESSAGE_TOO_LARGE
    assert judged(data, segment_bytes_max=len(data) - 1).error_code == RECORD_LIST_TOO_LARGE
    assert judged(data, segment_bytes_max=len(data)).error_code == 0
    corrupt = bytearray(data)
    corrupt[-1] ^= 1
    assert judged(corrupt, batch_bytes_max=10).error_code == MESSAGE_TOO_LARGE, "the size is judged before the checksum"


def test_compressed_batches_are_judged_by_their_header():
    for codec in (1, 2, 3, 4):
        report = judged(batch(50, compression=codec, value=b"x" * 100))
        assert report.error_code == 0
        assert not report.walked
    zstd = batch(50, compression=4)
    assert judged(zstd, produce_version=6).error_code == UNSUPPORTED_COMPRESSION_TYPE
    assert judged(zstd, produce_version=7).error_code == 0
    assert judged(batch(50, compression=1, timestamp=NOW_MS + 7_200_000)).error_code == INVALID_TIMESTAMP


def test_timestamps():
    late = batch(3, timestamp=NOW_MS, step_ms=3_600_500)
    report = judged(late)
    assert (report.error_code, report.reason) == (INVALID_TIMESTAMP, "timestamp out of range")
    assert [tuple(bad) for bad in report.bad_records] == [(2, INVALID_TIMESTAMP)]
    assert judged(late, timestamp_after_ms_max=INT64_MAX).error_code == 0
    assert judged(late, log_append_time=True).error_code == 0
    old = batch(3, timestamp=NOW_MS - 10_000)
    assert judged(old).error_code == 0
    report = judged(old, timestamp_before_ms_max=5_000)
    assert (report.error_code, report.bad_records_count) == (INVALID_TIMESTAMP, 3)
    claims_append_time = patched(batch(1), 21, ">h", 8)
    assert judged(claims_append_time, log_append_time=True).error_code == INVALID_TIMESTAMP
    assert judged(claims_append_time).max_timestamp_wrong


def test_many_bad_records_are_counted_and_the_first_listed():
    report = judged(batch(100, key=None), compacted=True)
    assert (report.error_code, report.bad_records_count) == (INVALID_RECORD, 100)
    assert [bad.record_index for bad in report.bad_records] == list(range(16))
    assert judged(batch(100, key=None)).has_null_key
    assert judged(batch(100, key=b""), compacted=True).error_code == 0


def test_a_wrong_max_timestamp_is_reported_and_put_right():
    data = patched(batch(3), 35, ">q", NOW_MS + 77)
    report = judged(data)
    assert report.error_code == 0
    assert report.max_timestamp_wrong
    set_max_timestamp(data, report.records_max_timestamp)
    report = judged(data)
    assert (report.error_code, report.max_timestamp_wrong, report.header.max_timestamp) == (0, False, NOW_MS + 2)


def one_record(*, length=None, offset_delta=0, key=1, value=1, headers_count=0, tail=b"", timestamp=0):
    body = b"\0" + varint(timestamp) + varint(offset_delta)
    body += varint(key) + b"k" * max(key, 0) + varint(value) + b"v" * max(value, 0) + varint(headers_count) + tail
    return varint(len(body) if length is None else length) + body


MALFORMED = {
    "offset delta 1": one_record(offset_delta=1),
    "length short": one_record(length=5),
    "length long": one_record(length=500),
    "length negative": one_record(length=-1),
    "headers negative": one_record(headers_count=-1),
    "headers too many": one_record(headers_count=2**31 - 1),
    "header key null": one_record(headers_count=1, tail=varint(-1) + varint(-1)),
    "header key long": one_record(headers_count=1, tail=varint(100)),
    "trailing in record": one_record(tail=b"\0"),
    "trailing after records": one_record() + b"\0",
    "key over the end": b"\x10\0\0\0" + varint(2**31 - 1) + b"abc",
    "varint of six bytes": b"\xff\xff\xff\xff\xff\x01",
    "nothing": b"",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_records(name):
    report = judged(with_records(batch(1), MALFORMED[name]))
    assert (report.error_code, report.reason) == (INVALID_RECORD, "malformed record")


def test_nulls_are_well_formed():
    data = with_records(batch(1), one_record(key=-1, value=-1, headers_count=1, tail=varint(1) + b"h" + varint(-1)))
    assert judged(data).error_code == 0
    assert list(read_records(data[61:])) == [(0, 0, None, None, ((b"h", None),))]


def test_unpacked_records_are_judged_with_the_batch_they_came_from():
    plain, packed = batch(3, key=None), batch(3, key=None, compression=1)
    report = validate_unpacked_records(packed, plain[61:], limits(compacted=True))
    assert (report.error_code, report.bad_records_count) == (INVALID_RECORD, 3)
    assert validate_unpacked_records(packed, plain[61:], limits()).error_code == 0
    assert validate_unpacked_records(packed, plain[61:-1], limits()).error_code == INVALID_RECORD


def test_stamps():
    data = batch(2)
    crc = batch_header(data).crc
    stamp(data, 2**40, 17)
    header = batch_header(data)
    assert (header.base_offset, header.partition_leader_epoch, header.crc) == (2**40, 17, crc)
    stamp_append_time(data, 100, 18, NOW_MS + 5)
    header = batch_header(data)
    assert (header.base_offset, header.partition_leader_epoch, header.max_timestamp) == (100, 18, NOW_MS + 5)
    assert header.is_append_time
    assert header.crc == crc32c(data[21:])
    with pytest.raises(ValueError, match="exactly one"):
        stamp_append_time(data[:-1], 0, 0, 0)
    with pytest.raises(ValueError, match="shorter"):
        stamp(data[:60], 0, 0)
    changed = bytearray(data)
    changed[30] ^= 1
    seal_batch(changed)
    assert changed == seal(bytearray(changed))


def stored(*counts, first=0):
    log, offset = bytearray(), first
    for count in counts:
        data = batch(count)
        stamp(data, offset, 4)
        log += data
        offset += count
    return log


def test_scanning_a_log():
    log = stored(*range(1, 3000 // 40), first=1000)
    scan = scan_batches(log, next_offset=1000)
    assert (scan.reason, scan.end_position, len(scan.batches)) == ("ok", len(log), 74)
    for one, following in zip(scan.batches, scan.batches[1:], strict=False):
        assert one.last_offset + 1 == following.base_offset
        assert one.position + one.batch_bytes == following.position
        assert one.partition_leader_epoch == 4


def test_a_scan_of_more_batches_than_fit_one_call():
    log = stored(*[1] * 2500)
    assert len(scan_batches(log).batches) == 2500


def test_a_scan_stops_where_the_log_is_cut_or_damaged():
    log = stored(2, 2, 2)
    ends = [0] + [entry.position + entry.batch_bytes for entry in scan_batches(log).batches]
    for cut in range(len(log)):
        scan = scan_batches(log[:cut])
        assert scan.end_position == max(end for end in ends if end <= cut)
        assert scan.reason == ("ok" if cut in ends else "incomplete batch")
    for position in range(ends[1] + 21, ends[2]):
        changed = bytearray(log)
        changed[position] ^= 0x10
        assert scan_batches(changed).end_position == ends[1]


def test_offsets_must_follow_but_may_have_gaps_in_a_compacted_log():
    log = stored(2, 2, first=10) + stored(2, first=100)
    assert scan_batches(log).reason == "offsets do not follow"
    assert scan_batches(log, allow_gaps=True).reason == "ok"
    assert scan_batches(log, allow_gaps=True, next_offset=11).reason == "offsets do not follow"
    backwards = stored(2, first=100) + stored(2, first=10)
    assert scan_batches(backwards, allow_gaps=True).reason == "offsets do not follow"
    with pytest.raises(ValueError, match="outside"):
        scan_batches(log, position=len(log) + 1)


@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=40),
            st.none() | st.binary(max_size=300),
            st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
            st.integers(0, 2**41),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_kafka_python_writes_is_read_back(rows):
    builder = AioBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
    for index, (key, value, headers, timestamp) in enumerate(rows):
        builder.append(index, timestamp, key, value, headers)
    data = bytes(builder.build())
    report = judged(data, timestamp_after_ms_max=INT64_MAX)
    assert report.error_code == 0
    assert report.records_max_timestamp == max(row[3] for row in rows)
    expected = [(k, v, tuple((n.encode(), x) for n, x in h)) for k, v, h, _ in rows]
    assert [(r.key, r.value, r.headers) for r in read_records(data[61:])] == expected
    base = struct.unpack_from(">q", data, 27)[0]
    assert [base + r.timestamp_delta for r in read_records(data[61:])] == [row[3] for row in rows]


def test_places_of_records_without_a_key():
    records = b"".join(encode_record(Record(b"v", key), place) for place, key in enumerate((b"k", None, b"", None)))
    assert keyless_records(records, 4) == (1, 3)
    assert keyless_records(records[:0], 0) == ()
    for wrong, count in ((records, 3), (records, 5), (records[:-1], 4), (b"\xff" * 20, 2), (records, -1)):
        assert keyless_records(wrong, count) is None
