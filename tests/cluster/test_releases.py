"""Nodes of different releases: who may join whom, and when the cluster writes what the newer ones know.

`TPC_TEST_FEATURE_LEVELS` makes a node one of a release of the past or the future.
"""

from __future__ import annotations

import re

import pytest

from tests.support.cluster_nodes import Cluster, cluster, cluster_told, create_topic, eventually
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection

pytestmark = pytest.mark.cluster


def features(made: Cluster, number: int) -> tuple[int, tuple[int, int]]:
    """The level that a node says that its cluster has, and what it speaks itself."""
    host, port = made[number].bootstrap.split(":")
    with RawConnection(host, int(port)) as client:
        answer = client.ask("ApiVersions", 3, {"ClientSoftwareName": "test", "ClientSoftwareVersion": "1"})
    supported = {one["Name"]: one for one in answer["SupportedFeatures"]}["tpc.version"]
    finalized = {one["Name"]: one for one in answer["FinalizedFeatures"]}["tpc.version"]
    assert answer["FinalizedFeaturesEpoch"] > 0
    return finalized["MaxVersionLevel"], (supported["MinVersion"], supported["MaxVersion"])


def update(made: Cluster, level: int) -> str | None:
    """What is said where it is refused."""
    host, port = made[2].bootstrap.split(":")
    with RawConnection(host, int(port)) as client:
        asked = {"Feature": "tpc.version", "MaxVersionLevel": level, "UpgradeType": 1}
        answer = client.ask("UpdateFeatures", 2, {"timeoutMs": 10_000, "FeatureUpdates": [asked]})
    assert bool(answer["ErrorCode"]) == bool(answer["ErrorMessage"])
    return answer["ErrorMessage"]


@pytest.mark.usefixtures("kafka_tools")
def test_a_cluster_is_upgraded_node_by_node(tmp_path):
    with cluster(tmp_path, count=4, founders=3) as made:
        for node, levels in zip(made.nodes, ("2-3", "2-3", "2-2", "3-4"), strict=True):
            node.environment["TPC_TEST_FEATURE_LEVELS"] = levels
        made.start(1, 2, 3)
        assert features(made, 1) == (2, (2, 3)), "founded at what all founders speak"
        made.launch(4)
        assert made[4].wait_ended() == 2
        refused = "node 4 (release 0.1.0) speaks feature levels 3 to 4, and cluster "
        assert refused in made[4].log_text(), "a newer one joins only what it speaks"
        said = update(made, 3)
        assert said == "tpc.version 3 is not spoken by node 3 (release 0.1.0), which speaks level 2."
        made[3].stop()
        made[3].environment["TPC_TEST_FEATURE_LEVELS"] = "2-3"
        made.start(3)
        assert features(made, 3) == (2, (2, 3)), "the last upgraded node raises nothing"
        done = run_tool("features", "--bootstrap-server", made[1].bootstrap, "upgrade", "--feature", "tpc.version=3")
        assert done.returncode == 0, done.stdout + done.stderr
        for node in made.nodes[:3]:
            eventually(lambda node=node: features(made, node.number)[0] == 3, "all nodes are there")
        described = run_tool("features", "--bootstrap-server", made[3].bootstrap, "describe").stdout
        shown = r"tpc\.version\s+SupportedMinVersion: 2\s+SupportedMaxVersion: 3\s+FinalizedVersionLevel: 3"
        assert re.search(shown, described), described
        assert "does not go back from 3 to 2" in (update(made, 2) or "")
        create_topic(made[1].bootstrap, "after")
        made.start(4)
        eventually(
            lambda: {row["node"] for row in cluster_told(made[1].bootstrap)["nodes"]} == {1, 2, 3, 4},
            "and now it joins",
        )
        made[3].stop()
        made[3].environment["TPC_TEST_FEATURE_LEVELS"] = "2-2"
        made.launch(3)
        assert made[3].wait_ended() == 2, "an earlier release says so before it reads anything"
        assert "is of a cluster at feature level 3, and this release speaks level 2" in made[3].log_text()
