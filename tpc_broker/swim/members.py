"""The table of members, and the order in which they are probed.

SWIM, section 4.3: choosing a random member each period leaves the time to the first probe of a given one without a
bound. So the members stand in a list in random order, each period takes the next one, a new member is put in at a
random place, and the list is shuffled when its end is reached. A failed member is then probed within 2n - 1 periods by
each of the others, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.swim.model import GONE, State, Update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.model import NodeId
    from tpc_broker.swim.lifeguard import Suspicion
    from tpc_broker.swim.model import NodeInfo

Below = Callable[[int], int]
"""A random whole number in [0, n): the machine's only source of chance."""


@dataclass(slots=True)
class Member:
    """What is held of another member."""

    node: NodeId
    info: NodeInfo
    incarnation: int
    state: State
    source: NodeId
    suspicion: Suspicion | None = None
    gone_ms: int = 0
    """When it died or left, as far as this node knows: the earliest that anybody told."""

    @property
    def rank(self) -> tuple[int, int]:
        """Place of what is held in the order of claims."""
        return self.incarnation, self.state

    def update(self, *, with_info: bool = False) -> Update:
        """What is held, as a claim to be told."""
        info = self.info if with_info or self.state is State.ALIVE else None
        return Update(self.node, self.incarnation, self.state, self.source, info)


class Members:
    """All members but this node itself. Those who are gone are kept for `retention_ms`."""

    def __init__(self, below: Below, retention_ms: int) -> None:
        self._below = below
        self._retention_ms = retention_ms
        self._members: dict[NodeId, Member] = {}
        self._order: list[NodeId] = []
        """Those to be probed; members that are gone are taken out when they are met."""
        self._in_order: set[NodeId] = set()
        self._next = 0
        self.counts = dict.fromkeys(State, 0)
        self.forget_ms: int | None = None
        """When the first of those who are gone is to be forgotten, or earlier."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def get(self, node: NodeId) -> Member | None:
        """What is held of that member."""
        return self._members.get(node)

    @property
    def present_count(self) -> int:
        """Alive or suspected."""
        return self.counts[State.ALIVE] + self.counts[State.SUSPECT]

    def add(self, member: Member) -> None:
        """A member that was not known."""
        assert member.node not in self._members, member
        self._members[member.node] = member
        self.counts[member.state] += 1
        if member.state not in GONE:
            self._put_in_order(member.node)

    def set_state(self, member: Member, state: State) -> None:
        """Another state, the table's counts and the order of probing with it."""
        self.counts[member.state] -= 1
        self.counts[state] += 1
        member.state = state
        if state not in GONE and member.node not in self._in_order:
            self._put_in_order(member.node)

    def remove(self, member: Member) -> None:
        """Forget a member that is gone."""
        assert member.state in GONE, member
        del self._members[member.node]
        self.counts[member.state] -= 1

    # Rule: A member that is gone is forgotten by all members at about the same time, and not learned again. See also
    # tpc_broker/swim/machine.py. Held by tests/swim/test_machine.py, tests/simulator (at the end of a run).
    def gone_since(self, member: Member, gone_ms: int) -> None:
        """It died or left then, as far as is known now."""
        member.gone_ms = gone_ms
        forget_ms = gone_ms + self._retention_ms
        self.forget_ms = forget_ms if self.forget_ms is None else min(self.forget_ms, forget_ms)

    def outlived(self, now_ms: int) -> list[Member]:
        """Those whose time after their end is over, to be removed now."""
        if self.forget_ms is None or now_ms < self.forget_ms:
            return []
        gone = [member for member in self._members.values() if member.state in GONE]
        ends = [member.gone_ms + self._retention_ms for member in gone]
        self.forget_ms = min((end_ms for end_ms in ends if end_ms > now_ms), default=None)
        return [member for member, end_ms in zip(gone, ends, strict=True) if end_ms <= now_ms]

    def _put_in_order(self, node: NodeId) -> None:
        place = self._below(len(self._order) + 1)
        self._order.insert(place, node)
        self._in_order.add(node)
        if place < self._next:
            self._next += 1  # whoever was next remains so

    def next_to_probe(self) -> Member | None:
        """The next one in turn that is alive or suspected; None when there is nobody."""
        while self._order:
            if self._next >= len(self._order):
                self._shuffle()
            node = self._order[self._next]
            member = self._members.get(node)
            if member is not None and member.state not in GONE:
                self._next += 1
                return member
            del self._order[self._next]
            self._in_order.discard(node)
        return None

    def _shuffle(self) -> None:
        order, below = self._order, self._below
        for last in range(len(order) - 1, 0, -1):
            other = below(last + 1)
            order[last], order[other] = order[other], order[last]
        self._next = 0

    def some_present(self, count: int, excepted: NodeId | None = None, *, suspects: bool = False) -> list[Member]:
        """`count` different members at random that are alive (or, with `suspects`, suspected), or all there are.

        A few draws find them, but for small tables, and where many failed together and still stand in the order.
        """
        wanted = {State.ALIVE, State.SUSPECT} if suspects else {State.ALIVE}
        chosen: dict[NodeId, Member] = {}
        for _attempt in range(4 * count if self._order else 0):
            if len(chosen) == count:
                return list(chosen.values())
            node = self._order[self._below(len(self._order))]
            member = self._members.get(node)
            if member is not None and member.state in wanted and node != excepted:
                chosen[node] = member
        rest = [m for m in self if m.state in wanted and m.node != excepted and m.node not in chosen]
        while rest and len(chosen) < count:
            member = rest.pop(self._below(len(rest)))
            chosen[member.node] = member
        return list(chosen.values())

    def some_dead(self) -> Member | None:
        """A member at random that is held to be dead; None when there is none."""
        dead = [member for member in self._members.values() if member.state is State.DEAD]
        return dead[self._below(len(dead))] if dead else None

    def longest_gone(self) -> Member | None:
        """The member that died or left first; None when nobody did."""
        gone = [member for member in self._members.values() if member.state in GONE]
        return min(gone, key=lambda member: (member.gone_ms, member.node), default=None)
