"""How a transaction ends: its record, its markers, the record that they are written; and the same after a load."""

import pytest

from tests.coordinator.transactions.places import ahead, in_state
from tests.coordinator.transactions.scenario import A, B, C, Producer, TransactionScenario
from tpc_broker.coordinator.transactions.states import State
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode as E


def of(markers):
    return {(one.partition, one.producer_id, one.producer_epoch, one.commit, one.coordinator_epoch,
             one.transaction_version) for one in markers}  # fmt: skip


def held_markers(commit=True, version=2, **limits):
    s = TransactionScenario(**limits)
    p = s.init()
    s.add(p, A, B, client_version=version)
    s.hold_markers = True
    return s, p, s.end(p, commit=commit, client_version=version)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_each_partition_gets_a_marker(commit, version):
    s, p, told = held_markers(commit, version)
    epoch = p.epoch + (version == 2)
    assert told == (Producer(p.producer_id, epoch) if version == 2 else Producer(-1, -1))
    assert of(s.due) == {(each, p.producer_id, epoch, commit, 1, version) for each in (A, B)}
    assert len(s.due) == 2


def test_it_is_answered_when_it_is_durable_and_not_before():
    s, p = in_state(State.ONGOING)
    s.hold = s.hold_markers = True
    token = s.ask_end(p, commit=True)
    assert token not in s.replies
    assert s.due == [], "nor is any marker sent"
    s.settle()
    assert s.told(token) == ahead(p)
    assert s.state() == "PrepareCommit"


def test_the_last_marker_completes_it():
    s, _p, _told = held_markers()
    first, second = s.due
    s.run(s.machine.markers_written([first], s.now))
    assert s.state() == "PrepareCommit"
    s.run(s.machine.markers_written([first, first], s.now))
    assert s.state() == "PrepareCommit", "one that is told again is not another"
    s.run(s.machine.markers_written([second], s.now))
    assert s.state() == "CompleteCommit"
    assert s.stored().partitions == ()
    assert s.machine.statistics().markers_sent == 0


def test_an_end_without_partitions_completes_at_once():
    s, p = in_state(State.EMPTY)
    assert s.end(p, commit=False) == ahead(p)
    assert (s.state(), s.markers) == ("CompleteAbort", [])


@pytest.mark.parametrize("version", [0, 2])
def test_a_marker_that_is_told_late_is_not_of_the_next_transaction(version):
    """Before version 2 it has the same epoch."""
    s, p, told = held_markers(version=version)
    late = list(s.due)
    s.write_markers()
    p = p if version == 0 else told
    s.add(p, A, B, client_version=version)
    s.end(p, commit=True, client_version=version)
    s.run(s.machine.markers_written(late, s.now))
    assert s.state() == "PrepareCommit"
    s.write_markers()
    assert s.state() == "CompleteCommit"


def test_a_marker_of_the_coordinator_before_is_not_of_this_one():
    """It was of another end, of the same epoch: which it cannot tell."""
    s, p, _told = held_markers(version=0)
    late = list(s.due)
    s.write_markers()
    s.start()
    s.add(p, A, B, client_version=0)
    s.end(p, commit=True, client_version=0)
    assert [one.number for one in s.due] == [one.number for one in late]
    s.run(s.machine.markers_written(late, s.now))
    assert s.state() == "PrepareCommit"


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("server_version", [0, 1, 2])
def test_after_a_load_all_markers_are_sent_again(commit, server_version):
    s = TransactionScenario(server_version)
    p = s.init()
    version = 2 if server_version == 2 else 0
    s.add(p, A, B, client_version=version)
    s.hold_markers = True
    s.end(p, commit=commit, client_version=version)
    before = of(s.due)
    s.write_markers(1)
    s.start()
    assert of(s.due) == {(*one[:4], 2, one[5]) for one in before}, "in the epoch of this coordinator"
    assert s.add(p, C, client_version=version) is E.CONCURRENT_TRANSACTIONS
    s.write_markers()
    assert s.state() == ("CompleteCommit" if commit else "CompleteAbort")
    s.start()
    assert s.due == []


def test_after_a_load_an_end_without_markers_completes():
    s, p = in_state(State.EMPTY)
    s.hold = True
    s.ask_end(p, commit=False)
    s.settle(1)
    assert (s.state(), len(s.held)) == ("PrepareAbort", 1)
    s.hold = False
    s.start()
    assert s.state() == "CompleteAbort"


def test_a_completion_that_could_not_be_written_is_tried_again():
    s, p, _told = held_markers()
    s.fail_with = E.KAFKA_STORAGE_ERROR
    s.write_markers()
    assert s.state() == "PrepareCommit"
    assert s.add(p, A) is E.CONCURRENT_TRANSACTIONS
    s.elapse(5_000)
    assert s.state() == "PrepareCommit"
    s.fail_with = None
    s.elapse(1_000)
    assert s.state() == "CompleteCommit"
    assert len(s.markers) == 2, "no marker is written for it again"
    assert s.machine.statistics().ending_count == 0


def test_markers_under_way_are_bounded():
    s = TransactionScenario(markers_max=5)
    s.hold_markers = True
    many = [TopicPartition("many", index) for index in range(8)]
    for name, partitions in (("a", [A, B]), ("b", [A, B, C]), ("c", [A]), ("d", many), ("e", [C])):
        p = s.init(name)
        s.add(p, *partitions, name=name)
        assert s.end(p, commit=True, name=name) == ahead(p), "the answer does not wait for them"
    sent = [one.transactional_id for one in s.due]
    assert sent == ["a"] * 2 + ["b"] * 3
    s.write_markers(2)
    assert [one.transactional_id for one in s.due] == ["b"] * 3 + ["c"]
    s.write_markers(3)
    assert [one.transactional_id for one in s.due] == ["c"], "of whole transactions, in their order"
    s.write_markers(1)
    assert [one.transactional_id for one in s.due] == ["d"] * 8, "one that is larger goes alone"
    s.write_markers()
    assert {each: s.state(each) for each in "abcde"} == dict.fromkeys("abcde", "CompleteCommit")
    assert s.machine.statistics().markers_sent == 0
