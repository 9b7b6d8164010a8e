"""A node of a cluster takes a new binary and configuration in place, while it is written and read."""

from __future__ import annotations

import signal
import socket
import threading
import time

import pytest

from tests.support.cluster_nodes import Node, cluster, create_topic, eventually
from tests.support.replicated_load import Load

pytestmark = pytest.mark.cluster

PAUSE_S = 0.005


class Callers:
    """Connects to a node's port again and again."""

    def __init__(self, node: Node) -> None:
        self.count = 0
        self.failed: list[str] = []
        self._address = node.host, node.ports[0]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                socket.create_connection(self._address, 120).close()
                self.count += 1
            except OSError as error:
                self.failed.append(str(error))
            time.sleep(PAUSE_S)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_reload_of_a_node_refuses_no_connection_and_loses_nothing(tmp_path):
    with cluster(tmp_path, count=3) as made:
        for node in made.nodes:
            node.overrides["offsets.topic.num.partitions"] = "1"
        made.start()
        create_topic(made.bootstrap, "t", 3, replicas=3)
        node, callers = made[1], Callers(made[1])
        try:
            with Load(made.bootstrap, "t", 3) as load:
                load.wait_progress()
                node.process.send(signal.SIGUSR2)
                eventually(lambda: node.log_text().count("is ready: ") == 2, "it is up again")
                load.wait_progress()
        finally:
            callers.stop()
        assert callers.failed == []
        assert callers.count > 0
        load.check(made.bootstrap)
