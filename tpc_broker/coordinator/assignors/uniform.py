"""The assignor `uniform`: as many partitions to every member as to any other, and as many as possible where they are.

Theory of operation
-------------------
When all members subscribe to the same topics, every one is due `partitions // members`, and one more goes to as many of
them as it takes. In the order of their ids, members keep what they have up to that. One that has no use for one more
leaves it to those behind it, as long as enough of them are left to take them all: so it is mostly kept by who has it.
What nobody has or keeps is then given out in the order of topics and partitions. Nothing has to be compared: this is
linear in members and partitions.

Otherwise members keep everything first, and the rest is given, topic by topic, to the subscriber with the fewest
partitions; topics with the most partitions for each subscriber come first. Then topics are levelled one by one in the
same order: the subscriber with the most partitions gives one of this topic to the one with the fewest, until they
differ by no more than one. A topic that is level may be uneven again when the next one is, so this is repeated until
nothing moves, for `ROUNDS_MAX` rounds at most: a long chain of members that share one topic with each neighbour levels
slowly, and may stay uneven. The next assignment goes on where this one has stopped.

Both are what Apache Kafka 4.3.1 does, partition for partition, when its hash tables happen to have this order of
members and topics. It looks at no rack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.assignors.numbered import (
    Holding,
    Holdings,
    NumberedGroup,
    Pace,
    free_partitions,
    holdings,
    in_order,
    number,
    targets_of,
)

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Iterator

    from tpc_broker.coordinator.assignors.spec import GroupSpec, Partitions

ROUNDS_MAX: Final = 16
NOBODY: Final = -1
LOOKED_AT_A_OPERATION: Final = 16
"""Members whose sizes C looks at or sorts by count as one operation together."""


def assign_uniform(spec: GroupSpec) -> Generator[None, None, dict[str, Partitions]]:
    """The targets of all members; see `spec.Assignor`."""
    pace = Pace()
    member_ids = yield from in_order(spec.members, str, pace)
    group = yield from number(spec, member_ids, pace)
    present = yield from holdings(group, pace)
    if group.is_homogeneous:
        of_members = yield from _shared_evenly(group, present, pace)
    else:
        of_members = yield from _Levelling(group, present, pace).run()
    return (yield from targets_of(group, of_members, pace))


Run = tuple[int, Sequence[int]]
"""Partitions of one topic that are to be given out, in this order."""


def _shared_evenly(group: NumberedGroup, present: Holdings, pace: Pace) -> Generator[None, None, list[Holding]]:
    """Where all members subscribe to the same topics."""
    of_members: list[Holding] = []
    due: list[tuple[int, int]] = []
    given_up: list[Run] = []
    members_left = len(group.member_ids)
    least, more = divmod(sum(group.partitions_counts), members_left or 1)
    for member, holding in enumerate(present.of_members):
        takes_more = more > 0
        left = least + takes_more
        kept: Holding = []
        for topic, partitions in holding:
            if len(partitions) <= left:
                kept.append((topic, partitions))
                left -= len(partitions)
                continue
            ordered = sorted(partitions)
            if left:
                kept.append((topic, frozenset(ordered[:left])))
            given_up.append((topic, ordered[left:]))
            left = 0
        if left and takes_more and members_left > more:
            takes_more, left = False, left - 1
        more -= takes_more
        members_left -= 1
        of_members.append(kept)
        if left:
            due.append((member, left))
        if pace.is_due(1 + len(holding)):
            yield
    runs: list[Run] = []
    for topic, free in enumerate(present.free):
        runs.append((topic, (yield from free_partitions(free, pace))))
        if pace.is_due():
            yield
    yield from _give_out([*runs, *given_up], due, of_members, pace)
    return of_members


def _give_out(
    runs: Sequence[Run], due: Sequence[tuple[int, int]], of_members: list[Holding], pace: Pace
) -> Generator[None, None, None]:
    """To each member that is due some, as many as it is due; together these are all that there are."""
    run = at = 0
    for member, wanted in due:
        left = wanted
        holding = dict(of_members[member])
        while left:
            topic, partitions = runs[run]
            given = partitions[at : at + left]
            if given:
                holding[topic] = holding.get(topic, frozenset()).union(given)
            left -= len(given)
            run, at = (run, at + len(given)) if at + len(given) < len(partitions) else (run + 1, 0)
            if pace.is_due():
                yield
        of_members[member] = list(holding.items())
    assert all(not partitions for _topic, partitions in runs[run:]), "every partition is somebody's"


class _Levelling:
    """Where members subscribe to different topics."""

    def __init__(self, group: NumberedGroup, present: Holdings, pace: Pace) -> None:
        self._group = group
        self._present = present
        self._pace = pace
        self._owners: list[list[int]] = []
        self._sizes = [0] * len(group.member_ids)
        self._changed: set[int] = set()
        """Topics of which partitions were given or moved."""

    def run(self) -> Generator[None, None, list[Holding]]:
        yield from self._keep()
        order = yield from in_order(range(len(self._owners)), self._urgency, self._pace)
        yield from self._give(order)
        yield from self._level(order)
        return (yield from self._result())

    def _urgency(self, topic: int) -> tuple[float, int]:
        subscribers_count = len(self._group.subscribers[topic])
        return -self._group.partitions_counts[topic] / subscribers_count, subscribers_count

    def _keep(self) -> Generator[None, None, None]:
        for count in self._group.partitions_counts:
            self._owners.append([NOBODY] * count)
            if self._pace.is_due():
                yield
        for member, holding in enumerate(self._present.of_members):
            for topic, partitions in holding:
                owners = self._owners[topic]
                self._sizes[member] += len(partitions)
                for partition in partitions:
                    owners[partition] = member
                    if self._pace.is_due():
                        yield
            if self._pace.is_due():
                yield

    def _give(self, order: Sequence[int]) -> Generator[None, None, None]:
        """What nobody has."""
        for topic in order:
            unowned = yield from free_partitions(self._present.free[topic], self._pace)
            subscribers = self._group.subscribers[topic]
            if self._pace.is_due(1 + len(subscribers) // LOOKED_AT_A_OPERATION):
                yield
            if not unowned:
                continue
            self._changed.add(topic)
            takers = _fewest_first(sorted(subscribers, key=self._sizes.__getitem__), self._sizes)
            for partition, (_size, taker) in zip(unowned, takers, strict=False):
                self._owners[topic][partition] = taker
                self._sizes[taker] += 1
                if self._pace.is_due():
                    yield

    def _level(self, order: Sequence[int]) -> Generator[None, None, None]:
        """All topics in turn, until a whole turn has moved nothing."""
        last_moved = order[0] if order else NOBODY
        for turn in range(ROUNDS_MAX):
            for topic in order:
                if turn and topic == last_moved:
                    return
                if (yield from self._level_topic(topic)):
                    last_moved = topic

    def _level_topic(self, topic: int) -> Generator[None, None, bool]:
        """Move partitions of one topic, and say whether any was."""
        subscribers, sizes = self._group.subscribers[topic], self._sizes
        if self._pace.is_due(1 + len(subscribers) // LOOKED_AT_A_OPERATION):
            yield
        of_subscribers = list(map(sizes.__getitem__, subscribers))
        if max(of_subscribers) - min(of_subscribers) <= 1:
            return False
        owners = self._owners[topic]
        to_give = yield from self._by_owner(topic)
        ordered = sorted(subscribers, key=sizes.__getitem__)
        takers = _fewest_first(ordered, sizes)
        has_moved = False
        for most, giver in _most_first(ordered[::-1], sizes, to_give):
            if self._pace.is_due(2):
                yield
            if giver == NOBODY:
                continue
            partition = to_give[giver].pop()
            if not to_give[giver]:
                del to_give[giver]
            fewest, taker = next(takers)
            if most - fewest <= 1:
                break
            owners[partition] = taker
            sizes[giver] -= 1
            sizes[taker] += 1
            has_moved = True
        if has_moved:
            self._changed.add(topic)
        return has_moved

    def _by_owner(self, topic: int) -> Generator[None, None, dict[int, list[int]]]:
        """The partitions of one topic, each owner's ascending."""
        found: dict[int, list[int]] = {}
        for partition, owner in enumerate(self._owners[topic]):
            found.setdefault(owner, []).append(partition)
            if self._pace.is_due():
                yield
        return found

    def _result(self) -> Generator[None, None, list[Holding]]:
        of_members: list[Holding] = []
        for member, holding in enumerate(self._present.of_members):
            of_members.append([pair for pair in holding if pair[0] not in self._changed])
            self._present.of_members[member] = []
            if self._pace.is_due(1 + len(holding)):
                yield
        for topic in sorted(self._changed):
            of_topic = yield from self._by_owner(topic)
            for member, partitions in of_topic.items():
                of_members[member].append((topic, frozenset(partitions)))
                if self._pace.is_due():
                    yield
        return of_members


def _fewest_first(ascending: Sequence[int], sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Who is to be given the next partition, without end, and how many the ones with the fewest have in this turn. The
    caller adds what it gives to `sizes`; so all of them are given one before any of them is given the next, and those
    who had one more from the start then join them.
    """
    size, end = sizes[ascending[0]], 0
    while True:
        while end < len(ascending) and sizes[ascending[end]] == size:
            end += 1
        for place in range(end):
            yield size, ascending[place]
        size += 1


def _most_first(descending: list[int], sizes: Sequence[int], to_give: Container[int]) -> Iterator[tuple[int, int]]:
    """Who is to give the next partition, among those in `to_give`, until there are none, and how many the ones with the
    most have in this turn. The caller takes what they give from `sizes`. `descending` is put into another order.

    Whoever has nothing to give leaves, and the first who is still there takes its place; `NOBODY` is told then.
    """
    size, begin, end = sizes[descending[0]], 0, 0
    while True:
        if begin == end:
            if end == len(descending):
                return
            size = sizes[descending[end]]
        while end < len(descending) and sizes[descending[end]] == size:
            end += 1
        for place in range(begin, end):
            member = descending[place]
            if member in to_give:
                yield size, member
            else:
                descending[place], descending[begin] = descending[begin], member
                begin += 1
                yield size, NOBODY
        size -= 1
