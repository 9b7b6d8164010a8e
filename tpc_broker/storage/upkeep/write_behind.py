"""Write-behind: durable batches brought from memory to the segments of one core, so that memory and journal can be
given back.

A write costs the same work whatever its size, so each partition waits for some bytes or some time, and all together for
no more than a bound. One taker per partition (its lock). Long runs go past the page cache, by way of aligned memory;
short runs of many partitions in one job (`short_runs`); the rest through the page cache. Nothing is synced: until the
next checkpoint the journal is what counts.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.errors import StorageFailedError
from tpc_broker.rounds import next_round_s
from tpc_broker.storage.recovery.checkpoint import release_ballast
from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES, aligned_buffer
from tpc_broker.storage.uncontended_lock import UncontendedLock
from tpc_broker.storage.upkeep.short_runs import ShortRunWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpc_broker.storage.ports import Disk, StoragePlane, Taken
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.segment_space import SegmentSpace

log = logging.getLogger(__name__)

INTERVAL_S = 0.05
"""Between two rounds at least: longer runs cost less for each byte."""
LOOK_S = 0.5
"""Between two rounds at most: whatever is old enough is looked for so often."""
MANY_PARTITIONS = 5
"""After a round with so many the next one comes soon: thousands with little each must not come together."""
AT_ONCE = 2
"""What starts together runs in one turn of Python, during which no request is answered."""
BYTES_AT_ONCE = 8 * limits.MIB
"""A partition that has so much is not left until the next look."""
BYTES_MIN = 2 * limits.MIB
"""A partition with less waits until that has come together, for this long at most:"""
AGE_S = 2.0
AGE_OF_MANY_S = 10.0
"""Where the next checkpoint begins late, for the sake of longer runs."""
NEVER_S = 1e9
HURRY_BYTES = BYTES_AT_ONCE
"""As long as no partition has so much to write, they are taken one after the other: commits want the disk too."""
FEW_PARTITIONS = 16
DIRTY_BYTES_MAX = 96 * limits.MIB
"""Together the partitions wait with no more than this."""
DIRECT_WRITES_AT_ONCE = 2
"""The journal's commits want the disk too."""
STAGING_BYTES = limits.WRITE_BEHIND_BYTES_MAX + DIRECT_BLOCK_BYTES


class WriteBehindWriter:
    """Of one core. See the module."""

    def __init__(
        self,
        plane: StoragePlane,
        disk: Disk,
        data: Path,
        led: Mapping[int, LeaderPartition],
        *,
        space: SegmentSpace,
        in_place_windows: InPlaceWindows,
    ) -> None:
        self._plane = plane
        self._disk = disk
        self._data = data
        self._led = led
        self._space = space
        self._in_place_windows = in_place_windows
        self._due = trio.Event()
        self._staging: list[memoryview] = []
        self._staging_limit = trio.CapacityLimiter(DIRECT_WRITES_AT_ONCE)
        self._many = trio.Lock()
        """Held by who writes short runs of many."""
        self._short_runs = ShortRunWriter(plane, disk, led, self._failed)
        self._age_s, self._dirty_bytes_max = AGE_S, DIRTY_BYTES_MAX
        plane.on_due(self._is_due)

    async def run(self) -> None:
        """Whenever it is due, until cancelled."""
        self._staging.append(aligned_buffer(STAGING_BYTES, self._disk.poll_ring))
        not_before_s, look_s = 0.0, LOOK_S
        while True:
            self._due = trio.Event()
            self._plane.watch_due(BYTES_AT_ONCE, self._dirty_bytes_max)
            with trio.move_on_at(next_round_s(look_s)):
                await self._due.wait()
            if not self._due.is_set() and not self._plane.dirty():  # at rest; right after a round nobody is for long
                self._plane.watch_due(1, self._dirty_bytes_max)
                await self._due.wait()
                look_s = LOOK_S
                continue
            if trio.current_time() < not_before_s:
                await trio.sleep_until(not_before_s)
            not_before_s = trio.current_time() + INTERVAL_S
            many = await self.write(all_of_it=False) >= MANY_PARTITIONS
            look_s = INTERVAL_S if many else LOOK_S

    def wait_for_more(self, dirty_bytes: int) -> None:
        """The next checkpoint begins when so much has come together, or as ever (0). What is written before would be
        written in shorter runs.
        """
        self._dirty_bytes_max = max(dirty_bytes, DIRTY_BYTES_MAX)
        self._age_s = AGE_OF_MANY_S if dirty_bytes else AGE_S

    def _is_due(self) -> None:
        self._due.set()

    async def write(self, *, all_of_it: bool) -> int:
        """Everything that is durable now goes to the segments; without `all_of_it` what is due, and the end of a long
        run may wait for the next time. How many partitions that were.
        """
        dirty = self._dirty(all_of_it=all_of_it)
        if len(dirty) > FEW_PARTITIONS:
            dirty = await self._write_short_runs(dirty, all_of_it=all_of_it)
        hurries = any(self._plane.state(led.handle).dirty_bytes >= HURRY_BYTES for led in dirty)
        if not hurries and len(dirty) <= FEW_PARTITIONS:
            for led in dirty:
                await self._write_one(led, all_of_it=all_of_it)
            return len(dirty)
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def write_in_turn(led: LeaderPartition) -> None:
            async with UncontendedLock(limiter):
                await self._write_one(led, all_of_it=all_of_it)

        async with trio.open_nursery() as nursery:
            for led in dirty:
                nursery.start_soon(write_in_turn, led)
        return len(dirty)

    def _dirty(self, *, all_of_it: bool) -> list[LeaderPartition]:
        plane = self._plane
        if all_of_it:
            handles = plane.dirty()
        elif self._many.locked():  # short runs are on their way
            handles = plane.dirty_due(BYTES_MIN, NEVER_S, limits.BYTES_WITHOUT_BOUND)
        else:
            handles = plane.dirty_due(BYTES_MIN, self._age_s, self._dirty_bytes_max)
        return [led for handle in handles if (led := self._led.get(handle)) is not None and led.files.failed is None]

    async def _write_short_runs(self, dirty: list[LeaderPartition], *, all_of_it: bool) -> list[LeaderPartition]:
        """Those that are left. One at a time: a second one would find what it wants locked by the first, and leave it
        to be written one by one.
        """
        was_locked = self._many.locked()
        async with UncontendedLock(self._many):
            if was_locked and all_of_it:
                dirty = self._dirty(all_of_it=True)
            left = await self._short_runs.write(dirty, self._space.make_ahead_of_many)
        return [led for led in left if led.handle in self._led]  # others were deleted meanwhile

    async def write_one(self, led: LeaderPartition) -> None:
        """Everything of one partition that is durable now; a failure leaves its files failed."""
        await self._write_one(led, all_of_it=True)

    async def _write_one(self, led: LeaderPartition, *, all_of_it: bool) -> None:
        async with UncontendedLock(led.lock):
            if led.handle not in self._led:  # deleted while this waited
                return
            try:
                upto = self._plane.state(led.handle).durable_offset
                written_bytes = await self._write_to_files(led, upto, all_of_it=all_of_it)
            except StorageFailedError as error:
                await self._failed(led, error)
                return
            await self._in_place_windows.open(led, written_bytes)
        await self._space.make_ahead(led, written_bytes)

    async def _write_to_files(self, led: LeaderPartition, upto: int, *, all_of_it: bool) -> int:
        was_direct, written_bytes = False, 0
        while led.handle in self._led:
            taken = self._plane.write_behind_take(led.handle, limits.WRITE_BEHIND_BYTES_MAX)
            if taken is None:
                break
            self._disk.poll_ring()
            with taken:
                in_place = taken.in_place
                is_direct = not in_place and await self._write_direct(led.files, taken)
                if not is_direct:
                    if was_direct and not in_place and not all_of_it:
                        break
                    await led.files.append(taken.buffers, in_place)
                end_offset = min(taken.end_offset, led.files.written_end_offset)
            if led.handle not in self._led:
                break
            written_bytes += self._plane.write_behind_done(led.handle, end_offset)
            self._disk.poll_ring()
            was_direct = is_direct
            if end_offset >= upto:
                break
        return written_bytes

    async def _write_direct(self, files: PartitionStorage, taken: Taken) -> bool:
        """What of the batches fills whole blocks, past the page cache; False: they are too few, or it cannot be."""
        fits = taken.base_offset == files.written_end_offset and taken.size <= limits.WRITE_BEHIND_BYTES_MAX
        if not fits or not files.direct_reach(taken.size):
            return False
        async with UncontendedLock(self._staging_limit):
            staging = self._staging.pop() if self._staging else aligned_buffer(STAGING_BYTES, self._disk.poll_ring)
            try:
                segment, reach = files.active, files.direct_reach(taken.size)
                staged = staging[segment.size_bytes % DIRECT_BLOCK_BYTES :]
                taken.copy_to(staged)
                return reach > 0 and await files.append_direct(segment, staged[:reach], taken.whole_bytes(reach))
            finally:
                self._staging.append(staging)

    async def _failed(self, led: LeaderPartition, error: StorageFailedError) -> None:
        log.error("%s-%d: %s", led.files.topic, led.files.key.partition, error)
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC:
            await release_ballast(self._disk, self._data)
