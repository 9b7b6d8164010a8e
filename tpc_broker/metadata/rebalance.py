"""Which replicas should move by themselves: off nodes that are gone or draining, up to the replicas that internal
topics should have, and onto nodes that hold less than others.

Computed anew from the image each time, so nothing has to be remembered; what is under way counts as done. What was
placed by hand stays where it is, unless its node is gone or draining. While a node is away, and not for long enough to
count as gone, only what must move does, and nothing to that node. To a node whose disk is full nothing goes: what must
move waits when there is no other node. What was on its way there goes on, and comes to its end with space.

Which nodes: `placement.place_in_steps`, with few moves, within one by cores of a node, racks respected. Which of them
is preferred: who was, unless another one of a partition that moves anyway is preferred for fewer. Which core: the one
with the fewest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.metadata.placement import PlacementNode, Replicated, place_in_steps
from tpc_broker.metadata.placement.model import Shares
from tpc_broker.metadata.replica_moves import BALANCED, DRAINED, RAISED, REASONS, REPLACED, coming
from tpc_broker.model import INTERNAL_TOPICS, CoreId, PartitionIndex, Replica, TopicPartition
from tpc_broker.routing import start_core

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.placement.replicas import Steps
    from tpc_broker.model import NodeId

INTERNAL_REPLICAS: Final = 3
RAISED_TOPICS: Final = INTERNAL_TOPICS | {"_tpc-spark-epochs"}
"""Those that get so many replicas, where there are so many nodes: also the ledger of Spark's sink."""


@dataclass(frozen=True, slots=True)
class Situation:
    """`gone`: nodes that were away for so long that their replicas are made elsewhere; `away`: these, and others that
    are not there now. `may_balance`: also move what need not move. `full`: nodes without space for what would come.
    """

    gone: frozenset[NodeId] = frozenset()
    away: frozenset[NodeId] = frozenset()
    may_balance: bool = True
    full: frozenset[NodeId] = frozenset()


class Planned(NamedTuple):
    """A move that should begin. `before`: where the replicas were to be when it was planned."""

    key: TopicPartition
    before: tuple[Replica, ...]
    wanted: tuple[Replica, ...]
    reason: str


# Rule: What moves by itself ends in the most even placement, and nothing moves then. What was placed by hand stays. See
# also tpc_broker/broker/rebalancing.py. Held by tests/metadata/test_rebalance.py, tests/cluster/test_balance.py.
def plan_in_steps(image: ClusterImage, situation: Situation) -> Steps[list[Planned]]:
    """The most urgent first; in short steps, because of thousands of partitions it is half a second of work."""
    found = yield from _Planner(image, situation).plan()
    rank = {reason: number for number, reason in enumerate(REASONS)}
    return sorted(found, key=lambda one: rank[one.reason])


class _Planner:
    def __init__(self, image: ClusterImage, situation: Situation) -> None:
        self._image = image
        self._situation = situation
        self._leaving = image.draining | situation.gone
        self._nodes = [
            PlacementNode(
                node=node, cores_count=known.cores, rack=known.rack, is_draining=node in self._leaving,
                is_full=node in situation.full,
            )
            for node, known in sorted(image.nodes.items())
        ]
        closed = situation.away | situation.full
        self._free = [each for each in self._nodes if not each.is_draining and each.node not in closed]
        self._usable = sum(not each.is_draining for each in self._nodes)
        self._preferred = Shares(each for each in self._nodes if not each.is_draining)
        self._held = Shares(each for each in self._nodes if not each.is_draining)
        self._on_cores: Counter[Replica] = Counter()

    def plan(self) -> Steps[list[Planned]]:
        topics = [self._image.topics[topic_id] for _name, topic_id in sorted(self._image.ids.items())]
        if not self._free:
            return []
        movable: list[tuple[TopicImage, int, Replicated]] = []
        fixed: list[NodeId] = []
        for topic in topics:
            for index in range(len(topic.replicas)):
                wanted = self._basis(topic, index)
                self._count(wanted)
                replicated = self._replicated(topic, index)
                if self._may_move(topic, index, replicated):
                    movable.append((topic, index, replicated))
                else:
                    fixed += [replica.node for replica in wanted]
                yield
        placed = yield from place_in_steps(self._nodes, [replicated for *_where, replicated in movable], fixed)
        found = []
        for (topic, index, replicated), nodes in zip(movable, placed, strict=True):
            one = self._planned(topic, index, replicated, nodes)
            if one is not None:
                found.append(one)
            yield
        return found

    def _basis(self, topic: TopicImage, index: int) -> tuple[Replica, ...]:
        """Where the replicas of a partition are to be; where they were, if they are on their way to a node that is
        away, and nobody has asked for it.
        """
        move = topic.moves.get(PartitionIndex(index))
        if move is None or move.is_by_hand or self._situation.away.isdisjoint(coming(topic, move)):
            return topic.wanted(index)
        return topic.replicas[index]

    def _count(self, wanted: Sequence[Replica]) -> None:
        if wanted[0].node in self._preferred.counts:
            self._preferred.add(wanted[0].node)
        for replica in wanted:
            self._on_cores[replica] += 1
            if replica.node in self._held.counts:
                self._held.add(replica.node)

    def _replicated(self, topic: TopicImage, index: int) -> Replicated:
        nodes = tuple(replica.node for replica in self._basis(topic, index))
        least = min(INTERNAL_REPLICAS, self._usable) if topic.name in RAISED_TOPICS else 1
        key = TopicPartition(topic.topic_id, PartitionIndex(index))
        return Replicated(partition=key, replication_factor=max(len(nodes), least), replicas=nodes)

    def _may_move(self, topic: TopicImage, index: int, replicated: Replicated) -> bool:
        if self._situation.away.issuperset(replicated.replicas):
            return False  # nobody is there who could give it away; it comes back with its node
        if self._reason(replicated) != BALANCED or self._basis(topic, index) != topic.wanted(index):
            return True
        is_free = index not in topic.assignment.manual and PartitionIndex(index) not in topic.moves
        return is_free and self._situation.may_balance and self._situation.away == self._situation.gone

    def _reason(self, replicated: Replicated) -> str:
        """Why it moves if it does."""
        nodes = set(replicated.replicas)
        if nodes & self._situation.gone:
            return REPLACED
        if nodes & self._leaving:
            return DRAINED
        return RAISED if len(nodes) < replicated.replication_factor else BALANCED

    def _planned(
        self, topic: TopicImage, index: int, replicated: Replicated, nodes: tuple[NodeId, ...]
    ) -> Planned | None:
        before, reason = topic.wanted(index), self._reason(replicated)
        nodes = self._present(nodes, replicated)
        if set(nodes) == {replica.node for replica in before}:
            return None
        places = {place.node: place for place in topic.places(index)}
        order = self._in_order(nodes, before[0].node)
        wanted = tuple(places.get(node) or self._core(replicated.partition, node) for node in order)
        return Planned(replicated.partition, before, wanted, reason)

    def _present(self, nodes: tuple[NodeId, ...], replicated: Replicated) -> tuple[NodeId, ...]:
        """Nodes that are away get nothing: others do in their place, or the replica stays where it was."""
        away = [node for node in nodes if node not in replicated.replicas and node in self._situation.away]
        if away and self._reason(replicated) == BALANCED:
            return replicated.replicas
        found = [node for node in nodes if node not in away]
        racks = {each.node: each.rack for each in self._nodes}
        for _node in away:
            choice = [each.node for each in self._free if each.node not in found]
            taken = {racks[node] for node in found}
            apart = [node for node in choice if racks[node] not in taken]
            left = [node for node in replicated.replicas if node not in found]
            if choice:
                found.append(self._held.emptiest(apart or choice))
                self._held.add(found[-1])
            elif left:
                found.append(left[0])
        return tuple(found)

    def _in_order(self, nodes: tuple[NodeId, ...], preferred: NodeId) -> list[NodeId]:
        """The preferred leader first: who was it, unless another one is preferred for fewer."""
        shares = self._preferred
        able = [node for node in nodes if node in shares.counts]
        if not able:
            return list(nodes)
        first = shares.emptiest(able)
        if preferred in able and shares.excess(preferred) - shares.excess(first) <= shares.unit:
            first = preferred
        elif preferred in shares.counts:
            shares.give(preferred, first)
        else:
            shares.add(first)
        return [first, *(node for node in nodes if node != first)]

    def _core(self, key: TopicPartition, node: NodeId) -> Replica:
        cores = self._image.nodes[node].cores
        ruled = (start_core(key.topic_id, cores) + key.partition) % cores
        order = sorted(range(cores), key=lambda core: (core - ruled) % cores)
        place = min((Replica(node, CoreId(core)) for core in order), key=lambda each: self._on_cores[each])
        self._on_cores[place] += 1
        return place
