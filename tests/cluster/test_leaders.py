"""Who leads partitions with several replicas: as preferred, on demand; never a node that is drained."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.support.cluster_nodes import Cluster, admin, answered, cluster, create_topic, eventually, leaders
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection
from tpc_broker.broker.handlers.elections import NO_UNCLEAN
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc

PARTITIONS = 6
PREFERRED, UNCLEAN = 0, 1
NOT_NEEDED, NOT_AVAILABLE, NOT_ELIGIBLE = 84, 80, 83


def led_by(made: Cluster, asked: int = 1) -> dict[int, int]:
    """The node that leads each partition; empty while one has no leader."""
    found = leaders(made[asked].bootstrap, "kept")
    return {} if -1 in found.values() else {index: broker // 1024 for index, broker in found.items()}


def elect(made: Cluster, kind: int, partitions: list[int], topic: str = "kept") -> dict[int, tuple[int, str | None]]:
    host, port = made[1].bootstrap.split(":")
    with RawConnection(host, int(port)) as client:
        asked = [{"Topic": topic, "Partitions": partitions}]
        answer = client.ask("ElectLeaders", 2, {"ElectionType": kind, "TopicPartitions": asked, "TimeoutMs": 10_000})
    assert answer["ErrorCode"] == 0
    (found,) = answer["ReplicaElectionResults"]
    return {each["PartitionId"]: (each["ErrorCode"], each["ErrorMessage"]) for each in found["PartitionResult"]}


def prefer(made: Cluster, partition: int, brokers: list[int]) -> None:
    """Put the replicas into another order."""
    host, port = made[2].bootstrap.split(":")
    with RawConnection(host, int(port)) as client:
        asked = {"Name": "kept", "Partitions": [{"PartitionIndex": partition, "Replicas": brokers}]}
        answer = client.ask("AlterPartitionReassignments", 0, {"TimeoutMs": 10_000, "Topics": [asked]})
    assert answer["ErrorCode"] == answer["Responses"][0]["Partitions"][0]["ErrorCode"] == 0, answer


@pytest.mark.usefixtures("kafka_tools")
def test_leaders_are_those_that_are_preferred(tmp_path):
    connection.leave_interrupts_alone()
    with cluster(tmp_path) as made:
        made.start()
        create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
        eventually(lambda: led_by(made), "all are led")
        told = answered(lambda: admin(made[1].bootstrap).list_topics("kept", timeout=5))
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
