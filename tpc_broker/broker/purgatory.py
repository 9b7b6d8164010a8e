"""Requests that wait for a partition to move: a fetch with ``min_bytes`` (DelayedFetch).

A waiter names its partitions; each partition holds the waiters that watch it, and the data plane tells only of
partitions that somebody watches (``watch`` sets the bit there). What woke a waiter is not recorded: it reads again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


ROOM_POLL_S = 0.01


class Purgatory:
    """Waiters by partition handle of one core."""

    def __init__(self, watch: Callable[[int], None]) -> None:
        self._watch = watch
        self._waiters: dict[int, set[trio.Event]] = {}
        self.waiting = 0
        self._is_released = False
        self._room = trio.Lock()

    def advanced(self, handle: int) -> None:
        """The partition has new readable bytes, or is gone: wake everyone who watches it."""
        for event in self._waiters.pop(handle, ()):
            event.set()

    async def wait_reserved(self, reserve: Callable[[], int | None], is_wanted: Callable[[], bool]) -> int | None:
        """What ``reserve`` gives when it gives anything, one waiter after the other; None: it is wanted no more."""
        async with self._room:
            while is_wanted():
                reserved = reserve()
                if reserved is not None:
                    return reserved
                await trio.sleep(ROOM_POLL_S)
        return None

    def look_again(self) -> None:
        """Wake everybody: what they may read may be other than it was."""
        for handle in list(self._waiters):
            self.advanced(handle)

    def release_all(self) -> None:
        """Wake everybody, and let nobody wait any more (drain): they answer with what they have."""
        self._is_released = True
        self.look_again()

    async def wait_advanced(self, handles: Iterable[int], timeout_s: float, ready: Callable[[], bool]) -> bool:
        """Wait until one of the partitions moves; False when the time is over, or all were released.

        ``ready`` is asked once after the watch is armed: what moved between the read and the watch is not missed.
        """
        event = trio.Event()
        watched = tuple(handles)
        for handle in watched:
            self._waiters.setdefault(handle, set()).add(event)
            self._watch(handle)
        self.waiting += 1
        try:
            if self._is_released:
                return False
            if ready():
                return True
            with trio.move_on_after(timeout_s) as scope:
                await event.wait()
            return not (scope.cancelled_caught or self._is_released)
        finally:
            self.waiting -= 1
            for handle in watched:
                waiters = self._waiters.get(handle)
                if waiters is not None:
                    waiters.discard(event)
                    if not waiters:
                        del self._waiters[handle]
