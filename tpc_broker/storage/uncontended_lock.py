"""Locks that cost a turn of the scheduler only when somebody else holds them.

trio's own ``async with lock`` gives way to other tasks each time, also when the lock is free; then the core goes round
once more before it does what it was about to do. Who waits is served in order all the same: a lock with waiters is
never free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from types import TracebackType


class UncontendedLock:
    """Holds a lock, or one of a limiter's tokens. A checkpoint when it has to wait, else not."""

    __slots__ = ("_lock",)

    def __init__(self, lock: trio.Lock | trio.CapacityLimiter) -> None:
        self._lock = lock

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()
