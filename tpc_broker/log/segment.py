"""One segment's index upkeep, when a segment rolls, and which segments retention removes. All as Kafka 4.3 does it.

Index upkeep: in front of each batch, when more than `index_interval_bytes` were written since the last entry, the batch
gets an entry in the offset index, and the largest timestamp so far (with the last offset of its batch) one in the time
index. The last time entry is written when the segment is sealed, so that it names the segment's largest timestamp.

A batch goes to a new segment when its offset would not fit beside the base offset, and, unless the segment is empty,
when `segment_bytes` would be exceeded, when its timestamp lies more than `segment_ms` behind the segment's first one,
or when an index is full. Both are decided per batch in C (`native/bytes/segment.c`); `AppendWalk` is its face.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.log.batch import NO_TIMESTAMP, BatchDamageError, BatchHeader, decode_header
from tpc_broker.log.indexes import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TRANSACTION_ENTRY_BYTES,
    AbortedTransaction,
    OffsetIndex,
    TimeIndex,
    TransactionIndex,
)
from tpc_broker.log.producer_state import ProducedBatch, ProducerState
from tpc_broker.native_bytes import ffi, lib, pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.log.state import LogState

ENTRIES_PER_STEP: Final = 64
"""With Kafka's interval of 4 KiB a step is some 256 KiB, which take a tenth of a millisecond."""
PRODUCERS_PER_STEP: Final = 64
_OFFSET_ENTRIES: Final = ffi.new("uint8_t[]", ENTRIES_PER_STEP * OFFSET_ENTRY_BYTES)
_TIME_ENTRIES: Final = ffi.new("uint8_t[]", ENTRIES_PER_STEP * TIME_ENTRY_BYTES)
DATED_AHEAD_MS_MIN: Final = 60_000
"""Clocks that differ by less are nothing to be told of."""
_LIFTED: Final = (1 << 62) - 1
_PRODUCERS: Final = ffi.new("tpc_segment_producer[]", PRODUCERS_PER_STEP)


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
    """Ours: a segment is removed so long after the last append to it; -1: never."""
    cleanup_delete: bool = True
    """False for `cleanup.policy=compact`: nothing is lost to age or size."""
    cleanup_compact: bool = False
    """Of the records of a key the newest is kept (`log.cleaning`)."""
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = 2**63 - 1
    delete_retention_ms: int = 24 * 3600 * 1000
    batch_bytes_max: int = 1024 * 1024 + 12
    """A batch that is compressed again when the log is cleaned stays as it was if it would be larger."""
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

    @property
    def lengths(self) -> tuple[int, int, int]:
        """Bytes of the offset, time and transaction indexes as files hold them."""
        transactions = TRANSACTION_ENTRY_BYTES * len(self.transactions.entries)
        return len(self.offsets.data), len(self.times.data), transactions

    @property
    def contents(self) -> tuple[bytes, bytes, bytes]:
        """The three of them, as the files of a cleaned segment have them."""
        return bytes(self.offsets.data), bytes(self.times.data), self.transactions.encode()

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


class WalkStop(IntEnum):
    """`enum tpc_segment_stop`: why a walk over batches came to a stop."""

    END = 0
    ROLL = 1
    CONTROL = 2
    EPOCH = 3
    ROOM = 4
    BAD = 5


class AppendWalk:
    """Walks over one buffer of batches that are to be appended, in C, and keeps indexes and the log's state up.

    `step` takes batches until something happens that only the caller can decide; see `WalkStop`. After ROOM, which says
    that the results of one step are full, another `step` goes on. `place` is where in the buffer the walk stands,
    `begin` where what is to be written begins (batches below the log's end were written before an earlier call failed),
    `next_offset` and `position` are the ends of the log and of the segment.
    """

    __slots__ = ("_bytes", "_indexes", "_log_state", "_pinned", "_size", "_state", "_view", "settings")

    def __init__(self, view: memoryview, settings: LogSettings, next_offset: int, log_state: LogState) -> None:
        self._view = view
        self._log_state = log_state
        self._bytes, self._size, self._pinned = pinned(view)
        self.settings = settings
        state = self._state = ffi.new("tpc_segment_state *")
        state.segment_bytes, state.segment_ms = settings.segment_bytes, settings.segment_ms
        state.offset_entries_max = settings.segment_index_bytes // OFFSET_ENTRY_BYTES
        state.time_entries_max = settings.segment_index_bytes // TIME_ENTRY_BYTES - 1
        state.next_offset, state.leader_epoch = next_offset, log_state.epochs.latest

    def use(self, indexes: SegmentIndexes, position: int) -> None:
        """The segment that takes the batches from here on, and its size."""
        self._indexes, state = indexes, self._state
        last = indexes.times.last
        state.base_offset, state.position = indexes.base_offset, position
        state.index_interval_bytes = indexes.interval_bytes
        state.largest_timestamp = indexes.largest_timestamp
        state.largest_timestamp_offset = indexes.largest_timestamp_offset
        state.first_timestamp = indexes.first_timestamp
        state.bytes_since_entry = indexes.bytes_since_entry
        state.offset_entries, state.time_entries = len(indexes.offsets), len(indexes.times)
        state.last_entry_timestamp = last.timestamp if last else -1

    def step(self) -> WalkStop:
        """On to the next stop. BatchDamageError: the bytes hold something that is no batch or does not follow."""
        state, indexes = self._state, self._indexes
        result = lib.tpc_segment_walk(
            self._bytes, self._size, state, _OFFSET_ENTRIES, _TIME_ENTRIES, ENTRIES_PER_STEP, _PRODUCERS,
            PRODUCERS_PER_STEP,
        )  # fmt: skip
        assert result == 0, result
        if state.offset_entries_made:
            indexes.offsets.data += ffi.buffer(_OFFSET_ENTRIES, state.offset_entries_made * OFFSET_ENTRY_BYTES)
            indexes.times.data += ffi.buffer(_TIME_ENTRIES, state.time_entries_made * TIME_ENTRY_BYTES)
        indexes.largest_timestamp = state.largest_timestamp
        indexes.largest_timestamp_offset = state.largest_timestamp_offset
        indexes.first_timestamp = state.first_timestamp
        indexes.bytes_since_entry = state.bytes_since_entry
        for number in range(state.producers_count):
            _take_producer(self._log_state.producers, _PRODUCERS[number])
        if state.stop == WalkStop.BAD:
            reason = ffi.string(lib.tpc_batch_reason_text(state.reason)).decode()
            where = f"that follows offset {state.next_offset} at {state.place}"
            raise BatchDamageError(f"no record batch {where}: {reason}")
        return WalkStop(state.stop)

    def take_stop(self, stop: WalkStop) -> None:
        """What any stop but END and ROLL asks for before the next `step`; for ROOM that is nothing."""
        if stop is WalkStop.CONTROL:
            self._take_control()
        elif stop is WalkStop.EPOCH:
            header = self.header
            self._log_state.begin_epoch(header.partition_leader_epoch, header.base_offset)
            self._state.leader_epoch = header.partition_leader_epoch

    @property
    def header(self) -> BatchHeader:
        """Of the batch at the stop."""
        return decode_header(self._view, self._state.place)

    @property
    def place(self) -> int:
        return int(self._state.place)

    @property
    def begin(self) -> int:
        return int(self._state.skipped_bytes)

    @property
    def position(self) -> int:
        return int(self._state.position)

    @property
    def next_offset(self) -> int:
        return int(self._state.next_offset)

    def lift_limits(self) -> None:
        """The segment takes this batch and what follows it, whatever its settings say."""
        state = self._state
        state.segment_bytes, state.segment_ms = _LIFTED, _LIFTED
        state.offset_entries_max = state.time_entries_max = 1 << 30

    def _take_control(self) -> None:
        """The control batch at a stop, by Python."""
        header, state = self.header, self._state
        self._indexes.add(header, state.position, self._log_state.take(header, self._view, state.place))
        state.next_offset = header.next_offset
        state.place += header.size_bytes
        self.use(self._indexes, state.position + header.size_bytes)


def _take_producer(producers: ProducerState, sent: Any) -> None:
    """What C found of one producer, put to what is known of it."""
    count = sent.batches_count
    batches = [
        ProducedBatch(sent.last_sequence[at], sent.last_offset[at], sent.offset_delta[at], sent.timestamp[at])
        for at in range(count)
    ]
    producers.extend(
        sent.producer_id, sent.producer_epoch, batches,
        is_epoch_new=bool(sent.epoch_changed), last_timestamp=sent.last_timestamp,
        transaction_first_offset=sent.transaction_first_offset,
    )  # fmt: skip


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
    held_back: SegmentView | None = None
    """The first that stays, if nobody has appended to it for `retention.ms`, and a record in it is dated well ahead."""


def plan_retention(
    segments: Sequence[SegmentView], settings: LogSettings, *, log_start_offset: int, high_watermark: int, now_ms: int
) -> RetentionPlan:
    """Which leading segments may go. Never one that reaches beyond the high watermark, never an empty active one (the
    last): a sealed one is empty when compaction has left nothing of it.
    """
    surplus_bytes = sum(segment.size_bytes for segment in segments) - settings.retention_bytes
    reasons: list[str] = []
    held_back = None
    for segment in segments:
        is_empty = segment.size_bytes == 0 and segment is segments[-1]
        if is_empty or segment.end_offset > high_watermark:
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
            if _is_held_back(segment, settings, now_ms):
                held_back = segment
            break
        surplus_bytes -= segment.size_bytes
    roll = bool(reasons) and len(reasons) == len(segments)
    return RetentionPlan(len(reasons), tuple(reasons), roll, held_back)


def _is_held_back(segment: SegmentView, settings: LogSettings, now_ms: int) -> bool:
    is_due = settings.retention_ms >= 0 and now_ms - segment.appended_ms > settings.retention_ms
    return is_due and segment.largest_timestamp - segment.appended_ms >= DATED_AHEAD_MS_MIN
