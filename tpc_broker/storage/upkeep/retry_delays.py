"""When what failed is tried again: soon at first, and more and more seldom the longer that does not help.

An attempt may be expensive (a partition is written anew from a scan of the whole journal), and it keeps checkpoints
waiting. So each one puts the next off twice as long as the last did. That holds for attempts that succeeded too: what
fails again soon after only seemed to be well.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import trio

if TYPE_CHECKING:
    from collections.abc import Hashable


class Delay(NamedTuple):
    """After an attempt. Times are trio's, in seconds."""

    delay_s: float
    due_s: float


class RetryDelays:
    """Of everything that is tried again. `longest_s` after the next attempt was due, a thing begins anew."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._delays: dict[Hashable, Delay] = {}
        self._forget_s = -math.inf
        """From then on those that are old are looked for again: thousands of things may fail in one moment."""

    def tried(self, what: Hashable, first_s: float) -> None:
        """It was tried just now; `first_s`: how long the first attempt puts the next one off."""
        now_s = trio.current_time()
        self._forget_old(now_s)
        before = self._delays.get(what)
        if before is not None and self._is_old(before, now_s):
            before = None
        delay_s = min(first_s if before is None else 2 * before.delay_s, self._longest_s)
        self._delays[what] = Delay(delay_s, now_s + delay_s)

    def is_due(self, what: Hashable) -> bool:
        """Whether to try it now; True for what was never tried."""
        found = self._delays.get(what)
        return found is None or trio.current_time() >= found.due_s

    def _is_old(self, delay: Delay, now_s: float) -> bool:
        return now_s > delay.due_s + self._longest_s

    def _forget_old(self, now_s: float) -> None:
        if now_s < self._forget_s:
            return
        self._forget_s = now_s + self._longest_s
        old = [what for what, delay in self._delays.items() if self._is_old(delay, now_s)]
        for what in old:
            del self._delays[what]
