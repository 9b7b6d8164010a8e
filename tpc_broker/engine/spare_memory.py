"""Memory that malloc keeps though nobody has needed it for a while goes back to the kernel.

Frames of large requests come and go in waves: while a checkpoint is made, or the disk is slow, more of them wait to be
written behind than before and afterwards. malloc keeps what such a wave has left, since frames of others lie above it
(native/io/prefault.c says why it is kept at all: a page's first touch costs more than what is written to it). What
frames took at most between two beats of a core is counted; what the process has beyond the largest of the last few is
spare. It goes a step at a time, since the kernel takes some milliseconds for each, and what the next wave will want if
it is as high as the last ones is kept.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES: Final = Path("/proc/self/statm")
LOOKS: Final = 8
"""Four seconds."""
SPARE_BYTES_MIN: Final = 24 << 20
"""Less is not worth a look at all that is free."""
STEP_BYTES: Final = 16 << 20
"""Some 4 ms of the core."""
STEPS: Final = 4
"""At one look, between the steps of other tasks."""
REST_BYTES_MAX: Final = 1 << 20
"""Frames that need no more at one look than at another have nothing to do."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class Memory(Protocol):
    """Of a data plane (`RingDataPlane`)."""

    def frame_bytes(self) -> int:
        """What frames take now: requests, answers, and what is kept of records."""
        ...

    def take_peak_frame_bytes(self) -> int:
        """What they took at most since the last call."""
        ...

    def trim_memory(self, kept_bytes: int = 0) -> None:
        """What malloc has free goes back to the kernel, but for about so much of it."""
        ...


def resident_bytes() -> int:
    """Of this process. OSError: it cannot be looked at now."""
    return int(SIZES.read_bytes().split(maxsplit=2)[1]) * _PAGE_BYTES


class SpareMemory:
    """Of one core. `look` comes with each of its beats."""

    def __init__(self, memory: Memory, resident: Callable[[], int] = resident_bytes) -> None:
        self._memory = memory
        self._resident = resident
        self._peaks: deque[int] = deque(maxlen=LOOKS)
        self._is_settled = False
        """Nothing was spare, and nothing has happened since."""
        self._beside = max(0, resident() - memory.frame_bytes())
        """What the process has that is not for frames."""
        self._given_back_to = 0
        """What was resident when a step had been given back at the last look; 0: there was none."""
        self._wanted_again = 0
        """What came back though frames needed no more: malloc finds no place in what is free."""

    async def look(self) -> None:
        """Give back what is spare. A core at rest reads nothing."""
        peak = self._memory.take_peak_frame_bytes()
        if self._is_settled and peak == self._peaks[-1]:
            return
        needed_before = max(self._peaks, default=0)
        self._peaks.append(peak)
        self._is_settled = False
        if len(self._peaks) < LOOKS:
            return
        needed = max(self._peaks)
        is_at_rest = needed - min(self._peaks) < REST_BYTES_MAX
        with suppress(OSError):  # there is no descriptor for now
            self._learn(needed - needed_before, is_at_rest=is_at_rest)
            for _step in range(STEPS):
                if not self._give_back(needed):
                    self._is_settled = is_at_rest
                    return
                await trio.lowlevel.checkpoint()

    def _learn(self, needed_more: int, *, is_at_rest: bool) -> None:
        """A page that comes back soon costs more than it was worth."""
        if is_at_rest:
            self._wanted_again = 0
        elif self._given_back_to:
            self._wanted_again += max(0, self._resident() - self._given_back_to - max(0, needed_more))
        self._given_back_to = 0

    def _give_back(self, needed: int) -> bool:
        """A step of what the process has beyond that; False: there is too little."""
        spare = self._resident() - self._beside - needed - self._wanted_again
        if spare < SPARE_BYTES_MIN:
            return False
        left = max(0, spare - STEP_BYTES) + self._wanted_again
        self._memory.trim_memory(max(0, needed - self._memory.frame_bytes()) + left)
        self._given_back_to = self._resident()
        self._beside = max(self._beside, self._given_back_to - needed - left)
        return True
