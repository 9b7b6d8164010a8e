"""Three nodes of a peer, and topics with a replica on each."""

from __future__ import annotations

import secrets
import time
import uuid
from typing import TYPE_CHECKING, Any, ClassVar, Final

from confluent_kafka import KafkaException

from tpc_broker.bench.hosts import Hosts, why_no_namespaces
from tpc_broker.bench.peers.kafka import KafkaPeer
from tpc_broker.bench.peers.kafka_like import Address, KafkaLikePeer
from tpc_broker.bench.peers.nats import NatsPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.server import Server, ServerFailed, Servers, free_ports

if TYPE_CHECKING:
    from pathlib import Path

NODES: Final = 3
_CLUSTER_PORT: Final = 9192
_CLIENT_PORT: Final = 9092
NODES_MAX: Final = 5
"""Where nodes join."""
_NATS_READY_S: Final = 60.0


def _folders(folder: Path) -> list[Path]:
    return [_folder(folder, number) for number in range(1, NODES + 1)]


def _folder(folder: Path, number: int) -> Path:
    made = folder / f"node{number}"
    made.mkdir(exist_ok=True)
    return made


class KafkaLikeCluster(KafkaLikePeer):
    """Nodes by the port at which clients reach them."""

    replicas: ClassVar[int] = NODES

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__(folder, mode)
        self.nodes: dict[int, Server] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{port}" for port, node in self.nodes.items())

    def _start_all(self) -> None:
        self.server = Servers(list(self.nodes.values()))
        for node in self.nodes.values():
            node.launch()
        for port, node in self.nodes.items():
            node.wait_listening([port], deadline_s=120)
        self.wait_for_brokers(NODES)

    def in_sync(self, topic: str) -> int:
        """Of all replicas of a topic, how many are; 0 while nobody can be asked."""
        try:
            metadata = self._admin().list_topics(topic, timeout=30)
        except KafkaException:
            return 0
        return sum(len(one.isrs) for one in metadata.topics[topic].partitions.values())

    def begin_kill(self, topic: str) -> Address:
        """SIGKILL to the node that leads most partitions of a topic; where it was. Waits for nothing."""
        led = list(self.leaders(topic).values())
        host, port = max(sorted(set(led)), key=led.count)
        self.nodes[port].begin_kill()
        return host, port


class TpcClusterPeer(KafkaLikeCluster, TpcPeer):
    """`durable` answers when a record is on the disks of a majority."""

    name: ClassVar[str] = "tpc-cluster"
    shares_cpus: ClassVar[bool] = True

    def start(self) -> None:
        self._first_port = free_ports(2 * NODES_MAX)
        for number in range(1, NODES + 1):
            self._add(number)
        self._start_all()

    def _add(self, number: int) -> Server:
        """A node that is to be started; the first three are founders."""
        port, cluster_port = (self._first_port + place + number - 1 for place in (0, NODES_MAX))
        founders = range(self._first_port + NODES_MAX, self._first_port + NODES_MAX + NODES)
        seeds = ",".join(f"127.0.0.1:{one}" for one in founders)
        more = ["--cluster", f"127.0.0.1:{cluster_port}", "--seeds", seeds, "--node-id", str(number)]
        self.nodes[port] = self.node(_folder(self.folder, number), port, *more)
        return self.nodes[port]

    def join(self, count: int) -> set[int]:
        """Start so many more, at the same time, until they answer; their numbers."""
        numbers = range(len(self.nodes) + 1, len(self.nodes) + 1 + count)
        assert numbers[-1] <= NODES_MAX
        made = {number: self._add(number) for number in numbers}
        self.server = Servers(list(self.nodes.values()))
        for node in made.values():
            node.launch()
        for number, node in made.items():
            node.wait_listening([self._first_port + number - 1], deadline_s=120)
        return set(numbers)

    def leave(self, number: int) -> None:
        """SIGTERM to a node, and wait until it has ended."""
        self.nodes.pop(self._first_port + number - 1).stop()

    def remark(self) -> str:
        return ""


class TpcHostsPeer(TpcClusterPeer):
    """The same nodes on hosts of their own (network namespaces), so that they can be cut off; where there can be none,
    over loopback.
    """

    name: ClassVar[str] = "tpc-hosts"
    modes: ClassVar[dict[str, bool]] = {"durable": True}

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__(folder, mode)
        self.why_no_hosts = why_no_namespaces()
        self.hosts = Hosts(NODES)
        self._is_made = False

    def remark(self) -> str:
        return "" if self.why_no_hosts is None else f"no hosts to cut off: {self.why_no_hosts}"

    def start(self) -> None:
        if self.why_no_hosts is not None:
            super().start()
            return
        self._is_made = True
        self.hosts.make()
        secret = self.folder / "secret"
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
        seeds = ",".join(f"{self.hosts.cluster_address(number)}:{_CLUSTER_PORT}" for number in range(1, NODES + 1))
        for number, folder in enumerate(_folders(self.folder), 1):
            cluster = f"{self.hosts.cluster_address(number)}:{_CLUSTER_PORT}"
            more = ["--cluster", cluster, "--seeds", seeds, "--node-id", str(number), "--cluster-secret", str(secret)]
            host, prefix = self.hosts.client_address(number), self.hosts.prefix(number)
            port = _CLIENT_PORT + number  # nodes are told apart by it, though each is on a host of its own
            self.nodes[port] = self.node(folder, port, *more, host=host, prefix=prefix)
        self._start_all()

    def kill(self) -> None:
        super().kill()
        if self._is_made:
            self._is_made = False
            self.hosts.remove()


class KafkaClusterPeer(KafkaLikeCluster, KafkaPeer):
    """KRaft, each node broker and controller. `durable` flushes every message, and asks for two replicas in sync."""

    name: ClassVar[str] = "kafka-cluster"

    def start(self) -> None:
        first, cluster_id = free_ports(2 * NODES), uuid.uuid4().hex[:22]
        ports, controllers = range(first, first + NODES), range(first + NODES, first + 2 * NODES)
        voters = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(controllers, 1))
        in_sync = {"min.insync.replicas": "2"} if self.mode == "durable" else {}
        for number, (folder, port) in enumerate(zip(_folders(self.folder), ports, strict=True), 1):
            properties = self._common(folder, port, f"127.0.0.1:{controllers[number - 1]}") | in_sync
            properties |= {"node.id": str(number), "controller.quorum.voters": voters}
            self.format(folder / "server.properties", properties, cluster_id)
            self.nodes[port] = self.node(folder / "server.properties", folder / "kafka.log")
        self._start_all()


class NatsClusterPeer(NatsPeer):
    """One stream with three replicas; all connections go to its leader."""

    name: ClassVar[str] = "nats-cluster"
    replicas: ClassVar[int] = NODES
    answer_s: ClassVar[float] = 3.0

    def start(self) -> None:
        first = free_ports(2 * NODES)
        ports, routes = range(first, first + NODES), range(first + NODES, first + 2 * NODES)
        self._ports = {f"n{port}": port for port in ports}
        urls = ", ".join(f"nats-route://127.0.0.1:{route}" for route in routes)
        members = []
        for folder, port, route in zip(_folders(self.folder), ports, routes, strict=True):
            place = f'cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{urls}] }}'
            members.append(self.node(folder, port, f"server_name: n{port}\n{place}"))
        self.server = Servers(members)
        for member, port in zip(members, ports, strict=True):
            member.start([port])
        self._port = first

    def _make_stream(self, topic: str, stream: dict[str, Any]) -> None:
        """The servers have to find each other first."""
        give_up_at = time.monotonic() + _NATS_READY_S
        while True:
            try:
                self._ask(f"STREAM.CREATE.{topic}", stream)
                leader = self._ask(f"STREAM.INFO.{topic}", {})["cluster"].get("leader")
            except (RuntimeError, OSError) as error:
                reason = str(error)
            else:
                if leader:
                    self._port = self._ports[leader]
                    return
                reason = "the stream has no leader"
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"{self.label}: {reason}")
            time.sleep(0.2)
