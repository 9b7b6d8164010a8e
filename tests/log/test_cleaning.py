"""Single rules of a cleaning: what stays of a batch, byte for byte, and what is not believed."""

import ctypes
import struct

import pytest

from tests.log.log_batches import record as log_record
from tests.log.log_batches import varint
from tests.support.cleaned_logs import CleanedLog
from tests.support.record_batches import DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL, Record, batch
from tpc_broker.cleaner import codecs
from tpc_broker.kafka.records import ControlType, control_batch
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.cleaning import KEY_BYTES, GroupLimits, SourceSizes, plan_groups
from tpc_broker.log.cleaning_job import CleaningSource, KeptProducer
from tpc_broker.log.indexes import AbortedTransaction

NOW_MS = 1_800_000_000_000
RETENTION_MS = 1_000
CODECS = (0, 1, 2, 3, 4)


@pytest.fixture(params=["libraries", "none"])
def log(tmp_path, monkeypatch, request):
    """Cleaned with the system's codecs, and as where there are none."""
    if request.param == "none":
        without_libraries(monkeypatch)
    return CleanedLog(tmp_path)


def without_libraries(monkeypatch):
    monkeypatch.setattr(codecs, "_library", lambda _name: None)


def content(log, place=0):
    """Of a segment, as it is."""
    return log.path(log.sources[place].base_offset).read_bytes()


def values(log):
    return {one.key: one.value for segment in log.read() for batch in segment.batches for one in batch.records}


def clean(log, now_ms=NOW_MS, **changes):
    return log.clean(now_ms=now_ms, delete_retention_ms=RETENTION_MS, **changes)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_which_all_stay_is_copied(log, codec):
    data = batch([Record(b"v", b"k%d" % n, n, (("h", b"x"),)) for n in range(5)], codec=codec, leader_epoch=7)
    log.append(data)
    report = clean(log)
    assert content(log) == data
    assert (report.records_read, report.records_kept, report.cleaned_upto) == (5, 5, 5)


@pytest.mark.parametrize("codec", CODECS)
def test_what_stays_of_a_batch_keeps_offsets_producer_and_epoch(log, codec):
    records = [Record(b"v%d" % n, b"k%d" % (n % 3), 10 * n, (("h", None),)) for n in range(6)]
    log.append(batch(records, codec=codec, leader_epoch=7, producer=(5, 2, 90), base_timestamp_ms=NOW_MS))
    clean(log)
    (left,) = log.read()[0].batches
    assert (left.base_offset, left.last_offset, left.leader_epoch, left.producer) == (0, 5, 7, (5, 2, 90))
    assert left.attributes == codec
    assert (left.base_timestamp, left.max_timestamp) == (NOW_MS + 30, NOW_MS + 50)
    assert [(one.offset, one.key, one.value, one.timestamp, one.headers) for one in left.records] == [
        (n, b"k%d" % (n % 3), b"v%d" % n, NOW_MS + 10 * n, (("h", None),)) for n in (3, 4, 5)
    ]


def test_a_batch_without_records_goes_with_its_offsets(log):
    log.append(batch([Record(b"1", b"k")]) + batch([Record(b"2", b"k"), Record(b"3", b"j")], base_offset=1))
    clean(log)
    assert [one.base_offset for one in log.read()[0].batches] == [1]


def test_a_segment_may_be_cleaned_to_nothing(log):
    log.append(batch([Record(b"1", b"k")]))
    log.append(batch([Record(b"2", b"k")], base_offset=1))
    clean(log, segment_bytes=1)
    assert content(log, 0) == b""
    assert [segment.end_offset for segment in log.read()] == [1, 2]
    assert values(log) == {b"k": b"2"}


def test_records_without_a_key_go_below_the_maps_end_only(log):
    log.append(batch([Record(b"1"), Record(b"2", b"a"), Record(b"3", b"b"), Record(b"4", b"c"), Record(b"5")]))
    report = clean(log, dedupe_bytes=2 * KEY_BYTES)  # one key
    assert report.cleaned_upto == 2
    assert [one.offset for one in log.read()[0].batches[0].records] == [1, 2, 3, 4]
    report = clean(log)
    assert [one.offset for one in log.read()[0].batches[0].records] == [1, 2, 3]


@pytest.mark.parametrize("codec", CODECS)
def test_a_tombstone_goes_when_its_horizon_is_over(log, codec):
    log.append(batch([Record(b"1", b"k"), Record(None, b"k", 5)], codec=codec, base_timestamp_ms=77))
    clean(log)
    (left,) = log.read()[0].batches
    assert left.attributes == codec | DELETE_HORIZON
    assert left.base_timestamp == NOW_MS + RETENTION_MS
    assert [(one.value, one.timestamp) for one in left.records] == [(None, 82)]
    before = content(log)
    clean(log, NOW_MS + RETENTION_MS - 1)
    assert content(log) == before
    assert log.seals[0].removed_upto == 0
    clean(log, NOW_MS + RETENTION_MS)
    assert content(log) == b""
    assert log.seals[0].removed_upto == 2
    clean(log, NOW_MS + RETENTION_MS)
    assert log.seals[0].removed_upto == 2, "it is never forgotten"


@pytest.mark.parametrize("codec", CODECS)
def test_a_horizon_of_a_client_is_not_believed(log, codec):
    """A value and a tombstone with attribute bit 6, and a base timestamp long ago."""
    tombstone = batch([Record(None, b"k")], base_offset=1, attributes=DELETE_HORIZON, base_timestamp_ms=5, codec=codec)
    value = batch([Record(b"v", b"j")], base_offset=2, attributes=DELETE_HORIZON, base_timestamp_ms=5, codec=codec)
    log.append(batch([Record(b"1", b"k")]) + tombstone + value)
    clean(log)
    dated, cleared = log.read()[0].batches
    assert (dated.attributes, dated.base_timestamp) == (codec | DELETE_HORIZON, NOW_MS + RETENTION_MS)
    assert (cleared.attributes, cleared.base_timestamp, cleared.records[0].timestamp) == (codec, 5, 5)
    clean(log, NOW_MS + 1)
    assert values(log) == {b"k": None, b"j": b"v"}


def test_a_horizon_of_a_client_is_not_believed_behind_the_maps_end_either(log):
    tombstone = batch([Record(None, b"k")], base_offset=2, attributes=DELETE_HORIZON, base_timestamp_ms=5)
    log.append(batch([Record(b"1", b"k"), Record(b"1", b"j")]) + tombstone)
    assert clean(log, dedupe_bytes=2 * KEY_BYTES).cleaned_upto == 1
    assert [one.attributes for one in log.read()[0].batches] == [0, 0]
    clean(log, NOW_MS + 5 * RETENTION_MS)
    assert values(log) == {b"k": None, b"j": b"1"}


def test_a_batch_that_the_map_does_not_know_whole_gets_no_horizon(log):
    """Or its tombstone's time might be over in the cleaning that removes the values in front of it."""
    log.append(batch([Record(None, b"a"), Record(None, b"b")]))
    assert clean(log, dedupe_bytes=2 * KEY_BYTES).cleaned_upto == 1
    assert [one.attributes for one in log.read()[0].batches] == [0]
    assert clean(log).cleaned_upto == 2
    assert [one.attributes for one in log.read()[0].batches] == [DELETE_HORIZON]


def test_a_retention_for_ever(log):
    log.append(batch([Record(None, b"k", -3)], base_timestamp_ms=2))
    log.clean(now_ms=NOW_MS, delete_retention_ms=2**63 - 1)
    log.clean(now_ms=2**61)
    (left,) = log.read()[0].batches
    assert left.base_timestamp == 2**62
    assert left.records[0].timestamp == -1


def test_append_time_is_that_of_the_batch(log):
    records = [Record(b"1", b"k", 3), Record(None, b"j", 4), Record(b"2", b"k", 5)]
    log.append(batch(records, attributes=LOG_APPEND_TIME, max_timestamp_ms=NOW_MS, base_timestamp_ms=9))
    clean(log)
    (left,) = log.read()[0].batches
    assert (left.attributes, left.max_timestamp) == (LOG_APPEND_TIME | DELETE_HORIZON, NOW_MS)
    assert {one.timestamp for one in left.records} == {NOW_MS}


@pytest.mark.parametrize("base", [-(2**63), 2**63 - 1, -1, 0])
@pytest.mark.parametrize("codec", [0, 4])
def test_timestamps_at_their_bounds(log, base, codec):
    deltas = (0, 5, -7)
    kept = [(base + delta + 2**63) % 2**64 - 2**63 for delta in deltas[1:]]
    records = [Record(b"1", b"k", deltas[0]), Record(b"2", b"k", deltas[1]), Record(None, b"j", deltas[2])]
    log.append(batch(records, base_timestamp_ms=base, max_timestamp_ms=-1, codec=codec))
    clean(log)
    (left,) = log.read()[0].batches
    assert [(one.timestamp + 2**63) % 2**64 - 2**63 for one in left.records] == kept
    assert left.max_timestamp == max(-1, *kept)


@pytest.mark.parametrize("latest", [2**62 - 1, 2**62, 2**63 - 1])
def test_no_time_between_two_batches_is_too_long_for_one_segment(log, latest):
    log.append(
        batch([Record(b"1", b"k")], base_timestamp_ms=0)
        + batch([Record(b"2", b"j")], base_offset=1, base_timestamp_ms=latest)
    )
    clean(log)
    assert [one.max_timestamp for one in log.read()[0].batches] == [0, latest]


def overlong(value):
    """A varint of five bytes."""
    raw = (value << 1) ^ (value >> 31)
    return bytes([raw >> shift & 0x7F | 0x80 for shift in (0, 7, 14, 21)]) + bytes([raw >> 28 & 0x0F])


@pytest.mark.parametrize("codec", [0, 3])
def test_lengths_that_are_longer_than_they_have_to_be(log, codec):
    def record(delta, key, value, attributes=b"\x55"):
        sized = [overlong(-1) if one is None else overlong(len(one)) + one for one in (key, value)]
        body = attributes + overlong(delta) + overlong(delta) + b"".join(sized) + overlong(0)
        return overlong(len(body)) + body

    payload = record(0, b"k", b"1") + record(1, b"k", b"2") + record(2, b"j", None)
    log.append(batch([Record()] * 3, payload=payload, codec=codec))
    clean(log)
    (left,) = log.read()[0].batches
    assert [(one.offset, one.key, one.value) for one in left.records] == [(1, b"k", b"2"), (2, b"j", None)]


@pytest.mark.parametrize("codec", [3, 4])
def test_a_library_without_what_is_asked_of_it_is_none(tmp_path, monkeypatch, codec):
    monkeypatch.setattr(codecs, "_library", lambda _name: ctypes.CDLL(None))
    log = CleanedLog(tmp_path)
    log.append(batch([Record(b"1", b"k"), Record(b"2", b"k")], codec=codec))
    clean(log)
    assert values(log) == {b"k": b"2"}


@pytest.mark.parametrize("codec", CODECS)
def test_large_records(log, codec, chance):
    large = chance.randbytes(700_000)
    log.append(batch([Record(b"1", b"k"), Record(large, b"k"), Record(large[:300_000], bytes(70_000))], codec=codec))
    clean(log, decompressed_bytes_max=1 << 21)
    assert values(log) == {b"k": large, bytes(70_000): large[:300_000]}


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_larger_than_what_is_read_at_a_time(log, codec, chance):
    large = chance.randbytes(5 << 20)
    first = batch([Record(b"1", b"k"), Record(large, b"k")], codec=codec)
    log.append(first + batch([Record(b"z", b"j")], base_offset=2))
    report = clean(log, decompressed_bytes_max=1 << 24)
    assert report.batches_unreadable == 0
    assert values(log) == {b"k": large, b"j": b"z"}


# What cannot be read


def broken(base_offset=0, *, count=2, attributes=4):
    """A batch whose checksum is right, and whose records are no zstd."""
    return batch([Record(b"x", b"k")] * count, base_offset=base_offset, attributes=attributes)


@pytest.mark.parametrize("attributes", [1, 2, 3, 4, 5, 7])
def test_a_batch_that_cannot_be_unpacked_stays_as_it_is(log, attributes):
    data = broken(1, attributes=attributes)
    log.append(batch([Record(b"1", b"k")]) + data + batch([Record(b"2", b"j")], base_offset=3))
    report = clean(log)
    assert report.batches_unreadable == 1
    assert data in content(log)
    assert [one.base_offset for one in log.read(unreadable=frozenset([1]))[0].batches] == [0, 1, 3]


def test_a_batch_that_unpacks_to_too_much_stays_and_so_do_tombstones_behind_it(log):
    """Its values may be older than the tombstone, and would be the newest ones without it."""
    large = batch([Record(bytes(100_000), b"k")], codec=4)
    log.append(large + batch([Record(None, b"k"), Record(b"1", b"j")], base_offset=1))
    for now_ms in (NOW_MS, NOW_MS + RETENTION_MS, NOW_MS + 9 * RETENTION_MS):
        report = clean(log, now_ms, decompressed_bytes_max=50_000)
        assert report.batches_unreadable == 1
        assert values(log) == {b"k": None, b"j": b"1"}
        assert log.seals[0].removed_upto == 0
    clean(log, NOW_MS + 9 * RETENTION_MS)
    assert values(log) == {b"j": b"1", b"k": bytes(100_000)}, "only a fuller cleaning would know that it is old"


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        log_record(0, b"v", b"k"),
        log_record(0, b"v", b"k") * 2,
        log_record(1, b"v", b"k") + log_record(0, b"v", b"k"),
        log_record(0, b"v", b"k") + log_record(2, b"v", b"k"),
        log_record(0, b"v", b"k") + log_record(-1, b"v", b"k"),
        log_record(0, b"v", b"k") + log_record(1, b"v", b"k") + b"\0",
        log_record(0, b"v", b"k") + varint(2**31 - 1) + b"\0" * 30,
    ],
)
def test_what_is_no_sequence_of_records_stays_as_it_is(log, payload, codec):
    data = batch([Record()] * 2, base_offset=1, payload=payload, codec=codec)
    log.append(batch([Record(b"1", b"k")]) + data)
    report = clean(log)
    assert report.batches_unreadable == 1
    assert content(log) == batch([Record(b"1", b"k")]) + data


@pytest.mark.parametrize("what", ["checksum", "magic", "cut", "order", "end", "length"])
def test_damage_ends_the_job_and_is_named(log, what):
    first, second = batch([Record(b"1", b"k")]), bytearray(batch([Record(b"2", b"k")], base_offset=1))
    if what == "checksum":
        second[-1] ^= 1
    elif what == "magic":
        second[16] = 1
    elif what == "cut":
        del second[-1]
    elif what == "length":
        struct.pack_into(">i", second, 8, 3)
    else:
        struct.pack_into(">q", second, 0, 0 if what == "order" else 7)
    log.append(first + bytes(second), end_offset=2)
    before = content(log)
    for first_dirty_offset in (0, 2):  # found when keys are collected, and when it is rewritten
        with pytest.raises(BatchDamageError, match=rf"{log.path(0)}, position {len(first)}: "):
            clean(log, first_dirty_offset=first_dirty_offset)
    assert content(log) == before
    assert [path.name for path in log.folder.iterdir()] == [log.path(0).name]


def test_a_batch_that_would_only_grow_stays_without_a_horizon(log, monkeypatch):
    without_libraries(monkeypatch)
    data = batch([Record(None, b"k"), Record(b"w", b"j")], codec=4)
    log.append(data)
    monkeypatch.setattr("tpc_broker.cleaner.codecs.compress", lambda _codec, plain: bytes(plain) + bytes(1000))
    for now_ms in (NOW_MS, NOW_MS + 2 * RETENTION_MS):
        report = clean(log, now_ms, batch_bytes_max=100)
        assert content(log) == data
        assert report.records_kept == 2


def test_records_go_even_if_their_batch_grows(log, monkeypatch):
    """Once the map has forgotten their keys they would be the newest ones, behind a tombstone that is gone."""
    without_libraries(monkeypatch)
    log.append(batch([Record(b"1", b"k"), Record(b"2", b"j")], codec=4) + batch([Record(None, b"k")], base_offset=2))
    real = codecs.compress
    monkeypatch.setattr(codecs, "compress", lambda codec, plain: real(codec, bytes(plain)) + real(codec, b"") * 40)
    clean(log, batch_bytes_max=100)
    assert log.read()[0].batches[0].records[0].value == b"2"
    assert log.sources[0].size_bytes > 400
    clean(log, NOW_MS + RETENTION_MS)
    assert values(log) == {b"j": b"2"}


# Producers and transactions


def test_the_batch_that_a_producer_is_known_by_is_emptied(log):
    first = batch([Record(b"1", b"k", 5), Record(b"2", b"k", 9)], producer=(5, 2, 90), leader_epoch=3, codec=1)
    log.append(first + batch([Record(b"3", b"k")], base_offset=2, producer=(6, 0, 0)))
    known = (KeptProducer(5, 1, -1), KeptProducer(6, 2, -1))
    for _ in range(2):
        clean(log, producers=known)
        left = log.read()[0].batches
        assert [(one.base_offset, one.last_offset, len(one.records)) for one in left] == [(0, 1, 0), (2, 2, 1)]
        assert left[0].producer == (5, 2, 90)
        assert (left[0].attributes, left[0].base_timestamp, left[0].leader_epoch) == (0, -1, 3)
        assert left[0].max_timestamp == 1_700_000_000_009
    clean(log)
    assert [one.base_offset for one in log.read()[0].batches] == [2]


def marker(kind, base_offset, producer_id=5):
    return control_batch(
        kind, producer_id=producer_id, producer_epoch=2, coordinator_epoch=4, timestamp_ms=50, base_offset=base_offset
    )


def in_transaction(base_offset, *records, producer_id=5, codec=0):
    return batch(
        list(records), base_offset=base_offset, producer=(producer_id, 2, 0), attributes=TRANSACTIONAL, codec=codec
    )


def offsets(log):
    return [one.base_offset for segment in log.read() for one in segment.batches]


@pytest.mark.parametrize("codec", CODECS)
def test_data_then_entry_then_marker_of_an_aborted_transaction_go_one_by_one(log, codec):
    data = in_transaction(1, Record(b"no", b"k"), codec=codec)
    log.append(batch([Record(b"yes", b"k")]) + data + marker(ControlType.ABORT, 2),
               aborted=[AbortedTransaction(5, 1, 2, 3)])  # fmt: skip
    clean(log)
    assert (offsets(log), len(log.aborted)) == ([0, 2], 1)
    assert log.seals[0].removed_upto == 0
    clean(log, NOW_MS + 10 * RETENTION_MS)
    assert (offsets(log), len(log.aborted)) == ([0, 2], 0)
    assert log.seals[0].removed_upto == 3, "a replica that has the data still would show them without the entry"
    clean(log, NOW_MS + 11 * RETENTION_MS - 1)
    assert offsets(log) == [0, 2]
    clean(log, NOW_MS + 11 * RETENTION_MS)
    assert offsets(log) == [0]
    assert log.seals[0].removed_upto == 3
    assert values(log) == {b"k": b"yes"}


def test_a_marker_of_a_commit_stays_as_long_as_a_batch_of_its_transaction(log):
    log.append(in_transaction(0, Record(b"1", b"k")) + marker(ControlType.COMMIT, 1))
    log.append(batch([Record(b"2", b"k")], base_offset=2))
    kept = (KeptProducer(5, 0, -1),)
    for now_ms in (NOW_MS, NOW_MS + 10 * RETENTION_MS):
        clean(log, now_ms, producers=kept)
        assert offsets(log) == [0, 1, 2]
        assert not log.read()[0].batches[1].attributes & DELETE_HORIZON
    clean(log, NOW_MS + 20 * RETENTION_MS)
    clean(log, NOW_MS + 30 * RETENTION_MS)
    assert offsets(log) == [1, 2]
    clean(log, NOW_MS + 40 * RETENTION_MS)
    assert offsets(log) == [2]


def test_the_marker_that_a_producer_wrote_last_stays_whole(log):
    data = marker(ControlType.COMMIT, 0) + marker(ControlType.COMMIT, 1, producer_id=6)
    log.append(data)
    for number in range(3):
        clean(log, NOW_MS + number * 10 * RETENTION_MS, producers=(KeptProducer(5, -1, 0),))
    (left,) = log.read()[0].batches
    assert (left.base_offset, len(left.records), left.producer) == (0, 1, (5, 2, -1))


def test_all_markers_stay_of_a_producer_whose_last_one_is_not_known(log):
    log.append(b"".join(marker(ControlType.COMMIT, n, producer_id=5 + n % 2) for n in range(4)))
    for number in range(3):
        clean(log, NOW_MS + number * 10 * RETENTION_MS, producers=(KeptProducer(5, -1, -1),))
    assert [(one.base_offset, one.producer[0]) for one in log.read()[0].batches] == [(0, 5), (2, 5)]


def test_interleaved_transactions_are_told_apart(log):
    log.append(
        in_transaction(0, Record(b"a", b"a")) + in_transaction(1, Record(b"b", b"b"), producer_id=6)
        + marker(ControlType.ABORT, 2) + in_transaction(3, Record(b"c", b"a"))
        + marker(ControlType.COMMIT, 4, producer_id=6) + marker(ControlType.COMMIT, 5),
        aborted=[AbortedTransaction(5, 0, 2, 1)],
    )  # fmt: skip
    clean(log)
    assert offsets(log) == [1, 2, 3, 4, 5]
    assert values(log).items() >= {(b"a", b"c"), (b"b", b"b")}


def test_an_aborted_transaction_whose_marker_is_behind_the_sources(log):
    log.append(batch([Record(b"yes", b"k")]) + in_transaction(1, Record(b"no", b"k")))
    log.append(marker(ControlType.ABORT, 2), aborted=[AbortedTransaction(5, 1, 2, 3)])
    clean(log, sources=tuple(log.sources[:1]))
    assert offsets(log) == [0, 2]
    assert len(log.aborted) == 1
    assert values(log).items() >= {(b"k", b"yes")}


def test_many_producers_in_one_piece(log):
    """More than C tells of at a time."""
    count = 300
    log.append(b"".join(in_transaction(n, Record(b"v", b"%d" % n), producer_id=n) for n in range(count))
               + b"".join(marker(ControlType.COMMIT, count + n, producer_id=n) for n in range(count)))  # fmt: skip
    clean(log)
    clean(log, NOW_MS + 10 * RETENTION_MS)
    assert offsets(log) == list(range(2 * count))


# The map


def test_a_map_that_is_too_small_takes_several_jobs(log, chance):
    expected = {}
    for segment in range(6):
        made = []
        for place in range(10):
            records = [Record(b"%d" % n, b"k%d" % chance.randrange(40)) for n in range(10)]
            expected |= {one.key: one.value for one in records}
            made.append(batch(records, base_offset=100 * segment + 10 * place, codec=chance.choice(CODECS)))
        log.append(b"".join(made))
    jobs = 0
    while log.first_dirty_offset < log.end_offset:
        before = log.first_dirty_offset
        report = clean(log, dedupe_bytes=9 * KEY_BYTES, segment_bytes=3000)
        assert report.map_keys == 8 or report.cleaned_upto == log.end_offset
        assert report.cleaned_upto > before
        jobs += 1
    assert jobs > 5
    assert values(log) == expected
    clean(log, first_dirty_offset=0)
    assert values(log) == expected
    assert sum(len(one.records) for segment in log.read() for one in segment.batches) == len(expected)


@pytest.mark.parametrize("places", [2, 3])
def test_a_job_always_gets_on(log, places):
    """However small the map, and with more keys in one batch than it has room for."""
    log.append(batch([Record(b"1", b"%d" % (n % 5)) for n in range(20)], codec=3))
    for _ in range(20):
        clean(log, dedupe_bytes=places * KEY_BYTES)
    assert log.first_dirty_offset == 20
    assert len(log.read()[0].batches[0].records) == 5


def test_thousands_of_keys_that_share_their_beginning_and_their_length(log):
    """A full map finds each of them."""
    count = 5000
    key = [bytes(64) + struct.pack("<I", n) for n in range(count)]
    made = [batch([Record(b"%d" % n, one)], base_offset=n) for n, one in enumerate(key)]
    again = [batch([Record(b"new", key[n])], base_offset=count + n) for n in range(0, count, 2)]
    log.append(b"".join(made + again), end_offset=2 * count)
    report = clean(log, dedupe_bytes=(count * 10 // 9 + 2) * KEY_BYTES)
    assert report.map_keys == count
    assert values(log) == {one: b"new" if n % 2 == 0 else b"%d" % n for n, one in enumerate(key)}
    assert report.records_kept == count


def test_what_was_cleaned_stays_byte_for_byte(log, chance):
    for segment in range(3):
        records = [Record(b"%d" % n, b"k%d" % chance.randrange(20)) for n in range(30)]
        log.append(batch(records, base_offset=30 * segment, codec=segment))
    clean(log, segment_bytes=1)
    before = [content(log, place) for place in range(3)]
    clean(log, segment_bytes=1)
    assert [content(log, place) for place in range(3)] == before
    clean(log, segment_bytes=1, first_dirty_offset=0)
    assert [content(log, place) for place in range(3)] == before


def test_nothing_below_the_log_start_counts(log):
    """Its record may be newer than one that readers see, if there is a hole between the two."""
    log.append(batch([Record(b"1", b"k"), Record(b"2", b"j")]) + batch([Record(b"3", b"i")], base_offset=2))
    assert clean(log, log_start_offset=2).map_keys == 1


# Groups


def sources(*ends):
    begins = (0, *ends)
    return [CleaningSource(begins[n], end, 0, n, False, 0, 0) for n, end in enumerate(ends)]


@pytest.mark.parametrize(
    ("sizes", "limits", "groups"),
    [
        ([(5, 1, 1)] * 4, (10, 100), [2, 2]),
        ([(5, 1, 1)] * 4, (9, 100), [1, 1, 1, 1]),
        ([(5, 4, 1), (1, 4, 1), (1, 4, 1)], (100, 8), [2, 1]),
        ([(5, 1, 4), (1, 1, 4), (1, 1, 4)], (100, 8), [2, 1]),
        ([(50, 1, 1), (1, 1, 1), (1, 1, 1)], (10, 100), [1, 2]),
    ],
)
def test_segments_are_put_together_as_kafka_does_it(sizes, limits, groups):
    given = sources(*range(10, 10 * len(sizes) + 1, 10))
    found = plan_groups(given, [SourceSizes(*one) for one in sizes], GroupLimits(*limits))
    assert [len(group) for group in found] == groups
    assert [one for group in found for one in group] == given


@pytest.mark.parametrize(("log_bytes", "groups"), [(1, 2), (0, 1)])
def test_offsets_of_a_segment_fit_into_31_bits(log_bytes, groups):
    given = sources(10, 2**31 + 1)
    sizes = [SourceSizes(1, 0, 0), SourceSizes(log_bytes, 0, 0)]
    assert len(plan_groups(given, sizes, GroupLimits(100, 100))) == groups
    assert len(plan_groups(sources(10, 2**31), sizes, GroupLimits(100, 100))) == 1


