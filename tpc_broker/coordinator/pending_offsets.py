"""Offsets of transactions that are open: `PendingOffsets`.

A transaction's offsets are in the log from when they were sent, and count from its marker on, if that commits. Of one
partition the last record in the log is what counts then: what a plain commit, or a transaction that ended sooner, wrote
behind them stays. So what is pending is outdone as soon as something that counts is written behind it; it is told to be
unstable until its marker all the same. A tombstone ends it at once. All is as in Kafka's `OffsetMetadataManager`.

The end of a transaction is one step, for whoever asks. What it has is brought in some at a time, though: of 100,000
offsets everybody on this core would wait for it. So whoever asks has that brought in first which the answer depends on.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.records import OffsetKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.coordinator.effects import Producer, Record
    from tpc_broker.coordinator.records import StoredOffset

BROUGHT_IN_AT_ONCE: Final = 128
"""Offsets of transactions that have ended, a microsecond or two each."""

TopicAndPartition = tuple[str, int]


class _OfGroup:
    """What a producer's transaction has of a group."""

    __slots__ = ("counting", "outdone")

    def __init__(self) -> None:
        self.counting: dict[TopicAndPartition, StoredOffset | Record] = {}
        """What its commit makes known."""
        self.outdone: set[TopicAndPartition] = set()


class _Transaction:
    """What is open of a producer, or has ended and is not brought in yet."""

    __slots__ = ("commits", "groups", "is_over", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = 0
        self.groups: dict[str, _OfGroup] = {}
        self.is_over = self.commits = False

    def outdo(self, group_id: str, partition: TopicAndPartition) -> None:
        """What it has of a partition does not count when it commits."""
        of_group = self.groups[group_id]
        of_group.counting.pop(partition, None)
        of_group.outdone.add(partition)

    def pop(self, group_id: str, partition: TopicAndPartition) -> StoredOffset | Record | None:
        """What it has of a partition is forgotten: if it counts, what it is."""
        of_group = self.groups[group_id]
        of_group.outdone.discard(partition)
        offset = of_group.counting.pop(partition, None)
        if not (of_group.counting or of_group.outdone):
            del self.groups[group_id]
        return offset


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

    def __init__(self, counts: Callable[[OffsetKey, StoredOffset | Record], None]) -> None:
        """`counts` is told what a transaction has committed."""
        self._counts = counts
        self._open: dict[int, _Transaction] = {}
        """By producer id."""
        self._ended: dict[_Transaction, None] = {}
        """Those of which something is left to bring in."""
        self._holders: dict[str, dict[TopicAndPartition, _Transaction | dict[_Transaction, None]]] = {}
        """Who has something of a group's partition: one transaction, or several in the order of their last records."""
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

    @property
    def has_ended(self) -> bool:
        """Whether something is left to bring in."""
        return bool(self._ended)

    @property
    def has_any(self) -> bool:
        """Whether something is open, or left to bring in."""
        return bool(self._open or self._ended)

    # Replay

    def add(self, producer: Producer, key: OffsetKey, offset: StoredOffset | Record) -> None:
        """A record of an open transaction; in place of what the producer had for that partition. The record itself is
        given where a later release has written it.
        """
        group_id, partition = key.group_id, (key.topic, key.partition)
        transaction = self._open.get(producer.producer_id)
        if transaction is None:
            transaction = self._open[producer.producer_id] = _Transaction(producer.producer_id)
        transaction.producer_epoch = producer.producer_epoch
        of_group = transaction.groups.get(group_id)
        if of_group is None:
            of_group = transaction.groups[group_id] = _OfGroup()
        of_group.counting[partition] = offset
        of_group.outdone.discard(partition)
        all_holders = self._holders.setdefault(group_id, {})
        holders = all_holders.setdefault(partition, transaction)
        if holders is not transaction:
            several = {holders: None} if isinstance(holders, _Transaction) else holders
            several.pop(transaction, None)
            several[transaction] = None
            all_holders[partition] = several

    def outdo(self, key: OffsetKey, *, is_tombstone: bool = False) -> None:
        """Something that counts is written behind all that is pending for it."""
        group_id, partition = key.group_id, (key.topic, key.partition)
        self.bring_in_of(group_id, [partition])
        for transaction in self._holders_of(group_id, partition):
            if not is_tombstone:
                transaction.outdo(group_id, partition)
                continue
            transaction.pop(group_id, partition)
            self._let_go(transaction, group_id, partition)
            if not transaction.groups:
                del self._open[transaction.producer_id]

    # Rule: The end of a transaction is one step, whatever it has: nobody sees a part of it. What is many is brought in
    # by and by, and before that whatever is asked for. Held by tests/coordinator/test_large_transactions.py.
    def end(self, producer_id: int, *, commit: bool) -> None:
        """A marker."""
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            transaction.is_over, transaction.commits = True, commit
            self._ended[transaction] = None
            self._bring_in_some(transaction, BROUGHT_IN_AT_ONCE)

    def _holders_of(self, group_id: str, partition: TopicAndPartition) -> list[_Transaction]:
        holders = self._holders.get(group_id, {}).get(partition)
        if holders is None:
            return []
        return [holders] if isinstance(holders, _Transaction) else list(holders)

    def _let_go(self, transaction: _Transaction, group_id: str, partition: TopicAndPartition) -> None:
        all_holders = self._holders[group_id]
        holders = all_holders[partition]
        if isinstance(holders, dict):
            del holders[transaction]
        if not holders or holders is transaction:
            del all_holders[partition]
        if not all_holders:
            del self._holders[group_id]

    # What has ended, and is not brought in

    def bring_in(self) -> None:
        """All of it."""
        while self._ended:
            self._bring_in_some(next(iter(self._ended)), math.inf)

    def bring_in_some(self) -> bool:
        """As much as a step may; whether anything is left."""
        left: float = BROUGHT_IN_AT_ONCE
        while self._ended and left > 0:
            left = self._bring_in_some(next(iter(self._ended)), left)
        return bool(self._ended)

    def bring_in_of(self, group_id: str, partitions: Iterable[TopicAndPartition] | None = None) -> None:
        """Of a group these partitions, or with None all."""
        if not self._ended:
            return
        for partition in list(self._holders.get(group_id, ())) if partitions is None else partitions:
            for transaction in self._holders_of(group_id, partition):
                if transaction.is_over:
                    self._bring_in_one(transaction, group_id, partition, transaction.pop(group_id, partition))
                    self._forget_if_empty(transaction)

    def _bring_in_some(self, transaction: _Transaction, count: float) -> float:
        """Of one so many, if it has them; how many are left to others."""
        while transaction.groups and count > 0:
            group_id, of_group = transaction.groups.popitem()
            while of_group.counting and count > 0:
                self._bring_in_one(transaction, group_id, *of_group.counting.popitem())
                count -= 1
            while of_group.outdone and count > 0:
                self._bring_in_one(transaction, group_id, of_group.outdone.pop(), None)
                count -= 1
            if of_group.counting or of_group.outdone:
                transaction.groups[group_id] = of_group
        self._forget_if_empty(transaction)
        return count

    def _bring_in_one(
        self,
        transaction: _Transaction,
        group_id: str,
        partition: TopicAndPartition,
        offset: StoredOffset | Record | None,
    ) -> None:
        """Whatever the order: what others have of it counts no more if it is in front of it in the log."""
        is_known = offset is not None and transaction.commits
        if is_known:
            for other in takewhile(lambda each: each is not transaction, self._holders_of(group_id, partition)):
                other.outdo(group_id, partition)
        self._let_go(transaction, group_id, partition)
        if offset is not None and is_known:
            self._counts(OffsetKey(group_id, *partition), offset)

    def _forget_if_empty(self, transaction: _Transaction) -> None:
        if not transaction.groups:
            del self._ended[transaction]

    # Questions

    @property
    def group_ids(self) -> Iterable[str]:
        """Of which something is pending. First all has to be brought in."""
        return self._holders.keys()

    def is_pending(self, group_id: str, partition: TopicAndPartition) -> bool:
        """Whether a transaction has an offset for it."""
        self.bring_in_of(group_id, [partition])
        return partition in self._holders.get(group_id, ())

    def may_come(self, group_id: str, partition: TopicAndPartition | None = None) -> bool:
        """The same, or one is on its way to the log; of a group, with None for the partition."""
        self.bring_in_of(group_id, None if partition is None else [partition])
        tables = (self._holders.get(group_id, ()), self._coming.get(group_id, ()))
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
