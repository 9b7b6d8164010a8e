"""The cleanings of one core's compacted partitions: which is next, one job at a time, and what becomes of each.

Every `log.cleaner.backoff.ms` all partitions with `cleanup.policy=compact` are measured (`compaction`), and the
filthiest of those that are due is cleaned, then the next one, until none is. A job is void when its partition leaves,
is deleted or fails, or when its segments are not those that it began with; then another one is made some time. What
fails of the log's own doing is tried again; after three times in a row it is *uncleanable*, and tried once a day.
"""

from __future__ import annotations

import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.feature_levels import FIRST_WITH_COMPACTION
from tpc_broker.log.files import parse_cleaned_file_name
from tpc_broker.metadata.cleaner_settings import NO_CLEANING
from tpc_broker.model import METADATA_TOPIC_ID
from tpc_broker.storage.ports import CleanerAwayError, CleaningFailedError, JobVoidError
from tpc_broker.storage.segments.segment_swap import SwapRefusedError, remove_cleaned
from tpc_broker.storage.segments.swap_guard import SwapGuard
from tpc_broker.storage.upkeep.cleaning_status import NEVER_MS, CleaningBook
from tpc_broker.storage.upkeep.compaction import bytes_wanted, last_sealed_ms, make_job, measure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tpc_broker.log.cleaning_job import CleanedGroup
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import Cleaner, Clock, StoragePlane
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.compaction import Job, Measured
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
    from tpc_broker.storage.upkeep.retention import Retention
    from tpc_broker.storage.upkeep.segment_space import SegmentSpace

log = logging.getLogger(__name__)

FAILURES_MAX: Final = 3
"""In a row."""
UNCLEANABLE_MS: Final = 24 * 60 * 60 * 1000
IN_VAIN_MS_MAX: Final = 60 * 60 * 1000
NO_ROOM_MS_MAX: Final = 5 * 60 * 1000
_VOID: Final = (SwapRefusedError, StorageFailedError)
LOOK_S: Final = 1.0
"""Between two looks whether a job's partition is still here."""
MEASURED_AT_ONCE: Final = 32
"""Partitions, in one step of the core's loop."""


class Cleanings:
    """See the module. `cleaner` and `bounds` are set from outside, and `may_clean` by the cluster's level."""

    def __init__(
        self,
        plane: StoragePlane,
        clock: Clock,
        led: Mapping[int, LeaderPartition],
        *,
        space: SegmentSpace,
        retention: Retention,
        requests: MaintenanceRequests,
    ) -> None:
        self._plane = plane
        self._clock = clock
        self._led = led
        self._space = space
        self._retention = retention
        self._requests = requests
        self.book = CleaningBook()
        self.cleaner: Cleaner | None = None
        self.bounds = NO_CLEANING
        self.may_clean = False
        """By the cluster's level: other releases must know gaps and seals."""
        self.swaps = SwapGuard()
        """Of all partitions of the core: for who makes second names of all of their files."""
        self._one = trio.Lock()
        self._left: set[Path] = set()
        """Folders whose partition went during a job: another one of its name may have them by now."""
        self._failures: Counter[TopicPartition] = Counter()
        self._in_vain: Counter[TopicPartition] = Counter()
        self._not_before_ms: dict[TopicPartition, int] = {}
        """By the monotonic clock."""
        self._told_that_logs_grow_ms = -UNCLEANABLE_MS

    # -- the schedule ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while await self.clean_next():
                await trio.lowlevel.checkpoint()
            await trio.sleep(max(self.bounds.backoff_ms / 1000, LOOK_S))

    async def clean_next(self) -> bool:
        """Clean the partition that needs it most; False: none does, or nothing can be done now."""
        self._forget_others()
        await self._look_after_those_that_went()
        if not self.may_clean:
            self._tell_that_logs_grow()
        if not (self.may_clean and self.bounds.is_on and self.cleaner is not None):
            return False
        if await self._filthiest() is None:
            return False
        try:
            await self.cleaner.ready()
        except CleanerAwayError as error:
            self.book.lacks_cleaner(str(error), self._clock.wall_ms())
            return False
        self.book.has_cleaner()
        try:
            led = await self._filthiest()  # while this waited, the log went on
            return led is not None and await self._clean(led)
        finally:
            self.cleaner.let_go()

    def _tell_that_logs_grow(self) -> None:
        """Once a day, where there are any: also those of the coordinators, which no client has asked for."""
        now_ms, found = self._clock.monotonic_ms(), self._compacted()
        if found and now_ms >= self._told_that_logs_grow_ms + UNCLEANABLE_MS:
            self._told_that_logs_grow_ms = now_ms
            log.warning(
                "%d compacted partitions here, such as %s, are not compacted, and grow: that begins at feature level "
                "%d (tpc cluster level --raise %d)",
                len(found), found[0].files.label, FIRST_WITH_COMPACTION, FIRST_WITH_COMPACTION,
            )  # fmt: skip

    def _forget_others(self) -> None:
        compacted = {led.files.key for led in self._compacted()}
        for key in [key for key in self.book.partitions if key not in compacted]:
            self.book.forget(key)
        for known in (self._failures, self._in_vain, self._not_before_ms):
            for key in [key for key in known if key not in compacted]:
                del known[key]

    def _compacted(self) -> list[LeaderPartition]:
        return [
            led
            for led in self._led.values()
            if led.files.settings.cleanup_compact and led.files.key.topic_id != METADATA_TOPIC_ID
        ]

    async def _filthiest(self) -> LeaderPartition | None:
        """Of those that are due."""
        best, best_ratio, now_ms = None, -1.0, self._clock.monotonic_ms()
        for number, led in enumerate(self._compacted(), 1):
            if number % MEASURED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            if not self._is_open(led):
                continue
            measured = await self._measured(led)
            if measured is None or now_ms < self._not_before_ms.get(led.files.key, now_ms):
                continue
            ratio_min = led.files.settings.min_cleanable_dirty_ratio
            if measured.is_due(ratio_min) and measured.dirty_ratio > best_ratio:
                best, best_ratio = led, measured.dirty_ratio
            elif measured.waits_for_checkpoint(ratio_min):
                self._requests.checkpoint.ask()
        return best

    def _is_open(self, led: LeaderPartition) -> bool:
        return self._led.get(led.handle) is led and not led.is_leaving and led.files.failed is None

    def _is_wanted(self, led: LeaderPartition) -> bool:
        """Whether its job may go on: it is here, and its topic is compacted still."""
        return self._is_open(led) and led.files.settings.cleanup_compact

    async def _measured(self, led: LeaderPartition) -> Measured | None:
        """None: it cannot be looked at now."""
        files = led.files
        try:
            bounds = self._plane.bounds(led.handle)
            found = await files.begin_again(lambda: measure(files, bounds, self._clock.wall_ms()))
        except (OSError, LookupError, ValueError, PartitionOfflineError) as error:
            if self._is_open(led):
                log.debug("%s cannot be measured for its cleaning: %s", files.label, error)
            return None
        self.book.measured(
            files.key, files.label, dirty_bytes=found.dirty_bytes, clean_bytes=found.clean_bytes,
            first_dirty_offset=found.first_dirty_offset,
        )  # fmt: skip
        await self._look_when_cleaned(files)
        return found

    async def _look_when_cleaned(self, files: PartitionStorage) -> None:
        """Once, of what was cleaned before this process began."""
        status = self.book.status_of(files.key)
        if status is None or status.last_cleaned_ms != NEVER_MS or not files.cleaned.end_offset:
            return
        with suppress(OSError):  # the seal was replaced meanwhile: the next look finds another one
            self.book.was_cleaned(files.key, await last_sealed_ms(files))

    # -- one job ---------------------------------------------------------------------------------------------------

    async def _clean(self, led: LeaderPartition) -> bool:
        """Whether it came to its end."""
        async with self._one:
            job = await self._begin(led)
            if job is None:
                return False
            key, label = led.files.key, led.files.label
            self.book.began(key, label)
            try:
                is_done = await self._carry_out(led, job)
            except (*_VOID, CleanerAwayError) as error:
                log.info("the cleaning of %s came to nothing: %s", label, error)
                self._came_to_nothing(key)
                is_done = False
            except (CleaningFailedError, OSError) as error:
                self._failed(led, str(error))
                is_done = False
            except BaseException:
                self.book.failed(key, is_away=True)
                raise
            await self._remove_left_over(led)
            return is_done

    async def _begin(self, led: LeaderPartition) -> Job | None:
        """None: it is not to be cleaned, or cannot be now."""
        files = led.files
        if files.settings.cleanup_delete:  # what goes by age or size need not be cleaned
            try:
                await self._retention.retain(files, led.handle, self._clock.wall_ms())
            except PartitionOfflineError as error:
                log.debug("%s: %s", files.label, error)
        measured = await self._measured(led)
        if measured is None or not measured.sources or not self._is_open(led):
            return None
        if not measured.is_due(files.settings.min_cleanable_dirty_ratio):
            return None
        await self._remove_left_over(led)
        try:
            is_urgent, left = await self._space.is_nearly_full(), await self._space.bytes_left()
            log_start_offset = self._plane.bounds(led.handle).log_start_offset
            job = await make_job(
                files, measured, log_start_offset, self.bounds, self._clock.wall_ms(), is_urgent=is_urgent
            )
        except (LookupError, PartitionOfflineError):  # the log went on without this
            return None
        except (OSError, ValueError) as error:
            if self._is_open(led) and set(measured.sources) <= set(files.segments):  # else the log went on, too
                self._failed(led, str(error))
            return None
        if left < bytes_wanted(job.job):
            log.info("%s is not cleaned now: %d bytes are left on the disk, it may take %d", files.label, left,
                     bytes_wanted(job.job))  # fmt: skip
            self._put_off(files.key, NO_ROOM_MS_MAX)  # others may need less
            return None
        return job

    async def _carry_out(self, led: LeaderPartition, job: Job) -> bool:
        """False: the partition left meanwhile. Errors as of the cleaner, and of a swap."""
        assert self.cleaner is not None
        report, error = None, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_when_gone, led, nursery.cancel_scope)
            try:
                report = await self.cleaner.clean(job.job, lambda group: self._take(led, job, group))
            except (*_VOID, CleanerAwayError, CleaningFailedError, OSError) as failure:
                error = failure
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error
        if report is None:
            self.book.failed(led.files.key, is_away=True)
            return False
        key = led.files.key
        for known in (self._failures, self._in_vain, self._not_before_ms):
            known.pop(key, None)
        self.book.cleaned(key, led.files.label, report, self._clock.wall_ms())
        return True

    async def _end_when_gone(self, led: LeaderPartition, scope: trio.CancelScope) -> None:
        while self._is_wanted(led) and self.bounds.is_on:
            await trio.sleep(LOOK_S)
        scope.cancel()

    async def _take(self, led: LeaderPartition, job: Job, group: CleanedGroup) -> None:
        """Put a group in its place."""
        seal, files = group.seal, led.files
        try:
            sources = [job.sources[base] for base in seal.replaced]
        except KeyError as error:
            raise CleaningFailedError(f"the cleaner has replaced segment {error}, which was not asked for") from error
        while self.swaps.is_held:
            await self.swaps.wait_free()
        # Rule: Whose topic is not compacted any more keeps every record from then on, also those that a job under way
        # has left out. Held by tests/storage/test_compaction.py.
        if not self._is_wanted(led):
            raise JobVoidError("the partition is not here any more, or is not compacted")
        with self.swaps.under_way():
            locked_s = await files.swap(
                sources, seal, lambda: self._plane.segments_replaced(led.handle, seal.end_offset),
                lambda: self._is_wanted(led),
            )  # fmt: skip
        self.book.swapped(locked_s)

    def _came_to_nothing(self, key: TopicPartition) -> None:
        """Not the log's doing; a whole job may have been read and written in vain, so it is not repeated at once."""
        self.book.failed(key, is_away=True)
        self._put_off(key, IN_VAIN_MS_MAX)

    def _put_off(self, key: TopicPartition, delay_ms_max: int) -> None:
        """For longer each time."""
        delay_ms = min(self.bounds.backoff_ms << min(self._in_vain[key], 16), delay_ms_max)
        self._in_vain[key] += 1
        self._not_before_ms[key] = self._clock.monotonic_ms() + delay_ms

    def _failed(self, led: LeaderPartition, reason: str) -> None:
        key, label = led.files.key, led.files.label
        self._failures[key] += 1
        self.book.failed(key)
        log.warning("the cleaning of %s failed: %s", label, reason)
        if self._failures[key] >= FAILURES_MAX:
            self._not_before_ms[key] = self._clock.monotonic_ms() + UNCLEANABLE_MS
            self.book.given_up(key, label, reason, self._clock.wall_ms())
        else:
            self._not_before_ms[key] = self._clock.monotonic_ms() + self.bounds.backoff_ms

    # Rule: What the cleaner was writing when a topic was deleted may come into the folder of the next one of that name,
    # and goes when the job has long ended. Held by tests/storage/test_compaction.py.
    async def _look_after_those_that_went(self) -> None:
        paths, self._left = self._left, set()
        for led in [led for led in self._led.values() if paths and led.files.folder.path in paths]:
            if self._is_open(led):
                await self._remove_left_over(led)

    async def _remove_left_over(self, led: LeaderPartition) -> None:
        """Of jobs that nobody took to their end."""
        folder = led.files.folder
        if not self._is_open(led):
            self._left.add(folder.path)
            return
        try:
            names = await folder.disk.listdir(folder.path)
            left = [name for name in names if parse_cleaned_file_name(name)]
            if left:
                async with led.files.lock:
                    if self._is_open(led):
                        await remove_cleaned(folder, left)
        except OSError as error:
            log.debug("%s: what a cleaning left stays for now: %s", led.files.label, error)
