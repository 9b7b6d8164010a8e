"""Who votes on the metadata and how far everybody is, as Kafka's own tool and its protocol tell."""

from __future__ import annotations

import re
import uuid
from functools import partial
from itertools import count

import pytest

from tests.support.cluster_nodes import Cluster, asked_of, cluster, cluster_told, create_topic, eventually
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection

METADATA = {"Topics": [{"TopicName": "__cluster_metadata", "Partitions": [{"PartitionIndex": 0}]}]}


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Three voters and an observer."""
    with cluster(tmp_path_factory.mktemp("quorum"), count=4, founders=3) as made:
        made.start(1, 2, 3)
        made.start(4)
        yield made


def asked(bootstrap: str, version: int = 2) -> dict:
    host, port = bootstrap.split(",", maxsplit=1)[0].split(":")
    return asked_of(host, int(port), "DescribeQuorum", version, METADATA)


def test_any_node_tells_the_same_quorum(shared_cluster: Cluster):
    told_alike(shared_cluster, observers=[])


@pytest.mark.kafka
def test_any_node_tells_the_same_quorum_with_an_observer(four: Cluster):
    told_alike(four, observers=[4096])


def told_alike(made: Cluster, observers: list[int]) -> None:
    create_topic(made[1].bootstrap, "quorum", 2)
    last = made.nodes[-1]

    def everybody_is_there() -> dict:
        (partition,) = asked(last.bootstrap)["Topics"][0]["Partitions"]
        assert partition["ErrorCode"] == 0, partition
        assert partition["LeaderId"] == cluster_told(made[2].bootstrap)["controller"] * 1024
        behind = [
            one for one in partition["CurrentVoters"] + partition["Observers"]
            if one["LogEndOffset"] != partition["HighWatermark"]
        ]  # fmt: skip
        return {} if behind else partition

    partition = eventually(everybody_is_there, "all nodes have all of the metadata")
    assert partition["LeaderEpoch"] > 0
    assert [one["ReplicaId"] for one in partition["CurrentVoters"]] == [1024, 2048, 3072]
    assert [one["ReplicaId"] for one in partition["Observers"]] == observers
    every = partition["CurrentVoters"] + partition["Observers"]
    assert len({one["ReplicaDirectoryId"] for one in every}) == len(made.nodes), "the incarnations"
    assert uuid.UUID(int=0) not in {one["ReplicaDirectoryId"] for one in every}
    assert all(one["LastFetchTimestamp"] >= one["LastCaughtUpTimestamp"] > 0 for one in every)
    nodes = {one["NodeId"]: one["Listeners"] for one in asked(made[3].bootstrap)["Nodes"]}
    assert nodes == {
        node.broker_id: [{"Name": "CLUSTER", "Host": "127.0.0.1", "Port": node.port}] for node in made.nodes
    }


def test_the_controller_in_metadata_is_who_leads_the_metadata(shared_cluster: Cluster):
    def told_by_all() -> bool:
        leads = cluster_told(shared_cluster[1].bootstrap)["controller"] * 1024
        found = set()
        for node in shared_cluster.nodes:
            for api, version, body in (("Metadata", 9, {"Topics": []}), ("DescribeCluster", 0, {})):
                found.add(asked_of(node.host, node.ports[0], api, version, body)["ControllerId"])
        return found == {leads}

    eventually(told_by_all, "every node names the controller")


def test_any_core_carries_what_the_controller_decides(shared_cluster: Cluster):
    """From a core to its node's first one, and from there to the node that leads the metadata. Who asks when another
    one comes to lead it does not hear whether the topic was made, and asks for another one.
    """
    numbers = count()

    def carries(host: str, port: int) -> bool:
        asked = {"Name": f"carried-{next(numbers)}", "NumPartitions": 1, "ReplicationFactor": -1}
        try:
            with RawConnection(host, port) as client:
                answer = client.ask("CreateTopics", 7, {"Topics": [asked], "timeoutMs": 30_000})
        except ConnectionError:
            return False
        return [topic["ErrorCode"] for topic in answer["Topics"]] == [0]

    for node in shared_cluster.nodes:
        for port in node.ports:
            eventually(partial(carries, node.host, port), f"node {node.number} carries what is asked for at {port}")


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_tool_describes_the_quorum(four: Cluster):
    def tool(bootstrap: str, *arguments: str) -> str:
        done = run_tool("metadata-quorum", "--bootstrap-server", bootstrap, *arguments)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def is_described() -> bool:
        status = tool(four[4].bootstrap, "describe", "--status")
        leader = cluster_told(four[1].bootstrap)["controller"] * 1024
        assert re.search(rf"LeaderId:\s+{leader}\n", status)
        assert re.search(r"MaxFollowerLag:\s+\d+\n", status)
        assert re.search(r'CurrentVoters:.*"id": 1024.*"id": 2048.*"id": 3072', status)
        assert f'"CLUSTER://127.0.0.1:{four[1].port}"' in status
        rows = [line.split() for line in tool(four[1].bootstrap, "describe", "--replication").splitlines()]
        assert {(row[0], row[-1]) for row in rows if row and row[0].isdecimal()} == {
            (str(number * 1024), "Observer" if number == 4 else "Leader" if number * 1024 == leader else "Follower")
            for number in (1, 2, 3, 4)
        }
        return True

    eventually(is_described, "all nodes, and who leads")  # again where another one came to lead meanwhile
