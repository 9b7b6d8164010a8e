"""Where new partitions go in a cluster of nodes: to the node that is farthest below its share, and its emptiest core.

A node's share is proportional to its cores. What is there stays: a node that joins gets what is made from then on. Only
one replica so far; `placement` has what several need.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpc_broker.metadata.placement.model import PlacementNode, Shares
from tpc_broker.model import CoreId, NodeId, PartitionIndex, Replica, TopicId
from tpc_broker.routing import start_core

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage


def place_over_nodes(
    image: ClusterImage,
    new: tuple[TopicId, int, int],
    assigned: Mapping[PartitionIndex, Replica],
    placed: Sequence[tuple[Replica, ...]],
    absent: Collection[NodeId],
) -> tuple[tuple[Replica, ...], ...]:
    """The replicas of partitions [first, end) of a topic: `new` is (topic, first, end).

    `assigned` were named by hand, `placed` are made by the same request. Nodes that are `absent` get nothing, unless
    all are.
    """
    topic_id, first, end = new
    nodes = [node for node in image.nodes if node not in absent] or list(image.nodes)
    shares = Shares(PlacementNode(node=node, cores_count=image.nodes[node].cores) for node in image.nodes)
    on_cores: Counter[Replica] = Counter()
    held = [each for topic in image.topics.values() for each in topic.replicas]
    for replicas in (*held, *placed):
        for replica in replicas:
            if replica.node in image.nodes:
                shares.add(replica.node)
                on_cores[replica] += 1
    found = []
    for index in range(first, end):
        named = assigned.get(PartitionIndex(index))
        if named is not None:
            replica = named
        else:
            node = shares.emptiest(sorted(nodes))
            cores = image.nodes[node].cores
            ruled = (start_core(topic_id, cores) + index) % cores
            order = sorted(range(cores), key=lambda core: (core - ruled) % cores)
            core = min(order, key=lambda core: on_cores[Replica(node, CoreId(core))])
            replica = Replica(node, CoreId(core))
        shares.add(replica.node)
        on_cores[replica] += 1
        found.append((replica,))
    return tuple(found)
