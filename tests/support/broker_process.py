"""Our broker as a child process, started with its real command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from tests.support.ports import free_port_range
from tests.support.server_process import ServerFailed, ServerProcess, answers_api_versions
from tests.support.waiting import PATIENCE_S
from tpc_broker.options import StartError
from tpc_broker.process.main import main
from tpc_broker.process.supervisor import CHECK_ONLY_VARIABLE
from tpc_broker.telemetry.status import read_status

_COMMAND = [sys.executable, "-m", "tpc_broker.process.main"]
NO_DELAY = {"group.initial.rebalance.delay.ms": "0"}
"""As Kafka's own tests have it: each new group would wait three seconds for more members."""


def run_command(
    *arguments: str, timeout_seconds: float = PATIENCE_S, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """`tpc-broker ARGUMENTS…` to its end, for tests of what it refuses. `prefix`: as `TpcBroker.prefix`."""
    return subprocess.run(
        [*prefix, *_COMMAND, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_seconds, check=False,
    )  # fmt: skip


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, which costs a start of Python less: for commands that end by themselves."""
    done = CliRunner().invoke(main, arguments, prog_name="tpc-broker", catch_exceptions=False)
    return subprocess.CompletedProcess(["tpc-broker", *arguments], done.exit_code, done.stdout, done.stderr)


def serve_refusing(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`tpc-broker serve ARGUMENTS…` in this process as far as it judges its options; with good ones it ends with 0."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHECK_ONLY_VARIABLE, "1")
        return run_here("serve", *arguments)


def _is_cleaner(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return any("cleaner_process" in word for word in process.cmdline())
    return False


class TpcBroker:
    """`tpc-broker serve` with `cores_count` cores on free consecutive loopback ports, data under `folder`.

    Both counts may be changed before a start; ports are chosen once, for `cores_count_max` cores.
    """

    name = "tpc"

    def __init__(self, folder: Path, cores_count: int = 2, overrides: dict[str, str] | None = None) -> None:
        self.environment: dict[str, str] = {}
        self.folder = folder
        self.cores_count = cores_count
        self.cores_count_max = cores_count
        self.overrides = overrides or {}
        self.prefix: list[str] = []
        """What stands before the command, for example a program that puts it under a seccomp filter."""
        self.more_options: list[str] = []
        """Of the command `serve`."""
        self.shares_cpus = True
        """With the tests' other brokers; else each core is pinned to its CPU, as with a user."""
        self.host = "127.0.0.1"
        self._first_port = 0
        self._process: ServerProcess | None = None

    @property
    def ports(self) -> list[int]:
        return list(range(self._first_port, self._first_port + self.cores_count))

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self._first_port}"

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    def command(self) -> list[str]:
        options = [f"--override={key}={value}" for key, value in {**NO_DELAY, **self.overrides}.items()]
        place = ["--data", str(self.data_folder), "--listen", self.bootstrap, "--cores", str(self.cores_count)]
        place += ["--oversubscribe"] if self.shares_cpus else []
        return [*self.prefix, *_COMMAND, "serve", *place, *options, *self.more_options]

    def launch(self) -> None:
        """Start the process; does not wait for anything."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._first_port:
            self._first_port = free_port_range(max(self.cores_count, self.cores_count_max))
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment}
        self._process = ServerProcess(self.command(), self.folder / "broker.log", environment)
        self._process.launch()

    def start(self) -> None:
        """Start and wait until every core answers; on a port that was taken meanwhile, try another range."""
        fixed = self._first_port != 0
        for attempt in range(3):
            if not fixed:
                self._first_port = 0
            self.launch()
            try:
                self.process.wait_answering(self.host, self.ports, PATIENCE_S)
            except ServerFailed as failure:
                if fixed or attempt == 2 or "in use" not in str(failure):
                    raise
            else:
                return

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        """SIGTERM; the drain must end by itself with exit code 0."""
        if self._process is None:
            return
        code = self._process.terminate()
        if code != 0:
            raise ServerFailed(f"exit code {code} after SIGTERM\n{self._process.log_tail()}")

    def kill(self) -> None:
        """SIGKILL the supervisor and all cores at once."""
        if self._process is not None:
            self._process.kill()

    def core_process(self, core: int) -> psutil.Process:
        """The process of one core, by what its command line says."""
        for process in self.core_processes():
            with contextlib.suppress(psutil.NoSuchProcess, ValueError, IndexError, KeyError, TypeError):
                if json.loads(process.cmdline()[-1])["core"] == core:
                    return process
        raise ServerFailed(f"core {core} has no process\n{self.process.log_tail()}")

    def wait_core_replaced(self, core: int, old_pid: int, deadline_seconds: float = PATIENCE_S) -> None:
        """Return once another process is this core and answers."""
        give_up_at = time.monotonic() + deadline_seconds
        while True:
            with contextlib.suppress(ServerFailed):
                if self.core_process(core).pid != old_pid and answers_api_versions(self.host, self.ports[core]):
                    return
            if not self.process.is_running or time.monotonic() > give_up_at:
                raise ServerFailed(f"core {core} did not come back\n{self.process.log_tail()}")
            time.sleep(0.02)

    def core_processes(self) -> list[psutil.Process]:
        """The supervisor's children but for cleaners, oldest first."""
        cores = [process for process in self.process.processes()[1:] if not _is_cleaner(process)]
        return sorted(cores, key=lambda process: process.create_time())

    def cleaner_processes(self) -> list[psutil.Process]:
        """Of this node, and those of their jobs."""
        return [process for process in self.process.processes()[1:] if _is_cleaner(process)]

    def counters(self) -> list[dict[str, Any]]:
        """What each core counts, by core."""
        return [core["counters"] for core in self.status()["cores"]]

    def status(self) -> dict[str, Any]:
        """What `status` tells. Asked again until all cores have answered: the supervisor waits a second for a core, and
        leaves out what one says that a busy machine keeps waiting for longer.
        """
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(StartError):  # nor does the supervisor itself always answer in its time
                found: dict[str, Any] = {**read_status(self.data_folder)}
                if all(core.get("counters") is not None for core in found["cores"]):
                    return found
            if not self.process.is_running or time.monotonic() > give_up_at:
                raise ServerFailed(f"not every core tells its counters\n{self.process.log_tail()}")
            time.sleep(0.02)

    def kill_core(self, position: int) -> None:
        """SIGKILL one child of the supervisor."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.core_processes()[position].send_signal(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_text(self) -> str:
        return self.process.log_text()

    def resident_bytes(self) -> int:
        """Of the supervisor and the cores: a cleaner may begin and end at any time."""
        total = 0
        for process in [*self.process.processes()[:1], *self.core_processes()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total
