"""Python's collector of cycles, in a process with millions of objects that stay.

A full collection looks through all objects that it was not told to leave out, and holds the loop up as long as that
takes: half a second with ten thousand replicas, in which a node that shares its CPU says nothing for longer than the
others wait. So what has survived one that took long is left out by all later ones. What of that becomes a cycle and
garbage is never freed: so it is done only as often as there is reason to by the number of partitions.
"""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LONG_NS: Final = 15_000_000
"""CPU time of a full collection."""
FREEZES_MIN: Final = 2
PARTITIONS_A_FREEZE: Final = 200
FULL: Final = 2
"""The generation of all objects."""


class Collector:
    """Of this process. `partitions`: how many there are now."""

    def __init__(
        self,
        partitions: Callable[[], int],
        cpu_ns: Callable[[], int] = time.thread_time_ns,
        freeze: Callable[[], None] = gc.freeze,
    ) -> None:
        self._partitions = partitions
        self._cpu_ns = cpu_ns
        self._freeze = freeze
        self._began_ns = 0
        self.freezes = 0

    def begin(self) -> None:
        """From now on; what is there now stays."""
        self._freeze()
        gc.callbacks.append(self.seen)

    def end(self) -> None:
        gc.callbacks.remove(self.seen)

    def seen(self, phase: str, info: Mapping[str, int]) -> None:
        """As `gc.callbacks` are called."""
        if info["generation"] != FULL:
            return
        if phase == "start":
            self._began_ns = self._cpu_ns()
        elif self._cpu_ns() - self._began_ns >= LONG_NS and self._may_freeze():
            self.freezes += 1
            self._freeze()

    def _may_freeze(self) -> bool:
        return self.freezes < FREEZES_MIN + self._partitions() // PARTITIONS_A_FREEZE
