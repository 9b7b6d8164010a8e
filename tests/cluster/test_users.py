"""Users of a cluster: brought by a founder, known on every node, made at any of them, kept over a failover."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_process import run_here
from tests.support.cluster_nodes import Node, cluster, eventually, run_tpc
from tests.support.raw_client import RawConnection
from tpc_broker.engine.data_directory import PENDING_USERS_FILE

pytestmark = pytest.mark.cluster


def add(node: Node, name: str) -> str:
    secret = node.folder.parent / "password"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("pencil")
    arguments = ("user", "add", name, "--data", str(node.data_folder), "--password-file", str(secret))
    return run_here(*arguments).stderr


def users(node: Node) -> list[str]:
    with RawConnection("127.0.0.1", node.ports[0]) as connection:
        found = connection.ask("DescribeUserScramCredentials", 0, {"Users": None})
    return [one["User"] for one in found["Results"]]


def test_a_founder_brings_users_and_later_they_are_made_at_any_node(tmp_path: Path) -> None:
    with cluster(tmp_path) as nodes:
        assert add(nodes[2], "admin") == ""
        left_over = (nodes[2].data_folder / PENDING_USERS_FILE).read_bytes()
        nodes.start()
        for node in nodes.nodes:
            assert users(node) == ["admin"]
        assert not (nodes[2].data_folder / PENDING_USERS_FILE).exists()
        secret = ("--password-file", str(tmp_path / "password"))
        for node, name in zip(nodes.nodes, ("anna", "bert", "carla"), strict=True):
            code, said = run_tpc("user", "add", name, *secret, "--bootstrap", node.bootstrap)
            assert (code, said) == (0, f"Added user {name}.\n")
        everybody = ["admin", "anna", "bert", "carla"]
        nodes.kill(nodes.controller())
        left = [node for node in nodes.nodes if node.process.is_running]
        assert len(left) == 2
        for node in left:
            eventually(lambda node=node: users(node) == everybody, "each node has all of them")
        nodes.kill_all()
        said = add(nodes[2], "late")
        assert said.endswith("is a node's of a cluster, which has its users; start it, and see: tpc user add\n")
        (nodes[2].data_folder / PENDING_USERS_FILE).write_bytes(left_over)
        nodes.launch(2)
        assert nodes[2].wait_ended() != 0
        assert "users.pending: this node is in a cluster, which has its users; remove the file" in nodes[2].log_text()
