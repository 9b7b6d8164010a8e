"""What the data plane tells of a partition's producers, and how it ends what one of them has open."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.ports import AppendResult
    from tpc_broker.error_codes import ErrorCode
    from tpc_broker.log.indexes import AbortedTransaction


class ToldProducer(NamedTuple):
    """One producer, as clients may hear of it."""

    producer_id: int
    last_timestamp_ms: int
    """The largest of its last batch. -1: no batch of its epoch is known."""
    transaction_first_offset: int
    """-1: none is open."""
    last_sequence: int
    """-1 as well."""
    coordinator_epoch: int
    """-1: none was heard of."""
    producer_epoch: int


class EndMarker(NamedTuple):
    """What ends a transaction in one partition, as its coordinator has it."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commits: bool
    transaction_version: int


class ProducersPort(Protocol):
    """Of the partitions that are here, led or followed."""

    def producers(self, handle: int, count_max: int) -> list[ToldProducer] | None:
        """All of a partition's as of its log's end, by id; of more than that those with a transaction open, and of the
        others some. None: more than that have one open.

        Raises PartitionOfflineError when it was withdrawn, LeadershipLostError while they are not known because the log
        was cut.
        """
        ...

    def append_marker(self, handle: int, marker: EndMarker) -> AppendResult | None:
        """Of a partition that is led here; None: no room in the journal, or in the segments.

        Error codes: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH; nothing was appended then.
        """
        ...


class KnownAborted(NamedTuple):
    """Of a partition's aborted transactions what the data plane tells."""

    entries: list[AbortedTransaction]
    """By their markers' offsets."""
    from_offset: int
    """Those are all with markers at or behind it; the segments have what is older."""
    room: int
    """So many more may be added."""


class TransactionsPort(Protocol):
    """Which transactions are open in partitions that are here, and which were aborted."""

    def bound_producers(self, bytes_max: int) -> None:
        """Of all of them together; above it those that were silent the longest are forgotten."""
        ...

    def take_transactions(self, *, on: bool) -> None:
        """Whether batches of transactions are taken; at first they are refused."""
        ...

    def begin_verification(
        self, handle: int, producer_id: int, producer_epoch: int, sequence: int, *, begins_anew: bool
    ) -> int | ErrorCode:
        """Before a producer's coordinator is asked whether a partition that is led here is part of its transaction: the
        guard for the verdict, or why the batch with this sequence is refused. `begins_anew`: that has to be 0 where
        nothing is known of the producer.
        """
        ...

    def end_verification(self, handle: int, producer_id: int, guard: int) -> None:
        """Once for each, when its request is carried out or given up."""
        ...

    def aborted(self, handle: int, offset: int, upto: int) -> KnownAborted:
        """Those that reach into [offset, upto), as far as they are known. Raises PartitionOfflineError."""
        ...

    def add_aborted(self, handle: int, offset: int, upto: int, added: Sequence[AbortedTransaction]) -> None:
        """The segments say that these are all with markers in [offset, upto), the latter being the `from_offset` that
        `aborted` told in the same turn; at most `room` of them.
        """
        ...
