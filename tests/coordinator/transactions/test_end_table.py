"""What an EndTxn answers: each state, each epoch that it may name, commit and abort, clients of both versions."""

from dataclasses import replace

import pytest

from tests.coordinator.transactions.places import ahead, behind, in_state, stranger
from tests.coordinator.transactions.scenario import A, Producer
from tpc_broker.coordinator.transactions.records import transaction_record
from tpc_broker.coordinator.transactions.states import (
    AT_REST,
    ENDS_BEFORE,
    ENDS_OF_VERSION_2,
    End,
    Standing,
    State,
)
from tpc_broker.error_codes import ErrorCode

E = ErrorCode
PENDING = [State.PREPARE_COMMIT, State.PREPARE_ABORT, State.PREPARE_EPOCH_FENCE, State.DEAD]
AT_HAND = [State.EMPTY, State.ONGOING, State.COMPLETE_COMMIT, State.COMPLETE_ABORT]
# By state and whether to commit: what is answered to the epoch of now, and to the one before. "next" is a new epoch,
# "same" that of now.
EXPECTED = {
    2: {
        (State.EMPTY, True): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.EMPTY, False): ("next", E.PRODUCER_FENCED),
        (State.ONGOING, True): ("next", E.PRODUCER_FENCED),
        (State.ONGOING, False): ("next", E.PRODUCER_FENCED),
        (State.COMPLETE_COMMIT, True): (E.INVALID_TXN_STATE, "same"),
        (State.COMPLETE_COMMIT, False): ("next", E.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, True): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.COMPLETE_ABORT, False): ("next", "same"),
    },
    0: {
        (State.EMPTY, True): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.EMPTY, False): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.ONGOING, True): ("none", E.PRODUCER_FENCED),
        (State.ONGOING, False): ("none", E.PRODUCER_FENCED),
        (State.COMPLETE_COMMIT, True): ("none", E.PRODUCER_FENCED),
        (State.COMPLETE_COMMIT, False): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.COMPLETE_ABORT, True): (E.INVALID_TXN_STATE, E.PRODUCER_FENCED),
        (State.COMPLETE_ABORT, False): ("none", E.PRODUCER_FENCED),
    },
}


def asked(state, version, commit, who):
    s, p = in_state(state, version)
    if state is State.EMPTY and who is behind:
        p = s.init(producer=p)
    named = who(p)
    told = s.end(named, commit=commit, client_version=version)
    means = {"next": Producer(p.producer_id, p.epoch + 1), "same": p, "none": Producer(-1, -1)}
    return told, {value: name for name, value in means.items()}.get(told, told), s


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", AT_HAND)
def test_of_now_and_of_before(state, commit, version):
    now, before = EXPECTED[version][state, commit]
    assert asked(state, version, commit, lambda p: p)[1] == now
    assert asked(state, version, commit, behind)[1] == before


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", AT_HAND)
def test_of_anybody_else(state, commit, version):
    assert asked(state, version, commit, ahead)[0] is E.PRODUCER_FENCED
    assert asked(state, version, commit, lambda p: behind(behind(p)))[0] is E.PRODUCER_FENCED
    assert asked(state, version, commit, stranger)[0] is E.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", PENDING)
def test_of_one_on_its_way(state, commit, version):
    for who in (lambda p: p, behind, ahead, stranger):
        assert asked(state, version, commit, who)[0] is E.CONCURRENT_TRANSACTIONS


def test_the_tables_are_looked_up_nowhere_else():
    """Each row is one of the above; the others of the epoch of before are fenced."""
    for version, table in ((2, ENDS_OF_VERSION_2), (0, ENDS_BEFORE)):
        for (state, commit), (now, before) in EXPECTED[version].items():
            for standing, means in ((Standing.CURRENT, now), (Standing.RETRY, before)):
                row = table.get((state, standing, commit), E.PRODUCER_FENCED)
                codes = {"next": End.PREPARE, "same": End.AS_BEFORE, "none": row}
                assert row is codes.get(means, means), (version, state, standing, commit)
                if means == "none":
                    assert row is (End.PREPARE if state is State.ONGOING else End.AS_BEFORE)
    assert {state for state, _, _ in ENDS_OF_VERSION_2} == set(AT_HAND)


def test_the_end_of_an_older_client_leaves_no_retry_to_a_newer_one():
    """The epoch before belongs to whom this one's InitProducerId has fenced."""
    s, p = in_state(State.EMPTY)
    newer = s.init()
    s.add(newer, A, client_version=0)
    s.end(newer, commit=True, client_version=0)
    assert s.end(p, commit=True) is E.PRODUCER_FENCED
    assert s.end(p, commit=False) is E.PRODUCER_FENCED


def test_older_clients_are_told_of_an_invalid_epoch():
    for state in AT_REST | {State.ONGOING}:
        s, p = in_state(state)
        assert s.end(ahead(p), commit=True, client_version=0, knows_fenced=False) is E.INVALID_PRODUCER_EPOCH
        assert s.add(ahead(p), client_version=0, knows_fenced=False) is E.INVALID_PRODUCER_EPOCH
        assert s.init(producer=ahead(p), knows_fenced=False) is E.INVALID_PRODUCER_EPOCH


def test_unknown_ids():
    s, p = in_state(State.EMPTY)
    for version in (0, 2):
        assert s.end(p, commit=True, name="other", client_version=version) is E.INVALID_PRODUCER_ID_MAPPING
        assert s.end(p, commit=True, name="", client_version=version) is E.INVALID_REQUEST


# The last epochs


def at_epoch(epoch, server_version=2):
    """A producer whose id has that epoch."""
    s, p = in_state(State.EMPTY, server_version=server_version)
    found = replace(s.stored(), producer_epoch=epoch)
    s.log.append(transaction_record("t", found))
    s.start()
    return s, Producer(p.producer_id, epoch)


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_at_the_last_epoch_gives_a_new_producer_id(commit):
    s, p = at_epoch(32_766)
    s.add(p, A)
    s.hold_markers = True
    new = s.end(p, commit=commit)
    assert new == Producer(p.producer_id + 1, 0)
    described = s.machine.describe("t")
    assert (described.producer_id, described.producer_epoch) == (p.producer_id, 32_767)
    # What it was told is only pending, and it is not to be fenced for it (KAFKA-18464).
    assert s.add(new, A) is E.CONCURRENT_TRANSACTIONS
    assert s.verify(new, A) == [E.CONCURRENT_TRANSACTIONS]
    s.write_markers()
    assert [(one.producer_id, one.producer_epoch) for one in s.markers] == [(p.producer_id, 32_767)]
    assert s.end(p, commit=commit) == new, "by the previous id (KAFKA-18660)"
    other = E.INVALID_TXN_STATE if commit else E.PRODUCER_FENCED
    assert s.end(p, commit=not commit) is other
    assert s.add(p, A) is E.INVALID_PRODUCER_ID_MAPPING
    assert s.end(Producer(p.producer_id, 32_765), commit=commit) is E.INVALID_PRODUCER_ID_MAPPING
    assert s.add(new, A) is E.NONE
    assert s.end(p, commit=commit) is E.INVALID_PRODUCER_ID_MAPPING, "it has gone on"


def test_without_a_producer_id_at_hand_nothing_ends():
    s, p = at_epoch(32_766)
    s.add(p, A)
    s.has_ids = False
    assert s.end(p, commit=True) is E.COORDINATOR_LOAD_IN_PROGRESS
    assert s.init() is E.COORDINATOR_LOAD_IN_PROGRESS
    assert s.state() == "Ongoing"
    s.has_ids = True
    assert s.end(p, commit=True) == Producer(p.producer_id + 1, 0)


def test_an_older_client_keeps_the_last_epoch():
    s, p = at_epoch(32_766)
    s.add(p, A, client_version=0)
    assert s.end(p, commit=True, client_version=0) == Producer(-1, -1)
    assert s.add(p, A, client_version=0) is E.NONE
    assert s.end(p, commit=False, client_version=0) == Producer(-1, -1)
    assert s.init(producer=p) == Producer(p.producer_id + 1, 0)


def test_a_fence_at_the_last_epoch_rotates():
    """KAFKA-20090."""
    s, p = at_epoch(32_766)
    s.add(p, A)
    assert s.init() is E.CONCURRENT_TRANSACTIONS
    assert (s.stored().producer_id, s.stored().producer_epoch) == (p.producer_id + 1, 0)
    assert s.init() == Producer(p.producer_id + 1, 1)


def test_the_epoch_of_markers_is_nobodys():
    """A cluster of a lower level fences by it, and rotates at the next InitProducerId."""
    s, p = at_epoch(32_766, server_version=1)
    s.add(p, A)
    assert s.init() is E.CONCURRENT_TRANSACTIONS
    assert s.stored().producer_epoch == 32_767
    forged = ahead(p)
    assert s.add(forged, A) is E.PRODUCER_FENCED
    assert s.end(forged, commit=False) is E.PRODUCER_FENCED
    assert s.init() == Producer(p.producer_id + 1, 0)
