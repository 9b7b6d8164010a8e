"""An id on its way: nothing else is looked at until it is there."""

import pytest

from tests.coordinator.transactions.places import ahead, behind, in_state, stranger
from tests.coordinator.transactions.scenario import A, B, C, Producer, TransactionScenario
from tpc_broker.coordinator.transactions.states import State
from tpc_broker.error_codes import ErrorCode as E

ON_THE_WAY = [State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE, State.DEAD]
CHANGES = {
    "init": lambda s, p: s.ask_init(producer=p),
    "add": lambda s, p: s.ask_add(p, C),
    "commit": lambda s, p: s.ask_end(p, commit=True),
    "abort": lambda s, p: s.ask_end(p, commit=False),
    "abort of before": lambda s, p: s.ask_end(p, commit=False, client_version=0),
}


def all_are_told_to_come_again(s, p):
    for who in (p, behind(p), ahead(p), stranger(p)):
        assert s.add(who, A) is E.CONCURRENT_TRANSACTIONS
        assert s.verify(who, A) == [E.CONCURRENT_TRANSACTIONS]
        assert s.end(who, commit=True) is E.CONCURRENT_TRANSACTIONS
        assert s.end(who, commit=False, client_version=0) is E.CONCURRENT_TRANSACTIONS
        assert s.init(producer=who) is E.CONCURRENT_TRANSACTIONS
    assert s.init() is E.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize("state", ON_THE_WAY)
def test_whoever_asks_comes_again(state):
    s, p = in_state(state)
    all_are_told_to_come_again(s, p)


@pytest.mark.parametrize("change", CHANGES)
def test_while_a_record_is_under_way(change):
    s, p = in_state(State.ONGOING)
    s.hold = True
    token = CHANGES[change](s, p)
    assert token not in s.replies
    all_are_told_to_come_again(s, p)
    assert s.state() == "Ongoing", "it happens when it is durable"
    s.hold = False
    s.settle()
    assert token in s.replies


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_could_not_be_written_has_changed_nothing(change):
    s, p = in_state(State.ONGOING)
    before = s.stored_records()
    s.fail_with = E.NOT_ENOUGH_REPLICAS
    token = CHANGES[change](s, p)
    assert s.replies[token].error_code is E.COORDINATOR_NOT_AVAILABLE
    assert (s.stored_records(), s.markers) == (before, [])
    s.fail_with = None
    assert s.add(p, C) is E.NONE
    assert s.end(p, commit=True) == ahead(p)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (E.KAFKA_STORAGE_ERROR, E.NOT_COORDINATOR),
        (E.NOT_LEADER_OR_FOLLOWER, E.NOT_COORDINATOR),
        (E.MESSAGE_TOO_LARGE, E.UNKNOWN_SERVER_ERROR),
        (E.COORDINATOR_NOT_AVAILABLE, E.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_what_the_log_refused_is_told_as_a_coordinators_error(error, told):
    s, p = in_state(State.ONGOING)
    s.fail_with = error
    assert s.add(p, C) is told
    assert s.init(name="another") is told
    assert s.init() is told
    assert s.end(p, commit=True) is told


def test_a_new_id_is_pending_until_it_is_stored():
    s = TransactionScenario()
    s.hold = True
    token = s.ask_init()
    assert s.machine.describe("t").error_code is E.TRANSACTIONAL_ID_NOT_FOUND
    all_are_told_to_come_again(s, Producer(1, 5))
    s.settle()
    assert s.told(token) == Producer(1, 0)


def test_a_new_id_that_could_not_be_stored_is_none():
    s = TransactionScenario(ids_max=1)
    s.fail_with = E.KAFKA_STORAGE_ERROR
    assert s.init() is E.NOT_COORDINATOR
    s.fail_with = None
    assert s.add(Producer(1, 0), A) is E.INVALID_PRODUCER_ID_MAPPING
    assert s.init() == Producer(2, 0)


def test_other_ids_are_not_held_up():
    s, _p = in_state(State.PREPARE_COMMIT)
    q = s.init(name="q")
    assert s.add(q, A, B, name="q") is E.NONE


def test_whoever_waits_is_answered_when_the_partition_goes():
    s, p = in_state(State.ONGOING)
    s.hold = True
    tokens = [s.ask_end(p, commit=True), s.ask_init(name="new"), s.ask_init(name="newer")]
    effects = s.machine.unload()
    assert {reply.token: reply.response.error_code for reply in effects.replies} == dict.fromkeys(
        tokens, E.NOT_COORDINATOR
    )
    assert (effects.writes, effects.markers) == ([], [])
