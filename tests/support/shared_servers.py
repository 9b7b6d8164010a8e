"""One broker and one cluster of three nodes in each process of the tests, for all tests that only use them.

A test has topics and groups of its own names there, and leaves the servers as they were: after each it is looked
whether all processes are those that ran before it, are ready, and have logged no failure of their own. If not, that
test fails, and the next one gets new servers. Who restarts, kills, fills or configures a server has one of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import Cluster, Node, brokers, cluster_told, eventually
from tests.support.kafka_peer import KafkaPeer, PeerUnavailable, kafka_jars
from tests.support.ports import free_port_range
from tests.support.server_process import Broker
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import Select, Steering
from tpc_broker.options import LOOPBACK

CORES: Final = 2
NODES: Final = 3
FAILURES: Final = ("Traceback (most recent call last)", "AssertionError")
"""In a log: our own bugs. What clients do wrong, and what the host lacks, has lines without these."""
A = TypeVar("A")
T = TypeVar("T")


class SharedBroker(TpcBroker):
    """Two cores, metrics at `admin_port`, and a second listener, TWO, at `other_port`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, cores_count=int(os.environ.get("TPC_TEST_CORES", CORES)))
        self.admin_port = free_port_range(1 + self.cores_count)
        self.other_port = self.admin_port + 1
        self.more_options = ["--admin", str(self.admin_port), f"--listen=TWO://{LOOPBACK}:{self.other_port}"]


_made: WeakKeyDictionary[Any, dict[Callable[..., Any], Any]] = WeakKeyDictionary()


def once(server: Broker | SharedCluster, make: Callable[[A], T], argument: A) -> T:
    """What a module's tests want to find at a shared server: made for the first of them, and again at a new server."""
    found = _made.setdefault(server, {})
    if make not in found:
        found[make] = make(argument)
    result: T = found[make]
    return result


class SharedNode(Node):
    """A broker with an id a core at its first listener; where the kernel takes programs, one at `shared` for all."""

    datagrams: tuple[str, int]
    admin_port: int
    has_shared_listener: bool

    @property
    def shared(self) -> tuple[str, int]:
        return self.host, self.port + 20

    def command(self) -> list[str]:
        one = [
            f"--listen=ONE://{self.host}:{self.port + 20}", "--override=listener.ONE.mode=shared",
            "--override=ebpf.loader=libbpf",
        ]  # fmt: skip
        more = ["--admin", str(self.admin_port), "--datagram", "{}:{}".format(*self.datagrams)]
        more.append("--override=auto.leader.rebalance.enable=false")
        return [*super().command(), *more, *(one if self.has_shared_listener else [])]


class SharedCluster(Cluster):
    """Leaders go back to who is preferred only when somebody asks."""

    def __init__(self, folder: Path, cores: int = CORES) -> None:
        self.why_no_shared_listener = _why_no_program()
        super().__init__(folder, NODES, cores)

    def _node(self, number: int, port: int, cores: int) -> SharedNode:
        made = SharedNode(self.folder / f"node{number}", number, port, self.seeds, cores)
        made.datagrams, made.admin_port = (made.host, port + 30), port + 35
        made.has_shared_listener = self.why_no_shared_listener is None
        return made

    @property
    def shared_bootstrap(self) -> str:
        return ",".join("{}:{}".format(*node.shared) for node in self.nodes)

    @property
    def core_ids(self) -> set[int]:
        return {node.broker_id + core for node in self.nodes for core in range(node.cores_count)}

    def start(self, *numbers: int) -> None:
        super().start(*numbers)
        eventually(lambda: brokers(self.bootstrap) == self.core_ids, "all nodes are there")


def _why_no_program() -> str | None:
    try:
        Steering("libbpf", 1, Select.LOAD).close()
    except LoaderUnavailableError as reason:
        return str(reason)
    return None


class _Look:
    """At a server before a test, to be compared with what it is afterwards."""

    def __init__(self, server: TpcBroker) -> None:
        self._server = server
        self._cores = _cores(server)
        self._logged_bytes = server.process.log_path.stat().st_size

    def problems(self) -> list[str]:
        server = self._server
        if not server.process.is_running:
            return [f"it ended with {server.process.exit_code}\n{server.process.log_tail()}"]
        cores = _cores(server)
        found = [] if cores == self._cores else [f"cores are not those that were: {self._cores}, now {cores}"]
        with server.process.log_path.open("rb") as file:
            file.seek(self._logged_bytes)
            logged = file.read().decode(errors="replace")
        first = min((at for mark in FAILURES if (at := logged.find(mark)) >= 0), default=-1)
        return found if first < 0 else [*found, logged[max(0, first - 300) : first + 3000]]


def _cores(server: TpcBroker) -> list[tuple[int | None, bool]]:
    """Of each its process, and whether it is ready. A core that does not answer is waited for, but not without end."""
    return [(core["pid"], core["ready"]) for core in server.status()["cores"]]


class _Kept(Generic[T]):
    """A server, or several, that is started for the first test that wants it."""

    def __init__(self, start: Callable[[], T], end: Callable[[T, bool], None]) -> None:
        self._start, self._end = start, end
        self._server: T | None = None

    def lend(self, parts: Callable[[T], list[TpcBroker]], more: Callable[[T], list[str]]) -> Iterator[T]:
        if self._server is None:
            self._server = self._start()
        server = self._server
        looks = [_Look(part) for part in parts(server)]
        yield server
        problems = [problem for look in looks for problem in look.problems()]
        problems = problems or more(server)
        if problems:
            self.end(is_well=False)
            pytest.fail("\n".join(["a shared server was not left as it was found", *problems]))

    def end(self, *, is_well: bool) -> None:
        server, self._server = self._server, None
        if server is not None:
            self._end(server, is_well)


def _end_broker(broker: SharedBroker, is_well: bool) -> None:
    if not is_well:
        broker.kill()
        return
    try:
        broker.stop()
    finally:
        broker.kill()
    shutil.rmtree(broker.folder, ignore_errors=True)


def _end_cluster(made: SharedCluster, is_well: bool) -> None:
    made.kill_all()
    if is_well:
        shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _one_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Kept[SharedBroker]]:
    def start() -> SharedBroker:
        # The path is longer than the address of a Unix socket may be (tests/telemetry/test_status.py).
        made = SharedBroker(tmp_path_factory.mktemp("shared-broker") / ("long" * 30))
        made.start()
        return made

    kept = _Kept(start, _end_broker)
    yield kept
    kept.end(is_well=True)


@pytest.fixture
def shared_broker(_one_broker: _Kept[SharedBroker]) -> Iterator[SharedBroker]:
    """Ours, of two cores; for who leaves it as it is."""
    yield from _one_broker.lend(lambda broker: [broker], lambda _broker: [])


@pytest.fixture(scope="session")
def _one_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Kept[SharedCluster]]:
    def start() -> SharedCluster:
        made = SharedCluster(tmp_path_factory.mktemp("shared-cluster"))
        try:
            made.start()
        except BaseException:
            made.kill_all()
            raise
        return made

    kept = _Kept(start, _end_cluster)
    yield kept
    kept.end(is_well=True)


def _strange_nodes(made: SharedCluster) -> list[str]:
    """Nodes that stay as none is meant to be: drained, or away. Whom the node that is asked has not heard of yet, as
    after their start, it hears of.
    """
    wanted = {node.number: "alive" for node in made.nodes}

    def states() -> dict[int, str]:
        return {row["node"]: row["state"] for row in cluster_told(made.bootstrap)["nodes"]}

    try:
        eventually(lambda: states() == wanted, "all nodes are alive")
    except AssertionError:
        return [f"states of nodes: {states()}"]
    return []


@pytest.fixture
def shared_cluster(_one_cluster: _Kept[SharedCluster]) -> Iterator[SharedCluster]:
    """Three nodes of two cores, all of which are there; for who leaves them as they are."""
    yield from _one_cluster.lend(lambda made: list(made.nodes), _strange_nodes)


@pytest.fixture
def shared_listeners(shared_cluster: SharedCluster) -> SharedCluster:
    """The same where its nodes have a listener that their cores share."""
    if shared_cluster.why_no_shared_listener is not None:
        pytest.skip(shared_cluster.why_no_shared_listener)
    return shared_cluster


# -- Kafka in its place ------------------------------------------------------------------------------------------------


def is_kafka_asked() -> bool:
    """With ``TPC_TEST_BROKER=kafka`` tests of clients run against Apache Kafka: what fails there is wrong about it."""
    which = os.environ.get("TPC_TEST_BROKER", "tpc")
    assert which in ("tpc", "kafka"), f"TPC_TEST_BROKER is {which!r}; allowed are kafka and tpc"
    return which == "kafka"


def new_kafka(folder: Path) -> KafkaPeer:
    """Not started; skips where there is none."""
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    return KafkaPeer(folder)


@pytest.fixture(scope="session")
def _one_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaPeer]:
    peer = new_kafka(tmp_path_factory.mktemp("shared-kafka"))
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def clients_broker(request: pytest.FixtureRequest) -> Broker:
    """What tests of clients talk to: `shared_broker`, or Kafka."""
    found: Broker = request.getfixturevalue("_one_kafka" if is_kafka_asked() else "shared_broker")
    return found
