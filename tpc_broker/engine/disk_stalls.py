"""For how long a core's disk has owed an answer, whatever it was asked for (`raft.core`: then it leads nothing more).

What Python has asked the disk for is in its watch (`storage/disk_watch.py`); the journal is C's. Operations that are
long count only where the journal has no room left for what they make room in.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpc_broker.engine.ring import name_of

if TYPE_CHECKING:
    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.storage.disk_watch import DiskWatch

log = logging.getLogger(__name__)

LONG_MS: Final = 1_000
"""Nothing long is looked at before."""


class DiskStalls:
    """Of one machine. `plane`: where there is a journal of C's; None: the machine journals by the disk alone. `what`
    is led by others meanwhile.
    """

    def __init__(self, core: RaftCore, watch: DiskWatch, plane: RingDataPlane | None, what: str) -> None:
        self._core, self._watch, self._plane, self._what = core, watch, plane, what
        self._durable = 0
        self._since_ms: int | None = None
        self._told_ms: int | None = None
        core.disk.elsewhere_ms = self.waits_ms

    def waits_ms(self, now_ms: int) -> int:
        """At each look of the machine; 0: it owes no answer."""
        self._tell(now_ms)
        watch = self._watch
        watch.look()
        waits_ms = watch.short_ms()
        if self._plane is not None:
            waits_ms = max(waits_ms, self._journal_ms(self._plane))
            long_ms = watch.long_ms()
            if long_ms > max(waits_ms, LONG_MS) and self._plane.journal_use().is_refused:
                return long_ms
        return waits_ms

    def _journal_ms(self, plane: RingDataPlane) -> int:
        """Since the first look that found what is queued now, or something completed."""
        durable, is_waiting = plane.journal_progress()
        now_ms = self._watch.seen_ms()
        if not is_waiting:
            self._since_ms = None
        elif self._since_ms is None or durable != self._durable:
            self._since_ms = now_ms
        self._durable = durable
        return 0 if self._since_ms is None else now_ms - self._since_ms

    def _tell(self, now_ms: int) -> None:
        """What the last look has found: a line when it begins, and one when it is over."""
        if self._core.disk_hangs:
            if self._told_ms is None:
                self._told_ms = now_ms
                waits_s = self._core.settings.disk_hangs_ms / 1000
                log.warning("the disk has not answered for %.0f s (%s): others are to lead %s until it does",
                            waits_s, self._hanging(), self._what)  # fmt: skip
        elif self._told_ms is not None:
            lasted_s, self._told_ms = (now_ms - self._told_ms) / 1000, None
            log.warning("the disk answers again, after %.1f s: this node may lead %s", lasted_s, self._what)

    def _hanging(self) -> str:
        found = self._watch.oldest()
        if found is None:
            return "a write of the journal"
        name, what = found
        place = name_of(what) or "" if isinstance(what, int) else what if isinstance(what, Path) else ""
        return f"{name} {place}".rstrip()
