"""The files and the journal of one core behind its partitions: opened, fed, made room for, retained, checkpointed.

Theory of operation
-------------------
The data plane (C) takes appends into the journal and memory. This brings them further:

* *write-behind*: durable batches go from memory to the segments, so that memory and journal can be given back; one
  taker per partition. A write costs the same work whatever its size, so each waits for some bytes or some time. Long
  runs go past the page cache, by way of aligned memory;
* *room*: segment space is reserved before a batch is admitted to the journal: the plane holds a number
  of admitted bytes for each partition, and asks Python when they are used up;
* *checkpoints*: when three eighths of the journal are used, now and then, and at the end (`storage_checkpoint`);
* *trouble*: a journal that failed is opened again, a partition whose segment failed is written anew from the journal,
  both again and again until the disk is well; what is refused meanwhile is KAFKA_STORAGE_ERROR.

A full disk fails neither: the journal has its space, and so has everything that was admitted. The ballast is given up
when space is short, so that deletion and checkpoints find room, and taken back later.
"""

from __future__ import annotations

import errno
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.placements import Placements, PlaneHold
from tpc_broker.broker.storage_checkpoint import (
    BALLAST_BYTES,
    EXTEND_BLOCKS,
    Checkpointer,
    ensure_ballast,
    release_ballast,
)
from tpc_broker.broker.storage_files import DIRECT_BLOCK_BYTES, aligned_buffer
from tpc_broker.broker.storage_folders import (
    PartitionListing,
    create_partition,
    delete_folder,
    log_settings,
    lost_folder_name,
    new_partition,
    prepare_folders,
    remove_deleted_folders,
    remove_folder,
)
from tpc_broker.broker.storage_recovery import OfflinePartition, RecoveredCore, rewrite_partition
from tpc_broker.broker.storage_runs import ShortRunWriter
from tpc_broker.broker.taking import Taking
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError, StorageFailedError
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.model import LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tpc_broker.broker.ports import Clock, DataPlane, Disk, Taken
    from tpc_broker.broker.storage import PartitionStorage
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.topic_config import TopicConfig

log = logging.getLogger(__name__)

WRITE_BEHIND_INTERVAL_S = 0.05
"""Between two rounds at least: longer runs cost less for each byte."""
WRITE_BEHIND_LOOK_S = 0.5
"""Between two rounds at most: whatever is old enough is looked for so often."""
MANY_AT_ONCE = 5
"""After a round with so many partitions the next one comes soon: thousands with little each must not come together."""
WRITE_BEHIND_AT_ONCE = 2
"""What starts together runs in one turn of Python, during which no request is answered."""
WRITE_BEHIND_BYTES_MIN = 2 * limits.MIB
"""A partition with less waits until that has come together, for this long at most:"""
WRITE_BEHIND_AGE_S = 2.0
HURRY_BYTES = 4 * limits.MIB
"""As long as no partition has so much to write, they are taken one after the other: commits want the disk too."""
FEW_PARTITIONS = 16
DIRTY_BYTES_MAX = 96 * limits.MIB
"""Together the partitions wait with no more than this."""
CHECKPOINT_INTERVAL_S = 60.0
TROUBLE_RETRY_S = 0.5
BALLAST_INTERVAL_S = 30.0
DIRECT_WRITES_AT_ONCE = 2
"""The journal's commits want the disk too."""
STAGING_BYTES = limits.WRITE_BEHIND_BYTES_MAX + DIRECT_BLOCK_BYTES
ROOM_STEP_BYTES_MIN = 256 * limits.KIB
ROOM_STEP_BYTES = 8 * limits.MIB
ROOM_STEP_BYTES_MAX = 64 * limits.MIB
PLENTY_BYTES = 4 * 1024 * limits.MIB
PLENTY_S = 1.0
JOURNAL_LOOK_S = 0.1
"""As long as the journal is not as long as it may become."""
JOURNAL_IDLE_COMMITS = 20
"""Between two looks: with fewer nobody is held up by the journal's growth."""
JOURNAL_IDLE_BLOCKS = 4 * EXTEND_BLOCKS
JOURNAL_GROW_PAUSE_S = 0.05
JOURNAL_FULL_RETRY_S = 0.002
JOURNAL_ROOM_WAIT_S = 0.1


@dataclass(slots=True)
class Led:
    """A partition in the data plane, with the files behind it and the account of its segment space."""

    files: PartitionStorage
    handle: int
    lock: trio.Lock
    is_internal: bool
    admitted_bytes: int = 0
    written_bytes: int = 0

    @property
    def step_bytes(self) -> int:
        """Space to take ahead of what is wanted: it doubles with what was admitted, so that thousands of partitions
        with a few records do not hold megabytes each.
        """
        return min(max(ROOM_STEP_BYTES_MIN, self.admitted_bytes), ROOM_STEP_BYTES)


class JournalledStorage:
    """See the module's theory. ``CoreStorage`` of the ports."""

    def __init__(  # noqa: PLR0913
        self,
        recovered: RecoveredCore,
        plane: DataPlane,
        disk: Disk,
        data: Path,
        clock: Clock,
        *,
        new_run_id: Callable[[], int],
        reopen_journal_file: Callable[[], tuple[int, int]],
    ) -> None:
        self._recovered = recovered
        self._plane = plane
        self._disk = disk
        self._data = data
        self._clock = clock
        self._new_run_id = new_run_id
        self._reopen_journal_file = reopen_journal_file
        self._unclaimed = dict(recovered.storages)
        self._ready: set[TopicPartition] = set()
        self._storages: dict[TopicPartition, PartitionStorage] = recovered.storages
        self._led: dict[int, Led] = {}
        self._checkpointer = Checkpointer(recovered.journal_file, plane, self._storages, recovered.kept)
        self._checkpointing = trio.Lock()
        self._checkpoint_wanted = trio.Event()
        self._journal_trouble = trio.Event()
        self._journal_room = trio.Event()
        self._write_behind_due = trio.Event()
        self._rooms_low: list[int] = []
        self._room_wanted = trio.Event()
        self._plenty_bytes, self._plenty_until_s = 0, 0.0
        self._doomed_folders: list[tuple[int, Path]] = []
        self._placements = Placements(plane, self._led, self._want_checkpoint)
        self._staging: list[memoryview] = []
        self._staging_limit = trio.CapacityLimiter(DIRECT_WRITES_AT_ONCE)
        self._short_runs = ShortRunWriter(plane, disk, self._led, self._write_behind_failed)
        plane.on_due(self._write_behind_is_due)
        plane.on_room_low(self._room_is_low)
        plane.on_journal_space(self._want_checkpoint)
        plane.on_journal_failed(self._journal_failed)

    # -- opening ---------------------------------------------------------------------------------------------------

    async def prepare(self, wanted: Sequence[tuple[TopicPartition, str]]) -> None:
        """Folders of many partitions that are new, made and synced at once; `open` makes a few by itself."""
        known = (self._unclaimed, self._storages, self._recovered.offline)
        new = [(key, topic) for key, topic in wanted if not any(key in some for some in known)]
        if len(new) <= FEW_PARTITIONS:
            return
        recovered = self._recovered
        try:
            self._ready |= await prepare_folders(
                recovered.files, self._data / "topics", new, recovered.journal_file.fd
            )
        except OSError as error:
            log.warning("folders of %d new partitions are made one by one: %s", len(new), error)

    async def open(self, key: TopicPartition, topic: str, config: TopicConfig) -> PartitionStorage:
        """Recovered, or made. PartitionOfflineError when damaged, PartitionNotMadeError when it cannot be made now."""
        offline = self._recovered.offline.get(key)
        if offline is not None:
            raise PartitionOfflineError(offline.reason)
        files = self._unclaimed.pop(key, None)
        if key in self._ready:
            self._ready.discard(key)
            files = new_partition(self._recovered.files, self._data / "topics", topic, key, log_settings(config))
        if files is None:
            try:
                files = await create_partition(
                    self._recovered.files, self._data / "topics", topic, key, log_settings(config)
                )
            except (OSError, StorageFailedError) as error:
                raise PartitionNotMadeError(str(error)) from error
        files.settings = log_settings(config)
        self._storages[key] = files
        return files

    async def begin_epoch(self, files: PartitionStorage) -> None:
        """A leader epoch above every earlier one, durable when this returns."""
        epoch = LeaderEpoch(files.leader_epoch + 1)
        end_offset = files.written_end_offset
        files.leader_epoch = epoch  # before the wait: a checkpoint that covers the entry must say it too
        files.epochs.assign(epoch, Offset(end_offset))
        files.mark_changed()
        await self._journal_entry(EntryKind.EPOCH, files.key, end_offset, epoch)

    def register(self, files: PartitionStorage, config: TopicConfig, *, is_internal: bool) -> int:
        handle = self._plane.register(files, config, is_internal=is_internal)
        self._led[handle] = Led(files, handle, trio.Lock(), is_internal)
        files.placement = PlaneHold(self._plane, handle)
        return handle

    def alter(self, files: PartitionStorage, handle: int, config: TopicConfig, *, is_internal: bool) -> None:
        files.settings = log_settings(config)
        self._plane.update(handle, files, config, is_internal=is_internal)

    async def forget_unclaimed(self, image: ClusterImage) -> None:
        """After the first image: what was recovered and belongs to no topic any more is deleted."""
        for key, files in list(self._unclaimed.items()):
            if image.topic_by_id(key.topic_id) is None:
                log.info("%s-%d belongs to a deleted topic; removing its files", files.topic, key.partition)
                await self._journal_entry(EntryKind.PARTITION_DELETED, key, 0, 0)
                await self._remove_files(files)
                del self._unclaimed[key], self._storages[key]
        for key in [key for key in self._recovered.offline if image.topic_by_id(key.topic_id) is None]:
            await self.delete_offline(key)
        await remove_deleted_folders(self._disk, self._data / "topics")

    async def _journal_entry(self, kind: EntryKind, key: TopicPartition, offset: int, argument: int) -> None:
        """One control entry, durable when this returns. PartitionOfflineError when the journal failed."""
        while True:
            sequence = self._plane.journal_append(kind, key, offset, argument)
            if sequence is not None:
                break
            await trio.sleep(JOURNAL_FULL_RETRY_S)
        await self._plane.wait_durable(sequence)

    async def wait_journal_room(self) -> None:
        """Until a checkpoint has given journal space back, or for a short while (there are other reasons to wait)."""
        with trio.move_on_after(JOURNAL_ROOM_WAIT_S):
            await self._journal_room.wait()

    # -- room ------------------------------------------------------------------------------------------------------

    async def make_room(self, files: PartitionStorage, handle: int, size: int) -> None:
        """Segment space for so many more bytes; OSError (ENOSPC) when there is none, PartitionOfflineError."""
        led = self._led.get(handle)
        if led is None:
            raise PartitionOfflineError(f"{files.topic}-{files.key.partition} is closed")
        async with Taking(led.lock):
            left = self._plane.bytes_admitted(handle)
            if left >= size:
                return
            pending = max(0, led.admitted_bytes - left - led.written_bytes)
            if not led.is_internal and not await self._has_left(size):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            try:
                await files.reserve(pending + size + min(led.step_bytes, files.settings.segment_bytes // 2))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                await files.reserve(pending + size)
            except StorageFailedError as error:
                raise PartitionOfflineError(str(error)) from error
            self._plane.set_placement_space(handle, files.active.reserved_end_position)
            more = max(files.reserved_bytes - pending - left, size - left)
            self._plane.admit(handle, more)
            led.admitted_bytes += more

    async def _has_left(self, size: int) -> bool:
        """Whether clients' records may take so much more of the file system. What was seen counts for a moment when it
        was plenty: others write there too, but what is reserved is certain all the same.
        """
        if self._plenty_bytes < size or trio.current_time() > self._plenty_until_s:
            left = await self._bytes_left()
            self._plenty_bytes = left // 4 if left >= PLENTY_BYTES else 0
            self._plenty_until_s = trio.current_time() + PLENTY_S
            return left >= size
        self._plenty_bytes -= size
        return True

    async def _bytes_left(self) -> int:
        """What clients' records may still take of the file system."""
        status = await self._disk.statvfs(self._data)
        return status.available_bytes - min(limits.DISK_HEADROOM_BYTES, status.total_bytes // 16)

    # -- write-behind ------------------------------------------------------------------------------------------------

    async def write_behind(self, *, all_of_it: bool = True) -> int:
        """Everything that is durable now goes to the segments; without `all_of_it` what is due, and the end of a long
        run may wait for the next time. How many partitions that were.
        """
        if all_of_it:
            handles = self._plane.dirty()
        else:
            handles = self._plane.dirty_due(WRITE_BEHIND_BYTES_MIN, WRITE_BEHIND_AGE_S, DIRTY_BYTES_MAX)
        dirty = [led for handle in handles if (led := self._led.get(handle)) is not None and led.files.failed is None]
        if len(dirty) > FEW_PARTITIONS:
            left = await self._short_runs.write(dirty, self._make_room_ahead)
            dirty = [led for led in left if led.handle in self._led]  # others were deleted meanwhile
        hurries = any(self._plane.dirty_bytes(led.handle) >= HURRY_BYTES for led in dirty)
        if not hurries and len(dirty) <= FEW_PARTITIONS:
            for led in dirty:
                await self._write_behind_one(led, all_of_it=all_of_it)
            return len(dirty)
        limiter = trio.CapacityLimiter(WRITE_BEHIND_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for led in dirty:
                nursery.start_soon(self._write_behind_in_turn, led, limiter, all_of_it)
        return len(dirty)

    async def _write_behind_in_turn(self, led: Led, limiter: trio.CapacityLimiter, all_of_it: bool) -> None:  # noqa: FBT001
        async with Taking(limiter):
            await self._write_behind_one(led, all_of_it=all_of_it)

    async def _write_behind_one(self, led: Led, *, all_of_it: bool) -> None:
        written_bytes = led.written_bytes
        async with Taking(led.lock):
            if led.handle not in self._led:  # deleted while this waited
                return
            try:
                await self._write_to_files(led, self._plane.bounds(led.handle).high_watermark, all_of_it=all_of_it)
            except StorageFailedError as error:
                await self._write_behind_failed(led, error)
                return
            await self._placements.open(led, led.written_bytes - written_bytes)
        await self._make_room_ahead(led, led.written_bytes - written_bytes)

    async def _write_to_files(self, led: Led, upto: int, *, all_of_it: bool) -> None:
        was_direct = False
        while led.handle in self._led:
            taken = self._plane.write_behind_take(led.handle, limits.WRITE_BEHIND_BYTES_MAX)
            if taken is None:
                break
            self._disk.let_through()
            with taken:
                straight = taken.straight
                is_direct = not straight and await self._write_direct(led.files, taken)
                if not is_direct:
                    if was_direct and not straight and not all_of_it:
                        break
                    await led.files.append(taken.buffers, straight)
                end_offset = min(taken.end_offset, led.files.written_end_offset)
            if led.handle not in self._led:
                break
            dirty_bytes = self._plane.dirty_bytes(led.handle)
            self._plane.write_behind_done(led.handle, end_offset)
            self._disk.let_through()
            led.written_bytes += dirty_bytes - self._plane.dirty_bytes(led.handle)
            was_direct = is_direct
            if end_offset >= upto:
                break

    async def _write_direct(self, files: PartitionStorage, taken: Taken) -> bool:
        """What of the batches fills whole blocks, past the page cache; False: they are too few, or it cannot be."""
        fits = taken.base_offset == files.written_end_offset and taken.size <= limits.WRITE_BEHIND_BYTES_MAX
        if not fits or not files.direct_reach(taken.size):
            return False
        async with Taking(self._staging_limit):
            staging = self._staging.pop() if self._staging else aligned_buffer(STAGING_BYTES, self._disk.let_through)
            try:
                segment, reach = files.active, files.direct_reach(taken.size)
                staged = staging[segment.size_bytes % DIRECT_BLOCK_BYTES :]
                taken.copy_to(staged)
                return reach > 0 and await files.append_direct(segment, staged[:reach], taken.whole_bytes(reach))
            finally:
                self._staging.append(staging)

    async def _write_behind_failed(self, led: Led, error: StorageFailedError) -> None:
        log.error("%s-%d: %s", led.files.topic, led.files.key.partition, error)
        if isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ENOSPC:
            await release_ballast(self._disk, self._data)
        self._journal_trouble.set()

    async def _make_room_ahead(self, led: Led, written_bytes: int) -> None:
        """So that a busy partition's appends need not come to Python for room: for several times what came last."""
        ahead = min(max(led.step_bytes, 4 * written_bytes), ROOM_STEP_BYTES_MAX)
        if led.handle in self._led and self._plane.bytes_admitted(led.handle) < ahead // 2:
            await self._make_room_if_there_is(led, ahead)

    async def _make_room_when_low(self) -> None:
        """Before a partition's room is used up, since then its requests would come to Python for it."""
        while True:
            await self._room_wanted.wait()
            self._room_wanted = trio.Event()
            handles, self._rooms_low = self._rooms_low, []
            for handle in handles:
                led = self._led.get(handle)
                if led is not None:
                    await self._make_room_if_there_is(led, self._plane.bytes_admitted(handle) + 1)

    def _room_is_low(self, handle: int) -> None:
        self._rooms_low.append(handle)
        self._room_wanted.set()

    async def _make_room_if_there_is(self, led: Led, size: int) -> None:
        try:
            await self.make_room(led.files, led.handle, size)
        except (OSError, PartitionOfflineError) as error:
            log.debug("%s-%d: no room ahead: %s", led.files.topic, led.files.key.partition, error)

    # -- maintenance -------------------------------------------------------------------------------------------------

    async def run_maintenance(self) -> None:
        """Until cancelled: write behind, checkpoint, grow the journal, mend what failed."""
        self._staging.append(aligned_buffer(STAGING_BYTES, self._disk.let_through))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_behind_now_and_then)
            nursery.start_soon(self._make_room_when_low)
            nursery.start_soon(self._checkpoint_now_and_then)
            nursery.start_soon(self._grow_journal)
            nursery.start_soon(self._mend)
            nursery.start_soon(self._keep_ballast)

    async def _write_behind_now_and_then(self) -> None:
        not_before_s, look_s = 0.0, WRITE_BEHIND_LOOK_S
        while True:
            self._write_behind_due = trio.Event()
            self._plane.watch_due(WRITE_BEHIND_BYTES_MIN, DIRTY_BYTES_MAX)
            with trio.move_on_after(look_s):
                await self._write_behind_due.wait()
            if trio.current_time() < not_before_s:
                await trio.sleep_until(not_before_s)
            not_before_s = trio.current_time() + WRITE_BEHIND_INTERVAL_S
            many = await self.write_behind(all_of_it=False) >= MANY_AT_ONCE
            look_s = WRITE_BEHIND_INTERVAL_S if many else WRITE_BEHIND_LOOK_S

    def _write_behind_is_due(self) -> None:
        self._write_behind_due.set()

    async def _checkpoint_now_and_then(self) -> None:
        while True:
            with trio.move_on_after(CHECKPOINT_INTERVAL_S):
                await self._checkpoint_wanted.wait()
            self._checkpoint_wanted = trio.Event()
            await self.checkpoint()

    async def checkpoint(self, *, clean: bool = False) -> bool:
        """One checkpoint; False when it was held back (the log says why)."""
        async with self._checkpointing:
            begun = self._placements.checkpoint_begins()
            try:
                done = await self._checkpointer.run(self._bring_to_files, clean=clean)
            except OSError as error:
                log.error("checkpoint failed: %s", error)
                if error.errno == errno.ENOSPC:
                    await release_ballast(self._disk, self._data)
                await trio.sleep(TROUBLE_RETRY_S)
                self._want_checkpoint()
                return False
        self._plane.extend(self._recovered.journal_file.superblock.initialised_blocks)
        self._journal_room.set()
        self._journal_room = trio.Event()
        if done:
            self._placements.checkpoint_done(begun)
        else:
            log.warning("checkpoint held back: %s", self._checkpointer.statistics().held_back_by)
        return done

    async def _bring_to_files(self) -> None:
        """Everything that is durable now: records, and log starts that ran ahead of the records written behind."""
        await self.write_behind()
        for led in list(self._led.values()):
            if led.files.failed is not None or led.handle not in self._led:
                continue  # a failed one holds the checkpoint back by itself
            log_start_offset = self._plane.bounds(led.handle).log_start_offset
            if log_start_offset > led.files.log_start_offset:
                try:
                    await self._advance(led, log_start_offset)
                except PartitionOfflineError as error:
                    log.error("%s-%d: %s", led.files.topic, led.files.key.partition, error)

    def _want_checkpoint(self) -> None:
        self._checkpoint_wanted.set()

    async def _grow_journal(self) -> None:
        """Write the rest of the journal's blocks for the first time: while hardly anybody appends; under load only as
        the space is needed, because clients' commits want the disk.
        """
        journal_file, commits_before = self._recovered.journal_file, self._plane.journal_use().commits_durable
        while True:
            use = self._plane.journal_use()
            is_idle = use.commits_durable - commits_before < JOURNAL_IDLE_COMMITS
            commits_before = use.commits_durable
            if not is_idle and use.blocks_used < use.region_blocks // 4:
                await trio.sleep(JOURNAL_LOOK_S)
                continue
            try:
                async with self._checkpointing:
                    blocks = JOURNAL_IDLE_BLOCKS if is_idle else EXTEND_BLOCKS
                    if not await journal_file.extend(self._plane, blocks=blocks):
                        return
            except OSError as error:
                log.warning("the journal cannot grow now: %s", error)
                await trio.sleep(BALLAST_INTERVAL_S)
            if not is_idle:
                await trio.sleep(JOURNAL_GROW_PAUSE_S)

    async def _keep_ballast(self) -> None:
        while True:
            try:
                if await self._bytes_left() >= BALLAST_BYTES:
                    await ensure_ballast(self._disk, self._data)
            except OSError as error:
                log.warning("ballast: %s", error)
            await trio.sleep(BALLAST_INTERVAL_S)

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _journal_failed(self, error: int) -> None:
        self._placements.journal_failed()
        log.error("a journal write failed (%s); appends are refused until the journal works again", os.strerror(error))
        self._journal_trouble.set()

    async def _mend(self) -> None:
        """Open a failed journal again, write failed partitions anew, until both succeed."""
        while True:
            await self._journal_trouble.wait()
            self._journal_trouble = trio.Event()
            await trio.sleep(TROUBLE_RETRY_S)
            if not await self._mend_journal() or not await self._mend_partitions():
                self._journal_trouble.set()

    async def _mend_journal(self) -> bool:
        if not self._plane.journal_error():
            return True
        try:
            descriptor, mode = self._reopen_journal_file()
            sequence = self._plane.reopen_journal(descriptor, mode, self._new_run_id())
            if sequence is not None:
                await self._plane.wait_durable(sequence)
        except (OSError, PartitionOfflineError) as error:
            log.error("the journal still fails: %s", error)
            return False
        self._placements.journal_mended()
        log.warning("the journal works again")
        return True

    async def _mend_partitions(self) -> bool:
        well = True
        for led in list(self._led.values()):
            if led.files.failed is None:
                continue
            async with self._checkpointing, led.lock:
                try:
                    self._plane.close_windows(led.handle)
                    await self._placements.wait_closed(led)
                    await rewrite_partition(led.files, self._recovered.journal_file)
                except (OSError, StorageFailedError) as error:
                    log.error("%s-%d still fails: %s", led.files.topic, led.files.key.partition, error)
                    well = False
        return well

    # -- retention and deletion --------------------------------------------------------------------------------------

    async def set_log_start(self, handle: int, offset: int) -> None:
        """The log starts here from now on, durably; whole segments below it go."""
        led = self._led.get(handle)
        if led is None:
            raise PartitionOfflineError("the partition is closed")
        await self._journal_entry(EntryKind.LOG_START, led.files.key, offset, 0)
        if handle not in self._led:
            return
        # At once, before any lock: a checkpoint that covers the journal's entry must say it too.
        led.files.log_start_offset = max(led.files.log_start_offset, offset)
        led.files.mark_changed()
        self._plane.set_log_start(handle, offset)
        await self._advance(led, offset)

    async def _advance(self, led: Led, offset: int) -> int:
        """Drop segments wholly below an offset, as far as write-behind has come."""
        async with led.lock:
            reached = min(offset, led.files.written_end_offset)
            try:
                gone = await led.files.advance_log_start(reached, self._clock.wall_ms())
            except StorageFailedError as error:
                raise PartitionOfflineError(str(error)) from error
        return gone

    async def retain(self, files: PartitionStorage, handle: int, now_ms: int) -> int:
        """One round of retention by age and size; how many segments went."""
        led = self._led.get(handle)
        if led is None or files.failed is not None:
            return 0
        self._plane.expire_producers(handle, now_ms)
        files.producers.expire(now_ms, files.settings.producer_id_expiration_ms)
        try:
            plan, start = await files.plan_retention(now_ms, self._plane.bounds(handle).high_watermark)
            if plan.roll:
                await files.roll()
            if start > files.log_start_offset:
                log.info("%s-%d: the log starts at offset %d (%s)", files.topic, files.key.partition, start,
                         ", ".join(sorted(set(plan.reasons))))  # fmt: skip
                before = len(files.segments)
                await self.set_log_start(handle, start)
                gone = before - len(files.segments)
            else:
                gone = await self._advance(led, self._plane.bounds(handle).log_start_offset)
            await files.purge(now_ms)
        except (OSError, StorageFailedError) as error:
            raise PartitionOfflineError(str(error)) from error
        return gone

    async def delete(self, files: PartitionStorage, handle: int) -> None:
        """Forget a partition, durably, and free its files after ``file.delete.delay.ms``."""
        led = self._led.pop(handle, None)
        self._plane.withdraw(handle)
        if led is None:
            return
        # Its records in memory went with the handle: a checkpoint that is under way must not give their entries back,
        # unless the journal is so full that the deletion itself has to wait for that.
        held_back = files.failed is None
        if held_back:
            files.fail("it is being deleted", pages_in_doubt=False)
        while True:
            # No checkpoint between the entry and the folder's new name: it would give the entry's place back, and
            # either name a partition without a folder or leave a folder that nothing names.
            async with self._checkpointing, led.lock:
                sequence = self._plane.journal_append(EntryKind.PARTITION_DELETED, files.key, 0, 0)
                if sequence is not None:
                    await self._plane.wait_durable(sequence)
                    self._storages.pop(files.key, None)
                if held_back:
                    files.failed = None  # reserved space goes back with its files; a full journal needs a checkpoint
                if sequence is not None:
                    await self._remove_files(files)
                    break
            self._want_checkpoint()
            await trio.sleep(JOURNAL_FULL_RETRY_S)  # a checkpoint makes room meanwhile
        if self._checkpointer.statistics().held_back_by is not None:
            self._want_checkpoint()

    async def delete_offline(self, key: TopicPartition) -> None:
        """The same for a partition that recovery set aside: its files, and what was kept of the journal for it."""
        offline = self._recovered.offline.get(key)
        if offline is None:
            return
        log.info("%s-%d was offline and belongs to a deleted topic; removing its files", offline.topic, key.partition)
        while True:
            async with self._checkpointing:
                sequence = self._plane.journal_append(EntryKind.PARTITION_DELETED, key, 0, 0)
                if sequence is not None:
                    await self._plane.wait_durable(sequence)
                    del self._recovered.offline[key]
                    self._checkpointer.kept.pop(key, None)
                    await self._remove_offline_files(offline)
                    return
            await trio.sleep(JOURNAL_FULL_RETRY_S)

    async def _remove_offline_files(self, offline: OfflinePartition) -> None:
        key = offline.key
        path = self._data / "topics" / partition_folder_name(offline.topic, key.partition)
        try:
            listing = await PartitionListing.read(self._disk, path)
            if listing is not None and listing.folder.partition == key:
                folder = await delete_folder(self._disk, path, os.urandom(8).hex())
                self._doomed_folders.append((self._clock.wall_ms(), folder))
            await remove_folder(self._disk, self._data / "journals" / lost_folder_name(key))
        except OSError as error:
            log.error("files of %s-%d cannot be removed: %s", offline.topic, key.partition, error)

    async def _remove_files(self, files: PartitionStorage) -> None:
        try:
            await files.close()
            folder = await delete_folder(self._disk, files.folder.path, os.urandom(8).hex())
        except OSError as error:
            log.error("files of %s-%d cannot be removed: %s", files.topic, files.key.partition, error)
            return
        self._doomed_folders.append((self._clock.wall_ms() + files.settings.file_delete_delay_ms, folder))

    async def purge_folders(self) -> None:
        """Free what was deleted long enough ago."""
        now_ms = self._clock.wall_ms()
        due = [folder for due_ms, folder in self._doomed_folders if due_ms <= now_ms]
        self._doomed_folders = [entry for entry in self._doomed_folders if entry[1] not in due]
        for folder in due:
            try:
                await remove_folder(self._disk, folder)
            except OSError as error:
                log.warning("%s cannot be removed: %s", folder, error)

    # -- drain -------------------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Everything to the segments, a clean checkpoint, files closed."""
        self._placements.end()
        await self.checkpoint(clean=True)
        for files in list(self._storages.values()):
            try:
                await files.close()
            except OSError as error:
                log.warning("%s-%d: %s", files.topic, files.key.partition, error)
