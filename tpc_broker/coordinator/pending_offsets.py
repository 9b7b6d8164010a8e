"""Offsets of transactions that are open: `PendingOffsets`.

A transaction's offsets are in the log from when they were sent, and count from its marker on, if that commits. Of one
partition the last record in the log is what counts then: what a plain commit, or a transaction that ended sooner, wrote
behind them stays. So what is pending is outdone as soon as something that counts is written behind it; it is told to be
unstable until its marker all the same. A tombstone ends it at once. All is as in Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.coordinator.effects import Producer, Record
    from tpc_broker.coordinator.records import OffsetKey

TopicAndPartition = tuple[str, int]


class _Pending(NamedTuple):
    number: int
    """Of the record in this machine's life: they are in the log's order."""
    record: Record
    is_outdone: bool = False


class Verification:
    """That a producer's transaction is open is being asked elsewhere; `is_over` when a marker of it was taken since."""

    __slots__ = ("is_over", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.is_over = False


class PendingOffsets:
    """Of one coordinator, by producer id; changed only as records and markers are replayed. Beside that it knows what
    is on its way to the log, and which transactions are being asked about.
    """

    def __init__(self) -> None:
        self._count = 0
        self._by_producer: dict[int, dict[OffsetKey, _Pending]] = {}
        self._epochs: dict[int, int] = {}
        self._producers_of: dict[str, dict[TopicAndPartition, set[int]]] = {}
        """Who has something pending, by group and partition."""
        self._coming: dict[str, Counter[TopicAndPartition]] = {}
        """Writes under way, by group and partition."""
        self._ending: Counter[int] = Counter()
        """Markers under way, by producer id."""
        self._verifications: defaultdict[int, list[Verification]] = defaultdict(list)

    def __len__(self) -> int:
        """Of partitions, of each producer."""
        return sum(map(len, self._by_producer.values()))

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    # Replay

    def add(self, producer: Producer, key: OffsetKey, record: Record) -> None:
        """A record of an open transaction; in place of what the producer had for that partition."""
        self._count += 1
        producer_id = producer.producer_id
        pending = self._by_producer.setdefault(producer_id, {})
        pending[key] = _Pending(self._count, record)
        self._epochs[producer_id] = producer.producer_epoch
        partitions = self._producers_of.setdefault(key.group_id, {})
        partitions.setdefault((key.topic, key.partition), set()).add(producer_id)

    def outdo(self, key: OffsetKey, *, is_tombstone: bool = False) -> None:
        """Something that counts is written behind all that is pending for it."""
        for producer_id in self._producers(key):
            if is_tombstone:
                self._take(producer_id, key)
            else:
                self._outdo(producer_id, key)

    def end(self, producer_id: int, *, commit: bool) -> list[Record]:
        """A marker: the records that count now."""
        ended = self._by_producer.get(producer_id, {})
        counting = []
        for key, (number, record, is_outdone) in list(ended.items()):
            self._take(producer_id, key)
            if commit and not is_outdone:
                counting.append(record)
                for other in self._producers(key):
                    if self._by_producer[other][key].number < number:
                        self._outdo(other, key)
        return counting

    def _outdo(self, producer_id: int, key: OffsetKey) -> None:
        pending = self._by_producer[producer_id]
        pending[key] = pending[key]._replace(is_outdone=True)

    def _producers(self, key: OffsetKey) -> list[int]:
        return list(self._producers_of.get(key.group_id, {}).get((key.topic, key.partition), ()))

    def _take(self, producer_id: int, key: OffsetKey) -> None:
        pending = self._by_producer[producer_id]
        del pending[key]
        if not pending:
            del self._by_producer[producer_id], self._epochs[producer_id]
        of_group, partition = self._producers_of[key.group_id], (key.topic, key.partition)
        of_group[partition].remove(producer_id)
        if not of_group[partition]:
            del of_group[partition]
        if not of_group:
            del self._producers_of[key.group_id]

    # Questions

    @property
    def group_ids(self) -> Iterable[str]:
        """Of which something is pending."""
        return self._producers_of.keys()

    def is_pending(self, group_id: str, partition: TopicAndPartition) -> bool:
        """Whether a transaction has an offset for it."""
        return partition in self._producers_of.get(group_id, ())

    def may_come(self, group_id: str, partition: TopicAndPartition | None = None) -> bool:
        """The same, or one is on its way to the log; of a group, with None for the partition."""
        tables = (self._producers_of.get(group_id, ()), self._coming.get(group_id, ()))
        return any(table if partition is None else partition in table for table in tables)

    def is_open(self, producer: Producer) -> bool:
        """Whether it is certain that the producer's transaction, in this epoch, is open, and in this partition."""
        producer_id, producer_epoch = producer
        return self._epochs.get(producer_id) == producer_epoch and producer_id not in self._ending

    # What is under way

    def begin_write(self, keys: Iterable[OffsetKey]) -> None:
        """Offsets of a transaction are about to be written."""
        for key in keys:
            self._coming.setdefault(key.group_id, Counter())[key.topic, key.partition] += 1

    def end_write(self, keys: Iterable[OffsetKey]) -> None:
        """They were, or will never be."""
        for key in keys:
            coming, partition = self._coming[key.group_id], (key.topic, key.partition)
            coming[partition] -= 1
            if not coming[partition]:
                del coming[partition]
            if not coming:
                del self._coming[key.group_id]

    def begin_marker(self, producer_id: int) -> None:
        """A marker is about to be written: what was asked about its transaction before says nothing any more."""
        self._ending[producer_id] += 1
        for verification in self._verifications.pop(producer_id, ()):
            verification.is_over = True

    def end_marker(self, producer_id: int) -> None:
        """It was, or will never be."""
        self._ending[producer_id] -= 1
        if not self._ending[producer_id]:
            del self._ending[producer_id]

    def begin_verification(self, producer_id: int) -> Verification:
        """It is about to be asked whether a transaction of this producer is open."""
        verification = Verification(producer_id)
        verification.is_over = producer_id in self._ending
        if not verification.is_over:
            self._verifications[producer_id].append(verification)
        return verification

    def end_verification(self, verification: Verification) -> None:
        """Whatever the answer was."""
        others = self._verifications.get(verification.producer_id, [])
        if verification in others:
            others.remove(verification)
        if not others:
            self._verifications.pop(verification.producer_id, None)
