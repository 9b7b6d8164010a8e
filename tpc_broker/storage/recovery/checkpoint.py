"""Journal file, checkpoints and ballast of one core: what makes the journal's space usable again.

The order of a checkpoint, each step durable before the next begins:

1. take the journal's durable place: replay will begin there;
2. write behind everything that was durable then;
3. capture each changed partition, then sync its files and their names (or the whole file system when many changed);
4. write the checkpoint file beside the old one, sync it, rename it over, sync the folder;
5. write the superblock that names the place, over the older of the two;
6. give the journal blocks in front of the place back;
7. of many partitions, write `leader-epoch-checkpoint` where it changed: nobody needs it before other programs do.

A partition whose write or sync failed holds everything back: its journal entries are the only copy.
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, checkpoint_of, decode_checkpoint
from tpc_broker.log.files import TEMPORARY_SUFFIX, checkpoint_file_name, journal_file_name
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    REGION_BLOCK_FIRST,
    EntryKind,
    JournalMode,
    JournalScan,
    Superblock,
    WantedRun,
    choose_superblock,
    journal_region_blocks,
    scan_journal,
)
from tpc_broker.storage.recovery.captures import capture_together
from tpc_broker.storage.recovery.handed_producers import HandedProducers, whole_payload
from tpc_broker.storage.recovery.side_by_side import for_each
from tpc_broker.storage.segments.files import replace_file
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.short_steps import PRODUCERS_AT_ONCE
from tpc_broker.storage.uncontended_lock import all_held

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from pathlib import Path

    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Disk, Journal, JournalCursor

JOURNAL_BYTES_MAX_DEFAULT: Final = 256 * 1024 * 1024
INITIAL_BLOCKS: Final = 8 * 1024 * 1024 // BLOCK_BYTES
EXTEND_BLOCKS: Final = 4 * 1024 * 1024 // BLOCK_BYTES
SYNCFS_PARTITIONS: Final = 64
"""From so many changed partitions on, one syncfs instead of their single syncs."""
EPOCH_FILES_TOGETHER: Final = 128
_HAND_OVER: Final = frozenset({EntryKind.RELEASED, EntryKind.ADOPTED})
_WHOLE_PAYLOADS: Final = _HAND_OVER | {EntryKind.EPOCH}
BALLAST_FILE: Final = "ballast"
BALLAST_BYTES: Final = 8 * 1024 * 1024


class JournalFile:
    """One core's journal as a file: superblocks and size. The commits are written by the data plane."""

    def __init__(self, disk: Disk, folder: Path, core: CoreId, fd: int, superblock: Superblock) -> None:
        self.disk = disk
        self.folder = folder
        self.path = folder / journal_file_name(core)
        self.core = core
        self.fd = fd
        self.superblock = superblock
        self._lock = trio.Lock()
        self._zeros_fd = fd
        """While it is `growing`, the file past the page cache."""

    @classmethod
    async def create(
        cls,
        disk: Disk,
        folder: Path,
        core: CoreId,
        *,
        journal_id: bytes,
        bytes_max: int = JOURNAL_BYTES_MAX_DEFAULT,
        journals_count: int = 1,
        checkpoint_generation: int = 0,
    ) -> JournalFile:
        """Make a journal, ready for use with the first part of its region; `extend` brings the rest. `journals_count`:
        so many share the file system.
        """
        region = journal_region_blocks(bytes_max, (await disk.statvfs(folder)).total_bytes, journals_count)
        superblock = Superblock(
            journal_id, 1, region, min(region, INITIAL_BLOCKS), REGION_BLOCK_FIRST, 1, 0, checkpoint_generation
        )
        path = folder / journal_file_name(core)
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        fd = await disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            await _allocate(disk, fd, 0, superblock.end_block)
            await disk.write_zeros(fd, 0, superblock.end_block * BLOCK_BYTES)
            await disk.write_at(fd, superblock.encode(), superblock.slot * BLOCK_BYTES)
            await disk.fdatasync(fd)
            await disk.rename(temporary, path)
            await disk.fsync_directory(folder)
        except BaseException:
            await disk.close(fd)
            raise
        return cls(disk, folder, core, fd, superblock)

    @classmethod
    async def open(
        cls, disk: Disk, folder: Path, core: CoreId, *, lock: Callable[[int], Awaitable[None]] | None = None
    ) -> JournalFile:
        """Open a journal that is there; `lock` gets its descriptor first. JournalUnreadableError; FileNotFoundError."""
        fd = await disk.open(folder / journal_file_name(core), os.O_RDWR)
        try:
            if lock is not None:
                await lock(fd)
            superblock = choose_superblock(await disk.read(fd, REGION_BLOCK_FIRST * BLOCK_BYTES, 0))
        except BaseException:
            await disk.close(fd)
            raise
        return cls(disk, folder, core, fd, superblock)

    async def scan(self) -> JournalScan:
        """What it holds behind the replay position."""
        machine, buffer = scan_journal(self.superblock), bytearray()
        data: memoryview | None = None
        while True:
            try:
                request = next(machine) if data is None else machine.send(data)
            except StopIteration as end:
                return await self._with_notes(end.value)
            if len(buffer) < request.length:
                buffer = bytearray(request.length)
            data = memoryview(buffer)[: request.length]
            done = await self.disk.read_into(self.fd, data, request.position)
            data[done:] = bytes(request.length - done)

    async def _with_notes(self, scan: JournalScan) -> JournalScan:
        """What the notes of terms, releases and adoptions have beyond what a scan keeps of payloads."""
        entries = list(scan.entries)
        for number, entry in enumerate(entries):
            if entry.kind in _WHOLE_PAYLOADS and entry.payload_bytes > len(entry.payload):
                payload = bytes(await self.disk.read(self.fd, entry.payload_bytes, entry.payload_position))
                if entry.kind in _HAND_OVER:
                    payload = await whole_payload(self.disk, self.folder, payload)
                entries[number] = entry._replace(payload=payload)
        return replace(scan, entries=tuple(entries))

    async def payloads(
        self, scan: JournalScan, wanted: Mapping[int, WantedRun], targets_count: int
    ) -> AsyncGenerator[list[tuple[int, memoryview]], None]:
        """The wanted bytes of each target, window by window in the journal's order; each valid until the next one."""
        reader, buffer = scan.payloads.reader(wanted, targets_count), bytearray()
        while reader.request is not None:
            position, length = reader.request
            if len(buffer) < length:
                buffer = bytearray(length)
            done = await self.disk.read_into(self.fd, memoryview(buffer)[:length], position)
            yield reader.take(memoryview(buffer)[:done])

    async def update_superblock(self, **changes: object) -> None:
        """Write a superblock with some fields changed, durably. One at a time: growth and checkpoints may coincide."""
        async with self._lock:
            is_upgrade = self.superblock.is_of_version_1
            await self._write_superblock(self.superblock.next(**changes))
            if is_upgrade:  # the earlier release must not find its own superblock in the other place, and believe it
                await self._write_superblock(self.superblock.next())

    async def _write_superblock(self, superblock: Superblock) -> None:
        await self.disk.durable_write(self.fd, superblock.encode(), superblock.slot * BLOCK_BYTES)
        self.superblock = superblock

    @property
    def blocks_left(self) -> int:
        """By which its region may still be extended."""
        return self.superblock.region_blocks - self.superblock.initialised_blocks

    @asynccontextmanager
    async def growing(self, blocks: int) -> AsyncIterator[None]:
        """For so many more blocks, of which `write_more` writes some at a time: they have their space on the disk.

        They are written past the page cache where that can be: 256 MiB of pages would cost more than the disk's part
        of it.
        """
        more = min(blocks, self.blocks_left)
        if more > 0:
            await _allocate(self.disk, self.fd, self.superblock.end_block, more)
        try:
            self._zeros_fd = direct_fd = await self.disk.open(self.path, os.O_WRONLY | os.O_DIRECT)
        except OSError:
            self._zeros_fd = direct_fd = self.fd
        try:
            yield
        finally:
            self._zeros_fd = self.fd
            if direct_fd != self.fd:
                await self.disk.close(direct_fd)

    async def write_more(self, blocks: int, behind: int = 0) -> int:
        """Write some more blocks of the region for the first time, `behind` so many that were written since the last
        `add`; how many, 0 when all are written. Until `add` they are not durable, and what the superblock says stays
        as it is, so checkpoints and copies may go on meanwhile.
        """
        more = min(blocks, self.blocks_left - behind)
        if more <= 0:
            return 0
        place = ((self.superblock.end_block + behind) * BLOCK_BYTES, more * BLOCK_BYTES)
        try:
            await self.disk.write_zeros(self._zeros_fd, *place)
        except OSError as error:
            if error.errno != errno.EINVAL or self._zeros_fd == self.fd:
                raise
            self._zeros_fd = self.fd
            await self.disk.write_zeros(self.fd, *place)
        return more

    async def sync(self) -> None:
        """What `write_more` has written is durable."""
        await self.disk.fdatasync(self.fd)

    async def add(self, blocks: int, journal: Journal | None = None) -> None:
        """The region has these blocks too, which were written and synced; then the writer learns of them."""
        await self.update_superblock(initialised_blocks=self.superblock.initialised_blocks + blocks)
        if journal is not None:
            journal.extend(self.superblock.initialised_blocks)

    async def extend(self, journal: Journal | None = None, *, blocks: int = EXTEND_BLOCKS) -> bool:
        """Both; False when all of the region is written."""
        async with self.growing(blocks):
            more = await self.write_more(blocks)
            await self.sync()
        if more:
            await self.add(more, journal)
        return more > 0

    async def set_mode(self, mode: JournalMode) -> None:
        """Record what the probe found."""
        if mode != self.superblock.mode:
            await self.update_superblock(mode=mode)

    async def close(self) -> None:
        await self.disk.close(self.fd)


async def _allocate(disk: Disk, fd: int, block: int, count: int) -> None:
    """Space for blocks of a journal, where the file system can say that it has it. OSError: ENOSPC."""
    try:
        await disk.fallocate(fd, block * BLOCK_BYTES, count * BLOCK_BYTES, keep_size=False)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise


async def read_checkpoint(
    disk: Disk, folder: Path, core: CoreId
) -> tuple[int, dict[TopicPartition, PartitionCheckpoint]]:
    """Generation and partitions of a core's checkpoint; (0, nothing) when there is none. CheckpointError:
    unreadable.
    """
    path = folder / checkpoint_file_name(core)
    try:
        status = await disk.stat(path)
    except FileNotFoundError:
        return 0, {}
    fd = await disk.open(path, os.O_RDONLY)
    try:
        data = await disk.read(fd, status.size_bytes, 0)
    finally:
        await disk.close(fd)
    try:
        return decode_checkpoint(data)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


async def write_checkpoint(
    disk: Disk, folder: Path, core: CoreId, generation: int, partitions: Iterable[PartitionCheckpoint]
) -> None:
    """Write a core's checkpoint durably; until it returns the old one counts."""
    encoded = []
    for one in partitions:
        disk.poll_ring()  # with thousands of partitions the encoding takes longer than anybody should wait
        encoded.append(await _encoded(one))
    await replace_file(disk, folder / checkpoint_file_name(core), checkpoint_of(generation, encoded))


async def _encoded(partition: PartitionCheckpoint) -> bytes:
    """And so it does with many producers, which nobody changes any more."""
    if len(partition.producers) <= PRODUCERS_AT_ONCE:
        return partition.encode()
    parts = []
    for part in partition.producers.encode_in_parts(PRODUCERS_AT_ONCE):
        parts.append(part)
        await trio.lowlevel.checkpoint()
    return partition.encode(producers=b"".join(parts))


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Of a checkpointer since it was made."""

    checkpoints_count: int
    partitions_synced_count: int
    held_back_by: str | None
    """Why the last attempt did not recycle anything."""
    age_s: float
    """Since the last one, or since the start, which makes one."""


class Checkpointer:
    """Takes checkpoints of one core. `run` is called by one task: on a timer, when the journal asks for space, at the
    end.

    `kept` are checkpoint entries of partitions that are not open here and must not be forgotten (offline ones).
    """

    def __init__(
        self,
        journal_file: JournalFile,
        journal: Journal,
        storages: Mapping[TopicPartition, PartitionStorage],
        kept: Mapping[TopicPartition, PartitionCheckpoint] | None = None,
    ) -> None:
        self.file = journal_file
        self.journal = journal
        self.storages = storages
        self.kept = dict(kept or {})
        self.handed = HandedProducers(journal_file.disk, journal_file.folder, journal_file.core, journal)
        self._checkpoints = self._synced = 0
        self._held_back_by: str | None = None
        self._made_s = trio.current_time()

    def statistics(self) -> CheckpointStatistics:
        age_s = trio.current_time() - self._made_s
        return CheckpointStatistics(self._checkpoints, self._synced, self._held_back_by, age_s)

    # Rule: A checkpoint's order: data, names, checkpoint, superblock, and only then recycling. Held by
    # tests/durability/test_crash_images.py (with mutants that must fail).
    async def run(
        self, write_behind: Callable[[JournalCursor], Awaitable[str | None]], *, pace_seconds: float = 0
    ) -> bool:
        """One checkpoint; False when a failed partition holds it back (see `statistics`).

        `write_behind` brings everything in front of a place of the journal into the segments, or says why it could not.
        The superblock is marked clean when the journal says, together with the place, that nothing ever follows it.
        `pace_seconds` is left between the syncs of two partitions, so that clients' writes get through. OSError: the
        checkpoint failed, everything is as it was before.
        """
        place = self.journal.durable_cursor()
        left_behind = await write_behind(place)
        storages = list(self.storages.values())
        failed = [storage for storage in storages if storage.failed is not None]
        if failed:
            self._held_back_by = f"{failed[0].topic}-{failed[0].key.partition}: {failed[0].failed}"
            return False
        if left_behind is not None:
            self._held_back_by = left_behind
            return False
        try:
            states = await self._capture_and_sync(storages, pace_seconds)
        except StorageFailedError as error:
            self._held_back_by = str(error)
            return False
        generation = self.file.superblock.checkpoint_generation + 1
        await write_checkpoint(
            self.file.disk, self.file.folder, self.file.core, generation, [*states.values(), *self.kept.values()]
        )
        await self.file.update_superblock(
            replay_block=place.block,
            replay_sequence=place.sequence,
            replay_previous_crc=place.previous_crc,
            checkpoint_generation=generation,
            clean=place.is_end,
        )
        changed = [storage for storage in storages if states[storage.key] is not storage.checkpointed]
        for storage in changed:
            storage.mark_checkpointed(states[storage.key])
        self.journal.recycle(place.position)
        await self.handed.forget(place.sequence)
        self._checkpoints += 1
        self._made_s = trio.current_time()
        self._held_back_by = None
        if len(changed) >= SYNCFS_PARTITIONS and await _write_epochs(self.file.disk, changed):
            await self.file.disk.syncfs(self.file.fd)
        return True

    # Rule: What is durable at a checkpoint's place is known to Python, and is in the segments, before the checkpoint is
    # written. See also tpc_broker/engine/data_plane.py. Held by tests/engine/test_checkpoint_moments.py.
    async def _capture_and_sync(
        self, storages: list[PartitionStorage], pace_seconds: float
    ) -> dict[TopicPartition, PartitionCheckpoint]:
        """States of all partitions that are durable when this returns."""
        states = {storage.key: storage.checkpointed for storage in storages}
        changed = [storage for storage in storages if storage.changed]
        self._synced += len(changed)
        states.update(await capture_and_sync(self.file, changed, pace_seconds))
        return states


async def capture_and_sync(
    file: JournalFile, storages: list[PartitionStorage], pace_seconds: float = 0
) -> dict[TopicPartition, PartitionCheckpoint]:
    """What each partition has written, made durable: by a sync each, or by one syncfs when they are many, and then
    without `leader-epoch-checkpoint`, which is for other programs: the checkpoint has what it says.

    StorageFailedError: at least one partition has failed by it.
    """
    states = {}
    if len(storages) < SYNCFS_PARTITIONS:
        for storage in storages:
            states[storage.key] = await storage.capture()
        await _sync_each(storages, pace_seconds)
        return states

    states = await capture_together(storages)
    sound = [storage for storage in storages if storage.failed is None]
    async with all_held((storage.folder.syncing for storage in storages), file.disk.poll_ring):
        await _sync_file_system(file, storages)
    failed = next((storage for storage in sound if storage.failed is not None), None)
    if failed is not None:  # by another sync in front of this one, which says nothing then
        raise StorageFailedError(failed.failed)
    return states


async def _sync_file_system(file: JournalFile, storages: list[PartitionStorage]) -> None:
    begun = []
    for storage in storages:
        begun.append((storage, storage.folder.begin_sync()))
        file.disk.poll_ring()
    try:
        await file.disk.syncfs(file.fd)
    except BaseException as error:
        for storage, names in begun:
            storage.folder.undo_sync(names)
            if isinstance(error, OSError):
                storage.fail(f"syncfs: {error}")
        if isinstance(error, OSError):
            raise StorageFailedError(f"syncfs: {error}") from error
        raise


async def _write_epochs(disk: Disk, storages: list[PartitionStorage]) -> bool:
    """By few jobs of a helper thread: a file's way through the ring costs several times what the kernel needs. Whether
    there were any.
    """
    any_written = False
    for first in range(0, len(storages), EPOCH_FILES_TOGETHER):
        wanted = []
        for storage in storages[first : first + EPOCH_FILES_TOGETHER]:
            to_write = storage.folder.epochs_to_write(storage.epochs.entries)
            if to_write is not None:
                wanted.append((storage.folder, to_write))
        if not wanted:
            continue
        await disk.replace_many([to_write for _folder, to_write in wanted])
        for folder, (_path, data) in wanted:
            folder.epochs_written(data)
        any_written = True
    return any_written


async def _sync_each(storages: list[PartitionStorage], pace_seconds: float) -> None:
    """Several at the same time, so that the file system's own journal commits once for them; paced: one by one."""
    if not pace_seconds:
        await for_each(storages, PartitionStorage.sync, few=1)
        return
    for storage in storages:
        await storage.sync()
        await trio.sleep(pace_seconds)


async def ensure_ballast(disk: Disk, data: Path, length: int = BALLAST_BYTES) -> bool:
    """Have a file that can be given up on a full disk, so that deletions and checkpoints find room; False: no room."""
    path = data / BALLAST_FILE
    fd = await disk.open(path, os.O_RDWR | os.O_CREAT)
    try:
        await disk.fallocate(fd, 0, length, keep_size=False)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return True
        if error.errno != errno.ENOSPC:
            raise
        await release_ballast(disk, data)
        return False
    finally:
        await disk.close(fd)
    return True


async def release_ballast(disk: Disk, data: Path) -> bool:
    """Give the ballast up; False when it was not there."""
    try:
        await disk.unlink(data / BALLAST_FILE)
    except FileNotFoundError:
        return False
    return True
