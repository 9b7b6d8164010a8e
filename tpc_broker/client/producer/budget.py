"""The bytes of records that a client may hold.

A partition may hold as much as is free (dynamic thresholds: Choudhury and Hahne, 1998): one slow partition alone gets
half of everything, two a third each, so that some is always left for others. Nobody has to count partitions.

A large record may never find enough free at once while others take what becomes free. So a lane that holds nothing, and
whose next record has not fitted while as much as the whole budget was given back, goes before all others.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpc_broker.client.producer.lane import Lane


class Waiter:
    """Who waits for room. ``admitted`` is called once: the room is taken then."""

    __slots__ = ("is_admitted", "notify", "size", "starves_since")

    def __init__(self, size: int) -> None:
        self.size = size
        self.starves_since = -1
        """How much had been given back when it alone was what its lane waited for; -1: that is not so."""
        self.is_admitted = False
        self.notify = _nobody


def _nobody() -> None:
    pass


class Budget:
    """Of all lanes of a client. Those that wait are served in order within a lane, and lanes in turn."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self._waiting: dict[Lane, deque[Waiter]] = {}
        self._bytes_released = 0
        self._starved: Lane | None = None
        """Nobody else is admitted before it."""

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._waiting.values()))

    def try_take(self, lane: Lane, size: int) -> bool:
        """Room for a record of a lane; False: there is none, or others of the lane wait already."""
        free = self.bytes_max - self.bytes_used
        held = lane.bytes_held
        if (size > free or (held and held + size > free)) or (
            self._waiting and (lane in self._waiting or self._starved is not None)
        ):
            return False
        self.bytes_used += size
        lane.bytes_held = held + size
        return True

    def wait(self, lane: Lane, size: int) -> Waiter:
        waiter = Waiter(size)
        self._waiting.setdefault(lane, deque()).append(waiter)
        return waiter

    def give_up(self, lane: Lane, waiter: Waiter) -> None:
        """Who waits no longer: gives back what it was given meanwhile."""
        if waiter.is_admitted:
            self.release(lane, waiter.size)
            return
        waiters = self._waiting[lane]
        waiters.remove(waiter)
        if not waiters:
            del self._waiting[lane]
        if lane is self._starved:
            self._starved = None
        self._admit()

    def release(self, lane: Lane, size: int) -> None:
        self.bytes_used -= size
        self._bytes_released += size
        lane.bytes_held -= size
        assert self.bytes_used >= 0 <= lane.bytes_held, (self.bytes_used, lane.bytes_held)
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        """Whoever there is room for now, a record of each lane in turn."""
        is_moving = True
        while is_moving:
            is_moving = False
            for lane in list(self._waiting):
                if self._starved is not None and lane is not self._starved:
                    continue
                waiters = self._waiting[lane]
                size = waiters[0].size
                free = self.bytes_max - self.bytes_used
                if size > free or (lane.bytes_held and lane.bytes_held + size > free):
                    self._starve(lane, waiters[0])
                    continue
                if lane is self._starved:
                    self._starved = None
                waiter = waiters.popleft()
                del self._waiting[lane]
                if waiters:
                    self._waiting[lane] = waiters
                self.bytes_used += size
                lane.bytes_held += size
                waiter.is_admitted = is_moving = True
                waiter.notify()

    def _starve(self, lane: Lane, waiter: Waiter) -> None:
        if lane.bytes_held or self._starved is not None:
            return
        if waiter.starves_since < 0:
            waiter.starves_since = self._bytes_released
        elif self._bytes_released - waiter.starves_since >= self.bytes_max:
            self._starved = lane
