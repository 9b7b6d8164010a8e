"""What a cleaner may leave of the log of a coordinator's machine: `AnyCleaner` of records, `BatchCleaner` of batches.

They remove what a cleaner may remove, or leave it: by chance, record by record, so that a machine meets more logs than
one cleaner makes. What may go: of a key what has a later record in front of the last stable offset; a tombstone of a
key, and the marker of a transaction, of which nothing older was there before this pass; all of an aborted transaction.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tests.coordinator.scenario import Opened
from tpc_broker.coordinator import Producer, Record, TransactionEnd
from tpc_broker.kafka.records import ControlType, build_batch, read_batch, read_control
from tpc_broker.log.batch import decode_header
from tpc_broker.model import INTERNAL_TOPICS
from tpc_broker.native_bytes import crc32c

CRC_AT, CRC_FROM, LAST_DELTA_AT, HEADER_BYTES = 17, 21, 23, 61


class Place(NamedTuple):
    """An entry of the log, and where it is in it."""

    offset: int
    entry: object


class AnyCleaner:
    """Of one log, of which `left` is left."""

    def __init__(self, chance):
        self._chance = chance
        self.left: list[Place] = []
        self.end = self.removed = 0
        self._transaction_of: dict[int, int] = {}
        """By the offset of a record or a marker, the number of its transaction: where that begins."""
        self._open: dict[int, int] = {}
        """By producer id, the number of its transaction."""
        self._ended: dict[int, bool] = {}
        """By number, whether it was committed."""

    def take(self, log):
        """All of the log as it is without a cleaner."""
        for entry in log[self.end :]:
            self.note(self.end, entry)

    def note(self, offset, entry):
        """The next one."""
        if isinstance(entry, Opened):
            self._transaction_of[offset] = self._open.setdefault(entry.producer.producer_id, offset)
        elif isinstance(entry, TransactionEnd):
            number = self._transaction_of[offset] = self._open.pop(entry.producer.producer_id, offset)
            self._ended[number] = entry.commit
        self.left.append(Place(offset, entry))
        self.end = offset + 1

    def entries(self):
        return [place.entry for place in self.left]

    def clean(self):
        """A pass, up to anywhere in front of the last stable offset."""
        upto = self._chance.randrange(min(self._open.values(), default=self.end) + 1)
        first, last, with_data = self._look(upto)
        share = self._chance.choice([0.3, 0.9, 1])
        kept = [
            place
            for place in self.left
            if place.offset >= upto
            or not self._may_go(place, first, last, with_data)
            or self._chance.random() >= share
        ]
        self.removed += len(self.left) - len(kept)
        self.left = kept

    def _look(self, upto):
        """Where each key has its first and its last record that counts, and the transactions that have any."""
        first, last, with_data = {}, {}, set()
        for offset, entry in self.left:
            if offset >= upto:
                break
            if isinstance(entry, Opened):
                with_data.add(self._transaction_of[offset])
            if not isinstance(entry, TransactionEnd) and self._counts(offset, entry):
                first.setdefault(_record(entry).key, offset)
                last[_record(entry).key] = offset
        return first, last, with_data

    def _counts(self, offset, entry):
        return not isinstance(entry, Opened) or self._ended[self._transaction_of[offset]]

    def _may_go(self, place, first, last, with_data):
        offset, entry = place
        if isinstance(entry, TransactionEnd):
            return self._transaction_of[offset] not in with_data
        if not self._counts(offset, entry):
            return True
        key, value = _record(entry)
        return offset < last[key] or (value is None and first[key] == offset)


def _record(entry):
    return entry.record if isinstance(entry, Opened) else entry


class BatchCleaner:
    """Of a `MemoryLog`. Of a batch of which nothing is left there is a header, or nothing."""

    def __init__(self, chance):
        self._chance = chance
        self.records = AnyCleaner(chance)
        self.passes = 0

    def clean(self, log):
        """A pass, below the high watermark."""
        for data in log.batches:
            header = decode_header(data)
            if self.records.end <= header.base_offset < log.high_watermark:
                self._note(read_batch(data))
                self.records.end = header.next_offset
        self.records.clean()
        left = {place.offset for place in self.records.left}
        log.batches = [kept for data in log.batches if (kept := self._cleaned(data, left, log.high_watermark))]
        self.passes += 1

    def _note(self, batch):
        producer = Producer(batch.producer_id, batch.producer_epoch)
        for record in batch.records():
            if batch.is_control:
                kind, coordinator_epoch = read_control(record)
                entry = TransactionEnd(producer, kind is ControlType.COMMIT, coordinator_epoch)
            else:
                entry = Record(record.key, record.value)
                entry = Opened(producer, entry) if batch.is_transactional else entry
            self.records.note(record.offset, entry)

    def _cleaned(self, data, left, high_watermark):
        batch = read_batch(data)
        kept = [record for record in batch.records() if record.offset in left]
        if batch.base_offset >= high_watermark or len(kept) == batch.records_count:
            return data
        if kept:
            made = build_batch(
                kept, base_offset=batch.base_offset, producer_id=batch.producer_id,
                producer_epoch=batch.producer_epoch, base_sequence=batch.base_sequence,
                partition_leader_epoch=batch.partition_leader_epoch, is_transactional=batch.is_transactional,
                is_control=batch.is_control,
            )  # fmt: skip
            return with_last_delta(made, batch.last_offset_delta)
        return emptied(data) if self._chance.random() < 0.5 else None


class SealedSegment(NamedTuple):
    """As much of a cleaned segment as a partition asks for."""

    seal: object


class CleanedEnd(NamedTuple):
    """As much of its seal."""

    generation: str
    end_offset: int
    first_dirty_offset: int = 0
    removed_upto: int = 0


def clean_coordinators(node, chance):
    """A pass over each log of coordinators of a node in memory. How many records are gone by now."""
    removed = 0
    for of_core in node.files.values():
        for files in of_core.values():
            if files.topic in INTERNAL_TOPICS:
                cleaner = files.log.__dict__.setdefault("cleaner", BatchCleaner(chance))
                cleaner.clean(files.log)
                files.segments = (SealedSegment(CleanedEnd(f"{cleaner.passes:016x}", files.log.high_watermark)),)
                removed += cleaner.records.removed
    return removed


def emptied(data):
    """A batch of which the header is left."""
    length = struct.pack(">i", HEADER_BYTES - 12)
    made = data[:8] + length + data[12 : HEADER_BYTES - 4] + bytes(4)
    return with_last_delta(made, read_batch(data).last_offset_delta)


def with_last_delta(data, last_offset_delta):
    """A batch that takes as many offsets as before."""
    covered = data[CRC_FROM:LAST_DELTA_AT] + struct.pack(">i", last_offset_delta) + data[LAST_DELTA_AT + 4 :]
    return data[:CRC_AT] + struct.pack(">I", crc32c(covered)) + covered
