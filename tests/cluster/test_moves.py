"""Replicas that move between nodes: asked for, cancelled, paused, and brought back to a node that had them before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster_nodes import Cluster, admin, cluster, consume, create_topic, eventually, produce, run_tpc
from tests.support.waiting import LOOK_S
from tpc_broker.cli.own_client import own_client
from tpc_broker.kafka import ApiKey, messages

pytestmark = pytest.mark.cluster

TIMEOUT_MS = 30_000


def reassign(made: Cluster, topic: str, wanted: dict[int, list[int] | None], *, factor: bool = True) -> list[int]:
    """AlterPartitionReassignments of partitions to nodes; the error codes."""
    kind = messages.AlterPartitionReassignmentsRequest
    parts = [
        kind.ReassignablePartition(
            partition_index=index, replicas=None if nodes is None else [node * 1024 for node in nodes]
        )
        for index, nodes in wanted.items()
    ]
    request = kind(
        timeout_ms=TIMEOUT_MS,
        allow_replication_factor_change=factor,
        topics=[kind.ReassignableTopic(name=topic, partitions=parts)],
    )
    with own_client(made[1].bootstrap) as client:
        answer = client.any_connection().call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, lambda _version: request)
    return [part.error_code for told in answer.responses for part in told.partitions]


def ongoing(made: Cluster) -> list[tuple[Any, ...]]:
    request = messages.ListPartitionReassignmentsRequest(timeout_ms=TIMEOUT_MS, topics=None)
    with own_client(made[1].bootstrap) as client:
        answer = client.any_connection().call(ApiKey.LIST_PARTITION_REASSIGNMENTS, lambda _version: request)
    return [
        (topic.name, part.partition_index, part.adding_replicas, part.removing_replicas)
        for topic in answer.topics
        for part in topic.partitions
        if topic.name == "t"  # others move by themselves
    ]


def moves(made: Cluster, *arguments: str) -> str:
    """What `tpc cluster moves` says."""
    code, said = run_tpc("cluster", "moves", *arguments, "--bootstrap", made[1].bootstrap)
    assert code == 0, said
    return said


def replicas(made: Cluster, topic: str) -> dict[int, list[int]]:
    """The nodes of each partition, if all of them are in sync."""
    found = admin(made[1].bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic].partitions
    for partition in found.values():
        assert sorted(partition.isrs) == sorted(partition.replicas), partition.isrs
    return {index: [broker // 1024 for broker in partition.replicas] for index, partition in sorted(found.items())}


def wait_moved(made: Cluster, topic: str, wanted: dict[int, list[int]]) -> None:
    eventually(lambda: not ongoing(made), "nothing is under way")
    eventually(lambda: wanted.items() <= replicas(made, topic).items(), "and all of it is in sync")


def folders(made: Cluster, node: int, topic: str) -> list[str]:
    return sorted(path.name for path in (made[node].data_folder / "topics").glob(f"{topic}-?"))


def test_replicas_move_to_other_nodes_and_back(tmp_path):
    """Records are there at every step, a node that gave a replica up has no files of it, also after a restart."""
    with cluster(tmp_path, count=4, founders=3) as made:
        made.start(1, 2, 3)
        create_topic(made[1].bootstrap, "t", 2, replicas=3)
        made.start(4)
        first = [f"first {number}" for number in range(200)]
        produce(made[1].bootstrap, "t", first, 2)
        assert reassign(made, "t", {0: [4, 2, 3], 1: [4, 1, 2]}) == [0, 0]
        wait_moved(made, "t", {0: [4, 2, 3], 1: [4, 1, 2]})
        eventually(lambda: folders(made, 1, "t") == ["t-1"], "node 1 has given partition 0 up")
        eventually(lambda: folders(made, 3, "t") == ["t-0"], "and node 3 partition 1")
        second = [f"second {number}" for number in range(200)]
        produce(made[1].bootstrap, "t", second, 2)
        assert consume(made[1].bootstrap, "t", 400) == sorted([*first, *second])
        made.kill(4)
        assert reassign(made, "t", {0: [1, 2, 3]}) == [0]
        eventually(lambda: not ongoing(made), "node 4 is left out while it is away")
        assert reassign(made, "t", {0: [4, 2, 3]}) == [0]
        made.start(4)
        wait_moved(made, "t", {0: [4, 2, 3], 1: [4, 1, 2]})
        assert any(line.startswith("t-0 is another replica by now") for line in made[4].log_messages())
        assert reassign(made, "t", {0: [1, 2, 3], 1: [1, 2, 3]}) == [0, 0]
        wait_moved(made, "t", {0: [1, 2, 3], 1: [1, 2, 3]})
        eventually(lambda: folders(made, 4, "t") == [], "node 4 has given all up")
        made.kill(1, 2, 3)
        made.start(1, 2, 3)
        third = [f"third {number}" for number in range(200)]
        eventually(lambda: replicas(made, "t"), "all are in sync again")
        produce(made[1].bootstrap, "t", third, 2)
        assert consume(made[1].bootstrap, "t", 600, "others") == sorted([*first, *second, *third])


def test_a_move_to_a_node_that_is_away_is_cancelled(tmp_path):
    """Nothing is given up before it is there; the replication factor changes where that is allowed."""
    with cluster(tmp_path, count=4, founders=3) as made:
        made.start(1, 2, 3)
        create_topic(made[1].bootstrap, "t", 1, replicas=3)
        made.start(4)
        values = [f"value {number}" for number in range(100)]
        produce(made[1].bootstrap, "t", values, 1)
        before = eventually(lambda: replicas(made, "t"), "all are in sync")[0]
        made.kill(4)
        assert reassign(made, "t", {0: [4, *before[1:]]}) == [0]
        assert ongoing(made) == [("t", 0, [4096], [before[0] * 1024])]
        (told,) = json.loads(moves(made, "list", "--json"))
        assert (told["topic"], told["adding"], told["removing"], told["reason"]) == ("t", [4], [before[0]], "asked")
        produce(made[1].bootstrap, "t", ["while it waits"], 1)
        assert moves(made, "pause") == "Moves are paused.\n"
        eventually(lambda: json.loads(moves(made, "list", "--json"))[0]["state"] == "paused", "it is shown")
        assert "t-0" in run_tpc("cluster", "--bootstrap", made[1].bootstrap)[1]
        assert moves(made, "resume") == "Moves go on.\n"
        assert moves(made, "cancel", "t-0") == "1 moves go back.\n"
        wait_moved(made, "t", {0: before})
        assert reassign(made, "t", {0: None}) == [85]
        code, said = run_tpc("cluster", "moves", "cancel", "t-0", "--bootstrap", made[1].bootstrap)
        assert (code, said.count("\n")) == (4, 1), said
        assert moves(made, "list") == "No replica is on its way.\n"
        assert reassign(made, "t", {0: before[:2]}, factor=False) == [38]
        assert reassign(made, "t", {0: before[:1]}) == [0]
        wait_moved(made, "t", {0: before[:1]})
        made.start(4)
        assert reassign(made, "t", {0: [*before[:2], 4]}) == [0]
        wait_moved(made, "t", {0: [*before[:2], 4]})
        assert consume(made[1].bootstrap, "t", 101) == sorted([*values, "while it waits"])
