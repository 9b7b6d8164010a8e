"""Nodes of a cluster on hosts of their own, so that a test can cut what they say to each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.support.cluster_nodes import Cluster, Node
from tests.support.namespaces import H, Hosts, hosts

CLUSTER_PORT, CLIENT_PORT = 9192, 9092


class HostNode(Node):
    """A node on a host of its own."""

    def __init__(self, cluster: Cluster, number: int, on: Hosts) -> None:
        super().__init__(cluster.folder / f"node{number}", number, CLUSTER_PORT, [])
        self._on = on
        self.host = on.client_address(number)
        self._first_port = CLIENT_PORT
        self.prefix = on.prefix(number)
        self.secret = cluster.folder / "secret"

    def command(self) -> list[str]:
        found = super().command()
        found[found.index("--cluster") + 1] = f"{self._on.cluster_address(self.number)}:{CLUSTER_PORT}"
        addresses = [f"{self._on.cluster_address(each)}:{CLUSTER_PORT}" for each in range(1, self._on.count + 1)]
        found[found.index("--seeds") + 1] = ",".join(addresses)
        return found


@contextlib.contextmanager
def cluster_on_hosts(folder: Path, kind: type[H], count: int = 3) -> Iterator[tuple[Cluster, H]]:
    """Not started yet; killed at the end. `kind`: of the hosts."""
    (folder / "secret").write_text("0123456789abcdef0123456789abcdef")
    (folder / "secret").chmod(0o600)
    with hosts(count, kind) as on:
        made = Cluster(folder, count)
        made.nodes = [HostNode(made, number, on) for number in range(1, count + 1)]
        try:
            yield made, on
        finally:
            made.kill_all()
