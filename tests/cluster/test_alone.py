"""Partitions with one replica beside several nodes: they move, get more replicas, and leave nodes that drain."""

from __future__ import annotations

import json
from subprocess import CompletedProcess

import pytest
from confluent_kafka import Producer

from tests.cluster.test_moves import reassign, replicas
from tests.cluster.test_releases import update
from tests.support.broker_process import run_command
from tests.support.cluster_nodes import Cluster, cluster, cluster_told, create_topic, eventually, produce, run_tpc
from tests.support.replicated_load import Load, read_all
from tpc_broker.log.batch import walk_headers

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("levels", ["", "2-2"], ids=["with a group", "without a group"])
def test_what_is_on_one_node_alone_goes_to_others_under_load(tmp_path, levels):
    """To another node, back with two more, and off a node that drains: nothing is lost, nothing comes twice."""
    with cluster(tmp_path, count=3) as made:
        for node in made.nodes:
            node.overrides = {"replica.balance.enable": "false"}
        if levels:
            made[3].environment["TPC_TEST_FEATURE_LEVELS"] = levels
        made.start()
        create_topic(made[1].bootstrap, "alone", 6, replicas=1)
        produce(made[1].bootstrap, "alone", [str(number // 6) for number in range(60)], 6)
        if levels:  # the others go on, with what they have open
            made[3].stop()
            del made[3].environment["TPC_TEST_FEATURE_LEVELS"]
            made.start(3)
            assert update(made, 3) is None
        before = eventually(lambda: replicas(made, "alone"), "it is described")
        assert sorted(nodes[0] for nodes in before.values()) == [1, 1, 2, 2, 3, 3]
        with Load(made.bootstrap, "alone", 6) as load:
            load.wait_progress()
            target = {index: [nodes[0] % 3 + 1] for index, nodes in before.items()}
            assert reassign(made, "alone", target) == [0] * 6
            eventually(lambda: replicas(made, "alone") == target, "each is on another node")
            load.wait_progress()
            more = {**target, 0: [1, 2, 3]}
            assert reassign(made, "alone", {0: [1, 2, 3]}) == [0]
            eventually(lambda: replicas(made, "alone") == more, "one has three replicas")
            code, said = run_tpc("node", "drain", "3", "--bootstrap", made[1].bootstrap)
            assert code == 0, said
            eventually(
                lambda: all(3 not in nodes or index == 0 for index, nodes in replicas(made, "alone").items()),
                "nothing is on node 3 alone", 120,
            )  # fmt: skip
            load.wait_progress()
            load.stop()
        for index in range(6):
            found = read_all(made[1].bootstrap, "alone", index)
            assert [value for _offset, value in found] == [*range(10), *range(load.sent[index])]
        eventually(lambda: cluster_told(made[1].bootstrap)["moves"] == [], "no move is left")


def damage(made: Cluster, node: int, label: str, count: int) -> None:
    """Cut the last records of a partition's only segment off; its node is stopped."""
    path = made[node].data_folder / "topics" / label / f"{0:020d}.log"
    data = path.read_bytes()
    starts = [at for _header, at in walk_headers(data)]
    path.write_bytes(data[: starts[-count]])


def send(made: Cluster, index: int, *values: int) -> bool:
    """Records to `alone`, each in a batch of its own; whether all were acknowledged."""
    failed: list[object] = []
    producer = Producer({
        "bootstrap.servers": made[1].bootstrap, "enable.idempotence": True, "linger.ms": 0, "batch.num.messages": 1,
        "log_level": 0,
    })  # fmt: skip
    for value in values:
        producer.produce(
            "alone", str(value), partition=index, on_delivery=lambda error, _m: error and failed.append(error)
        )
    return producer.flush(120) == 0 and not failed


def repair(made: Cluster, node: int, *arguments: str) -> CompletedProcess[str]:
    return run_command("repair", "--data", str(made[node].data_folder), *arguments)


def test_what_is_damaged_on_one_node_alone_is_repaired_there(tmp_path):
    """With what is left, also of one that has moved there; and both move on afterwards."""
    with cluster(tmp_path, count=3) as made:
        for node in made.nodes:
            node.overrides = {"replica.balance.enable": "false"}
        made.start()
        create_topic(made[1].bootstrap, "alone", 3, replicas=1)
        before = eventually(lambda: replicas(made, "alone"), "it is described")
        (there,) = [index for index, nodes in before.items() if nodes == [3]]
        (come,) = [index for index, nodes in before.items() if nodes == [2]]
        for index in (there, come):
            assert send(made, index, *range(20))
        assert reassign(made, "alone", {come: [3]}) == [0]
        eventually(lambda: replicas(made, "alone")[come] == [3], "one has moved there")
        made[3].stop()
        labels = [f"alone-{index}" for index in sorted((there, come))]
        for label in labels:
            damage(made, 3, label, 5)
        made.start(3)
        made[3].stop()
        listed = {one["partition"] for one in json.loads(repair(made, 3, "--json").stdout)["offline"]}
        assert listed >= set(labels)
        for label in labels:
            done = repair(made, 3, "--partition", label, "--accept-loss")
            assert f"{label} is back with records [0, 20)" in done.stdout, done
            assert "lost: offsets [15, 20)" in done.stdout
        made.start(3)
        for index in (there, come):
            eventually(lambda index=index: send(made, index, 20), "it is written again")
        assert reassign(made, "alone", {there: [1], come: [2]}) == [0, 0]
        moved = {**before, there: [1], come: [2]}
        eventually(lambda: replicas(made, "alone") == moved, "both move on")
        for index in (there, come):
            found = read_all(made[1].bootstrap, "alone", index)
            assert [number for _offset, number in found] == [*range(15), 20]
