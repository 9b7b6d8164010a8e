"""The metadata of a cluster for what one node holds of it, when that becomes a broker alone."""

from __future__ import annotations

import uuid

from tests.metadata.test_cluster_of_nodes import Nodes
from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.metadata.acl_records import AclsChanged
from tpc_broker.metadata.controller import CreatableTopic
from tpc_broker.metadata.copied_node import PRODUCER_IDS_SKIPPED, as_of_one_node, partitions_on
from tpc_broker.metadata.image import NODE_DRAINING, ClusterImage
from tpc_broker.metadata.records import (
    BrokerConfigChanged,
    ClientQuotaChanged,
    ProducerIdsReserved,
    ResourceConfigChanged,
    TopicDeleted,
    credential_changed,
)
from tpc_broker.model import (
    BrokerId,
    CoreId,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicPartition,
)

NODE = NodeId(2)
ANNAS = credential_of_password(ScramMechanism.SCRAM_SHA_512, "password", b"salt", 1)
RULE = AclBinding(
    Resource.TOPIC, Pattern.LITERAL, "all", Principal("User", "a"), "*", Operation.READ, Permission.ALLOW
)


def test_topics_stay_and_what_is_of_the_cluster_goes():
    nodes = Nodes({1: 2, 2: 3, 3: 1})
    nodes.create(
        CreatableTopic(name="all", num_partitions=7, replication_factor=3,
                       configs=(("retention.ms", "7"), ("min.insync.replicas", "2"))),
        CreatableTopic(name="hand", assignments=tuple((index, (2 * 1024 + 1,)) for index in range(3))),
        CreatableTopic(name="some", num_partitions=9, replication_factor=1, configs=(("min.insync.replicas", "1"),)),
    )  # fmt: skip
    deleted = TopicId(uuid.UUID(int=77))
    nodes.apply([
        TopicDeleted(deleted), ProducerIdsReserved(CoreId(4), ProducerId(5000), 1000),
        BrokerConfigChanged(None, "log.retention.ms", "9"), BrokerConfigChanged(BrokerId(2 * 1024 + 1), "x", "own"),
        ResourceConfigChanged("group", "g", {"a": "1"}), ResourceConfigChanged("client_metrics", "m", {"b": "2"}),
        AclsChanged((RULE,)),
        ClientQuotaChanged({"user": "u"}, {"producer_byte_rate": 9.0}),
        BrokerConfigChanged(BrokerId(2 * 1024), NODE_DRAINING, "true"), BrokerConfigChanged(BrokerId(1024), "x", "no"),
        credential_changed("anna", ScramMechanism.SCRAM_SHA_512, ANNAS),
    ])  # fmt: skip
    image = nodes.image
    copied = {TopicPartition(topic.topic_id, index) for topic, index in partitions_on(image, NODE)}
    assert {key for key in copied if image.topics[key.topic_id].name == "all"} == {
        TopicPartition(image.ids["all"], PartitionIndex(index)) for index in range(7)
    }
    left_out = TopicPartition(image.ids["all"], PartitionIndex(4))
    alone = as_of_one_node(image, NODE, "new", copied - {left_out})
    assert (alone.cluster_id, alone.cores_count, alone.nodes, alone.feature_epoch) == ("new", 3, {}, 0)
    assert alone.ids == image.ids
    assert alone.is_deleted(deleted)
    for topic_id, topic in alone.topics.items():
        before = image.topics[topic_id]
        assert (topic.replicas, topic.voters, topic.created_ms) == ((), (), before.created_ms)
        assert topic.partitions_count == before.partitions_count
        for index, core in enumerate(topic.assignment.owners):
            if TopicPartition(topic_id, PartitionIndex(index)) in copied - {left_out}:
                assert core == before.cores_on(NODE)[index], "its files are there"
            else:
                assert 0 <= core < 3
    assert alone.topic("hand").assignment.owners == (1, 1, 1)
    assert alone.topic("hand").assignment.manual, "a start with as many cores leaves it there"
    assert dict(alone.topic("all").configs) == {"retention.ms": "7"}, "there is one replica of each now"
    assert dict(alone.topic("some").configs) == {"min.insync.replicas": "1"}
    assert {broker: dict(found) for broker, found in alone.broker_configs.items() if found} == {
        None: {"log.retention.ms": "9"}, BrokerId(1): {"x": "own"},
    }  # fmt: skip
    assert (alone.group_configs, alone.client_metrics_configs) == ({"g": {"a": "1"}}, {"m": {"b": "2"}})
    assert alone.scram_users == {("anna", ScramMechanism.SCRAM_SHA_512): ANNAS}
    assert list(alone.acls) == [RULE]
    assert alone.client_quotas == {(("user", "u"),): {"producer_byte_rate": 9.0}}
    assert alone.next_producer_id == 6000 + PRODUCER_IDS_SKIPPED
    assert ClusterImage().apply(alone.snapshot(), MetadataVersion(1)) == alone
