"""A machine that is driven by its log, and what it and its driver owe each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tpc_broker.coordinator.effects import Effects, Producer, WriteId
    from tpc_broker.error_codes import ErrorCode


class RecordDamagedError(Exception):
    """A record of the machine's log that cannot be read."""


class Machine(Protocol):
    """All that a driver knows of the machine of a partition. No clock, no chance, no I/O.

    The driver

    1. at the start, calls `replay` for every record of the partition in their order, then `finish_loading`;
    2. hands in a request, whose method is the machine's own, with an opaque token, and does what the returned `Effects`
       say, as after every call that returns them: send `replies` now, append each of `writes` as a whole, in their
       order;
    3. calls `written` when a write is durable, in the order of the writes, or `write_failed` at any time; but when one
       that runs ahead fails, or finds no room, `unload`, and has another machine load the log;
    4. keeps a timer at `next_deadline_ms`, calls `on_deadline`, and `clock_was_set` first where the clock was;
    5. tells a machine that runs ahead, whenever it asks, whether it has room for some more writes than the machine
       begins in a step, and for what is decided at once;
    6. calls `unload` when the partition goes, or when another call raised, and nothing after it. What a machine did
       before it raised is written nowhere: another one loads the log, and whoever it has forgotten is not answered.

    The machine knows after a replay all that anybody was told: what is stored changes by `replay` alone, which it calls
    itself for the records of a write when it is `written`. A reply is among the effects when it may be sent at once.
    What is transient (who waits, deadlines) is lost with the machine.

    Or the machine runs ahead of the disk: it replays the records of a write when it asks for it, so that the next
    request finds them. Answers do not run ahead: whoever was shown such a state is answered when it is written, so a
    machine that goes with what it decided was believed by nobody. A key is written in one of the two ways at a time.

    What is stored is, of each key, its last record; the order of records with different keys means nothing. So the log
    is one that a cleaner may compact, and a driver may replay the last record of each key alone, in any order.
    """

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Applies one record of the log, None for a tombstone; RecordDamagedError when it cannot be read."""
        ...

    def finish_loading(self, now_ms: int) -> Effects:
        """The log has been replayed to its end; RecordDamagedError when its records cannot all be true."""
        ...

    def written(self, write_id: WriteId, now_ms: int) -> Effects:
        """A write is durable."""
        ...

    def write_failed(self, write_id: WriteId, error: ErrorCode, now_ms: int) -> Effects:
        """A write was refused, or did not become durable: nothing of it happened."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `on_deadline` wants to be called, by the wall clock; to be asked again after every other call."""
        ...

    def on_deadline(self, now_ms: int) -> Effects:
        """Does everything that is due."""
        ...

    def clock_was_set(self, by_ms: int) -> None:
        """Deadlines move by so much; times that are stored stay what they are."""
        ...

    def unload(self) -> Effects:
        """Answers everybody who waits; the effects have no writes."""
        ...


@runtime_checkable
class TransactionalMachine(Machine, Protocol):
    """A machine of whose records some are written in transactions: a write may have a producer, or be the end of one's
    transaction (`effects.Write`). For any other machine such records are like all others, and markers nothing.

    The driver calls these in the place of `replay`. Whichever transaction ends first, of a key that record counts
    which is last in the log.
    """

    def replay_open(self, producer: Producer, key: bytes, value: bytes | None) -> None:
        """Takes note of one record of a transaction, which the first one opens."""
        ...

    def replay_end(self, producer_id: int, *, commit: bool) -> None:
        """Applies what the producer's transaction has, or forgets it; nothing where none is open."""
        ...

    @property
    def waiting_keys(self) -> tuple[bytes, ...]:
        """What keys begin with whose values in a transaction count when that ends, if it commits; tombstones, and
        others, count at once.
        """
        ...
