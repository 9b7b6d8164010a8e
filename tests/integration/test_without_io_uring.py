"""The main job of a broker, with a stock client, where a filter of system calls refuses io_uring.

So it is in a container of Docker's or Podman's own profile, and with less where a sandbox knows few calls: `WAYS` are
what else may be refused. Containers give a broker no root and no capability either, and a file system of their own.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support import cluster_nodes
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import cluster, consume, create_topic
from tests.support.ports import free_port_range
from tests.support.seccomp import IO_URING, WAYS, refusing, together, under
from tests.support.waiting import PATIENCE_S, patiently
from tpc_broker.engine.backend import AUTO
from tpc_broker.engine.ring import BACKEND_VARIABLE
from tpc_broker.options import choose_cores, usable_cpus
from tpc_broker.process.fallbacks import file_system_of
from tpc_broker.telemetry.status import read_status

COUNT = 500
TOPIC = "without-io-uring"
KNOWN_SINCE_LONG = ("epoll_pwait2", "preadv2", "pwritev2", "cachestat")
"""What a sandbox may lack besides; each has an older call in its place."""
SMALL = {"journal.bytes.max": str(8 << 20), "log.segment.bytes": str(1 << 20)}
SHARED_MEMORY = Path("/dev/shm")
TMPFS_BYTES_MIN = 64 << 20
VALUE_BYTES = 4_000
NOBODY = 65534
WITHOUT_CAPABILITIES = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]

pytestmark = pytest.mark.usefixtures("system_call_filters")


@pytest.fixture
def make_broker() -> Iterator[Callable[..., TpcBroker]]:
    made: list[TpcBroker] = []

    def make(folder: Path, prefix: list[str], *options: str, **settings: str) -> TpcBroker:
        """Of two cores, that says nothing of the backend, as a user does not."""
        broker = TpcBroker(folder, cores_count=2, overrides={"num.partitions": "4", **settings})
        broker.environment[BACKEND_VARIABLE] = AUTO
        broker.prefix, broker.more_options = prefix, list(options)
        broker.shares_cpus = len(usable_cpus()) < broker.cores_count
        made.append(broker)
        broker.start()
        return broker

    yield make
    for each in made:
        each.kill()


@pytest.fixture(params=[(errno.EPERM, IO_URING), (errno.ENOSYS, (*IO_URING, *KNOWN_SINCE_LONG))], ids=["filter", "old"])
def broker(request, tmp_path: Path, make_broker) -> TpcBroker:
    error, names = request.param
    return make_broker(tmp_path, under(refusing(error, *names), tmp_path))


def produce(broker: TpcBroker, numbers: range, value_bytes: int = 0) -> None:
    """Returns when all are acknowledged."""
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        producer.produce(
            TOPIC, str(number).encode().ljust(value_bytes), key=str(number).encode(),
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def take_from_group(broker: TpcBroker, count: int, group: str = "readers") -> list[int]:
    """As a member of the group, from where it stands; what was taken is committed."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": group, "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    taken: list[int] = []
    try:
        consumer.subscribe([TOPIC])
        for _ in patiently(lambda: f"{len(taken)} of {count} records"):
            for message in consumer.consume(count - len(taken), 1.0):
                if message.error():
                    raise KafkaException(message.error())
                taken.append(int(message.value()))
            if len(taken) == count:
                break
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return taken


def test_produce_consume_group_and_restarts_by_kill(broker: TpcBroker) -> None:
    produce(broker, range(COUNT))
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT))
    produce(broker, range(COUNT, 2 * COUNT))
    told = read_status(broker.data_folder)["backend"]
    assert (told["name"], "a seccomp filter" in told["reason"]) == ("plain", True)
    maps = [Path(f"/proc/{child.pid}/maps").read_text() for child in broker_processes(broker)]
    assert len(maps) > 1
    assert not any("io_uring" in each for each in maps)
    assert broker.log_text().count("the backend is plain, without io_uring: a seccomp filter") == 1

    broker.kill()
    broker.start()
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT, 2 * COUNT)), "the group goes on where it was"
    victim = broker.core_process(0)
    victim.kill()
    broker.wait_core_replaced(0, victim.pid)
    produce(broker, range(2 * COUNT, 3 * COUNT))
    assert sorted(take_from_group(broker, COUNT)) == list(range(2 * COUNT, 3 * COUNT))
    broker.stop()
    assert "Traceback" not in broker.log_text()


# -- without root, and on file systems of containers ---------------------------------------------------------------


@pytest.fixture(scope="module")
def as_nobody() -> list[str]:
    """What stands before a command of a user without any right. Where that one may not read this interpreter it is our
    own user, without a capability.
    """
    if os.geteuid() != 0:
        return ["setpriv", "--no-new-privs", "--"]
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *WITHOUT_CAPABILITIES]
    imports = [sys.executable, "-c", "import tests.support.seccomp, tpc_broker._ring"]
    can_read = subprocess.run([*nobody, "env", *imports], capture_output=True, check=False).returncode == 0
    return nobody if can_read else ["setpriv", *WITHOUT_CAPABILITIES]


class Place(NamedTuple):
    """Of a broker."""

    folder: Path
    prefix: list[str]
    """What stands before a command that is to find it."""
    owned: list[Path]
    """What has to be the broker's own user's."""


@pytest.fixture
def in_memory() -> Iterator[Place]:
    room = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    if room < TMPFS_BYTES_MIN or file_system_of(SHARED_MEMORY) != "tmpfs":
        pytest.skip(f"there is no tmpfs with {TMPFS_BYTES_MIN} bytes at {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as base:
        Path(base).chmod(0o755)
        folder = Path(base) / "broker"
        folder.mkdir()
        yield Place(folder, [], [folder])


@pytest.fixture
def on_overlay() -> Iterator[Place]:
    """Mounted for the broker alone; its layers stay from one start to the next."""
    with tempfile.TemporaryDirectory() as base:
        layers = [Path(base) / name for name in ("lower", "upper", "work", "merged")]
        for folder in layers:
            folder.mkdir()
        Path(base).chmod(0o755)
        mount = 'mount -t overlay overlay -o "lowerdir=$1,upperdir=$2,workdir=$3" "$4" && shift 4 && exec "$@"'
        prefix = ["unshare", "--mount", "sh", "-c", mount, "sh", *map(str, layers)]
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            pytest.skip(f"no overlay can be mounted here: {tried.stderr.strip()}")
        yield Place(layers[3], prefix, [layers[1], layers[3]])


@pytest.fixture(params=["in_memory", pytest.param("on_overlay", marks=pytest.mark.plain)])
def place(request, as_nobody: list[str]) -> Place:
    found: Place = request.getfixturevalue(request.param)
    if f"--reuid={NOBODY}" in as_nobody:
        for folder in found.owned:
            os.chown(folder, NOBODY, NOBODY)
    return found._replace(prefix=[*found.prefix, *as_nobody])


REFUSED = [pytest.param({}, id="io_uring", marks=pytest.mark.plain), pytest.param(WAYS, id="all")]


@pytest.mark.parametrize("refused", REFUSED)
def test_without_root_on_a_container_s_file_system_each_refusal_is_said_once(
    refused: dict[str, Any], place: Place, make_broker
) -> None:
    """Locked memory is short, and there is no right to load eBPF."""
    profile = together(refusing(errno.EPERM, *IO_URING), *refused.values())
    prefix = [*place.prefix, "prlimit", "--memlock=65536:65536", *under(profile, place.folder.parent)]
    broker = make_broker(place.folder, prefix, f"--datagram=127.0.0.1:{free_port_range(1)}", **SMALL)
    log = broker.process.log_of_this_run()
    told = "the backend is plain, without io_uring: a seccomp filter refuses io_uring"
    is_pinned = choose_cores(broker.cores_count, oversubscribe=broker.shares_cpus)[1] is not None
    names = [f"{name} is refused here" for name in refused if name != "CPU pinning" or is_pinned]
    for line in (told, "--data is on ", "datagrams are dealt out by their senders' addresses", *names):
        assert log.count(line) == 1, (line, log)
    for process in broker.process.processes():
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert "CapEff:\t0000000000000000\n" in status
        assert "Seccomp:\t2\n" in status

    produce(broker, range(COUNT), VALUE_BYTES)
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT))
    produce(broker, range(COUNT, 2 * COUNT), VALUE_BYTES)
    broker.kill()
    broker.start()
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT, 2 * COUNT)), "the group goes on where it was"
    assert sorted(take_from_group(broker, 2 * COUNT, "others")) == list(range(2 * COUNT)), "from the segments' files"
    broker.stop()
    assert "Traceback" not in broker.log_text()


@pytest.mark.plain
def test_three_nodes_go_on_without_one_that_is_killed_and_it_comes_back(tmp_path: Path) -> None:
    """Replicated records and a group, by a stock client; then all nodes are killed at once."""
    prefix = under(refusing(errno.EPERM, *IO_URING), tmp_path)
    with cluster(tmp_path) as three:
        for node in three.nodes:
            node.prefix = prefix
        three.start(1, 2, 3)
        create_topic(three[1].bootstrap, TOPIC, 3, replicas=3)
        written = [f"{number:05}" for number in range(300)]
        cluster_nodes.produce(three[2].bootstrap, TOPIC, written, 3)
        three.kill(3)
        more = [f"{number:05}" for number in range(300, 600)]
        cluster_nodes.produce(three[1].bootstrap, TOPIC, more, 3)
        three.start(3)
        assert consume(three[3].bootstrap, TOPIC, 600) == [*written, *more]
        three.kill_all()
        three.start(1, 2, 3)
        assert consume(three[2].bootstrap, TOPIC, 600, group="others") == [*written, *more]
        assert {read_status(node.data_folder)["backend"]["name"] for node in three.nodes} == {"plain"}


def broker_processes(broker: TpcBroker) -> list[psutil.Process]:
    supervisor = psutil.Process(read_status(broker.data_folder)["pid"])
    return [supervisor, *supervisor.children()]
