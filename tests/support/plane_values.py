"""What goes into and out of `tests.support.plane_face`: the constants and records of the C interface as values."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

from tpc_broker._ring import lib
from tpc_broker.error_codes import ErrorCode

UNLIMITED: Final = (1 << 63) - 1


class JournalMode(IntEnum):
    """How commits get to the disk; chosen by a probe."""

    DIRECT_DSYNC = lib.TPC_JOURNAL_DIRECT_DSYNC
    """O_DIRECT descriptor, RWF_DSYNC on each write: the fastest where it works."""
    BUFFERED_DSYNC = lib.TPC_JOURNAL_BUFFERED_DSYNC
    BUFFERED_FDATASYNC = lib.TPC_JOURNAL_BUFFERED_FDATASYNC


class JournalEntryKind(IntEnum):
    """`enum tpc_journal_kind` of `native/bytes/journal_format.h`, which says what offset and argument mean."""

    APPEND = 1
    CUT = 2
    EPOCH = 3
    LOG_START = 4
    PARTITION_DELETED = 5
    NOTE = 6


class PartitionFlag(IntFlag):
    """`enum tpc_partition_flag`."""

    INTERNAL = lib.TPC_PARTITION_INTERNAL
    RELAXED = lib.TPC_PARTITION_RELAXED
    LOG_APPEND_TIME = lib.TPC_PARTITION_LOG_APPEND_TIME
    PYTHON_VALIDATES = lib.TPC_PARTITION_PYTHON_VALIDATES
    COMPACTED = lib.TPC_PARTITION_COMPACTED


NO_FLAGS: Final = PartitionFlag(0)


class Left(IntEnum):
    """Why :meth:`Plane.produce` left a request to Python."""

    NONE = lib.TPC_FALLBACK_NONE
    MALFORMED = lib.TPC_FALLBACK_MALFORMED
    """Close the connection."""
    VERSION = lib.TPC_FALLBACK_VERSION
    TOO_MANY = lib.TPC_FALLBACK_TOO_MANY
    UNKNOWN = lib.TPC_FALLBACK_UNKNOWN
    """A partition is not in the table or not led: ask the metadata, then :meth:`Plane.produce_with`."""
    PYTHON_VALIDATES = lib.TPC_FALLBACK_PYTHON_VALIDATES
    """Validate those partitions, then :meth:`Plane.produce_with`."""
    JOURNAL_FULL = lib.TPC_FALLBACK_JOURNAL_FULL
    """Park it, try again after recycling."""
    NOT_ADMITTED = lib.TPC_FALLBACK_NOT_ADMITTED
    """Reserve segment space, :meth:`Plane.admit`, try again."""
    NO_MEMORY = lib.TPC_FALLBACK_NO_MEMORY
    GAP = lib.TPC_FALLBACK_GAP
    """Ask the quorum who leads, then :meth:`Plane.produce_with`."""
    UNCOMMITTED = lib.TPC_FALLBACK_UNCOMMITTED
    """Try again when something is committed, or another replica leads."""
    VERIFY = lib.TPC_FALLBACK_VERIFY
    AUTHORIZE = lib.TPC_FALLBACK_AUTHORIZE
    """A transactional batch: ask its coordinator, then :meth:`Plane.produce_with` a guard."""


assert len(Left) == lib.TPC_FALLBACK_REASONS_COUNT


class JournalFailedError(OSError):
    """The journal failed: what was not durable is undone, and appends are refused until it is reopened."""


class JournalFullError(Exception):
    """No recycled space in the journal: write behind, checkpoint, recycle, try again."""


class NotAdmittedError(Exception):
    """No segment space is reserved for these bytes: :meth:`Plane.admit` first."""


@dataclass(frozen=True, slots=True)
class JournalStart:
    """Where and how the journal goes on, as recovery found it. Limits of 0 mean the defaults of `cdef/40_journal.h`."""

    descriptor: int
    mode: JournalMode
    journal_id: bytes
    run_id: int
    """New at every open and reopen."""
    region_blocks: int
    sequence_next: int = 1
    block_next: int = 2
    block_first: int = 2
    """The oldest block that may not be overwritten."""
    previous_crc: int = 0
    commits_in_flight_max: int = 0
    commit_bytes_max: int = 0
    buffers_pooled_max: int = 0
    space_event_blocks: int = 0


@dataclass(frozen=True, slots=True)
class JournalCursor:
    """A place in the chain from which a replay may start; `position` is for :meth:`Plane.recycle` in this run only."""

    sequence: int
    block: int
    position: int
    previous_crc: int


@dataclass(frozen=True, slots=True)
class PlaneLimits:
    """Bounds of the plane."""

    tail_bytes_max: int = 64 * 1024 * 1024
    """Memory for batches that are written behind already; what is not is kept in any case."""
    producer_expiry_ms: int = 86_400_000
    produce_partitions_max: int = 10_000
    unread_bytes_max: int = 0
    """So much of a partition leaves memory without a fetch, and nobody reads it; 0: 256 MiB."""


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """What :meth:`Plane.update` may change of a partition."""

    leader_epoch: int = 0
    flags: PartitionFlag = NO_FLAGS
    batch_bytes_max: int = 1_048_588
    segment_bytes_max: int = 0
    """0: not checked."""
    timestamp_before_ms_max: int = UNLIMITED
    timestamp_after_ms_max: int = 3_600_000


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition at one moment; `written_offset`: everything below is in segments, not necessarily flushed."""

    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    durable_offset: int
    log_end_offset: int
    tail_offset: int
    written_offset: int
    tail_bytes: int
    unwritten_bytes: int
    dirty_bytes: int
    bytes_admitted: int
    in_place_end_offset: int
    partition: int
    leader_epoch: int
    flags: int
    producers_count: int
    appends_undurable: int
    role: int


@dataclass(frozen=True, slots=True)
class ProducerBatch:
    """One of the last batches of a producer."""

    base_offset: int
    last_offset: int
    timestamp_ms: int
    base_sequence: int
    last_sequence: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What a partition knows of a producer; batches from the oldest to the newest, at most five."""

    producer_id: int
    producer_epoch: int
    last_append_ms: int
    batches: tuple[ProducerBatch, ...]
    transaction_first_offset: int = -1
    coordinator_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Python says of one partition of a Produce request; `error_code` NONE: go on, and do not ask again."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    leader_id: int = -1
    leader_epoch: int = -1
    gap_code: ErrorCode = ErrorCode.NONE
    """For :attr:`Left.GAP`, by a quorum's word."""
    guard: int = 0
    """For :attr:`Left.VERIFY`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A leader named in verdicts, for answers from version 10 on."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TailBatch:
    """A batch to be written behind. `data` stays valid as long as any view of it lives."""

    data: memoryview
    base_offset: int
    next_offset: int
    sequence: int


def checked(result: int, what: str) -> int:
    """What C returned, or as an exception what it refused."""
    if result >= 0:
        return result
    error = -result
    if error == errno.ENOENT:
        raise KeyError(f"{what}: the partition was withdrawn")
    if error == errno.EAGAIN:
        raise JournalFullError(what)
    if error == errno.ENOSPC:
        raise NotAdmittedError(what)
    if error == errno.EIO:
        raise JournalFailedError(error, f"{what}: the journal failed")
    if error == errno.EINVAL:
        raise ValueError(f"{what}: not possible with these values")
    raise OSError(error, f"{what}: {os.strerror(error)}")
