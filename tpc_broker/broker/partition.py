"""One partition as its owning core has it: offsets and memory in the data plane, files in its storage.

Reads come from memory where the data plane has the bytes, else from the segments; both give whole batches as they were
stored. What is not durable is in neither answer: the high watermark moves when the journal says so.
"""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.timestamps import RecordPosition, find_in_batches
from tpc_broker.broker.unpacking import ONE_SEARCHED
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, OffsetOutOfRangeError, PartitionOfflineError, RecordsDamagedError
from tpc_broker.kafka.encoder import Opaque
from tpc_broker.kafka.records import read_batches
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.seals import CleanedState, cleaned_state
from tpc_broker.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.segments.swap_guard import SegmentReplacedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.ports import AppendResult, CoreStorage, DataPlane
    from tpc_broker.broker.producers_port import EndMarker, KnownAborted, ToldProducer
    from tpc_broker.kafka.encoder import Piece
    from tpc_broker.log.indexes import AbortedTransaction
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.storage.ports import Bounds
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

UNKNOWN_END = -1
SCAN_BYTES = 1 << 20
MARKER_BYTES = 78
"""Of a control batch that ends a transaction."""


def _next_offset(pieces: Sequence[Piece]) -> int:
    """Behind the last of whole batches; 0: there are none."""
    if not pieces:
        return 0
    last = bytes(pieces[-1]) if isinstance(pieces[-1], Opaque) else pieces[-1]
    return max(header.next_offset for header, _place in walk_headers(last))


class Partition:
    def __init__(  # noqa: PLR0913
        self,
        topic_id: TopicId,
        topic_name: str,
        index: PartitionIndex,
        config: TopicConfig,
        *,
        plane: DataPlane,
        storage: CoreStorage,
        files: PartitionStorage,
        handle: int,
        is_internal: bool,
        is_replicated: bool = False,
    ) -> None:
        self.topic_id = topic_id
        self.topic_name = topic_name
        self.index = index
        self.config = config
        self.files = files
        self.handle = handle
        self.is_internal = is_internal
        self.is_replicated = is_replicated
        self.led_epoch: LeaderEpoch | None = None
        """Of one with replicas on other nodes: the epoch in which it is led here and clients may know."""
        self.followed_epoch: LeaderEpoch | None = None
        """The epoch in which it is led elsewhere and may be read here (`near_reads`)."""
        self.near_racks = 0
        self.is_open = True
        self._plane = plane
        self._storage = storage

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.index)

    @property
    def label(self) -> str:
        return f"{self.topic_name}-{self.index}"

    @property
    def leader_epoch(self) -> LeaderEpoch:
        if self.led_epoch is not None:
            return self.led_epoch
        return LeaderEpoch(self.files.leader_epoch) if self.followed_epoch is None else self.followed_epoch

    @property
    def is_led(self) -> bool:
        """Whether it serves clients here."""
        return not self.is_replicated or self.led_epoch is not None

    @property
    def takes_records(self) -> bool:
        """Whether the data plane takes records here: also in an epoch that clients may not be told of yet."""
        return self.is_led or self._plane.leads(self.handle)

    @property
    def is_readable(self) -> bool:
        """Whether consumers may read it here, if they know that this may be a follower."""
        return self.is_led or self.followed_epoch is not None

    @property
    def deletes_records(self) -> bool:
        """DeleteRecords is for topics that are not compacted alone."""
        policy = self.config.cleanup_policy
        return "delete" in policy or "compact" not in policy

    def bounds(self) -> Bounds:
        """Log start, last stable offset, high watermark, log end; PartitionOfflineError when it is closed."""
        if not self.is_open:
            raise PartitionOfflineError(self.label)
        return self._plane.bounds(self.handle)

    def cleaned(self) -> tuple[CleanedState, frozenset[str]]:
        """What the seals of its cleaned segments say, and which they are."""
        seals = [segment.seal for segment in self.files.segments if segment.seal is not None]
        return cleaned_state(seals), frozenset(seal.generation for seal in seals)

    def size_bytes(self) -> int:
        return self.files.size_bytes + self._plane.state(self.handle).dirty_bytes

    # -- epochs ------------------------------------------------------------------------------------------------------

    def check_leader_epoch(self, current: int) -> ErrorCode:
        """What a client believes the epoch to be, against ours; -1: it does not say."""
        if current < 0 or current == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if current < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def epoch_of(self, offset: int) -> LeaderEpoch:
        """The epoch under which the record at an offset was, or the next one will be, written."""
        known = [entry.epoch for entry in self.files.epochs.entries if entry.start_offset <= offset]
        return known[-1] if known else self.leader_epoch

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch at or below the one asked for and where it ended; (-1, -1) when none is known."""
        return self.files.epochs.end_offset_for(LeaderEpoch(epoch), Offset(self.bounds().log_end_offset))

    def diverging_epoch(self, last_epoch: int, fetch_offset: int) -> tuple[int, int] | None:
        """Where the fetcher's log and ours part, or None when they agree (KIP-595)."""
        epoch, end_offset = self.end_of_epoch(last_epoch)
        if epoch == NO_LEADER_EPOCH or end_offset == UNKNOWN_END:
            raise OffsetOutOfRangeError
        return (epoch, end_offset) if epoch < last_epoch or end_offset < fetch_offset else None

    # -- reading -----------------------------------------------------------------------------------------------------

    async def read(
        self, offset: int, upto: int, bytes_max: int, *, at_least_one: bool, starts: int | None = None
    ) -> tuple[list[Piece], int]:
        """Whole batches of [offset, upto) from the one that holds ``offset`` on: (buffers, bytes).

        At most ``bytes_max`` bytes, but one batch whatever its size with ``at_least_one``. ``starts``: where the log
        does, for who has just looked. Raises
        OffsetOutOfRangeError below the log's start, PartitionOfflineError when the files cannot be read,
        RecordsDamagedError when there are no sound batches.
        """
        self._check_start(offset, starts)
        while True:
            found = self._plane.read(self.handle, offset, upto, bytes_max, at_least_one)
            try:
                return found or await self._read_files(offset, upto, bytes_max, at_least_one=at_least_one)
            except SegmentReplacedError:
                await self._wait_swapped(offset)

    async def _wait_swapped(self, offset: int) -> None:
        try:
            await self.files.wait_swapped()
        except OSError as error:
            raise self._unreadable(offset, error) from error

    def _check_start(self, offset: int, starts: int | None) -> None:
        if offset < (self.bounds().log_start_offset if starts is None else starts):
            raise OffsetOutOfRangeError

    async def _read_files(
        self, offset: int, upto: int, bytes_max: int, *, at_least_one: bool
    ) -> tuple[list[Piece], int]:
        """From the version of the files that is there when this is awaited. SegmentReplacedError."""
        written = self.files.written_end_offset
        try:
            data = await self.files.read_once(offset, bytes_max, upto)
        except SegmentReplacedError:
            raise
        except (OSError, LookupError, ValueError) as error:
            raise self._unreadable(offset, error) from error
        if not data and offset < written < upto:
            return await self._read_behind(written, upto, bytes_max, at_least_one=at_least_one)
        if data and self._plane.wants_window(self.handle, offset, bytes_max):
            await self._open_window(offset)
        if not data or (len(data) > bytes_max and not at_least_one):
            return [], 0
        return [data], len(data)

    # Rule: An offset of which nothing is left, because the last batches of what was written are cleaned away, is
    # followed by what came behind them, be it in memory. Held by tests/broker/test_gapped_logs.py.
    async def _read_behind(
        self, written: int, upto: int, bytes_max: int, *, at_least_one: bool
    ) -> tuple[list[Piece], int]:
        """What is at or behind an offset at which the files ended, and which memory had then."""
        found = self._plane.read(self.handle, written, upto, bytes_max, at_least_one)
        if found is None and self.files.written_end_offset > written:  # it was written meanwhile
            return await self._read_files(written, upto, bytes_max, at_least_one=at_least_one)
        return found or ([], 0)

    def _unreadable(self, offset: int, error: Exception) -> OffsetOutOfRangeError | PartitionOfflineError:
        """What it means that the segments cannot be read there: some may go while a reader waits for the disk."""
        if not self.is_open or offset < self.bounds().log_start_offset:
            return OffsetOutOfRangeError()
        return self._offline_by(error)

    def _offline_by(self, error: Exception) -> PartitionOfflineError:
        """What a reader is told; ValueError: of damage."""
        kind = RecordsDamagedError if isinstance(error, ValueError) else PartitionOfflineError
        return kind(f"{self.label}: {error}")

    async def _open_window(self, offset: int) -> None:
        """From now on the data plane reads this stretch by itself. It is no loss when it does not."""
        with contextlib.suppress(OSError, LookupError, ValueError):
            async with self.files.window(offset) as window:
                if self.is_open and not self.files.failed:
                    self._plane.open_window(self.handle, window)

    async def read_bytes(self, offset: int, upto: int, bytes_max: int) -> bytes:
        """The same as one piece, at least one batch."""
        buffers, _size = await self.read(offset, upto, bytes_max, at_least_one=True)
        return b"".join(bytes(buffer) for buffer in buffers)

    # Rule: Committed records and the list of aborted transactions that reach into them are of one moment: nothing is
    # awaited between the choice of a version and both answers; only bytes of that version are read afterwards. See also
    # native/requests/fetch.c. Held by tests/broker/test_read_committed.py, tests/engine/test_read_committed_random.py.
    async def read_committed(
        self, offset: int, upto: int, bytes_max: int, *, at_least_one: bool, starts: int | None = None
    ) -> tuple[list[Piece], int, list[tuple[int, int]]]:
        """As `read`, `upto` being a last stable offset; beside it (producer id, first offset) of the aborted
        transactions that reach into what was read.
        """
        self._check_start(offset, starts)
        while True:
            found = self._plane.read(self.handle, offset, upto, bytes_max, at_least_one)
            known = self._plane.aborted(self.handle, offset, upto)
            of_files = bytes_max if found is None else None
            older = [] if offset >= known.from_offset else self._aborted_now(offset, upto, of_files)
            if older is None:
                try:
                    await self.files.load_aborted(offset, upto, of_files)
                except (OSError, LookupError, ValueError) as error:
                    raise self._unreadable(offset, error) from error
                continue
            if offset < known.from_offset and known.room:
                self._bring_aborted(offset, known)
            if found is not None:
                break
            try:
                found = await self._read_files(offset, upto, bytes_max, at_least_one=at_least_one)
            except SegmentReplacedError:
                await self._wait_swapped(offset)
                continue
            break
        entries = [*(entry for entry in older if entry.last_offset < known.from_offset), *known.entries]
        end_offset = _next_offset(found[0]) if entries else 0
        aborted = [(entry.producer_id, entry.first_offset) for entry in entries if entry.first_offset < end_offset]
        return *found, aborted

    def _aborted_now(self, offset: int, upto: int, bytes_max: int | None) -> list[AbortedTransaction] | None:
        try:
            return self.files.aborted_now(offset, upto, bytes_max)
        except LookupError as error:
            raise self._unreadable(offset, error) from error

    def _bring_aborted(self, offset: int, known: KnownAborted) -> None:
        """To the data plane, which then reads by itself what is not older."""
        begin, added = self.files.aborted_below(offset, known.from_offset, known.room)
        if begin < known.from_offset:
            self._plane.add_aborted(self.handle, begin, known.from_offset, added)

    async def find_timestamp(self, timestamp_ms: int, upto: int, bytes_max: int) -> RecordPosition | None:
        """The first record below ``upto`` whose time stamp is at least this; exact inside compressed batches, which may
        unpack to so much. NotUnpackedError.
        """
        return await self._search(lambda start: self._find_timestamp(timestamp_ms, start, upto, bytes_max))

    async def find_max_timestamp(self, upto: int, bytes_max: int) -> RecordPosition | None:
        """The first of the records below ``upto`` that have the largest time stamp. NotUnpackedError."""
        while True:
            segments = self.files.segments
            found = await self._search(lambda start: self._find_max_timestamp(start, upto, bytes_max))
            if found is not None or self.files.segments is segments:  # else it may have been cleaned away meanwhile
                return found

    async def _search(self, search: Callable[[int], Awaitable[RecordPosition | None]]) -> RecordPosition | None:
        """Through all records from the log's start on; again when that has moved and what was looked at is gone."""
        while True:
            start = self.bounds().log_start_offset
            try:
                return await search(start)
            except (OSError, LookupError, ValueError, OffsetOutOfRangeError) as error:
                if self.bounds().log_start_offset == start:
                    raise self._offline_by(error) from error

    async def _find_timestamp(
        self, timestamp_ms: int, offset: int, upto: int, bytes_max: int
    ) -> RecordPosition | None:
        in_memory = self.files.written_end_offset
        match = await self.files.offset_for_timestamp(timestamp_ms, offset)
        offset = max(offset, match.header.base_offset if match is not None else in_memory)
        while offset < upto:
            data = await self.read_bytes(offset, upto, SCAN_BYTES)
            if not data:
                return None
            found, offset = await _found_in(data, timestamp_ms, offset, upto, bytes_max)
            if found is not None:
                return found
        return None

    async def _find_max_timestamp(self, start: int, upto: int, bytes_max: int) -> RecordPosition | None:
        best_ms, best_offset, in_memory = -1, -1, self.files.written_end_offset
        match = await self.files.largest_timestamp(start, min(upto, in_memory))
        if match is not None:
            best_ms, best_offset = match.header.max_timestamp, match.header.base_offset
        offset = max(in_memory, start)
        while offset < upto:
            data = await self.read_bytes(offset, upto, SCAN_BYTES)
            if not data:
                break
            for batch in read_batches(data):
                offset = batch.last_offset + 1
                if batch.max_timestamp > best_ms:
                    best_ms, best_offset = batch.max_timestamp, batch.base_offset
        if best_ms < 0:
            return None
        start = max(best_offset, start)
        data = await self.read_bytes(start, upto, 1)
        found, _next = await _found_in(data, best_ms, start, upto, bytes_max)
        return found

    def producers(self, count_max: int) -> list[ToldProducer] | None:
        """`ProducersPort.producers`. Raises PartitionOfflineError, LeadershipLostError."""
        if not self.is_open:
            raise PartitionOfflineError(self.label)
        return self._plane.producers(self.handle, count_max)

    # -- writing of the broker's own ----------------------------------------------------------------------------------

    async def append_durably(
        self, batch: bytes, *, then: Callable[[], None] = lambda: None, more_bytes: int = 0
    ) -> int:
        """Append whole batches of the broker's own and wait until they are committed; the base offset. `then`: called
        in the step that has appended them, for `more_bytes` of which room is made here, too.

        Raises PartitionOfflineError when the journal or disk refuses, and where it is more than a link takes;
        LeadershipLostError when the leadership ends before: then they may be committed or not.
        """
        size, allowed = len(batch), limits.REPLICATED_BATCH_BYTES_MAX
        if size > allowed:
            raise PartitionOfflineError(f"{self.label}: {size} bytes to append at once; at most {allowed} are allowed")

        def append() -> AppendResult | None:
            result = self._plane.append(self.handle, batch)
            if result is not None and not result.error_code:
                then()
            return result

        result = await self._append(size + more_bytes, append)
        if result.error_code:
            raise PartitionOfflineError(f"{self.label}: append refused with {ErrorCode(result.error_code).name}")
        await self._wait_committed(result)
        return result.base_offset

    def append_nowait(self, batch: bytes) -> AppendResult | None:
        """In the step of another append (`then`); for `until_committed`. None: it cannot be at the moment."""
        try:
            result = self._plane.append(self.handle, batch)
        except (PartitionOfflineError, OSError) as error:
            log.debug("%s: append refused: %s", self.label, error)
            return None
        return None if result is None or result.error_code else result

    async def until_committed(self, result: AppendResult) -> None:
        """Raises as `append_durably`."""
        await self._wait_committed(result)

    async def append_marker(self, marker: EndMarker) -> ErrorCode:
        """End a producer's transaction, and wait until that is committed. TRANSACTION_COORDINATOR_FENCED,
        INVALID_PRODUCER_EPOCH: nothing was appended. Raises as `append_durably`.
        """
        result = await self._append(MARKER_BYTES, lambda: self._plane.append_marker(self.handle, marker))
        return await self.marker_committed(result)

    def append_marker_nowait(self, marker: EndMarker) -> AppendResult | None:
        """The same, but for the wait: for `marker_committed`. None: there is no room at the moment."""
        if not self.is_open:
            raise PartitionOfflineError(self.label)
        return self._plane.append_marker(self.handle, marker)

    async def marker_committed(self, result: AppendResult) -> ErrorCode:
        """What became of it, when that is known."""
        if not result.error_code:
            await self._wait_committed(result)
        return ErrorCode(result.error_code)

    async def append_markers(self, markers: Sequence[EndMarker]) -> list[ErrorCode]:
        """The same of several, in their order, with one wait. KAFKA_STORAGE_ERROR: there was no room for it any more,
        nor for what comes behind it.
        """
        errors: list[ErrorCode] = []
        last = None
        for marker in markers:
            try:
                append = partial(self._plane.append_marker, self.handle, marker)
                result = await self._append(MARKER_BYTES, append)
            except PartitionOfflineError:
                if last is None:
                    raise
                break
            errors.append(ErrorCode(result.error_code))
            last = last if result.error_code else result
        if last is not None:
            await self._wait_committed(last)
        return errors + [ErrorCode.KAFKA_STORAGE_ERROR] * (len(markers) - len(errors))

    async def _append(self, size: int, append: Callable[[], AppendResult | None]) -> AppendResult:
        while True:
            if not self.is_open:
                raise PartitionOfflineError(self.label)
            try:
                await self._storage.make_room(self.files, self.handle, size)
            except OSError as error:
                raise PartitionOfflineError(f"{self.label}: {error}") from error
            result = append()
            if result is not None:
                return result
            await self._storage.wait_journal_room()

    async def _wait_committed(self, result: AppendResult) -> None:
        await self._plane.wait_committed(self.handle, result.end_offset, result.leader_epoch)
        if self.is_open and not 0 <= result.base_offset < result.end_offset <= self.bounds().high_watermark:
            log.error("%s: what would be told to be committed at [%d, %d) is not there; its high watermark is %d",
                      self.label, result.base_offset, result.end_offset, self.bounds().high_watermark)  # fmt: skip
            raise LeadershipLostError(f"{self.label}: what was appended is not committed")

    async def move_log_start(self, offset: int) -> int:
        """DeleteRecords: the log starts here from now on, durably. OffsetOutOfRangeError outside [start, watermark]."""
        bounds = self.bounds()
        if offset < 0 or offset > bounds.high_watermark:
            raise OffsetOutOfRangeError
        if offset > bounds.log_start_offset:
            await self._storage.set_log_start(self.handle, offset)
        return self.bounds().log_start_offset


async def _found_in(
    data: bytes, timestamp_ms: int, offset: int, upto: int, bytes_max: int
) -> tuple[RecordPosition | None, int]:
    """`find_in_batches`, off the loop."""
    return await trio.to_thread.run_sync(
        find_in_batches, data, timestamp_ms, offset, upto, bytes_max, limiter=ONE_SEARCHED
    )
