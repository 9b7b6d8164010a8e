"""What is stored of a transactional id, and each step that changes it: functions of a transaction, to the next one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.coordinator.transactions.states import AT_REST, PREPARED, TRANSITIONS, State

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
LAST_EPOCH: Final = 32_766
"""Of a producer. The one above is for the marker that ends what it has open."""
NO_TIMEOUT_MS: Final = 2**31 - 1
"""Of transactions in two phases, which others than clients end (KIP-939)."""
RAISES_EPOCH: Final = 2
"""Clients of this version and later know that every end raises their epoch (KIP-890)."""


class TopicPartition(NamedTuple):
    """A partition by the name of its topic, as the log has it."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id as it is stored; times in milliseconds."""

    producer_id: int
    producer_epoch: int
    state: State
    timeout_ms: int
    last_update_ms: int
    start_ms: int = NO_TIMESTAMP
    partitions: tuple[TopicPartition, ...] = ()
    previous_producer_id: int = NO_PRODUCER_ID
    """Before the last step; another one only where that replaced it."""
    next_producer_id: int = NO_PRODUCER_ID
    """While it ends: what replaces a producer id whose epochs are used up."""
    client_version: int = 0
    """Of the client that added or ended last: 2 when every end raises its epoch."""

    @property
    def before_end(self) -> tuple[int, int] | None:
        """The producer id and epoch that the end of its transaction replaced; None where no end did."""
        has_ended = self.state in PREPARED or self.state in AT_REST - {State.EMPTY}
        if self.client_version < RAISES_EPOCH or not has_ended:
            return None
        if self.has_other_producer_id:
            return self.previous_producer_id, LAST_EPOCH
        return self.producer_id, self.producer_epoch - 1

    @property
    def has_other_producer_id(self) -> bool:
        """The last step replaced the one before."""
        return self.previous_producer_id not in (NO_PRODUCER_ID, self.producer_id)

    @property
    def deadline_ms(self) -> int | None:
        """When it is aborted, unless it has ended; None when never."""
        if self.state is not State.ONGOING or self.timeout_ms == NO_TIMEOUT_MS:
            return None
        return self.start_ms + self.timeout_ms

    @property
    def epochs_are_used_up(self) -> bool:
        """The next one is no producer's."""
        return self.producer_epoch >= LAST_EPOCH

    def _to(self, state: State, now_ms: int, **changes: Any) -> Transaction:
        assert state in TRANSITIONS[self.state], f"{self.state.value} → {state.value}"
        return replace(self, state=state, previous_producer_id=self.producer_id, last_update_ms=now_ms, **changes)


def initialised(was: Transaction, producer_id: int, producer_epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
    """For a producer that begins, or begins again, in this epoch."""
    return was._to(  # noqa: SLF001 - one module
        State.EMPTY, now_ms, producer_id=producer_id, producer_epoch=producer_epoch, timeout_ms=timeout_ms,
        partitions=(), start_ms=NO_TIMESTAMP,
    )  # fmt: skip


def added(was: Transaction, partitions: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
    """Open, with these partitions as well; its time runs from the first ones."""
    return was._to(  # noqa: SLF001
        State.ONGOING, now_ms, partitions=tuple(dict.fromkeys([*was.partitions, *partitions])),
        client_version=client_version, start_ms=was.start_ms if was.state is State.ONGOING else now_ms,
    )  # fmt: skip


def prepared(
    was: Transaction, *, commit: bool, client_version: int, next_producer_id: int, now_ms: int
) -> Transaction:
    """About to end, in the epoch of its markers: the next one for a client that knows of it."""
    return was._to(  # noqa: SLF001
        State.PREPARE_COMMIT if commit else State.PREPARE_ABORT, now_ms,
        producer_epoch=was.producer_epoch + (client_version >= RAISES_EPOCH), next_producer_id=next_producer_id,
        client_version=client_version, start_ms=was.start_ms if was.state is State.ONGOING else now_ms,
    )  # fmt: skip


def fenced(was: Transaction, *, server_version: int, next_producer_id: int, now_ms: int) -> Transaction:
    """About to be aborted for somebody else, in the next epoch, once (KAFKA-19367)."""
    assert State.PREPARE_EPOCH_FENCE in TRANSITIONS[was.state], was.state
    return replace(
        was,
        state=State.PREPARE_ABORT, producer_epoch=was.producer_epoch + 1, next_producer_id=next_producer_id,
        previous_producer_id=was.producer_id, last_update_ms=now_ms,
        client_version=server_version if server_version >= RAISES_EPOCH else 0,
    )  # fmt: skip


def completed(was: Transaction, now_ms: int) -> Transaction:
    """All its markers are written. A producer id whose epochs are used up is replaced."""
    commits = was.state is State.PREPARE_COMMIT
    producer_id, producer_epoch = after_end(was)
    return was._to(  # noqa: SLF001
        State.COMPLETE_COMMIT if commits else State.COMPLETE_ABORT, now_ms, producer_id=producer_id,
        producer_epoch=producer_epoch, next_producer_id=NO_PRODUCER_ID, partitions=(),
    )  # fmt: skip


def after_end(prepared_one: Transaction) -> tuple[int, int]:
    """What its producer goes on with, when it has ended."""
    if prepared_one.next_producer_id != NO_PRODUCER_ID:
        return prepared_one.next_producer_id, 0
    return prepared_one.producer_id, prepared_one.producer_epoch
