"""The metadata of a cluster as they are for what one of its nodes holds, when that is to be a broker of its own.

What is left out: other nodes, replicas and their groups, the cluster's feature level, and what is on its way. Topics
keep their ids and all of their partitions; those without records in the copy begin empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.metadata.acl_records import acl_records
from tpc_broker.metadata.image import NODE_DRAINING, ClusterImage
from tpc_broker.metadata.records import (
    BrokerConfigChanged,
    ClusterCreated,
    CoresChanged,
    MetadataRecord,
    ProducerIdsReserved,
    TopicCreated,
    TopicDeleted,
)
from tpc_broker.model import (
    CoreId,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    ProducerId,
    TopicPartition,
    broker_id_of,
    core_of,
    node_of,
)
from tpc_broker.routing import Assignment, assign_all

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tpc_broker.metadata.image import TopicImage

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Ids that the cluster may have given out after the copy was made: a thousand blocks."""
MIN_INSYNC_REPLICAS: Final = "min.insync.replicas"
_ALONE: Final = NodeId(0)


def partitions_on(image: ClusterImage, node: NodeId) -> Iterator[tuple[TopicImage, PartitionIndex]]:
    """Those of which the node has a replica, or is to have one."""
    for topic in image.topics.values():
        for index in range(topic.partitions_count):
            if any(place.node == node for place in topic.places(index)):
                yield topic, PartitionIndex(index)


def as_of_one_node(
    image: ClusterImage, node: NodeId, cluster_id: str, copied: Container[TopicPartition]
) -> ClusterImage:
    """The metadata of a broker alone, with the cores of that node. `copied`: partitions whose records it has."""
    cores = image.nodes[node].cores
    records: list[MetadataRecord] = [ClusterCreated(cluster_id), CoresChanged(cores)]
    records += [TopicDeleted(topic_id) for topic_id in image.deleted]
    for _name, topic_id in sorted(image.ids.items()):
        topic = image.topics[topic_id]
        assignment = _assignment(topic, node, cores, copied)
        configs = dict(topic.configs)
        if int(configs.get(MIN_INSYNC_REPLICAS, 1)) > 1:  # each partition has one replica now
            del configs[MIN_INSYNC_REPLICAS]
        manual = tuple(sorted(assignment.manual))
        records.append(TopicCreated(topic.name, topic_id, assignment.owners, topic.created_ms, manual, configs))
    for broker, settings in image.broker_configs.items():
        if broker is None or node_of(broker) == node:
            here = None if broker is None else broker_id_of(_ALONE, core_of(broker))
            records += [BrokerConfigChanged(here, *each) for each in settings.items() if each[0] != NODE_DRAINING]
    records += image.resource_records()
    records += image.user_records()
    records += acl_records(image.acls)
    records += image.quota_records()
    records.append(ProducerIdsReserved(CoreId(0), ProducerId(image.next_producer_id), PRODUCER_IDS_SKIPPED))
    return ClusterImage().apply(records, MetadataVersion(1))


def _assignment(topic: TopicImage, node: NodeId, cores: int, copied: Container[TopicPartition]) -> Assignment:
    """Each partition where its files are; those that differ from the rule as if assigned by hand."""
    by_rule = assign_all(topic.topic_id, topic.partitions_count, cores).owners
    on_node = topic.cores_on(node)
    owners = tuple(
        on_node[index] if TopicPartition(topic.topic_id, PartitionIndex(index)) in copied else owner
        for index, owner in enumerate(by_rule)
    )
    differing = (PartitionIndex(index) for index, owner in enumerate(owners) if owner != by_rule[index])
    return Assignment(owners, frozenset(differing))
