"""How durable batches come into one partition's segments: in long runs, in short ones, past the page cache, beside what
C has written in place; and how a segment is sealed and the next one begun.

*Long runs* go past the page cache (`append_direct`): only whole blocks are written, from aligned memory, and a batch
that reaches beyond the last whole block counts as not written yet, so that its rest can follow with what comes next.
Short runs, rests behind which nothing comes, and the bytes from there to the next block boundary go through the page
cache. So no block is ever written in both ways. A checkpoint names a place behind a whole batch; between checkpoints
the file may end in the middle of one.

*Short runs* are appended in two steps, so that one job can write those of many partitions (`short_runs`): `begin_run`
takes the batches into the indexes and says where the bytes belong, `end_run` is told what came of it. What makes a run
longer than one write (a roll, a file that is not open) is left to `append`. Between the two steps the partition is
locked.

*In-place writes.* A partition's in-place window (the data plane's) writes large batches into the active segment before
they are acknowledged. Their batches come here like all others, with the ranges of the file that hold them already, and
only the rest is written. As long as such batches are on their way the segment is not rolled: their positions are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.files import SNAPSHOT_SUFFIX, segment_file_name
from tpc_broker.log.segment import AppendWalk, SegmentIndexes, WalkStop
from tpc_broker.storage.ports import FileWrite
from tpc_broker.storage.segments.batch_ranges import missing, part
from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES
from tpc_broker.storage.segments.files_life import Change, FilesState
from tpc_broker.storage.segments.reserved_space import ReservedSpace
from tpc_broker.storage.segments.segments import Segment
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.log.batch import Buffer
    from tpc_broker.storage.segments.files import OpenFile
    from tpc_broker.storage.segments.segment_log import SegmentLog

DIRECT_BYTES_MIN: Final = 256 * 1024
"""Shorter runs go through the page cache."""
STOPS_AT_ONCE: Final = 32
"""Of a walk over batches, until others have their turn: of what thousands of producers wrote, or of small transactions,
there are tens of thousands in the longest run.
"""


@dataclass(slots=True)
class AppendRun:
    """A short run between its two steps."""

    file: OpenFile
    write: FileWrite
    end_position: int
    """Of the segment, when it is written."""
    end_offset: int
    is_whole: bool
    """Or it ends where the segment has to be rolled."""


# Rule: A block of a segment is written in one way, past the page cache or through it, and never again. A checkpoint
# syncs both. See also tpc_broker/storage/segments/segments.py. Held by tests/storage/test_direct_writes.py,
# tests/storage/test_core_recovery.py, tests/durability/test_crash_images.py.
class SegmentAppender:
    """See the module."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    def _walk(self, view: memoryview, end_offset: int) -> AppendWalk:
        return AppendWalk(view, self._log.settings, end_offset, self._log.log_state)

    # -- in one step -----------------------------------------------------------------------------------------------

    async def append(self, batches: Sequence[Buffer], in_place: Sequence[tuple[int, int]] = ()) -> None:
        """Write durable batches behind what is there, rolling where it is due. Each buffer holds whole batches.

        `in_place`: ranges of the file that hold their part already. StorageFailedError: nothing more may be expected
        of this partition until it was rewritten from the journal.
        """
        async with self._log.changing(Change.WRITE):
            await self._append(batches, in_place)

    async def _append(self, batches: Sequence[Buffer], present: Sequence[tuple[int, int]]) -> None:
        log, run = self._log, list[memoryview]()
        position, end_offset = log.active.size_bytes, log.written_end_offset
        for buffer in batches:
            view = memoryview(buffer)
            walk, run_from = self._walk(view, end_offset), 0
            walk.use(log.active_indexes(), position)
            for number in count(1):
                if (stop := walk.step()) is WalkStop.END:
                    break
                await self._stopped(number)
                if stop is WalkStop.ROLL and not log.rolls.may_roll(walk.header.base_offset):
                    walk.lift_limits()
                elif stop is WalkStop.ROLL:
                    run.append(view[max(run_from, walk.begin) : walk.place])
                    await self._write_run(run, walk.position, walk.next_offset, present)
                    run, run_from, present = [], walk.place, ()
                    await self.roll_at(walk.header.base_offset)
                    walk.use(log.active_indexes(), 0)
                else:
                    walk.take_stop(stop)
            position, end_offset = walk.position, walk.next_offset
            run.append(view[max(run_from, walk.begin) :])
        await self._write_run(run, position, end_offset, present)

    async def _stopped(self, number: int) -> None:
        """Of a walk, the n-th time: for a marker, say, or with some dozens of producers."""
        self._log.folder.disk.poll_ring()
        if number % STOPS_AT_ONCE == 0:
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _write_run(
        self, run: list[memoryview], end_position: int, end_offset: int, present: Sequence[tuple[int, int]]
    ) -> None:
        """Write buffers to the end of the active segment, but for ranges of it that are present; then, and only then,
        readers may see them.
        """
        active = self._log.active
        assert active.size_bytes + sum(map(len, run)) == end_position, (self._log.key, end_position)
        if end_position > active.size_bytes:
            begin = max(active.size_bytes, active.written_end_position)
            places, offset = missing(begin, end_position, present), active.size_bytes
            parts = [(part(run, first - offset, end - offset), first) for first, end in places]
            await self._log.folder.write_parts(active.log_name, parts)
            active.written_end_position = max(end_position, begin)
            active.size_bytes = end_position
        self._log.publish(end_offset)

    # -- past the page cache ---------------------------------------------------------------------------------------

    def direct_reach(self, size: int) -> int:
        """How many of the next `size` bytes a direct write would bring into the file; 0: they are too few.

        They end with a block, and do not go beyond the segment's largest size (which is as far as space is reserved).
        """
        log, active = self._log, self._log.active
        begin = max(active.size_bytes, active.written_end_position)
        end = min(active.size_bytes + size, log.settings.segment_bytes) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        if log.folder.files.direct_refused or end - begin < DIRECT_BYTES_MIN:
            return 0
        return end - active.size_bytes

    async def append_direct(self, active: Segment, staged: memoryview, whole_bytes: int) -> bool:
        """Write durable batches past the page cache: `staged` holds what `direct_reach` said, from the written end on.

        Its first byte lies in its block of memory as it will in its block of the file, `whole_bytes` of it are whole
        batches. When the segment has to be rolled, what follows is left. False: `active` is no longer the active
        segment, nothing was done. Errors as of `append`.
        """
        log = self._log
        async with log.changing(Change.WRITE):
            if active is not log.active:
                return False
            walk = self._walk(staged[:whole_bytes], log.written_end_offset)
            walk.use(log.active_indexes(), active.size_bytes)
            for number in count(1):
                if (stop := walk.step()) is WalkStop.END:
                    break
                await self._stopped(number)
                if stop is not WalkStop.ROLL:
                    walk.take_stop(stop)
                elif log.rolls.may_roll(walk.header.base_offset):
                    break
                else:
                    walk.lift_limits()
            assert walk.begin == 0, (log.key, log.written_end_offset)
            log.folder.disk.poll_ring()
            await self._write_blocks(staged, active.size_bytes)
            active.size_bytes = walk.position
            log.publish(walk.next_offset)
            if stop is WalkStop.ROLL:
                await self.roll_at(walk.header.base_offset)
            return True

    async def _write_blocks(self, staged: memoryview, position: int) -> None:
        """Bring bytes that belong at a position into the active segment, as far as they are not there yet."""
        folder, active, end = self._log.folder, self._log.active, position + len(staged)
        begin = max(position, active.written_end_position)
        first_block = -(-begin // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES
        if begin < first_block:
            await folder.write(active.log_name, [staged[begin - position : first_block - position]], begin)
        await folder.write_direct(active.log_name, staged[first_block - position :], first_block)
        active.written_end_position = end

    # -- in two steps ----------------------------------------------------------------------------------------------

    def begin_run(self, batches: Buffer) -> AppendRun | None:
        """Take durable batches in, and lock the partition until `end_run`; a roll in the middle ends the run there.

        None: nothing was done, and `append` has to do it.
        """
        if self._log.life.state is not FilesState.OPEN:
            return None
        try:
            self._log.lock.acquire_nowait()
        except trio.WouldBlock:
            return None
        run = None
        try:
            run = self._begin_run(memoryview(batches))
        finally:
            if run is None:
                self._log.lock.release()
        return run

    def _begin_run(self, view: memoryview) -> AppendRun | None:
        log, active = self._log, self._log.active
        indexes, position = active.indexes, max(active.size_bytes, active.written_end_position)
        file = log.folder.begin_write(active.log_name)
        if file is None or indexes is None:
            return None
        walk = self._walk(view, log.written_end_offset)
        walk.use(indexes, active.size_bytes)
        try:
            while (stop := walk.step()) not in (WalkStop.END, WalkStop.ROLL):
                walk.take_stop(stop)
        except BatchDamageError:
            log.folder.files.end_use_nowait(file)
            raise
        if walk.place == walk.begin:
            log.folder.files.end_use_nowait(file)
            return None
        log.mark_changed()
        first = walk.begin + position - active.size_bytes
        data = view[first : walk.place] if first < walk.place else view[:0]
        write = FileWrite(file.fd, data, position)
        return AppendRun(file, write, walk.position, walk.next_offset, stop is WalkStop.END)

    def end_run(self, run: AppendRun, error: OSError | None) -> None:
        """The run was written, or not: then the partition is failed, and StorageFailedError is raised."""
        log = self._log
        log.folder.end_write(run.file, run.write.position)
        try:
            if error is not None:
                raise log.failure("write", error) from error
            active = log.active
            active.written_end_position = max(active.written_end_position, run.end_position)
            active.size_bytes = run.end_position
            log.publish(run.end_offset)
        finally:
            log.lock.release()

    # -- segments --------------------------------------------------------------------------------------------------

    async def roll(self) -> None:
        """Seal the active segment now, unless it is empty (retention of the active segment)."""
        log = self._log
        async with log.changing(Change.ROLL):
            if log.active.size_bytes and log.rolls.may_roll(log.written_end_offset):
                await self.roll_at(log.written_end_offset)

    async def roll_at(self, base_offset: int) -> None:
        """As `roll`, in the midst of a change. The new segment is synced with the next checkpoint."""
        log, sealed = self._log, self._log.active
        log.active_indexes().seal()
        await log.folder.flush_indexes(sealed, sealed=True)
        reserved_bytes = max(sealed.reserved_end_position - sealed.size_bytes, 0)
        if max(sealed.reserved_end_position, sealed.written_end_position) > sealed.size_bytes:
            await log.folder.shorten(sealed)
        snapshot = segment_file_name(base_offset, SNAPSHOT_SUFFIX)
        await log.folder.write_file(snapshot, log.producers.encode_snapshot(log.folder.disk.poll_ring))
        segment = Segment(base_offset, indexes=SegmentIndexes(base_offset, log.settings.index_interval_bytes))
        await ReservedSpace(log).move_to(segment, reserved_bytes)
        log.publish(log.written_end_offset, (*log.segments, segment))
        log.folder.names_changed = True

    async def place(self, open_in_place_window: Callable[[int], None]) -> bool:
        """Call with a descriptor for direct writes to the active segment, at a moment when nothing changes it.

        Not called when there may be none: the last checkpoint must name this segment, for recovery to find it, and the
        file system has to have taken a direct write. False: it is only the checkpoint that is missing.
        """
        log = self._log
        async with UncontendedLock(log.lock):
            active = log.active
            if log.failed is not None or not log.folder.files.direct_proven or not active.size_bytes:
                return True
            if log.checkpointed.segment_base != active.base_offset or not log.checkpointed.segment_position:
                return False
            async with log.folder.use(active.log_name) as file:
                descriptor = await log.folder.files.direct_descriptor(file)
                if descriptor is not None:
                    active.has_in_place_writes = True
                    open_in_place_window(descriptor)
        return True
