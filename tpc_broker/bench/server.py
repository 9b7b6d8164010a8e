"""A server under measurement: a child process group with its log, its CPU time and its memory, read from /proc."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORT_LOWEST: Final = 20_000
_PORT_HIGHEST: Final = 32_000
_LOOK_S: Final = 0.2
_QUIET_SHARE: Final = 0.1
"""Of one CPU: a server that uses less is idle."""
_QUIET_LOOKS: Final = 3
_GLANCES: Final = 4
"""Per look, for threads that wait for the disk."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class PeerUnavailable(RuntimeError):  # noqa: N818 (it says what is)
    """A peer cannot be had on this machine; the message is the reason why its rows are missing."""


class ServerFailed(RuntimeError):  # noqa: N818 (it says what happened)
    """A server did not start or ended by itself; the message carries the end of its log."""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> int:
    """The first of `count` consecutive loopback ports that were free a moment ago."""
    for _ in range(1000):
        first = random.randrange(_PORT_LOWEST, _PORT_HIGHEST - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise ServerFailed(f"no {count} consecutive free ports from {_PORT_LOWEST} to {_PORT_HIGHEST}")


def _status_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third one on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def has_ended(group: int) -> bool:
    """Whether no thread of a process group runs any more. What init has not yet taken notice of still is in the group:
    some look for the dead every other second only. Such a process has given its files and rings back.
    """
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, _parent, its_group = _status_fields(int(folder.name))[:3]
                if int(its_group) == group:
                    threads = [path.name for path in (folder / "task").iterdir()]
                    if state not in "ZX" or threads != [folder.name]:
                        return False
    return True


def _end_with(parent_pid: int) -> None:
    """In a child, before its program begins: it is killed when the thread that started it ends, whatever ends that."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it ended before the call above
        os._exit(1)


class Server:
    """One command in a session of its own. `start` waits until every port takes connections."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:  # fmt: skip
        """`host`: where its ports are."""
        self.host = host
        self._command = list(map(str, command))
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ports: Sequence[int], deadline_s: float = 60.0) -> None:
        self.launch()
        self.wait_listening(ports, deadline_s)

    def launch(self) -> None:
        """Wait for nothing."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                start_new_session=True,
                preexec_fn=partial(_end_with, os.getpid()),  # noqa: PLW1509 (no thread that holds a lock: it only calls the kernel)
            )  # fmt: skip

    def wait_listening(self, ports: Sequence[int], deadline_s: float = 60.0) -> None:
        """`ServerFailed` when it ends before, or at the deadline; it is killed then."""
        assert self._process is not None
        give_up_at = time.monotonic() + deadline_s
        for port in ports:
            while not self._takes_connections(port):
                if self._process.poll() is not None or time.monotonic() > give_up_at:
                    self.kill()
                    raise ServerFailed(f"{self._command[0]} does not listen on {port}\n{self.log_tail()}")
                time.sleep(0.01)

    def _takes_connections(self, port: int) -> bool:
        try:
            socket.create_connection((self.host, port), timeout=1).close()
        except OSError:
            return False
        return True

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def pids(self) -> list[int]:
        """The process and everything in its session that lives."""
        if self._process is None:
            return []
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError, IndexError):
                    if int(_status_fields(int(folder.name))[3]) == self._process.pid:
                        found.append(int(folder.name))
        return found

    def cpu_s(self) -> float:
        """User and system time of all its processes so far, of those that ended too when the parent waited for them."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = _status_fields(pid)
                total += int(fields[11]) + int(fields[12])
                if self._process is not None and pid == self._process.pid:
                    total += int(fields[13]) + int(fields[14])
        return total / _TICKS_PER_S

    def resident_by_pid(self) -> dict[int, int]:
        """Bytes of memory in RAM per process; a page that several share counts by its share."""
        found = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        found[pid] = int(line.split()[1]) * 1024
        return found

    def resident_bytes(self) -> int:
        return sum(self.resident_by_pid().values())

    def settle(self, deadline_s: float = 15.0) -> float:
        """Wait until it is idle: what a server does after its start (fill a journal, warm up) is not to be measured.

        Idle means that it uses hardly any CPU and that none of its threads is seen waiting for the disk. Returns the
        seconds it took; at the deadline it goes on as it is.
        """
        began = time.monotonic()
        quiet = 0
        while quiet < _QUIET_LOOKS and time.monotonic() - began < deadline_s:
            before_s, waited = self.cpu_s(), False
            for _ in range(_GLANCES):
                time.sleep(_LOOK_S / _GLANCES)
                waited = waited or self._waits_for_disk()
            quiet = quiet + 1 if not waited and self.cpu_s() - before_s <= _QUIET_SHARE * _LOOK_S else 0
        return time.monotonic() - began

    def _waits_for_disk(self) -> bool:
        """Whether a thread sleeps uninterruptibly now."""
        for pid in self.pids():
            with contextlib.suppress(OSError):  # threads, and whole processes, may end meanwhile
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    if (thread / "stat").read_text().rpartition(")")[2].split(maxsplit=1)[0] == "D":
                        return True
        return False

    def stop(self, deadline_s: float = 30.0) -> None:
        """SIGTERM and wait; SIGKILL to what is left."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(deadline_s)
        self.kill()

    def begin_kill(self) -> None:
        """SIGKILL to every process of the group."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """To every process of the group; waits for nothing."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL to every process of the group, and wait until none of it runs."""
        if self._process is None:
            return
        self.begin_kill()
        self._process.wait()
        while not has_ended(self._process.pid):
            time.sleep(0.005)
        self._process = None


class Servers(Server):
    """Several servers that are measured as one; each is started by itself."""

    def __init__(self, members: Sequence[Server]) -> None:
        self.members = tuple(members)

    def start(self, ports: Sequence[int], deadline_s: float = 60.0) -> None:
        raise NotImplementedError("each member is started by itself")

    def log_tail(self) -> str:
        return "\n".join(member.log_tail() for member in self.members)

    def pids(self) -> list[int]:
        return [pid for member in self.members for pid in member.pids()]

    def cpu_s(self) -> float:
        return sum(member.cpu_s() for member in self.members)

    def stop(self, deadline_s: float = 30.0) -> None:
        for member in self.members:
            member.stop(deadline_s)

    def kill(self) -> None:
        for member in self.members:
            member.kill()
