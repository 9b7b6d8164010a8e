"""Locks that cost a turn of the scheduler only when somebody else holds them.

trio's own ``async with lock`` gives way to other tasks each time, also when the lock is free; then the core goes round
once more before it does what it was about to do. Who waits is served in order all the same: a lock with waiters is
never free.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
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


@asynccontextmanager
async def all_held(locks: Iterable[trio.Lock], between: Callable[[], None]) -> AsyncIterator[None]:
    """Holds all of them, taken in their order; `between` is called behind each. With ten thousand the end of an
    `AsyncExitStack` is a step of a third of a second, and this is one of some milliseconds.
    """
    held: list[trio.Lock] = []
    try:
        for lock in locks:
            try:
                lock.acquire_nowait()
            except trio.WouldBlock:
                await lock.acquire()
            held.append(lock)
            between()
        yield
    finally:
        for lock in held:
            lock.release()
