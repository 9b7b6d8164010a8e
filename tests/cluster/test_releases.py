"""Nodes of different releases: who may join whom, and when the cluster writes what the newer ones know.

`TPC_TEST_FEATURE_LEVELS` makes a node one of a release of the past or the future.
"""

from __future__ import annotations

import re

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.durability.earlier_data import session_timeout, set_of_a_group
from tests.support.cluster_nodes import Cluster, cluster, cluster_told, create_topic, eventually
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection

pytestmark = pytest.mark.cluster


def features(made: Cluster, number: int, name: str = "tpc.version") -> tuple[int, tuple[int, int]]:
    """The level that a node says that its cluster has, and what it speaks itself."""
    host, port = made[number].bootstrap.split(":")
    with RawConnection(host, int(port)) as client:
        answer = client.ask("ApiVersions", 4, {"ClientSoftwareName": "test", "ClientSoftwareVersion": "1"})
    supported = {one["Name"]: one for one in answer["SupportedFeatures"]}[name]
    finalized = {one["Name"]: one["MaxVersionLevel"] for one in answer["FinalizedFeatures"]}
    assert answer["FinalizedFeaturesEpoch"] > 0
    return finalized.get(name, 0), (supported["MinVersion"], supported["MaxVersion"])


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


@pytest.mark.usefixtures("kafka_tools")
def test_the_group_protocol_comes_with_the_level_by_kafkas_name(tmp_path):
    """And what only the level's releases can read is kept from then on."""
    with cluster(tmp_path, count=3) as made:
        for node in made.nodes:
            node.environment["TPC_TEST_FEATURE_LEVELS"] = "2-3"
        made.start()
        for node in (made[1], made[2]):
            node.stop()
            del node.environment["TPC_TEST_FEATURE_LEVELS"]
            made.start(node.number)

        def tool(*words: str) -> tuple[int, str]:
            done = run_tool("features", "--bootstrap-server", made[1].bootstrap, *words)
            return done.returncode, done.stdout + done.stderr

        upgrade = ("upgrade", "--feature", "group.version=1")
        assert (features(made, 1, "group.version"), features(made, 1)[0]) == ((0, (0, 1)), 3)
        assert features(made, 3, "group.version") == (0, (0, 0)), "a release that has no such groups"
        code, said = tool(*upgrade)
        assert code != 0, said
        assert "Could not upgrade group.version to 1" in said, said
        with pytest.raises(KafkaException) as caught:
            set_of_a_group(made.bootstrap)
        assert caught.value.args[0].code() == KafkaError.UNSUPPORTED_VERSION
        made[3].stop()
        del made[3].environment["TPC_TEST_FEATURE_LEVELS"]
        made.start(3)
        code, said = tool(*upgrade)
        assert code == 0, said
        for node in made.nodes:
            eventually(lambda node=node: features(made, node.number, "group.version") == (1, (0, 1)), "all have it")
            assert features(made, node.number)[0] == 4
        _code, described = tool("describe")
        shown = r"group\.version\s+SupportedMinVersion: 0\s+SupportedMaxVersion: 1\s+FinalizedVersionLevel: 1"
        assert re.search(shown, described), described
        code, said = tool("downgrade", "--feature", "group.version=0")
        assert code != 0, said
        assert tool(*upgrade)[0] == 0, "it is there"
        set_of_a_group(made.bootstrap)
        assert session_timeout(made[3].bootstrap) == "50000"
        made[3].kill()
        made.start(3)
        assert session_timeout(made[3].bootstrap) == "50000"
