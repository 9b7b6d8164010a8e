"""What DescribeProducers tells of a partition is what C knows of its producers."""

from __future__ import annotations

import pytest

from tests.engine.test_plane_partitions import outcome
from tests.support.plane_bench import NOW_MS, records_of, settings_with
from tests.support.plane_values import PartitionFlag, ProducerState
from tests.support.record_batches import TRANSACTIONAL
from tpc_broker.broker.producers_port import ToldProducer
from tpc_broker.engine.told_producers import told_producers
from tpc_broker.error_codes import ErrorCode as E
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError

VERSION = 9
SENT_MS = 1_700_000_000_000
SEQUENCE_MAX = 2**31 - 1


def told(bench, handle, count_max=100):
    return told_producers(bench.plane.pointer, handle, count_max)


def produce(bench, handle, count, producer, **header):
    answer = bench.plane.produce_records(handle, records_of(count, producer=producer, **header), VERSION)
    assert answer.error_code is E.NONE


def one(producer_id, epoch, last_sequence, timestamp_ms=SENT_MS):
    return ToldProducer(producer_id, timestamp_ms, -1, last_sequence, -1, epoch)


def test_each_is_told_with_its_last_batch_by_id(bench):
    handle = bench.lead("t")
    assert told(bench, handle) == []
    produce(bench, handle, 3, (9, 2, 0))
    produce(bench, handle, 2, (7, 0, 5), base_timestamp_ms=SENT_MS - 60_000)
    produce(bench, handle, 1, (-1, -1, -1))
    assert told(bench, handle) == [one(7, 0, 6, SENT_MS - 60_000), one(9, 2, 2)], "durable or not, as its leader has it"
    produce(bench, handle, 4, (9, 2, 3))
    produce(bench, handle, 1, (7, 1, 0))
    assert told(bench, handle) == [one(7, 1, 0), one(9, 2, 6)]
    bench.settle()
    assert outcome(bench, handle, (9, 2, 3), 4) == (E.NONE, 6, True)
    assert told(bench, handle) == [one(7, 1, 0), one(9, 2, 6)], "a repeat changes nothing"


def test_the_last_sequence_goes_on_behind_the_greatest(bench):
    handle = bench.lead("t", log_end_offset=1)
    produce(bench, handle, 4, (7, 0, SEQUENCE_MAX - 1))
    assert told(bench, handle) == [one(7, 0, 1)]


def test_the_time_is_that_of_the_log_where_that_counts(bench):
    handle = bench.lead("t", settings=settings_with(PartitionFlag.LOG_APPEND_TIME))
    produce(bench, handle, 1, (7, 0, 0), base_timestamp_ms=SENT_MS - 60_000)
    assert told(bench, handle) == [one(7, 0, 0, NOW_MS)]


def test_after_a_start_they_are_told_as_before(bench):
    handle = bench.lead("t")
    produce(bench, handle, 3, (7, 4, 0), base_timestamp_ms=SENT_MS - 60_000)
    bench.settle()
    other = bench.lead("other", log_end_offset=3)
    bench.plane.load_producers(other, [*bench.plane.dump_producers(handle), ProducerState(8, 1, NOW_MS, ())])
    assert told(bench, other) == [one(7, 4, 2, SENT_MS - 60_000), one(8, 1, -1, -1)], "a marker leaves no batch behind"


def test_of_more_than_are_wanted_those_that_are_open_come_first(bench):
    handle = bench.lead("t")
    for producer_id in range(5):
        produce(bench, handle, 1, (producer_id, 0, 0))
    for producer_id in (7, 9):
        bench.plane.append(handle, records_of(1, producer=(producer_id, 0, 0), attributes=TRANSACTIONAL))
    assert [each.producer_id for each in told(bench, handle, 7)] == [0, 1, 2, 3, 4, 7, 9]
    found = told(bench, handle, 4)
    assert len(found) == 4
    assert [each.producer_id for each in found if each.transaction_first_offset >= 0] == [7, 9]
    assert [each.producer_id for each in told(bench, handle, 2)] == [7, 9]
    assert told(bench, handle, 1) is None
    assert told(bench, bench.lead("other"), 0) == []


def test_those_of_a_log_that_was_cut_are_told_when_they_are_found_again(bench):
    handle = bench.lead("t", is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.follow(handle, 3)
    for sequence in range(2):
        data = records_of(1, base_offset=sequence, leader_epoch=3, producer=(7, 0, sequence))
        bench.plane.append_replica(handle, 3, data)
    bench.settle()
    (as_of_one,) = bench.plane.dump_producers(handle, 1)
    bench.plane.truncate(handle, 1, 3)
    with pytest.raises(LeadershipLostError):
        told(bench, handle)
    bench.plane.reset_producers(handle, [as_of_one])
    assert [each.last_sequence for each in told(bench, handle)] == [0]


def test_a_partition_that_is_gone_has_none(bench):
    handle = bench.lead("t")
    bench.plane.withdraw(handle)
    with pytest.raises(PartitionOfflineError):
        told(bench, handle)
