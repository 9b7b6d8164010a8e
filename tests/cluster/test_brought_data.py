"""A broker that was alone becomes a node, with its data, which gets replicas on others."""

from __future__ import annotations

import pytest

from tests.cluster.test_moves import reassign, replicas
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import cluster, cluster_told, consume, create_topic, eventually, leaders, produce

pytestmark = pytest.mark.cluster

PARTITIONS = 2


def test_what_one_node_brings_survives_it(tmp_path):
    """Records of several epochs and of two cores, and committed offsets, come to be on three nodes, which have one core
    each; then the first one is lost.
    """
    with cluster(tmp_path, count=3) as made:
        alone = TpcBroker(made[1].data_folder.parent, 2)
        alone.start()
        create_topic(alone.bootstrap, "kept", PARTITIONS)
        create_topic(alone.bootstrap, "empty")
        first = [f"first {number}" for number in range(100)]
        produce(alone.bootstrap, "kept", first, PARTITIONS)
        assert consume(alone.bootstrap, "kept", 100) == sorted(first)
        alone.stop()
        alone.start()
        second = [f"second {number}" for number in range(50)]
        produce(alone.bootstrap, "kept", second, PARTITIONS)
        alone.stop()
        made.start(1, 2, 3)
        third = [f"third {number}" for number in range(50)]
        produce(made[1].bootstrap, "kept", third, PARTITIONS)

        def has_internal_replicas() -> bool:
            assert cluster_told(made[1].bootstrap)["moves"] == []
            return all(len(nodes) == 3 for nodes in replicas(made, "__consumer_offsets").values())

        eventually(has_internal_replicas, "offsets are on three nodes")
        everywhere = {index: [1, 2, 3] for index in range(PARTITIONS)}
        assert reassign(made, "kept", everywhere) == [0] * PARTITIONS
        assert reassign(made, "empty", {0: [3, 2]}) == [0]
        eventually(lambda: replicas(made, "kept") == everywhere, "and so are the records")
        eventually(lambda: replicas(made, "empty") == {0: [3, 2]}, "also those of a topic without any")
        made.kill(1)
        bootstrap = made[2].bootstrap
        eventually(lambda: set(leaders(bootstrap, "kept").values()) <= {2048, 3072}, "others lead")
        assert consume(bootstrap, "kept", 100) == sorted([*second, *third]), "the group goes on"
        assert consume(bootstrap, "kept", 200, "another") == sorted([*first, *second, *third])
