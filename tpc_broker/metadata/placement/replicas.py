"""Where the replicas go: balanced, spread over racks, with little movement.

Theory of operation
-------------------
Three steps, each of which changes only what it must:

1. *Keep*. A replica stays if its node is there and not draining, and if its rack holds no more than a fair part of its
   partition. Of those too many the one on the fullest node goes.
2. *Fill*. Missing replicas go where most is missing: partition by partition to the node farthest below its share, in a
   rack that may still take one. Each is a movement that cannot be avoided.
3. *Level*. While two nodes are more than one apart (`Shares`), a replica moves from the fuller to the emptier one.
   Where no partition can go directly (it is there already, or the rack forbids it), a chain over other nodes does it,
   the shortest there is. A chain of k moves costs k, so direct ones are always tried first.

Racks. A partition with r replicas over k racks has between floor(r / k) and ceil(r / k) in each, as far as racks have
nodes for it. That is a hard rule, evenness is not: one node alone in its rack holds a replica of every partition when
that is what racks demand.

Step 3 ends at the most even placement that the rules allow, because any other one would differ from it by such
chains (this is min-cost flow with convex costs, and a chain is an augmenting path). That it is so, and how many moves
are made beyond the fewest, is compared with an exact solver in `tests/metadata/test_placement.py`.

Full nodes get nothing. To a partition that has no replica there such a node does not exist, nor does its place in its
rack. So a full node that holds less than its share stays below it; one that holds more gives away what is too much.

Load. Among partitions that may move equally well, the one goes whose load brings both nodes nearest to each other.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, TypeVar

from tpc_broker.metadata.placement.model import PlacementNode, Replicated, Shares

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from typing import TypeAlias

    from tpc_broker.model import NodeId

Result = TypeVar("Result")
if TYPE_CHECKING:
    Steps: TypeAlias = Generator[None, None, Result]

_Rack = str
_LOOKS_MAX = 32
"""Partitions whose loads are compared before one is moved: the first that may go is good enough for evenness."""


def place_in_steps(
    nodes: Sequence[PlacementNode], partitions: Sequence[Replicated], fixed: Iterable[NodeId] = ()
) -> Steps[list[tuple[NodeId, ...]]]:
    """The nodes of each partition, in the order of `partitions`; those that stay first, in their order. `fixed`: the
    node of each replica of others, which count and do not move. In short steps, for who has other things to do.

    With fewer nodes than replicas wanted a partition gets one on each, and keeps what it has on nodes that are gone:
    its group must not shrink because there is nowhere to go.
    """
    there = [node for node in nodes if not node.is_draining]
    if not there:
        return [partition.replicas for partition in partitions]
    table = _Table(there, partitions)
    table.count(fixed)
    for index in range(len(partitions)):
        table.keep(index)
        yield
    for index in sorted(range(len(partitions)), key=lambda index: -partitions[index].load):
        table.fill(index)
        yield
    while table.level():
        yield
    return [table.placed(index) for index in range(len(partitions))]


def place_new_replicas(
    nodes: Sequence[PlacementNode], present: Iterable[NodeId], partitions: Sequence[Replicated]
) -> list[tuple[NodeId, ...]]:
    """The nodes of partitions that are made now; what is there stays. `present`: the node of each replica there is."""
    table = _Table(nodes, partitions)
    table.count(present)
    for index in range(len(partitions)):
        table.fill(index)
    return [table.placed(index) for index in range(len(partitions))]


class _Table:
    """Which node holds which partition, while it is being decided. Partitions are indexes."""

    def __init__(self, nodes: Sequence[PlacementNode], partitions: Sequence[Replicated]) -> None:
        self._partitions = partitions
        self._racks: dict[NodeId, _Rack] = {node.node: node.rack for node in nodes}
        self._nodes = sorted(self._racks)
        self._full = frozenset(node.node for node in nodes if node.is_full)
        self._shares = Shares(nodes)
        self._held: list[list[NodeId]] = [[] for _partition in partitions]
        self._holds: dict[NodeId, dict[int, None]] = {node: {} for node in self._nodes}
        self._bounds: dict[tuple[int, frozenset[NodeId]], dict[_Rack, tuple[int, int]]] = {}

    def count(self, present: Iterable[NodeId]) -> None:
        """Replicas of partitions that are not decided about."""
        for node in present:
            if node in self._racks:
                self._shares.add(node)

    def placed(self, index: int) -> tuple[NodeId, ...]:
        """The decision for one partition."""
        before, held = self._partitions[index].replicas, self._held[index]
        lacking = self._partitions[index].replication_factor - len(held)
        stranded = [node for node in before if node not in held][: max(0, lacking)]
        stay = [node for node in before if node in held]
        return (*stay, *(node for node in held if node not in before), *stranded)

    def _closed(self, index: int) -> frozenset[NodeId]:
        """Full nodes without a replica of a partition."""
        return self._full.difference(self._partitions[index].replicas) if self._full else self._full

    def _wanted(self, index: int) -> int:
        """How many replicas a partition gets."""
        return min(self._partitions[index].replication_factor, len(self._nodes) - len(self._closed(index)))

    def _limits(self, index: int) -> dict[_Rack, tuple[int, int]]:
        """How many replicas of a partition each rack has at least and at most; the same for equal replication factors.

        Racks with few nodes are full first; the others share what is left.
        """
        wanted, closed = self._wanted(index), self._closed(index)
        if (wanted, closed) not in self._bounds:
            bounds: dict[_Rack, tuple[int, int]] = dict.fromkeys(self._racks.values(), (0, 0))
            sizes = Counter(rack for node, rack in self._racks.items() if node not in closed)
            left, racks = wanted, sorted(sizes, key=lambda rack: (sizes[rack], rack))
            for number, rack in enumerate(racks):
                others = len(racks) - number
                if sizes[rack] <= left // others:
                    bounds[rack] = (sizes[rack], sizes[rack])
                    left -= sizes[rack]
                else:
                    even = (left // others, -(-left // others))
                    bounds |= dict.fromkeys(racks[number:], even)
                    break
            self._bounds[wanted, closed] = bounds
        return self._bounds[wanted, closed]

    def _in_racks(self, index: int) -> Counter[_Rack]:
        return Counter(self._racks[node] for node in self._held[index])

    def _put(self, index: int, node: NodeId) -> None:
        self._held[index].append(node)
        self._holds[node][index] = None
        self._shares.add(node, self._partitions[index].load)

    def keep(self, index: int) -> None:
        """Step 1. What must go for its rack's sake goes from the fullest node."""
        partition, bounds = self._partitions[index], self._limits(index)
        stay = [node for node in partition.replicas if node in self._racks]
        while stay:
            counts = Counter(self._racks[node] for node in stay)
            too_many = [rack for rack, count in counts.items() if count > bounds[rack][1]]
            demanded = sum(max(0, bounds[rack][0] - counts[rack]) for rack in bounds)
            free = self._wanted(index) - len(stay)
            if not too_many and demanded > free:  # others must have the place that this one takes
                too_many = [rack for rack, count in counts.items() if count > bounds[rack][0]]
            leaving = [node for node in stay if self._racks[node] in too_many] if too_many else []
            if not too_many and free < 0:
                leaving = stay
            if not leaving:
                break
            stay.remove(max(leaving, key=lambda node: (self._shares.excess(node), node)))
        for node in stay:
            self._put(index, node)

    def fill(self, index: int) -> None:
        """Step 2."""
        bounds, held, closed = self._limits(index), self._held[index], self._closed(index)
        while len(held) < self._wanted(index):
            counts = self._in_racks(index)
            demanding = [rack for rack in bounds if counts[rack] < bounds[rack][0]]
            open_racks = demanding or [rack for rack in bounds if counts[rack] < bounds[rack][1]]
            there = [node for node in self._nodes if node not in held and node not in closed]
            choice = [node for node in there if self._racks[node] in open_racks]
            self._put(index, self._shares.emptiest(choice))

    def level(self) -> bool:
        """Step 3: one transfer that makes it more even; False when there is none."""
        order = sorted(self._nodes, key=lambda node: (-self._shares.excess(node), node))
        targets = [node for node in order if node not in self._full]
        for chain_wanted in (False, True):
            for source in order:
                if not targets or self._shares.excess(source) - self._shares.excess(targets[-1]) <= self._shares.unit:
                    break
                if self._chain(source, targets) if chain_wanted else self._direct(source, targets):
                    return True
        return False

    def _direct(self, source: NodeId, order: Sequence[NodeId]) -> bool:
        for target in reversed(order):
            if self._shares.excess(source) - self._shares.excess(target) <= self._shares.unit:
                return False
            index = self._movable(source, target)
            if index is not None:
                self._move(index, source, target)
                return True
        return False

    def _movable(self, source: NodeId, target: NodeId, taken: frozenset[int] = frozenset()) -> int | None:
        """A partition that may go from one to the other, but none of `taken`.

        Of the first few that may: the one that costs least movement, then the one that levels loads best.
        """
        wanted = (self._shares.loads[source] - self._shares.loads[target]) // 2
        best: tuple[int, int, int] | None = None
        looks = 0
        for index in self._holds[source]:
            if target in self._held[index] or index in taken or not self._may_move(index, source, target):
                continue
            before = self._partitions[index].replicas
            cost = (target not in before) - (source not in before)
            candidate = cost, abs(self._partitions[index].load - wanted), index
            best = candidate if best is None else min(best, candidate)
            looks += 1
            if looks == _LOOKS_MAX:
                break
        return None if best is None else best[2]

    def _may_move(self, index: int, source: NodeId, target: NodeId) -> bool:
        here, there = self._racks[source], self._racks[target]
        if here == there:
            return True
        counts, bounds = self._in_racks(index), self._limits(index)
        return counts[here] > bounds[here][0] and counts[there] < bounds[there][1]

    def _move(self, index: int, source: NodeId, target: NodeId) -> None:
        held = self._held[index]
        held[held.index(source)] = target
        del self._holds[source][index]
        self._holds[target][index] = None
        self._shares.give(source, target, self._partitions[index].load)

    def _chain(self, source: NodeId, order: Iterable[NodeId]) -> bool:
        """The shortest chain of moves, each of another partition, to a node that is more than one below `source`.

        Moves of different partitions do not stand in each other's way, so a chain that was found can be carried out.
        """
        chains: dict[NodeId, tuple[tuple[int, NodeId, NodeId], ...]] = {source: ()}
        waiting = deque([source])
        while waiting:
            here = waiting.popleft()
            taken = frozenset(index for index, _from, _to in chains[here])
            for target in order:
                if target in chains or (index := self._movable(here, target, taken)) is None:
                    continue
                chains[target] = (*chains[here], (index, here, target))
                waiting.append(target)
                if self._shares.excess(source) - self._shares.excess(target) > self._shares.unit:
                    for move in chains[target]:
                        self._move(*move)
                    return True
        return False
