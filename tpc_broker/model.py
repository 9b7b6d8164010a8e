"""Shared types: identifiers and measures that must not be mistaken for each other, and their few conversions.

A conversion between two of these types is done here and nowhere else, so that a type checker finds every place where a
core is used as a broker. Nothing here holds state.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple, NewType

Offset = NewType("Offset", int)
"""Place of a record in a partition's log; the first record ever has 0. Never a byte place."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""The Raft term of a partition's group, as Kafka clients see it; -1 where a protocol field has none."""

CoreId = NewType("CoreId", int)
"""CPU core of a node: 0 <= core < number of cores."""

NodeId = NewType("NodeId", int)
"""Machine of the cluster: 0 <= node <= NODE_ID_MAX."""

BrokerId = NewType("BrokerId", int)
"""What Kafka clients call a node id: one per core, `broker_id_of(node, core)`."""

TopicId = NewType("TopicId", uuid.UUID)
PartitionIndex = NewType("PartitionIndex", int)
ProducerId = NewType("ProducerId", int)
GenerationId = NewType("GenerationId", int)
"""Generation of a classic group; rises at every rebalance that completes."""

MetadataVersion = NewType("MetadataVersion", int)
"""Offset after the last metadata record that an image has applied; an empty image has 0."""

NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_TOPIC_ID: Final = TopicId(uuid.UUID(int=0))
METADATA_TOPIC_ID: Final = TopicId(uuid.UUID(int=1))
"""Kafka reserves this id for the metadata log, so no topic made by a client can have it."""

CORES_PER_NODE_MAX: Final = 1024
NODE_ID_MAX: Final = (2**31 - 1) // CORES_PER_NODE_MAX - 1
"""Broker ids are signed 32-bit numbers on the wire."""

METADATA_TOPIC: Final = "__cluster_metadata"
CONSUMER_OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})
"""Topics that Metadata marks `is_internal` and that clients do not write."""


NO_NODE: Final = NodeId(-1)
"""In place of a node: it is none."""
NOT_HERE: Final = CoreId(-1)
"""In place of a core: it is one of another node."""


class Replica(NamedTuple):
    """Where a copy of a partition is."""

    node: NodeId
    core: CoreId


class FirstVoter(NamedTuple):
    """A replica with which a partition was made, by the incarnation that its node had: a node that came back with an
    empty disk is another one.
    """

    node: NodeId
    incarnation: int


class TopicPartition(NamedTuple):
    """One partition of one topic. Carries the id, so that a topic made again under an old name is another topic."""

    topic_id: TopicId
    partition: PartitionIndex


def broker_id_of(node: NodeId, core: CoreId) -> BrokerId:
    """The broker id under which clients see one core of a node."""
    assert 0 <= node <= NODE_ID_MAX, node
    assert 0 <= core < CORES_PER_NODE_MAX, core
    return BrokerId(node * CORES_PER_NODE_MAX + core)


def shared_broker_id_of(node: NodeId) -> BrokerId:
    """The broker id of a whole node, to clients of a listener that all its cores share."""
    assert 0 <= node <= NODE_ID_MAX, node
    return BrokerId(node)


def node_of(broker: BrokerId) -> NodeId:
    """The node a broker id belongs to."""
    return NodeId(broker // CORES_PER_NODE_MAX)


def core_of(broker: BrokerId) -> CoreId:
    """The core, on its node, that a broker id names."""
    return CoreId(broker % CORES_PER_NODE_MAX)


def java_string_hash(text: str) -> int:
    """`String.hashCode` of Java: over UTF-16 code units, as a signed 32-bit number."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for index in range(0, len(units), 2):
        value = (31 * value + (units[index] << 8 | units[index + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def coordinator_partition(key: str, partitions_count: int) -> PartitionIndex:
    """Partition of the internal topic that coordinates a group or transactional id.

    The sign bit is masked away. Kafka takes the absolute value, which differs for negative hashes; groups are stored
    where this says since the first release.
    """
    return PartitionIndex((java_string_hash(key) & 0x7FFFFFFF) % partitions_count)
