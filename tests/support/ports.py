"""Free loopback ports for the servers that tests start."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from collections import deque
from pathlib import Path
from typing import Final

_LOWEST: Final = 20_000
"""Well under Linux's default range of ephemeral ports, so that no outgoing connection takes one meanwhile."""
_HIGHEST: Final = 32_000
_RANGES_MAX, _PORTS_MAX = 16, 700
"""What one process keeps for itself: more, all over the place, would leave no room for a large range."""


class _Reservations:
    """Ranges that this process has given out. What they are for may not be bound yet, or no more for a while: a node of
    a cluster that is started later, a broker between two starts. They are locked bytes of a file, one a port, so that
    the kernel gives them back when the process ends, however it ends.
    """

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir()) / f"tpc-test-ports-{os.getuid()}"
        self._pid = -1
        self._fd = -1
        self._kept: deque[range] = deque()
        """Oldest first; locks of one process do not keep that process itself out."""

    def take(self, ports: range) -> bool:
        if self._pid != os.getpid():  # a forked child has none of its parent's locks
            self._pid, self._fd = os.getpid(), os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._kept.clear()
        if any(ports.start < kept.stop and kept.start < ports.stop for kept in self._kept):
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
        except OSError:
            return False
        if not all(map(_is_free, ports)):
            self._unlock(ports)
            return False
        self._kept.append(ports)
        while len(self._kept) > _RANGES_MAX or (len(self._kept) > 1 and sum(map(len, self._kept)) > _PORTS_MAX):
            self._unlock(self._kept.popleft())
        return True

    def _unlock(self, ports: range) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, len(ports), ports.start)


_reservations = _Reservations()


def _is_free(port: int) -> bool:
    """For connections and for datagrams."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as of_datagrams,
    ):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen(1)
            of_datagrams.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port_range(count: int) -> int:
    """First of `count` consecutive loopback ports that nothing listened on a moment ago. No other test on this machine
    is given them, and this process not again, before it was given some others.

    A process that does not ask here may take one all the same.
    """
    chooser = random.Random()
    for _ in range(1000):
        first = chooser.randrange(_LOWEST, _HIGHEST - count)
        if _reservations.take(range(first, first + count)):
            return first
    raise RuntimeError(f"no {count} consecutive free ports in {_LOWEST}-{_HIGHEST}")
