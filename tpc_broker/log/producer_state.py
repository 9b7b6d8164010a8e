"""What a partition knows of its producers: last batches, open transactions; and the `.snapshot` file.

Theory of operation
-------------------
The state is a function of the log: applying every batch in order from an empty state gives it. It is kept so that a
repeat of one of a producer's last five batches is recognised (KIP-98), and so that readers of committed records know
the *last stable offset*: the first offset of the oldest transaction that is still open. A snapshot named N is the state
in front of offset N, so the state at any offset is the nearest snapshot below plus the batches since.

Applying does not judge: what is in the log was checked before it was admitted.

The `.snapshot` file is Kafka's (version 1, big-endian): version i16, CRC-32C u32 over what follows it, the number of
entries i32, and per producer: id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64,
coordinator epoch i32, first offset of the open transaction i64 (-1: none). It holds one batch per producer; a core's
checkpoint holds all five.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    ControlMarker,
    decode_control_marker,
)
from tpc_broker.log.indexes import AbortedTransaction
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tpc_broker.log.batch import Buffer

BATCHES_PER_PRODUCER_MAX: Final = 5
PRODUCERS_MAX: Final = 350_000
"""Of a partition: what a core's data plane knows of all of its partitions has as many, by its default."""
ROOM_MADE_SHARE: Final = 16
"""Of them this part goes at a time."""
ENCODED_AT_ONCE: Final = 500
"""For a snapshot, less than a microsecond each."""
SNAPSHOT_VERSION: Final = 1
NO_OFFSET: Final = -1

_SNAPSHOT_HEADER: Final = struct.Struct(">hIi")
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_COVERS_FROM: Final = 6

_PRODUCER: Final = struct.Struct("<qhiqqB")
_BATCH: Final = struct.Struct("<iqiq")
_COUNT: Final = struct.Struct("<I")


@cache
def _with_batches(count: int) -> struct.Struct:
    """One producer, by the number of its batches: what a file says of it may be more than five."""
    return struct.Struct(_PRODUCER.format + count * _BATCH.format.lstrip("<"))



class SnapshotError(ValueError):
    """A producer snapshot that cannot be believed."""


class ProducedBatch(NamedTuple):
    """One of a producer's last batches, as a repeat of it would look."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


@dataclass(slots=True)
class Producer:
    """One producer id. `batches` holds the last five at most, oldest first. `last_timestamp` is its last records', by
    the client's clock: a backfill's are old, and say nothing of when they came.
    """

    producer_id: int
    epoch: int
    coordinator_epoch: int = -1
    transaction_first_offset: int = NO_OFFSET
    last_timestamp: int = NO_TIMESTAMP
    batches: list[ProducedBatch] = field(default_factory=list)
    silent_since_ms: int | None = field(default=None, compare=False)
    """By a clock that is never set; None: it is for `expire` to say."""
    sequence_lost: bool = field(default=False, compare=False)
    """A crash may have lost its latest batches (`ProducerState.mark_lost`), and none has come since."""
    marker_offset: int = field(default=NO_OFFSET, compare=False)
    """Of the marker that it wrote last, where nothing came since; -1 also when that was before a start."""
    owner: object = field(default=None, compare=False, repr=False)
    """The only state that may change this object; all others that have it would change with it."""
    encoded: bytes | None = field(default=None, compare=False, repr=False)
    """As in a checkpoint, if it was in one and has not changed since: it is in the next one, too."""

    def encode(self) -> bytes:
        """For a checkpoint."""
        if self.encoded is None:
            self.encoded = _with_batches(len(self.batches)).pack(
                self.producer_id,
                self.epoch,
                self.coordinator_epoch,
                self.transaction_first_offset,
                self.last_timestamp,
                len(self.batches),
                *chain.from_iterable(self.batches),
            )
        return self.encoded


class ProducerState:
    """All producers of one partition, as of the offset up to which batches were applied.

    They are in the order in which they changed last, and bounded: where there are too many, those that have not changed
    for longest go, but for those with an open transaction.

    A copy has the same objects, of which each is copied when it changes: a checkpoint copies the state of a partition
    that has changed, which may have hundreds of thousands.
    """

    def __init__(self) -> None:
        self.producers: dict[int, Producer] = {}
        self._owner = object()
        self._kept = 0
        """So many may there be, as they have transactions open."""
        self._open: dict[int, int] | None = None
        """First offsets of open transactions, by producer; None: nobody has asked yet."""

    def __len__(self) -> int:
        return len(self.producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self.producers.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProducerState) and self.producers == other.producers

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> ProducerState:
        """Some nanoseconds for each."""
        duplicate = ProducerState()
        duplicate.producers = dict(self.producers)
        self._owner = object()
        return duplicate

    # Rule: What is known of a producer changes only in an object that no other state has: a checkpoint that is being
    # written would say what is not in its segments. Held by tests/log/test_producer_state.py.
    def _own(self, producer_id: int) -> Producer | None:
        """To be changed."""
        producer = self.producers.pop(producer_id, None)
        if producer is None:
            return None
        if producer.owner is not self._owner:
            producer = replace(producer, batches=list(producer.batches), owner=self._owner)
        producer.encoded = None
        self.producers[producer_id] = producer
        return producer

    def apply(self, header: BatchHeader, data: Buffer, position: int = 0) -> AbortedTransaction | None:
        """Take a batch into account; `data` from `position` on is the batch. The transaction that it aborts, if any.

        Any negative id is none, as for Kafka, and not only -1.
        """
        if header.producer_id < 0:
            return None
        if header.is_control:
            if not header.records_count:  # compaction has emptied it
                return None
            return self._apply_marker(header, decode_control_marker(data, position))
        producer = self._producer(header)
        producer.last_timestamp = header.max_timestamp
        producer.batches.append(
            ProducedBatch(header.last_sequence, header.last_offset, header.last_offset_delta, header.max_timestamp)
        )
        del producer.batches[:-BATCHES_PER_PRODUCER_MAX]
        if header.is_transactional:
            self._begin(producer, header.base_offset)
        return None

    def _begin(self, producer: Producer, first_offset: int) -> None:
        """Its transaction, unless that has begun."""
        if producer.transaction_first_offset != NO_OFFSET or first_offset == NO_OFFSET:
            return
        producer.transaction_first_offset = first_offset
        if self._open is not None:
            self._open[producer.producer_id] = first_offset

    def _producer(self, header: BatchHeader) -> Producer:
        producer = self._own(header.producer_id)
        if producer is None:
            producer = self._add(header.producer_id, header.producer_epoch)
        elif producer.epoch != header.producer_epoch:
            producer.epoch = header.producer_epoch
            producer.batches.clear()
        producer.silent_since_ms, producer.sequence_lost, producer.marker_offset = None, False, NO_OFFSET
        return producer

    def extend(
        self,
        producer_id: int,
        epoch: int,
        batches: list[ProducedBatch],
        *,
        is_epoch_new: bool,
        last_timestamp: int,
        transaction_first_offset: int,
    ) -> None:
        """`apply` for many batches of one producer that are no control batches: the last of them, oldest first.

        `is_epoch_new`: its epoch changed among them, so that nothing from before counts. `transaction_first_offset`: of
        the first transactional one, -1 for none.
        """
        producer = self._own(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch)
        elif is_epoch_new or producer.epoch != epoch:
            producer.batches.clear()
        producer.epoch = epoch
        producer.silent_since_ms, producer.sequence_lost, producer.marker_offset = None, False, NO_OFFSET
        producer.last_timestamp = last_timestamp
        producer.batches.extend(batches)
        del producer.batches[:-BATCHES_PER_PRODUCER_MAX]
        self._begin(producer, transaction_first_offset)

    def _add(self, producer_id: int, epoch: int) -> Producer:
        if len(self.producers) >= max(PRODUCERS_MAX, self._kept):
            self.forget_longest_unchanged(PRODUCERS_MAX - PRODUCERS_MAX // ROOM_MADE_SHARE)
            self._kept = len(self.producers) + PRODUCERS_MAX // ROOM_MADE_SHARE
        producer = self.producers[producer_id] = Producer(producer_id, epoch)
        return producer

    def forget_longest_unchanged(self, count_max: int) -> None:
        """But for those with an open transaction."""
        more = len(self.producers) - count_max
        closed = (one.producer_id for one in self if one.transaction_first_offset == NO_OFFSET)
        for producer_id in list(islice(closed, max(0, more))):
            del self.producers[producer_id]

    def mark_lost(self, producer_ids: Iterable[int] | None = None) -> None:
        """A crash may have lost batches that these producers were answered for early (`durability=relaxed`); None: all.

        The next batch of each is taken whatever its sequence, once, and ends that.
        """
        for producer_id in list(self.producers) if producer_ids is None else producer_ids:
            if (producer := self._own(producer_id)) is not None:
                producer.sequence_lost = True

    @property
    def lost(self) -> list[int]:
        """Ids of those that `mark_lost` says it of, since when they have sent nothing."""
        return [producer.producer_id for producer in self if producer.sequence_lost]

    def divided(self) -> tuple[ProducerState, ProducerState]:
        """Those whose batches are all here, and those that are `lost`; of the same objects."""
        whole, lost = ProducerState(), ProducerState()
        for producer in self:
            (lost if producer.sequence_lost else whole).producers[producer.producer_id] = producer
        return whole, lost

    def complete(self, later: ProducerState) -> None:
        """Take the batches in front of its own that a later state of the same log has: a snapshot holds the last one of
        each producer, and one of the four before it may still be repeated.
        """
        for one in list(self):
            known = later.producers.get(one.producer_id)
            if known is None or known.epoch != one.epoch or not one.batches:
                continue
            producer = self._own(one.producer_id)
            assert producer is not None
            first_offset = producer.batches[0].last_offset
            older = [batch for batch in known.batches if batch.last_offset < first_offset]
            producer.batches[:] = [*older, *producer.batches][-BATCHES_PER_PRODUCER_MAX:]

    # Rule: A repair forgets no sequence: of whom no batch is left the checkpoint knows it. Held by
    # tests/storage/test_repair_cleaned.py.
    def remember(self, earlier: ProducerState, end_offset: int) -> None:
        """Producers that an earlier state of the same log has and that are not here, without what they had open: their
        batches have gone. Not those that have written from `end_offset` on.
        """
        known = {
            one.producer_id: replace(one, transaction_first_offset=NO_OFFSET, encoded=None, owner=None)
            for one in earlier
            if one.producer_id not in self.producers
            and all(batch.last_offset < end_offset for batch in one.batches)
        }
        self.producers = known | self.producers

    def _apply_marker(self, header: BatchHeader, marker: ControlMarker) -> AbortedTransaction | None:
        if marker.kind not in (CONTROL_ABORT, CONTROL_COMMIT):
            return None
        producer = self._producer(header)
        first_offset = producer.transaction_first_offset
        producer.transaction_first_offset = NO_OFFSET
        if self._open is not None:
            self._open.pop(producer.producer_id, None)
        producer.coordinator_epoch, producer.marker_offset = marker.coordinator_epoch, header.last_offset
        producer.last_timestamp = header.max_timestamp
        if first_offset == NO_OFFSET or marker.kind == CONTROL_COMMIT:
            return None
        return AbortedTransaction(
            header.producer_id, first_offset, header.last_offset, self.last_stable_offset(header.next_offset)
        )

    def end_transactions(self, below: int) -> None:
        """Those that began below an offset have ended, somewhere."""
        for producer_id in [one.producer_id for one in self if 0 <= one.transaction_first_offset < below]:
            producer = self._own(producer_id)
            assert producer is not None
            producer.transaction_first_offset = NO_OFFSET
            if self._open is not None:
                self._open.pop(producer_id, None)

    def open_since(self, producer_id: int) -> int:
        """The first offset of a producer's open transaction, -1 for none."""
        producer = self.producers.get(producer_id)
        return NO_OFFSET if producer is None else producer.transaction_first_offset

    def last_stable_offset(self, high_watermark: int) -> int:
        """First offset of the oldest open transaction, the high watermark when there is none below it."""
        if self._open is None:  # from there on it is known: each abort asks, beside hundreds of thousands of producers
            first_offsets = ((one.producer_id, one.transaction_first_offset) for one in self)
            self._open = {producer_id: first for producer_id, first in first_offsets if first != NO_OFFSET}
        return min(self._open.values(), default=high_watermark)

    def expire(self, now_ms: int, monotonic_ms: int, expiration_ms: int) -> int:
        """Forget producers without an open transaction that were silent for so long; how many.

        They are since their last records' time, where that can be: since now when it is to come, or so long ago that
        they would be forgotten at once. From there on it is `monotonic_ms` that counts, because `now_ms`, the wall
        clock, may be set: by decades, on a machine that has none of its own.
        """
        silent = []
        for producer in self:
            if producer.silent_since_ms is None:
                is_recent = now_ms - expiration_ms < producer.last_timestamp <= now_ms
                producer.silent_since_ms = monotonic_ms - (now_ms - producer.last_timestamp if is_recent else 0)
            silent_ms = monotonic_ms - producer.silent_since_ms
            if producer.transaction_first_offset == NO_OFFSET and silent_ms >= expiration_ms:
                silent.append(producer.producer_id)
        for producer_id in silent:
            del self.producers[producer_id]
        return len(silent)

    def encode_snapshot(self, now_and_then: Callable[[], None] = lambda: None) -> bytes:
        """The `.snapshot` file; `now_and_then` is called between every few hundred producers."""
        entries = []
        for number, producer in enumerate(self):
            if not number % ENCODED_AT_ONCE:
                now_and_then()
            last = producer.batches[-1] if producer.batches else ProducedBatch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)
            entries.append(
                _SNAPSHOT_ENTRY.pack(
                    producer.producer_id,
                    producer.epoch,
                    last.last_sequence,
                    last.last_offset,
                    last.offset_delta,
                    producer.last_timestamp,
                    producer.coordinator_epoch,
                    producer.transaction_first_offset,
                )
            )
        covered = struct.pack(">i", len(entries)) + b"".join(entries)
        return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(covered)) + covered

    @classmethod
    def decode_snapshot(cls, data: bytes) -> ProducerState:
        """Raises SnapshotError for anything but a whole, right snapshot."""
        parts = cls.decode_snapshot_in_parts(data, PRODUCERS_MAX)
        while True:
            try:
                next(parts)
            except StopIteration as end:
                state: ProducerState = end.value
                return state

    @classmethod
    def decode_snapshot_in_parts(cls, data: bytes, at_once: int) -> Generator[None, None, ProducerState]:
        """The same, so many producers at a time: of hundreds of thousands it takes half a second."""
        if len(data) < _SNAPSHOT_HEADER.size:
            raise SnapshotError(f"{len(data)} bytes are no producer snapshot")
        version, crc, count = _SNAPSHOT_HEADER.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise SnapshotError(f"version {version}, known is {SNAPSHOT_VERSION}")
        if crc != crc32c(memoryview(data)[_CRC_COVERS_FROM:]):
            raise SnapshotError("the CRC does not fit")
        if count < 0 or len(data) != _SNAPSHOT_HEADER.size + count * _SNAPSHOT_ENTRY.size:
            raise SnapshotError(f"{count} entries in {len(data)} bytes")
        state = cls()
        entries = _SNAPSHOT_ENTRY.iter_unpack(memoryview(data)[_SNAPSHOT_HEADER.size :])
        while some := tuple(islice(entries, at_once)):
            state._take_entries(some)
            yield
        return state

    def _take_entries(self, entries: Iterable[tuple[int, ...]]) -> None:
        """Of a snapshot."""
        for (
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            offset_delta,
            timestamp,
            coordinator_epoch,
            first_offset,
        ) in entries:
            producer = Producer(producer_id, epoch, coordinator_epoch, first_offset, timestamp)
            if last_offset != NO_OFFSET:
                producer.batches.append(ProducedBatch(last_sequence, last_offset, offset_delta, timestamp))
            if producer_id >= 0:  # earlier releases kept others
                self.producers[producer_id] = producer

    def encode_full(self) -> bytes:
        """All that is known, for a core's checkpoint (little-endian; no CRC of its own)."""
        return _COUNT.pack(len(self.producers)) + b"".join([producer.encoded or producer.encode() for producer in self])

    def encode_in_parts(self, at_once: int) -> Iterator[bytes]:
        """The same, of so many producers at a time. Nothing may change meanwhile."""
        yield _COUNT.pack(len(self.producers))
        left = iter(self)
        while some := [producer.encode() for producer in islice(left, at_once)]:
            yield b"".join(some)

    @classmethod
    def decode_full(cls, data: Buffer, position: int) -> tuple[ProducerState, int]:
        """The state that `encode_full` wrote at a place, and the place behind it. The bytes' CRC was checked before."""
        state = cls()
        (count,) = _COUNT.unpack_from(data, position)
        return state, state._decode(data, position + _COUNT.size, count)

    @classmethod
    def decode_in_parts(cls, data: Buffer, at_once: int) -> Generator[None, None, ProducerState]:
        """The same of bytes that have nothing else, so many producers at a time. struct.error: they have."""
        state = cls()
        (left,) = _COUNT.unpack_from(data)
        position = _COUNT.size
        while left:
            count = min(left, at_once)
            position = state._decode(data, position, count)
            left -= count
            yield
        if position != len(data):
            raise struct.error(f"the producers end at byte {position} of {len(data)}")
        return state

    def _decode(self, data: Buffer, position: int, count: int) -> int:
        for _number in range(count):
            *fields, batches_count = _PRODUCER.unpack_from(data, position)
            position += _PRODUCER.size
            batches_end = position + batches_count * _BATCH.size
            if batches_end > len(data):
                raise struct.error("the bytes end within a producer")
            producer = Producer(*fields)
            producer.batches = list(map(ProducedBatch._make, _BATCH.iter_unpack(data[position:batches_end])))
            position = batches_end
            if producer.producer_id >= 0:  # earlier releases kept others
                self.producers[producer.producer_id] = producer
        return position
