"""Members by this project's own client beside librdkafka and Kafka's own in Java, in groups of both protocols, at our
broker, at three nodes of it, and at Kafka, while records flow and members come, go and are killed.
"""

from __future__ import annotations

import sys

import pytest

from tests.cluster.test_replication import in_sync_everywhere
from tests.integration.test_consumer_groups_java import member as java_member
from tests.support.cluster_nodes import cluster, create_topic
from tests.support.group_story import PARTITIONS, committed, make_topic, producing, story
from tests.support.kafka_peer import KAFKA_VERSION, KafkaPeer, PeerUnavailable
from tests.support.waiting import eventually
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.coordinators import CoordinatorKind, find_coordinators

pytestmark = pytest.mark.clients
OWN = [sys.executable, "-m", "tests.integration.own_group_member"]
SOON = {"session.timeout.ms": "8000", "heartbeat.interval.ms": "300"}
KINDS = {
    "consumer": {},
    "range": {"group.protocol": "classic", "partition.assignment.strategy": "range", **SOON},
    "cooperative": {"group.protocol": "classic", "partition.assignment.strategy": "cooperative-sticky", **SOON},
}
JAVA_NAMES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
TIMES = {
    "group.consumer.heartbeat.interval.ms": "300", "group.consumer.min.heartbeat.interval.ms": "300",
    "group.consumer.session.timeout.ms": "8000", "group.consumer.min.session.timeout.ms": "8000",
}  # fmt: skip


class BriskKafka(KafkaPeer):
    def _properties(self):
        return super()._properties() | TIMES | {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="module")
def brisk_kafka(module_tmp_path):
    peer = BriskKafka(module_tmp_path / "kafka")
    try:
        peer.start()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    yield peer
    peer.stop()


@pytest.fixture(params=["ours", "kafka"])
def broker(request):
    return request.getfixturevalue("brisk_broker" if request.param == "ours" else "brisk_kafka")


@pytest.mark.parametrize("kind", KINDS)
def test_members_come_go_and_are_killed(broker, topic, tmp_path, kind):
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **KINDS[kind]) as told:
        with producing(broker, topic) as places:
            told.comes("a", topic, OWN)
            told.share("a")
            told.comes("b", topic, OWN, loop="asyncio")
            told.share("a", "b")
            told.comes("c", topic)  # librdkafka
            told.share("a", "b", "c")
            told.handle_more()
            told.leaves("a")
            told.share("b", "c")
            told.handle_more()
            told.is_killed("b")
            told.share("c")
            told.comes("d", topic, OWN)
            told.share("c", "d")
            told.leaves("c")
            told.comes("e", topic, OWN, loop="asyncio")
            told.share("d", "e")
            told.handle_more()
        told.all_handled(places)
        for name in ("d", "e"):
            told.leaves(name)
        told.check_positions()
        assert not told.owned()
    assert committed(broker, topic) == {
        (topic, partition): 1 + max(offset for _topic, number, offset in places if number == partition)
        for partition in range(PARTITIONS)
    }


@pytest.mark.usefixtures("kafka_tools")
@pytest.mark.parametrize("kind", KINDS)
def test_beside_java(brisk_broker, topic, tmp_path, kind):
    make_topic(brisk_broker, topic)
    details = KINDS[kind]
    strategy = details.get("partition.assignment.strategy")
    java = {} if strategy is None else {"partition.assignment.strategy": JAVA_NAMES[strategy]}
    with story(brisk_broker, topic, tmp_path, **details) as told:
        with producing(brisk_broker, topic) as places:
            told.comes("a", topic, OWN)
            told.comes("j", topic, java_member(KAFKA_VERSION), **java)
            told.share("a", "j")
            told.comes("b", topic, OWN)
            told.share("a", "b", "j")
            told.handle_more()
            told.leaves("a")
            told.share("b", "j")
            told.is_killed("j")
            told.share("b")
            told.comes("k", topic, java_member(KAFKA_VERSION), **java)
            told.share("b", "k")
            told.handle_more()
        told.all_handled(places)
        told.leaves("b")
        told.leaves("k")
        told.check_positions()


@pytest.mark.parametrize("kind", KINDS)
def test_static_members_keep_what_they_have(broker, topic, tmp_path, kind):
    make_topic(broker, topic)
    with story(broker, topic, tmp_path, **KINDS[kind]) as told:
        with producing(broker, topic) as places:
            for name in "ab":
                told.comes(name, topic, OWN, group_instance_id=name)
            told.share("a", "b")
            before = told.owned()
            told.handle_more()
            told.leaves("a")
            told.comes("a again", topic, OWN, group_instance_id="a")
            told.share("a again", "b")
            assert told.owned() == {"a again": before["a"], "b": before["b"]}
            told.handle_more()
            told.is_killed("b")
            told.comes("b again", topic, OWN, group_instance_id="b")
            told.share("a again", "b again")
            told.handle_more()
        told.all_handled(places)


@pytest.mark.parametrize("kind", KINDS)
def test_an_expression_finds_a_topic_that_is_made_later(broker, topic, tmp_path, kind):
    make_topic(broker, f"{topic}-1")
    make_topic(broker, f"other-{topic}")
    with story(broker, topic, tmp_path, **KINDS[kind]) as told:
        for name in "ab":
            told.comes(name, f"^{topic}-.*", OWN)
        told.share("a", "b")
        make_topic(broker, f"{topic}-2")
        told.share("a", "b", count=2 * PARTITIONS)
        with producing(broker, f"{topic}-1", f"{topic}-2") as places:
            told.handle_more()
        told.all_handled(places)


def coordinator_of(bootstrap: str, group: str) -> tuple[str, int]:
    with Cluster(ClusterSettings(bootstrap)) as client:
        found = client.answered(lambda: find_coordinators(client, CoordinatorKind.GROUP, [group]))[group]
        return found.host, found.port


@pytest.mark.parametrize("kind", KINDS)
def test_the_node_of_the_coordinator_is_killed(tmp_path, topic, kind):
    with cluster(tmp_path) as made:
        for node in made.nodes:
            node.overrides.update({**TIMES, "offsets.topic.num.partitions": "3"})
        made.start()
        create_topic(made.bootstrap, topic, PARTITIONS, replicas=3)
        eventually(lambda: in_sync_everywhere(made, topic), "three replicas")
        with story(made, topic, tmp_path, **KINDS[kind]) as told:
            with producing(made, topic) as places:
                told.comes("a", topic, OWN)
                told.comes("b", topic, OWN, loop="asyncio")
                told.share("a", "b")
                told.handle_more()
                for _ in range(2):
                    eventually(lambda: in_sync_everywhere(made, "__consumer_offsets"), "three of the coordinators'")
                    place = coordinator_of(made.bootstrap, topic)
                    (failed,) = (node for node in made.nodes if (node.host, node.ports[0]) == place)
                    failed.kill()
                    told.handle_more()
                    told.comes(f"c{failed.number}", topic, OWN)
                    told.share("a", "b", f"c{failed.number}")
                    told.leaves(f"c{failed.number}")
                    told.share("a", "b")
                    made.start(failed.number)
                    told.handle_more()
            told.all_handled(places)
            told.leaves("a")
            told.leaves("b")
            told.check_positions()
