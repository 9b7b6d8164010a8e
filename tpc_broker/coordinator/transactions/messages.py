"""Requests and responses of the transaction coordinator, as plain data and free of protocol versions.

Differences between versions become fields, or are the caller's to fold in:

- `client_version` is 2 for AddPartitionsToTxn 4 and later and for EndTxn 5 and later, and 0 before; AddOffsetsToTxn is
  an addition of one partition of `__consumer_offsets`, with 0 up to version 4;
- `knows_fenced`: InitProducerId 4 and later, the others 2 and later; before, PRODUCER_FENCED is INVALID_PRODUCER_EPOCH;
- AddPartitionsToTxn below 4 has one transaction, and is all or nothing: topics are looked at by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tpc_broker.coordinator.transactions.transaction import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TopicPartition,
)
from tpc_broker.error_codes import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    """InitProducerId with a transactional id. The two of version 6 are refused: there is no ending in two phases."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    enable_two_phases: bool = False
    keep_prepared: bool = False
    knows_fenced: bool = True


@dataclass(frozen=True, slots=True)
class ProducerResponse:
    """Answer to InitProducerId, and to EndTxn: what the producer goes on with."""

    error_code: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    error_message: str | None = None
    """For the log: the protocol has no place for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsRequest:
    """One transaction of AddPartitionsToTxn, or AddOffsetsToTxn. With `verify_only` nothing is added."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0
    verify_only: bool = False
    knows_fenced: bool = True


@dataclass(frozen=True, slots=True)
class AddPartitionsResponse:
    """Answer to it: all partitions have the error. Where it is NONE, those of `missing` have TRANSACTION_ABORTABLE."""

    error_code: ErrorCode = ErrorCode.NONE
    missing: frozenset[TopicPartition] = frozenset()

    def error_of(self, partition: TopicPartition) -> ErrorCode:
        """What is told of one partition."""
        return ErrorCode.TRANSACTION_ABORTABLE if partition in self.missing else self.error_code


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    """EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int = 0
    knows_fenced: bool = True


class Marker(NamedTuple):
    """What is to be written into a partition: WriteTxnMarkers of one transaction."""

    transactional_id: str
    number: int
    """Of the end that it is of: what is told late is not taken for the marker of another one."""
    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    transaction_version: int


@dataclass(frozen=True, slots=True)
class DescribedTransaction:
    """One id of DescribeTransactions."""

    transactional_id: str
    error_code: ErrorCode = ErrorCode.NONE
    state: str = ""
    timeout_ms: int = 0
    start_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ListFilter:
    """ListTransactions. Empty sets filter nothing. `longer_than_ms`: negative filters nothing."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    longer_than_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class ListedTransaction:
    """One id of ListTransactions."""

    transactional_id: str
    producer_id: int
    state: str
