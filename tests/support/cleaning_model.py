"""What a cleaning makes of a log, in plain words: batches and records as tuples, no bytes, no map, nothing at a time.

What Kafka 4.3's cleaner does, and where ours differs: horizons count only in segments that a cleaner wrote, a batch
that the map does not know whole gets none, the last marker of a producer stays whole, no batch stays for the end's
sake.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tpc_broker.kafka.records import read_batches

CODEC, APPEND_TIME, TRANSACTIONAL, CONTROL, HORIZON = 7, 8, 16, 32, 64


class Kept(NamedTuple):
    """A record that is stored."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Stored:
    """A batch."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer: tuple[int, int, int]
    records: tuple[Kept, ...]

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_abort(self) -> bool:
        return struct.unpack(">hh", self.records[0].key)[1] == 0


class Transaction(NamedTuple):
    """Its data lie from first_offset up to the marker."""

    producer_id: int
    first_offset: int
    marker_offset: int
    is_aborted: bool

    def has(self, batch: Stored) -> bool:
        is_data = batch.attributes & TRANSACTIONAL and not batch.is_control
        within = self.first_offset <= batch.base_offset < self.marker_offset
        return bool(is_data and batch.producer[0] == self.producer_id and within)


@dataclass
class Segment:
    """`is_cleaned`: a cleaner wrote it."""

    base_offset: int
    end_offset: int
    is_cleaned: bool
    batches: list[Stored]


@dataclass(frozen=True)
class Cleaning:
    """What one cleaning is told, and the end of what it knows."""

    first_offset: int
    end_offset: int
    now_ms: int
    retention_ms: int
    transactions: tuple[Transaction, ...]
    kept_offsets: frozenset[int] = frozenset()
    kept_markers: frozenset[int] = frozenset()
    unreadable: frozenset[int] = frozenset()
    """Base offsets of batches whose records cannot be unpacked."""
    removed: list[int] = field(default_factory=list)
    """Offsets of tombstones and markers that went because their time was over."""

    def clean(self, segments: list[Segment]) -> list[Segment]:
        """The segments that begin below the end."""
        batches = [batch for segment in segments for batch in segment.batches]
        newest = {
            record.key: record.offset
            for batch in batches
            if not batch.is_control and not self._transaction(batch, aborted=True) and not self._is_unreadable(batch)
            for record in batch.records
            if self.first_offset <= record.offset < self.end_offset
        }
        held_up = min((batch.base_offset for batch in batches if self._stays_unread(batch)), default=2**63)
        return [
            replace(segment, is_cleaned=True, batches=[
                left for batch in segment.batches
                if (left := self._left(self._believed(batch, segment), batches, newest, held_up)) is not None
            ])
            for segment in segments if segment.base_offset < self.end_offset
        ]  # fmt: skip

    def aborted(self, segments: list[Segment], indexed: set[int]) -> set[int]:
        """Of the aborted transactions that were in the index, by their markers, those that stay."""
        batches = [batch for segment in segments for batch in segment.batches]
        return {one.marker_offset for one in self.transactions
                if one.marker_offset in indexed and any(one.has(batch) for batch in batches)}  # fmt: skip

    def _is_unreadable(self, batch: Stored) -> bool:
        return batch.base_offset in self.unreadable

    def _stays_unread(self, batch: Stored) -> bool:
        is_needed = batch.base_offset < self.end_offset and not self._transaction(batch, aborted=True)
        return self._is_unreadable(batch) and is_needed

    def _transaction(self, batch: Stored, *, aborted: bool) -> Transaction | None:
        return next((one for one in self.transactions if one.is_aborted == aborted and one.has(batch)), None)

    @staticmethod
    def _believed(batch: Stored, segment: Segment) -> Stored:
        return batch if segment.is_cleaned else replace(batch, attributes=batch.attributes & ~HORIZON)

    def _left(self, batch: Stored, batches: list[Stored], newest: dict, held_up: int) -> Stored | None:
        if batch.is_control:
            return self._marker(batch, batches)
        if self._transaction(batch, aborted=True):
            return self._emptied(batch)
        if batch.base_offset >= self.end_offset or self._is_unreadable(batch):
            return batch
        is_over = batch.attributes & HORIZON and batch.base_timestamp <= self.now_ms and held_up >= batch.base_offset
        current = tuple(
            record for record in batch.records
            if record.offset >= self.end_offset
            or (record.key is not None and newest.get(record.key, -1) <= record.offset)
        )  # fmt: skip
        kept = tuple(one for one in current if one.value is not None or not is_over or one.offset >= self.end_offset)
        self.removed.extend(record.offset for record in current if record not in kept)
        if not kept:
            return self._emptied(batch)
        has_tombstone = any(record.value is None for record in kept) and batch.last_offset < self.end_offset
        if not batch.attributes & HORIZON and has_tombstone:
            return self._dated(replace(batch, records=kept))
        if kept == batch.records:
            return batch
        base = batch.base_timestamp if batch.attributes & HORIZON else kept[0].timestamp
        return self._latest(replace(batch, records=kept, base_timestamp=base))

    def _dated(self, batch: Stored) -> Stored:
        horizon = self.now_ms + self.retention_ms
        return self._latest(replace(batch, attributes=batch.attributes | HORIZON, base_timestamp=horizon))

    @staticmethod
    def _latest(batch: Stored) -> Stored:
        if batch.attributes & APPEND_TIME:
            return batch
        return replace(batch, max_timestamp=max(-1, *(record.timestamp for record in batch.records)))

    def _emptied(self, batch: Stored) -> Stored | None:
        if batch.last_offset not in self.kept_offsets or batch.producer[0] < 0:
            return None
        return replace(batch, attributes=batch.attributes & ~CODEC & ~HORIZON, base_timestamp=-1, records=())

    def _marker(self, batch: Stored, batches: list[Stored]) -> Stored | None:
        ended = next((one for one in self.transactions if one.marker_offset == batch.last_offset), None)
        if ended is not None and any(ended.has(other) for other in batches):
            return batch
        if not batch.attributes & HORIZON:
            return self._dated(batch)
        if batch.base_timestamp > self.now_ms or batch.last_offset in self.kept_markers:
            return batch
        self.removed.append(batch.last_offset)
        return None


def read_log(data: bytes, *, unreadable: frozenset[int] = frozenset()) -> list[Stored]:
    """Batches of a log, checksums checked."""
    found = []
    for batch in read_batches(data):
        batch.check_crc()
        records = () if batch.base_offset in unreadable else batch.records()
        found.append(
            Stored(
                batch.base_offset, batch.last_offset, batch.partition_leader_epoch, batch.attributes,
                batch.base_timestamp, batch.max_timestamp,
                (batch.producer_id, batch.producer_epoch, batch.base_sequence),
                tuple(Kept(one.offset, one.key, one.value, one.timestamp_ms, one.headers) for one in records),
            )
        )  # fmt: skip
        assert batch.records_count == len(found[-1].records) or batch.base_offset in unreadable
    return found


def replay(segments: list[Segment], transactions: tuple[Transaction, ...]) -> dict[bytes, bytes]:
    """Values by keys, for who reads what is committed from the beginning."""
    values: dict[bytes, bytes] = {}
    aborted = [one for one in transactions if one.is_aborted]
    for segment in segments:
        for batch in segment.batches:
            if batch.is_control or any(one.has(batch) for one in aborted):
                continue
            for record in batch.records:
                if record.key is not None and record.value is None:
                    values.pop(record.key, None)
                elif record.key is not None:
                    values[record.key] = record.value
    return values
