"""The lock on a core's journal: who holds it may write, and nobody else may even read it for recovery.

`flock` belongs to the open file, not to the process: a ring that outlives its process (a dead core's ring does, by some
5 to 45 ms, while its last writes are carried out) keeps a registered file open and so keeps the lock. So a new core
that has the lock knows that the old one's writes are over.
"""

from __future__ import annotations

import fcntl
from typing import Final

import trio

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
