"""Short runs of many partitions, written behind in one go.

A thousand partitions that get a few records each are written behind a few kilobytes at a time. Written one by one, a
run costs Python and the ring several times what the kernel needs for it: a task, two turns of the scheduler, a worker
of the ring. So runs are brought together: each partition *begins* its run (`SegmentAppender.begin_run`), one job writes
them all (`Disk.write_many`), each partition *ends* its run. What makes a run longer than one write is left to `append`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import StorageFailedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tpc_broker.storage.leader_partition import LeaderPartition
    from tpc_broker.storage.ports import Disk, StoragePlane, Taken
    from tpc_broker.storage.segment_appender import AppendRun

SHORT_RUN_BYTES_MAX: Final = 192 * limits.KIB
"""Longer ones are worth a task of their own; they go past the page cache, unless the file system refuses that."""
RUNS_TOGETHER: Final = 32
"""In one job of a helper thread."""


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
        self,
        dirty: Sequence[LeaderPartition],
        written: Callable[[Sequence[tuple[LeaderPartition, int]]], Awaitable[None]],
    ) -> list[LeaderPartition]:
        """Those that are left to be written one by one: of the others all is written that was durable before.

        `written` is called with those that something was written of, and how many bytes.
        """
        left: list[LeaderPartition] = []
        for first in range(0, len(dirty), RUNS_TOGETHER):
            begun: list[_Begun] = []
            group = [led for led in dirty[first : first + RUNS_TOGETHER] if led.handle in self._led]
            if not group:  # others were deleted meanwhile, and nothing is to be made under their names
                continue
            await group[0].files.folder.files.open_many(
                [led.files.folder.path / led.files.active.log_name for led in group]
            )
            for led in group:
                self._disk.poll_ring()
                one = self._begin(led)
                if one is None:
                    left.append(led)
                else:
                    begun.append(one)
            if not begun:
                continue
            errors = await self._disk.write_many([one.run.write for one in begun])
            done: list[tuple[LeaderPartition, int]] = []
            for one, error in zip(begun, errors, strict=True):
                written_bytes = await self._end(one, error)
                if written_bytes is None:
                    continue
                if one.run.end_offset < one.taken.end_offset:  # a roll is due
                    left.append(one.led)
                done.append((one.led, written_bytes))
            await written(done)
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
