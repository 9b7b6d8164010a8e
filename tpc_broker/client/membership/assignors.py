"""How the leader of a classic group divides partitions among its members. No I/O, no chance: equal input, equal result.

Each assignor gets what every member said, and how many partitions each topic has, and gives every member its part. A
partition of a topic that nobody subscribes to is nobody's; any other is given to exactly one member, except for
`cooperative_sticky`, which withholds what is about to change hands: its owner gives it back first, and the group
divides once more (KIP-429).
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from itertools import cycle, islice
from typing import TYPE_CHECKING, Final

from tpc_broker.client.requests import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.client.membership.encoding import Said

COOPERATIVE_STICKY: Final = "cooperative-sticky"


@dataclass(frozen=True, slots=True)
class GroupMember:
    """``said`` is its subscription."""

    member_id: str
    instance_id: str | None
    said: Said

    @property
    def rank(self) -> tuple[bool, str]:
        """Static members first, by what stays of them."""
        return (self.instance_id is None, self.member_id if self.instance_id is None else self.instance_id)


Assignment = dict[str, set[TopicPartition]]


def range_(members: list[GroupMember], counts: Mapping[str, int]) -> Assignment:
    """Of each topic neighbouring partitions; earlier members have one more where it does not come out even."""
    given: Assignment = {member.member_id: set() for member in members}
    for topic, subscribed in _subscribed(members).items():
        share, more = divmod(counts.get(topic, 0), len(subscribed))
        first = 0
        for place, member in enumerate(subscribed):
            end = first + share + (place < more)
            given[member.member_id].update(TopicPartition(topic, partition) for partition in range(first, end))
            first = end
    return given


def round_robin(members: list[GroupMember], counts: Mapping[str, int]) -> Assignment:
    """All partitions in order, to one member after another; who does not subscribe to it is passed over."""
    given: Assignment = {member.member_id: set() for member in members}
    subscribed = {topic: {member.member_id for member in found} for topic, found in _subscribed(members).items()}
    turn = cycle([member.member_id for member in sorted(members, key=lambda one: one.rank)])
    for where in _all_partitions(subscribed, counts):
        given[next(one for one in turn if one in subscribed[where.topic])].add(where)
    return given


def cooperative_sticky(members: list[GroupMember], counts: Mapping[str, int]) -> Assignment:
    """As even as can be, then with as few moves as can be; what moves is withheld until its owner has given it back."""
    given = sticky(members, counts)
    claimed: dict[TopicPartition, set[str]] = {}
    for member in members:
        for where in member.said.owned:
            claimed.setdefault(where, set()).add(member.member_id)
    for member_id, partitions in given.items():
        partitions -= {where for where in partitions if member_id not in claimed.get(where, {member_id})}
    return given


def sticky(members: list[GroupMember], counts: Mapping[str, int]) -> Assignment:
    """As even as can be: nobody could take over a partition from somebody who has two more than it has. What a member
    owns stays with it where that allows it.
    """
    subscribed = {topic: {member.member_id for member in found} for topic, found in _subscribed(members).items()}
    given = _kept(members, subscribed, counts)
    taken = {where for partitions in given.values() for where in partitions}
    order = [member.member_id for member in sorted(members, key=lambda one: one.rank)]
    if len({frozenset(found) for found in subscribed.values()}) <= 1:
        _fill_evenly(given, [where for where in _all_partitions(subscribed, counts) if where not in taken], [
            member_id for member_id in order if any(member_id in found for found in subscribed.values())
        ])  # fmt: skip
        return given
    left = [where for where in _all_partitions(subscribed, counts) if where not in taken]
    for where in sorted(left, key=lambda one: (len(subscribed[one.topic]), one)):
        takers = [member_id for member_id in order if member_id in subscribed[where.topic]]
        given[min(takers, key=lambda one: len(given[one]))].add(where)
    _even_out(given, subscribed, order)
    return given


def _kept(members: list[GroupMember], subscribed: Mapping[str, set[str]], counts: Mapping[str, int]) -> Assignment:
    """What members own and may keep: of several owners the one of the newest generation; of equals none."""
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in members:
        for where in member.said.owned:
            if where.partition >= counts.get(where.topic, 0) or member.member_id not in subscribed.get(where.topic, ()):
                continue
            generation, _owner = newest.get(where, (member.said.generation - 1, None))
            if member.said.generation > generation:
                newest[where] = (member.said.generation, member.member_id)
            elif member.said.generation == generation:
                newest[where] = (generation, None)
    given: Assignment = {member.member_id: set() for member in members}
    for where, (_generation, owner) in newest.items():
        if owner is not None:
            given[owner].add(where)
    return given


def _fill_evenly(given: Assignment, left: list[TopicPartition], order: list[str]) -> None:
    """All members may have any partition: each keeps at most its share, and what is over goes to who has fewest."""
    if not order:
        return
    count = len(left) + sum(len(given[member_id]) for member_id in order)
    share, more = divmod(count, len(order))
    for member_id in sorted(order, key=lambda one: -len(given[one])):
        bound = share + (1 if more > 0 else 0)
        while len(given[member_id]) > bound:
            where = max(given[member_id])
            given[member_id].remove(where)
            left.append(where)
        if len(given[member_id]) > share:
            more -= 1
    places = iter(sorted(left))
    for member_id in sorted(order, key=lambda one: -len(given[one])):
        missing = share - len(given[member_id])
        if missing < 0:
            continue
        if more > 0:
            missing, more = missing + 1, more - 1
        given[member_id].update(islice(places, missing))


def _even_out(given: Assignment, subscribed: Mapping[str, set[str]], order: list[str]) -> None:
    """Moves single partitions to members that have at least two fewer, until there is no such move. Each makes the sum
    of squares smaller, so it ends.
    """
    moved = True
    while moved:
        moved = False
        by_load = sorted(order, key=lambda one: -len(given[one]))
        for giver in by_load:
            for where in sorted(given[giver]):
                takers = subscribed[where.topic]
                taker = min((one for one in order if one in takers), key=lambda one: len(given[one]))
                if len(given[giver]) >= len(given[taker]) + 2:
                    given[giver].remove(where)
                    given[taker].add(where)
                    moved = True


def _subscribed(members: list[GroupMember]) -> dict[str, list[GroupMember]]:
    """By topic, in order of topics and of members."""
    found: dict[str, list[GroupMember]] = {}
    for member in members:
        for topic in set(member.said.topics):
            insort(found.setdefault(topic, []), member, key=lambda one: one.rank)
    return dict(sorted(found.items()))


def _all_partitions(subscribed: Mapping[str, object], counts: Mapping[str, int]) -> list[TopicPartition]:
    return [TopicPartition(name, partition) for name in sorted(subscribed) for partition in range(counts.get(name, 0))]


ASSIGNORS: Final[dict[str, Callable[[list[GroupMember], Mapping[str, int]], Assignment]]] = {
    COOPERATIVE_STICKY: cooperative_sticky,
    "range": range_,
    "roundrobin": round_robin,
}
"""By the names that members of a group agree on, which are Kafka's."""
