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
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tests.support.server_process import answers_api_versions
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.client.datagrams import decode_answer, encode_datagram
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import Select, Steering
from tpc_broker.engine.handed_sockets import HANDED_VARIABLE, HandedSockets
from tpc_broker.telemetry.status import read_status

PAUSE_S = 0.002
RESEND_S = 1.0
"""A datagram may be lost: after so long the next one is sent."""
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
                with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
                    self.connected += 1
            except OSError as error:
                self.refused.append(f"{port}: {error}")
            self._stop.wait(PAUSE_S)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)


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
    broker.more_options = ["--config", str(tmp_path / "config"), "--admin", str(free_port_range(1))]
    broker.start()
    yield broker
    broker.kill()


def is_ready(broker: TpcBroker) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{broker.more_options[-1]}/ready", timeout=PATIENCE_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError:  # a core did not answer in time
        return False


def partitions_setting(broker: TpcBroker) -> str:
    resource = ConfigResource(ResourceType.BROKER, "0")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    return str(admin.describe_configs([resource])[resource].result(PATIENCE_S)["num.partitions"].value)


def test_a_reload_takes_the_new_configuration_and_refuses_no_connection(broker: TpcBroker, tmp_path: Path) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    errors: list[object] = []
    supervisor = broker.process.pid
    for life in range(1, 3):
        before = {process.pid for process in broker.core_processes()}
        (tmp_path / "config").write_text(f"num.partitions={2 + life}\n")
        with connecting([*broker.ports, int(broker.more_options[-1])]) as clients:
            broker.process.send(signal.SIGUSR2)
            sent = 0
            ready = f"is ready: {broker.cores_count} cores"
            while broker.log_text().count(ready) <= life:
                assert sent < PATIENCE_S * 100, broker.log_text()[-2000:]
                producer.produce("t", f"{life} {sent}", on_delivery=lambda error, _: error and errors.append(error))
                producer.poll(0.01)
                sent += 1
            assert producer.flush(PATIENCE_S) == 0
        assert clients.refused == []
        assert clients.connected > 0
        eventually(lambda: is_ready(broker), "not ready")
        assert broker.process.pid == supervisor
        assert broker.process.is_running
        assert not before & {process.pid for process in broker.core_processes()}
        assert partitions_setting(broker) == str(2 + life)
        assert errors == []
        consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
        # It has two or three partitions: with which settings it was made depends on when its first record came.
        partitions = consumer.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions
        ends = [
            consumer.get_watermark_offsets(TopicPartition("t", number), timeout=PATIENCE_S)[1] for number in partitions
        ]
        consumer.close()
        assert sum(ends) >= sent
    broker.stop()  # SIGTERM is heard in the new life too
    assert not any(answers_api_versions("127.0.0.1", port) for port in broker.ports)


def test_a_configuration_that_is_wrong_is_refused_and_the_broker_goes_on(broker: TpcBroker, tmp_path: Path) -> None:
    before = {process.pid for process in broker.core_processes()}
    (tmp_path / "config").write_text("num.partitions=many\n")
    broker.process.send(signal.SIGUSR2)
    eventually(lambda: "not reloaded, and nothing was changed" in broker.log_text(), "nothing was said")
    line = next(line for line in broker.log_text().splitlines() if "not reloaded" in line)
    assert "num.partitions" in line
    assert before == {process.pid for process in broker.core_processes()}
    assert partitions_setting(broker) == "2"
    (tmp_path / "config").write_text("num.partitions=5\n")
    broker.process.send(signal.SIGUSR2)
    eventually(lambda: broker.log_text().count("is ready: ") == 2, "it was not reloaded")
    assert partitions_setting(broker) == "5"


def stays_away(broker: TpcBroker) -> None:
    eventually(lambda: not broker.process.is_running or broker.log_text().count("is ready: ") > 1, "it does not end")
    assert not broker.process.is_running, "it is there again"
    assert broker.process.exit_code == 0
    assert "SIGTERM: draining" in broker.log_text()
    assert "hurrying" not in broker.log_text()


def test_a_broker_that_is_stopped_while_a_reload_is_checked_does_not_come_back(
    broker: TpcBroker, tmp_path: Path
) -> None:
    """The check waits for its file, which is a pipe that nobody writes to."""
    config, again = tmp_path / "config", tmp_path / "again"
    config.rename(again)
    os.mkfifo(config)
    broker.process.send(signal.SIGUSR2)
    held: list[int] = []

    def is_checked() -> bool:
        with contextlib.suppress(OSError):  # nobody reads yet
            held.append(os.open(config, os.O_WRONLY | os.O_NONBLOCK))
        return bool(held)

    eventually(is_checked, "nothing checks the configuration")
    broker.process.send(signal.SIGTERM)
    eventually(lambda: broker.log_text().count(" drained") == 2, "it does not drain")
    again.replace(config)
    stays_away(broker)
    os.close(held[0])


def test_a_broker_that_is_stopped_in_the_drain_of_a_reload_does_not_come_back(broker: TpcBroker) -> None:
    slow = broker.core_process(1)
    slow.suspend()
    broker.process.send(signal.SIGUSR2)
    eventually(lambda: "draining, then starting anew" in broker.log_text(), "it is not reloaded")
    broker.process.send(signal.SIGTERM)
    eventually(lambda: "SIGTERM" in broker.log_text(), "the signal is not heard")
    with contextlib.suppress(psutil.NoSuchProcess):  # it hung for so long that it was killed
        slow.resume()
    stays_away(broker)


class InTerminal(TpcBroker):
    """As somebody starts it by hand. `terminal`: its path."""

    terminal = ""

    def command(self) -> list[str]:
        """The first terminal that a leader of a session opens becomes its own."""
        opened = "import os, sys; os.open(sys.argv[1], os.O_RDWR); os.execv(sys.argv[2], sys.argv[2:])"
        return [sys.executable, "-c", opened, self.terminal, *super().command()]


def test_a_broker_drains_when_its_terminal_goes_away(tmp_path: Path) -> None:
    """By the same signal that has certificates read again where there is no terminal."""
    hand, terminal = os.openpty()
    broker = InTerminal(tmp_path / "broker", 1)
    broker.terminal = os.ttyname(terminal)
    try:
        broker.start()
        os.close(terminal)
        os.close(hand)
        eventually(lambda: not broker.process.is_running, "it does not end")
        assert broker.process.exit_code == 0
        assert "SIGHUP: draining" in broker.log_text()
    finally:
        broker.kill()


def sharing(port: int) -> list[str]:
    """Options for a listener at a port that the cores share; none where the kernel's program cannot be loaded."""
    try:
        Steering("libbpf", 2, Select.LOAD).close()
    except LoaderUnavailableError:
        return []
    listener = f"--listen=ONE://127.0.0.1:{port}", "--override=listener.ONE.mode=shared"
    return [*listener, "--override=ebpf.loader=libbpf"]


def steered(broker: TpcBroker, name: str) -> dict[str, Any]:
    (found,) = [each["steering"] for each in read_status(broker.data_folder)["listeners"] if each["name"] == name]
    return found


def placed_by_the_program(broker: TpcBroker, port: int) -> None:
    """The next life's one: each connection, and none by chance. A SYN that is sent again is counted again."""
    eventually(lambda: steered(broker, "ONE")["alive"] == [True, True], "not all cores take connections")
    before = steered(broker, "ONE")
    for _each in range(16):
        socket.create_connection(("127.0.0.1", port)).close()
    after = steered(broker, "ONE")
    assert sum(after["selected"]) - sum(before["selected"]) >= 16
    assert after["fallback_kernel"] == before["fallback_kernel"]


class Datagrams:
    """Records as datagrams, one at a time, each sent again until it is acknowledged; the kernel may refuse none."""

    def __init__(self, port: int) -> None:
        self.acknowledged = 0
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(RESEND_S)
        self._socket.connect(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self._socket.send(encode_datagram("t", number % 2, b"datagram", request_id=number))
                answer = decode_answer(self._socket.recv(100))
            except TimeoutError:
                continue
            except OSError as error:
                self.failed.append(str(error))
                return
            self.acknowledged += answer is not None and answer.error_code == 0
            self._stop.wait(PAUSE_S)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)
        self._socket.close()


def test_a_reload_hands_over_the_ports_that_the_cores_share(tmp_path: Path) -> None:
    """Also to another number of cores, and to a configuration in which they share it no more."""
    broker = TpcBroker(tmp_path / "broker", 2, {"num.partitions": "2"})
    broker._first_port = free_port_range(4)
    shared, datagrams = broker.ports[-1] + 1, broker.ports[-1] + 2
    options = sharing(shared)
    if not options:
        pytest.skip("the kernel's program cannot be loaded")
    (tmp_path / "config").write_text("listener.ONE.mode=shared\nebpf.loader=libbpf\n")
    broker.more_options = [options[0], "--config", str(tmp_path / "config"), "--datagram", str(datagrams)]
    broker.start()
    try:
        producer = Producer({"bootstrap.servers": f"127.0.0.1:{shared}", "linger.ms": 0})
        producer.produce("t", b"first")
        assert producer.flush(PATIENCE_S) == 0
        udp = Datagrams(datagrams)
        with contextlib.closing(udp), connecting([*broker.ports, shared]) as clients:
            broker.process.send(signal.SIGUSR2)
            eventually(lambda: broker.log_text().count("is ready: ") == 2, "it was not reloaded")
            producer.produce("t", b"second")
            assert producer.flush(PATIENCE_S) == 0
            connected, acknowledged = clients.connected + 10, udp.acknowledged + 10
            eventually(lambda: clients.connected > connected, "nobody connects any more")
            eventually(lambda: udp.acknowledged > acknowledged, "no datagram is acknowledged any more")
        assert (clients.refused, udp.failed) == ([], [])
        placed_by_the_program(broker, shared)
        eventually(lambda: steered(broker, "datagrams")["alive"] == [True, True], "not all cores take datagrams")
        (tmp_path / "config").write_text("ebpf.loader=off\nlistener.ONE.mode=shared\n")
        broker.process.send(signal.SIGUSR2)
        refusal = "not reloaded, and nothing was changed: tpc-broker: listener ONE has mode shared, which needs eBPF"
        eventually(lambda: refusal in broker.log_text(), "what would be refused is not")
        (tmp_path / "config").write_text("ebpf.loader=off\n")  # each core has a port of its own then, from this one on
        broker.process.send(signal.SIGUSR2)
        eventually(lambda: broker.log_text().count("is ready: ") == 3, "it was not reloaded")
        eventually(lambda: answers_api_versions("127.0.0.1", shared), "no answer")
    finally:
        broker.kill()


class ServiceManager:
    """What systemd does for a unit with Type=notify and FileDescriptorStoreMax: it keeps what it is sent."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(PATIENCE_S)
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
            if message.startswith(b"FDSTOREREMOVE=1"):
                self._forget()
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

    def _forget(self) -> None:
        for each in self.stored:
            os.close(each)
        self.stored.clear()

    def ports(self) -> list[int]:
        """Of what is stored."""
        found = []
        for number in self.stored:
            with socket.socket(fileno=os.dup(number)) as each:
                found.append(each.getsockname()[1])
        return sorted(found)

    def close(self) -> None:
        self._forget()
        self.socket.close()


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_under_a_service_manager_refuses_no_connection(end: signal.Signals, tmp_path: Path) -> None:
    """Killed, it leaves its program in the kernel with the sockets that share a port."""
    broker = TpcBroker(tmp_path / "broker", 2)
    broker._first_port = free_port_range(4)
    shared, datagrams = broker.ports[-1] + 1, broker.ports[-1] + 2
    broker.more_options = [*sharing(shared), "--datagram", str(datagrams)]
    ports = [*broker.ports, shared] if sharing(shared) else broker.ports
    kept = sorted([*broker.ports, *([shared] * 2 if shared in ports else []), datagrams, datagrams])
    manager = ServiceManager(tmp_path)
    child = manager.start(broker.command())
    try:
        assert manager.ports() == kept
        with connecting(ports) as clients:
            child.send_signal(end)
            child.wait(PATIENCE_S)
            child = manager.start(broker.command())
            before = clients.connected
            eventually(lambda: clients.connected > before + 10, "nobody connects any more")
        assert clients.refused == []
        assert manager.ports() == kept
        eventually(lambda: all(answers_api_versions("127.0.0.1", port) for port in ports), "no answer")
        if shared in ports:
            placed_by_the_program(broker, shared)
        child.terminate()
        child.wait(PATIENCE_S)
        del broker.more_options[-2:]  # the port for datagrams is configured no more, and kept no more
        child = manager.start(broker.command())
        assert manager.ports() == [each for each in kept if each != datagrams]
    finally:
        child.kill()
        child.wait(PATIENCE_S)
        manager.close()


def test_what_is_handed_over_is_taken_once_and_the_rest_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    first_port = free_port_range(2)
    listening = [socket.create_server(("127.0.0.1", first_port + number)) for number in range(2)]
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
    os.close(strangers[1])  # what is no socket was left alone
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_a_port_is_taken_only_for_what_it_was() -> None:
    """One that was of a single core is closed for one that cores share, and the other way round: it keeps the port."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for was_shared in (False, True):
            bound = socket.socket(socket.AF_INET, kind)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, was_shared)
            bound.bind(("127.0.0.1", free_port_range(1)))
            if kind == socket.SOCK_STREAM:
                bound.listen()
            place = bound.getsockname()
            handed = HandedSockets([bound.detach()])
            assert not handed.has_closed
            assert handed.take(*place, kind=kind, is_shared=not was_shared) is None
            assert handed.has_closed
            with socket.socket(socket.AF_INET, kind) as again:
                again.bind(place)
            assert handed.take(*place, kind=kind, is_shared=was_shared) is None
