"""The bare C server (`native/bench/bare_durable.c`), alone or with two followers: the machine's limit, measured like a
peer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tpc_broker.bench.compiled import program
from tpc_broker.bench.kafka_requests import produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, Connection, Plan
from tpc_broker.bench.peers.peer import Peer, Shape
from tpc_broker.bench.server import Server, Servers, free_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVER_CPU = 0
_ANY_CPU = -1
_FOLLOWERS = 2


class BarePeer(Peer):
    """`durable` writes its journal; `twice` writes every byte once more behind, `direct` the same past the page cache;
    `in_place` writes large commits once, where they stay, and a journal block after each; `echo` answers at once.
    """

    name: ClassVar[str] = "bare"
    modes: ClassVar[dict[str, bool]] = {
        "durable": True, "twice": True, "direct": True, "in_place": True, "echo": False,
    }  # fmt: skip
    _port: int = 0

    def start(self) -> None:
        self._port = free_ports(1)
        mode = {"durable": "dsync", "echo": "none"}.get(self.mode, self.mode)
        journal = str(self.folder / "journal")
        arguments = [str(program("bare_durable")), str(self._port), journal, mode, str(_SERVER_CPU)]
        self.server = Server(arguments, self.folder / "bare.log")
        self.server.start([self._port])

    def produce_plan(self, topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        batch = record_batch(shape.records_per_request, shape.value_bytes)
        requests = [produce_request(topic, partition, batch) for partition in range(shape.partitions)]
        connections = [Connection("127.0.0.1", self._port, requests)] * shape.connections
        return Plan(
            KAFKA_PRODUCE, connections, depth=shape.depth, rate=shape.rate, warm_up_s=seconds[0], measure_s=seconds[1]
        )

    def stored_count(self, topic: str) -> int | None:
        del topic
        return None

    def version(self) -> str:
        return "of this source tree"


class BareClusterPeer(BarePeer):
    """A leader and two followers, each with a journal: answered when it is durable here and in one follower."""

    name: ClassVar[str] = "bare-cluster"
    modes: ClassVar[dict[str, bool]] = {"durable": True}

    def start(self) -> None:
        self._port = free_ports(1 + _FOLLOWERS)
        ports = list(range(self._port, self._port + 1 + _FOLLOWERS))
        members = [self._member(ports[0], "dsync", ports[1:]), *(self._member(port, "follower") for port in ports[1:])]
        self.server = Servers(members)
        for member, port in reversed(list(zip(members, ports, strict=True))):
            member.start([port])  # the leader last: it connects at once

    def _member(self, port: int, mode: str, followers: Sequence[int] = ()) -> Server:
        place = [str(port), str(self.folder / f"journal-{port}"), mode, str(_ANY_CPU)]
        return Server([program("bare_durable"), *place, *map(str, followers)], self.folder / f"bare-{port}.log")
