"""InitProducerId: who gets which epoch, and who is fenced."""

import pytest

from tests.coordinator.transactions.places import ahead, behind, in_state, stranger
from tests.coordinator.transactions.scenario import A, Producer, TransactionScenario
from tpc_broker.coordinator.transactions.states import AT_REST, State
from tpc_broker.error_codes import ErrorCode as E

TIMEOUT_MAX_MS = 900_000


@pytest.mark.parametrize("state", [each for each in State if each in AT_REST])
def test_a_producer_that_begins_fences_the_one_before(state):
    s, p = in_state(state)
    new = s.init()
    assert new == ahead(p)
    assert s.state() == "Empty"
    assert s.add(p, A) is E.PRODUCER_FENCED
    assert s.init(producer=p) is E.PRODUCER_FENCED
    assert s.add(new, A) is E.NONE


@pytest.mark.parametrize("state", [each for each in State if each in AT_REST])
def test_a_producer_that_goes_on_names_its_epoch(state):
    s, p = in_state(state)
    new = s.init(producer=p)
    assert new == ahead(p)
    assert s.init(producer=p) == new, "the answer was lost"
    assert s.init(producer=new) == ahead(new)
    assert s.init(producer=p) is E.PRODUCER_FENCED
    for other in (ahead(ahead(ahead(p))), stranger(p)):
        assert s.init(producer=other) is E.PRODUCER_FENCED


def test_a_lost_answer_is_not_told_again_once_somebody_else_has_begun():
    s, p = in_state(State.EMPTY)
    s.init(producer=p)
    newer = s.init()
    assert s.init(producer=p) is E.PRODUCER_FENCED
    assert s.init(producer=behind(newer)) is E.PRODUCER_FENCED
    assert s.add(newer, A) is E.NONE


def test_after_an_end_the_epoch_of_before_may_be_named():
    """Only the end by a client of version 2 has raised it."""
    for state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        s, p = in_state(state)
        assert s.init(producer=behind(p)) == p
        s, p = in_state(state, client_version=0)
        assert s.init(producer=behind(p)) is E.PRODUCER_FENCED


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("client_version", [0, 2])
def test_one_that_is_open_is_aborted_and_the_epoch_raised_once(named, client_version):
    """KAFKA-19367."""
    s, p = in_state(State.ONGOING, client_version)
    s.hold_markers = True
    assert s.init(producer=p if named else None) is E.CONCURRENT_TRANSACTIONS
    assert s.state() == "PrepareAbort"
    assert {(one.producer_epoch, one.commit) for one in s.due} == {(p.epoch + 1, False)}
    assert s.init(producer=p if named else None) is E.CONCURRENT_TRANSACTIONS
    s.write_markers()
    assert (s.state(), s.stored().producer_epoch) == ("CompleteAbort", p.epoch + 1)
    new = s.init(producer=p if named else None)
    assert new == (ahead(p) if named else ahead(ahead(p)))


@pytest.mark.parametrize("who", [behind, ahead, stranger])
def test_whoever_has_been_fenced_cannot_abort_what_is_open(who):
    """Kafka 4.3.1 lets them, unless it is another producer id."""
    s, p = in_state(State.ONGOING)
    assert s.init(producer=who(p)) is E.PRODUCER_FENCED
    assert s.end(p, commit=True) == ahead(p)


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_one_that_ends_is_waited_for(state):
    s, p = in_state(state)
    assert s.init() is E.CONCURRENT_TRANSACTIONS
    assert s.init(producer=p) is E.CONCURRENT_TRANSACTIONS
    s.write_markers()
    assert s.init() == ahead(p)


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"name": ""}, E.INVALID_REQUEST),
        ({"producer": Producer(-1, 3)}, E.INVALID_REQUEST),
        ({"producer": Producer(3, -1)}, E.INVALID_REQUEST),
        ({"timeout_ms": 0}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": TIMEOUT_MAX_MS + 1}, E.INVALID_TRANSACTION_TIMEOUT),
        ({"enable_two_phases": True}, E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared": True}, E.UNSUPPORTED_VERSION),
    ],
)
def test_what_is_refused_at_sight(more, error):
    s, _p = in_state(State.ONGOING)
    assert s.init(**more) is error
    assert s.state() == "Ongoing"
    assert s.init(name="new", timeout_ms=TIMEOUT_MAX_MS) == Producer(2, 0)
    assert s.stored("new").timeout_ms == TIMEOUT_MAX_MS


def test_the_time_of_now_counts():
    s, _p = in_state(State.EMPTY)
    s.init(timeout_ms=7)
    assert s.stored().timeout_ms == 7


def test_ids_are_bounded_and_only_new_ones_are_refused():
    s = TransactionScenario(ids_max=3)
    s.hold = True
    tokens = [s.ask_init(name) for name in "abcd"]
    assert s.told(tokens[3]) is E.POLICY_VIOLATION, "those under way count"
    assert "transactional.ids.max" in s.replies[tokens[3]].error_message
    s.hold = False
    s.settle()
    assert s.init("a") == Producer(1, 1)
    assert s.init("e") is E.POLICY_VIOLATION
    s.elapse(8 * 86_400_000)
    assert s.init("e") == Producer(4, 0)


def test_bytes_of_ids_are_bounded():
    s = TransactionScenario(ids_bytes_max=1_000)
    made = 0
    while isinstance(s.init(f"{made:0300}"), Producer):
        made += 1
    assert made == 2
    assert s.machine.statistics().ids_bytes > 1_000
    p = s.init(f"{0:0300}")
    assert s.add(p, A, name=f"{0:0300}") is E.POLICY_VIOLATION, "it would be more"


def test_without_a_producer_id_at_hand_a_new_id_comes_again():
    s = TransactionScenario()
    s.has_ids = False
    assert s.init() is E.COORDINATOR_LOAD_IN_PROGRESS
    s.has_ids = True
    assert s.init() == Producer(1, 0)


def test_after_a_load_a_lost_answer_of_init_fences():
    """As in Kafka: the record does not say whether the epoch of before was named. Somebody else may have fenced it."""
    s, p = in_state(State.EMPTY)
    s.init(producer=p)
    s.start()
    assert s.init(producer=p) is E.PRODUCER_FENCED
    s, p = in_state(State.EMPTY)
    s.init()
    s.start()
    assert s.init(producer=p) is E.PRODUCER_FENCED


def test_after_a_load_a_lost_answer_of_an_end_is_told_again():
    for commit in (True, False):
        s, p = in_state(State.ONGOING)
        new = s.end(p, commit=commit)
        s.start()
        assert s.end(p, commit=commit) == new
        assert s.init(producer=p) == new
