"""The supervisor with real cores: restarts, draining, orphans, the service manager."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import psutil
import pytest
import trio

from tests.support.broker_process import TpcBroker
from tests.support.descriptors import open_descriptors
from tests.support.raw_client import RawConnection
from tests.support.server_process import answers_api_versions
from tests.support.waiting import PATIENCE_S, eventually, let_pass, takes_at_least
from tpc_broker import limits
from tpc_broker.model import CoreId
from tpc_broker.options import CoreOptions, ServeOptions, StartError
from tpc_broker.process import supervisor
from tpc_broker.process.supervisor import Supervisor

SILENT_FOR_HOURS = "from tpc_broker import limits\nlimits.CORE_HEARTBEAT_MISSED_MS = 36_000_000\n"
"""A core may be, before it counts as one that hangs."""
CORE_0_STOPS = """
import os, signal, sys
if "tpc_broker.process.core_start" in sys.orig_argv and '"core": 0,' in sys.orig_argv[-1]:
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def cores_of(broker: TpcBroker) -> dict[int, psutil.Process]:
    """Core id to its process, as the process list has it now."""
    found = {}
    for process in broker.core_processes():
        with contextlib.suppress(psutil.NoSuchProcess, IndexError, json.JSONDecodeError):
            found[json.loads(process.cmdline()[-1])["core"]] = process
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(tmp_path, cores_count=2)
    broker.start()
    yield broker
    broker.kill()


def begins_with(broker: TpcBroker, code: str, folder: Path) -> None:
    """Each Python of it does, by a module in this folder."""
    (folder / "sitecustomize.py").write_text(code)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    broker.environment["PYTHONPATH"] = os.pathsep.join(path)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_core_is_started_again_and_the_other_does_not_notice(broker: TpcBroker, victim: int) -> None:
    other = 1 - victim
    before = cores_of(broker)
    with RawConnection(broker.host, broker.ports[other]) as connection:
        connection.ask("ApiVersions", 0)
        before[victim].send_signal(signal.SIGKILL)
        eventually(lambda: cores_of(broker).get(victim, before[victim]).pid != before[victim].pid, "a new core")
        eventually(lambda: answers_api_versions(broker.host, broker.ports[victim]), "the new core's answers")
        connection.ask("ApiVersions", 0)
    after = cores_of(broker)
    assert sorted(after) == [0, 1]
    assert (after[other].pid, after[other].create_time()) == (before[other].pid, before[other].create_time())
    ended = f"core {victim} ended (killed by SIGKILL); starting it again"
    eventually(lambda: ended in broker.log_text(), "the supervisor tells of it")
    broker.stop()


def test_a_core_that_cannot_be_started_is_tried_again_and_the_other_goes_on(broker: TpcBroker) -> None:
    before, parent = cores_of(broker), psutil.Process(broker.process.pid)
    soft, hard = parent.rlimit(psutil.RLIMIT_NOFILE)
    parent.rlimit(psutil.RLIMIT_NOFILE, (3, hard))  # no descriptor more
    before[0].kill()
    failed = "core 0 could not be started"
    eventually(lambda: failed in broker.log_text() or not broker.process.is_running, "a start that fails")
    assert broker.process.is_running
    eventually(lambda: answers_api_versions(broker.host, broker.ports[1]), "the other core's answers")
    parent.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
    eventually(lambda: answers_api_versions(broker.host, broker.ports[0]), "the new core's answers")
    assert cores_of(broker)[1] == before[1]
    broker.stop()


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """Without listeners, of cores that do nothing."""

    def options(
        _supervisor: Supervisor, core: CoreId, *, control_fd: int, beats_fd: int = -1, recover_only: bool = False
    ) -> CoreOptions:
        return CoreOptions(
            core, 1, str(tmp_path), (), (), control_fd, control_fd, (), None, "", (), "json", "INFO", os.getpid(),
            recover_only=recover_only, beats_fd=beats_fd,
        )  # fmt: skip

    monkeypatch.setattr(supervisor, "CORE_COMMAND", (sys.executable, "-c", "import time; time.sleep(600)"))
    monkeypatch.setattr(Supervisor, "_core_options", options)
    return Supervisor(ServeOptions(tmp_path, (), 1, None, "", (), (), "json", "INFO"), print)


def descriptors_of_no_network() -> set[tuple[int, str]]:
    """Of this process, and what each is of. Threads of clients that other tests have left connect when they want."""
    of_network = {each.fd for each in psutil.Process().net_connections("inet")}
    found = set()
    for number in open_descriptors() - of_network:
        with contextlib.suppress(FileNotFoundError):
            found.add((number, str(Path(f"/proc/self/fd/{number}").readlink())))
    return found


@contextlib.contextmanager
def nothing_left_where_there_is_no(module: ModuleType, name: str) -> Iterator[None]:
    def fails(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    descriptors, children = descriptors_of_no_network(), set(psutil.Process().children())
    with mock.patch.object(module, name, fails):
        yield
    # A socket that is just being connected is not yet of the network.
    eventually(lambda: descriptors_of_no_network() <= descriptors, f"no descriptor but these: {descriptors}")
    eventually(lambda: children >= set(psutil.Process().children()), f"no child but these: {children}")


@pytest.mark.parametrize(
    ("module", "name"),
    [(socket, "socketpair"), (os, "eventfd"), (os, "memfd_create"), (subprocess, "Popen"), (os, "pidfd_open")],
)
def test_nothing_is_left_of_a_core_that_could_not_be_started(lonely: Supervisor, module: ModuleType, name: str) -> None:
    with nothing_left_where_there_is_no(module, name), pytest.raises(OSError, match="Too many open files"):
        lonely._spawn(CoreId(0))


@pytest.mark.parametrize(("module", "name"), [(os, "memfd_create"), (subprocess, "Popen"), (os, "pidfd_open")])
def test_a_recovery_that_cannot_be_started_is_refused_and_does_not_go_on(
    lonely: Supervisor, module: ModuleType, name: str
) -> None:
    of_two_cores: Any = SimpleNamespace(journal_cores=lambda: [0, 1], cores=2)
    with nothing_left_where_there_is_no(module, name), pytest.raises(StartError, match="Too many open files"):
        trio.run(lonely._recover_if_cores_changed, of_two_cores)


def test_settings_may_be_longer_than_an_argument(tmp_path: Path) -> None:
    """And what is set is not in a list of processes, which other users see."""
    broker = TpcBroker(tmp_path, cores_count=1)
    settings = tmp_path / "settings"
    settings.write_text("num.partitions=3\n" * 20_000)
    broker.more_options = ["--config", str(settings)]
    broker.start()
    try:
        (core,) = cores_of(broker).values()
        assert json.loads(core.cmdline()[-1]).keys() == {"core", "data", "options_fd"}
        broker.stop()
    finally:
        broker.kill()


def test_sigterm_drains_and_ends_with_0(broker: TpcBroker) -> None:
    broker.stop()
    log = broker.log_text()
    assert log.count('"message": "draining"') == 2
    assert "core 0 drained" in log
    assert "core 1 drained" in log
    assert "killing it" not in log


def test_the_signals_of_a_terminal_go_to_all_and_drain_once(broker: TpcBroker) -> None:
    cores = list(cores_of(broker).values())
    os.killpg(broker.process.pid, signal.SIGINT)
    eventually(lambda: not broker.process.is_running, "the end")
    assert broker.process.exit_code == 0
    assert not any(core.is_running() for core in cores)
    assert broker.log_text().count("drained") == 2
    assert "ended (" not in broker.log_text()


def test_a_second_sigterm_hurries(tmp_path: Path) -> None:
    """A core that cannot drain holds the end up until the deadline; a second signal does not wait for that. No machine
    pauses for as long as the deadline, nor for as long as a core may be silent.
    """
    broker = TpcBroker(tmp_path, cores_count=2, overrides={"drain.deadline.ms": str(limits.DRAIN_DEADLINE_MS_MAX)})
    begins_with(broker, SILENT_FOR_HOURS, tmp_path)
    broker.start()
    try:
        cores_of(broker)[1].send_signal(signal.SIGSTOP)
        supervisor = psutil.Process(broker.process.pid)
        supervisor.send_signal(signal.SIGTERM)
        eventually(lambda: "core 0 drained" in broker.log_text(), "the core that can drain")
        assert broker.process.is_running
        supervisor.send_signal(signal.SIGTERM)
        eventually(lambda: not broker.process.is_running, "the end")
        assert broker.process.exit_code == 0
    finally:
        broker.kill()
    assert "SIGTERM again: hurrying" in broker.log_text()
    assert "core 1 did not drain in time; killing it" in broker.log_text()


def test_the_time_that_a_drain_may_take_is_a_setting(tmp_path: Path) -> None:
    """Of a broker in which it would be an hour without that."""
    broker = TpcBroker(tmp_path, cores_count=1, overrides={"drain.deadline.ms": "1500"})
    begins_with(broker, SILENT_FOR_HOURS + "limits.DRAIN_DEADLINE_MS = 3_600_000\n", tmp_path)
    broker.start()
    try:
        cores_of(broker)[0].suspend()
        with takes_at_least(1.5):
            psutil.Process(broker.process.pid).send_signal(signal.SIGTERM)
            eventually(lambda: not broker.process.is_running, "the end")
        assert "core 0 did not drain in time; killing it" in broker.log_text()
    finally:
        broker.kill()


def test_cores_die_with_their_supervisor(broker: TpcBroker) -> None:
    cores = list(cores_of(broker).values())
    assert len(cores) == 2
    os.kill(broker.process.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(cores, timeout=PATIENCE_S)
    assert alive == []
    eventually(lambda: not any(answers_api_versions(broker.host, port) for port in broker.ports), "closed ports")


def test_a_core_that_ignores_the_terminal_s_signals_lives_on(broker: TpcBroker) -> None:
    before = cores_of(broker)
    for core in before.values():
        core.send_signal(signal.SIGTERM)
        core.send_signal(signal.SIGINT)
    for port in broker.ports:
        eventually(lambda port=port: answers_api_versions(broker.host, port), "an answer")
    assert {core: process.pid for core, process in cores_of(broker).items()} == {
        core: process.pid for core, process in before.items()
    }
    broker.stop()


@pytest.mark.machine
def test_a_core_that_hangs_is_killed_and_started_again(broker: TpcBroker) -> None:
    hanging = cores_of(broker)[1]
    hanging.send_signal(signal.SIGSTOP)
    eventually(lambda: "core 1 gave no sign of life" in broker.log_text(), "the supervisor to notice")
    eventually(lambda: answers_api_versions(broker.host, broker.ports[1]), "the new core's answers")
    assert cores_of(broker)[1].pid != hanging.pid
    broker.stop()


def test_no_thread_but_the_first_takes_signals(broker: TpcBroker) -> None:
    """At the end of the supervisor that one has blocked them, so that a second SIGTERM changes no exit code."""
    supervisor = Path(f"/proc/{broker.process.pid}")
    for thread in (supervisor / "task").iterdir():
        if thread.name == supervisor.name:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            status = (thread / "status").read_text()
            blocked = int(re.search(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)[1], 16)
            assert blocked >> (signal.SIGTERM - 1) & 1, status
    broker.stop()


@pytest.mark.machine
def test_cores_of_a_machine_that_was_paused_live_on(broker: TpcBroker) -> None:
    """What the supervisor does first when it goes on is to look after cores that could not yet give a sign of life."""
    supervisor, cores = psutil.Process(broker.process.pid), list(cores_of(broker).values())
    for process in (supervisor, *cores):
        process.suspend()
    let_pass(limits.CORE_HEARTBEAT_MISSED_MS / 1000 + 3)
    supervisor.resume()
    let_pass(2 * limits.CORE_HEARTBEAT_MS / 1000)
    for core in cores:
        core.resume()
    for port in broker.ports:
        eventually(lambda port=port: answers_api_versions(broker.host, port), "the core's answers")
    assert list(cores_of(broker).values()) == cores
    assert "killing it" not in broker.log_text()
    broker.stop()


def test_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "600000")
        broker = TpcBroker(tmp_path / "broker", cores_count=1)
        broker.start()
        try:
            said = [manager.recv(100).decode()]
            while "READY=1" not in said or "WATCHDOG=1" not in said[said.index("READY=1") :]:
                said.append(manager.recv(100).decode())
            kept = {"FDSTOREREMOVE=1\nFDNAME=listener", "FDSTORE=1\nFDPOLL=0\nFDNAME=listener"}
            assert set(said) == kept | {"READY=1", "WATCHDOG=1"}
            broker.stop()
            while said[-1] != "STOPPING=1":
                said.append(manager.recv(100).decode())
        finally:
            broker.kill()
    assert said.count("READY=1") == 1


def test_ready_is_said_once_and_after_every_port_answers(broker: TpcBroker) -> None:
    eventually(lambda: "tpc-broker is ready: 2 cores on 127.0.0.1:" in broker.log_text(), "ready")
    before = cores_of(broker)
    broker.kill_core(0)
    eventually(lambda: {p.pid for p in cores_of(broker).values()} != {p.pid for p in before.values()}, "a new core")
    eventually(lambda: all(answers_api_versions(broker.host, port) for port in broker.ports), "both cores")
    broker.stop()
    assert broker.log_text().count("is ready") == 1


@contextlib.contextmanager
def broker_just_launched(folder: Path, cores_count: int, code: str = "") -> Iterator[TpcBroker]:
    """Its supervisor runs and has children; nothing is ready yet. Each begins with this code."""
    broker = TpcBroker(folder, cores_count=cores_count)
    begins_with(broker, code, folder)
    broker.launch()
    try:
        eventually(
            lambda: len(broker.core_processes()) == cores_count or not broker.process.is_running, "the cores' processes"
        )
        assert broker.process.is_running, broker.log_text()
        yield broker
    finally:
        broker.kill()


def test_a_start_can_be_stopped_at_once(tmp_path: Path) -> None:
    """Whatever its cores are doing: one hears nothing, and the other one waits for it."""
    with broker_just_launched(tmp_path, cores_count=2, code=CORE_0_STOPS) as broker:
        eventually(lambda: sorted(cores_of(broker)) == [0, 1], "both cores")
        first = cores_of(broker)[0]
        eventually(lambda: first.status() == psutil.STATUS_STOPPED, "core 0's last instruction")
        eventually(lambda: '"origin": "core 1"' in broker.log_text(), "core 1's own start")
        os.killpg(broker.process.pid, signal.SIGINT)
        eventually(lambda: not broker.process.is_running, "the end")
        assert broker.process.exit_code == 0
        assert "core 0 was not up yet" in broker.log_text()
        assert "did not drain in time" not in broker.log_text()


def test_a_core_ignores_the_terminal_s_signals_from_its_first_instruction_on(tmp_path: Path) -> None:
    with broker_just_launched(tmp_path, cores_count=1) as broker:
        eventually(lambda: 0 in cores_of(broker), "the core's process")
        core = cores_of(broker)[0]
        for _ in range(20):
            core.send_signal(signal.SIGINT)
            core.send_signal(signal.SIGTERM)
            let_pass(0.02)
        eventually(lambda: answers_api_versions(broker.host, broker.ports[0]), "the core's answers")
        assert broker.core_processes() == [core]
        broker.stop()
        assert "Traceback" not in broker.log_text()
