"""Nodes that join, are lost for good, come back and leave again, under load: replicas move by themselves."""

from __future__ import annotations

import pytest

from tests.support.cluster_nodes import Cluster, admin, cluster, cluster_told, create_topic, eventually, run_tpc
from tests.support.replicated_load import Load
from tests.support.waiting import LOOK_S, PATIENCE_S

pytestmark = pytest.mark.cluster

LOADED = 4
"""Partitions that records go to; the others are there to be moved."""


def held(made: Cluster) -> dict[int, int]:
    """Replicas of each node, once nothing is under way."""
    told = cluster_told(made[1].bootstrap)
    assert told["moves"] == [], told["moves"]
    return {row["node"]: row["replicas"] for row in told["nodes"]}


def wait_balanced(made: Cluster, nodes: set[int], total: int, why: str, deadline_s: float = 120) -> None:
    """These nodes hold all replicas, within one, and all of them are in sync."""

    def is_balanced() -> bool:
        counts = held(made)
        within = [counts[node] for node in nodes]
        return sum(within) == sum(counts.values()) == total and max(within) - min(within) <= 1

    eventually(is_balanced, why, deadline_s)

    def is_in_sync() -> bool:
        topics = admin(made[1].bootstrap).list_topics(timeout=LOOK_S).topics.values()
        found = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(partition.isrs) == len(partition.replicas) for partition in found)

    eventually(is_in_sync, f"{why}: all in sync", deadline_s)


def set_all(made: Cluster, setting: str) -> None:
    code, said = run_tpc("config", "set", "broker", "all", setting, "--bootstrap", made[1].bootstrap)
    assert code == 0, said


def test_nodes_join_are_lost_come_back_and_leave_under_load(tmp_path, request, chance):
    """More partitions with --moved-partitions."""
    partitions = request.config.getoption("--moved-partitions")
    total = 3 * partitions
    with cluster(tmp_path, count=4, founders=3) as made:
        made.start(1, 2, 3)
        create_topic(made[1].bootstrap, "kept", LOADED, replicas=3)
        create_topic(made[1].bootstrap, "rest", partitions - LOADED, timeout_s=PATIENCE_S, replicas=3)
        with Load(made.bootstrap, "kept", LOADED) as load:
            load.wait_progress()
            made.start(4)
            wait_balanced(made, {1, 2, 3, 4}, total, "node 4 has its share")
            load.wait_progress()
            set_all(made, "replica.replace.delay.ms=1000")
            lost = chance.choice([2, 3])
            made.kill(lost)
            wait_balanced(made, {1, 2, 3, 4} - {lost}, total, f"node {lost} is replaced")
            load.wait_progress()
            made.start(lost)
            wait_balanced(made, {1, 2, 3, 4}, total, f"node {lost} gets replicas again")
            assert run_tpc("node", "drain", "4", "--bootstrap", made[1].bootstrap)[0] == 0
            wait_balanced(made, {1, 2, 3}, total, "node 4 has given all of its own away")
            made[4].stop()
            load.wait_progress()
        load.check(made.bootstrap)


def test_two_nodes_join_and_leave_again_under_load(tmp_path, request):
    """Of three; all replicas are even each time, and of what the producer sent nothing is lost, or there twice."""
    partitions = max(60, request.config.getoption("--moved-partitions"))
    total, deadline_s = 3 * partitions, max(120.0, float(partitions))
    with cluster(tmp_path, count=5, founders=3) as made:
        made.start(1, 2, 3)
        create_topic(made[1].bootstrap, "kept", LOADED, replicas=3)
        create_topic(made[1].bootstrap, "rest", partitions - LOADED, timeout_s=PATIENCE_S, replicas=3)
        with Load(made.bootstrap, "kept", LOADED) as load:
            load.wait_progress()
            made.start(4, 5)
            wait_balanced(made, {1, 2, 3, 4, 5}, total, "the new nodes have their share", deadline_s)
            load.wait_progress()
            for node in ("4", "5"):
                assert run_tpc("node", "drain", node, "--bootstrap", made[1].bootstrap)[0] == 0
            wait_balanced(made, {1, 2, 3}, total, "they have given all of their own away", deadline_s)
            made[4].stop()
            made[5].stop()
            load.wait_progress()
        load.check(made.bootstrap)
