"""Directories of a cluster's nodes at every feature level (tests/cluster/data, killed): they are started, nothing of
them is lost, and they go on by the rules of docs/formats.md.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.cluster.earlier_data import DATA, EVENTS, NODES, configure, expected_of
from tests.durability.earlier_data import ADDED, sealed_in
from tests.support.cluster_nodes import cluster, cluster_told, consume, create_topic, eventually, leaders, produce
from tpc_broker.feature_levels import SPOKEN

pytestmark = pytest.mark.cluster

LEVELS = sorted(DATA.glob("level-*.tar.xz"))


def unpack(archive: Path, folder: Path) -> dict:
    with tarfile.open(archive) as files:
        files.extractall(folder, filter="data")
    return {**ADDED, **json.loads((folder / "expected.json").read_text())}


@pytest.mark.parametrize("archive", LEVELS, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_nodes_of_every_feature_level(archive, tmp_path):
    expected = unpack(archive, tmp_path)
    identity = json.loads((tmp_path / "node1/data/cluster/node.json").read_text())
    with cluster(tmp_path, count=NODES) as made:
        configure(made).start()
        told = cluster_told(made.bootstrap)
        assert told["cluster_id"] == identity["founding"]["cluster"], "no other one was founded"
        assert {row["levels"][1] for row in told["nodes"]} == {SPOKEN.highest}
        assert expected_of(made) == expected
        made.kill(1)
        others = made[2].bootstrap
        eventually(lambda: 1024 not in leaders(others, "events").values(), "others lead")
        more = [f"more {number}" for number in range(10)]
        produce(others, "events", more, 2)
        create_topic(others, "new", 1, replicas=2)
        made.start(1)
        assert consume(made.bootstrap, "events", EVENTS + 10, "everything") == sorted([*expected["events"], *more])
        offline = [line for node in made.nodes for line in node.log_messages() if "is offline" in line]
        assert offline == []


def test_the_newest_directories_are_of_this_level(tmp_path):
    """Who changes the formats adds a level to docs/formats.md, and directories of it (`earlier_data.py`)."""
    unpack(LEVELS[-1], tmp_path)
    assert LEVELS[-1].name == f"level-{SPOKEN.highest}.tar.xz"
    for number in range(1, NODES + 1):
        identity = json.loads((tmp_path / f"node{number}/data/cluster/node.json").read_text())
        assert (identity["node"], identity["level"]) == (number, SPOKEN.highest)
        assert sealed_in(tmp_path / f"node{number}/data")
    records = (tmp_path / "node1/data/cluster/metadata.raft").read_bytes()
    wanted = {"topic_created", "topic_deleted", "topic_config_changed", "node_registered", "replicas_moving",
              "replicas_moved", "feature_level_changed", "cluster_created", "producer_ids_reserved",
              "resource_config_changed", "acls_changed", "scram_credential_changed",
              "client_quota_changed"}  # fmt: skip
    assert {name for name in wanted if name.encode() in records} == wanted
    assert list(tmp_path.glob("node*/data/cluster/lives0.json")), "a replica came back to its node"
