"""AddPartitionsToTxn and AddOffsetsToTxn: what is added, what is verified."""

import pytest

from tests.coordinator.transactions.places import ahead, behind, in_state, stranger
from tests.coordinator.transactions.scenario import A, B, C, Producer, TransactionScenario
from tpc_broker.coordinator.transactions.messages import ListFilter
from tpc_broker.coordinator.transactions.states import AT_REST, State
from tpc_broker.coordinator.transactions.transaction import TopicPartition
from tpc_broker.error_codes import ErrorCode as E


@pytest.mark.parametrize("state", [each for each in State if each in AT_REST])
def test_the_first_ones_begin_a_transaction(state):
    s, p = in_state(state)
    s.now += 5
    assert s.add(p, A, B) is E.NONE
    found = s.stored()
    assert (found.state, found.partitions, found.start_ms) == (State.ONGOING, (A, B), s.now)


@pytest.mark.parametrize("state", [each for each in State if each in AT_REST])
def test_nothing_is_in_one_that_is_not_open(state):
    s, p = in_state(state)
    assert s.verify(p, A, B) == [E.TRANSACTION_ABORTABLE] * 2
    assert s.state() == state.value


def test_more_are_added_and_those_that_are_there_write_nothing():
    s, p = in_state(State.ONGOING)
    count = len(s.log)
    assert s.add(p, B, A, B) is E.NONE
    assert len(s.log) == count
    assert s.add(p, B, C, C) is E.NONE
    assert s.stored().partitions == (A, B, C)
    assert len(s.log) == count + 1


def test_verification_adds_nothing():
    s, p = in_state(State.ONGOING)
    count = len(s.log)
    assert s.verify(p, A, C, B) == [E.NONE, E.TRANSACTION_ABORTABLE, E.NONE]
    assert len(s.log) == count


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("state", [each for each in State if each in AT_REST or each is State.ONGOING])
def test_who_may_not(state, verify):
    s, p = in_state(state)
    before = list(s.log)
    for who, error in ((behind(p), E.PRODUCER_FENCED), (ahead(p), E.PRODUCER_FENCED),
                       (stranger(p), E.INVALID_PRODUCER_ID_MAPPING)):  # fmt: skip
        assert s.add(who, A, verify_only=verify) is error
    assert s.add(p, A, name="other", verify_only=verify) is E.INVALID_PRODUCER_ID_MAPPING
    assert s.add(p, A, name="", verify_only=verify) is E.INVALID_REQUEST
    assert s.log == before


def test_the_client_that_added_last_is_stored():
    s, p = in_state(State.EMPTY)
    s.add(p, A, client_version=2)
    assert s.stored().client_version == 2
    s.add(p, TopicPartition("__consumer_offsets", 7), client_version=0)
    assert s.stored().client_version == 0
    assert s.end(p, commit=True) == ahead(p), "how it ends is said by who ends it"
    assert s.stored().client_version == 2


def test_partitions_of_a_transaction_are_bounded():
    s = TransactionScenario(partitions_max=3)
    p = s.init()
    many = [TopicPartition("many", index) for index in range(4)]
    assert s.add(p, *many) is E.POLICY_VIOLATION
    assert s.add(p, *many[:3], *many[:3]) is E.NONE
    assert s.add(p, many[3]) is E.POLICY_VIOLATION
    assert s.add(p, many[0]) is E.NONE
    p = s.end(p, commit=True)
    assert s.add(p, many[3]) is E.NONE


def test_bytes_of_all_transactions_are_bounded():
    s = TransactionScenario(ids_bytes_max=20_000)
    names = [f"id {index}" for index in range(10)]
    producers = {name: s.init(name) for name in names}
    told = [s.add(producers[name], *many_of(20), name=name) for name in names]
    assert told == [E.NONE] * 4 + [E.POLICY_VIOLATION] * 6
    assert s.machine.statistics().ids_bytes < 30_000
    assert s.end(producers[names[0]], commit=True, name=names[0]) == ahead(producers[names[0]])
    assert s.add(producers[names[9]], *many_of(1), name=names[9]) is E.NONE, "there is room again"


def many_of(count):
    return [TopicPartition("many", index) for index in range(count)]


def test_an_addition_of_nothing_opens_it():
    """As in Kafka."""
    s, p = in_state(State.EMPTY)
    assert s.replies[s.ask_add(p)].error_code is E.NONE
    assert s.state() == "Ongoing"
    assert s.end(p, commit=True) == ahead(p)
    assert (s.state(), s.markers) == ("CompleteCommit", [])


def test_a_list_is_of_the_time_when_it_is_read():
    s = TransactionScenario()
    for name in ("a", "b", "c"):
        s.init(name)
    listed = s.machine.list_transactions(ListFilter(), s.now)
    [first] = next(part for part in listed if part)
    later, last = sorted({"a", "b", "c"} - {first.transactional_id})
    s.add(Producer({"a": 1, "b": 2, "c": 3}[later], 0), A, name=later)
    s.elapse(60_000)
    found = sorted((one.transactional_id, one.state) for part in listed for one in part)
    assert found == [(later, "CompleteAbort"), (last, "Empty")]

