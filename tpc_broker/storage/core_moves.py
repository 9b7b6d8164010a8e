"""Partitions handed from one core of the node to another while both run: the storage's part (`log.lives` has the rule).

The core that lets go brings everything of the partition to its segments and syncs them, first with appends going on,
then without; RELEASED, with what goes over, is the last thing that its journal says. The core that takes over opens the
segments as after a start, and ADOPTED is the first thing that its journal says. Who may adopt what was released is
decided above (`broker.core_moves`): here an adoption is carried out for whoever asks.

Neither entry is taken back: the disk may have it although the journal failed. So both are written again until they are
durable, or the process ends; either way what the next start finds is one of two pictures, and both are right.

`lock` is held while a partition leaves or comes, and by whoever needs all cores' journals of one moment (a backup).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import JournalStoppedError, PartitionNotMadeError, PartitionOfflineError, StorageFailedError
from tpc_broker.log.checkpoint import Release
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.log.recovery import plan_partition
from tpc_broker.model import LeaderEpoch
from tpc_broker.storage.recovery.recovery import open_checkpointed
from tpc_broker.storage.segments.folders import PartitionListing
from tpc_broker.storage.segments.segments import SegmentFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tpc_broker.log.checkpoint import Handed, PartitionCheckpoint
    from tpc_broker.log.segment import LogSettings
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Leave, StoragePlane
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.recovery.handed_producers import HandedProducers
    from tpc_broker.storage.segments.files import FileCache
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.journal_upkeep import JournalUpkeep
    from tpc_broker.storage.upkeep.retention import Retention
    from tpc_broker.storage.upkeep.write_behind import WriteBehindWriter

log = logging.getLogger(__name__)

ROUNDS_MAX: Final = 5
MENDED_S: Final = 0.05
"""Between two looks at a journal that has failed."""
SETTLE_S: Final = 0.001
LITTLE_BYTES: Final = limits.MIB
"""To be written behind with appends stopped."""


# Rule: A partition is in at most one core's journal. RELEASED is durable before ADOPTED is written, and an adoption is
# for a move that the metadata say is under way. Why: docs/decisions/2026-11-23-moves-between-cores.md. See also
# tpc_broker/broker/core_moves.py, tpc_broker/log/lives.py. Held by tests/engine/test_core_moves.py (kill -9 at each
# step), tests/durability/test_core_moves.py (of the processes, under load), tests/durability/test_move_images.py
# (losses of power, with mutants that must fail).
class CoreMoves:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        data: Path,
        files: FileCache,
        partitions: CorePartitions,
        *,
        journal: JournalUpkeep,
        write_behind: WriteBehindWriter,
        retention: Retention,
        in_place_windows: InPlaceWindows,
        handed: HandedProducers,
    ) -> None:
        self._plane = plane
        self._topics = data / "topics"
        self._files = files
        self._partitions = partitions
        self._journal = journal
        self._write_behind = write_behind
        self._retention = retention
        self._in_place_windows = in_place_windows
        self._handed = handed
        self.lock = trio.Lock()
        self.released_count = self.adopted_count = 0
        self.stopped_s = self.adopting_s = 0.0
        """Together: from the end of a role until the release is durable; and until an adoption is."""

    # -- the core that lets go -----------------------------------------------------------------------------------------

    async def release(
        self, handle: int, target: CoreId, move_id: int, then: Callable[[], None], leave: Leave | None = None
    ) -> PartitionCheckpoint:
        """Let a led partition go to another core; what goes over. It has no role from some moment on, and appends that
        wait are answered. `then` is called when the journal says that it is gone, before anything else is. `leave`: of
        a replica: ends what its group may expect of it, and returns when all of that is durable.

        PartitionOfflineError: it cannot be moved now, and is led here, perhaps in a new leader epoch; a replica has no
        role.
        """
        await self._bring_to_files(self._partitions.writable(handle))
        async with self.lock:
            led = self._partitions.writable(handle)
            await self._bring_to_files(led)
            led.is_leaving, stopped_s = True, trio.current_time()
            async with led.files.swaps.held():  # the core that takes over removes what no seal says anything of
                released, payload, handed = await self._let_go(led, Release(target, move_id), leave)
                led.files.release()

            def gone() -> None:
                if led.handle in self._partitions.led:  # the entry may be written twice
                    self._partitions.release(led, released)
                    self._plane.withdraw(led.handle)
                    then()

            await self._journal.append_at_last(EntryKind.RELEASED, led.files.key, released.moves, payload, gone)
            self._handed.named(handed)
            self.released_count += 1
            self.stopped_s += trio.current_time() - stopped_s
            await led.files.folder.close()
            return released

    async def _let_go(
        self, led: LeaderPartition, release: Release, leave: Leave | None
    ) -> tuple[PartitionCheckpoint, bytes, Handed | None]:
        """What goes over, and how the journal says it. Errors as of `release`."""
        try:
            if leave is not None:
                await leave()
                self._partitions.writable(led.handle)
            self._plane.disarm(led.handle, keep_waits=leave is None)
            state = await self._settle(led)
            released = replace(state, moves=state.moves + 1, released=release)
            failures_count = led.files.life.failures_count
            payload, handed = await self._handed.payload(released)
            if led.files.life.failures_count != failures_count:
                self._handed.given_up(handed)
                raise PartitionOfflineError("the files failed while its producers were written")
        except JournalStoppedError:
            raise
        except PartitionOfflineError:
            led.is_leaving = False
            if leave is None:
                await self._lead_again(led)
            raise
        return released, payload, handed

    async def _bring_to_files(self, led: LeaderPartition) -> None:
        """With appends going on: until little is left, or as much comes as goes."""
        for _round in range(ROUNDS_MAX):
            await self._write_behind.write_one(led)
            self._partitions.writable(led.handle)
            await self._sync(led.files)
            if self._plane.state(led.handle).unwritten_bytes <= LITTLE_BYTES:
                return

    async def _sync(self, files: PartitionStorage) -> None:
        try:
            await files.sync()
        except StorageFailedError as error:
            raise PartitionOfflineError(str(error)) from error

    async def _settle(self, led: LeaderPartition) -> PartitionCheckpoint:
        """Nothing is appended: the rest becomes durable, first in the journal, then in the segments."""
        handle, files = led.handle, led.files
        await self._plane.wait_settled(handle)
        while led.log_starts_under_way:
            await trio.sleep(SETTLE_S)
        await self._in_place_windows.wait_closed(led)
        await self._write_behind.write_one(led)
        bounds = self._plane.bounds(handle)
        if bounds.log_start_offset > files.log_start_offset:
            await self._retention.advance(led, bounds.log_start_offset)
        if files.failed is not None or files.written_end_offset != bounds.log_end_offset:
            raise PartitionOfflineError(files.failed or "not all of it could be brought to its segments")
        self._plane.close_windows(handle)
        failures_count = files.life.failures_count
        try:
            state = await files.capture()
        except StorageFailedError as error:
            raise PartitionOfflineError(str(error)) from error
        await self._sync(files)
        if files.life.failures_count != failures_count:
            # Another sync failed, and they were written anew already: nobody has synced these.
            raise PartitionOfflineError("the files failed while they were made durable")
        return state

    async def _lead_again(self, led: LeaderPartition) -> None:
        """In a new epoch: the journal may have failed, and then offsets are given out again."""
        files, handle = led.files, led.handle
        while handle in self._partitions.led:
            while self._plane.journal_error():
                await trio.sleep(MENDED_S)
            epoch = LeaderEpoch(max(files.leader_epoch, self._plane.state(handle).leader_epoch) + 1)
            end_offset = self._plane.bounds(handle).log_end_offset
            files.leader_epoch = epoch
            files.log_state.begin_epoch(epoch, end_offset)
            files.mark_changed()
            try:
                await self._journal.append_entry(EntryKind.EPOCH, files.key, end_offset, epoch)
            except JournalStoppedError:
                return
            except PartitionOfflineError as error:
                log.debug("%s-%d: %s", files.topic, files.key.partition, error)
                continue
            if handle in self._partitions.led:
                self._plane.lead(handle, epoch)
                self._journal.tell_epoch(files.key, epoch)
            return

    # -- the core that takes over --------------------------------------------------------------------------------------

    async def adopt(self, released: PartitionCheckpoint, settings: LogSettings) -> None:
        """Take a partition over as it was released; it is here as if it had been recovered. Nothing is done where it
        is here already. PartitionOfflineError: its segments are not what they should be, and nothing was changed.
        """
        assert released.released is not None, released
        async with self.lock:
            if self._partitions.is_here(released.key):
                return
            begun_s, state = trio.current_time(), replace(released, released=None)
            payload, handed = await self._handed.payload(state)
            try:
                files = await self._open(state, settings)
            except PartitionOfflineError:
                self._handed.given_up(handed)
                raise
            self._partitions.adopt(state.key)
            adopted = partial(self._partitions.adopted, files)
            await self._journal.append_at_last(EntryKind.ADOPTED, state.key, state.moves, payload, adopted)
            self._handed.named(handed)
            self.adopted_count += 1
            self.adopting_s += trio.current_time() - begun_s

    async def take_back(self, key: TopicPartition, settings: LogSettings) -> None:
        """What was released here, and no other core has or may adopt any more. Errors as of `adopt`."""
        released = self._partitions.released(key)
        if released is not None:
            await self.adopt(replace(released, moves=released.moves + 1), settings)

    async def _open(self, state: PartitionCheckpoint, settings: LogSettings) -> PartitionStorage:
        path = self._topics / partition_folder_name(state.topic, state.partition)
        try:
            listing = await PartitionListing.read(self._files.disk, path)
            if listing is None or listing.folder.partition != state.key:
                raise PartitionOfflineError(f"{path} is not its folder")
            plan = plan_partition(listing.folder, state, state.topic, state.key, [])
            problem = listing.offline or plan.offline
            if problem is not None:
                raise PartitionOfflineError(problem)
            return await open_checkpointed(SegmentFolder(self._files, path), listing, state, settings)
        except OSError as error:  # of a moment, maybe: no descriptor was left
            raise PartitionNotMadeError(f"{path}: {error}") from error
        except ValueError as error:
            raise PartitionOfflineError(f"{path}: {error}") from error
