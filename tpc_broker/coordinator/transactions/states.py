"""The states of a transactional id, and what its end answers in each: the tables that the machine follows.

`PREPARE_EPOCH_FENCE` and `DEAD` are never stored, as in Kafka: an id is on its way there while the record is written
that aborts for somebody else, or the tombstone of one that nobody used.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping


class State(Enum):
    """States, with the names that clients see."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"


STATUS: Final[Mapping[State, int]] = {state: number for number, state in enumerate(State)}
"""The numbers that Kafka stores."""
AT_REST: Final = frozenset({State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT})
"""No transaction is open, and nothing is owed to any partition."""
PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})

_BEGINS: Final = "partitions or offsets are added"
_INITIALISED: Final = "InitProducerId"
_ABORTS_NOTHING: Final = "aborted without partitions, by a client of version 2"
_EXPIRES: Final = "not used for transactional.id.expiration.ms"
_MARKED: Final = "all markers are written"
TRANSITIONS: Final[Mapping[State, Mapping[State, str]]] = {
    State.EMPTY: {
        State.EMPTY: _INITIALISED,
        State.ONGOING: _BEGINS,
        State.PREPARE_ABORT: _ABORTS_NOTHING,
        State.DEAD: _EXPIRES,
    },
    State.ONGOING: {
        State.ONGOING: "more are added",
        State.PREPARE_COMMIT: "EndTxn commits",
        State.PREPARE_ABORT: "EndTxn aborts",
        State.PREPARE_EPOCH_FENCE: "InitProducerId, or the time-out",
    },
    State.PREPARE_EPOCH_FENCE: {State.PREPARE_ABORT: "at once: a record with the next epoch"},
    State.PREPARE_COMMIT: {State.COMPLETE_COMMIT: _MARKED},
    State.PREPARE_ABORT: {State.COMPLETE_ABORT: _MARKED},
    State.COMPLETE_COMMIT: {
        State.EMPTY: _INITIALISED,
        State.ONGOING: _BEGINS,
        State.PREPARE_ABORT: _ABORTS_NOTHING,
        State.DEAD: _EXPIRES,
    },
    State.COMPLETE_ABORT: {
        State.EMPTY: _INITIALISED,
        State.ONGOING: _BEGINS,
        State.PREPARE_ABORT: _ABORTS_NOTHING,
        State.DEAD: _EXPIRES,
    },
    State.DEAD: {},
}
"""From each state to those that may follow, with the reason."""


class Standing(Enum):
    """Of the producer id and epoch that an EndTxn names; everybody else is fenced."""

    CURRENT = "current"
    RETRY = "retry"
    """Of the end that raised the epoch to what it is, or replaced the producer id: its answer was lost."""


class End(Enum):
    """What an EndTxn leads to when it is not refused."""

    PREPARE = "prepare"
    AS_BEFORE = "as before"
    """It has been done: the same answer again."""


# Rule: What an EndTxn answers is in two tables, of clients of version 2 and of those before: by the state at rest or
# open, by whether the epoch is the one of now or of the end before, by commit or abort. Held by
# tests/coordinator/transactions/test_end_table.py, and by what Kafka answered: test_golden.py beside it.
Ending = tuple[State, Standing, bool]
"""The state, who asks, and whether to commit."""
ENDS_OF_VERSION_2: Final[Mapping[Ending, End | ErrorCode]] = {
    (State.ONGOING, Standing.CURRENT, True): End.PREPARE,
    (State.ONGOING, Standing.CURRENT, False): End.PREPARE,
    (State.EMPTY, Standing.CURRENT, True): ErrorCode.INVALID_TXN_STATE,
    (State.EMPTY, Standing.CURRENT, False): End.PREPARE,
    (State.COMPLETE_COMMIT, Standing.CURRENT, True): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_COMMIT, Standing.CURRENT, False): End.PREPARE,
    (State.COMPLETE_COMMIT, Standing.RETRY, True): End.AS_BEFORE,
    (State.COMPLETE_COMMIT, Standing.RETRY, False): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, Standing.CURRENT, True): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, Standing.CURRENT, False): End.PREPARE,
    # Aborted by the time-out or another instance: INVALID_TXN_STATE, which 4.3.1 has here, is fatal to Kafka Streams
    # (KAFKA-20785).
    (State.COMPLETE_ABORT, Standing.RETRY, True): ErrorCode.PRODUCER_FENCED,
    (State.COMPLETE_ABORT, Standing.RETRY, False): End.AS_BEFORE,
}
ENDS_BEFORE: Final[Mapping[Ending, End | ErrorCode]] = {
    (State.ONGOING, Standing.CURRENT, True): End.PREPARE,
    (State.ONGOING, Standing.CURRENT, False): End.PREPARE,
    (State.EMPTY, Standing.CURRENT, True): ErrorCode.INVALID_TXN_STATE,
    (State.EMPTY, Standing.CURRENT, False): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_COMMIT, Standing.CURRENT, True): End.AS_BEFORE,
    (State.COMPLETE_COMMIT, Standing.CURRENT, False): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, Standing.CURRENT, True): ErrorCode.INVALID_TXN_STATE,
    (State.COMPLETE_ABORT, Standing.CURRENT, False): End.AS_BEFORE,
}
"""An epoch stays: whoever asks again has the one of now."""


def state_diagram() -> str:
    """The transitions as a Mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    for state, followers in TRANSITIONS.items():
        lines.extend(f"    {state.value} --> {follower.value}: {why}" for follower, why in followers.items())
    return "\n".join([*lines, "    Dead --> [*]"])
