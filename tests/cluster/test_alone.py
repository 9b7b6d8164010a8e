"""Partitions with one replica beside several nodes: they move, get more replicas, and leave nodes that drain."""

from __future__ import annotations

import pytest

from tests.cluster.test_moves import reassign, replicas
from tests.cluster.test_releases import update
from tests.support.cluster_nodes import cluster, cluster_told, create_topic, eventually, produce, run_tpc
from tests.support.replicated_load import Load, read_all


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
            eventually(lambda: replicas(made, "alone") == target, "each is on another node", 120)
            load.wait_progress()
            more = {**target, 0: [1, 2, 3]}
            assert reassign(made, "alone", {0: [1, 2, 3]}) == [0]
            eventually(lambda: replicas(made, "alone") == more, "one has three replicas", 120)
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
        eventually(lambda: cluster_told(made[1].bootstrap)["moves"] == [], "no move is left", 120)
