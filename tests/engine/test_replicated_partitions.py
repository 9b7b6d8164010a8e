"""A partition with replicas elsewhere, as the data plane carries it: told what is committed, who leads, what is cut."""

import errno
from contextlib import contextmanager

import pytest

from tests.support.journal_file import CUT
from tests.support.plane_bench import NOW_MS, records_of, settings_with
from tests.support.plane_values import Left, Verdict
from tests.support.record_batches import read_batches
from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode as E

TERM = 3
LONG_NS = 3_600_000_000_000


@pytest.fixture
def replica(bench):
    """Makes a replicated partition of a topic, with no role yet."""

    def make(topic="t", **values):
        handle = bench.lead(topic, is_led=False, **values)
        bench.plane.set_replicated(handle)
        return handle

    return make


def sent(base_offset, count=1, epoch=TERM, **header):
    """A batch as a leader sends it."""
    return records_of(count, base_offset=base_offset, leader_epoch=epoch, **header)


def ends(bench, handle):
    state = bench.plane.state(handle)
    return state.high_watermark, state.durable_offset, state.log_end_offset


def in_memory(bench, handle, offset=0):
    """(base offset, leader epoch) of each batch, committed or not."""
    found = bench.plane.read_log(handle, offset)
    return None if found is None else [(one["base_offset"], one["leader_epoch"]) for one in read_batches(found)]


# -- a leader


def test_acks_one_is_answered_when_it_is_durable_and_acks_all_when_it_is_committed(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    one, everybody = bench.connect(), bench.connect()
    bench.send(everybody, [("t", 0, records_of(2))], acks=-1)
    bench.until(lambda: bench.plane.state(handle).durable_offset == 2)
    assert bench.produce(one, ("t", 0, records_of(1)), acks=1) == [(0, 2)]
    assert ends(bench, handle) == (0, 3, 3)
    assert bench.readable(handle) == []
    assert bench.plane.statistics()["produces_pending"] == 1
    assert bench.plane.commit(handle, TERM, 3)
    assert bench.answer(everybody) == [(0, 0)]
    assert [base for base, _values in bench.readable(handle)] == [0, 2]


def test_commits_end_waits_in_order_and_never_fall(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    clients = [bench.connect() for _ in range(3)]
    for number, client in enumerate(clients):
        bench.send(client, [("t", 0, records_of(1))])
        bench.until(lambda number=number: bench.plane.state(handle).durable_offset == number + 1)
    assert bench.plane.commit(handle, TERM, 2)
    assert [bench.answer(client) for client in clients[:2]] == [[(0, 0)], [(0, 1)]]
    assert bench.plane.statistics()["produces_pending"] == 1
    assert not bench.plane.commit(handle, TERM, 1)
    assert ends(bench, handle) == (2, 3, 3)
    assert bench.plane.commit(handle, TERM, 3)
    assert bench.answer(clients[2]) == [(0, 2)]


def test_a_commit_that_cannot_be_is_refused(stalled):
    handle = stalled.lead("t", is_led=False)
    with pytest.raises(OSError, match="commit") as refused:
        stalled.plane.commit(handle, 0, 0)
    assert refused.value.errno == errno.EPERM, "one voter"
    stalled.plane.set_replicated(handle)
    stalled.plane.arm(handle, TERM)
    stalled.plane.append(handle, records_of(2))
    with pytest.raises(ValueError, match="commit"):
        stalled.plane.commit(handle, TERM, 2)
    stalled.let_go()
    for term in (TERM - 1, TERM + 1):
        with pytest.raises(OSError, match="commit") as refused:
            stalled.plane.commit(handle, term, 2)
        assert refused.value.errno == errno.ESTALE
    stalled.plane.disarm(handle)
    with pytest.raises(OSError, match="commit") as refused:
        stalled.plane.commit(handle, TERM, 2)
    assert refused.value.errno == errno.EPERM


def test_what_was_appended_is_told_once_as_ranges(bench, replica):
    told = []
    bench.plane.on_appended = lambda: told.append(True)
    first, second, alone = replica("a"), replica("b"), bench.lead("alone")
    for handle in (first, second):
        bench.plane.arm(handle, TERM)
    for handle in (first, alone, second, first):
        bench.plane.append(handle, records_of(2))
    bench.until(lambda: told)
    assert bench.plane.take_appended() == [(first, TERM, 0, 4), (second, TERM, 0, 2)]
    assert bench.plane.take_appended() == []
    bench.plane.append(second, records_of(1))
    bench.until(lambda: len(told) == 2)
    bench.plane.append(second, records_of(1))
    assert bench.plane.take_appended(1) == [(second, TERM, 2, 4)]
    assert in_memory(bench, second, 2) == [(2, TERM), (3, TERM)]
    assert read_batches(bench.plane.read_log(second, 0, 2))[-1]["base_offset"] == 0


def test_what_is_not_taken_stays_in_memory_whatever_the_cache_may_keep(bench, replica):
    handle, other = replica(), bench.lead("other")
    bench.plane.arm(handle, TERM)
    bench.plane.append(handle, records_of(2))
    bench.settle()
    assert bench.plane.take_appended() == [(handle, TERM, 0, 2)]
    for one in (handle, other):
        bench.plane.append(one, records_of(3))
        bench.settle()
    bench.plane.write_behind_done(handle, 5)
    bench.plane.write_behind_done(other, 3)
    bench.plane.set_tail_bytes_max(0)
    assert bench.plane.state(other).tail_offset == 3
    assert bench.plane.take_appended() == [(handle, TERM, 2, 5)]
    assert in_memory(bench, handle, 2) == [(2, TERM)]
    bench.plane.set_tail_bytes_max(0)
    assert bench.plane.state(handle).tail_bytes == 0, "it was taken"
    bench.plane.append(handle, records_of(1))
    bench.settle()
    bench.plane.write_behind_done(handle, 6)
    assert bench.plane.state(handle).tail_bytes > 0
    bench.plane.disarm(handle)
    bench.plane.set_tail_bytes_max(0)
    assert bench.plane.state(handle).tail_bytes == 0, "nobody will take it"


def test_what_was_not_taken_before_the_role_ended_is_not_told(bench, replica):
    first, second, third = replica("a"), replica("b"), replica("c")
    for handle in (first, second, third):
        bench.plane.arm(handle, TERM)
        bench.plane.append(handle, records_of(1))
    bench.plane.disarm(second)
    assert [handle for handle, *_range in bench.plane.take_appended()] == [first, third]
    bench.plane.arm(second, TERM + 1)
    bench.plane.append(second, records_of(1))
    bench.plane.append(third, records_of(1))
    bench.plane.withdraw(third)
    assert bench.plane.take_appended() == [(second, TERM + 1, 1, 2)]


def test_with_too_few_replicas_only_acks_all_is_refused_and_with_too_much_on_its_way_all_are_held_back(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    waiting, client = bench.connect(), bench.connect()
    bench.send(waiting, [("t", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.refuse(handle, E.NOT_ENOUGH_REPLICAS)
    assert bench.produce(client, ("t", 0, records_of(1))) == [(E.NOT_ENOUGH_REPLICAS, -1)]
    assert bench.plane.append(handle, records_of(1)).error_code is E.NOT_ENOUGH_REPLICAS
    assert bench.produce(client, ("t", 0, records_of(1)), acks=1) == [(E.NONE, 1)]
    bench.plane.refuse(handle, E.NOT_ENOUGH_REPLICAS, all_acks=True)
    bench.send(client, [("t", 0, records_of(1))], acks=1)
    bench.until(lambda: bench.left)
    ((reason, held),) = bench.left
    assert reason is Left.UNCOMMITTED
    assert not bench.plane.produce_with(held, [Verdict()])
    assert bench.plane.fallback_reason is Left.UNCOMMITTED, "Python's verdict on its partition says nothing of that"
    assert bench.plane.state(handle).log_end_offset == 2
    bench.plane.commit(handle, TERM, 1)
    assert bench.answer(waiting) == [(E.NONE, 0)], "what was appended before goes on waiting"
    bench.plane.refuse(handle, E.NONE)
    assert bench.plane.produce_with(held, [Verdict()])
    assert bench.answer(client) == [(E.NONE, 2)]
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 4)
    bench.plane.commit(handle, TERM, 4)
    assert bench.answer(client) == [(E.NONE, 3)]


def test_what_is_held_back_is_refused_when_another_one_leads_by_then(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    bench.plane.refuse(handle, E.NOT_ENOUGH_REPLICAS, all_acks=True)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    bench.plane.follow(handle, TERM + 1)
    assert bench.plane.produce_with(bench.left.pop()[1], [Verdict()])
    assert bench.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert ends(bench, handle) == (0, 0, 0)


def test_between_two_terms_of_one_leader_waits_stay(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.disarm(handle, keep_waits=True)
    bench.send(bench.connect(), [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    assert bench.left[0][0] is Left.UNKNOWN
    bench.plane.arm(handle, TERM + 1)
    bench.plane.commit(handle, TERM + 1, 1)
    assert bench.answer(client) == [(0, 0)]


def test_whoever_waits_for_what_is_cut_between_two_terms_is_told(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    clients = [bench.connect() for _ in range(2)]
    for number, client in enumerate(clients):
        bench.send(client, [("t", 0, records_of(1))])
        bench.until(lambda number=number: bench.plane.state(handle).durable_offset == number + 1)
    bench.plane.disarm(handle, keep_waits=True)
    bench.plane.truncate(handle, 1, TERM)
    assert bench.answer(clients[1]) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    bench.plane.arm(handle, TERM + 1)
    bench.plane.commit(handle, TERM + 1, 1)
    assert bench.answer(clients[0]) == [(0, 0)]


def test_whoever_follows_answers_what_waits(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.follow(handle, TERM + 1)
    assert bench.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert ends(bench, handle) == (0, 1, 1), "the records stay until they are cut"
    with pytest.raises(OSError, match="append") as refused:
        bench.plane.append(handle, records_of(1))
    assert refused.value.errno == errno.EPERM


def test_what_was_sent_behind_a_batch_that_was_refused_is_refused_as_it_was(bench, replica):
    """By a leader that is back at once. It is out of order only without what its client is about to send again."""
    handle = replica()
    bench.plane.arm(handle, TERM)
    client, other = bench.connect(), bench.connect()

    def numbered(sequence, producer=7):
        return "t", 0, records_of(1, producer=(producer, 0, sequence))

    bench.send(client, [numbered(0)])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.follow(handle, TERM + 1)
    assert bench.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    bench.plane.arm(handle, TERM + 2)
    assert bench.produce(client, numbered(2)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.produce(client, numbered(4, 8)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "unknown producers begin anywhere"
    assert bench.produce(other, numbered(2)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "what is missing went another way"
    for offset in range(3):
        bench.send(client, [numbered(offset)])
        bench.until(lambda offset=offset: bench.plane.state(handle).durable_offset == offset + 1)
        bench.plane.commit(handle, TERM + 2, offset + 1)
        assert bench.answer(client) == [(0, offset)]


def test_a_gap_is_what_was_refused_while_somebody_else_led(bench, replica):
    """Whatever way that had come; but a batch that was forgotten, or of an epoch that is over, lacks nothing."""
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()

    def numbered(sequence, epoch=1):
        return "t", 0, records_of(1, producer=(7, epoch, sequence))

    for offset in range(7):
        bench.send(client, [numbered(offset)])
        bench.until(lambda offset=offset: bench.plane.state(handle).durable_offset == offset + 1)
        bench.plane.commit(handle, TERM, offset + 1)
        assert bench.answer(client) == [(0, offset)]
    bench.plane.disarm(handle)
    bench.plane.arm(handle, TERM + 1)
    for gap in (numbered(8), numbered(1 << 30), numbered(3, epoch=2)):
        assert bench.produce(client, gap) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.produce(client, numbered(0)) == [(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
    assert bench.produce(client, numbered(8, epoch=0)) == [(E.INVALID_PRODUCER_EPOCH, -1)]
    bench.plane.refuse(handle, E.NOT_ENOUGH_REPLICAS)
    assert bench.produce(client, numbered(7)) == [(E.NOT_ENOUGH_REPLICAS, -1)]
    bench.plane.refuse(handle, E.NONE)
    assert bench.produce(bench.connect(), numbered(8)) == [(E.NOT_ENOUGH_REPLICAS, -1)]
    assert ends(bench, handle) == (7, 7, 7)


@contextmanager
def much_later(bench):
    """As if requests came when a leader has been one for long."""
    offer = bench.on_request

    def delayed(request):
        request.pointer.received_ns += LONG_NS
        offer(request)

    bench.on_request = delayed
    try:
        yield
    finally:
        bench.on_request = offer


def test_a_gap_is_left_until_a_quorum_has_said_who_leads(bench, replica):
    """The log of a leader that does not know that it is none any more lacks what the next one took."""
    handle = replica()
    bench.plane.arm(handle, TERM)
    client, other = bench.connect(), bench.connect()

    def numbered(sequence, epoch=1):
        return "t", 0, records_of(1, producer=(7, epoch, sequence))

    bench.send(client, [numbered(0)])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.commit(handle, TERM, 1)
    assert bench.answer(client) == [(0, 0)]
    with much_later(bench):
        for gap in (numbered(2), numbered(3, epoch=2)):
            bench.left.clear()
            bench.send(client, [gap])
            bench.until(lambda: bench.left)
            ((reason, request),) = bench.left
            assert reason is Left.GAP
            assert not bench.plane.produce_with(request, [Verdict()])
            assert bench.plane.fallback_reason is Left.GAP, "Python's verdict on its partition says nothing of that"
            assert bench.plane.produce_with(request, [Verdict(gap_code=E.OUT_OF_ORDER_SEQUENCE_NUMBER)])
            assert bench.answer(client) == [(E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)]
        assert bench.produce(client, numbered(0, epoch=0)) == [(E.INVALID_PRODUCER_EPOCH, -1)]
        bench.left.clear()
        bench.send(client, [numbered(2)])
        bench.until(lambda: bench.left)
        assert bench.plane.produce_with(bench.left.pop()[1], [Verdict(gap_code=E.NOT_LEADER_OR_FOLLOWER)])
        assert bench.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1)]
    assert bench.produce(other, numbered(3)) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "what it lacks will come again"
    assert not bench.left, "nor is anybody asked"
    assert ends(bench, handle) == (1, 1, 1)


def test_a_first_sequence_where_nothing_has_ever_been_is_a_gap_too(bench, replica):
    """A leader that does not know that it is none any more may lack the first record of all."""
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()
    for gap_code in (E.NOT_LEADER_OR_FOLLOWER, E.OUT_OF_ORDER_SEQUENCE_NUMBER):
        with much_later(bench):
            bench.send(client, [("t", 0, records_of(1, producer=(7, 0, 1)))])
            bench.until(lambda: bench.left)
        reason, request = bench.left.pop()
        assert reason is Left.GAP
        assert bench.plane.produce_with(request, [Verdict(gap_code=gap_code)])
        assert bench.answer(client) == [(gap_code, -1)]
    with much_later(bench):
        bench.send(client, [("t", 0, records_of(1, producer=(7, 0, number))) for number in (0, 1)])
        bench.until(lambda: bench.left)
    assert bench.plane.produce_with(bench.left.pop()[1], [Verdict(gap_code=E.NOT_LEADER_OR_FOLLOWER)] * 2)
    bench.until(lambda: bench.plane.state(handle).durable_offset == 2)
    bench.plane.commit(handle, TERM, 2)
    assert bench.answer(client) == [(0, 0), (0, 1)], "in one request: the second one lacks nothing when its turn is"


def test_a_verdict_on_gaps_refuses_nothing_else(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()
    for number in (0, 1):
        bench.send(client, [("t", 0, records_of(1, producer=(7, 0, number)))])
        bench.until(lambda number=number: bench.plane.state(handle).durable_offset == number + 1)
    bench.plane.commit(handle, TERM, 2)
    assert [bench.answer(client), bench.answer(client)] == [[(0, 0)], [(0, 1)]]
    with much_later(bench):
        bench.send(client, [("t", 0, records_of(1, producer=(7, 0, number))) for number in (2, 3)])
        bench.until(lambda: bench.left)
    assert bench.plane.produce_with(bench.left.pop()[1], [Verdict(gap_code=E.NOT_LEADER_OR_FOLLOWER)] * 2)
    bench.until(lambda: bench.plane.state(handle).durable_offset == 4)
    bench.plane.commit(handle, TERM, 4)
    assert bench.answer(client) == [(0, 2), (0, 3)], "the second one lacks nothing when its turn has come"


def test_a_retry_waits_for_the_commit_of_the_first_one_also_where_it_is_in_segments_only(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    clients = [bench.connect() for _ in range(2)]
    bench.send(clients[0], [("t", 0, records_of(1, producer=(7, 0, 0)))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    taken = bench.plane.write_behind_take(handle, 1 << 20)
    assert [batch.base_offset for batch in taken] == [0], "what is durable is written behind"
    bench.plane.write_behind_done(handle, 1)
    bench.send(clients[1], [("t", 0, records_of(1, producer=(7, 0, 0)))])
    bench.until(lambda: bench.plane.statistics()["duplicates"] == 1)
    assert bench.plane.statistics()["produces_pending"] == 2
    bench.plane.commit(handle, TERM, 1)
    assert [bench.answer(client) for client in clients] == [[(0, 0)], [(0, 0)]]


def test_one_voter_again_and_what_is_durable_is_committed(bench, replica):
    handle = replica()
    bench.plane.arm(handle, TERM)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 1)
    bench.plane.set_replicated(handle, on=False)
    assert bench.answer(client) == [(0, 0)]
    assert bench.plane.take_appended() == []


# -- a follower


def test_a_follower_keeps_offsets_epochs_and_bytes_as_they_are_sent(bench, replica):
    handle = replica(log_end_offset=5)
    bench.plane.follow(handle, TERM)
    batches = sent(5, 2, epoch=1) + sent(7, 1) + sent(8, 3)
    appended = bench.plane.append_replica(handle, TERM, batches)
    assert (appended.base_offset, appended.next_offset) == (5, 11)
    assert ends(bench, handle) == (5, 5, 11)
    bench.settle()
    bench.until(lambda: appended.commit.durable)
    assert ends(bench, handle) == (5, 11, 11)
    assert bench.plane.read_log(handle, 5) == batches
    bench.plane.commit(handle, TERM, 8)
    assert [base for base, _values in bench.readable(handle, 5)] == [5, 7]
    assert [record[3] for record in bench.journal_records()] == [5, 7, 8]
    bench.send(bench.connect(), [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    assert bench.left[0][0] is Left.UNKNOWN


def test_a_follower_takes_what_its_leader_took_whatever_sequence_is_the_first_of_all(bench, replica):
    """It may have been taken by an earlier release."""
    handle = replica()
    bench.plane.follow(handle, TERM)
    assert bench.plane.append_replica(handle, TERM, sent(0, 1, producer=(7, 0, 5))).next_offset == 1
    bench.settle()
    (known,) = bench.plane.dump_producers(handle)
    assert (known.producer_id, known.batches[0].last_sequence) == (7, 5)


@pytest.mark.parametrize(
    "batches",
    [
        sent(6),
        sent(4),
        sent(5) + sent(7),
        sent(5, epoch=TERM + 1),
        sent(5) + sent(6, epoch=TERM - 1),
    ],
    ids=["gap", "overlap", "gap inside", "epoch above the term", "falling epoch"],
)
def test_what_does_not_follow_is_refused_and_nothing_is_appended(bench, replica, batches):
    handle = replica(log_end_offset=5)
    bench.plane.follow(handle, TERM)
    with pytest.raises(ValueError, match="append"):
        bench.plane.append_replica(handle, TERM, batches)
    assert ends(bench, handle) == (5, 5, 5)


def test_damaged_bytes_and_strangers_are_refused(bench, replica):
    handle = replica()
    with pytest.raises(OSError, match="append") as refused:
        bench.plane.append_replica(handle, TERM, sent(0))
    assert refused.value.errno == errno.EPERM
    bench.plane.follow(handle, TERM)
    for term in (TERM - 1, TERM + 1):
        with pytest.raises(OSError, match="append") as refused:
            bench.plane.append_replica(handle, term, sent(0))
        assert refused.value.errno == errno.ESTALE
    assert bench.plane.append_replica(handle, TERM, sent(0) + sent(1, crc=1)).error_code is E.CORRUPT_MESSAGE
    assert bench.plane.state(handle).log_end_offset == 0


def test_a_follower_knows_the_producers_when_it_leads(bench, replica):
    handle = replica()
    bench.plane.follow(handle, TERM)
    bench.plane.append_replica(handle, TERM, sent(0, 2, producer=(7, 0, 0)) + sent(2, 1, producer=(7, 0, 2)))
    bench.settle()
    bench.plane.commit(handle, TERM, 3)
    bench.plane.arm(handle, TERM + 1)
    client = bench.connect()
    assert bench.produce(client, ("t", 0, records_of(1, producer=(7, 0, 2)))) == [(0, 2)]
    bench.send(client, [("t", 0, records_of(1, producer=(7, 0, 3)))])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 4)
    bench.plane.commit(handle, TERM + 1, 4)
    assert bench.answer(client) == [(0, 3)]


# -- cuts


@pytest.fixture
def follower(bench, replica):
    """Five batches of one record, the first two committed, the last two of a later epoch than those before."""
    handle = replica()
    bench.plane.follow(handle, TERM)
    batches = b"".join(sent(n, epoch=2 if n < 3 else TERM, producer=(7, 0, n)) for n in range(5))
    bench.plane.append_replica(handle, TERM, batches)
    bench.settle()
    bench.plane.commit(handle, TERM, 2)
    return handle


def test_a_cut_is_journalled_behind_what_it_takes_and_the_log_goes_on_from_there(bench, follower):
    commit = bench.plane.truncate(follower, 3, 2)
    assert ends(bench, follower) == (2, 3, 3)
    assert in_memory(bench, follower) == [(0, 2), (1, 2), (2, 2)]
    bench.plane.reset_producers(follower, [])
    bench.plane.follow(follower, TERM + 1)
    bench.plane.append_replica(follower, TERM + 1, sent(3, epoch=TERM + 1))
    bench.settle()
    bench.until(lambda: commit.durable)
    assert in_memory(bench, follower) == [(0, 2), (1, 2), (2, 2), (3, TERM + 1)]
    cut = bench.journal_entries()[-2]
    assert (cut.kind, cut.offset, cut.argument) == (CUT, 3, 2)
    state = bench.plane.state(follower)
    assert state.dirty_bytes == state.unwritten_bytes == state.tail_bytes


def test_a_cut_below_what_is_in_segments_empties_memory(bench, follower):
    bench.plane.write_behind_take(follower, 1 << 20)
    bench.plane.write_behind_done(follower, 4)
    bench.plane.truncate(follower, 3, 2)
    state = bench.plane.state(follower)
    assert (state.written_offset, state.tail_offset, state.tail_bytes, state.dirty_bytes) == (3, 3, 0, 0)
    assert bench.plane.statistics()["tail_clean_bytes"] == 0
    assert in_memory(bench, follower, 0) is None
    bench.plane.append_replica(follower, TERM, sent(3))
    bench.settle()
    assert [batch.base_offset for batch in bench.plane.write_behind_take(follower, 1 << 20)] == [3]
    bench.plane.write_behind_done(follower, 4)
    assert in_memory(bench, follower, 3) == [(3, TERM)]


def test_what_is_left_of_the_cache_of_a_cut_partition_is_evicted_as_ever(bench, replica):
    handle = replica()
    bench.plane.follow(handle, TERM)
    for offset in range(3):
        bench.plane.append_replica(handle, TERM, sent(offset))
        bench.settle()
    bench.plane.write_behind_done(handle, 3)
    bench.plane.truncate(handle, 1, TERM)
    bench.plane.append_replica(handle, TERM, sent(1))
    bench.settle()
    bench.plane.write_behind_done(handle, 2)
    assert bench.plane.state(handle).tail_bytes > 0
    bench.plane.set_tail_bytes_max(0)
    state, statistics = bench.plane.state(handle), bench.plane.statistics()
    assert (state.tail_bytes, state.tail_offset, statistics["tail_clean_bytes"]) == (0, 2, 0)


def test_what_is_committed_is_never_cut_nor_the_inside_of_a_batch(bench, replica, follower):
    for offset in (1, 6):
        with pytest.raises(ValueError, match="truncate"):
            bench.plane.truncate(follower, offset, 2)
    other = replica("other")
    bench.plane.follow(other, TERM)
    bench.plane.append_replica(other, TERM, sent(0, 3))
    bench.settle()
    with pytest.raises(ValueError, match="truncate"):
        bench.plane.truncate(other, 1, 2)
    bench.plane.arm(other, TERM + 1)
    with pytest.raises(OSError, match="truncate") as refused:
        bench.plane.truncate(other, 0, 2)
    assert refused.value.errno == errno.EPERM
    assert len(bench.journal_entries()) == 2


def test_a_batch_may_leave_as_many_offsets_out_as_it_can_say(bench, replica):
    handle = replica("t")
    bench.plane.follow(handle, TERM)
    far = sent(0, last_offset_delta=2**31 - 1)
    bench.plane.append_replica(handle, TERM, far + sent(2**31))
    bench.settle()
    assert bench.plane.state(handle).log_end_offset == 2**31 + 1


def test_appends_that_are_on_their_way_are_waited_for(stalled):
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    stalled.plane.follow(handle, TERM)
    stalled.plane.append_replica(handle, TERM, sent(0))
    with pytest.raises(OSError, match="truncate") as refused:
        stalled.plane.truncate(handle, 0, 0)
    assert refused.value.errno == errno.EBUSY


def test_producers_after_a_cut_are_those_of_the_files_and_of_what_memory_has(bench, follower):
    bench.plane.write_behind_take(follower, 1 << 20)
    bench.plane.write_behind_done(follower, 1)
    (as_of_one,) = bench.plane.dump_producers(follower, 1)
    bench.plane.truncate(follower, 3, 2)
    lib.tpc_plane_set_monotonic(bench.plane.pointer, NOW_MS + 5)
    bench.plane.reset_producers(follower, [as_of_one])
    (known,) = bench.plane.dump_producers(follower)
    assert known.last_append_ms == NOW_MS + 5, "their records' time says nothing of when they came"
    assert [batch.base_offset for batch in known.batches] == [0, 1, 2]


# -- trouble


def test_a_journal_that_fails_ends_the_roles_of_those_it_touched(bench, replica):
    touched, other = replica("touched"), replica("other")
    alone = bench.lead("alone", settings=settings_with(leader_epoch=1))
    for handle in (touched, other):
        bench.plane.arm(handle, TERM)
    clients = [bench.connect() for _ in range(2)]
    bench.send(clients[0], [("touched", 0, records_of(1))])
    bench.until(lambda: bench.plane.state(touched).durable_offset == 1)
    bench.break_disk()
    bench.send(clients[1], [("touched", 0, records_of(1)), ("alone", 0, records_of(1))])
    bench.until(lambda: bench.failures)
    assert bench.answer(clients[0]) == [(E.NOT_LEADER_OR_FOLLOWER, -1)], "durable here, and committed perhaps"
    assert bench.answer(clients[1]) == [(E.KAFKA_STORAGE_ERROR, -1)] * 2
    assert [bench.plane.state(handle).role for handle in (touched, other, alone)] == [0, 1, 1]
    bench.mend_disk()
    bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    with pytest.raises(OSError, match="append"):
        bench.plane.append(touched, records_of(1))
    with pytest.raises(ValueError, match="arm"):
        bench.plane.arm(touched, TERM)
    bench.plane.arm(touched, TERM + 1)
    assert bench.plane.append(touched, records_of(1)).base_offset == 1
