"""The controller's decisions: Kafka's codes, one claim per test."""

import uuid

import pytest

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.config_control import AlterableConfig, AlterableResource, ConfigController, ResourceType
from tpc_broker.metadata.controller import Controller, CreatableTopic, DeletableTopic, GrowableTopic
from tpc_broker.metadata.image import ClusterImage, changed_topics
from tpc_broker.metadata.records import BrokerConfigChanged, decode_record, encode_record
from tpc_broker.metadata.settings import load_settings
from tpc_broker.metadata.topic_names import topic_name_fault
from tpc_broker.model import MetadataVersion, NodeId, TopicId, broker_id_of
from tpc_broker.routing import assign_all

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


class Cluster:
    """A driver of the controller, as short as one can be: replays what was decided, through bytes."""

    def __init__(self, *overrides, cores=4):
        self.configuration = load_settings("", overrides)
        self.image = ClusterImage()
        self.ids = (TopicId(uuid.UUID(int=n)) for n in range(100, 10_000))
        self.apply(self.controller.begin("cluster", cores))

    @property
    def controller(self):
        return Controller(self.image, self.configuration)

    def apply(self, records):
        replayed = [decode_record(encode_record(record)) for record in records]
        self.image = self.image.apply(replayed, MetadataVersion(self.image.version + len(replayed)))

    def create(self, *topics, validate_only=False):
        ids = [next(self.ids) for _ in topics]
        records, results = self.controller.create_topics(topics, ids, 1000, validate_only=validate_only)
        self.apply(records)
        return results

    def create_one(self, name="t", **details):
        return self.create(CreatableTopic(name=name, **details))[0]

    def delete(self, *topics):
        records, results = self.controller.delete_topics(topics)
        self.apply(records)
        return [result.error_code for result in results]

    def grow(self, *topics, validate_only=False):
        records, results = self.controller.create_partitions(topics, validate_only=validate_only)
        self.apply(records)
        return [(result.error_code, result.error_message) for result in results]

    def alter(self, kind, name, *configs, replace=False, validate_only=False):
        resource = AlterableResource(kind, name, tuple(AlterableConfig(*config) for config in configs))
        controller = ConfigController(self.image, self.configuration)
        decide = controller.alter_configs if replace else controller.incremental_alter_configs
        records, (result,) = decide([resource], validate_only=validate_only)
        self.apply(records)
        return result.error_code

    def configs(self, name):
        return dict(self.image.topic(name).configs)


def test_a_topic_without_numbers_gets_the_defaults():
    result = Cluster("num.partitions=3").create_one()
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert {entry.name for entry in result.configs} >= {"retention.ms", "durability"}


def test_a_created_topic_is_in_the_image_by_name_and_id_with_owners_by_the_rule():
    cluster = Cluster()
    result = cluster.create_one(num_partitions=6)
    topic = cluster.image.topic("t")
    assert topic is cluster.image.topic_by_id(result.topic_id)
    assert topic.assignment == assign_all(result.topic_id, 6, 4)
    assert sum(1 for core in range(4) for _ in cluster.image.partitions_of(core)) == 6


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": ".."}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a" * 250}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "ä"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "a\n"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ({"name": "__cluster_metadata"}, ErrorCode.INVALID_REQUEST),
        ({"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": -2}, ErrorCode.INVALID_PARTITIONS),
        ({"num_partitions": 10_001}, ErrorCode.POLICY_VIOLATION),
        ({"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": -2}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({"configs": (("retention.ms", "x"),)}, ErrorCode.INVALID_CONFIG),
        ({"configs": (("nope", "1"),)}, ErrorCode.INVALID_CONFIG),
        ({"configs": (("retention.ms", None),)}, ErrorCode.INVALID_CONFIG),
    ],
)
def test_what_cannot_be_created_is_refused_and_leaves_nothing(details, code):
    cluster = Cluster()
    before = cluster.image
    assert cluster.create_one(**details).error_code == code
    assert cluster.image == before


def test_the_longest_and_the_oddest_legal_names_are_taken():
    assert topic_name_fault("a" * 249) is None
    assert topic_name_fault("A.b_c-9") is None


def test_too_many_replicas_are_refused_naming_the_nodes_or_clamped_where_the_setting_says_so():
    assert "1 node(s)" in Cluster().create_one(replication_factor=3).error_message
    clamped = Cluster("replication_factor_excess=clamp").create_one(replication_factor=3)
    assert (clamped.error_code, clamped.replication_factor) == (0, 1)


def test_an_existing_topic_cannot_be_made_again():
    cluster = Cluster()
    cluster.create_one()
    assert cluster.create_one().error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_name_that_differs_only_in_dot_and_underscore_collides():
    cluster = Cluster()
    cluster.create_one("a.b")
    assert cluster.create_one("a_b").error_message == "Topic 'a_b' collides with existing topic: a.b"


def test_a_name_twice_in_one_request_is_refused_once_and_others_are_made():
    cluster = Cluster()
    results = cluster.create(*(CreatableTopic(name=name) for name in ("x", "y", "x")))
    assert [(r.name, r.error_code) for r in results] == [("y", 0), ("x", ErrorCode.INVALID_REQUEST)]
    assert set(cluster.image.ids) == {"y"}


def test_validate_only_answers_and_makes_nothing():
    cluster = Cluster()
    assert cluster.create(CreatableTopic(name="t", num_partitions=2), validate_only=True)[0].num_partitions == 2
    assert cluster.image.topic("t") is None


def test_the_cluster_has_a_limit_of_partitions():
    cluster = Cluster("partitions.max=5")
    assert cluster.create_one("a", num_partitions=4).error_code == 0
    assert cluster.create_one("b", num_partitions=2).error_code == ErrorCode.INVALID_PARTITIONS
    assert cluster.grow(GrowableTopic(name="a", count=6))[0][0] == ErrorCode.INVALID_PARTITIONS


def test_a_manual_assignment_puts_a_partition_on_the_core_that_the_broker_id_names():
    cluster = Cluster("node.id=2")
    brokers = [broker_id_of(NodeId(2), core) for core in (3, 1)]
    result = cluster.create_one(assignments=((0, (brokers[0],)), (1, (brokers[1],))))
    assert (result.error_code, result.num_partitions) == (0, 2)
    assert cluster.image.topic("t").assignment.owners == (3, 1)
    assert cluster.image.topic("t").assignment.manual == {0, 1}


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"assignments": ((0, (4,)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1024,)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (-1,)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, ()),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (1, 1)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (0, 1)),)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (0,)), (2, (0,)))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (0,)), (0, (1,)))}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({"assignments": ((0, (0,)),), "num_partitions": 1}, ErrorCode.INVALID_REQUEST),
        ({"assignments": ((0, (0,)),), "replication_factor": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_a_wrong_manual_assignment_is_refused(details, code):
    assert Cluster().create_one(**details).error_code == code


def test_partitions_are_added_and_the_old_ones_stay():
    cluster = Cluster()
    cluster.create_one(num_partitions=2)
    before = cluster.image.topic("t").assignment.owners
    assert cluster.grow(GrowableTopic(name="t", count=5, assignments=((0,), (0,), (1,)))) == [(0, None)]
    assert cluster.image.topic("t").assignment.owners == (*before, 0, 0, 1)
    assert cluster.image.topic("t").assignment.manual == {2, 3, 4}


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (GrowableTopic(name="none", count=3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (GrowableTopic(name="t", count=2), ErrorCode.INVALID_PARTITIONS),
        (GrowableTopic(name="t", count=1), ErrorCode.INVALID_PARTITIONS),
        (GrowableTopic(name="t", count=-1), ErrorCode.INVALID_PARTITIONS),
        (GrowableTopic(name="t", count=20_000), ErrorCode.POLICY_VIOLATION),
        (GrowableTopic(name="t", count=4, assignments=((0,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (GrowableTopic(name="t", count=3, assignments=((9,),)), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_wrong_growth_is_refused(topic, code):
    cluster = Cluster()
    cluster.create_one(num_partitions=2)
    assert cluster.grow(topic)[0][0] == code
    assert cluster.image.topic("t").partitions_count == 2


def test_growth_can_be_validated_only_and_refuses_a_topic_named_twice():
    cluster = Cluster()
    cluster.create_one()
    assert cluster.grow(GrowableTopic(name="t", count=2), validate_only=True) == [(0, None)]
    twice = GrowableTopic(name="t", count=2)
    assert cluster.grow(twice, twice) == [(ErrorCode.INVALID_REQUEST, "Duplicate topic name.")]
    assert cluster.image.topic("t").partitions_count == 1


def test_a_topic_is_deleted_by_name_or_by_id_and_its_successor_is_another_topic():
    cluster = Cluster()
    first = cluster.create_one().topic_id
    assert cluster.delete(DeletableTopic(name="t")) == [0]
    second = cluster.create_one().topic_id
    assert first != second
    assert cluster.image.topic_by_id(first) is None
    assert cluster.delete(DeletableTopic(topic_id=second)) == [0]
    assert not cluster.image.topics


def test_wrong_deletions_are_refused():
    cluster = Cluster()
    topic_id = cluster.create_one().topic_id
    stranger = TopicId(uuid.UUID(int=5))
    assert cluster.delete(DeletableTopic(name="none")) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert cluster.delete(DeletableTopic(topic_id=stranger)) == [ErrorCode.UNKNOWN_TOPIC_ID]
    assert cluster.delete(DeletableTopic()) == [ErrorCode.INVALID_REQUEST]
    assert cluster.delete(DeletableTopic(name="t", topic_id=topic_id)) == [ErrorCode.INVALID_REQUEST]
    assert cluster.delete(DeletableTopic(name="t"), DeletableTopic(name="t")) == [ErrorCode.INVALID_REQUEST]
    assert cluster.image.topic("t") is not None


def test_deletion_can_be_switched_off():
    cluster = Cluster("delete.topic.enable=false")
    cluster.create_one()
    assert cluster.delete(DeletableTopic(name="t")) == [ErrorCode.TOPIC_DELETION_DISABLED]


def test_producer_id_blocks_never_overlap_whichever_core_asks_and_whatever_restarts():
    cluster = Cluster()
    seen = set()
    for core in (0, 1, 0, 3, 3):
        records, block = cluster.controller.reserve_producer_ids(core)
        cluster.apply(records)
        cluster.image = ClusterImage.from_bytes(cluster.image.to_bytes())
        ids = set(range(block.first, block.first + block.count))
        assert not ids & seen
        seen |= ids


def test_settings_are_set_deleted_appended_and_subtracted():
    cluster = Cluster()
    cluster.create_one(configs=(("retention.ms", "5"),))
    assert cluster.alter(TOPIC, "t", ("segment.ms", "7", SET), ("retention.ms", None, DELETE)) == 0
    assert cluster.configs("t") == {"segment.ms": "7"}
    assert cluster.alter(TOPIC, "t", ("cleanup.policy", "compact", APPEND)) == 0
    assert cluster.configs("t")["cleanup.policy"] == "delete,compact"
    assert cluster.alter(TOPIC, "t", ("cleanup.policy", "delete", SUBTRACT)) == 0
    assert cluster.configs("t")["cleanup.policy"] == "compact"
    assert cluster.alter(TOPIC, "t", ("cleanup.policy", "compact", APPEND)) == 0
    assert cluster.configs("t")["cleanup.policy"] == "compact"


def test_alter_configs_replaces_everything():
    cluster = Cluster()
    cluster.create_one(configs=(("retention.ms", "5"), ("segment.ms", "7")))
    assert cluster.alter(TOPIC, "t", ("segment.ms", "8"), replace=True) == 0
    assert cluster.configs("t") == {"segment.ms": "8"}


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "none", [("retention.ms", "1", SET)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("retention.ms", "-9", SET)], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("nope", "1", SET)], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", None, SET)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", "1", SET), ("retention.ms", "2", SET)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", "1", APPEND)], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", "1", 9)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("segment.ms", "9", SET), ("nope", "1", SET)], ErrorCode.INVALID_CONFIG),
        (BROKER, "77", [("message.max.bytes", "1000", SET)], ErrorCode.INVALID_REQUEST),
        (BROKER, "x", [("message.max.bytes", "1000", SET)], ErrorCode.INVALID_REQUEST),
        (BROKER, "0", [("node.id", "1", SET)], ErrorCode.INVALID_REQUEST),
        (64, "g", [("a", "b", SET)], ErrorCode.INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "0", [("root", "INFO", SET)], ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "g", [("a", "b", SET)], ErrorCode.INVALID_CONFIG),
        (ResourceType.GROUP, "g", [("share.delivery.count.limit", "5", SET)], ErrorCode.INVALID_CONFIG),
        (ResourceType.CLIENT_METRICS, "m", [("a", "b", SET)], ErrorCode.INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "m", [("interval.ms", "99", SET)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "", [("retention.ms", "1", SET)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "a b", [("retention.ms", "1", SET)], ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_wrong_alteration_is_refused_and_changes_nothing(kind, name, configs, code):
    cluster = Cluster()
    cluster.create_one()
    before = cluster.image
    assert cluster.alter(kind, name, *configs) == code
    assert cluster.image == before


def test_an_alteration_can_be_validated_only_and_one_without_effect_writes_nothing():
    cluster = Cluster()
    cluster.create_one(configs=(("retention.ms", "5"),))
    version = cluster.image.version
    assert cluster.alter(TOPIC, "t", ("retention.ms", "6", SET), validate_only=True) == 0
    assert cluster.alter(TOPIC, "t", ("retention.ms", " 5", SET)) == 0
    assert cluster.image.version == version


def test_internal_topics_cannot_be_relaxed_later():
    cluster = Cluster()
    cluster.apply(cluster.controller.create_offsets_topic(TopicId(uuid.UUID(int=7)), 0))
    assert cluster.image.topic("__consumer_offsets").partitions_count == 50
    assert cluster.alter(TOPIC, "__consumer_offsets", ("durability", "relaxed", SET)) == ErrorCode.INVALID_CONFIG
    assert cluster.controller.create_offsets_topic(TopicId(uuid.UUID(int=8)), 0) == []


@pytest.mark.parametrize("value", ["0", "1", "9"])
def test_a_limit_that_would_lock_everybody_out_is_refused_by_name_with_what_is_allowed_and_ends_no_start(value):
    words = f"Invalid value {value} for configuration max.connections: Value must be at least 10"
    cluster = Cluster()
    resource = AlterableResource(BROKER, "", (AlterableConfig("max.connections", value),))
    records, (result,) = ConfigController(cluster.image, cluster.configuration).incremental_alter_configs([resource])
    assert (records, result.error_code, result.error_message) == ([], ErrorCode.INVALID_REQUEST, words)
    assert load_settings("", (f"max.connections={value}",)).settings.max_connections == int(value)
    assert cluster.alter(BROKER, "", ("max.connections", "10")) == 0


def test_what_was_stored_before_it_was_refused_keeps_no_other_setting_from_being_changed():
    cluster = Cluster()
    cluster.apply([BrokerConfigChanged(None, "max.connections", "0")])
    assert cluster.configuration.altered(cluster.image.configs_of_broker(None), {}).settings.max_connections == 0
    assert cluster.alter(BROKER, "", ("partitions.max", "7")) == 0
    assert cluster.image.configs_of_broker(None) == {"max.connections": "0", "partitions.max": "7"}
    assert cluster.alter(BROKER, "", ("max.connections", "0")) == ErrorCode.INVALID_REQUEST
    assert cluster.alter(BROKER, "", ("max.connections", None, DELETE)) == 0


def test_broker_settings_are_kept_per_broker_and_for_all():
    cluster = Cluster()
    assert cluster.alter(BROKER, "", ("message.max.bytes", "1000", SET)) == 0
    assert cluster.alter(BROKER, "2", ("message.max.bytes", "2000", SET)) == 0
    assert cluster.image.configs_of_broker(None) == {"message.max.bytes": "1000"}
    assert cluster.image.configs_of_broker(2) == {"message.max.bytes": "2000"}
    assert cluster.alter(BROKER, "2", ("message.max.bytes", None, DELETE)) == 0
    assert cluster.image.configs_of_broker(2) == {}


def test_another_number_of_cores_moves_partitions_and_the_same_number_writes_nothing():
    cluster = Cluster()
    cluster.create_one("rule", num_partitions=4)
    cluster.create_one("hand", assignments=((0, (1,)), (1, (3,))))
    assert cluster.controller.begin("other", 4) == []
    before = cluster.image
    cluster.apply(cluster.controller.begin("other", 2))
    assert cluster.image.cluster_id == "cluster"
    assert cluster.image.cores_count == 2
    assert all(set(topic.assignment.owners) <= {0, 1} for topic in cluster.image.topics.values())
    assert cluster.image.topic("hand").assignment.owners[0] == 1
    names = {new.name for _old, new in changed_topics(before, cluster.image)}
    assert names == {"rule", "hand"}


def begin_move(cluster, topic, partition, *brokers, move_id=7):
    """What came of it; "" when it was accepted."""
    try:
        records = cluster.controller.begin_move(topic, partition, brokers, move_id=move_id, now_ms=9)
    except Refusal as refusal:
        return refusal.code
    cluster.apply(records)
    return len(records)


def test_a_partition_is_moved_to_a_core_of_its_node():
    cluster = Cluster()
    cluster.create_one(assignments=((0, (0,)), (1, (1,))))
    assert begin_move(cluster, "t", 0, 0) == 0, "it is there"
    assert begin_move(cluster, "t", 0, 3) == 1
    assert begin_move(cluster, "t", 0, 3, move_id=8) == 0, "it is on its way"
    assert begin_move(cluster, "t", 0, 2) is ErrorCode.REASSIGNMENT_IN_PROGRESS
    move = cluster.controller.move_of("t", 0)
    assert (move.target, move.move_id) == (3, 7)
    cluster.apply(cluster.controller.end_move(move, 3))
    assert cluster.image.topic("t").assignment.owners == (3, 1)
    assert cluster.controller.end_move(move, 3) == []
    with pytest.raises(Refusal) as refused:
        cluster.controller.move_of("t", 0)
    assert refused.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("brokers", [(), (4,), (1024,), (-1,), (0, 0), (0, 1)])
def test_a_partition_is_on_one_core_that_there_is(brokers):
    cluster = Cluster()
    cluster.create_one(assignments=((0, (0,)),))
    assert begin_move(cluster, "t", 0, *brokers) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(("topic", "partition"), [("t", 1), ("t", -1), ("other", 0), ("__cluster_metadata", 0)])
def test_only_partitions_that_there_are_can_be_moved(topic, partition):
    cluster = Cluster()
    cluster.create_one(assignments=((0, (0,)),))
    assert begin_move(cluster, topic, partition, 1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_another_number_of_cores_ends_what_was_under_way():
    """The start has brought every partition to its owner, whichever core had it."""
    cluster = Cluster()
    cluster.create_one(assignments=((0, (0,)), (1, (1,))))
    assert begin_move(cluster, "t", 0, 3) == 1
    cluster.apply(cluster.controller.begin("cluster", 4))
    assert cluster.image.moving
    cluster.apply(cluster.controller.begin("cluster", 2))
    assert not cluster.image.moving
    assert cluster.image.topic("t").assignment.owners == (0, 1)
