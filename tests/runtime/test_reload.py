"""A new life of the supervisor takes the listening sockets over: by a reload, and from a service manager's store."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tests.support.server_process import answers_api_versions
from tpc_broker.runtime.handed_sockets import HANDED_VARIABLE, HandedSockets

DEADLINE_S = 90.0
LAUNCH = """
import os, sys
given = [int(each) for each in sys.argv[1].split(",") if each]
kept = [os.dup2(fd, 100 + place) for place, fd in enumerate(given)]
for place, fd in enumerate(kept):
    os.dup2(fd, 3 + place)
    os.set_inheritable(3 + place, True)
    os.close(fd)
os.environ |= {"LISTEN_FDS": str(len(kept)), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "listener"}
os.execv(sys.argv[2], sys.argv[2:])
"""


def wait_for(what: Callable[[], bool], describe: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline_s, describe
        time.sleep(0.02)


class Connecting:
    """Clients that connect to every port again and again; none may be refused."""

    def __init__(self, ports: list[int]) -> None:
        self.connected = 0
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(port,), daemon=True) for port in ports]
        for thread in self._threads:
            thread.start()

    def _run(self, port: int) -> None:
        while not self._stop.is_set():
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=60):
                    self.connected += 1
            except OSError as error:
                self.refused.append(f"{port}: {error}")
            time.sleep(0.002)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


@contextlib.contextmanager
def connecting(ports: list[int]) -> Iterator[Connecting]:
    clients = Connecting(ports)
    try:
        yield clients
    finally:
        clients.end()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(tmp_path / "broker", 2)
    (tmp_path / "config").write_text("num.partitions=2\n")
    broker.more_options = ["--config", str(tmp_path / "config")]
    broker.start()
    yield broker
    broker.kill()


def partitions_setting(broker: TpcBroker) -> str:
    resource = ConfigResource(ResourceType.BROKER, "0")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return str(admin.describe_configs([resource])[resource].result(60)["num.partitions"].value)


def test_a_reload_takes_the_new_configuration_and_refuses_no_connection(broker: TpcBroker, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    errors: list[object] = []
    supervisor = broker.process.pid
    for life in range(1, 3):
        before = {process.pid for process in broker.core_processes()}
        (tmp_path / "config").write_text(f"num.partitions={2 + life}\n")
        with connecting(broker.ports) as clients:
            broker.process.send(signal.SIGUSR2)
            sent = 0
            ready = f"is ready: {broker.cores_count} cores"
            while broker.log_text().count(ready) <= life:
                assert sent < DEADLINE_S * 100, broker.log_text()[-2000:]
                producer.produce("t", f"{life} {sent}", on_delivery=lambda error, _: error and errors.append(error))
                producer.poll(0.01)
                sent += 1
            assert producer.flush(60) == 0
        assert clients.refused == []
        assert clients.connected > 0
        assert broker.process.pid == supervisor
        assert broker.process.is_running
        assert not before & {process.pid for process in broker.core_processes()}
        assert partitions_setting(broker) == str(2 + life)
        assert errors == []
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        ends = [consumer.get_watermark_offsets(TopicPartition("t", number), timeout=60)[1] for number in range(2)]
        consumer.close()
        assert sum(ends) >= sent
    broker.stop()  # SIGTERM is heard in the new life too
    assert not any(answers_api_versions("127.0.0.1", port) for port in broker.ports)


def test_a_configuration_that_is_wrong_is_refused_and_the_broker_goes_on(broker: TpcBroker, tmp_path: Path) -> None:
    before = {process.pid for process in broker.core_processes()}
    (tmp_path / "config").write_text("num.partitions=many\n")
    broker.process.send(signal.SIGUSR2)
    wait_for(lambda: "not reloaded, and nothing was changed" in broker.log_text(), "nothing was said")
    line = next(line for line in broker.log_text().splitlines() if "not reloaded" in line)
    assert "num.partitions" in line
    assert before == {process.pid for process in broker.core_processes()}
    assert partitions_setting(broker) == "2"
    (tmp_path / "config").write_text("num.partitions=5\n")
    broker.process.send(signal.SIGUSR2)
    wait_for(lambda: broker.log_text().count("is ready: ") == 2, "it was not reloaded")
    assert partitions_setting(broker) == "5"


class ServiceManager:
    """What systemd does for a unit with Type=notify and FileDescriptorStoreMax: it keeps what it is sent."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(DEADLINE_S)
        self.environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), "PYTHONUNBUFFERED": "1"}
        self.stored: list[int] = []
        self._folder = folder

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Started with everything that is stored, and ready."""
        numbers = ",".join(map(str, self.stored))
        with (self._folder / "log").open("ab") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, numbers, *command], pass_fds=self.stored, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        while True:
            message, ancillary, _flags, _address = self.socket.recvmsg(4096, socket.CMSG_SPACE(4 * 253))
            for _level, _kind, data in ancillary:
                assert message.startswith(b"FDSTORE=1")
                found = array.array("i")
                found.frombytes(data[: len(data) - len(data) % found.itemsize])
                for number in found:
                    self._store(number)
            if b"READY=1" in message:
                return child

    def _store(self, number: int) -> None:
        """Once: systemd compares by kcmp(2)."""
        if any(os.fstat(number).st_ino == os.fstat(each).st_ino for each in self.stored):
            os.close(number)
        else:
            self.stored.append(number)

    def ports(self) -> list[int]:
        """Of what is stored."""
        found = []
        for number in self.stored:
            with socket.socket(fileno=os.dup(number)) as each:
                found.append(each.getsockname()[1])
        return sorted(found)

    def close(self) -> None:
        for each in self.stored:
            os.close(each)
        self.socket.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_under_a_service_manager_refuses_no_connection(end: signal.Signals, tmp_path: Path) -> None:
    broker = TpcBroker(tmp_path / "broker", 2)
    broker._first_port = free_port_range(2)
    manager = ServiceManager(tmp_path)
    child = manager.start(broker.command())
    try:
        assert manager.ports() == broker.ports
        with connecting(broker.ports) as clients:
            child.send_signal(end)
            child.wait(90)
            child = manager.start(broker.command())
            before = clients.connected
            wait_for(lambda: clients.connected > before + 10, "nobody connects any more")
        assert clients.refused == []
        assert len(manager.stored) == 2
        assert all(answers_api_versions("127.0.0.1", port) for port in broker.ports)
    finally:
        child.kill()
        child.wait(90)
        manager.close()


def test_what_is_handed_over_is_taken_once_and_the_rest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = [socket.create_server(("127.0.0.1", 0)) for _number in range(2)]
    with socket.socket() as no_listener, Path(os.devnull).open("rb") as no_socket:
        strangers = [os.dup(no_listener.fileno()), os.dup(no_socket.fileno()), 9999]
    ports = [each.getsockname()[1] for each in listening]
    descriptors = [os.dup(each.fileno()) for each in listening]
    monkeypatch.setenv(HANDED_VARIABLE, ",".join(map(str, [*descriptors, *strangers])))
    monkeypatch.setenv("LISTEN_FDS", "3")
    monkeypatch.setenv("LISTEN_PID", "1")  # another process is meant
    handed = HandedSockets.of_environment()
    assert not {HANDED_VARIABLE, "LISTEN_FDS", "LISTEN_PID"} & os.environ.keys()
    taken = handed.take("127.0.0.1", ports[0])
    assert taken is not None
    assert taken.getsockname()[1] == ports[0]
    assert not taken.get_inheritable()
    assert handed.take("127.0.0.1", ports[0]) is None
    handed.close()
    for each in (*listening, taken):
        each.close()
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
