"""Sparse indexes: the bytes, lookups against a plain search, and what is noticed when they are damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.log.log_batches import batch
from tpc_broker.log.batch import decode_header
from tpc_broker.log.files import EpochStart
from tpc_broker.log.indexes import AbortedTransaction, OffsetIndex, TimeIndex, TransactionIndex
from tpc_broker.log.segment import AppendWalk, LogSettings, SegmentIndexes, SegmentView, WalkStop, plan_retention
from tpc_broker.log.state import LogState


def test_bytes_of_the_offset_index():
    index = OffsetIndex(100)
    index.append(104, 4200)
    assert bytes(index.data) == bytes.fromhex("00000004 00001068")
    assert index.last == (104, 4200)


def test_bytes_of_the_time_index():
    index = TimeIndex(100)
    assert index.append_if_later(0x0102030405060708, 104)
    assert not index.append_if_later(0x0102030405060708, 200)
    assert bytes(index.data) == bytes.fromhex("0102030405060708 00000004")


def test_bytes_of_the_transaction_index():
    index = TransactionIndex([AbortedTransaction(7, 10, 20, 21)])
    data = index.encode()
    assert data == bytes.fromhex("0000 0000000000000007 000000000000000a 0000000000000014 0000000000000015")
    assert TransactionIndex.decode(data).entries == index.entries
    for wrong in (data[:-1], b"\0\1" + data[2:], data + data):
        with pytest.raises(ValueError):
            TransactionIndex.decode(wrong)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9000)), max_size=60), st.integers(0, 3000))
def test_lookups_equal_a_plain_search(steps, wanted):
    index, offset, position = OffsetIndex(7), 7, 0
    entries = [(7, 0)]
    for offsets, size in steps:
        offset, position = offset + offsets, position + size
        index.append(offset, position)
        entries.append((offset, position))
    assert index.problem(position + 1) is None
    assert index.lookup(wanted) == max((entry for entry in entries if entry[0] <= wanted), default=(7, 0))
    kept = [entry for entry in entries[1:] if entry[1] < wanted]
    index.truncate(wanted)
    assert list(index) == kept


def test_damage_in_indexes_is_noticed():
    index = OffsetIndex(0)
    for number in range(1, 6):
        index.append(number * 10, number * 5000)
    assert index.problem(25001) is None
    assert "behind the log's end" in index.problem(25000)
    assert "whole number" in OffsetIndex(0, bytes(index.data[:-3])).problem(99999)
    assert "does not lie behind" in OffsetIndex(0, bytes(index.data) + bytes(8)).problem(99999)
    times = TimeIndex(0, bytes(12) + bytes(12))
    assert "does not lie behind" in times.problem(10)
    assert "segment's end" in TimeIndex(0, (5).to_bytes(8) + (9).to_bytes(4)).problem(9)


def test_entries_are_written_where_kafka_writes_them():
    indexes, position, offset = SegmentIndexes(0, 4096), 0, 0
    for number in range(6):
        data = batch(offset, [b"x" * 1500, b"y"], timestamp=1000 + (number if number != 4 else 0))
        indexes.add(decode_header(data), position)
        position, offset = position + len(data), offset + 2
    # 4 times 1,580 bytes are needed to pass 4,096: the fourth batch is the first with an entry.
    size = position // 6
    assert list(indexes.offsets) == [(7, 3 * size)]
    assert list(indexes.times) == [(1003, 7)]
    indexes.seal()
    assert list(indexes.times)[-1] == (1005, 11)


def rolls(indexes, position, data, settings):
    walk = AppendWalk(memoryview(data), settings, 0, LogState([EpochStart(0, 0)]))
    walk.use(indexes, position)
    return walk.step() is WalkStop.ROLL


def test_a_segment_rolls_for_size_age_index_and_offsets():
    def indexes(interval_bytes=4096):
        made = SegmentIndexes(0, interval_bytes)
        made.add(decode_header(batch(0, timestamp=100)), 0)
        return made

    settings = LogSettings(segment_bytes=1000, segment_ms=50, segment_index_bytes=32)
    assert not rolls(SegmentIndexes(0, 0), 0, batch(0, [bytes(2000)], timestamp=100), settings)
    assert rolls(indexes(), 990, batch(1, timestamp=100), settings)
    assert rolls(indexes(), 100, batch(1, timestamp=151), settings)
    assert not rolls(indexes(), 100, batch(1, timestamp=150), settings)
    assert rolls(indexes(), 100, batch(2**31, timestamp=100), settings)
    full = indexes(0)
    full.add(decode_header(batch(1, timestamp=100)), 70)
    full.add(decode_header(batch(2, timestamp=100)), 140)
    assert rolls(full, 200, batch(3, timestamp=100), settings)


def views(*largest_timestamps):
    return [
        SegmentView(number * 10, number * 10 + 10, 100, largest, 0) for number, largest in enumerate(largest_timestamps)
    ]


def plan(segments, *, log_start_offset=0, high_watermark=10_000, now_ms=1000, **settings):
    settings = {"retention_ms": -1, "retention_bytes": -1} | settings
    return plan_retention(
        segments,
        LogSettings(**settings),
        log_start_offset=log_start_offset,
        high_watermark=high_watermark,
        now_ms=now_ms,
    )


def test_retention_by_age_stops_at_the_first_young_segment():
    assert plan(views(10, 20, 990, 30), retention_ms=100) == (2, ("age", "age"), False, None)
    assert plan(views(10, 20), retention_ms=100) == (2, ("age", "age"), True, None)
    assert plan(views(10, 20), retention_ms=100, high_watermark=15).segments_count == 1
    assert plan(views(10, 20), retention_ms=100, cleanup_delete=False).segments_count == 0


def test_retention_by_size_never_goes_below_the_limit():
    assert plan(views(1, 2, 3), retention_bytes=200).segments_count == 1
    assert plan(views(1, 2, 3), retention_bytes=201).segments_count == 0


def test_what_lies_in_front_of_the_log_start_goes_whatever_the_policy():
    assert plan(views(1, 2, 3), log_start_offset=20, cleanup_delete=False).reasons == ("log start", "log start")
    assert plan(views(1, 2, 3), log_start_offset=19).segments_count == 1


def test_the_age_of_a_segment_by_wall_clock():
    assert plan([SegmentView(0, 10, 100, 10**15, 500)], segment_age_ms=499).reasons == ("segment age",)
    assert plan([SegmentView(0, 10, 100, 10**15, 500)], segment_age_ms=500).segments_count == 0


MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("dated_ms", "appended_ms", "settings", "is_held_back"),
    [
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": MINUTE_MS}, True),
        (10**18, 1000, {"retention_ms": MINUTE_MS}, True),
        (1000 + MINUTE_MS, 1000, {"retention_ms": 9 * MINUTE_MS}, True),
        (1000 + MINUTE_MS - 1, 1000, {"retention_ms": 9 * MINUTE_MS + 59_999}, False),  # clocks that differ
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": 10 * MINUTE_MS}, False),  # it is not due
        (1000 + 60 * MINUTE_MS, 9 * MINUTE_MS, {"retention_ms": 2 * MINUTE_MS}, False),  # somebody still appends
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": -1}, False),
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": MINUTE_MS, "cleanup_delete": False}, False),
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": MINUTE_MS, "segment_age_ms": MINUTE_MS}, False),  # it goes
        (1000 + 60 * MINUTE_MS, 1000, {"retention_ms": MINUTE_MS, "retention_bytes": 0}, False),
        (-1, 1000, {"retention_ms": 20 * MINUTE_MS}, False),
    ],
)
def test_a_record_dated_ahead_holds_back_what_is_due_by_the_clock(dated_ms, appended_ms, settings, is_held_back):
    now_ms = 1000 + 10 * MINUTE_MS
    old = SegmentView(0, 10, 100, 500, 1000)
    ahead, behind = SegmentView(10, 20, 100, dated_ms, appended_ms), SegmentView(20, 30, 100, now_ms, now_ms)
    found = plan([ahead, behind], now_ms=now_ms, **settings)
    assert found.held_back == (ahead if is_held_back else None)
    if is_held_back:
        found = plan([old, ahead, behind], now_ms=now_ms, **settings)
        assert found == (1, ("age",), False, ahead)


def test_aborted_transactions_are_collected_until_nothing_can_follow():
    index = TransactionIndex([AbortedTransaction(1, 0, 10, 5), AbortedTransaction(2, 5, 20, 21)])
    assert index.collect(11, 15) == ([AbortedTransaction(2, 5, 20, 21)], True)
    assert index.collect(0, 5) == ([AbortedTransaction(1, 0, 10, 5)], True)
    assert index.collect(21, 40) == ([], False)


def test_any_bit_of_a_sealed_transaction_index_counts():
    """Kafka passes over what is shorter than an entry; without it, as an earlier release wrote it, all is believed."""
    index = TransactionIndex([AbortedTransaction(7, 10, 20, 21), AbortedTransaction(8, 15, 30, 31)])
    data = index.encode() + index.encode_end()
    assert TransactionIndex.decode(data).entries == TransactionIndex.decode(index.encode()).entries == index.entries
    assert 0 < len(index.encode_end()) < len(index.encode()) // 2
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"checksum|behind last offset"):
            TransactionIndex.decode(bytes(wrong))
    wrong = bytearray(data)
    wrong[9] ^= 1
    assert len(TransactionIndex.decode(bytes(wrong), is_checked=False).entries) == 2
    assert TransactionIndex().encode_end() == b""
