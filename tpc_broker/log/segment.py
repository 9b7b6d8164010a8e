"""One segment's index upkeep, when a segment rolls, and which segments retention removes. All as Kafka 4.3 does it.

Index upkeep: in front of each batch, when more than `index_interval_bytes` were written since the last entry, the batch
gets an entry in the offset index, and the largest timestamp so far (with the last offset of its batch) one in the time
index. The last time entry is written when the segment is sealed, so that it names the segment's largest timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import NO_TIMESTAMP
from tpc_broker.log.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.log.batch import BatchHeader

RELATIVE_OFFSET_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The topic settings that storage acts on; names and defaults are Kafka's, with dots as underscores."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    segment_age_ms: int = -1
    """Ours: remove a segment so long after the last append to it by the wall clock; -1: never."""
    cleanup_delete: bool = True
    """False for `cleanup.policy=compact`: nothing is lost to age or size."""
    file_delete_delay_ms: int = 60_000
    producer_id_expiration_ms: int = 24 * 3600 * 1000


class SegmentIndexes:
    """The indexes of one segment while it is written, or while they are made again from its log.

    `largest_timestamp` and `largest_timestamp_offset` are -1 as long as no batch was added.
    """

    def __init__(self, base_offset: int, interval_bytes: int) -> None:
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.offsets = OffsetIndex(base_offset)
        self.times = TimeIndex(base_offset)
        self.transactions = TransactionIndex()
        self.bytes_since_entry = 0
        self.largest_timestamp = NO_TIMESTAMP
        self.largest_timestamp_offset = -1
        self.first_timestamp = NO_TIMESTAMP

    def add(self, header: BatchHeader, position: int, aborted: AbortedTransaction | None = None) -> None:
        """A batch was written at a position. `aborted`: the transaction whose end it marks."""
        if position == 0:
            self.first_timestamp = header.max_timestamp
        if header.max_timestamp > self.largest_timestamp:
            self.largest_timestamp = header.max_timestamp
            self.largest_timestamp_offset = header.last_offset
        if self.bytes_since_entry > self.interval_bytes:
            self.offsets.append(header.last_offset, position)
            self.times.append_if_later(self.largest_timestamp, self.largest_timestamp_offset)
            self.bytes_since_entry = 0
        self.bytes_since_entry += header.size_bytes
        if aborted is not None:
            self.transactions.append(aborted)

    def seal(self) -> None:
        """Nothing will be added any more."""
        self.times.append_if_later(self.largest_timestamp, self.largest_timestamp_offset)

    def resume(self, largest_timestamp: int, largest_timestamp_offset: int, first_timestamp: int) -> None:
        """Go on with a segment whose indexes were loaded; the next batch gets an entry."""
        self.largest_timestamp = largest_timestamp
        self.largest_timestamp_offset = largest_timestamp_offset
        self.first_timestamp = first_timestamp
        self.bytes_since_entry = self.interval_bytes + 1

    def truncate(self, position: int, end_offset: int) -> None:
        """Forget what lies at or behind a position. The largest timestamp has to be told anew by `resume`."""
        self.offsets.truncate(position)
        self.times.truncate(end_offset)
        self.transactions.truncate(end_offset)


def roll_reason(indexes: SegmentIndexes, size_bytes: int, header: BatchHeader, settings: LogSettings) -> str | None:
    """Why a batch must go to a new segment (None: it need not). An empty segment takes any batch.

    The age that counts is by record time: from the first batch of the segment to this one.
    """
    if header.last_offset - indexes.base_offset > RELATIVE_OFFSET_MAX:
        return "offset"
    if size_bytes == 0:
        return None
    if size_bytes + header.size_bytes > settings.segment_bytes:
        return "size"
    if indexes.first_timestamp >= 0 and header.max_timestamp - indexes.first_timestamp > settings.segment_ms:
        return "age"
    room = settings.segment_index_bytes
    if len(indexes.offsets) >= room // OFFSET_ENTRY_BYTES or len(indexes.times) >= room // TIME_ENTRY_BYTES - 1:
        return "index"
    return None


class SegmentView(NamedTuple):
    """A segment as retention sees it. `end_offset` is the next segment's base or the log's end."""

    base_offset: int
    end_offset: int
    size_bytes: int
    largest_timestamp: int
    """-1 when no record has one; then the time of the last append counts."""
    appended_ms: int
    """Wall clock of the last append (the file's modification time)."""


class RetentionPlan(NamedTuple):
    """`segments_count` leading segments go, for these reasons; `roll` when the active one is among them."""

    segments_count: int
    reasons: tuple[str, ...]
    roll: bool


def plan_retention(
    segments: Sequence[SegmentView], settings: LogSettings, *, log_start_offset: int, high_watermark: int, now_ms: int
) -> RetentionPlan:
    """Which leading segments may go. Never one that reaches beyond the high watermark, never an empty active one."""
    surplus_bytes = sum(segment.size_bytes for segment in segments) - settings.retention_bytes
    reasons: list[str] = []
    for segment in segments:
        if segment.size_bytes == 0 or segment.end_offset > high_watermark:
            break
        largest = segment.largest_timestamp if segment.largest_timestamp >= 0 else segment.appended_ms
        if segment.end_offset <= log_start_offset:
            reasons.append("log start")
        elif not settings.cleanup_delete:
            break
        elif settings.retention_ms >= 0 and now_ms - largest > settings.retention_ms:
            reasons.append("age")
        elif settings.segment_age_ms >= 0 and now_ms - segment.appended_ms > settings.segment_age_ms:
            reasons.append("segment age")
        elif settings.retention_bytes >= 0 and surplus_bytes >= segment.size_bytes:
            reasons.append("size")
        else:
            break
        surplus_bytes -= segment.size_bytes
    return RetentionPlan(len(reasons), tuple(reasons), roll=bool(reasons) and len(reasons) == len(segments))
