"""Who leads partitions with several replicas: as preferred, on demand; never a node that is drained."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.support.cluster_nodes import (
    Cluster,
    admin,
    answered,
    asked_of,
    cluster,
    cluster_told,
    create_assigned,
    create_topic,
    eventually,
    leaders,
    run_tpc,
)
from tests.support.kafka_peer import run_tool
from tests.support.waiting import LOOK_S
from tpc_broker.broker.handlers.elections import NO_UNCLEAN
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc

PARTITIONS = 6
PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED, NOT_AVAILABLE, NOT_ELIGIBLE = 84, 80, 83


def led_by(made: Cluster, topic: str = "kept") -> dict[int, int]:
    """The node that leads each partition; empty while one has no leader."""
    found = leaders(made[1].bootstrap, topic)
    return {} if -1 in found.values() else {index: broker // 1024 for index, broker in found.items()}


def elect(made: Cluster, kind: int, partitions: list[int], topic: str = "kept") -> dict[int, tuple[int, str | None]]:
    asked = [{"Topic": topic, "Partitions": partitions}]
    wanted = {"ElectionType": kind, "TopicPartitions": asked, "TimeoutMs": 10_000}
    answer = asked_of(made[1].host, made[1].ports[0], "ElectLeaders", 2, wanted)
    assert answer["ErrorCode"] == 0
    (found,) = answer["ReplicaElectionResults"]
    return {each["PartitionId"]: (each["ErrorCode"], each["ErrorMessage"]) for each in found["PartitionResult"]}


def prefer(made: Cluster, partition: int, brokers: list[int], topic: str = "kept") -> None:
    """Put the replicas into another order."""
    asked = {"Name": topic, "Partitions": [{"PartitionIndex": partition, "Replicas": brokers}]}
    wanted = {"TimeoutMs": 10_000, "Topics": [asked]}
    answer = asked_of(made[2].host, made[2].ports[0], "AlterPartitionReassignments", 0, wanted)
    assert answer["ErrorCode"] == answer["Responses"][0]["Partitions"][0]["ErrorCode"] == 0, answer


@pytest.fixture
def drained(shared_cluster: Cluster):
    """A node that leads nothing by an operator's will; it is as it was afterwards."""
    asked = ["--bootstrap", shared_cluster[1].bootstrap]
    code, said = run_tpc("node", "drain", "2", *asked)
    assert code == 0, said
    yield 2
    eventually(lambda: run_tpc("node", "drain", "2", "--cancel", *asked)[0] == 0, "it is drained no more")
    eventually(lambda: all(row["state"] == "alive" for row in cluster_told(asked[1])["nodes"]), "and all have heard")


def test_who_is_preferred_leads_when_that_is_asked_for(shared_cluster: Cluster):
    made, topic = shared_cluster, "preferred"
    placed = [[1024 * ((first + step) % 3 + 1) for step in range(3)] for first in range(PARTITIONS)]
    create_assigned(made.bootstrap, topic, placed)
    eventually(lambda: led_by(made, topic), "all are led")
    described = answered(lambda: admin(made[1].bootstrap).list_topics(topic, timeout=LOOK_S)).topics[topic].partitions
    preferred = {index: each.replicas[0] // 1024 for index, each in described.items()}
    assert sorted(preferred.values()) == [1, 1, 2, 2, 3, 3]

    def elected() -> bool:
        answers = elect(made, PREFERRED, list(preferred), topic)
        return {code for code, _why in answers.values()} <= {0, NOT_NEEDED} and led_by(made, topic) == preferred

    eventually(elected, "each is led by who is preferred")
    eventually(lambda: elect(made, PREFERRED, [0, 99], topic)[0][0] == NOT_NEEDED, "it is led by who is preferred")
    assert elect(made, PREFERRED, [99], topic)[99][0] == 3
    eventually(lambda: elect(made, UNCLEAN, [0], topic)[0][0] == NOT_NEEDED, "it is led")
    prefer(made, 0, [*described[0].replicas[1:], described[0].replicas[0]], topic)
    heir = described[0].replicas[1] // 1024
    eventually(lambda: elect(made, PREFERRED, [0], topic)[0][0] in (0, NOT_NEEDED), "it is elected")
    eventually(lambda: led_by(made, topic).get(0) == heir, "it leads")


def test_a_drained_node_leads_nothing_and_no_election_changes_that(shared_cluster: Cluster, drained: int):
    made, topic = shared_cluster, "drained"
    others = [1024 * node for node in (1, 2, 3) if node != drained]
    create_assigned(made.bootstrap, topic, [[1024 * drained, *others], [1024 * drained, *reversed(others)]])
    eventually(lambda: (now := led_by(made, topic)) and drained not in now.values(), "others lead")
    told = elect(made, PREFERRED, [0, 1], topic)
    assert sorted(told) == [0, 1]
    assert not [index for index, (code, _why) in told.items() if code == 0]
    eventually(lambda: (now := led_by(made, topic)) and drained not in now.values(), "others lead still")


@pytest.mark.cluster
@pytest.mark.usefixtures("kafka_tools")
def test_leaders_are_those_that_are_preferred(tmp_path):
    connection.leave_interrupts_alone()
    with cluster(tmp_path) as made:
        made.start()
        create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
        eventually(lambda: led_by(made), "all are led")
        told = answered(lambda: admin(made[1].bootstrap).list_topics("kept", timeout=LOOK_S))
        described = told.topics["kept"].partitions
        preferred = {index: each.replicas[0] // 1024 for index, each in described.items()}
        assert sorted(preferred.values()) == [1, 1, 2, 2, 3, 3]
        of_two = [index for index, node in preferred.items() if node == 2]
        create_topic(made.bootstrap, "single", 3, replicas=1)
        found = eventually(lambda: 2048 in (now := leaders(made[1].bootstrap, "single")).values() and now, "it is led")
        (alone,) = [index for index, broker in found.items() if broker == 2048]
        made[2].kill()
        eventually(lambda: (now := led_by(made)) and 2 not in now.values(), "others lead")
        eventually(lambda: elect(made, PREFERRED, of_two)[of_two[0]][0] == NOT_AVAILABLE, "it is known to be away")
        eventually(lambda: elect(made, UNCLEAN, [0])[0][0] == NOT_NEEDED, "it is led")
        refused = (NOT_ELIGIBLE, NO_UNCLEAN)
        eventually(lambda: elect(made, UNCLEAN, [alone], "single")[alone] == refused, "nothing unclean")
        made.start(2)
        arguments = ["--election-type", "preferred", "--all-topic-partitions"]

        def elected() -> bool:
            done = run_tool("leader-election", "--bootstrap-server", made[3].bootstrap, *arguments)
            return done.returncode == 0 and led_by(made) == preferred

        eventually(elected, "Kafka's tool has the leaders that are preferred")
        eventually(lambda: elect(made, PREFERRED, [0, 99])[0][0] == NOT_NEEDED, "it is led by who is preferred")
        assert elect(made, PREFERRED, [99])[99][0] == 3
        prefer(made, 0, [*described[0].replicas[1:], described[0].replicas[0]])
        heir = described[0].replicas[1] // 1024
        eventually(lambda: elect(made, PREFERRED, [0])[0][0] in (0, NOT_NEEDED), "it is elected")
        eventually(lambda: led_by(made).get(0) == heir, "it leads")
        # A drained node leads nothing, and an election does not change that.
        done = CliRunner().invoke(tpc, ["node", "drain", "2", "--bootstrap", made[1].bootstrap], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        eventually(lambda: (now := led_by(made)) and 2 not in now.values(), "it has handed over")
