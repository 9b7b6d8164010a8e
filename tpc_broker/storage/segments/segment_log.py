"""The log of one partition as its segments hold it: what those who read, append to, cut and retain it have in common.

A *version* names the segments of one moment and where their records end. It never changes: who changes the log
publishes another one, in one step, when what that names is written. So a reader has segments and an end that belong
together, however long it waits for the disk. Whoever has to know what holds now (is a segment still there?) looks at
the log's version again.

Changes are made one at a time: `changing` queues them on the lock, and asks the files' life whether they may be made.
"""

from __future__ import annotations

import bisect
import errno
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.storage.segments.files_life import OF_SEALED_SEGMENTS, Change, FilesLife
from tpc_broker.storage.segments.roll_guard import RollGuard
from tpc_broker.storage.segments.swap_guard import SegmentReplacedError, SwapGuard, in_the_midst
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.epochs import LeaderEpochs
    from tpc_broker.log.producer_state import ProducerState
    from tpc_broker.log.segment import LogSettings, SegmentIndexes
    from tpc_broker.storage.segments.segments import Segment, SegmentFolder


T = TypeVar("T")


class OffsetOutOfRangeError(LookupError):
    """No segment holds the offset: it lies in front of the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class SegmentsVersion:
    """The segments of one moment."""

    segments: tuple[Segment, ...]
    """By base offset, never empty; the last one is the active segment."""
    end_offset: int
    """Behind the last record that is written."""
    active_bytes: int
    """Of the active segment, up to there; sealed ones have their sizes themselves."""

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    def size_of(self, segment: Segment) -> int:
        """Bytes of a segment of this version."""
        return self.active_bytes if segment is self.segments[-1] else segment.size_bytes

    def number_of(self, offset: int) -> int:
        """Of the segment that has an offset, or would have it. OffsetOutOfRangeError."""
        number = bisect.bisect_right(self.segments, offset, key=lambda segment: segment.base_offset) - 1
        if number < 0:
            raise OffsetOutOfRangeError(f"offset {offset} lies in front of {self.segments[0].base_offset}")
        return number

    def end_of(self, segment: Segment) -> int:
        """The offset at which a segment ends. ValueError: it is none of this version."""
        following = self.segments[self.segments.index(segment) + 1 :]
        return following[0].base_offset if following else self.end_offset


class SegmentLog:
    """See the module. What is done with it: `segment_reader`, `segment_appender`, `truncation`, `segment_retention`.

    Those have no state of their own, and are made for a call: kept here they would be a cycle, and of what is frozen at
    the end of a start (`gc.freeze`) a partition that is deleted would never be freed.
    """

    def __init__(
        self, folder: SegmentFolder, state: PartitionCheckpoint, segments: Iterable[Segment], settings: LogSettings
    ) -> None:
        self.folder = folder
        self.key = state.key
        self.settings = settings
        every = tuple(segments)
        self.version = SegmentsVersion(every, state.log_end_offset, every[-1].size_bytes)
        self.log_start_offset: int = state.log_start_offset
        self.log_state = state.log_state()
        """As of what is written; epochs as of what is durable in the journal."""
        self.life = FilesLife()
        self.rolls = RollGuard()
        self.swaps = SwapGuard()
        self.checkpointed = state
        """What the last durable checkpoint says."""
        self.spare_bytes = 0
        """Of the spare file, which has space for what follows the next roll; 0: there is none."""
        self.doomed: list[tuple[int, list[str]]] = []
        """Files of segments that went: to be unlinked, and when (ms)."""
        self.lock = trio.Lock()
        """Held by who changes the files."""
        self._change, self._checkpointed_change = 1, 0
        self._captured = state, self._change

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.version.segments

    @property
    def active(self) -> Segment:
        return self.version.segments[-1]

    @property
    def written_end_offset(self) -> int:
        return self.version.end_offset

    @property
    def epochs(self) -> LeaderEpochs:
        return self.log_state.epochs

    @property
    def producers(self) -> ProducerState:
        return self.log_state.producers

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    def end_of(self, segment: Segment) -> int:
        """As of now. ValueError: it is not there any more."""
        return self.version.end_of(segment)

    def segment_number(self, offset: int) -> int:
        """As of now. OffsetOutOfRangeError."""
        return self.version.number_of(offset)

    def publish(self, end_offset: int, segments: tuple[Segment, ...] | None = None) -> None:
        """What is written now: readers may see it. The active segment has its size."""
        segments = self.version.segments if segments is None else segments
        self.version = SegmentsVersion(segments, end_offset, segments[-1].size_bytes)

    def active_indexes(self) -> SegmentIndexes:
        """The active segment always has them."""
        indexes = self.active.indexes
        assert indexes is not None, self.key
        return indexes

    def path_to_open(self) -> Path | None:
        """Of the active segment's file; None: it is open."""
        return self.folder.path_to_open(self.active.log_name)

    # -- swaps -----------------------------------------------------------------------------------------------------

    async def wait_swapped(self) -> None:
        """For who has met a segment that gave way: until what took its place is there. OSError: it never will be, as
        long as the partition has failed.
        """
        await self.swaps.wait_over()
        self.check_swapped()

    def check_swapped(self) -> None:
        """No swap is under way. OSError: one has failed in the midst."""
        if self.failed is not None and any(segment.is_replaced for segment in self.segments):
            raise in_the_midst(self.failed)

    async def begin_again(self, read: Callable[[], Awaitable[T]]) -> T:
        """What `read` finds in one version of the log, which it takes when it is called."""
        while True:
            try:
                return await read()
            except SegmentReplacedError:
                await self.wait_swapped()

    # -- changes ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def changing(self, change: Change) -> AsyncIterator[None]:
        """One change of the files, when its turn has come. An error of the disk inside makes the partition failed."""
        async with self.locked(beside_swaps=change not in OF_SEALED_SEGMENTS):
            self.life.check(change)
            self.mark_changed()
            try:
                yield
            except OSError as error:
                raise self.failure(change.value, error) from error

    @asynccontextmanager
    async def locked(self, *, beside_swaps: bool) -> AsyncIterator[None]:
        """The lock; unless `beside_swaps` when no swap is under way, of which none begins until it is given back."""
        while True:
            if not beside_swaps:
                await self.swaps.wait_over()
            async with UncontendedLock(self.lock):
                if beside_swaps or not self.swaps.is_under_way:
                    yield
                    return

    def failure(self, what: str, error: OSError) -> StorageFailedError:
        """The disk has refused something: the partition is failed from here on."""
        self.fail(f"{what}: {error}", pages_in_doubt=error.errno != errno.ENOSPC)
        return StorageFailedError(self.failed)

    def fail(self, reason: str, *, pages_in_doubt: bool = True) -> None:
        """Take no further append (first reason counts)."""
        self.rolls.close_window()
        self.life.fail(reason, pages_in_doubt=pages_in_doubt)

    @property
    def failed(self) -> str | None:
        """`FilesLife.failed`."""
        return self.life.failed

    @property
    def changed(self) -> bool:
        """Whether anything happened that is in no durable checkpoint."""
        return self._change != self._checkpointed_change

    def mark_changed(self) -> None:
        """Something happened that a checkpoint has to say (epoch, vote and log start may be set from outside)."""
        self._change += 1

    def mark_captured(self, state: PartitionCheckpoint) -> None:
        """What was changed up to here is in this state."""
        self._captured = state, self._change

    def mark_checkpointed(self, state: PartitionCheckpoint) -> None:
        """A captured state is in a durable checkpoint now.

        When another one was captured since (by a move between cores), the partition counts as changed.
        """
        self.checkpointed = state
        self.log_state.settle(state.committed_end_offset)  # no reader of this log is shown less any more
        captured, change = self._captured
        if captured is state:
            self._checkpointed_change = change
