"""Where new partitions go in a cluster of nodes: to the nodes that are farthest below their share, and their emptiest
cores.

A node's share is proportional to its cores, and racks are respected (`placement`). What is there stays: a node that
joins gets what is made from then on. The first replica is the preferred leader: that on the node with the fewest of
them for its cores.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpc_broker.feature_levels import FIRST_WITH_MOVES, FIRST_WITH_NAMED_LEADERS
from tpc_broker.metadata.placement import PlacementNode, Replicated, place_new_replicas
from tpc_broker.metadata.placement.model import Shares
from tpc_broker.metadata.records import TopicAssigned
from tpc_broker.model import NO_NODE, CoreId, FirstVoter, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.routing import start_core

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import NodeRegistered

Replicas = tuple[Replica, ...]


def place_over_nodes(  # noqa: PLR0913 (a decision with all that it depends on)
    image: ClusterImage,
    new: tuple[TopicId, int, int],
    replication_factor: int,
    assigned: Mapping[PartitionIndex, Replicas],
    placed: Sequence[Replicas],
    absent: Collection[NodeId],
) -> tuple[Replicas, ...]:
    """The replicas of partitions [first, end) of a topic: `new` is (topic, first, end).

    `assigned` were named by hand, `placed` are made by the same request. Nodes that are `absent` get nothing, unless
    there are too few others: then the first of them do.
    """
    topic_id, first, end = new
    table = _Table(image, placed)
    wanted = [
        TopicPartition(topic_id, PartitionIndex(index)) for index in range(first, end) if index not in assigned
    ]
    table.put_all(assigned.values())
    found = dict(assigned)
    for key, nodes in zip(wanted, table.nodes_for(wanted, replication_factor, absent), strict=True):
        found[key.partition] = table.put_on_cores(key, nodes)
    return tuple(found[PartitionIndex(index)] for index in range(first, end))


# Rule: A replica votes under its incarnation. The first voters are in the topic's record and never change, whoever has
# the node's id by now. See also tpc_broker/node/replicas/replication.py. Held by
# tests/metadata/test_cluster_of_nodes.py, tests/cluster/test_replication.py.
def first_voters(
    image: ClusterImage,
    replicas: Sequence[Replicas],
    present: Sequence[tuple[FirstVoter, ...]] = (),
    *,
    has_one: bool = False,
) -> tuple[tuple[FirstVoter, ...], ...]:
    """Of each partition; of one with one replica that, so that it can move and get others, unless the cluster has nodes
    that do not move replicas: they know of no such groups, but where it `has_one` for another reason. Nothing at all
    where no partition has any. `present`: of the partitions that were there before.
    """
    found = list(present)
    has_one = has_one or image.feature_level >= FIRST_WITH_MOVES or len(image.nodes) == 1
    for each in replicas[len(found) :]:
        voting = sorted(each) if len(each) > 1 or has_one else []
        found.append(tuple(FirstVoter(one.node, image.nodes[one.node].incarnation) for one in voting))
    return tuple(found) if any(found) else ()


def first_leaders(image: ClusterImage, replicas: Sequence[Replicas]) -> tuple[NodeId, ...]:
    """Of partitions that are made: the preferred leader of each leads the first term of its group, where it has others
    in it. Nothing at all in a cluster with nodes that know of none.
    """
    if image.feature_level < FIRST_WITH_NAMED_LEADERS or all(len(each) == 1 for each in replicas):
        return ()
    return tuple(each[0].node if len(each) > 1 else NO_NODE for each in replicas)


def grouped(image: ClusterImage, keys: Iterable[TopicPartition]) -> list[TopicAssigned]:
    """Partitions that a node has alone, without a group, get one in which that node votes. Nothing of the others."""
    by_topic: dict[TopicId, dict[int, tuple[FirstVoter, ...]]] = {}
    for key in keys:
        topic = image.topics[key.topic_id]
        if not topic.is_replicated(key.partition):
            (place,) = topic.replicas[key.partition]
            incarnation = image.nodes[place.node].incarnation + topic.life_of(key.partition, place.node)
            by_topic.setdefault(key.topic_id, {})[key.partition] = (FirstVoter(place.node, incarnation),)
    found = []
    for topic_id, voting in by_topic.items():
        topic = image.topics[topic_id]
        present = topic.voters or ((),) * topic.partitions_count
        voters = tuple(voting.get(index, each) for index, each in enumerate(present))
        manual = tuple(sorted(topic.assignment.manual))
        found.append(TopicAssigned(topic_id, topic.assignment.owners, manual, topic.replicas, voters))
    return found


def begun_anew(image: ClusterImage, node: NodeRegistered) -> Iterator[TopicAssigned]:
    """Groups of which a node had the only replica, when its data directory is another one."""
    for topic in image.topics.values():
        alone = [
            index for index, replicas in enumerate(topic.replicas)
            if len(replicas) == 1 and replicas[0].node == node.node and topic.is_replicated(index)
            and PartitionIndex(index) not in topic.moves
        ]  # fmt: skip
        if alone:
            voters = list(topic.voters)
            for index in alone:
                voters[index] = (FirstVoter(node.node, node.incarnation + topic.life_of(index, node.node)),)
            manual = tuple(sorted(topic.assignment.manual))
            yield TopicAssigned(topic.topic_id, topic.assignment.owners, manual, topic.replicas, tuple(voters))


class _Table:
    """What each node has, while it is being decided."""

    def __init__(self, image: ClusterImage, placed: Sequence[Replicas]) -> None:
        self._nodes = {
            node: PlacementNode(node=node, cores_count=known.cores, rack=known.rack)
            for node, known in image.nodes.items()
        }
        self._leaders = Shares(self._nodes.values())
        self._on_cores: Counter[Replica] = Counter()
        self._held: list[NodeId] = []
        self.put_all(each for topic in image.topics.values() for each in topic.replicas)
        self.put_all(placed)

    def put_all(self, partitions: Iterable[Replicas]) -> None:
        for replicas in partitions:
            self._put([each for each in replicas if each.node in self._nodes])

    def _put(self, replicas: Sequence[Replica]) -> None:
        if replicas:
            self._leaders.add(replicas[0].node)
        for replica in replicas:
            self._on_cores[replica] += 1
            self._held.append(replica.node)

    def nodes_for(
        self, wanted: Sequence[TopicPartition], replication_factor: int, absent: Collection[NodeId]
    ) -> list[tuple[NodeId, ...]]:
        there = [each for node, each in self._nodes.items() if node not in absent]
        others = [self._nodes[node] for node in dict.fromkeys(absent) if node in self._nodes]
        there += others[: max(0, replication_factor - len(there))]
        partitions = [Replicated(partition=key, replication_factor=replication_factor) for key in wanted]
        return place_new_replicas(there, self._held, partitions)

    def put_on_cores(self, key: TopicPartition, nodes: Sequence[NodeId]) -> Replicas:
        leader = self._leaders.emptiest(sorted(nodes))
        order = [leader, *(node for node in nodes if node != leader)]
        replicas = tuple(Replica(node, self._core(key, node)) for node in order)
        self._put(replicas)
        return replicas

    def _core(self, key: TopicPartition, node: NodeId) -> CoreId:
        cores = self._nodes[node].cores_count
        ruled = (start_core(key.topic_id, cores) + key.partition) % cores
        order = sorted(range(cores), key=lambda core: (core - ruled) % cores)
        return CoreId(min(order, key=lambda core: self._on_cores[Replica(node, CoreId(core))]))
