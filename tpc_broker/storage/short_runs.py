"""Short runs of many partitions, written behind in one go.

A thousand partitions that get a few records each are written behind a few kilobytes at a time. Written one by one, a
run costs Python and the ring several times what the kernel needs for it: a task, two turns of the scheduler, a worker
of the ring. So runs are brought together: each partition *begins* its run, which takes the batches into its indexes
and says where the bytes belong; one job writes them all (`Disk.write_many`); each partition *ends* its run.

What makes a run longer than one write (a roll, a file that is not open) is left to `PartitionStorage.append`. Between
the two steps the partition is locked.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.segment import AppendWalk, WalkStop
from tpc_broker.storage.files_life import FilesState
from tpc_broker.storage.ports import FileWrite
from tpc_broker.storage.segment_reader import SegmentReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.epochs import LeaderEpochs
    from tpc_broker.log.producer_state import ProducerState
    from tpc_broker.storage.files import OpenFile
    from tpc_broker.storage.files_life import FilesLife
    from tpc_broker.storage.leader_partition import LeaderPartition
    from tpc_broker.storage.ports import Disk, StoragePlane, Taken

SHORT_RUN_BYTES_MAX: Final = 192 * limits.KIB
"""Longer ones are worth a task of their own; they go past the page cache, unless the file system refuses that."""
RUNS_TOGETHER: Final = 32
"""In one job of a helper thread."""


@dataclass(slots=True)
class AppendRun:
    """A run between its two steps."""

    file: OpenFile
    write: FileWrite
    end_position: int
    """Of the segment, when it is written."""
    end_offset: int


class ShortRuns(SegmentReader):
    """The part of `PartitionStorage` that appends in two steps."""

    epochs: LeaderEpochs
    producers: ProducerState
    life: FilesLife
    _lock: trio.Lock

    def mark_changed(self) -> None:
        raise NotImplementedError

    def fail(self, reason: str, *, pages_in_doubt: bool = True) -> None:
        raise NotImplementedError

    def begin_run(self, batches: Buffer) -> AppendRun | None:
        """Take durable batches in, and lock the partition until `end_run`; a roll in the middle ends the run there.

        None: nothing was done, and `append` has to do it.
        """
        if self.life.state is not FilesState.OPEN:
            return None
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            return None
        run = None
        try:
            run = self._begin_run(memoryview(batches))
        finally:
            if run is None:
                self._lock.release()
        return run

    def _begin_run(self, view: memoryview) -> AppendRun | None:
        active = self.active
        indexes, position = active.indexes, max(active.size_bytes, active.written_end_position)
        file = self.folder.begin_write(active.log_name)
        if file is None or indexes is None:
            return None
        walk = AppendWalk(view, self.settings, self.written_end_offset, self.epochs.latest)
        walk.use(indexes, active.size_bytes)
        while (stop := walk.step(self.producers)) not in (WalkStop.END, WalkStop.ROLL):
            walk.take_stop(stop, self.producers, self.epochs)
        if walk.place == walk.begin:
            self.folder.files.end_use_nowait(file)
            return None
        self.mark_changed()
        first = walk.begin + position - active.size_bytes
        data = view[first : walk.place] if first < walk.place else view[:0]
        return AppendRun(file, FileWrite(file.fd, data, position), walk.position, walk.next_offset)

    def end_run(self, run: AppendRun, error: OSError | None) -> None:
        """The run was written, or not: then the partition is failed, and StorageFailedError is raised."""
        self.folder.end_write(run.file, run.write.position)
        try:
            if error is not None:
                self.fail(f"write: {error}", pages_in_doubt=error.errno != errno.ENOSPC)
                raise StorageFailedError(self.life.failed) from error
            active = self.active
            active.written_end_position = max(active.written_end_position, run.end_position)
            active.size_bytes, self.written_end_offset = run.end_position, run.end_offset
        finally:
            self._lock.release()


@dataclass(slots=True)
class _Begun:
    led: LeaderPartition
    taken: Taken
    run: AppendRun


class ShortRunWriter:
    """Brings short runs of many partitions into their segments. `failed` is told of each that cannot be written."""

    def __init__(
        self,
        plane: StoragePlane,
        disk: Disk,
        led: Mapping[int, LeaderPartition],
        failed: Callable[[LeaderPartition, StorageFailedError], Awaitable[None]],
    ) -> None:
        self._plane = plane
        self._disk = disk
        self._led = led
        self._failed = failed

    async def write(
        self, dirty: Sequence[LeaderPartition], written: Callable[[LeaderPartition, int], Awaitable[None]]
    ) -> list[LeaderPartition]:
        """Those that are left to be written one by one: of the others all is written that was durable before.

        `written` is called with the bytes of each that something was written of.
        """
        left: list[LeaderPartition] = []
        for first in range(0, len(dirty), RUNS_TOGETHER):
            begun: list[_Begun] = []
            for led in dirty[first : first + RUNS_TOGETHER]:
                self._disk.poll_ring()
                one = self._begin(led)
                if one is None:
                    left.append(led)
                else:
                    begun.append(one)
            if not begun:
                continue
            errors = await self._disk.write_many([one.run.write for one in begun])
            for one, error in zip(begun, errors, strict=True):
                written_bytes = await self._end(one, error)
                if written_bytes is None:
                    continue
                if one.run.end_offset < one.taken.end_offset:  # a roll is due
                    left.append(one.led)
                await written(one.led, written_bytes)
        return left

    def _begin(self, led: LeaderPartition) -> _Begun | None:
        try:
            led.lock.acquire_nowait()
        except trio.WouldBlock:
            return None
        taken, run = self._plane.write_behind_take(led.handle, limits.WRITE_BEHIND_BYTES_MAX), None
        try:
            if taken is not None and self._is_short(led, taken) and len(buffers := taken.buffers) == 1:
                run = led.files.begin_run(buffers[0])
        finally:
            if run is None:
                if taken is not None:
                    taken.release()
                led.lock.release()
        return None if taken is None or run is None else _Begun(led, taken, run)

    @staticmethod
    def _is_short(led: LeaderPartition, taken: Taken) -> bool:
        return taken.size < SHORT_RUN_BYTES_MAX and not taken.in_place and not led.files.direct_reach(taken.size)

    async def _end(self, one: _Begun, error: OSError | None) -> int | None:
        """How many bytes are in the segment now; None: the partition has failed, or is gone."""
        led = one.led
        try:
            led.files.end_run(one.run, error)
        except StorageFailedError as failure:
            await self._failed(led, failure)
            return None
        finally:
            one.taken.release()
            led.lock.release()
        if led.handle not in self._led:  # deleted meanwhile
            return None
        return self._plane.write_behind_done(led.handle, min(one.taken.end_offset, one.run.end_offset))
