"""The lock on a core's journal: who holds it may write, and nobody else may even read it for recovery.

`flock` belongs to the open file, not to the process: a ring that outlives its process (a dead core's ring does, by some
5 to 45 ms, while its last writes are carried out) keeps a registered file open and so keeps the lock. The lock is on a
file of its own beside the journal, registered with the ring, so it covers every write of that ring: commits,
superblocks and segments. A new core that has the lock knows that the old one's writes are over.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker._ring import lib
from tpc_broker.log.files import journal_lock_name

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.engine.ring import Ring
    from tpc_broker.model import CoreId

log = logging.getLogger(__name__)

LOCK_SECONDS_MAX: Final = 5.0
_RETRY_SECONDS: Final = 0.01


class JournalLockedError(Exception):
    """Another process held the lock all the time."""


async def wait_lock(fd: int, seconds_max: float = LOCK_SECONDS_MAX) -> None:
    """Lock an open file for this process alone. JournalLockedError after so many seconds."""
    with trio.move_on_after(seconds_max):
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await trio.sleep(_RETRY_SECONDS)
                continue
            return
    raise JournalLockedError(f"the journal was locked by another process for {seconds_max:g} s")


# Rule: The journal's lock outlives the process as long as its ring may write. Held by tests/durability/test_kill.py,
# tests/durability/test_last_write.py.
class JournalLock:
    """One core's lock, from `take` to `release` or the end of the ring."""

    def __init__(self, data: Path, core: CoreId) -> None:
        self.path = data / "journals" / journal_lock_name(core)
        self._fd = -1

    async def take(self, ring: Ring) -> None:
        """Wait until the ring of an earlier life is gone. JournalLockedError."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            await wait_lock(self._fd)
        except BaseException:
            self.release()
            raise
        result = lib.tpc_ring_hold_file(ring.pointer, self._fd)
        if result not in (0, -errno.EBUSY):
            log.warning("the journal's lock cannot be registered with the ring: %s", os.strerror(-result))

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
