"""Whether a core hangs, judged by what it did and not by the clock on the wall.

A core adds to a counter (eventfd(2)) while its loop turns; whoever judges reads that counter in the same moment, so no
sign of life waits in a queue. Time without one is *charged* only as far as the core could have used it:

* a look that comes late counts as one that was on time: a machine that was paused, or a supervisor that got no CPU,
  says nothing about a core;
* a core that could run but got no CPU (R of proc(5)), or that waits for the disk or for memory (D; a signal would not
  reach it either), is charged the CPU time that it used, so that one that spins without end is found all the same;
* one that sleeps or is stopped (S, T) is charged all of it;
* a look that could not be made, because the supervisor has no descriptor for it, charges nothing.

A core hangs when `CORE_HEARTBEAT_MISSED_MS` are charged. One that was silent at so many looks and does not hang is
starved: to kill it would only add a start to the work of a machine that has too much.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tpc_broker import limits

TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
HELD_UP_STATES: Final = frozenset("RD")
_ENDED: Final = (FileNotFoundError, ProcessLookupError)


@dataclass(frozen=True, slots=True)
class Activity:
    """What the kernel says of a process: CPU time used since its start, and whether any thread could run or waits for
    the disk.
    """

    cpu_ms: int
    is_held_up: bool


def activity_of(pid: int) -> Activity | None:
    """None: it has ended. OSError: it cannot be looked at now (descriptors are short), which says nothing of it."""
    process = Path(f"/proc/{pid}")
    states = set()
    try:
        for thread in (process / "task").iterdir():
            with contextlib.suppress(*_ENDED):  # this thread
                states.add(_fields(thread)[0])
        fields = _fields(process)
    except _ENDED:
        return None
    return Activity((int(fields[11]) + int(fields[12])) * TICK_MS, not HELD_UP_STATES.isdisjoint(states))


def _fields(folder: Path) -> list[str]:
    """Of `stat`, from the third on, the state: the second may have spaces in it."""
    return (folder / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()


class Judgement(Enum):
    FINE = "fine"
    STARVED = "starved"
    """Said once for a silence."""
    RECOVERED = "recovered"
    """From starvation."""
    HANGS = "hangs"


class CoreWatch:
    """The watch over one life of one core: a look each `CORE_HEARTBEAT_MS`, or as soon after that as there is time."""

    def __init__(self, now_ms: float) -> None:
        self._heard_at_ms = now_ms
        self._observed_ms = self._charged_ms = 0
        self._cpu_first_ms: int | None = None
        self._cpu_ms = 0
        self._is_starved = False
        self.silent_ms = 0
        """How long the present silence lasts, or the one that just ended did."""

    @property
    def cpu_ms(self) -> int:
        """CPU time used in this silence."""
        return 0 if self._cpu_first_ms is None else self._cpu_ms - self._cpu_first_ms

    def heard(self, now_ms: float) -> Judgement:
        """The core gave signs of life since the last look."""
        judgement = Judgement.RECOVERED if self._is_starved else Judgement.FINE
        self.silent_ms = round(now_ms - self._heard_at_ms)
        self._heard_at_ms = now_ms
        self._observed_ms = self._charged_ms = 0
        self._cpu_first_ms = None
        self._is_starved = False
        return judgement

    def silent(self, now_ms: float, activity: Activity | None) -> Judgement:
        """It gave none."""
        self.silent_ms = round(now_ms - self._heard_at_ms)
        self._observed_ms += limits.CORE_HEARTBEAT_MS
        if activity is None or not activity.is_held_up:
            self._charged_ms += limits.CORE_HEARTBEAT_MS
        elif self._cpu_first_ms is not None:
            self._charged_ms += min(activity.cpu_ms - self._cpu_ms, limits.CORE_HEARTBEAT_MS)
        if activity is not None:
            self._cpu_ms = activity.cpu_ms
            if self._cpu_first_ms is None:
                self._cpu_first_ms = activity.cpu_ms
        if self._charged_ms > limits.CORE_HEARTBEAT_MISSED_MS:
            return Judgement.HANGS
        if self._is_starved or self._observed_ms <= limits.CORE_HEARTBEAT_MISSED_MS:
            return Judgement.FINE
        self._is_starved = True
        return Judgement.STARVED
