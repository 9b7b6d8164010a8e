"""A group in numbers: members and topics become places in lists, in a defined order, so that an assignor neither hashes
ids again and again nor depends on the order of a mapping.

All of it is done in pieces, as the assignors' own work is (`Pace`).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from tpc_broker.coordinator.assignors.spec import GroupSpec, Partitions
    from tpc_broker.model import TopicId

STEP_OPERATIONS: Final = 250
"""Between two yields: a member looked at, a partition given. Some 0.2 ms."""
SORTED_AT_ONCE: Final = 500
"""Ids: some 0.2 ms. More are sorted in runs, which are merged."""
COMPARED_A_OPERATION: Final = 8
"""Topics of a subscription that are looked at in C count as one operation together."""
_SIGNS: Final = 1 << 127 | 1 << 63

Item = TypeVar("Item")


class Pace:
    """Counts the operations of one assignment, and says when it is time to let others run."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = STEP_OPERATIONS

    def is_due(self, operations: int = 1) -> bool:
        """After so many operations; the caller yields when it is due."""
        self._left -= operations
        if self._left > 0:
            return False
        self._left = STEP_OPERATIONS
        return True


@dataclass(frozen=True, slots=True)
class NumberedGroup:
    """`topics` has the number of every topic that exists and has a subscriber, `subscribers` the numbers of each one's
    members, ascending; topics with the same ones share the list.
    """

    spec: GroupSpec
    member_ids: Sequence[str]
    topic_ids: Sequence[TopicId]
    topics: dict[TopicId, int]
    partitions_counts: Sequence[int]
    subscribers: Sequence[Sequence[int]]
    is_homogeneous: bool
    """Whether all members subscribe to the same topics, of those that exist."""


Holding = list[tuple[int, frozenset[int]]]
"""What one member has, by topic number, ascending."""


@dataclass(frozen=True, slots=True)
class Holdings:
    """What members have and may keep; `free` has a 1 for every partition of a topic that nobody has."""

    of_members: list[Holding]
    free: list[bytearray]


def topic_order(topic_id: TopicId) -> int:
    """Kafka compares ids as two signed numbers of 64 bits."""
    return topic_id.int ^ _SIGNS


def in_order(items: Iterable[Item], key: Callable[[Item], Any], pace: Pace) -> Generator[None, None, list[Item]]:
    """Sort in steps."""
    unsorted = list(items)
    if len(unsorted) <= SORTED_AT_ONCE:
        return sorted(unsorted, key=key)
    runs = []
    for begin in range(0, len(unsorted), SORTED_AT_ONCE):
        runs.append(sorted(unsorted[begin : begin + SORTED_AT_ONCE], key=key))
        yield
    ordered = []
    for item in heapq.merge(*runs, key=key):
        ordered.append(item)
        if pace.is_due():
            yield
    return ordered


def number(spec: GroupSpec, member_ids: Sequence[str], pace: Pace) -> Generator[None, None, NumberedGroup]:
    """The group with its members in the order of `member_ids`. Members with the same subscription are looked at
    together: there may be thousands of them with thousands of topics.
    """
    alike: dict[frozenset[TopicId], list[int]] = {}
    for member, member_id in enumerate(member_ids):
        subscription = spec.members[member_id].topics
        alike.setdefault(subscription, []).append(member)
        if pace.is_due(1 + len(subscription) // COMPARED_A_OPERATION):
            yield
    parties = list(alike.values())
    parties_of: dict[TopicId, list[int]] = {}
    for party, subscription in enumerate(alike):
        for topic_id in subscription:
            if topic_id in spec.topics:
                parties_of.setdefault(topic_id, []).append(party)
            if pace.is_due():
                yield
    topic_ids = yield from in_order(parties_of, topic_order, pace)
    topics: dict[TopicId, int] = {}
    partitions_counts = []
    subscribers: list[Sequence[int]] = []
    together: dict[tuple[int, ...], Sequence[int]] = {}
    for topic, topic_id in enumerate(topic_ids):
        topics[topic_id] = topic
        partitions_counts.append(spec.topics[topic_id].partitions_count)
        chosen = tuple(parties_of.pop(topic_id))
        if chosen not in together:
            together[chosen] = sorted(chain.from_iterable(parties[party] for party in chosen))
        subscribers.append(together[chosen])
        if pace.is_due(1 + len(chosen)):
            yield
    is_homogeneous = all(len(chosen) == len(parties) for chosen in together)
    return NumberedGroup(spec, member_ids, topic_ids, topics, partitions_counts, subscribers, is_homogeneous)


def holdings(group: NumberedGroup, pace: Pace) -> Generator[None, None, Holdings]:
    """What each member was given before and may keep: of topics that exist and that it subscribes to, partitions that
    the topic has, and that no member before it has.
    """
    free = []
    for count in group.partitions_counts:
        free.append(bytearray(b"\1") * count)
        if pace.is_due():
            yield
    of_members = []
    for member_id in group.member_ids:
        member = group.spec.members[member_id]
        holding = []
        for topic_id, partitions in member.assigned.items():
            if pace.is_due():
                yield
            topic = group.topics.get(topic_id)
            if topic is None or topic_id not in member.topics:
                continue
            kept = yield from _taken(free[topic], partitions, pace)
            if kept:
                holding.append((topic, kept))
        holding.sort(key=_first)
        of_members.append(holding)
        if pace.is_due():
            yield
    return Holdings(of_members, free)


def _taken(free: bytearray, partitions: frozenset[int], pace: Pace) -> Generator[None, None, frozenset[int]]:
    """Those of one topic that were free; the very same set when all were."""
    taken = []
    for partition in partitions:
        if 0 <= partition < len(free) and free[partition]:
            free[partition] = 0
            taken.append(partition)
        if pace.is_due():
            yield
    return partitions if len(taken) == len(partitions) else frozenset(taken)


def _first(pair: tuple[int, frozenset[int]]) -> int:
    return pair[0]


def free_partitions(free: bytearray, pace: Pace) -> Generator[None, None, list[int]]:
    """Those of one topic that nobody has, ascending."""
    found, at = [], free.find(1)
    while at >= 0:
        found.append(at)
        if pace.is_due():
            yield
        at = free.find(1, at + 1)
    return found


def targets_of(
    group: NumberedGroup, of_members: list[Holding], pace: Pace
) -> Generator[None, None, dict[str, Partitions]]:
    """By member id and topic id again. `of_members` is emptied: freed at once, it would take milliseconds."""
    targets: dict[str, Partitions] = {}
    for member, member_id in enumerate(group.member_ids):
        holding, of_members[member] = of_members[member], []
        target = targets[member_id] = {}
        for topic, partitions in holding:
            target[group.topic_ids[topic]] = partitions
            if pace.is_due():
                yield
        if pace.is_due():
            yield
    return targets
