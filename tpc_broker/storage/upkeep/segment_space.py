"""Space on the file system for what one core's partitions were given and do not have in their segments yet.

Segment space is reserved before a batch is admitted to the journal: the data plane holds a number of admitted bytes
for each partition, and asks Python when they are used up. What is admitted and what is appended but not written behind
together never exceed what is reserved; both are read in one call, because commits go on at every await.

The ballast is given up when space is short, so that deletion and checkpoints find room, and taken back later.

A partition that was refused space *lacks* it until there is as much as it was refused. That is looked for again and
again, whether anybody asks for it or not: the broker may have told clients to go elsewhere.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker import limits
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError, StorageFailedError
from tpc_broker.storage.recovery.checkpoint import BALLAST_BYTES, ensure_ballast
from tpc_broker.storage.uncontended_lock import UncontendedLock
from tpc_broker.storage.upkeep.refusals import Refusals
from tpc_broker.storage.upkeep.space_together import SpaceTogether, admit_reserved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tpc_broker.storage.ports import Disk, FileSystemStatus, StoragePlane
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.deletion import Deletions
    from tpc_broker.storage.upkeep.short_runs import Written

log = logging.getLogger(__name__)

ROOM_STEP_BYTES_MAX = 64 * limits.MIB
PLENTY_BYTES = 4 * 1024 * limits.MIB
PLENTY_S = 1.0
BALLAST_INTERVAL_S = 30.0
NEARLY_FULL_SHARE: Final = 0.15
"""Of the file system is available then."""
LOOK_S: Final = limits.SPACE_LOOK_MS / 1000


class Lack(NamedTuple):
    """A partition was refused so many bytes, the least of all since then (of trio's clock). `is_of_disk`: they are
    lacking on the file system, so others have as little.
    """

    since_s: float
    size: int
    is_of_disk: bool


def left_for_records(status: FileSystemStatus) -> int:
    """What clients' records may still take of a file system."""
    return status.available_bytes - min(limits.DISK_HEADROOM_BYTES, status.total_bytes // 16)


def _ahead_of(led: LeaderPartition, written_bytes: int) -> int:
    """What a partition should have that has written so much at a time."""
    return min(max(led.step_bytes, 4 * written_bytes), ROOM_STEP_BYTES_MAX)


class _Asked:
    """Room that a client waits for. `error`: what it is told when it is over; at first, what it is told at the end."""

    __slots__ = ("error", "over")

    def __init__(self) -> None:
        self.over = trio.Event()
        self.error: OSError | PartitionOfflineError | None = PartitionOfflineError("the storage ends")


# Rule: Segment space is reserved before an append is admitted, whatever becomes durable meanwhile. A ballast file lets
# deletion work on a full disk. See also tpc_broker/storage/segments/reserved_space.py. Held by
# tests/durability/test_full_disk.py, tests/engine/test_segment_space.py.
class SegmentSpace:
    """Of one core. See the module."""

    def __init__(
        self, plane: StoragePlane, disk: Disk, data: Path, led: Mapping[int, LeaderPartition], deletions: Deletions
    ) -> None:
        self._plane = plane
        self._disk = disk
        self._data = data
        self._led = led
        self._deletions = deletions
        self._refusals = Refusals("the disk is full")
        self.refused_count = 0
        """Requests, since the start."""
        self._low: list[tuple[int, int]] = []
        self._wanted = trio.Event()
        self._plenty_bytes, self._plenty_until_s = 0, 0.0
        self.lacking: dict[int, Lack] = {}
        """By handle."""
        self._refused = trio.Event()
        """Somebody was, and it is not over."""
        self._asked: dict[int, dict[_Asked, None]] = {}
        """By handle."""
        self._tasks: trio.Nursery | None = None
        self._together = SpaceTogether(plane, disk, led, self._has_left)
        plane.on_room_low(self.is_low)

    @property
    def is_disk_full(self) -> bool:
        """Records were refused for want of space, and it is not known that there is some again."""
        return self._refusals.is_on

    async def make_for_client(self, files: PartitionStorage, handle: int, size: int) -> None:
        """As `make_for_request`, but who waits need not wait for a disk that hangs: `leads_no_more` ends it, with
        LeadershipLostError, and what was begun goes on.
        """
        led, tasks = self._led.get(handle), self._tasks
        if led is None or tasks is None:
            await self.make_for_request(files, handle, size)
            return
        if self._plane.state(handle).bytes_admitted >= size:
            self._has_found(handle)
            self._note_if_over()
            return
        asked = _Asked()
        waiting = self._asked.setdefault(handle, {})
        waiting[asked] = None
        tasks.start_soon(self._make_asked, asked, files, handle, size)
        try:
            await asked.over.wait()
        finally:
            del waiting[asked]
            if not waiting and self._asked.get(handle) is waiting:
                del self._asked[handle]
        if asked.error is not None:
            raise asked.error

    async def _make_asked(self, asked: _Asked, files: PartitionStorage, handle: int, size: int) -> None:
        try:
            await self.make_for_request(files, handle, size)
        except (OSError, PartitionOfflineError) as error:
            asked.error = error
        else:
            asked.error = None
        finally:
            asked.over.set()

    def leads_no_more(self, handle: int) -> None:
        """Whoever waits for room in it as a client is told so."""
        for asked in self._asked.get(handle, ()):
            asked.error = LeadershipLostError("its leadership ended while it waited for segment space")
            asked.over.set()

    async def serve(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._tasks = None

    async def make_for_request(self, files: PartitionStorage, handle: int, size: int) -> None:
        """As `make`, for records that a client waits for: what was deleted and waits for its time goes first."""
        try:
            await self._make_first_together(handle, size)
            try:
                await self.make(files, handle, size)
            except OSError as error:
                if error.errno != errno.ENOSPC or not await self._deletions.free_at_once():
                    raise
                await self.make(files, handle, size)
        except PartitionOfflineError:
            self._lacks(handle, size, is_of_disk=False)
            raise
        except OSError as error:
            self._lacks(handle, size, is_of_disk=error.errno == errno.ENOSPC)
            self._refused.set()
            self._refusals.refused(error)
            self.refused_count += 1
            raise
        self._note_if_over()

    async def _make_first_together(self, handle: int, size: int) -> None:
        """Of a partition that has none yet; what comes of it `make` will see."""
        led = self._led.get(handle)
        if led is not None and not led.admitted_bytes:
            await self._together.make(led, size)

    def _note_if_over(self) -> None:
        if not self.lacking:
            self._refusals.succeeded()

    def _lacks(self, handle: int, size: int, *, is_of_disk: bool) -> None:
        if handle in self._led:
            before = self.lacking.get(handle) or Lack(trio.current_time(), size, is_of_disk=False)
            self.lacking[handle] = Lack(before.since_s, min(size, before.size), is_of_disk or before.is_of_disk)
            self._refused.set()

    def _has_found(self, handle: int) -> None:
        lack = self.lacking.get(handle)
        if lack is not None and self._plane.state(handle).bytes_admitted >= lack.size:
            del self.lacking[handle]

    async def make(self, files: PartitionStorage, handle: int, size: int) -> None:
        """Segment space for so many more bytes; OSError (ENOSPC) when there is none, PartitionOfflineError."""
        led = self._led.get(handle)
        if led is None:
            raise PartitionOfflineError(f"{files.topic}-{files.key.partition} is closed")
        async with UncontendedLock(led.lock):
            if self._plane.state(handle).bytes_admitted >= size:
                self._has_found(handle)
                return
            if not led.is_internal and not await self._has_left(size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            pending = self._plane.state(handle).unwritten_bytes
            try:
                await files.reserve(pending + size + min(led.step_bytes, files.settings.segment_bytes // 2))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                await files.reserve(pending + size)
            except StorageFailedError as error:
                raise PartitionOfflineError(str(error)) from error
            admit_reserved(self._plane, led)
            self._has_found(handle)

    async def _has_left(self, size: int) -> bool:
        """Whether clients' records may take so much more of the file system. What was seen counts for a moment when it
        was plenty: others write there too, but what is reserved is certain all the same.
        """
        if self._plenty_bytes < size or trio.current_time() > self._plenty_until_s:
            left = await self.bytes_left()
            self._plenty_bytes = left // 4 if left >= PLENTY_BYTES else 0
            self._plenty_until_s = trio.current_time() + PLENTY_S
            return left >= size
        self._plenty_bytes -= size
        return True

    async def bytes_left(self) -> int:
        """What clients' records may still take of the file system."""
        return left_for_records(await self._disk.statvfs(self._data))

    async def is_nearly_full(self) -> bool:
        """Whether what can give space back should hurry."""
        status = await self._disk.statvfs(self._data)
        return status.available_bytes < status.total_bytes * NEARLY_FULL_SHARE

    async def make_ahead(self, led: LeaderPartition, written_bytes: int) -> None:
        """So that a busy partition's appends need not come to Python for room: for several times what came last."""
        ahead = self._wanted_ahead(led, written_bytes)
        if ahead:
            await self._make_if_there_is(led, ahead)

    async def make_ahead_of_many(self, written: Sequence[Written]) -> None:
        """The same of many, by one job, but for what that leaves."""
        wanted = [
            (led, ahead)
            for led, written_bytes, bytes_admitted in written
            if bytes_admitted < (ahead := _ahead_of(led, written_bytes)) // 2 and led.handle in self._led
        ]
        if len(wanted) > 1:
            await self._together.take(wanted)
        for led, ahead in wanted:
            await self._make_if_there_is(led, ahead)

    def _wanted_ahead(self, led: LeaderPartition, written_bytes: int) -> int:
        """0: it has enough."""
        ahead = _ahead_of(led, written_bytes)
        is_low = led.handle in self._led and self._plane.state(led.handle).bytes_admitted < ahead // 4 * 3
        return ahead if is_low else 0

    async def take_ahead_together(self) -> None:
        """`SpaceTogether.take_ahead`."""
        await self._together.take_ahead()

    async def make_when_low(self) -> None:
        """Before a partition's room is used up, since then its requests would come to Python for it."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            low, self._low = self._low, []
            for handle, wanted_bytes in low:
                led = self._led.get(handle)
                if led is not None:
                    size = max(wanted_bytes, self._plane.state(handle).bytes_admitted + 1)
                    await self._make_if_there_is(led, size)

    def is_low(self, handle: int, wanted_bytes: int) -> None:
        self._low.append((handle, wanted_bytes))
        self._wanted.set()

    async def _make_if_there_is(self, led: LeaderPartition, size: int) -> None:
        try:
            await self.make(led.files, led.handle, size)
        except (OSError, PartitionOfflineError) as error:
            log.debug("%s-%d: no room ahead: %s", led.files.topic, led.files.key.partition, error)

    async def look_for_lacking(self) -> None:
        """Until cancelled: whether there is space again where there was none."""
        while True:
            await self._refused.wait()
            await trio.sleep(LOOK_S)
            await self._look_for_lacking()
            self._note_if_over()
            if not self.lacking and not self.is_disk_full:
                self._refused = trio.Event()

    async def _look_for_lacking(self) -> None:
        """The smallest first: what the file system lacks for one it lacks for all that want as much."""
        for handle, lack in sorted(self.lacking.items(), key=lambda each: each[1].size):
            led = self._led.get(handle)
            if led is None:
                self.lacking.pop(handle, None)
                continue
            try:
                await self.make(led.files, handle, lack.size)
            except (OSError, PartitionOfflineError) as error:
                log.debug("%s-%d still has no room: %s", led.files.topic, led.files.key.partition, error)
                if isinstance(error, OSError) and error.errno == errno.ENOSPC and not led.is_internal:
                    return

    async def reserve_anew(self, led: LeaderPartition) -> None:
        """The new files have no space reserved: nothing is admitted any more, and what was appended comes first."""
        if led.handle not in self._led:
            return
        state = self._plane.state(led.handle)
        self._plane.admit(led.handle, -state.bytes_admitted)
        try:
            await led.files.reserve(state.unwritten_bytes)
        except (OSError, StorageFailedError) as error:
            log.warning("%s-%d: no space for what was admitted: %s", led.files.topic, led.files.key.partition, error)

    async def keep_ballast(self) -> None:
        """Take the ballast back when there is space for it, until cancelled."""
        while True:
            try:
                if await self.bytes_left() >= BALLAST_BYTES:
                    await ensure_ballast(self._disk, self._data)
            except OSError as error:
                log.warning("ballast: %s", error)
            await trio.sleep(BALLAST_INTERVAL_S)
