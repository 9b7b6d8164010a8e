"""Transactional ids in each of their states, on their way there, and what to ask of them."""

from tests.coordinator.transactions.scenario import A, B, Producer, TransactionScenario
from tpc_broker.coordinator.transactions.states import State

EXPIRATION_MS = 10_000


def in_state(state, client_version=2, server_version=2):
    """A scenario with the id "t" in this state, and the producer that is the one of now."""
    s = TransactionScenario(server_version, expiration_ms=EXPIRATION_MS, expiration_interval_ms=1_000)
    s.init()
    p = s.init()
    if state is State.EMPTY:
        return s, p
    if state is State.DEAD:
        s.hold = True
        s.elapse(EXPIRATION_MS)
        return s, p
    assert s.add(p, A, B, client_version=client_version) == 0
    if state is State.PREPARE_EPOCH_FENCE:
        s.hold = True
        s.ask_init()
    elif state is not State.ONGOING:
        s.hold_markers = state in (State.PREPARE_COMMIT, State.PREPARE_ABORT)
        commits = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        ended = s.end(p, commit=commits, client_version=client_version)
        p = ended if client_version == 2 else p
    return s, p


def behind(p):
    return Producer(p.producer_id, p.epoch - 1)


def ahead(p):
    return Producer(p.producer_id, p.epoch + 1)


def stranger(p):
    return Producer(p.producer_id + 1000, p.epoch)
