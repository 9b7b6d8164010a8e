"""NATS JetStream: publishing with acknowledgements into one file stream with a subject per partition."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, ClassVar, Final

from tpc_broker.bench.compiled import cache_folder
from tpc_broker.bench.load import NATS, Connection, Plan
from tpc_broker.bench.peers.peer import Peer, Shape
from tpc_broker.bench.server import PeerUnavailable, Server, free_ports

_VERSION: Final = "v2.15.2"
_CONNECT: Final = b'CONNECT {"verbose":false,"pedantic":false,"tls_required":false,"headers":true}\r\n'


def nats_server() -> Path:
    """The server's binary: the one on the path, else built once by Go into the user's cache."""
    found = shutil.which("nats-server")
    if found:
        return Path(found)
    binary = cache_folder() / "nats" / "nats-server"
    if binary.exists():
        return binary
    if shutil.which("go") is None:
        raise PeerUnavailable("there is neither nats-server nor Go to build it")
    environment = {**os.environ, "GOBIN": str(binary.parent)}
    package = f"github.com/nats-io/nats-server/v2@{_VERSION}"
    done = subprocess.run(["go", "install", package], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerUnavailable(f"go install {package}: {done.stderr[-500:]}")
    return binary


class NatsPeer(Peer):
    """`durable` is sync_interval always; `default` syncs every two minutes. A request of n records is n messages."""

    name: ClassVar[str] = "nats"
    modes: ClassVar[dict[str, bool]] = {"durable": True, "default": False}
    replicas: ClassVar[int] = 1
    answer_s: ClassVar[float] = 30.0
    """JetStream says nothing while it has no leader."""
    _port: int = 0

    def start(self) -> None:
        self._port = self._port or free_ports(1)
        self.server = self.node(self.folder, self._port)
        self.server.start([self._port])

    def node(self, folder: Path, port: int, more: str = "") -> Server:
        """A server that is to listen there; `more` settings, a line each."""
        binary = nats_server()
        sync = "sync_interval: always" if self.mode == "durable" else ""
        settings = folder / "nats.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/data"\n {sync}\n'
            f" max_memory_store: 64MB, max_file_store: 64GB }}\n{more}\n"
        )
        return Server([binary, "-c", settings], folder / "nats.log")

    def _ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        """One request to JetStream's API."""
        body = json.dumps(request).encode()
        words = f"SUB _R 1\r\nPUB $JS.API.{subject} _R {len(body)}\r\n".encode()
        with socket.create_connection(("127.0.0.1", self._port), timeout=self.answer_s) as connection:
            connection.sendall(_CONNECT + words + body + b"\r\n")
            lines = connection.makefile("rb")
            while line := lines.readline():
                if line.startswith(b"MSG"):
                    answer: dict[str, Any] = json.loads(lines.read(int(line.split()[-1])))
                    if "error" in answer:
                        raise RuntimeError(f"{subject}: {answer['error']}")
                    return answer
        raise ConnectionError(f"NATS gave no answer to {subject}")

    def _make_stream(self, topic: str, stream: dict[str, Any]) -> None:
        """`_port` is that of its leader afterwards."""
        self._ask(f"STREAM.CREATE.{topic}", stream)

    def produce_plan(self, topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        stream = {"name": topic, "subjects": [f"{topic}.*"], "storage": "file", "num_replicas": self.replicas}
        self._make_stream(topic, stream)
        value = b"x" * shape.value_bytes
        connections = []
        for index in range(shape.connections):
            inbox = f"_I{index}"
            head = f"PUB {topic}.{index % shape.partitions} {inbox} {len(value)}\r\n".encode()
            request = (head + value + b"\r\n") * shape.records_per_request
            preamble = _CONNECT + f"SUB {inbox} 1\r\n".encode()
            connections.append(Connection("127.0.0.1", self._port, [request], preamble))
        return Plan(
            NATS, connections, depth=shape.depth, answers_per_request=shape.records_per_request, rate=shape.rate,
            warm_up_s=seconds[0], measure_s=seconds[1],
        )  # fmt: skip

    def stored_count(self, topic: str) -> int | None:
        return int(self._ask(f"STREAM.INFO.{topic}", {})["state"]["messages"])

    def version(self) -> str:
        words = subprocess.run([nats_server(), "--version"], capture_output=True, text=True, check=True).stdout
        return words.split()[-1]
