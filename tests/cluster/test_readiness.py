"""`/ready` of real nodes: after a start not before their replicas are in sync, and what a lost majority makes of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request

import pytest

from tests.support.cluster_nodes import Cluster, Node, cluster, create_topic, eventually, produce, run_tpc
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.cluster
PARTITIONS = 20


class WatchedNode(Node):
    @property
    def admin_port(self) -> int:
        return self.port + 35

    def command(self) -> list[str]:
        return [*super().command(), "--admin", str(self.admin_port)]

    def ready(self) -> tuple[bool, list[str]]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/ready", timeout=PATIENCE_S) as answer:
                told = json.loads(answer.read())
        except urllib.error.HTTPError as error:
            told = json.loads(error.read())
        except OSError as error:
            return False, [str(error)]
        return told["ready"], told["reasons"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Cluster, "_node", lambda self, number, port, cores: WatchedNode(
            self.folder / f"node{number}", number, port, self.seeds, cores)
    )  # fmt: skip
    with cluster(tmp_path, count=3) as started:
        started.start()
        yield started


def test_a_node_is_ready_when_its_replicas_are_in_sync_and_not_while_they_have_no_leader(made):
    create_topic(made.bootstrap, "kept", PARTITIONS, replicas=3)
    for node in made.nodes:
        eventually(lambda node=node: node.ready()[0], "all are ready")
    made[3].kill()
    produce(made[1].bootstrap, "kept", ["x" * 100] * 20_000, PARTITIONS)
    assert run_tpc("cluster", "health", "--bootstrap", made[1].bootstrap)[0] == 1
    made.launch(3)
    eventually(lambda: made[3].ready()[0], "it is ready")
    assert "not in sync" not in run_tpc("cluster", "health", "--bootstrap", made[3].bootstrap)[1], "it was too soon"
    assert run_tpc("cluster", "health", "--wait", "120", "--bootstrap", made.bootstrap) == (0, "healthy\n")
    made[2].kill()
    made[3].kill()
    said = f"core 0: {PARTITIONS} partitions have no leader for 10 s and longer (kept-0, kept-1, kept-10 and 17 more)"
    eventually(lambda: said in made[1].ready()[1], "its partitions have no leader")
    assert not made[1].ready()[0]
    for line in ("node 2 is dead", "no node leads the cluster's metadata", "partitions have no leader for 10 s"):
        eventually(lambda line=line: line in made[1].log_text(), line)
    lines = [line for line in made[1].log_text().splitlines() if "partitions have no leader for" in line]
    assert json.loads(lines[0])["level"] == "warning"
    made.start(2, 3)
    for node in made.nodes:
        eventually(lambda node=node: node.ready()[0], "all are ready again")
    eventually(lambda: "have a leader again" in made[1].log_text(), "the end is said, too")
