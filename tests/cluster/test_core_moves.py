"""Replicas go from core to core of their nodes, leading and following, under load and under kill -9: nothing is lost,
nothing comes twice, and clients follow.
"""

from __future__ import annotations

import time

import pytest

from tests.support.cluster_nodes import Cluster, admin, cluster, consume, create_topic, eventually, leaders, run_tpc
from tests.support.replicated_load import Load
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.cli.partitions import alter, ongoing
from tpc_broker.client.cluster import Cluster as Client
from tpc_broker.client.cluster import ClusterSettings
from tpc_broker.client.errors import ClientError
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, BrokerId

pytestmark = pytest.mark.cluster

CORES = 2


def places(made: Cluster, topic: str, index: int = 0) -> dict[int, int]:
    """The core of each node that has a replica, all of them in sync."""
    found = admin(made.bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic].partitions.get(index)
    assert found is not None, f"whoever was asked has not heard of {topic} yet"
    assert sorted(found.isrs) == sorted(found.replicas), found.isrs
    return {broker // 1024: broker % 1024 for broker in found.replicas}


def leader_node(made: Cluster, topic: str, index: int = 0) -> int:
    leader = leaders(made.bootstrap, topic)[index]
    assert leader >= 0
    return leader // 1024


def move(made: Cluster, label: str, node: int, core: int) -> None:
    """To the end."""
    code, said = run_tpc("partition", "move", label, "--node", str(node), "--core", str(core),
                         "--bootstrap", made.bootstrap)  # fmt: skip
    assert (code, said) == (0, f"{label}: is on core {core}.\n")


def asked(made: Cluster) -> Client:
    return Client(ClusterSettings(made.bootstrap, retry_seconds=PATIENCE_S))


def under_way(made: Cluster) -> list[tuple[str, int, int, int]]:
    with asked(made) as client:
        return ongoing(client)


def is_begun(made: Cluster, topic: str, node: int, core: int) -> bool:
    try:
        with asked(made) as client:
            alter(client, {(topic, 0): BrokerId(node * 1024 + core)})
    except ClientError as error:
        raise AssertionError(str(error)) from error
    return True


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("nodes"), cores=CORES) as nodes:
        nodes.start()
        yield nodes


def test_replicas_change_cores_under_load_and_clients_follow(made):
    """Of a leader, a follower, a partition with one replica, and a group's coordinator."""
    create_topic(made.bootstrap, "t", 1, replicas=3)
    create_topic(made.bootstrap, "one", 1, replicas=1)
    with Load(made.bootstrap, "t", 1) as load, Load(made.bootstrap, "one", 1) as single:
        load.wait_progress()
        assert consume(made.bootstrap, "t", 50)
        before = eventually(lambda: places(made, "t"), "all are in sync")
        first = eventually(lambda: leader_node(made, "t"), "it is led")
        follower = next(node for node in before if node != first)
        for core in (1 - before[first], before[first]):
            move(made, "t-0", first, core)
            load.wait_progress()
        move(made, "t-0", follower, 1 - before[follower])
        ((only, core),) = eventually(lambda: places(made, "one"), "it is there").items()
        for each in (1 - core, core, 1 - core):
            move(made, "one-0", only, each)
            single.wait_progress()
        there = {**before, follower: 1 - before[follower]}
        eventually(lambda: places(made, "t") == there, "all are in sync on their cores")
        groups = eventually(lambda: leader_node(made, CONSUMER_OFFSETS_TOPIC), "it is led")
        core = eventually(lambda: places(made, CONSUMER_OFFSETS_TOPIC), "all are in sync")[groups]
        move(made, f"{CONSUMER_OFFSETS_TOPIC}-0", groups, 1 - core)
    code, said = run_tpc("partition", "move", "one-0", "--node", str(only % 3 + 1), "--core", "0",
                         "--bootstrap", made.bootstrap)  # fmt: skip
    assert (code, said.count("\n")) == (2, 1), said
    load.check(made.bootstrap)
    single.check(made.bootstrap)
    assert not [line for node in made.nodes for line in node.log_messages() if "Traceback" in line]


def test_kill_9_in_the_midst_of_moves_between_cores(made, chance):
    """Of the node, and of one of its cores; what was begun is finished by whoever is there. Then of all nodes."""
    create_topic(made.bootstrap, "killed", 1, replicas=3)
    create_topic(made.bootstrap, "alone", 1, replicas=1)
    with Load(made.bootstrap, "killed", 1) as load, Load(made.bootstrap, "alone", 1) as single:
        load.wait_progress()
        single.wait_progress()
        (node,) = eventually(lambda: places(made, "alone"), "it is there")
        for victim in ("node", chance.randrange(CORES)):
            for topic in ("killed", "alone"):
                has = eventually(lambda topic=topic: places(made, topic), "all are in sync")[node]
                eventually(lambda topic=topic, has=has: is_begun(made, topic, node, 1 - has), "it is begun")
            time.sleep(chance.random() * 0.2)
            if victim == "node":
                made.kill(node)
                made.start(node)
            else:
                process = made[node].core_process(victim)
                process.kill()
                made[node].wait_core_replaced(victim, process.pid)
            eventually(lambda: under_way(made) == [], "all moves end")
            load.wait_progress()
            single.wait_progress()
    made.kill_all()
    made.start()
    eventually(lambda: places(made, "killed"), "all are in sync")
    load.check(made.bootstrap)
    single.check(made.bootstrap)
    assert "is offline" not in "".join(one.log_text() for one in made.nodes)
