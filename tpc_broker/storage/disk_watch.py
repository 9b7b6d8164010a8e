"""What a core has asked its disk for and has no answer to.

A disk that hangs says nothing: no call fails, none ends. So the one place through which a core's operations go to the
disk notes each of them for as long as it is under way, and whoever has to act in time asks for how long the oldest has
been (`raft.core`: such a core leads nothing). It does not matter which one it is, and what the disk did before.

*Short* ones are those that appends, or a metadata change, may wait for: a file is made or opened, space is taken, the
page cache or a name is written. The disk is not expected to take seconds for one of them, whatever else it does. *Long*
ones bring much to the disk or free much of it, behind everybody's back, and may take their time: that they hang is felt
only where the journal has no room left, which it is they who make. Reads are neither: without them nobody's append
waits.

Time in which nobody looked does not count: a process that was stopped, or had no CPU, finds answers that had come long
ago, and could not have seen them.
"""

from __future__ import annotations

from typing import Final

import trio

LOOKS_S_MAX: Final = 1.1
"""Between two looks: a little more than a driver's longest rest."""


class DiskWatch:
    """Of one core, touched by its thread only."""

    def __init__(self) -> None:
        self._short: dict[int, tuple[float, str, object]] = {}
        self._long: dict[int, tuple[float, str, object]] = {}
        """In the order in which they began."""
        self._number = 0
        self._looked_s = self._unseen_s = self._answered_s = 0.0

    def begin(self, name: str, what: object, *, is_long: bool = False) -> int:
        """An operation; `what`: the path, or the descriptor, that it is about. Its number, for `end`."""
        self._number = number = self._number + 1
        (self._long if is_long else self._short)[number] = (self._now_s(), name, what)
        return number

    def end(self, number: int) -> None:
        """However it ended."""
        if self._short.pop(number, None) is None:
            del self._long[number]
        self._answered_s = self._now_s()

    def _now_s(self) -> float:
        return trio.current_time() - self._unseen_s

    def look(self) -> None:
        """To be called often."""
        now_s = trio.current_time()
        if self._looked_s:
            self._unseen_s += max(0.0, now_s - self._looked_s - LOOKS_S_MAX)
        self._looked_s = now_s

    def seen_ms(self) -> int:
        """A clock without the time in which nobody looked."""
        return int(self._now_s() * 1000)

    def short_ms(self) -> int:
        """How long the oldest short one has been under way; 0: none is."""
        return self._age_ms(self._short)

    def long_ms(self) -> int:
        """For how long nothing has been answered, with a long one under way; 0: none is."""
        quiet_ms = int((self._now_s() - self._answered_s) * 1000)
        return min(self._age_ms(self._long), max(0, quiet_ms))

    def _age_ms(self, waiting: dict[int, tuple[float, str, object]]) -> int:
        for began_s, _name, _what in waiting.values():
            return max(1, int((self._now_s() - began_s) * 1000))
        return 0

    def oldest(self) -> tuple[str, object] | None:
        """What it is, and what it is about; a short one before the long ones."""
        for _began_s, name, what in (*self._short.values(), *self._long.values()):
            return name, what
        return None
