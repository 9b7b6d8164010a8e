"""The segments of one partition: written behind, read, cut, retained, and captured for checkpoints.

Theory of operation
-------------------
An acknowledged record is in the journal, not here. `append` brings durable batches into the active segment without any
sync; `capture` says what has been written, `sync` makes that durable, and only a checkpoint with the captured state
makes recovery believe it. So between checkpoints nothing here has to be ordered, and a crash may leave the files in any
state behind the checkpointed position.

Indexes, producer state and leader epochs are functions of the batches and are kept along with them. Index entries wait
in memory and go to their files at a roll and before a capture.

Sealed segments are opened without reading them. Their indexes are loaded when they are first looked into, checked, and
made again from the log when they are wrong.

*Long runs* go past the page cache (`append_direct`): only whole blocks are written, from aligned memory, and a batch
that reaches beyond the last whole block counts as not written yet, so that its rest can follow with what comes next.
Short runs, rests behind which nothing comes, and the bytes from there to the next block boundary go through the page
cache. So no block is ever written in both ways. A checkpoint names a place behind a whole batch; between checkpoints
the file may end in the middle of one.

*Failure.* When a write or sync fails the kernel may have thrown the pages away and call the file clean. The partition
is then `failed`: no further append is taken, nothing of it may be checkpointed, and the journal keeps its entries
until the partition was put back to its last checkpoint and replayed (`recovery.rewrite_partition`).

*In-place writes.* A partition's in-place window (the data plane's) writes large batches into the active segment before
they are acknowledged. Their batches come here like all others, with the ranges of the file that hold them already, and
only the rest is written. As long as such batches are on their way the segment is not rolled: their positions are given.

One task writes at a time (a lock); reads run beside it (`segment_reader`).
"""

from __future__ import annotations

import errno
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import SNAPSHOT_SUFFIX, SPARE_FILE, segment_file_name
from tpc_broker.log.producer_state import ProducerState, SnapshotError
from tpc_broker.log.segment import (
    AppendWalk,
    LogSettings,
    RetentionPlan,
    SegmentIndexes,
    SegmentView,
    WalkStop,
    plan_retention,
)
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.storage.batch_ranges import end_of_batches, missing, part
from tpc_broker.storage.files import DIRECT_BLOCK_BYTES
from tpc_broker.storage.files_life import Change, FilesLife
from tpc_broker.storage.reserved_space import ReservedSpace
from tpc_broker.storage.roll_guard import RollGuard
from tpc_broker.storage.segments import Segment, SegmentFolder
from tpc_broker.storage.short_runs import ShortRuns
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence
    from pathlib import Path

    from tpc_broker.log.batch import Buffer

SETTLED_BYTES: Final = 4 * 1024 * 1024
"""Of a segment that came from another replica, at a time."""
DIRECT_BYTES_MIN: Final = 256 * 1024
"""Shorter runs go through the page cache."""


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """For DescribeLogDirs and the like."""

    segments_count: int
    size_bytes: int
    log_start_offset: int
    written_end_offset: int
    reserved_bytes: int
    failed: str | None


class PartitionStorage(ShortRuns, ReservedSpace):
    """See the module's theory. Made by `create`, or by recovery from a checkpoint."""

    def __init__(
        self, folder: SegmentFolder, state: PartitionCheckpoint, segments: Iterable[Segment], settings: LogSettings
    ) -> None:
        super().__init__(folder, state.key, segments, state.log_end_offset, settings)
        self.topic = state.topic
        self.log_start_offset: int = state.log_start_offset
        self.leader_epoch: int = state.leader_epoch
        self.voted_for = state.voted_for
        self.epochs = LeaderEpochs(state.epochs)
        self.moves, self.notes = state.moves, dict(state.notes)
        """`PartitionCheckpoint.notes`."""
        self.commit_offset: Callable[[], int] | None = None
        """Where committed records end; None: nobody says so yet. Without notes what is durable is committed."""
        self._commit_known = state.committed_end_offset
        self.producers = state.producers.copy()
        self.life = FilesLife()
        self.rolls = RollGuard()
        self.checkpointed = state
        """What the last durable checkpoint says."""
        self._present: Sequence[tuple[int, int]] = ()
        self._version, self._captured_version, self._checkpointed_version = 1, 1, 0
        self._lock = trio.Lock()
        self._spare_reserved_bytes = 0
        self._doomed: list[tuple[int, list[str]]] = []

    @property
    def failed(self) -> str | None:
        """`FilesLife.failed`."""
        return self.life.failed

    @property
    def changed(self) -> bool:
        """Whether anything happened that is in no durable checkpoint."""
        return self._version != self._checkpointed_version

    def mark_changed(self) -> None:
        """Something happened that a checkpoint has to say (epoch, vote and log start may be set from outside)."""
        self._version += 1

    def mark_checkpointed(self, state: PartitionCheckpoint) -> None:
        """The state captured last is in a durable checkpoint now."""
        self.checkpointed = state
        self._checkpointed_version = self._captured_version

    @property
    def last_stable_offset(self) -> int:
        """As far as written behind; records in memory may hold older open transactions only if they are here."""
        return self.producers.last_stable_offset(self.written_end_offset)

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(
            len(self.segments), self.size_bytes, self.log_start_offset, self.written_end_offset, self.reserved_bytes,
            self.failed,
        )  # fmt: skip

    # -- writing ---------------------------------------------------------------------------------------------------

    async def append(self, batches: Sequence[Buffer], in_place: Sequence[tuple[int, int]] = ()) -> None:
        """Write durable batches behind what is there, rolling where it is due. Each buffer holds whole batches.

        `in_place`: ranges of the file that hold their part already. StorageFailedError: nothing more may be expected
        of this partition until it was rewritten from the journal.
        """
        async with self._changing(Change.WRITE):
            self._present = in_place
            await self._append(batches)
            self._present = ()

    @asynccontextmanager
    async def _changing(self, change: Change) -> AsyncIterator[None]:
        """One change of the files, when its turn has come. An error of the disk inside makes the partition failed."""
        async with UncontendedLock(self._lock):
            self.life.check(change)
            self.mark_changed()
            try:
                yield
            except OSError as error:
                self.fail(f"{change.value}: {error}", pages_in_doubt=error.errno != errno.ENOSPC)
                raise StorageFailedError(self.failed) from error

    async def _append(self, batches: Sequence[Buffer]) -> None:
        run: list[memoryview] = []
        position, end_offset = self.active.size_bytes, self.written_end_offset
        for buffer in batches:
            view = memoryview(buffer)
            walk, run_from = AppendWalk(view, self.settings, end_offset, self.epochs.latest), 0
            walk.use(self._indexes(), position)
            while (stop := walk.step(self.producers)) is not WalkStop.END:
                self.folder.disk.poll_ring()
                if stop is WalkStop.ROLL and not self.rolls.may_roll(walk.header.base_offset):
                    walk.lift_limits()
                elif stop is WalkStop.ROLL:
                    run.append(view[max(run_from, walk.begin) : walk.place])
                    await self._write_run(run, walk.position, walk.next_offset)
                    run, run_from = [], walk.place
                    await self._roll(walk.header.base_offset)
                    walk.use(self._indexes(), 0)
                else:
                    walk.take_stop(stop, self.producers, self.epochs)
            position, end_offset = walk.position, walk.next_offset
            run.append(view[max(run_from, walk.begin) :])
        await self._write_run(run, position, end_offset)

    def direct_reach(self, size: int) -> int:
        """How many of the next `size` bytes a direct write would bring into the file; 0: they are too few.

        They end with a block, and do not go beyond the segment's largest size (which is as far as space is reserved).
        """
        active = self.active
        begin = max(active.size_bytes, active.written_end_position)
        end = min(active.size_bytes + size, self.settings.segment_bytes) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
        if self.folder.files.direct_refused or end - begin < DIRECT_BYTES_MIN:
            return 0
        return end - active.size_bytes

    async def append_direct(self, active: Segment, staged: memoryview, whole_bytes: int) -> bool:
        """Write durable batches past the page cache: `staged` holds what `direct_reach` said, from the written end on.

        Its first byte lies in its block of memory as it will in its block of the file, `whole_bytes` of it are whole
        batches. When the segment has to be rolled, what follows is left. False: `active` is no longer the active
        segment, nothing was done. Errors as of `append`.
        """
        async with self._changing(Change.WRITE):
            if active is not self.active:
                return False
            walk = AppendWalk(staged[:whole_bytes], self.settings, self.written_end_offset, self.epochs.latest)
            walk.use(self._indexes(), active.size_bytes)
            while (stop := walk.step(self.producers)) is not WalkStop.END:
                self.folder.disk.poll_ring()
                if stop is not WalkStop.ROLL:
                    walk.take_stop(stop, self.producers, self.epochs)
                elif self.rolls.may_roll(walk.header.base_offset):
                    break
                else:
                    walk.lift_limits()
            assert walk.begin == 0, (self.key, self.written_end_offset)
            self.folder.disk.poll_ring()
            await self._write_blocks(staged, active.size_bytes)
            active.size_bytes, self.written_end_offset = walk.position, walk.next_offset
            if stop is WalkStop.ROLL:
                await self._roll(walk.header.base_offset)
            return True

    async def _write_blocks(self, staged: memoryview, position: int) -> None:
        """Bring bytes that belong at a position into the active segment, as far as they are not there yet."""
        active, end = self.active, position + len(staged)
        begin = max(position, active.written_end_position)
        first_block = -(-begin // DIRECT_BLOCK_BYTES) * DIRECT_BLOCK_BYTES
        if begin < first_block:
            await self.folder.write(active.log_name, [staged[begin - position : first_block - position]], begin)
        await self.folder.write_direct(active.log_name, staged[first_block - position :], first_block)
        active.written_end_position = end

    def _indexes(self) -> SegmentIndexes:
        indexes = self.active.indexes
        assert indexes is not None, self.key
        return indexes

    async def _write_run(self, run: list[memoryview], end_position: int, end_offset: int) -> None:
        """Write buffers to the end of the active segment; then, and only then, readers may see them."""
        active = self.active
        assert active.size_bytes + sum(map(len, run)) == end_position, (self.key, end_position)
        if end_position > active.size_bytes:
            begin = max(active.size_bytes, active.written_end_position)
            places, offset = missing(begin, end_position, self._present), active.size_bytes
            parts = [(part(run, first - offset, end - offset), first) for first, end in places]
            await self.folder.write_parts(active.log_name, parts)
            active.written_end_position = max(end_position, begin)
            active.size_bytes = end_position
        self.written_end_offset = end_offset

    async def roll(self) -> None:
        """Seal the active segment now, unless it is empty (retention of the active segment)."""
        async with self._changing(Change.ROLL):
            if self.active.size_bytes and self.rolls.may_roll(self.written_end_offset):
                await self._roll(self.written_end_offset)

    async def _roll(self, base_offset: int) -> None:
        """Seal the active segment and begin another one. It is synced with the next checkpoint."""
        sealed, self._present = self.active, ()
        self._indexes().seal()
        await self.folder.flush_indexes(sealed, sealed=True)
        reserved_bytes = max(sealed.reserved_end_position - sealed.size_bytes, 0)
        if max(sealed.reserved_end_position, sealed.written_end_position) > sealed.size_bytes:
            await self.folder.shorten(sealed)
        await self.folder.write_file(segment_file_name(base_offset, SNAPSHOT_SUFFIX), self.producers.encode_snapshot())
        segment = Segment(base_offset, indexes=SegmentIndexes(base_offset, self.settings.index_interval_bytes))
        if self._spare_reserved_bytes > reserved_bytes:
            await self.folder.rename(SPARE_FILE, segment.log_name)
            segment.reserved_end_position, self._spare_reserved_bytes = self._spare_reserved_bytes, 0
        else:
            await self._keep_reserved(segment, reserved_bytes)
        self.segments = (*self.segments, segment)
        self.folder.names_changed = True

    async def place(self, open_in_place_window: Callable[[int], None]) -> bool:
        """Call with a descriptor for direct writes to the active segment, at a moment when nothing changes it.

        Not called when there may be none: the last checkpoint must name this segment, for recovery to find it, and the
        file system has to have taken a direct write. False: it is only the checkpoint that is missing.
        """
        async with UncontendedLock(self._lock):
            active = self.active
            if self.failed is not None or not self.folder.files.direct_proven or not active.size_bytes:
                return True
            if self.checkpointed.segment_base != active.base_offset or not self.checkpointed.segment_position:
                return False
            async with self.folder.use(active.log_name) as file:
                descriptor = await self.folder.files.direct_descriptor(file)
                if descriptor is not None:
                    active.has_in_place_writes = True
                    open_in_place_window(descriptor)
        return True

    # -- cutting and retention -------------------------------------------------------------------------------------

    async def truncate(self, offset: int, *, trust_indexes: bool = True) -> None:
        """Cut the log: everything at or above a batch's base offset is void. The journal's CUT is durable before.

        `trust_indexes` is false in recovery, where an earlier life may have cut already and written behind the cut.
        ValueError: the offset lies inside a batch, or the segments end in front of it.
        """
        async with self._changing(Change.CUT):
            if offset >= self.written_end_offset:
                if self.active.written_end_position > self.active.size_bytes:  # of a batch that is void now
                    await self.folder.shorten(self.active)
                return
            while len(self.segments) > 1 and self.active.base_offset >= offset:
                last, self.segments = self.active, self.segments[:-1]
                await self._remove_segment(last, offset)
            segment = self.active
            if segment.base_offset > offset:
                self.segments = (Segment(offset, indexes=SegmentIndexes(offset, self.settings.index_interval_bytes)),)
                await self._remove_segment(segment, offset)
            else:
                await self._cut_segment(segment, offset, trust_indexes=trust_indexes)
            self.epochs.truncate_end(Offset(offset))
            self.written_end_offset = offset
            self.log_start_offset = min(self.log_start_offset, offset)
            self.producers = await self._producers_at(offset)

    async def settle(self, offset: int, *, is_sealed: bool = False) -> None:
        """Of files that came from another replica: the log ends at an offset of the last segment, by what the segments
        hold; `is_sealed`: that one is complete. BatchDamageError, ValueError: they hold no log that ends there.
        """
        active = self.active
        for name in active.file_names[1:4]:
            await self.folder.remove(name)
        size_bytes, active.size_bytes = active.size_bytes, 0
        active.indexes = SegmentIndexes(active.base_offset, self.settings.index_interval_bytes)
        self.written_end_offset = active.base_offset
        self.producers = await self._producers_at(active.base_offset)
        self.rolls.hold_until(offset)
        await self._take_in(size_bytes, offset)
        if self.written_end_offset != offset:
            raise ValueError(f"segment {active.base_offset} ends at {self.written_end_offset}, not at {offset}")
        await self.folder.shorten(active)
        if is_sealed:
            self._indexes().seal()
            await self.folder.flush_indexes(active, sealed=True)

    async def _take_in(self, size_bytes: int, upto: int) -> None:
        """Append what is in the active segment's file already."""
        position, length = 0, SETTLED_BYTES
        while position < size_bytes and self.written_end_offset < upto:
            data = await self.folder.read(self.active, position, min(length, size_bytes - position))
            end, next_offset = find_batches_end(data, self.written_end_offset)
            if next_offset > upto:
                end = end_of_batches(data, 0, len(data), upto)
            if not end:
                if len(data) < length:
                    raise BatchDamageError(f"no batch at {position} of segment {self.active.base_offset}")
                length *= 2
                continue
            await self.append([memoryview(data)[:end]], [(position, position + end)])
            position, length = position + end, SETTLED_BYTES

    async def _remove_segment(self, segment: Segment, cut_offset: int) -> None:
        """Its files go; a snapshot of the producers in front of the cut is still right."""
        for name in segment.file_names:
            if segment.base_offset != cut_offset or not name.endswith(SNAPSHOT_SUFFIX):
                await self.folder.remove(name)

    async def _cut_segment(self, segment: Segment, offset: int, *, trust_indexes: bool) -> None:
        interval_bytes, position = self.settings.index_interval_bytes, 0
        indexes = await self.folder.load_indexes(segment, offset, interval_bytes) if trust_indexes else None
        if indexes is not None and offset > segment.base_offset:
            position = indexes.offsets.lookup(offset - 1).position
        end_offset = segment.base_offset
        async with aclosing(self.folder.walk(segment, position if offset > segment.base_offset else 0)) as batches:
            while end_offset < offset:
                found = await anext(batches, None)  # not a tuple: CPython 3.11 makes the end's arguments of it
                if found is None or found[0].base_offset < offset < found[0].next_offset:
                    raise ValueError(f"offset {offset} does not end a batch of segment {segment.base_offset}")
                header, place = found
                if header.base_offset >= offset:
                    break
                position, end_offset = place + header.size_bytes, header.next_offset
        await self.folder.cut(segment, position)
        if indexes is None:
            indexes = await self.folder.rebuild_indexes(segment, interval_bytes)
        indexes.truncate(position, offset)
        segment.indexes = indexes
        await self.folder.resume(segment)

    async def _producers_at(self, offset: int) -> ProducerState:
        """Producer state in front of an offset: the nearest good snapshot, and the batches since."""
        state, from_offset = ProducerState(), self.segments[0].base_offset
        for segment in reversed(self.segments):
            data = await self.folder.read_file(segment_file_name(segment.base_offset, SNAPSHOT_SUFFIX))
            if data is None or segment.base_offset > offset:
                continue
            try:
                state, from_offset = ProducerState.decode_snapshot(data), segment.base_offset
                break
            except SnapshotError:
                continue
        for segment in self.segments[self.segment_number(from_offset) :]:
            async with aclosing(self.folder.walk(segment, 0)) as batches:
                async for header, place in batches:
                    if header.next_offset > offset:
                        return state
                    state.apply(header, await self.folder.control_data(segment, header, place))
        return state

    async def plan_retention(self, now_ms: int, high_watermark: int) -> tuple[RetentionPlan, int]:
        """Which leading segments may go, and the log start offset this leads to.

        The caller makes the new log start durable (a LOG_START entry), then calls `advance_log_start`.
        """
        views = []
        async for segment, indexes in self.look_through(0):
            try:
                appended_ms = await self.folder.modified_ms(segment) if segment.size_bytes else now_ms
            except FileNotFoundError:
                if segment in self.segments:
                    raise
            if segment in self.segments:
                end = self.end_of(segment)
                views.append(
                    SegmentView(segment.base_offset, end, segment.size_bytes, indexes.largest_timestamp, appended_ms)
                )
        plan = plan_retention(
            views,
            self.settings,
            log_start_offset=self.log_start_offset,
            high_watermark=min(high_watermark, self.written_end_offset),
            now_ms=now_ms,
        )
        start = views[plan.segments_count - 1].end_offset if plan.segments_count else self.log_start_offset
        return plan, max(start, self.log_start_offset)

    async def advance_log_start(self, offset: int, now_ms: int) -> int:
        """The log starts at an offset from now on (its journal entry is durable); how many segments went.

        Segments wholly below it are renamed, and unlinked by `purge` after `file.delete.delay.ms` (one that had
        in-place writes not before the next checkpoint). Called as often as needed: an offset not above the present
        start only removes what is left over.
        """
        async with self._changing(Change.RETAIN):
            self.log_start_offset = max(self.log_start_offset, offset)
            self.epochs.truncate_start(Offset(self.log_start_offset))
            all_gone = self.active.size_bytes and self.written_end_offset <= self.log_start_offset
            if all_gone and self.rolls.may_roll(self.written_end_offset):
                await self._roll(self.written_end_offset)
            gone = 0
            while len(self.segments) > 1 and self.segments[1].base_offset <= self.log_start_offset:
                first = self.segments[0]
                if first.has_in_place_writes and self.checkpointed.segment_base <= first.base_offset:
                    break  # recovery may have to read batches in it that were written in place
                self.segments = self.segments[1:]
                names = await self.folder.doom(first)
                self._doomed.append((now_ms + self.settings.file_delete_delay_ms, names))
                gone += 1
            return gone

    async def purge(self, now_ms: int) -> None:
        """Unlink files whose delay is over. OSError: those that are left are tried again by the next call."""
        while self._doomed and self._doomed[0][0] <= now_ms:
            doomed = self._doomed[0]
            for name in doomed[1]:
                await self.folder.remove(name)
            if doomed in self._doomed:  # two may be at it
                self._doomed.remove(doomed)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    async def capture(self, *, flush: bool = True) -> PartitionCheckpoint:
        """What is written, to be named by a checkpoint once `sync` (or a sync of the file system) has succeeded."""
        async with self._lock:
            self.life.check_open()
            if flush:
                try:
                    await self.folder.flush_indexes(self.active, sealed=False)
                except OSError as error:
                    what = f"indexes of segment {self.active.base_offset}"
                    self.fail(f"{what}: {error}", pages_in_doubt=error.errno != errno.ENOSPC)
                    raise StorageFailedError(self.failed) from error
            self._captured_version = self._version
            return self.state()

    def state(self) -> PartitionCheckpoint:
        """The captured fields, as they are now."""
        active, indexes = self.active, self._indexes()
        return PartitionCheckpoint(
            self.key.topic_id,
            self.key.partition,
            self.topic,
            Offset(active.base_offset),
            active.size_bytes,
            Offset(min(self.log_start_offset, self.written_end_offset)),
            Offset(self.written_end_offset),
            LeaderEpoch(self.leader_epoch),
            self.voted_for,
            indexes.largest_timestamp,
            indexes.largest_timestamp_offset,
            indexes.first_timestamp,
            index_bytes=active.flushed_bytes[0],
            time_index_bytes=active.flushed_bytes[1],
            transaction_index_bytes=active.flushed_bytes[2],
            epochs=self.epochs.entries,
            producers=self.producers.copy(),
            commit_offset=Offset(self._committed_end_offset()),
            notes=tuple(sorted(self.notes.items())),
            moves=self.moves,
        )

    def _committed_end_offset(self) -> int:
        if self.commit_offset is not None:
            self._commit_known = Offset(self.commit_offset())
        return min(self._commit_known if self.notes else self.written_end_offset, self.written_end_offset)

    async def sync(self) -> None:
        """Everything that was written before the call is durable after it. StorageFailedError: the disk refuses, or has
        refused another sync meanwhile: then what this one was told says nothing.
        """
        has_failed = self.failed is not None
        try:
            await self.folder.sync(self.epochs.entries)
        except OSError as error:
            self.fail(f"sync: {error}")
            raise StorageFailedError(self.failed) from error
        if self.failed is not None and not has_failed:
            raise StorageFailedError(self.failed)

    def take_over(self, fresh: PartitionStorage) -> None:
        """Go on from another object's state, in files that were made anew (`rewrite_partition`): what is missing behind
        it is to be appended, then `life.end_rewrite` called. StorageFailedError: the partition is deleted meanwhile.
        """
        self.life.begin_rewrite()
        placed = {segment.base_offset for segment in self.segments if segment.has_in_place_writes}
        for segment in fresh.segments:
            segment.has_in_place_writes = segment.base_offset in placed
        self.segments = fresh.segments
        self.written_end_offset = fresh.written_end_offset
        self.producers = fresh.producers
        self.mark_changed()
        self._spare_reserved_bytes = 0

    def fail(self, reason: str, *, pages_in_doubt: bool = True) -> None:
        """Take no further append (first reason counts)."""
        self.rolls.close_window()
        self.life.fail(reason, pages_in_doubt=pages_in_doubt)

    def release(self) -> None:
        """Another core's from here on."""
        self.rolls.close_window()
        self.life.release()

    def begin_deletion(self) -> None:
        """For good."""
        self.rolls.close_window()
        self.life.delete()

    def _surplus(self) -> tuple[Path, int] | None:
        """The active segment's file and where it ends, when something lies behind that and nothing is written there."""
        active, end_position = self.active, max(self.active.reserved_end_position, self.active.written_end_position)
        if end_position <= active.size_bytes or self.failed or not self.rolls.may_roll(self.written_end_offset):
            return None
        return self.folder.path / active.log_name, active.size_bytes

    def surplus_nowait(self) -> tuple[Path, int] | None:
        """What `close` would cut. WouldBlock: somebody works on the files, or `close` has more to do."""
        if self._lock.locked() or self._spare_reserved_bytes:
            raise trio.WouldBlock
        return self._surplus()

    async def close(self) -> None:
        """Close the files, which were synced; what lies behind the last batch is cut off, unless it is written to."""
        async with self._lock:
            if self._surplus() is not None:
                await self.folder.shorten(self.active)
            if self._spare_reserved_bytes:
                await self.folder.remove(SPARE_FILE)
            await self.folder.close()
