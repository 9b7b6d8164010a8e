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
made again from the log when they are wrong. The log may be cut meanwhile, or the segment go: then what was loaded is
not kept, and no file is replaced. Who replaces them holds the lock.

*Failure.* When a write or sync fails the kernel may have thrown the pages away and call the file clean. The partition
is then `failed`: no further append is taken, nothing of it may be checkpointed, and the journal keeps its entries
until the partition was put back to its last checkpoint and replayed (`recovery.rewrite_partition`).

One task writes at a time (a lock); reads run beside it. What is known of the log (`segment_log`) is shared by who reads
(`segment_reader`), appends (`segment_appender`, with space taken ahead by `reserved_space`), cuts (`truncation`) and
retains (`segment_retention`); `PartitionStorage` is the face of all of them, and answers checkpoints itself.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import SPARE_FILE
from tpc_broker.log.seals import cleaned_state
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.storage.segments.reserved_space import ReservedSpace, SpaceBegun
from tpc_broker.storage.segments.segment_appender import AppendRun, SegmentAppender
from tpc_broker.storage.segments.segment_log import SegmentLog
from tpc_broker.storage.segments.segment_reader import SegmentReader, TimestampMatch
from tpc_broker.storage.segments.segment_retention import SegmentRetention
from tpc_broker.storage.segments.segment_swap import SegmentSwap
from tpc_broker.storage.segments.truncation import Truncation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.log.seals import CleanedState, Seal
    from tpc_broker.log.segment import LogSettings, RetentionPlan
    from tpc_broker.storage.ports import SegmentWindow
    from tpc_broker.storage.segments.segment_swap import Source
    from tpc_broker.storage.segments.segments import Segment, SegmentFolder


@dataclass(frozen=True, slots=True)
class StorageStatistics:
    """For DescribeLogDirs and the like."""

    segments_count: int
    size_bytes: int
    log_start_offset: int
    written_end_offset: int
    reserved_bytes: int
    failed: str | None


class PartitionStorage(SegmentLog):
    """See the module's theory. Made by `create`, or by recovery from a checkpoint."""

    def __init__(
        self, folder: SegmentFolder, state: PartitionCheckpoint, segments: Iterable[Segment], settings: LogSettings
    ) -> None:
        super().__init__(folder, state, segments, settings)
        self.topic = state.topic
        self.leader_epoch: int = state.leader_epoch
        self.voted_for = state.voted_for
        self.moves, self.notes = state.moves, dict(state.notes)
        """`PartitionCheckpoint.notes`."""
        self.commit_offset: Callable[[], int] | None = None
        """Where committed records end; None: nobody says so yet. Without notes what is durable is committed."""
        self.on_cleaned: Callable[[], None] = lambda: None
        """Called in the step in which readers begin to see cleaned segments."""
        self._commit_known = state.committed_end_offset

    @property
    def label(self) -> str:
        """As people call it."""
        return f"{self.topic}-{self.key.partition}"

    def statistics(self) -> StorageStatistics:
        return StorageStatistics(
            len(self.segments), self.size_bytes, self.log_start_offset, self.written_end_offset, self.reserved_bytes,
            self.failed,
        )  # fmt: skip

    # -- what its parts do -----------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, upto_offset: int | None = None) -> Awaitable[Buffer]:
        """`SegmentReader.read`."""
        return self.begin_again(lambda: SegmentReader(self).read(offset, bytes_max, upto_offset))

    def read_once(self, offset: int, bytes_max: int, upto_offset: int | None = None) -> Awaitable[Buffer]:
        """The same of the version that is there when it is awaited. SegmentReplacedError (`wait_swapped`)."""
        return SegmentReader(self).read(offset, bytes_max, upto_offset)

    def window(self, offset: int) -> AbstractAsyncContextManager[SegmentWindow]:
        """`SegmentReader.window`. SegmentReplacedError."""
        return SegmentReader(self).window(offset)

    def offset_for_timestamp(self, timestamp: int, start_offset: int) -> Awaitable[TimestampMatch | None]:
        """`SegmentReader.offset_for_timestamp`."""
        return self.begin_again(lambda: SegmentReader(self).offset_for_timestamp(timestamp, start_offset))

    def largest_timestamp(self, start_offset: int, upto_offset: int) -> Awaitable[TimestampMatch | None]:
        """`SegmentReader.largest_timestamp`."""
        return self.begin_again(lambda: SegmentReader(self).largest_timestamp(start_offset, upto_offset))

    def aborted_transactions(self, fetch_offset: int, upper_offset: int) -> Awaitable[list[AbortedTransaction]]:
        """`SegmentReader.aborted_transactions`."""
        return self.begin_again(lambda: SegmentReader(self).aborted_transactions(fetch_offset, upper_offset))

    def aborted_now(
        self, offset: int, upto_offset: int, bytes_max: int | None = None
    ) -> list[AbortedTransaction] | None:
        """`SegmentReader.aborted_now`."""
        return SegmentReader(self).aborted_now(offset, upto_offset, bytes_max)

    def load_aborted(self, offset: int, upto_offset: int, bytes_max: int | None = None) -> Awaitable[None]:
        """`SegmentReader.load_aborted`."""
        return self.begin_again(lambda: SegmentReader(self).load_aborted(offset, upto_offset, bytes_max))

    def aborted_below(self, offset: int, upto_offset: int, count_max: int) -> tuple[int, list[AbortedTransaction]]:
        """`SegmentReader.aborted_below`."""
        return SegmentReader(self).aborted_below(offset, upto_offset, count_max)

    def append(self, batches: Sequence[Buffer], in_place: Sequence[tuple[int, int]] = ()) -> Awaitable[None]:
        """`SegmentAppender.append`."""
        return SegmentAppender(self).append(batches, in_place)

    def direct_reach(self, size: int) -> int:
        """`SegmentAppender.direct_reach`."""
        return SegmentAppender(self).direct_reach(size)

    def append_direct(self, active: Segment, staged: memoryview, whole_bytes: int) -> Awaitable[bool]:
        """`SegmentAppender.append_direct`."""
        return SegmentAppender(self).append_direct(active, staged, whole_bytes)

    def begin_run(self, batches: Buffer) -> AppendRun | None:
        """`SegmentAppender.begin_run`."""
        return SegmentAppender(self).begin_run(batches)

    def end_run(self, run: AppendRun, error: OSError | None) -> None:
        """`SegmentAppender.end_run`."""
        SegmentAppender(self).end_run(run, error)

    def roll(self) -> Awaitable[None]:
        """`SegmentAppender.roll`."""
        return SegmentAppender(self).roll()

    def place(self, open_in_place_window: Callable[[int], None]) -> Awaitable[bool]:
        """`SegmentAppender.place`."""
        return SegmentAppender(self).place(open_in_place_window)

    @property
    def reserved_bytes(self) -> int:
        """`ReservedSpace.bytes_ahead`."""
        return ReservedSpace(self).bytes_ahead

    def reserve(self, ahead_bytes: int) -> Awaitable[None]:
        """`ReservedSpace.reserve`."""
        return ReservedSpace(self).reserve(ahead_bytes)

    def begin_reserve(self, ahead_bytes: int) -> SpaceBegun | None:
        """`ReservedSpace.begin_reserve`."""
        return ReservedSpace(self).begin_reserve(ahead_bytes)

    def end_reserve(self, begun: SpaceBegun, error: OSError | None) -> bool:
        """`ReservedSpace.end_reserve`."""
        return ReservedSpace(self).end_reserve(begun, error)

    def truncate(self, offset: int, *, trust_indexes: bool = True) -> Awaitable[None]:
        """`Truncation.truncate`."""
        return Truncation(self).truncate(offset, trust_indexes=trust_indexes)

    def begin_settling(self, offset: int) -> Awaitable[None]:
        """`Truncation.begin_settling`."""
        return Truncation(self).begin_settling(offset)

    def take_settled(self, batches: Buffer, next_offset: int, upto: int) -> Awaitable[bool]:
        """`Truncation.take_settled`."""
        return Truncation(self).take_settled(batches, next_offset, upto)

    def settle(self, offset: int, *, is_sealed: bool = False, has_gaps: bool = False) -> Awaitable[None]:
        """`Truncation.settle`."""
        return Truncation(self).settle(offset, is_sealed=is_sealed, has_gaps=has_gaps)

    def plan_retention(self, now_ms: int, high_watermark: int) -> Awaitable[tuple[RetentionPlan, int]]:
        """`SegmentRetention.plan`."""
        return self.begin_again(lambda: SegmentRetention(self).plan(now_ms, high_watermark))

    def advance_log_start(self, offset: int, now_ms: int) -> Awaitable[int]:
        """`SegmentRetention.advance_log_start`."""
        return SegmentRetention(self).advance_log_start(offset, now_ms)

    def purge(self, now_ms: int) -> Awaitable[None]:
        """`SegmentRetention.purge`."""
        return SegmentRetention(self).purge(now_ms)

    def swap(
        self,
        sources: Sequence[Source],
        seal: Seal,
        published: Callable[[], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Awaitable[float]:
        """`SegmentSwap.swap`; `on_cleaned` is called with `published`."""

        def shown() -> None:
            published()
            self.on_cleaned()

        return SegmentSwap(self).swap(sources, seal, shown, is_wanted)

    @asynccontextmanager
    async def swaps_held(self) -> AsyncIterator[None]:
        """`SwapGuard.held`: for who makes second names of files, one after the other. Not for long. OSError: a swap has
        failed in the midst, and the names are not yet those of one version.
        """
        async with self.swaps.held():
            self.check_swapped()
            yield

    @property
    def cleaned(self) -> CleanedState:
        """How far compaction has come, by the seals of the segments that are there."""
        return cleaned_state(segment.seal for segment in self.segments if segment.seal is not None)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    async def capture(self, *, flush: bool = True) -> PartitionCheckpoint:
        """What is written, to be named by a checkpoint once `sync` (or a sync of the file system) has succeeded."""
        async with self.lock:
            self.life.check_open()
            if flush:
                try:
                    await self.folder.flush_indexes(self.active, sealed=False)
                except OSError as error:
                    raise self.failure(f"indexes of segment {self.active.base_offset}", error) from error
            return self.captured_now()

    def captured_now(self) -> PartitionCheckpoint:
        """The same where the lock is held and the indexes are in their files."""
        state = self.state()
        self.mark_captured(state)
        return state

    def state(self) -> PartitionCheckpoint:
        """The captured fields, as they are now."""
        active, indexes = self.active, self.active_indexes()
        commit_offset = self._committed_end_offset()
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
            commit_offset=Offset(commit_offset),
            notes=tuple(sorted(self.notes.items())),
            moves=self.moves,
            ended=tuple(one for one in self.log_state.ended if one.marker_end > commit_offset),
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
        self.version = fresh.version
        self.log_state.producers, self.log_state.ended = fresh.producers, fresh.log_state.ended
        self.mark_changed()
        self.spare_bytes = 0

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
        if self.lock.locked() or self.spare_bytes:
            raise trio.WouldBlock
        return self._surplus()

    async def close(self) -> None:
        """Close the files, which were synced; what lies behind the last batch is cut off, unless it is written to."""
        async with self.lock:
            if self._surplus() is not None:
                await self.folder.shorten(self.active)
            if self.spare_bytes:
                await self.folder.remove(SPARE_FILE)
            await self.folder.close()
