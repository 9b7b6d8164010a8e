"""Transactions that are open for too long, and ids that nobody uses."""

import pytest

from tests.coordinator.transactions.places import ahead, behind, in_state
from tests.coordinator.transactions.scenario import A, B, Producer, TransactionScenario
from tpc_broker import limits
from tpc_broker.coordinator.effects import size_of
from tpc_broker.coordinator.transactions import stored as transactions_stored
from tpc_broker.coordinator.transactions.records import transaction_record
from tpc_broker.coordinator.transactions.states import AT_REST, State
from tpc_broker.coordinator.transactions.stored import LOOKED_AT_ONCE
from tpc_broker.coordinator.transactions.transaction import NO_TIMEOUT_MS, Transaction
from tpc_broker.error_codes import ErrorCode as E

DAY_MS = 86_400_000


def opened(timeout_ms=5_000, **more):
    s = TransactionScenario(**more)
    p = s.init(timeout_ms=timeout_ms)
    s.add(p, A)
    return s, p


def test_one_that_is_open_for_too_long_is_aborted_in_the_next_epoch():
    s, p = opened()
    s.elapse(4_999)
    assert s.state() == "Ongoing"
    s.elapse(1)
    assert s.state() == "CompleteAbort"
    [marker] = s.markers
    assert (marker.producer_epoch, marker.commit) == (p.epoch + 1, False)
    assert s.add(p, A) is E.PRODUCER_FENCED
    assert s.verify(p, A) == [E.PRODUCER_FENCED]
    assert s.end(p, commit=True) is E.PRODUCER_FENCED, "KAFKA-20785: not INVALID_TXN_STATE"
    assert s.end(p, commit=False) == ahead(p), "what it wanted has happened"


def test_its_time_runs_from_the_first_partition():
    s, p = opened()
    s.elapse(4_000)
    assert s.add(p, B) is E.NONE
    s.elapse(1_000)
    assert s.state() == "CompleteAbort"


def test_the_next_one_has_its_own_time():
    s, p = opened()
    s.elapse(4_000)
    p = s.end(p, commit=True)
    s.add(p, A)
    s.elapse(4_999)
    assert s.state() == "Ongoing"
    s.elapse(1)
    assert s.state() == "CompleteAbort"


def test_after_a_load_time_goes_on():
    s, _p = opened()
    s.elapse(3_000)
    s.start()
    s.elapse(1_999)
    assert s.state() == "Ongoing"
    s.elapse(1)
    assert s.state() == "CompleteAbort"


def test_a_clock_that_is_set_ends_nothing():
    s, _p = opened()
    s.now += DAY_MS
    s.machine.clock_was_set(DAY_MS)
    s.elapse(4_999)
    assert s.state() == "Ongoing"
    s.elapse(1)
    assert s.state() == "CompleteAbort"


def test_an_abort_that_could_not_be_written_is_tried_again_later():
    s, p = opened()
    s.fail_with = E.KAFKA_STORAGE_ERROR
    s.elapse(5_000)
    assert s.machine.next_deadline_ms() == s.now + 1_000
    s.fail_with = None
    assert s.add(p, B) is E.NONE, "it may still go on"
    s.fail_with = E.KAFKA_STORAGE_ERROR
    s.elapse(3_000)
    assert s.state() == "Ongoing"
    s.fail_with = None
    s.elapse(1_000)
    assert (s.state(), s.stored().producer_epoch) == ("CompleteAbort", p.epoch + 1), "raised once"


def test_an_abort_waits_for_a_record_that_is_under_way():
    s, p = opened()
    s.hold = True
    token = s.ask_end(p, commit=True)
    s.elapse(10_000)
    s.hold = False
    s.settle()
    assert s.told(token) == ahead(p)
    assert s.state() == "CompleteCommit"
    s, p = opened()
    s.hold = True
    s.ask_add(p, B)
    s.elapse(10_000)
    s.hold = False
    s.settle()
    s.elapse(0)
    assert s.state() == "CompleteAbort"


def test_without_a_producer_id_at_hand_an_abort_comes_later():
    s, p = opened()
    found = s.stored()
    s.log.append(transaction_record("t", Transaction(
        p.producer_id, 32_766, State.ONGOING, 5_000, s.now, found.start_ms, found.partitions, p.producer_id,
        client_version=2,
    )))  # fmt: skip
    s.start()
    s.has_ids = False
    s.elapse(7_500)
    assert s.state() == "Ongoing"
    s.has_ids = True
    s.elapse(1_000)
    assert (s.state(), s.stored().producer_epoch) == ("CompleteAbort", 0)


def test_those_in_two_phases_are_not_ended_here():
    s, _p = opened()
    s.log.append(transaction_record("t", Transaction(1, 0, State.ONGOING, NO_TIMEOUT_MS, s.now, s.now, (A,))))
    s.start()
    s.elapse(60 * DAY_MS)
    assert s.state() == "Ongoing"


def test_of_many_some_are_aborted_at_once():
    s = TransactionScenario()
    for index in range(250):
        p = s.init(str(index), timeout_ms=1_000)
        s.add(p, A, name=str(index))
    s.hold = True
    s.now += 1_000
    counts = []
    while s.machine.next_deadline_ms() <= s.now:
        effects = s.machine.on_deadline(s.now)
        counts.append(len(effects.writes))
        s.run(effects)
    assert counts == [100, 100, 50]


# Ids that nobody uses


@pytest.mark.parametrize("state", [each for each in State if each in AT_REST])
def test_an_id_that_nobody_uses_is_forgotten(state):
    s, p = in_state(state)
    s.elapse(9_999)
    assert s.state() == state.value
    s.elapse(1_000)
    assert s.machine.describe("t").error_code is E.TRANSACTIONAL_ID_NOT_FOUND
    assert s.log[-1].value is None
    assert s.stored_records() == []
    assert s.machine.statistics().ids_bytes == 0
    assert s.add(p, A) is E.INVALID_PRODUCER_ID_MAPPING
    assert s.init(producer=p) == Producer(2, 0), "the next one is new"


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_one_that_is_open_or_ends_is_kept(state):
    s = TransactionScenario(expiration_ms=1_000, expiration_interval_ms=100)
    p = s.init(timeout_ms=60_000)
    s.add(p, A)
    s.hold_markers = True
    if state is not State.ONGOING:
        s.end(p, commit=state is State.PREPARE_COMMIT)
    s.elapse(50_000)
    assert s.state() == state.value


def test_nothing_is_added_to_one_whose_tombstone_is_under_way():
    """KAFKA-5279."""
    s, p = in_state(State.DEAD)
    assert s.add(p, A) is E.CONCURRENT_TRANSACTIONS
    assert s.init() is E.CONCURRENT_TRANSACTIONS
    assert s.machine.describe("t").error_code is E.TRANSACTIONAL_ID_NOT_FOUND
    assert s.listed() == []
    s.hold = False
    s.settle()
    assert s.add(p, A) is E.INVALID_PRODUCER_ID_MAPPING


def test_a_tombstone_that_could_not_be_written_leaves_the_id():
    s, p = in_state(State.DEAD)
    s.fail_with = E.KAFKA_STORAGE_ERROR
    s.settle()
    s.hold, s.fail_with = False, None
    assert s.add(p, A) is E.NONE


def test_a_use_keeps_an_id():
    s, p = in_state(State.EMPTY)
    for _ in range(5):
        s.elapse(9_000)
        p = s.init(producer=p)
    assert s.state() == "Empty"


def test_an_id_that_expires_is_not_written_by_others():
    """The one that is at the front has a record under way."""
    s = TransactionScenario(expiration_ms=10_000, expiration_interval_ms=1_000)
    p = s.init("front")
    s.init("behind")
    s.elapse(9_900)
    s.hold = True
    s.ask_add(p, A, name="front")
    s.elapse(100)
    s.hold = False
    s.settle()
    s.elapse(1_000)
    assert [name for name, _, _ in s.listed()] == ["front"]


def test_of_many_ids_some_are_looked_at_in_one_step():
    s = TransactionScenario(expiration_ms=DAY_MS)
    for index in range(2_500):
        s.init(str(index))
    s.now += DAY_MS
    counts = []
    while s.machine.next_deadline_ms() <= s.now:
        effects = s.machine.on_deadline(s.now)
        counts += [len(write.records) for write in effects.writes]
        s.run(effects)
    assert sum(counts) == 2_500
    assert max(counts) < 2 * LOOKED_AT_ONCE
    assert s.stored_records() == []


def test_ids_that_are_used_are_looked_at_in_short_steps_too():
    s = TransactionScenario(expiration_ms=2 * DAY_MS, expiration_interval_ms=DAY_MS)
    for index in range(2_500):
        s.init(str(index))
    s.now += DAY_MS
    steps = 0
    while s.machine.next_deadline_ms() <= s.now:
        assert s.machine.on_deadline(s.now).writes == []
        steps += 1
    assert 2_500 // (2 * LOOKED_AT_ONCE) < steps <= 2_500 // LOOKED_AT_ONCE + 1
    assert s.machine.next_deadline_ms() == s.now + DAY_MS


def test_tombstones_come_in_batches_that_fit(monkeypatch):
    """KAFKA-13099."""
    monkeypatch.setattr(transactions_stored, "LOOKED_AT_ONCE", 10_000)
    s = TransactionScenario(ids_bytes_max=1 << 30)
    for index in range(600):
        s.init(str(index).rjust(30_000, "x"))
    s.hold = True
    s.elapse(8 * DAY_MS)
    write = s.held[0]
    assert limits.OWN_BATCH_BYTES_MAX - 31_000 < sum(map(size_of, write.records)) <= limits.OWN_BATCH_BYTES_MAX
    s.hold = False
    s.settle()
    s.elapse(0)
    assert s.stored_records() == []


def test_a_producer_that_was_fenced_by_time_goes_on_with_its_epoch():
    """As in Kafka: InitProducerId with the epoch of before is told the one that the abort has left."""
    s, p = opened()
    s.elapse(5_000)
    assert s.init(producer=p) == ahead(p)
    s, p = opened(server_version=1)
    s.elapse(5_000)
    assert s.init(producer=p) is E.PRODUCER_FENCED
    assert behind(s.init()) == ahead(p)
