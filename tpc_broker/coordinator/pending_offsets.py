"""Offsets of transactions that are open: `PendingOffsets`.

A transaction's offsets are in the log from when they were sent, and count from its marker on, if that commits. Of one
partition the last record in the log is what counts then: what a plain commit, or a transaction that ended sooner, wrote
behind them stays. So what is pending is outdone as soon as something that counts is written behind it; it is told to be
unstable until its marker all the same. A tombstone ends it at once. All is as in Kafka's `OffsetMetadataManager`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING

from tpc_broker.coordinator.effects import Record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.coordinator.effects import Producer
    from tpc_broker.coordinator.records import OffsetKey, StoredOffset

TopicAndPartition = tuple[str, int]


class _OfGroup:
    """What a producer's transaction has of a group."""

    __slots__ = ("counting", "outdone")

    def __init__(self) -> None:
        self.counting: dict[TopicAndPartition, StoredOffset | Record] = {}
        """What its commit makes known."""
        self.outdone: set[TopicAndPartition] = set()


class _Transaction:
    """What is open of a producer."""

    __slots__ = ("groups", "producer_epoch")

    def __init__(self) -> None:
        self.producer_epoch = 0
        self.groups: dict[str, _OfGroup] = {}


class _Group:
    """Who has something pending of a group."""

    __slots__ = ("holders", "producers")

    def __init__(self) -> None:
        self.producers: set[int] = set()
        self.holders: dict[TopicAndPartition, int | dict[int, None]] = {}
        """Of each partition: the producer, or several in the order of their last records in the log."""


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
        self._open: dict[int, _Transaction] = {}
        """By producer id."""
        self._groups: dict[str, _Group] = {}
        self.has_later = False
        """Whether there ever was a value that a later release has written."""
        self._coming: dict[str, Counter[TopicAndPartition]] = {}
        """Writes under way, by group and partition."""
        self._ending: Counter[int] = Counter()
        """Markers under way, by producer id."""
        self._verifications: defaultdict[int, list[Verification]] = defaultdict(list)

    def __len__(self) -> int:
        """Of partitions, of each producer."""
        of_groups = [each for transaction in self._open.values() for each in transaction.groups.values()]
        return sum(len(each.counting) + len(each.outdone) for each in of_groups)

    def __bool__(self) -> bool:
        return bool(self._open)

    # Replay

    def add(self, producer: Producer, key: OffsetKey, offset: StoredOffset | Record) -> None:
        """A record of an open transaction; in place of what the producer had for that partition. The record itself is
        given where a later release has written it.
        """
        producer_id, partition = producer.producer_id, (key.topic, key.partition)
        transaction = self._open.get(producer_id)
        if transaction is None:
            transaction = self._open[producer_id] = _Transaction()
        transaction.producer_epoch = producer.producer_epoch
        group = self._groups.get(key.group_id)
        if group is None:
            group = self._groups[key.group_id] = _Group()
        of_group = transaction.groups.get(key.group_id)
        if of_group is None:
            of_group = transaction.groups[key.group_id] = _OfGroup()
            group.producers.add(producer_id)
        of_group.counting[partition] = offset
        of_group.outdone.discard(partition)
        self.has_later |= isinstance(offset, Record)
        holders = group.holders.setdefault(partition, producer_id)
        if holders != producer_id:
            several = {holders: None} if isinstance(holders, int) else holders
            several.pop(producer_id, None)
            several[producer_id] = None
            group.holders[partition] = several

    def outdo(self, key: OffsetKey, *, is_tombstone: bool = False) -> None:
        """Something that counts is written behind all that is pending for it."""
        group, partition = self._groups.get(key.group_id), (key.topic, key.partition)
        if group is None or partition not in group.holders:
            return
        holders = group.holders[partition]
        for producer_id in [holders] if isinstance(holders, int) else list(holders):
            self._outdo(producer_id, key.group_id, partition)
            if is_tombstone:
                of_group = self._open[producer_id].groups[key.group_id]
                of_group.outdone.remove(partition)
                if not (of_group.counting or of_group.outdone):
                    self._leave(producer_id, key.group_id)
        if is_tombstone and key.group_id in self._groups:
            del group.holders[partition]

    def _leave(self, producer_id: int, group_id: str) -> None:
        """A producer has nothing of a group any more."""
        transaction, group = self._open[producer_id], self._groups[group_id]
        del transaction.groups[group_id]
        if not transaction.groups:
            del self._open[producer_id]
        group.producers.remove(producer_id)
        if not group.producers:
            del self._groups[group_id]

    # Rule: The end of a transaction is one step, whatever it has: nobody sees a part of it. So next to nothing is done
    # there for each of its offsets, where the transaction is alone in its group. Held by
    # tests/coordinator/test_large_transactions.py.
    def end(self, producer_id: int, *, commit: bool) -> dict[str, dict[TopicAndPartition, StoredOffset | Record]]:
        """A marker: what counts now, by group. It belongs to the caller."""
        counting = {}
        transaction = self._open.get(producer_id)
        for group_id, of_group in [] if transaction is None else list(transaction.groups.items()):
            if len(self._groups[group_id].producers) > 1:
                self._end_beside_others(producer_id, group_id, of_group, commit=commit)
            self._leave(producer_id, group_id)
            if commit and of_group.counting:
                counting[group_id] = of_group.counting
        return counting

    def _end_beside_others(self, producer_id: int, group_id: str, of_group: _OfGroup, *, commit: bool) -> None:
        all_holders = self._groups[group_id].holders
        for partition in (*of_group.counting, *of_group.outdone):
            holders = all_holders[partition]
            if isinstance(holders, int):
                del all_holders[partition]
                continue
            if commit and partition in of_group.counting:
                for other in takewhile(lambda each: each != producer_id, holders):
                    self._outdo(other, group_id, partition)
            del holders[producer_id]
            if not holders:
                del all_holders[partition]

    def _outdo(self, producer_id: int, group_id: str, partition: TopicAndPartition) -> None:
        of_group = self._open[producer_id].groups[group_id]
        of_group.counting.pop(partition, None)
        of_group.outdone.add(partition)

    # Questions

    @property
    def group_ids(self) -> Iterable[str]:
        """Of which something is pending."""
        return self._groups.keys()

    def is_pending(self, group_id: str, partition: TopicAndPartition) -> bool:
        """Whether a transaction has an offset for it."""
        group = self._groups.get(group_id)
        return group is not None and partition in group.holders

    def may_come(self, group_id: str, partition: TopicAndPartition | None = None) -> bool:
        """The same, or one is on its way to the log; of a group, with None for the partition."""
        group, coming = self._groups.get(group_id), self._coming.get(group_id, ())
        tables = (() if group is None else group.holders, coming)
        return any(table if partition is None else partition in table for table in tables)

    def is_open(self, producer: Producer) -> bool:
        """Whether it is certain that the producer's transaction, in this epoch, is open, and in this partition."""
        producer_id, producer_epoch = producer
        transaction = self._open.get(producer_id)
        is_of_epoch = transaction is not None and transaction.producer_epoch == producer_epoch
        return is_of_epoch and producer_id not in self._ending

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
