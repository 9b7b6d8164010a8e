"""What the data plane tells of a partition's producers, and how it ends what one of them has open."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tpc_broker.broker.ports import AppendResult


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
        """All of a partition's as of its log's end, by id; None: they are more than that.

        Raises PartitionOfflineError when it was withdrawn, LeadershipLostError while they are not known because the log
        was cut.
        """
        ...

    def append_marker(self, handle: int, marker: EndMarker) -> AppendResult | None:
        """Of a partition that is led here; None: no room in the journal, or in the segments.

        Error codes: TRANSACTION_COORDINATOR_FENCED, INVALID_PRODUCER_EPOCH; nothing was appended then.
        """
        ...
