"""What bounds the coordinator of transactions, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass

from tpc_broker.limits import MIB, TRANSACTION_PARTITIONS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Settings of the broker, and bounds; times in milliseconds."""

    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3_600_000
    expiration_interval_ms: int = 3_600_000
    ids_max: int = 100_000
    ids_bytes_max: int = 64 * MIB
    partitions_max: int = TRANSACTION_PARTITIONS_MAX
    """Of one transaction: each addition writes them all."""
    markers_max: int = 65_536
    """Sent and not reported as written. One transaction may have more, alone."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts at one moment."""

    ids_count: int
    open_count: int
    ending_count: int
    ids_bytes: int
    markers_sent: int
    writes_pending: int
    next_deadline_ms: int | None


@dataclass(slots=True)
class Ended:
    """What machines together have ended since they are there; only grows. `timed_out` are aborted too."""

    committed: int = 0
    aborted: int = 0
    timed_out: int = 0
