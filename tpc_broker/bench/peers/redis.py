"""Redis Streams: XADD to one stream, several connections."""

from __future__ import annotations

import shutil
import socket
import subprocess
from typing import ClassVar

from tpc_broker.bench.load import REDIS, Connection, Plan
from tpc_broker.bench.peers.peer import Peer, Shape
from tpc_broker.bench.server import PeerUnavailable, Server, free_ports


def command(*words: bytes) -> bytes:
    """One command as RESP2 has it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class RedisPeer(Peer):
    """Both modes keep the append-only file; `durable` syncs it before each answer, `default` every second.

    A request of n records is a pipeline of n XADD.
    """

    name: ClassVar[str] = "redis"
    modes: ClassVar[dict[str, bool]] = {"durable": True, "default": False}
    _port: int = 0

    def start(self) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            raise PeerUnavailable("redis-server is not installed (Debian: redis-server)")
        self._port = self._port or free_ports(1)
        sync = "always" if self.mode == "durable" else "everysec"
        options = {"port": str(self._port), "bind": "127.0.0.1", "dir": str(self.folder), "save": "", "daemonize": "no"}
        options |= {"appendonly": "yes", "appendfsync": sync}
        words = [word for key, value in options.items() for word in (f"--{key}", value)]
        self.server = Server([binary, *words], self.folder / "redis.log")
        self.server.start([self._port])

    def produce_plan(self, topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        value = b"x" * shape.value_bytes
        add = [
            command(b"XADD", f"{topic}-{partition}".encode(), b"*", b"d", value) * shape.records_per_request
            for partition in range(shape.partitions)
        ]
        return Plan(
            REDIS,
            [
                Connection("127.0.0.1", self._port, [add[index % shape.partitions]])
                for index in range(shape.connections)
            ],
            depth=shape.depth,
            answers_per_request=shape.records_per_request,
            rate=shape.rate,
            warm_up_s=seconds[0],
            measure_s=seconds[1],
        )

    def _ask(self, *words: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.sendall(command(*words))
            return connection.makefile("rb").readline()

    def stored_count(self, topic: str) -> int | None:
        """The sum over partitions of XLEN, as far as there are any."""
        total = partition = 0
        while count := int(self._ask(b"XLEN", f"{topic}-{partition}".encode())[1:]):
            total += count
            partition += 1
        return total

    def version(self) -> str:
        words = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
        return words.split("v=")[1].split()[0]
