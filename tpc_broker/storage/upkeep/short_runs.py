"""Short runs of many partitions, written behind in one go.

A thousand partitions that get a few records each are written behind a few kilobytes at a time. Written one by one, a
run costs Python and the ring several times what the kernel needs for it: a task, two turns of the scheduler, a worker
of the ring. So runs are brought together: one call takes those of some hundred partitions from memory
(`WriteBehind.short_runs_take`), each partition *begins* its run (`SegmentAppender.begin_run`), one job writes them all
(`Disk.write_many`), each partition *ends* its run, and one call says so. What makes a run longer than one write is left
to `append`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker import limits
from tpc_broker.errors import StorageFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tpc_broker.storage.ports import Disk, ShortRun, StoragePlane
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.segment_appender import AppendRun

SHORT_RUN_BYTES_MAX: Final = 192 * limits.KIB
"""Longer ones are worth a task of their own; they go past the page cache, unless the file system refuses that."""
RUNS_TOGETHER: Final = 256
"""In one job of a helper thread, as far as they fit into this:"""
MEMORY_BYTES: Final = 4 * limits.MIB
assert SHORT_RUN_BYTES_MAX <= MEMORY_BYTES, "one always fits"


class Written(NamedTuple):
    """Of one partition."""

    led: LeaderPartition
    written_bytes: int
    bytes_admitted: int
    """How many more could be appended then before segment space has to be reserved."""


@dataclass(slots=True)
class _Begun:
    led: LeaderPartition
    taken: ShortRun
    run: AppendRun

    @property
    def end_offset(self) -> int:
        """Up to where the segment has what was taken, when the run is written."""
        return min(self.taken.end_offset, self.run.end_offset)


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
        self._memory: list[memoryview] = []
        """One for each of those who write at the same time, when they do not."""

    async def write(
        self, dirty: Sequence[LeaderPartition], written: Callable[[Sequence[Written]], Awaitable[None]]
    ) -> list[LeaderPartition]:
        """Those that are left to be written one by one: of the others all is written that was durable before.

        `written` is called with those that something was written of.
        """
        left: list[LeaderPartition] = []
        waiting = list(dirty)
        memory = self._memory.pop() if self._memory else memoryview(bytearray(MEMORY_BYTES))
        try:
            while waiting:
                group = [led for led in waiting[:RUNS_TOGETHER] if led.handle in self._led]
                del waiting[:RUNS_TOGETHER]
                if group:  # else they were deleted meanwhile, and nothing is to be made under their names
                    waiting[:0] = await self._write_together(group, memory, left, written)
        finally:
            self._memory.append(memory)
        return left

    async def _write_together(
        self,
        group: Sequence[LeaderPartition],
        memory: memoryview,
        left: list[LeaderPartition],
        written: Callable[[Sequence[Written]], Awaitable[None]],
    ) -> Sequence[LeaderPartition]:
        """Those that did not fit into the memory."""
        files = group[0].files.folder.files
        await files.open_many([path for led in group if (path := led.files.path_to_open()) is not None])
        locked: list[LeaderPartition] = []
        begun: list[_Begun] = []
        for led in group:
            (locked if self._lock(led) else left).append(led)
        try:
            taken = self._plane.short_runs_take([led.handle for led in locked], SHORT_RUN_BYTES_MAX, memory)
            for led, run in zip(locked, taken, strict=False):
                self._disk.poll_ring()
                one = None
                if run is not None and not led.files.direct_reach(len(run.batches)):
                    one = led.files.begin_run(run.batches)
                if run is None or one is None:
                    left.append(led)
                else:
                    begun.append(_Begun(led, run, one))
            errors = await self._write(begun)
        finally:  # in the order in which they were taken: trio looks for each among all that are held
            for led in locked:
                led.lock.release()
        done, failures = self._end(begun, errors, left)  # before anybody else has a turn
        for led, failure in failures:
            await self._failed(led, failure)
        await written(done)
        return locked[len(taken) :]

    def _lock(self, led: LeaderPartition) -> bool:
        try:
            led.lock.acquire_nowait()
        except trio.WouldBlock:
            return False
        return True

    async def _write(self, begun: Sequence[_Begun]) -> Sequence[OSError | None]:
        """What has begun is ended, also when whoever waits for it is cancelled: its batches are in the indexes."""
        errors: Sequence[OSError | None] = []
        if begun:
            with trio.CancelScope(shield=True):
                errors = await self._disk.write_many([one.run.write for one in begun])
        return errors

    def _end(
        self, begun: Sequence[_Begun], errors: Sequence[OSError | None], left: list[LeaderPartition]
    ) -> tuple[list[Written], list[tuple[LeaderPartition, StorageFailedError]]]:
        """What is in the segments now, and what has failed."""
        ended: list[_Begun] = []
        failures: list[tuple[LeaderPartition, StorageFailedError]] = []
        for one, error in zip(begun, errors, strict=True):
            self._disk.poll_ring()
            try:
                one.led.files.end_run(one.run, error)
            except StorageFailedError as failure:
                failures.append((one.led, failure))
                continue
            if one.led.handle in self._led:  # else it was deleted meanwhile
                ended.append(one)
                if one.run.end_offset < one.taken.end_offset:  # a roll is due
                    left.append(one.led)
        done = self._plane.short_runs_done([(one.led.handle, one.end_offset) for one in ended])
        return [Written(one.led, *each) for one, each in zip(ended, done, strict=True)], failures
