"""Whether a measurement had the machine to itself.

On a machine of two CPUs a compiler or a cron job beside a round is part of its figures, mostly of its tail. What the
CPUs did is known, and what the bench, its generators and the server used as well; the rest was somebody else's, or
the kernel's on nobody's account.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tpc_broker.bench.server import Server

NOTED_FROM_CPUS: Final = 0.25
"""A round beside which others used this much of one CPU says so. Interrupts and kernel threads alone reach 0.15."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BUSY_FIELDS: Final = (0, 1, 2, 5, 6)
"""Of the first line of /proc/stat, see proc_stat(5): user, nice, system, irq, softirq."""


def machine_cpu_s(stat: str) -> float:
    """CPU seconds that all CPUs have worked since the machine started, by the text of /proc/stat."""
    fields = stat.splitlines()[0].split()[1:]
    return sum(int(fields[place]) for place in _BUSY_FIELDS) / _TICKS_PER_S


class Others:
    """Watches from its making until `cpus` is asked."""

    def __init__(self, server: Server | None) -> None:
        self._server = server
        self._pids = self._server_pids()
        self._began_s = time.monotonic()
        self._before_s = self._theirs_s()

    def _server_pids(self) -> set[int]:
        return set(self._server.pids()) if self._server is not None else set()

    def _theirs_s(self) -> float:
        ours = os.times()
        used_s = ours.user + ours.system + ours.children_user + ours.children_system
        server_s = self._server.cpu_s() if self._server is not None else 0.0
        return machine_cpu_s(Path("/proc/stat").read_text()) - used_s - server_s

    def cpus(self) -> float:
        """How many CPUs others kept busy, on average.

        0 when the server's processes are not those of the beginning: what one used that has ended is not known.
        """
        if self._server_pids() != self._pids:
            return 0.0
        return max(0.0, (self._theirs_s() - self._before_s) / (time.monotonic() - self._began_s))
