"""Nodes of a cluster whose cores share a listener: one broker for each node to its clients.

Beside it each node has a listener with a port a core, where the same cores are several brokers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.cluster_nodes import (
    admin,
    asked_of,
    brokers,
    cluster_told,
    consume,
    create_assigned,
    create_topic,
    eventually,
    leaders,
    produce,
    run_tpc,
)
from tests.support.shared_servers import SharedCluster, SharedNode
from tests.support.waiting import LOOK_S, PATIENCE_S, let_pass, patiently

CORES, NODES, PARTITIONS = 2, 3, 12
IDS = [1024 * node for node in range(1, NODES + 1)]
CORE_IDS = sorted(broker + core for broker in IDS for core in range(CORES))

pytestmark = pytest.mark.usefixtures("kafka_tools")  # Kafka's definitions of its messages come with them


@pytest.fixture
def nodes(shared_listeners: SharedCluster) -> SharedCluster:
    return shared_listeners


@pytest.fixture
def own_nodes(tmp_path: Path) -> Iterator[SharedCluster]:
    """For a test that kills one."""
    made = SharedCluster(tmp_path)
    if made.why_no_shared_listener is not None:
        pytest.skip(made.why_no_shared_listener)
    try:
        made.start()
        yield made
    finally:
        made.kill_all()


def forwarded(nodes: SharedCluster, name: str) -> int:
    return sum(counters["forwards"][name] for node in nodes.nodes for counters in node.counters())


def led_on(bootstrap: str, topic: str, count: int) -> dict[int, int]:
    """Every partition's leader, as soon as there is one for each."""

    def look() -> dict[int, int]:
        found = leaders(bootstrap, topic)
        assert len(found) == count, found
        assert all(leader >= 0 for leader in found.values()), found
        return found

    return eventually(look, f"{topic} has leaders")


def topic_of_all_cores(nodes: SharedCluster) -> str:
    """Its name. On a busy machine all leaders of one may be at cores of one number: then another one is made."""
    for number, _ in enumerate(patiently("a topic is led by both cores of nodes")):
        name = f"seen-{number}"
        create_topic(nodes.shared_bootstrap, name, PARTITIONS)
        if {broker % 1024 for broker in led_on(nodes.bootstrap, name, PARTITIONS).values()} == set(range(CORES)):
            return name
        let_pass(1)
    raise AssertionError


def topic_of_both_cores_of_a_node(nodes: SharedCluster) -> str:
    """Its name. Whichever core of that node takes a connection, some of the partitions are the other one's."""
    places = [
        [1024 * ((index + step) % NODES + 1) + index // NODES % CORES for step in range(NODES)]
        for index in range(PARTITIONS)
    ]
    for number, _ in enumerate(patiently("a topic is led by both cores of a node")):
        name = f"carried-{number}"
        create_assigned(nodes.bootstrap, name, places)
        leading = set(led_on(nodes.bootstrap, name, PARTITIONS).values())
        if any(leading >= {broker, broker + 1} for broker in IDS):
            return name
        let_pass(1)
    raise AssertionError


def test_each_node_is_one_broker_with_the_id_of_its_first_core(nodes):
    topic_name = topic_of_all_cores(nodes)

    def shows_brokers_and_leaders(node: SharedNode) -> bool:
        told = asked_of(*node.shared, "Metadata", 12, {"Topics": [{"Name": topic_name}]})
        addresses = [(each.broker_id, *each.shared) for each in nodes.nodes]
        assert sorted((one["NodeId"], one["Host"], one["Port"]) for one in told["Brokers"]) == addresses
        assert told["ControllerId"] in IDS
        (topic,) = told["Topics"]
        assert [one["ErrorCode"] for one in topic["Partitions"]] == [0] * PARTITIONS
        assert all(sorted(one["ReplicaNodes"]) == IDS for one in topic["Partitions"])
        assert all(set(one["IsrNodes"]) <= set(IDS) for one in topic["Partitions"])
        return True

    for node in nodes.nodes:
        eventually(partial(shows_brokers_and_leaders, node), "each node shows the same")
    assert brokers(nodes.bootstrap) == set(CORE_IDS), "over the other listener they are several"


def test_what_clients_write_and_read_goes_to_the_cores_that_have_it(nodes):
    topic = topic_of_both_cores_of_a_node(nodes)
    before = {name: forwarded(nodes, name) for name in ("produces", "fetches")}
    values = [f"value {number}" for number in range(20 * PARTITIONS)]
    produce(nodes.shared_bootstrap, topic, values, PARTITIONS)
    assert consume(nodes.shared_bootstrap, topic, len(values), topic) == sorted(values)
    assert forwarded(nodes, "produces") > before["produces"]
    assert forwarded(nodes, "fetches") > before["fetches"]
    consumer = Consumer({"bootstrap.servers": nodes.shared_bootstrap, "group.id": "offsets", "log_level": 0})
    kept = [TopicPartition(topic, index, index + 1) for index in range(PARTITIONS)]
    eventually(lambda: consumer.commit(offsets=kept, asynchronous=False), "offsets are committed")
    read = consumer.committed([TopicPartition(topic, index) for index in range(PARTITIONS)], PATIENCE_S)
    assert [one.offset for one in read] == [one.offset for one in kept]
    consumer.close()


@pytest.mark.cluster
def test_another_node_leads_when_one_is_killed(own_nodes):
    """Producers and groups at the shared ports go on, and each record is there once."""
    nodes = own_nodes
    create_topic(nodes.shared_bootstrap, "kept", PARTITIONS)
    led = led_on(nodes.shared_bootstrap, "kept", PARTITIONS)
    victim = led[0] // 1024
    errors: list[object] = []
    producer = Producer({
        "bootstrap.servers": nodes.shared_bootstrap, "enable.idempotence": True, "log_level": 0, "linger.ms": 5,
    })  # fmt: skip
    for number in range(40 * PARTITIONS):
        if number == 20 * PARTITIONS:
            nodes.kill(victim)
        producer.produce("kept", f"{number}", partition=number % PARTITIONS,
                         on_delivery=lambda error, _message: errors.append(error))  # fmt: skip
        producer.poll(0.002)
    assert producer.flush(PATIENCE_S) == 0
    assert errors == [None] * (40 * PARTITIONS)
    others = ",".join("{}:{}".format(*node.shared) for node in nodes.nodes if node.number != victim)
    found = consume(others, "kept", 40 * PARTITIONS, "kept")
    assert found == sorted(map(str, range(40 * PARTITIONS)))
    nodes.start(victim)
    eventually(lambda: brokers(nodes.shared_bootstrap) == set(IDS), "it is back")


def replicas_told(nodes: SharedCluster, topic: str) -> dict[int, list[int]]:
    """As brokers with a core each."""
    told = admin(nodes.bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic]
    return {index: sorted(one.replicas) for index, one in told.partitions.items()}


def test_ids_in_assignments_name_nodes_and_their_cores_take_turns(nodes):
    client = admin(nodes.shared_bootstrap)
    asked = NewTopic("assigned", 4, replica_assignment=[[1024, 2048], [1024, 2048], [2048, 3072], [2048, 3072]])
    client.create_topics([asked])["assigned"].result(PATIENCE_S)
    assert eventually(lambda: replicas_told(nodes, "assigned"), "it is made") == {
        0: [1024, 2048], 1: [1025, 2049], 2: [2048, 3072], 3: [2049, 3073],
    }  # fmt: skip
    change = {"Topics": [{"Name": "assigned", "Partitions": [
        {"PartitionIndex": 0, "Replicas": [3072, 2048]},
        {"PartitionIndex": 1, "Replicas": [1024, 3072]},
        {"PartitionIndex": 2, "Replicas": [7 * 1024, 2048]},
    ]}], "TimeoutMs": 30_000}  # fmt: skip

    (topic,) = asked_of(*nodes[1].shared, "AlterPartitionReassignments", 0, change)["Responses"]
    assert [one["ErrorCode"] for one in topic["Partitions"]] == [0, 0, 39], "node 7 does not exist"
    wanted = {0: [2048, 3072], 1: [1025, 3073], 2: [2048, 3072], 3: [2049, 3073]}
    eventually(lambda: replicas_told(nodes, "assigned") == wanted, "what had a core keeps it")
    every = {"TimeoutMs": 30_000, "Topics": None}
    eventually(
        lambda: asked_of(*nodes[2].shared, "ListPartitionReassignments", 0, every)["Topics"] == [],
        "nothing moves any more",
    )


def test_a_node_is_configured_and_drained_by_its_one_id(nodes):
    resource = ConfigResource(
        ConfigResource.Type.BROKER, "2048",
        incremental_configs=[ConfigEntry("max.connections", "4321", incremental_operation=AlterConfigOpType.SET)],
    )  # fmt: skip
    client = admin(nodes.shared_bootstrap)

    def altered() -> bool:  # set again when the connection of who asked was closed: the leader may just have changed
        client.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
        return True

    eventually(altered, "it is set")

    def shown(port: int, broker: int) -> tuple[int, list[str]]:
        asked = {"ResourceType": 4, "ResourceName": str(broker), "ConfigurationKeys": ["max.connections"]}
        (told,) = asked_of(nodes[2].host, port, "DescribeConfigs", 4, {"Resources": [asked]})["Results"]
        return told["ErrorCode"], [one["Value"] for one in told["Configs"]]

    for core, port in enumerate(nodes[2].ports):
        eventually(lambda port=port, core=core: shown(port, 2048 + core) == (0, ["4321"]), "each core has it")
    assert shown(nodes[2].shared[1], 2048) == (0, ["4321"])
    unset = [ConfigEntry("max.connections", None, incremental_operation=AlterConfigOpType.DELETE)]
    resource = ConfigResource(ConfigResource.Type.BROKER, "2048", incremental_configs=unset)
    eventually(altered, "it is as it was")
    code, said = run_tpc("node", "drain", "2", "--bootstrap", nodes.shared_bootstrap)
    assert (code, said) == (0, "Node 2 is draining.\n")

    def state() -> str:
        return next(row["state"] for row in cluster_told(nodes.shared_bootstrap)["nodes"] if row["node"] == 2)

    eventually(lambda: state() == "draining", "it is draining")
    code, said = run_tpc("node", "drain", "2", "--cancel", "--bootstrap", nodes.shared_bootstrap)
    assert code == 0, said
    eventually(lambda: state() == "alive", "it is a node like the others")
    create_topic(nodes.shared_bootstrap, "listed", PARTITIONS)
    led_on(nodes.shared_bootstrap, "listed", PARTITIONS)
    code, said = run_tpc("partition", "list", "listed", "--json", "--bootstrap", nodes.shared_bootstrap)
    assert code == 0, said
    assert all(sorted(row["replicas"]) == IDS for row in json.loads(said))
