"""Replicas put on nodes, leaders elected, sizes and the feature level, by `tpc` alone, on the shared cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.shared_servers import SharedCluster
from tests.support.waiting import eventually
from tpc_broker.cli import connection
from tpc_broker.cli.main import main
from tpc_broker.feature_levels import SPOKEN


class Tpc:
    def __init__(self, cluster: SharedCluster) -> None:
        self._cluster = cluster

    def run(self, *arguments: str, code: int = 0) -> str:
        """Standard output; of a command that fails, its one line."""
        done = CliRunner().invoke(main, [*arguments, "--bootstrap", self._cluster.bootstrap], catch_exceptions=False)
        assert done.exit_code == code, (arguments, done.exit_code, done.stdout, done.stderr)
        return done.stderr.strip() if code else done.stdout

    def told(self, *arguments: str) -> object:
        return json.loads(self.run(*arguments, "--json"))

    def row(self, topic: str, index: int = 0) -> dict[str, Any]:
        rows = self.told("partition", "list", topic)
        assert isinstance(rows, list)
        return rows[index]

    def nodes_of(self, topic: str) -> list[int]:
        replicas = self.row(topic)["replicas"]
        assert isinstance(replicas, Sequence)
        return [broker // 1024 for broker in replicas]


@pytest.fixture
def tpc(shared_cluster: SharedCluster, monkeypatch: pytest.MonkeyPatch, tmp_path) -> Tpc:
    connection.leave_interrupts_alone()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return Tpc(shared_cluster)


def made(tpc: Tpc, topic: str, replicas: int) -> str:
    tpc.run("topic", "create", topic, "--partitions", "1", "--replication-factor", str(replicas))
    eventually(lambda: tpc.row(topic)["leader"] is not None, f"{topic} has a leader")
    return topic


def test_a_partition_goes_to_the_nodes_that_are_named_with_its_records(tpc: Tpc, tmp_path) -> None:
    topic = made(tpc, "placed", 1)
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    tpc.run("produce", topic, str(lines))
    (had,) = tpc.nodes_of(topic)
    nodes = [node for node in (1, 2, 3) if node != had]
    said = tpc.run("partition", "place", f"{topic}-0", "--nodes", ",".join(map(str, nodes)))
    assert said == f"{topic}-0: is on nodes {nodes[0]}, {nodes[1]}.\n"
    assert tpc.nodes_of(topic) == nodes
    assert tpc.run("consume", topic, "--from", "earliest", "--count", "2") == "one\ntwo\n"
    tpc.run("topic", "delete", topic)


def test_a_node_that_has_a_replica_keeps_it_on_its_core(tpc: Tpc) -> None:
    topic = made(tpc, "kept-cores", 3)
    before = tpc.row(topic)["replicas"]
    assert isinstance(before, list)
    nodes = ",".join(str(broker // 1024) for broker in reversed(before))
    tpc.run("partition", "place", f"{topic}-0", "--nodes", nodes)
    assert tpc.row(topic)["replicas"] == before[::-1]
    tpc.run("topic", "delete", topic)


def test_the_preferred_replica_leads_when_it_is_asked_for(tpc: Tpc) -> None:
    topic = made(tpc, "elected", 3)

    def is_elected() -> bool:
        """Unless it came to lead by itself meanwhile, as when the machine paused."""
        row = tpc.row(topic)
        leader, replicas = row["leader"], row["replicas"]
        assert isinstance(replicas, list)
        assert isinstance(leader, int)
        others = [broker // 1024 for broker in replicas if broker != leader]
        nodes = [*others, leader // 1024]
        tpc.run("partition", "place", f"{topic}-0", "--nodes", ",".join(map(str, nodes)))
        eventually(lambda: len(tpc.row(topic)["in_sync"]) == 3, "all are in sync")
        return tpc.run("partition", "elect", f"{topic}-0") == f"{topic}-0: the preferred replica leads it.\n"

    def leads() -> bool:
        row = tpc.row(topic)
        assert isinstance(row["replicas"], list)
        return row["leader"] == row["replicas"][0]

    eventually(is_elected, "the preferred replica is elected")
    eventually(leads, "it leads")
    as_before = {"elected": [], "as_before": [f"{topic}-0"], "refused": []}
    eventually(lambda: tpc.told("partition", "elect", f"{topic}-0") == as_before, "nothing is left to do")
    tpc.run("topic", "delete", topic)


def test_sizes_are_those_of_every_replica(tpc: Tpc, tmp_path) -> None:
    topic = made(tpc, "sized", 3)
    lines = tmp_path / "lines"
    lines.write_text("x" * 5000 + "\n")
    tpc.run("produce", topic, str(lines))

    def sizes() -> dict[int, int]:
        rows = tpc.told("partition", "sizes", topic)
        assert isinstance(rows, list)
        assert all(row["free_bytes"] > 0 and row["folder"] for row in rows)
        return {row["broker"] // 1024: row["bytes"] for row in rows}

    eventually(lambda: sorted(sizes()) == [1, 2, 3] and min(sizes().values()) > 0, "all replicas have the record")
    tpc.run("topic", "delete", topic)


def test_the_level_is_shown_and_does_not_go_back(tpc: Tpc) -> None:
    assert tpc.told("cluster", "level") == {
        "feature": "tpc.version", "level": SPOKEN.highest, "first": SPOKEN.lowest, "last": SPOKEN.highest
    }  # fmt: skip
    assert tpc.run("cluster", "level", "--raise", str(SPOKEN.highest)) == f"tpc.version is {SPOKEN.highest}.\n"
    assert "tpc.version" in tpc.run("cluster", "level", "--raise", str(SPOKEN.lowest), code=5)
    assert "tpc.version" in tpc.run("cluster", "level", "--raise", str(SPOKEN.highest + 1), code=5)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["place", "nothing-0", "--nodes", "1"], 4, "there is no topic 'nothing'"),
        (["place", "nothing", "--nodes", "1"], 2, "'nothing' is no partition"),
        (["place", "a-0", "--nodes", "1,x"], 2, "--nodes 1,x: expected nodes' ids"),
        (["place", "a-0", "--nodes", "1,1"], 2, "a node has one replica"),
        (["elect"], 2, "name the partitions"),
        (["elect", "a-0", "--all"], 2, "name the partitions"),
        (["elect", "nothing-0"], 4, "there is no topic 'nothing'"),
        (["sizes", "nothing"], 4, "there is no topic 'nothing'"),
    ],
)
def test_what_is_wrong_is_named(tpc: Tpc, arguments: list[str], code: int, said: str) -> None:
    assert said in tpc.run("partition", *arguments, code=code)


def test_a_node_or_partition_that_is_not_there_is_named_with_those_that_are(tpc: Tpc) -> None:
    topic = made(tpc, "refused-places", 1)
    assert "there is no node 7 that is up; there are 1, 2, 3" in tpc.run(
        "partition", "place", f"{topic}-0", "--nodes", "7", code=4
    )
    assert f"{topic} has no partition 5; it has 1" in tpc.run(
        "partition", "place", f"{topic}-5", "--nodes", "1", code=4
    )
    tpc.run("topic", "delete", topic)
