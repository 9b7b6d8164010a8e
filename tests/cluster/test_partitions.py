"""Nodes on hosts of their own whose network fails: what a minority may not do, and that it heals by itself.

Of the metadata, and of partitions with replicas on all nodes.
"""

from __future__ import annotations

import pytest

from tests.log.log_batches import batch
from tests.support.cluster_nodes import REFUSED_S, Cluster, Node, create_topic, eventually, is_created, leaders, topics
from tests.support.host_nodes import cluster_on_hosts
from tests.support.namespaces import Hosts, why_no_loss, why_no_namespaces
from tests.support.raw_client import RawConnection
from tests.support.replicated_load import Load, read_all
from tpc_broker.error_codes import ErrorCode

WHY_NOT = why_no_namespaces()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))]
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
def on_hosts(tmp_path):
    with cluster_on_hosts(tmp_path, Hosts) as made_on:
        yield made_on


def made_by_another(made: Cluster, but: int, name: str) -> bool:
    other = next(node for node in made.nodes if node.number != but)
    return is_created(other.bootstrap, name)


def topics_at(node: Node) -> set[str]:
    """As that node itself says: a client that is told of other brokers may ask those."""
    with RawConnection(node.host, node.ports[0]) as connection:
        return {topic["Name"] for topic in connection.ask("Metadata", 1, {"Topics": None})["Topics"]}


def test_a_minority_acknowledges_nothing_and_heals_by_itself(on_hosts):
    """The controller is cut off, then it can hear and not speak, then two nodes do not see each other."""
    made, on = on_hosts
    made.start()
    first = eventually(made.controller, "somebody leads")
    create_topic(made[first].bootstrap, "before")

    on.isolate(first)
    eventually(lambda: made_by_another(made, first, "without-it"), "the majority goes on")
    assert creates_at(made[first], "refused") is not ErrorCode.NONE
    assert "without-it" not in topics_at(made[first]), "it cannot know"
    on.heal(first)
    eventually(lambda: "without-it" in topics(made[first].bootstrap), "it catches up")

    second = eventually(made.controller, "somebody leads")
    others = [node.number for node in made.nodes if node.number != second]
    on.mute(second, *others)
    eventually(lambda: made_by_another(made, second, "while-it-is-mute"), "another one leads")
    on.unmute(second, *others)
    eventually(lambda: "while-it-is-mute" in topics(made[second].bootstrap), "it follows again")

    third = eventually(made.controller, "somebody leads")
    one, two = (node.number for node in made.nodes if node.number != third)
    on.mute(one, two)
    on.mute(two, one)
    eventually(lambda: made_by_another(made, third, "two-do-not-see-each-other"), "both see the third")
    on.unmute(one, two)
    on.unmute(two, one)
    wanted = {"before", "without-it", "while-it-is-mute", "two-do-not-see-each-other"}
    for node in made.nodes:
        eventually(lambda node=node: wanted <= topics(node.bootstrap), f"node {node.number} has everything")
        assert "refused" not in topics_at(node)
        assert not [line for line in node.log_messages() if "Traceback" in line]


def creates_at(node: Node, name: str) -> ErrorCode:
    """What that node itself says: it sends clients that ask for brokers to the others, which would make the topic."""
    asked = {"Name": name, "NumPartitions": 1, "ReplicationFactor": 1}
    with RawConnection(node.host, node.ports[0]) as connection:
        answer = connection.ask("CreateTopics", 7, {"Topics": [asked], "timeoutMs": int(REFUSED_S * 1000)})
    return ErrorCode(answer["Topics"][0]["ErrorCode"])


def produced_at(node: Node, topic: str, partition: int) -> ErrorCode:
    """What that node itself says of a record with acks=all."""
    data = {"PartitionData": [{"Index": partition, "Records": batch(0, [b"-1"])}], "Name": topic}
    with RawConnection(node.host, node.ports[0]) as connection:
        asked = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [data]}
        (answer,) = connection.ask("Produce", 9, asked)["Responses"]
    return ErrorCode(answer["PartitionResponses"][0]["ErrorCode"])


def led_by(made: Cluster, topic: str, number: int) -> list[int]:
    asked = next(node for node in made.nodes if node.number != number)
    found = leaders(asked.bootstrap, topic)
    assert -1 not in found.values()
    return [partition for partition, leader in found.items() if leader == made[number].broker_id]


def test_a_leader_that_is_cut_off_acknowledges_nothing(on_hosts):
    """Another one leads; what the old one took meanwhile is gone when it is back, and nothing else is."""
    made, on = on_hosts
    made.start()
    bootstrap = made.bootstrap
    create_topic(bootstrap, "kept", 3, replicas=3)
    create_topic(bootstrap, "cut", 3, replicas=3)
    partition = eventually(lambda: led_by(made, "cut", 1), "it leads one")[0]
    eventually(lambda: led_by(made, "kept", 1), "and another one")
    with Load(bootstrap, "kept", 3) as load:
        load.wait_progress()
        on.isolate(1)
        assert produced_at(made[1], "cut", partition) == NOT_LEADER, "it was appended, and could not be committed"
        assert produced_at(made[1], "cut", partition) == NOT_LEADER, "it leads no more"
        load.wait_progress()
        eventually(lambda: not led_by(made, "kept", 1), "others lead")
        on.heal(1)
        load.wait_progress()

        on.mute(2, 1, 3)
        load.wait_progress()
        on.unmute(2, 1, 3)
        on.mute(1, 2)
        on.mute(2, 1)
        load.wait_progress()
        on.unmute(1, 2)
        on.unmute(2, 1)
        load.wait_progress()
    load.check(bootstrap)
    for node in made.nodes:
        assert read_all(node.bootstrap, "cut", partition) == []
        assert not [line for line in node.log_messages() if "Traceback" in line]


def test_packets_are_lost(on_hosts):
    """A fifth of what each node gets from the others: it takes longer, and nothing else."""
    why_not = why_no_loss()
    if why_not is not None:
        pytest.skip(why_not)
    made, on = on_hosts
    made.start()
    create_topic(made.bootstrap, "kept", 3, replicas=3)
    with Load(made.bootstrap, "kept", 3) as load:
        load.wait_progress()
        for node in made.nodes:
            on.lose(node.number, 20)
        for _ in range(5):
            load.wait_progress()
        for node in made.nodes:
            on.lose(node.number, 0)
        load.wait_progress()
    load.check(made.bootstrap)
    for node in made.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line]
