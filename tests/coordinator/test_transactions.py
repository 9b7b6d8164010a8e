"""Offsets in transactions: pending until the marker, and then what the last record in the log says."""

import uuid

import pytest

from tests.coordinator.consumer.test_commits import with_epochs
from tests.coordinator.scenario import Scenario
from tests.support.stored_records import stored_records
from tpc_broker.coordinator import Fate, Producer, Record
from tpc_broker.coordinator.messages import MarkerResponse, OffsetToCommit, TxnOffsetCommitRequest
from tpc_broker.coordinator.records import OffsetKey, offset_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import TopicId

A, B = 7, 8
WEEK = 7 * 24 * 60 * 60 * 1000
OLD, NEW = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))
UNSTABLE = ErrorCode.UNSTABLE_OFFSET_COMMIT


def stable(s, *partitions, group="g", topic="t"):
    wanted = [(topic, partition) for partition in partitions] or None
    fetched = s.machine.offset_fetch(group, wanted, require_stable=True).offsets
    return {each.partition: each.error_code or each.offset for each in fetched}


def restarted(s):
    """As it is, and as the next coordinator has it."""
    yield s
    s.start()
    yield s


def test_an_offset_counts_from_the_marker_on():
    s = Scenario()
    s.commit(1)
    assert s.txn_commit_code(A, offset=2) == 0
    for _ in restarted(s):
        assert s.offset() == 1
        assert stable(s, 0) == {0: UNSTABLE}
    assert s.replies[s.end(A, commit=True)] == MarkerResponse(ErrorCode.NONE)
    for _ in restarted(s):
        assert s.offset() == 2
        assert stable(s, 0) == {0: 2}
        assert not s.machine.pending


def test_an_abort_leaves_what_was():
    s = Scenario()
    s.commit(1)
    s.txn_commit(A, offset=2)
    s.txn_commit(A, offset=3, partition=1)
    s.end(A, commit=False)
    for _ in restarted(s):
        assert (s.offset(), s.offset(partition=1)) == (1, -1)
        assert stable(s, 0, 1) == {0: 1, 1: -1}
        assert not s.machine.pending


def test_what_a_transaction_says_twice_counts_as_it_was_said_last():
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.txn_commit(A, offset=3)
    s.end(A, commit=True)
    for _ in restarted(s):
        assert s.offset() == 3


def test_a_plain_commit_that_comes_later_stays():
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.commit(1)
    for _ in restarted(s):
        assert (s.offset(), stable(s, 0)) == (1, {0: UNSTABLE}), "as in Kafka, though no transaction can change it"
    s.end(A, commit=True)
    for _ in restarted(s):
        assert s.offset() == 1


def test_of_two_transactions_the_record_that_is_later_in_the_log_counts_whichever_ends_first():
    for first, second in ((A, B), (B, A)):
        s = Scenario()
        s.txn_commit(A, offset=2)
        s.txn_commit(B, offset=3)
        s.end(first, commit=True)
        s.end(second, commit=True)
        for _ in restarted(s):
            assert s.offset() == 3
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.txn_commit(B, offset=3)
    s.end(B, commit=False)
    assert stable(s, 0) == {0: UNSTABLE}
    s.end(A, commit=True)
    assert stable(s, 0) == {0: 2}


def test_a_marker_ends_its_producer_s_transaction_alone():
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.txn_commit(B, offset=3, partition=1, group="h")
    s.end(A, commit=True)
    for _ in restarted(s):
        assert s.offset() == 2
        assert stable(s, 1, group="h") == {1: UNSTABLE}
    assert s.replies[s.end(99, commit=True)].error_code == 0, "one that is not open here"


def test_all_that_is_asked_for_is_what_is_committed_and_of_that_what_is_unstable():
    s = Scenario()
    s.commit(1)
    s.txn_commit(A, offset=2)
    s.txn_commit(A, offset=2, partition=1)
    assert stable(s) == {0: UNSTABLE}
    assert [each.offset for each in s.machine.offset_fetch("g").offsets] == [1]


def test_it_is_answered_when_it_is_durable_in_the_order_of_the_log():
    s = Scenario()
    s.hold = True
    tokens = [s.txn_commit(A, offset=2), s.end(A, commit=True), s.commit(3), s.txn_commit(B, offset=4)]
    assert not s.replies
    assert not s.machine.pending
    s.settle()
    assert list(s.replies) == tokens
    assert (s.offset(), stable(s, 0)) == (3, {0: UNSTABLE})


@pytest.mark.parametrize(
    ("error", "told", "of_marker"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_cannot_be_written_did_not_happen(error, told, of_marker):
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.fail_with = error
    assert s.txn_commit_code(A, offset=3, partition=1) == told
    assert s.replies[s.end(A, commit=True)] == MarkerResponse(of_marker)
    s.fail_with = None
    for _ in restarted(s):
        assert stable(s, 0, 1) == {0: UNSTABLE, 1: -1}
    assert not s.machine.pending.may_come("g", ("t", 1))
    s.end(A, commit=True)
    assert (s.offset(), s.offset(partition=1)) == (2, -1)


def test_everybody_is_answered_when_the_partition_goes():
    s = Scenario()
    s.hold = True
    commit, marker = s.txn_commit(A), s.end(A, commit=True)
    s.run(s.machine.unload())
    assert s.replies[commit].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    assert s.replies[marker].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Who may commit


def test_a_group_needs_an_id():
    s = Scenario()
    assert s.txn_commit_code(A, group="") == ErrorCode.INVALID_GROUP_ID


def test_an_unknown_group_has_no_generation():
    s = Scenario()
    assert s.txn_commit_code(A, generation_id=1, member_id="m") == ErrorCode.ILLEGAL_GENERATION
    assert s.txn_commit_code(A) == 0
    assert s.state() == "Empty"


def test_a_member_of_a_classic_group_commits_in_its_generation_and_who_says_nothing_at_any_time():
    s = Scenario()
    ids, generation = s.stable("a")
    member = {"member_id": ids["a"], "generation_id": generation}
    assert s.txn_commit_code(A, **member) == 0
    assert s.txn_commit_code(A, **member | {"generation_id": generation - 1}) == ErrorCode.ILLEGAL_GENERATION
    assert s.txn_commit_code(A, **member | {"member_id": "other"}) == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.txn_commit_code(A, generation_id=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert s.txn_commit_code(A, member_id=ids["a"]) == ErrorCode.ILLEGAL_GENERATION
    assert s.txn_commit_code(A) == 0
    assert s.commit_code() == ErrorCode.UNKNOWN_MEMBER_ID, "a plain one may not"


def test_a_member_that_waits_for_its_assignment_may_commit():
    """What it has read before; a plain commit is sent once more then."""
    s = Scenario()
    joined = s.member("a")
    s.wait(3_000)
    member_id, generation = s.replies[joined].member_id, s.replies[joined].generation_id
    assert s.state() == "CompletingRebalance"
    assert s.txn_commit_code(A, member_id=member_id, generation_id=generation) == 0


@pytest.mark.parametrize("knows", [False, True])
def test_a_member_of_a_consumer_group_commits_in_its_epoch_or_what_it_has_had_since(knows):
    s, topic_id = with_epochs()
    stale = ErrorCode.STALE_MEMBER_EPOCH if knows else ErrorCode.ILLEGAL_GENERATION

    def code(member_id, epoch, partition=0):
        who = {"member_id": member_id, "generation_id": epoch, "knows_member_epochs": knows}
        return s.txn_commit_code(A, partition=partition, topic_id=topic_id, **who)

    assert (code("a", 5), code("a", 3), code("a", 4, 1), code("a", 6)) == (0, 0, stale, stale)
    assert (code("c", 5, 3), code("c", 3, 3)) == (0, ErrorCode.ILLEGAL_GENERATION)
    assert (code("b", 5), code("a", -1)) == (ErrorCode.UNKNOWN_MEMBER_ID, stale)
    assert code("", -1) == 0


# What must not be lost meanwhile


def test_a_group_of_which_something_is_pending_stays():
    s = Scenario(offsets_retention_ms=WEEK)
    s.commit(1)
    s.commit(1, partition=1)
    s.txn_commit(A, offset=2)
    assert s.delete("g") == {"g": UNSTABLE}
    assert [each.error_code for each in s.delete_offsets(("t", 0), ("t", 1)).partitions] == [UNSTABLE, 0]
    s.wait(2 * WEEK)
    for _ in restarted(s):
        assert (s.offset(), s.state()) == (1, "Empty")
    s.end(A, commit=True)
    assert s.offset() == 2
    assert s.delete("g") == {"g": 0}
    s.start()
    assert (s.offset(), s.state()) == (-1, "Dead")


@pytest.mark.parametrize("commit", [False, True])
def test_a_group_that_only_has_something_pending_is_there(commit):
    s = Scenario(offsets_retention_ms=WEEK)
    s.txn_commit(A, offset=2)
    for _ in restarted(s):
        s.wait(2 * WEEK)
        assert s.state() == "Empty"
        assert s.delete("g") == {"g": UNSTABLE}
    s.end(A, commit=commit)
    s.wait(2 * WEEK)
    assert s.state() == "Dead"


def test_what_is_on_its_way_is_not_lost_either():
    s = Scenario(offsets_retention_ms=WEEK)
    s.commit(1)
    s.hold = True
    s.txn_commit(A, offset=2)
    for run in (s.machine.delete_groups, s.machine.offset_delete):
        token = s.token("delete")
        arguments = (["g"],) if run == s.machine.delete_groups else ("g", [("t", 0)])
        s.run(run(*arguments, token, s.now))
        assert "UNSTABLE" in str(s.replies[token])
    s.wait(2 * WEEK)
    s.settle()
    s.end(A, commit=True)
    s.settle()
    assert s.offset() == 2


def test_what_was_committed_for_a_topic_that_is_gone_takes_nothing_of_the_next_one_with_it():
    s = Scenario()
    s.commit(1, topic_id=OLD)
    s.txn_commit(A, offset=2, topic_id=NEW)
    s.fates[OLD] = Fate.GONE
    s.run(s.machine.topics_changed(s.now, {"t"}))
    s.end(A, commit=True)
    for _ in restarted(s):
        assert s.offset() == 2


def test_a_tombstone_in_the_log_ends_what_is_pending_before_it():
    """Kafka writes such."""
    s = Scenario()
    s.txn_commit(A, offset=2)
    s.log.append(offset_record(OffsetKey("g", "t", 0), None))
    s.start()
    assert not s.machine.pending
    s.end(A, commit=True)
    assert s.offset() == -1


def test_an_offset_of_a_later_release_is_kept_for_it():
    s = Scenario()
    s.txn_commit(A, offset=2)
    [opened] = s.log
    s.log = [opened._replace(record=Record(opened.record.key, b"\x00\x63later"))]
    s.start()
    s.end(A, commit=True)
    for _ in restarted(s):
        [fetched] = s.machine.offset_fetch("g", [("t", 0)]).offsets
        assert fetched.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        assert stored_records(s.machine) == [Record(opened.record.key, b"\x00\x63later")]


def test_more_than_a_batch_takes_is_refused_whole():
    s = Scenario()
    details = {"topic": "t" * 249, "metadata": "m" * 4096}
    offsets = tuple(OffsetToCommit(partition=each, offset=1, **details) for each in range(2_000))
    request = TxnOffsetCommitRequest(group_id="g", offsets=offsets, producer=Producer(A, 0))
    s.run(s.machine.txn_offset_commit(request, "t", 0))
    assert {each.error_code for each in s.replies["t"].partitions} == {ErrorCode.UNKNOWN_SERVER_ERROR}
    assert not s.machine.pending.may_come("g")


# Whether a transaction is open


def test_it_is_certain_that_a_transaction_is_open_from_its_first_record_to_its_marker():
    s = Scenario()
    pending = s.machine.pending
    assert not pending.is_open(Producer(A, 0))
    s.txn_commit(A)
    assert pending.is_open(Producer(A, 0))
    assert not pending.is_open(Producer(A, 1))
    assert not pending.is_open(Producer(B, 0))
    s.hold = True
    s.end(A, commit=True)
    assert not pending.is_open(Producer(A, 0)), "what comes now is behind the marker"
    s.fail_with = ErrorCode.KAFKA_STORAGE_ERROR
    s.settle()
    assert pending.is_open(Producer(A, 0))


def test_what_was_asked_of_a_transaction_before_its_marker_came_says_nothing():
    s = Scenario()
    pending = s.machine.pending
    of_a, of_b, again = (pending.begin_verification(each) for each in (A, B, A))
    pending.end_verification(again)
    s.hold = True
    s.end(A, commit=False)
    assert (of_a.is_over, of_b.is_over, again.is_over) == (True, False, False)
    assert pending.begin_verification(A).is_over, "the marker is under way"
    s.settle()
    assert not pending.begin_verification(A).is_over
    pending.end_verification(of_a)
    pending.end_verification(of_b)
