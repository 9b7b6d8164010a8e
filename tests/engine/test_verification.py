"""Batches of transactions: taken where one is open, else behind their coordinator's word while nothing has ended it."""

import select
import struct

import pytest

from tests.engine.test_produce_paths_agree import produce_request
from tests.support.plane_bench import NOW_MS, records_of, settings_with
from tests.support.plane_values import Left, PartitionFlag, Verdict
from tests.support.record_batches import TRANSACTIONAL
from tpc_broker.error_codes import ErrorCode as E

TERM = 3
PRODUCER = (7, 0)


def sent(sequence=0, *, epoch=0, count=1, producer_id=7, attributes=TRANSACTIONAL):
    return records_of(count, attributes=attributes, producer=(producer_id, epoch, sequence))


@pytest.fixture
def led(bench):
    bench.plane.take_transactions()
    return bench.lead("t")


class Client:
    def __init__(self, bench):
        self.bench, self.socket = bench, bench.connect()

    def sends(self, records, **fields):
        self.bench.send(self.socket, [("t", 0, records)], transactional_id="id", **fields)

    def is_told(self, records, **fields):
        """Of a batch that C takes."""
        self.sends(records, **fields)
        return self.bench.answer(self.socket)[0]

    def waits(self, records, **fields):
        """For a batch whose coordinator is to be asked."""
        self.sends(records, **fields)
        return self.left()

    def left(self):
        self.bench.until(lambda: self.bench.left)
        why, request = self.bench.left.pop()
        assert why is Left.VERIFY
        return request

    def is_told_with(self, request, guard):
        assert self.bench.plane.produce_with(request, [Verdict(guard=guard)])
        return self.bench.answer(self.socket)[0]

    def begins(self, records, handle, producer=PRODUCER, **fields):
        """A transaction, whose coordinator says yes."""
        request = self.waits(records)
        guard = self.bench.plane.begin_verification(handle, producer, **fields)
        told = self.is_told_with(request, guard)
        self.bench.plane.end_verification(handle, producer[0], guard)
        return told


@pytest.fixture
def client(bench):
    return Client(bench)


def end(bench, handle, *, epoch, commits=True, producer_id=7, version=2):
    bench.plane.append_marker(handle, (producer_id, epoch), 0, commits=commits, version=version)
    bench.settle()


def test_the_first_batch_of_a_transaction_waits_for_its_coordinator_and_the_next_for_nobody(bench, led, client):
    assert client.begins(sent(0), led) == (E.NONE, 0)
    assert client.is_told(sent(1)) == (E.NONE, 1)
    assert bench.plane.state(led).last_stable_offset == 0
    end(bench, led, epoch=1)
    assert client.begins(sent(0, epoch=1), led, (7, 1)) == (E.NONE, 3)


def test_without_the_coordinators_word_nothing_is_appended(bench, led, client):
    request = client.waits(sent(0))
    assert bench.plane.produce_with(request, [Verdict()]) is False
    assert bench.plane.fallback_reason is Left.VERIFY
    assert client.is_told_with(request, 99) == (E.INVALID_TXN_STATE, -1)
    assert bench.plane.state(led).log_end_offset == 0


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_is_refused_whose_transaction_ends_while_its_coordinator_is_asked(bench, led, client, version, commits):
    assert client.begins(sent(0), led) == (E.NONE, 0)
    end(bench, led, epoch=0 if version == 1 else 1, commits=commits, version=version)
    epoch, sequence = (0, 1) if version == 1 else (1, 0)
    request = client.waits(sent(sequence, epoch=epoch))
    guard = bench.plane.begin_verification(led, (7, epoch), sequence)
    end(bench, led, epoch=epoch + version - 1, commits=commits, version=version)
    refused_as = E.INVALID_TXN_STATE if version == 1 else E.INVALID_PRODUCER_EPOCH
    assert client.is_told_with(request, guard) == (refused_as, -1)
    assert bench.plane.state(led).last_stable_offset == bench.plane.state(led).log_end_offset


def test_a_marker_of_the_transaction_before_has_the_coordinator_asked_once_more(bench, led, client):
    """From version 2 on a producer goes on before its last markers are written."""
    assert client.begins(sent(0), led) == (E.NONE, 0)
    topics = [("t", [(0, sent(0, epoch=1))])]
    payload = produce_request(12, topics, acks=-1, timeout_ms=30_000, transactional_id=b"id", correlation_id=1)
    client.socket.sendall(struct.pack(">i", len(payload)) + payload)
    request = client.left()
    overtaken = bench.plane.begin_verification(led, (7, 1))
    end(bench, led, epoch=1)
    assert bench.plane.produce_with(request, [Verdict(guard=overtaken)]) is False
    assert bench.plane.fallback_reason is Left.VERIFY
    bench.plane.end_verification(led, 7, overtaken)
    guard = bench.plane.begin_verification(led, (7, 1))
    assert bench.plane.produce_with(request, [Verdict(guard=guard)])
    assert bench.plane.state(led).log_end_offset == 3


def test_before_version_2_a_client_has_waited_for_the_markers_before_it_goes_on(bench, led, client):
    assert client.begins(sent(0), led) == (E.NONE, 0)
    request = client.waits(sent(0, epoch=1))
    overtaken = bench.plane.begin_verification(led, (7, 1))
    end(bench, led, epoch=1)
    assert client.is_told_with(request, overtaken) == (E.INVALID_TXN_STATE, -1)


def test_upkeep_of_producers_leaves_verifications_alone(bench, led, client):
    request = client.waits(sent(0))
    guard = bench.plane.begin_verification(led, PRODUCER)
    assert bench.plane.expire_producers(led, NOW_MS) == 0
    assert client.is_told_with(request, guard) == (E.NONE, 0)


def test_a_late_marker_of_an_earlier_transaction_ends_no_later_ones_verification(bench, led, client):
    """The one of the transaction before this one has come to other partitions alone."""
    assert client.begins(sent(0), led) == (E.NONE, 0)
    end(bench, led, epoch=1)
    request = client.waits(sent(0, epoch=2))
    guard = bench.plane.begin_verification(led, (7, 2))
    end(bench, led, epoch=1)
    assert client.is_told_with(request, guard) == (E.NONE, 3)


def test_a_guard_is_of_one_verification_alone(bench, led, client):
    request = client.waits(sent(0))
    old = bench.plane.begin_verification(led, PRODUCER)
    bench.plane.end_verification(led, 7, old)
    new = bench.plane.begin_verification(led, PRODUCER)
    assert new != old
    assert client.is_told_with(request, old) == (E.INVALID_TXN_STATE, -1)


def test_of_two_that_ask_together_one_that_gives_up_takes_nothing_from_the_other(bench, led, client):
    request = client.waits(sent(0))
    guards = [bench.plane.begin_verification(led, PRODUCER) for _ in range(2)]
    assert guards[0] == guards[1]
    bench.plane.end_verification(led, 7, guards[0])
    assert client.is_told_with(request, guards[1]) == (E.NONE, 0)


def test_the_first_producer_of_a_partition_takes_nothing_from_those_that_still_ask(bench, led, client):
    other = Client(bench)
    requests = [client.waits(sent(0)), other.waits(sent(0, producer_id=8))]
    guards = [bench.plane.begin_verification(led, (producer_id, 0)) for producer_id in (7, 8)]
    assert client.is_told_with(requests[0], guards[0]) == (E.NONE, 0)
    assert bench.plane.produce_with(requests[1], [Verdict(guard=guards[1])])
    assert bench.answer(other.socket)[0] == (E.NONE, 1)


def test_an_earlier_epoch_is_refused_before_anybody_is_asked(bench, led, client):
    assert client.begins(sent(0, epoch=4), led, (7, 4)) == (E.NONE, 0)
    assert bench.plane.begin_verification(led, (7, 3)) is E.INVALID_PRODUCER_EPOCH
    bench.plane.begin_verification(led, (8, 4))
    assert bench.plane.begin_verification(led, (8, 3)) is E.INVALID_PRODUCER_EPOCH


def test_a_later_epoch_takes_the_place_of_an_earlier_ones_verification(bench, led, client):
    request = client.waits(sent(0))
    guard = bench.plane.begin_verification(led, PRODUCER)
    bench.plane.begin_verification(led, (7, 1))
    assert client.is_told_with(request, guard) == (E.INVALID_TXN_STATE, -1)


@pytest.mark.parametrize(("begins_anew", "told"), [(True, E.OUT_OF_ORDER_SEQUENCE_NUMBER), (False, E.NONE)])
def test_of_an_unknown_producer_each_transaction_begins_with_sequence_0_from_version_2_on(
    bench, led, client, begins_anew, told
):
    bench.plane.append(led, records_of(1))
    bench.settle()
    assert client.begins(sent(5), led, sequence=5, begins_anew=begins_anew)[0] == told


def test_while_a_producer_is_verified_its_lowest_sequence_comes_first(bench, led, client):
    bench.plane.append(led, records_of(1))
    bench.settle()
    other = Client(bench)
    first, second = client.waits(sent(3)), other.waits(sent(4))
    guard = bench.plane.begin_verification(led, PRODUCER, 4, begins_anew=False)
    assert bench.plane.begin_verification(led, PRODUCER, 3, begins_anew=False) == guard
    assert other.is_told_with(second, guard) == (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert client.is_told_with(first, guard) == (E.NONE, 1)
    assert other.is_told(sent(4)) == (E.NONE, 2)


def test_a_batch_that_is_in_no_transaction_is_refused_while_one_is_open(bench, led, client):
    assert client.begins(sent(0), led) == (E.NONE, 0)
    assert client.is_told(sent(1, attributes=0)) == (E.INVALID_TXN_STATE, -1)
    end(bench, led, epoch=1)
    assert client.is_told(sent(0, epoch=1, attributes=0)) == (E.NONE, 2)


def test_a_duplicate_of_an_open_transaction_is_answered_as_one_and_one_of_an_ended_one_is_fenced(bench, led, client):
    assert client.begins(sent(0), led) == (E.NONE, 0)
    assert client.is_told(sent(0)) == (E.NONE, 0)
    end(bench, led, epoch=1)
    request = client.waits(sent(0))
    assert client.is_told_with(request, 1) == (E.INVALID_PRODUCER_EPOCH, -1)


def test_guards_die_with_the_leadership(bench, client):
    bench.plane.take_transactions()
    handle = bench.lead("t", is_led=False, settings=settings_with(leader_epoch=TERM))
    bench.plane.set_replicated(handle)
    bench.plane.arm(handle, TERM)
    request = client.waits(sent(0))
    guard = bench.plane.begin_verification(handle, PRODUCER)
    bench.plane.disarm(handle)
    bench.plane.arm(handle, TERM + 1)
    assert client.is_told_with(request, guard) == (E.INVALID_TXN_STATE, -1)


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("flags", [(), (PartitionFlag.RELAXED,)])
def test_what_is_in_a_transaction_is_told_when_it_is_committed(bench, acks, flags):
    """Of a replica whose majority says nothing by itself."""
    bench.plane.take_transactions()
    handle = bench.lead("t", is_led=False, settings=settings_with(*flags, leader_epoch=TERM))
    bench.plane.set_replicated(handle)
    bench.plane.arm(handle, TERM)
    bench.plane.append(handle, sent(0))
    bench.settle()
    client = Client(bench)
    client.sends(sent(1), acks=acks)
    bench.until(lambda: bench.plane.state(handle).log_end_offset == 2)
    bench.settle()
    bench.turn()
    assert not select.select([client.socket], [], [], 0)[0]
    bench.plane.commit(handle, TERM, 2)
    assert bench.answer(client.socket) == [(E.NONE, 1)]


def test_internal_topics_take_none(bench, client):
    bench.plane.take_transactions()
    bench.lead("t", settings=settings_with(PartitionFlag.INTERNAL))
    assert client.is_told(sent(0)) == (E.INVALID_TOPIC_EXCEPTION, -1)


def test_more_verifications_than_there_is_room_for_are_refused(bench, led):
    for producer_id in range(4096):
        assert bench.plane.begin_verification(led, (producer_id, 0)) > 0
    with pytest.raises(OSError, match="verify"):
        bench.plane.begin_verification(led, (5000, 0))
    bench.plane.end_verification(led, 0, 1)
    assert bench.plane.begin_verification(led, (5000, 0)) > 0
