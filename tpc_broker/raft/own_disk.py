"""For how long the disk of a core has owed it an answer. One that hangs fails nothing; it is told by the time alone.

Two wait for it: the machines, for what they have journalled, and whatever else the core's storage asks for in front of
the journal or behind it (`elsewhere_ms`). Time in which nobody looked does not count: the answer may have been there.
How slow cores are (`patience`) has nothing to do with it, for they look the less often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.raft.settings import Settings


# Rule: A leader whose disk owes an answer for four seconds leads nothing any more, whatever the disk was asked for, how
# slow it was before, and whoever carries its groups. Whoever waits there for space is told. It comes back by itself.
# See also tpc_broker/storage/disk_watch.py, tpc_broker/engine/disk_stalls.py. Held by
# tests/raft/test_hung_disk.py, tests/node/test_hung_disk.py, tests/node/test_ends_of_leaderships.py.
class OwnDisk:
    """`hangs`: nothing is to be led here. `elsewhere_ms`: for how long others than the machines have waited; 0: nobody
    does.
    """

    def __init__(self, settings: Settings, now_ms: int) -> None:
        self.hangs = False
        self.elsewhere_ms: Callable[[int], int] = lambda _now_ms: 0
        self._settings = settings
        self._elsewhere_ms = 0
        self._progress_ms = self._looked_ms = now_ms

    def asked(self, now_ms: int) -> None:
        """The machines wait, and did not before."""
        self._progress_ms = now_ms

    def look(self, now_ms: int, *, is_waiting: bool) -> None:
        """In each tick. `is_waiting`: the machines do."""
        unseen_ms = max(0, now_ms - self._looked_ms - self._settings.looks_ms_max)
        self._progress_ms = min(self._progress_ms + unseen_ms, now_ms)
        self._looked_ms = now_ms
        self._elsewhere_ms = self.elsewhere_ms(now_ms)
        self.hangs = self._waits_ms(now_ms, is_waiting=is_waiting) >= self._settings.disk_hangs_ms

    def answered(self, now_ms: int) -> bool:
        """Something that the machines waited for is durable, or the journal is open again. Whether it hung so far, and
        does no more.
        """
        self._progress_ms = now_ms
        hung, self.hangs = self.hangs, self.hangs and self._elsewhere_ms >= self._settings.disk_hangs_ms
        return hung and not self.hangs

    def due_ms(self, now_ms: int, *, is_waiting: bool) -> int | None:
        """When it hangs, if nothing is answered before; None: it owes nothing, or hangs already."""
        waits_ms = self._waits_ms(now_ms, is_waiting=is_waiting)
        return None if self.hangs or not waits_ms else now_ms + max(0, self._settings.disk_hangs_ms - waits_ms)

    def _waits_ms(self, now_ms: int, *, is_waiting: bool) -> int:
        return max(self._elsewhere_ms, max(1, now_ms - self._progress_ms) if is_waiting else 0)
