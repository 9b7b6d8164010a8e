"""A server that a test runs as a child process: its log, its readiness, its end, its memory.

Both peers of the differential test are such processes (`kafka_peer`, `broker_process`), so a test that is written
against `ServerProcess` runs against either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Protocol

import psutil

from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.bench.server import has_ended

_SETPRIV = shutil.which("setpriv")


class ServerFailed(RuntimeError):  # noqa: N818 (it says what happened, like FileNotFound)
    """A server did not start, did not stop, or ended by itself; the message carries the end of its log."""


class Broker(Protocol):
    """What a client test needs of a broker, whichever it is."""

    @property
    def bootstrap(self) -> str:
        """`host:port` for clients."""
        ...

    @property
    def ports(self) -> list[int]:
        """Every port that clients may be sent to, in the order of the broker ids."""
        ...

    @property
    def name(self) -> str:
        """`kafka` or `tpc`."""
        ...

    def restart(self) -> None:
        """Stop in an orderly way and start again on the same data and ports."""

    def kill(self) -> None:
        """End at once, without any orderly step."""

    def start(self) -> None:
        """Start and wait until clients are answered."""

    def stop(self) -> None:
        """Stop in an orderly way."""

    def log_text(self) -> str:
        """Everything the broker said so far, over all starts."""
        ...

    def resident_bytes(self) -> int:
        """Memory of all its processes that is in RAM."""
        ...


def answers_api_versions(host: str, port: int, timeout_seconds: float = LOOK_S) -> bool:
    """Whether a Kafka broker answers an ApiVersions request of version 0 there."""
    request = struct.pack(">hhih", 18, 0, 7, -1)
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as peer:
            peer.sendall(struct.pack(">i", len(request)) + request)
            head = peer.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 8 and struct.unpack(">i", head[4:])[0] == 7


def _ending_with_us() -> list[str]:
    """What stands before a command that the kernel is to kill when this process ends, however it ends. A broker's cores
    end with their supervisor.

    That signal comes when the *thread* ends that has started the command, so only the main one may ask for it. Setpriv,
    of util-linux, asks and becomes the command; a `preexec_fn` would run Python beside the threads of the clients here.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return [_SETPRIV, "--pdeathsig", "KILL", "--"] if is_main and _SETPRIV is not None else []


class ServerProcess:
    """One child process in a process group of its own, with its output in a file; it does not outlive this process."""

    def __init__(self, command: list[str], log_path: Path, environment: dict[str, str] | None = None) -> None:
        self.command = command
        self.log_path = log_path
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log_file: IO[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the last run; None while it runs or if there was none."""
        return None if self._process is None else self._process.poll()

    def launch(self) -> None:
        """Start the process; does not wait for anything."""
        assert not self.is_running
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        self._log_file = self.log_path.open("ab")
        self._process = subprocess.Popen(
            [*_ending_with_us(), *self.command],
            stdin=subprocess.DEVNULL,
            stdout=self._log_file,
            stderr=subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
        )

    def wait_answering(self, host: str, ports: list[int], deadline_seconds: float) -> None:
        """Return once every port answers ApiVersions; raise with the log when it ends before or takes too long."""
        give_up_at = time.monotonic() + deadline_seconds
        waiting = list(ports)
        while waiting:
            if not self.is_running:
                self.kill()
                raise ServerFailed(f"ended with {self.exit_code} before it was ready\n{self.log_tail()}")
            if time.monotonic() > give_up_at:
                self.kill()
                raise ServerFailed(f"no answer on {waiting} in {deadline_seconds} s\n{self.log_tail()}")
            if answers_api_versions(host, waiting[0]):
                waiting.pop(0)
            else:
                time.sleep(0.02)

    def send(self, number: signal.Signals) -> None:
        """A signal to the process itself."""
        assert self._process is not None
        self._process.send_signal(number)

    def terminate(self, deadline_seconds: float = PATIENCE_S) -> int:
        """SIGTERM to the process itself and wait; returns the exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.terminate()
        try:
            code = self._process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"did not stop in {deadline_seconds} s\n{self.log_tail()}") from None
        self._reap()
        return code

    def kill(self) -> None:
        """SIGKILL to every process of the group."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reap()

    def _reap(self) -> None:
        """After the main process is gone: end what it left behind in its group, and wait until none of it runs."""
        assert self._process is not None
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                break
            if has_ended(self._process.pid):
                break
            if time.monotonic() > give_up_at:
                raise ServerFailed(f"group {self._process.pid} did not end")
            time.sleep(0.01)
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    def processes(self) -> list[psutil.Process]:
        """The process and all its descendants that still live."""
        if not self.is_running:
            return []
        main = psutil.Process(self.pid)
        return [main, *main.children(recursive=True)]

    def resident_bytes(self) -> int:
        total = 0
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_of_this_run(self) -> str:
        """What was written since the last launch."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def log_tail(self, lines_count: int = 60) -> str:
        return "\n".join(self.log_of_this_run().splitlines()[-lines_count:])
