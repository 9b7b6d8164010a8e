"""Nodes are started again with other numbers of cores under load: nothing is lost, nothing comes twice, what a core had
that is no more another one has, and new cores are used.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.support.cluster_nodes import Cluster, Node, admin, cluster, create_topic, eventually, run_tpc
from tests.support.replicated_load import Load
from tests.support.waiting import LOOK_S

pytestmark = pytest.mark.cluster

PARTITIONS = 2
TAKE_OVER = "recovering every journal first"


@pytest.fixture
def three(tmp_path):
    """Nodes 1 and 2 have one core each, node 3 has two. Nothing moves between nodes by itself."""
    with cluster(tmp_path, cores=2) as made:
        for node in made.nodes:
            node.cores_count = 2 if node.number == 3 else 1
            node.overrides = {"replica.balance.enable": "false"}
        made.start()
        yield made


def in_sync(made: Cluster, topic: str) -> list[dict[int, int]]:
    """Of each partition the core of each node that has a replica, all of them in sync."""
    found = admin(made.bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic].partitions
    assert found, topic
    for each in found.values():
        assert each.leader >= 0, each.id
        assert sorted(each.isrs) == sorted(each.replicas), each.isrs
    return [{broker // 1024: broker % 1024 for broker in found[index].replicas} for index in sorted(found)]


def links_wanted(node: Node) -> int:
    """Of its first core, to cores of other nodes."""
    return int(node.counters()[0]["replicas"]["links_wanted"])


def again(made: Cluster, number: int, cores: int) -> None:
    made[number].stop()
    made[number].cores_count = cores
    made.start(number)


def killed_in_the_take_over(made: Cluster, number: int, cores: int, chance: random.Random) -> None:
    made[number].kill()
    made[number].cores_count = cores
    begun = made[number].log_text().count(TAKE_OVER)
    made.launch(number)
    eventually(lambda: made[number].log_text().count(TAKE_OVER) > begun, "it recovers the journals of all cores")
    time.sleep(chance.random() * 0.5)
    made.kill(number)


def test_nodes_are_restarted_with_other_numbers_of_cores_under_load(three: Cluster, chance: random.Random):
    """More, and fewer twice: once by `kill -9`, and again in the midst of handing over."""
    create_topic(three.bootstrap, "t", PARTITIONS, replicas=3)
    create_topic(three.bootstrap, "alone", PARTITIONS, replicas=1)
    with Load(three.bootstrap, "t", PARTITIONS) as load, Load(three.bootstrap, "alone", PARTITIONS) as alone:
        load.wait_progress()
        placed = eventually(lambda: in_sync(three, "t"), "all are in sync")
        assert {places[3] for places in placed} == {0, 1}
        again(three, 1, 2)
        assert eventually(lambda: in_sync(three, "t"), "all are in sync") == placed, "what is there stays"
        code, said = run_tpc("partition", "move", "t-0", "--node", "1", "--core", "1", "--bootstrap", three.bootstrap)
        assert code == 0, said
        create_topic(three.bootstrap, "new", 3, replicas=3)
        found = eventually(lambda: in_sync(three, "new"), "they are made")
        assert 1 in {places[1] for places in found}, "a new core is used"
        killed_in_the_take_over(three, 3, 1, chance)
        three.start(3)
        eventually(lambda: in_sync(three, "t"), "all are in sync")
        again(three, 1, 1)
        for topic in ("t", "new"):
            found = eventually(lambda topic=topic: in_sync(three, topic), "all are in sync")
            assert all(set(places.values()) == {0} for places in found)
        eventually(lambda: all(links_wanted(node) == 2 for node in three.nodes), "nobody dials cores that are no more")
        load.wait_progress()
        alone.wait_progress()
    load.check(three.bootstrap)
    alone.check(three.bootstrap)
    for node in three.nodes:
        assert not [line for line in node.log_messages() if "Traceback" in line or "is offline" in line]
