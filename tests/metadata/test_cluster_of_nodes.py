"""The controller's decisions for several nodes: where partitions go, what a cluster begins with, who registers."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace

import pytest

from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.credentials import ScramMechanism, credential_of_password
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_NAMED_LEADERS, FIRST_WITH_TRANSACTIONS
from tpc_broker.metadata.acl_records import AclsChanged
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.config_control import AlterableConfig, AlterableResource, ConfigController
from tpc_broker.metadata.controller import Controller, CreatableTopic, GrowableTopic
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.node_control import remove_node
from tpc_broker.metadata.records import (
    ClientQuotaChanged,
    FeatureLevelChanged,
    NodeAddress,
    NodeRegistered,
    ResourceConfigChanged,
    TopicAssigned,
    credential_changed,
    decode_record,
    encode_record,
)
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import MetadataVersion, NodeId, Replica, TopicId


class Nodes:
    """A driver of the controller, as short as one can be: replays what was decided, through bytes."""

    def __init__(self, cores: dict[int, int]) -> None:
        self.configuration = load_settings("", ["node.id=1"])
        self.image = ClusterImage()
        self.absent: set[NodeId] = set()
        self._chooser = random.Random(1)
        self.apply(self.controller.begin_cluster("c", None, NodeId(1)))
        for node, count in cores.items():
            self.apply(self.controller.register_node(registered(node, count)))

    @property
    def controller(self) -> Controller:
        return Controller(self.image, self.configuration, self.absent)

    def apply(self, records) -> None:
        replayed = [decode_record(encode_record(record)) for record in records]
        self.image = self.image.apply(replayed, MetadataVersion(self.image.version + len(replayed)))

    def create(self, *topics):
        ids = [TopicId(uuid.UUID(int=self._chooser.getrandbits(128))) for _ in topics]
        records, results = self.controller.create_topics(topics, ids, 1)
        self.apply(records)
        return results

    def held(self) -> Counter[Replica]:
        return Counter(each[0] for topic in self.image.topics.values() for each in topic.replicas)


def registered(node: int, cores: int, incarnation: int = 7) -> NodeRegistered:
    return NodeRegistered(NodeId(node), incarnation, cores, "", "1", NodeAddress("h", node), ())


def test_partitions_go_over_nodes_and_cores_by_their_number():
    nodes = Nodes({1: 1, 2: 2, 3: 3})
    topics = [
        CreatableTopic(name=f"t{number}", num_partitions=number % 5 + 1, replication_factor=1) for number in range(40)
    ]
    nodes.create(*topics)
    held = nodes.held()
    total = held.total()
    for node, cores in ((1, 1), (2, 2), (3, 3)):
        on_cores = [held[Replica(NodeId(node), core)] for core in range(cores)]
        assert abs(sum(on_cores) - total * cores / 6) <= 1
        assert max(on_cores) - min(on_cores) <= 1
    assert all(topic.assignment.owners[0] == topic.replicas[0][0].core for topic in nodes.image.topics.values())


def test_nodes_that_seem_to_be_gone_get_nothing_new():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    nodes.absent = {NodeId(2)}
    nodes.create(CreatableTopic(name="t", num_partitions=6, replication_factor=2))
    assert {replica.node for replica in nodes.held()} == {1, 3}
    nodes.absent = {NodeId(1), NodeId(2), NodeId(3)}
    assert nodes.create(CreatableTopic(name="u", num_partitions=3))[0].error_code == ErrorCode.NONE


def test_of_nodes_that_are_to_get_nothing_new_the_first_do_when_there_are_too_few_others():
    nodes = Nodes({1: 1, 2: 1, 3: 1, 4: 1})
    nodes.absent = [NodeId(3), NodeId(2), NodeId(2), NodeId(9)]
    nodes.create(CreatableTopic(name="t", num_partitions=6, replication_factor=3))
    assert {replica.node for each in nodes.image.topic("t").replicas for replica in each} == {1, 3, 4}


def test_what_is_there_stays_when_partitions_are_added():
    nodes = Nodes({1: 1, 2: 1})
    nodes.create(CreatableTopic(name="t", num_partitions=2))
    before = nodes.image.topic("t").replicas
    nodes.apply(nodes.controller.register_node(registered(3, 1)))
    records, results = nodes.controller.create_partitions([GrowableTopic(name="t", count=4)])
    nodes.apply(records)
    assert results[0].error_code == ErrorCode.NONE
    after = nodes.image.topic("t").replicas
    assert after[:2] == before
    assert after[2][0].node == 3, "the empty node first"


def test_replicas_are_on_nodes_racks_and_cores_and_leaders_everywhere():
    nodes = Nodes({})
    for node, rack in enumerate("aabbc", start=1):
        nodes.apply(nodes.controller.register_node(replace(registered(node, 2), rack=rack)))
    nodes.create(*(CreatableTopic(name=f"t{number}", num_partitions=6, replication_factor=3) for number in range(10)))
    racks = dict(enumerate("aabbc", start=1))
    everywhere = [each for topic in nodes.image.topics.values() for each in topic.replicas]
    assert all(len({racks[replica.node] for replica in replicas}) == 3 for replicas in everywhere)
    leaders = Counter(replicas[0].node for replicas in everywhere)
    assert max(leaders.values()) - min(leaders[node] for node in racks) <= 2
    on_cores = Counter(replica for replicas in everywhere for replica in replicas)
    for node in racks:
        assert abs(on_cores[Replica(node, 0)] - on_cores[Replica(node, 1)]) <= 1
    topic = nodes.image.topic("t0")
    for replicas, voters in zip(topic.replicas, topic.voters, strict=True):
        assert {replica.node for replica in replicas} == {voter.node for voter in voters}
        assert {voter.incarnation for voter in voters} == {7}


def test_how_many_replicas_there_may_be():
    nodes = Nodes({1: 1, 2: 1})
    assert nodes.create(CreatableTopic(name="a"))[0].replication_factor == 2, "min(3, nodes)"
    for node in range(3, 8):
        nodes.apply(nodes.controller.register_node(registered(node, 1)))
    assert nodes.create(CreatableTopic(name="b"))[0].replication_factor == 3
    assert nodes.create(CreatableTopic(name="c", replication_factor=1))[0].replication_factor == 1
    assert nodes.image.topic("c").voters == (), "nobody votes for the only one"
    for asked, said in ((6, "at most 5 replicas"), (8, "has 7 node(s)")):
        refused = nodes.create(CreatableTopic(name="d", replication_factor=asked))[0]
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert said in refused.error_message
    nodes.configuration = load_settings("", ["node.id=1", "default.replication.factor=2"])
    assert nodes.create(CreatableTopic(name="e"))[0].replication_factor == 2


def test_voters_of_the_creation_stay_when_partitions_are_added_and_nodes_are_others():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    nodes.create(CreatableTopic(name="t", num_partitions=1))
    before = nodes.image.topic("t").voters
    nodes.apply(nodes.controller.register_node(registered(2, 1, incarnation=8)))
    nodes.apply(nodes.controller.create_partitions([GrowableTopic(name="t", count=3)])[0])
    after = nodes.image.topic("t").voters
    assert after[:1] == before
    assert {voter.incarnation for voter in after[1] if voter.node == 2} == {8}
    assert ClusterImage.from_bytes(nodes.image.to_bytes()).topic("t") == nodes.image.topic("t")


def test_first_leaders_are_named_by_what_makes_the_partitions_and_stay():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    nodes.create(CreatableTopic(name="before", num_partitions=2))
    assert nodes.image.topic("before").first_leaders == (), "nodes of an earlier level would stand in that term"
    assert b"first_leaders" not in nodes.image.to_bytes()
    nodes.apply([FeatureLevelChanged(FIRST_WITH_NAMED_LEADERS, 2)])
    nodes.create(CreatableTopic(name="t", num_partitions=3), CreatableTopic(name="one", replication_factor=1))
    made = nodes.image.topic("t")
    assert made.first_leaders == tuple(each[0].node for each in made.replicas)
    assert nodes.image.topic("one").first_leaders == ()
    grown = [GrowableTopic(name=name, count=4) for name in ("before", "t")]
    nodes.apply(nodes.controller.create_partitions(grown)[0])
    before, after = nodes.image.topic("before"), nodes.image.topic("t")
    assert before.first_leaders == (-1, -1, *(each[0].node for each in before.replicas[2:]))
    assert after.first_leaders == (*made.first_leaders, after.replicas[3][0].node)
    turned = tuple((*each[1:], each[0]) for each in after.replicas)
    nodes.apply([TopicAssigned(after.topic_id, after.assignment.owners, (), turned, after.voters)])
    moved = nodes.image.topic("t")
    assert moved.first_leaders == after.first_leaders, "whoever is to lead by now"
    assert (moved.first_leader(0), moved.first_leader(4)) == (made.first_leaders[0], -1)
    assert ClusterImage.from_bytes(nodes.image.to_bytes()).topic("t") == moved


def test_min_insync_replicas_is_at_most_a_majority():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    refused = nodes.create(CreatableTopic(name="t", configs=(("min.insync.replicas", "3"),)))[0]
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert "at most 2 is possible" in refused.error_message
    assert nodes.create(CreatableTopic(name="t", configs=(("min.insync.replicas", "2"),)))[0].error_code == 0
    resource = AlterableResource(2, "t", (AlterableConfig("min.insync.replicas", "3"),))
    _records, (result,) = ConfigController(nodes.image, nodes.configuration).incremental_alter_configs([resource])
    assert result.error_code == ErrorCode.INVALID_CONFIG


def test_partitions_may_be_assigned_to_a_core_of_any_node():
    nodes = Nodes({1: 1, 2: 2})
    nodes.create(CreatableTopic(name="t", assignments=((0, (2049,)), (1, (1024,)))))
    assert nodes.image.topic("t").replicas == ((Replica(2, 1),), (Replica(1, 0),))
    nodes.create(CreatableTopic(name="v", assignments=((0, (2049, 1024)), (1, (1024, 2048)))))
    assert nodes.image.topic("v").replicas[0] == (Replica(2, 1), Replica(1, 0))
    uneven = nodes.create(CreatableTopic(name="w", assignments=((0, (2049, 1024)), (1, (1024,)))))[0]
    assert "Inconsistent replication factor" in uneven.error_message
    for brokers, said in (((3072,), "no such broker"), ((1025,), "no such broker"),
                          ((2048, 2049), "of one node"), ((), "empty replica list")):  # fmt: skip
        refused = nodes.create(CreatableTopic(name="u", assignments=((0, brokers),)))[0]
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert said in refused.error_message


def test_the_offsets_topic_is_spread():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    nodes.apply(nodes.controller.create_offsets_topic(TopicId(uuid.UUID(int=7)), 1))
    assert {replica.node for replica in nodes.held()} == {1, 2, 3}
    assert all(len(voters) == 3 for voters in nodes.image.topic("__consumer_offsets").voters)


def test_the_topic_of_transactional_ids_is_spread_and_is_made_from_its_level_on():
    nodes = Nodes({1: 1, 2: 1, 3: 1})
    topic_id = TopicId(uuid.UUID(int=8))
    assert nodes.controller.create_transactions_topic(topic_id, 1) == []
    nodes.image = replace(nodes.image, feature_level=FIRST_WITH_TRANSACTIONS)
    nodes.apply(nodes.controller.create_transactions_topic(topic_id, 1))
    made = nodes.image.topic("__transaction_state")
    assert (made.partitions_count, made.is_internal, made.configs["min.insync.replicas"]) == (50, True, "2")
    assert all(len(voters) == 3 for voters in made.voters)
    assert nodes.controller.create_transactions_topic(TopicId(uuid.UUID(int=9)), 1) == []


def test_a_node_registers_once_and_again_when_it_is_another():
    nodes = Nodes({1: 1})
    assert nodes.controller.register_node(registered(1, 1)) == []
    again = registered(1, 1, incarnation=8)
    assert nodes.controller.register_node(again) == [again]


def test_a_cluster_begins_with_what_one_node_has_had():
    alone = ClusterImage()
    configuration = load_settings("", ["node.id=2"])
    records = Controller(alone, configuration).begin("old", 2)
    alone = alone.apply(records, MetadataVersion(2))
    made, _results = Controller(alone, configuration).create_topics(
        [CreatableTopic(name="t", num_partitions=3, configs=(("retention.ms", "5"),))], [TopicId(uuid.UUID(int=7))], 1
    )
    alone = alone.apply(made, MetadataVersion(3))
    settings = ResourceConfigChanged("group", "g", {"consumer.session.timeout.ms": "50000"})
    topic = Resource.TOPIC, Pattern.LITERAL, "t"
    rules = AclsChanged((AclBinding(*topic, Principal("User", "a"), "*", Operation.READ, Permission.ALLOW),))
    alone = alone.apply([settings, rules], MetadataVersion(4))
    begun = Controller(ClusterImage(), configuration).begin_cluster("old", alone, NodeId(2))
    assert settings not in begun, "a founder of an earlier release could not read it"
    assert settings in Controller(ClusterImage(), configuration).begin_cluster("old", alone, NodeId(2), 4)
    mechanism = ScramMechanism.SCRAM_SHA_256
    anna = credential_changed("anna", mechanism, credential_of_password(mechanism, "p", b"s", 1))
    with_user = alone.apply([anna], MetadataVersion(5))
    for level, is_brought in ((5, False), (6, True)):
        records = Controller(ClusterImage(), configuration).begin_cluster("old", with_user, NodeId(2), level)
        assert (anna in records) == is_brought
    of_level_4 = Controller(ClusterImage(), configuration).begin_cluster("old", alone, NodeId(2), 4)
    assert settings in of_level_4
    assert rules not in of_level_4
    assert rules in Controller(ClusterImage(), configuration).begin_cluster("old", alone, NodeId(2), 6)
    quota = ClientQuotaChanged({"user": "u"}, {"producer_byte_rate": 9.0})
    with_quota = alone.apply([quota], MetadataVersion(5))
    assert quota not in Controller(ClusterImage(), configuration).begin_cluster("old", with_quota, NodeId(2), 5)
    assert quota in Controller(ClusterImage(), configuration).begin_cluster("old", with_quota, NodeId(2), 6)
    image = ClusterImage().apply([decode_record(encode_record(each)) for each in begun], MetadataVersion(9))
    topic = image.topic("t")
    assert image.cluster_id == "old"
    assert topic.configs == {"retention.ms": "5"}
    assert [each[0] for each in topic.replicas] == [Replica(2, core) for core in alone.topic("t").assignment.owners]
    assert Controller(image, configuration).begin_cluster("old", alone, NodeId(2)) == [], "once"


def test_what_only_a_removed_node_had_is_made_anew_on_others_if_that_is_accepted():
    nodes = Nodes({1: 1, 2: 1, 3: 1, 4: 1})
    sizes = (("t", 8), ("u", 4))
    nodes.create(*(CreatableTopic(name=name, num_partitions=size, replication_factor=1) for name, size in sizes))
    before = nodes.image
    with pytest.raises(Refusal, match=r"3 partitions are on node 2 alone \(the first: t-1\)"):
        remove_node(nodes.image, NodeId(2), (), accept_loss=False)
    nodes.apply(remove_node(nodes.image, NodeId(2), {NodeId(4)}, accept_loss=True))
    assert sorted(nodes.image.nodes) == [1, 3, 4]
    assert nodes.image.removed == {7: 2}
    held = Counter(replica.node for replica in nodes.held().elements())
    assert (held[NodeId(2)], held[NodeId(4)]) == (0, 3), "who seems to be gone gets none of it"
    assert abs(held[NodeId(1)] - held[NodeId(3)]) <= 1
    for name in ("t", "u"):
        old, new = before.topic(name), nodes.image.topic(name)
        for was, now, owner in zip(old.replicas, new.replicas, new.assignment.owners, strict=True):
            assert was == now or was[0].node == 2, "what others have stays"
            assert owner == now[0].core


@pytest.mark.parametrize("factor", [1, 2])
def test_a_full_node_gets_what_a_removed_one_had_when_there_is_no_other(factor):
    nodes = Nodes({1: 1, 2: 1, 3: 1, 4: 1})
    nodes.create(CreatableTopic(name="t", num_partitions=30, replication_factor=factor))

    def held():
        return Counter(replica.node for each in nodes.image.topic("t").replicas for replica in each)

    before = held()
    nodes.apply(remove_node(nodes.image, NodeId(2), (), (NodeId(3),), accept_loss=True))
    assert (held()[3], held().total()) == (before[3], 30 * factor)
    nodes.apply(remove_node(nodes.image, NodeId(4), (), (NodeId(3),), accept_loss=True))
    assert held() == ({1: 30 - before[3], 3: before[3]} if factor == 1 else {1: 30, 3: 30})


def test_another_node_gets_a_replica_in_place_of_a_removed_one():
    nodes = Nodes({1: 1, 2: 1, 3: 1, 4: 1, 5: 2})
    nodes.create(CreatableTopic(name="t", num_partitions=30, replication_factor=3))
    before = nodes.image.topic("t")
    nodes.apply(remove_node(nodes.image, NodeId(2), {NodeId(4)}, accept_loss=False))
    after = nodes.image.topic("t")
    assert after.voters == before.voters, "those of the beginning stay what they were"
    heirs = Counter()
    for was, now, owner in zip(before.replicas, after.replicas, after.assignment.owners, strict=True):
        assert owner == now[0].core
        assert len({replica.node for replica in now}) == 3
        if was != now:
            ((old, new),) = [pair for pair in zip(was, now, strict=True) if pair[0] != pair[1]]
            assert old.node == 2
            heirs[new.node] += 1
    assert 2 not in {replica.node for replicas in after.replicas for replica in replicas}
    assert heirs[4] == 0, "who seems to be gone gets none"
    assert sum(heirs.values()) == sum(any(replica.node == 2 for replica in each) for each in before.replicas)
    with pytest.raises(Refusal, match=r"No node can take the replica of t-\d+ that node 1 has"):
        remove_node(nodes.image, NodeId(1), {NodeId(4)}, accept_loss=True)


def test_an_heir_is_in_another_rack_than_the_other_replicas_where_there_is_one():
    nodes = Nodes({})
    for node, rack in ((1, "a"), (2, "b"), (3, "c"), (4, "a"), (5, "c")):
        nodes.apply([replace(registered(node, 1), rack=rack)])
    three = tuple(Replica(NodeId(node), 0) for node in (3, 1, 2))
    nodes.create(CreatableTopic(name="t", num_partitions=1, replication_factor=3))
    topic = nodes.image.topic("t")
    nodes.apply([TopicAssigned(topic.topic_id, (0,), (), (three,), topic.voters)])
    nodes.apply(remove_node(nodes.image, NodeId(3), (), accept_loss=False))
    assert [replica.node for replica in nodes.image.topic("t").replicas[0]] == [5, 1, 2]


def test_a_node_is_not_removed_twice_nor_the_last_one():
    nodes = Nodes({1: 1, 2: 1})
    nodes.create(CreatableTopic(name="t", num_partitions=2, replication_factor=1))
    topic = nodes.image.topic("t")
    here = (Replica(NodeId(1), 0),)
    nodes.apply([TopicAssigned(topic.topic_id, (0, 0), (), (here, here))])
    nodes.apply(remove_node(nodes.image, NodeId(2), (), accept_loss=False))
    with pytest.raises(Refusal, match="no node 2"):
        remove_node(nodes.image, NodeId(2), (), accept_loss=True)
    with pytest.raises(Refusal, match="the only one"):
        remove_node(nodes.image, NodeId(1), (), accept_loss=True)


@pytest.mark.parametrize(
    ("broker", "said"),
    [("1024", None), ("1025", "by broker 1024"), ("", "by its first broker"), ("2048", None)],
)
def test_a_node_is_drained_by_its_first_broker(broker, said):
    nodes = Nodes({1: 2, 2: 1})
    resource = AlterableResource(4, broker, (AlterableConfig("node.draining", "true"),))
    controller = ConfigController(nodes.image, nodes.configuration)
    records, (result,) = controller.incremental_alter_configs([resource])
    assert (result.error_message or "").endswith(f"{said}." if said else "")
    nodes.apply(records)
    assert nodes.image.draining == (set() if said else {int(broker) // 1024})


@pytest.mark.parametrize(("broker", "code"), [("1024", 0), ("2049", 0), ("3072", 42), ("1025", 42)])
def test_settings_of_cores_of_any_node(broker, code):
    nodes = Nodes({1: 1, 2: 2})
    resource = AlterableResource(4, broker, (AlterableConfig("log.cleaner.threads", "1"),))
    controller = ConfigController(nodes.image, nodes.configuration)
    _records, (result,) = controller.incremental_alter_configs([resource], validate_only=True)
    assert (result.error_code != 0) == bool(code), result
