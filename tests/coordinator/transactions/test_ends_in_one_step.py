"""Ends in one step: where all partitions stand in the coordinator's journal, its record, the markers and the record
that they are written go together.
"""

import pytest

from tests.coordinator.transactions.scenario import A, B, C, Producer, TransactionScenario, replayed
from tpc_broker.coordinator.transactions.machine import MARKERS_AT_ONCE
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode as E


def ending(*partitions, shared=(A, B), commit=True):
    """Its end is asked for, and nothing of that is durable yet."""
    s = TransactionScenario(shares_journal=set(shared).__contains__)
    p = s.init()
    assert s.add(p, *(partitions or (A, B))) is E.NONE
    s.hold = s.hold_markers = True
    return s, p, s.ask_end(p, commit=commit)


def places(markers):
    return [one.partition for one in markers]


@pytest.mark.parametrize("commit", [True, False])
def test_the_last_record_goes_with_the_first_one_behind_the_markers(commit):
    s, p, token = ending(commit=commit)
    first, last = s.held
    assert (first.markers, places(last.markers)) == ((), [A, B])
    assert token not in s.replies, "nothing is certain yet"
    s.settle(1)
    assert s.told(token) == Producer(p.producer_id, p.epoch + 1)
    assert s.state() == ("PrepareCommit" if commit else "PrepareAbort")
    assert s.add(Producer(p.producer_id, p.epoch + 1), C) is E.CONCURRENT_TRANSACTIONS
    assert s.due == [], "they are written with the last record"
    s.settle()
    assert s.state() == ("CompleteCommit" if commit else "CompleteAbort")
    s.hold = False
    assert s.add(Producer(p.producer_id, p.epoch + 1), C) is E.NONE


def test_one_partition_that_is_elsewhere_has_all_of_it_wait():
    s, _p, _token = ending(A, C)
    (first,) = s.held
    assert first.markers == ()
    s.settle()
    assert places(s.due) == [A, C]


@pytest.mark.parametrize(("count", "in_one"), [(MARKERS_AT_ONCE, True), (MARKERS_AT_ONCE + 1, False)])
def test_a_transaction_of_many_partitions_does_not_end_in_one_step(count, in_one):
    many = [TopicPartition("wide", index) for index in range(count)]
    s, _p, _token = ending(*many, shared=many)
    assert len(s.held) == 1 + in_one


def test_when_the_last_record_fails_the_markers_go_as_ever():
    s, p, token = ending()
    s.settle(1)
    s.fail_with, s.marked_of_failed = E.KAFKA_STORAGE_ERROR, 1
    s.settle()
    s.fail_with = None
    assert places(s.markers) == [A]
    assert s.told(token) == Producer(p.producer_id, p.epoch + 1), "how it ends is certain all the same"
    assert places(s.due) == [A, B], "nobody knows which are written"
    s.hold = s.hold_markers = False
    s.write_markers()
    assert s.state() == "CompleteCommit"


def test_when_the_last_record_fails_first_the_markers_go_once_it_is_certain():
    s, _p, token = ending()
    first, last = s.held
    s.run(s.machine.write_failed(last.write_id, E.KAFKA_STORAGE_ERROR, s.now))
    assert (token in s.replies, s.due) == (False, [])
    s.held = [first]
    s.settle()
    assert places(s.due) == [A, B]
    s.write_markers()
    s.settle()
    assert s.state() == "CompleteCommit"


def test_when_the_first_record_fails_the_transaction_is_open_as_before():
    s, p, token = ending()
    s.fail_with = E.KAFKA_STORAGE_ERROR
    s.settle()
    s.fail_with, s.hold, s.hold_markers = None, False, False
    assert s.told(token) is E.NOT_COORDINATOR
    assert (s.state(), s.due, s.markers) == ("Ongoing", [], [])
    assert s.end(p, commit=False) == Producer(p.producer_id, p.epoch + 1), "it may be decided anew"
    assert {one.commit for one in s.markers} == {False}


def test_the_time_out_and_another_instance_end_it_in_one_step_too():
    for other in (True, False):
        s = TransactionScenario(shares_journal=lambda _partition: True)
        p = s.init()
        s.add(p, A)
        s.hold = True
        if other:
            token = s.ask_init()
        else:
            s.elapse(61_000)
        assert [len(one.markers) for one in s.held] == [0, 1]
        s.settle()
        assert s.state() == "CompleteAbort"
        if other:
            assert s.told(token) is E.CONCURRENT_TRANSACTIONS
        s.hold = False
        assert s.init() == Producer(p.producer_id, p.epoch + 2)


def test_whatever_a_crash_leaves_of_it_goes_on_to_the_same_end():
    """What was appended first is there."""
    s, p, _token = ending()
    before, (first, last) = list(s.log), s.held
    for log, state, owed in (
        (before, "Ongoing", []),
        (before + list(first.records), "PrepareCommit", [A, B]),
        (before + list(first.records) + list(last.records), "CompleteCommit", []),
    ):
        machine, effects = replayed(log)
        assert machine.describe("t").state == state
        assert places(effects.markers) == owed
        assert {one.commit for one in effects.markers} <= {True}
        assert {one.producer_epoch for one in effects.markers} <= {p.epoch + 1}


def test_who_waits_when_it_is_unloaded_is_answered():
    s, _p, token = ending()
    effects = s.machine.unload()
    assert [reply.token for reply in effects.replies] == [token]
    assert (effects.writes, effects.markers) == ([], [])
