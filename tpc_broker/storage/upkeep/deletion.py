"""The end of partitions and of files: forgotten durably first, renamed, and freed when their delay is over.

A deletion is carried out here after the metadata said so, durably; so nothing of the partition has to be kept, and a
deletion that the journal does not take now never holds anything else up: checkpoints name what the last one said of
it, and it is tried again when the journal works.

Space comes back ``file.delete.delay.ms`` after the deletion, and at once when the disk is full: who still reads has the
files open.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import os
from functools import partial
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import JournalStoppedError, PartitionOfflineError
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.storage.recovery.lost_and_found import put_aside, put_deleted_aside
from tpc_broker.storage.recovery.recovery import OfflinePartition
from tpc_broker.storage.segments.folders import (
    delete_folder,
    delete_offline_files,
    is_folder_of,
    metadata_refused,
    remove_folder,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import Clock, Disk, StoragePlane
    from tpc_broker.storage.recovery.checkpoint import Checkpointer
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
    from tpc_broker.storage.upkeep.refusals import Failures

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""At most between two looks at what is due: the wall clock may be set."""
RETRY_MS = 10_000
"""For files that cannot be removed now."""
FOR_EVER_MS = 1 << 62


class Deletions:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        disk: Disk,
        data: Path,
        clock: Clock,
        *,
        partitions: CorePartitions,
        checkpointer: Checkpointer,
        room: JournalRoom,
        requests: MaintenanceRequests,
        failures: Failures,
    ) -> None:
        self._plane = plane
        self._disk = disk
        self._data = data
        self._clock = clock
        self._partitions = partitions
        self._checkpointer = checkpointer
        self._room = room
        self._requests = requests
        self._failures = failures
        self._aside: dict[TopicPartition, str] = {}
        """Whose files are put aside in place of being freed, and why."""
        self._refused: set[TopicPartition] = set()
        """Deleted ones whose `partition.metadata` the disk has refused once."""
        self._left: dict[TopicPartition, Callable[[], Awaitable[None]]] = {}
        self._doomed: list[tuple[int, int, Callable[[int], Awaitable[None]]]] = []
        self._numbers = itertools.count()
        self._more = trio.Event()

    # -- partitions --------------------------------------------------------------------------------------------------

    async def delete(self, files: PartitionStorage, handle: int) -> None:
        """Forget a partition, durably, and free its files after ``file.delete.delay.ms``."""
        led = self._partitions.led.get(handle)
        self._plane.withdraw(handle)
        for state in ("still fails", "cannot be set aside"):
            self._failures.over(f"{files.topic}-{files.key.partition} {state}")
        if led is None:
            await self.delete_offline(files.key)
            return
        self._partitions.begin_deletion(files.key, handle)
        await self.delete_files(files, led.lock)

    async def delete_offline(self, key: TopicPartition) -> None:
        """The same for a partition that could not be opened: its files, and what was kept of the journal for it. As
        for others, it is done later where the journal does not work now.
        """
        files = self._partitions.unclaimed.get(key)
        if files is None:
            async with self._partitions.checkpointing:  # not in the midst of setting it aside
                if key in self._partitions.given_up:
                    files = self._partitions.storages[key]
                    self._partitions.begin_deletion(key)
        if files is not None:  # it was given up, or never opened
            await self.delete_files(files, trio.Lock())
        offline = self._partitions.offline.get(key) or self._released(key)
        if offline is None:
            return
        log.info("%s-%d was not open and belongs to a deleted topic; removing its files", offline.topic, key.partition)
        await self._delete_closed(offline)

    async def _delete_closed(self, offline: OfflinePartition) -> None:
        try:
            await self._forget_closed(offline)
        except PartitionOfflineError as error:
            self._not_now(error, offline.topic, offline.key, partial(self._delete_closed, offline))

    async def _forget_closed(self, offline: OfflinePartition) -> None:
        while True:
            async with self._partitions.checkpointing:
                if not self._is_closed(offline):  # meanwhile another call has deleted it, or another core has it
                    self._failures.over(self._waits(offline.topic, offline.key))
                    return
                sequence = self._plane.journal_append(EntryKind.PARTITION_DELETED, offline.key, 0, 0)
                if sequence is not None:
                    await self._plane.wait_durable(sequence)
                    self._failures.over(self._waits(offline.topic, offline.key))
                    self._partitions.begin_deletion(offline.key)
                    await self._remove_offline_files(offline)
                    return
            await self._wait_journal_room()

    def _is_closed(self, offline: OfflinePartition) -> bool:
        """Whether it is the one that was found, still: another one may have been begun anew under its key."""
        if self._partitions.offline.get(offline.key) is offline:
            return True
        released = self._partitions.released(offline.key)
        return released is not None and released is offline.checkpoint

    def _released(self, key: TopicPartition) -> OfflinePartition | None:
        """One that no other core is known to have adopted; one that did deletes the same files."""
        released = self._partitions.released(key)
        return None if released is None else OfflinePartition(released.topic, key, "released", released)

    def keep_aside(self, key: TopicPartition, reason: str) -> None:
        """When it is deleted next its files go to `lost+found`: they are damaged, and may be all that is left of what
        another replica lacks.
        """
        self._aside[key] = reason

    async def delete_files(self, files: PartitionStorage, lock: trio.Lock) -> None:
        """Forget a partition that the data plane does not know any more; later, when the journal does not work now.

        `lock` is its writers'.
        """
        # Its records in memory went with the handle: a checkpoint that is under way must not capture it any more.
        self._partitions.begin_deletion(files.key)
        files.begin_deletion()
        try:
            await self._delete(files, lock)
        except PartitionOfflineError as error:
            self._not_now(error, files.topic, files.key, partial(self.delete_files, files, lock))

    # Rule: A deletion that the journal does not take now holds nothing else up, and is tried again. Held by
    # tests/engine/test_trouble.py.
    def _not_now(
        self, error: PartitionOfflineError, topic: str, key: TopicPartition, again: Callable[[], Awaitable[None]]
    ) -> None:
        if isinstance(error, JournalStoppedError):
            log.info("%s-%d is removed at the next start", topic, key.partition)
            return
        if key not in self._left:  # the same may be asked for again and again meanwhile
            self._failures.failed(self._waits(topic, key), error, logging.WARNING)
        self._left[key] = again
        self._requests.mend.ask()

    @staticmethod
    def _waits(topic: str, key: TopicPartition) -> str:
        return f"{topic}-{key.partition} is deleted when the journal works again"

    async def delete_what_is_left(self) -> None:
        """The journal works again."""
        left, self._left = self._left, {}
        for delete in left.values():
            await delete()

    async def _delete(self, files: PartitionStorage, lock: trio.Lock) -> None:
        async with self._partitions.checkpointing:
            self._partitions.forget(files)
        while True:
            # No checkpoint between the entry and the folder's new name: it would give the entry's place back, and
            # either name a partition without a folder or leave a folder that nothing names.
            async with self._partitions.checkpointing, lock:
                sequence = self._plane.journal_append(EntryKind.PARTITION_DELETED, files.key, 0, 0)
                if sequence is not None:
                    await self._plane.wait_durable(sequence)
                    self._failures.over(self._waits(files.topic, files.key))
                    await self.remove_files(files)
                    break
            await self._wait_journal_room()
        if self._checkpointer.statistics().held_back_by is not None:
            self._requests.checkpoint.ask()

    async def _wait_journal_room(self) -> None:
        self._requests.checkpoint.ask()
        await self._room.wait()

    # -- files -------------------------------------------------------------------------------------------------------

    async def remove_files(self, files: PartitionStorage) -> None:
        """Rename a partition's folder, and free it after the delay; as often as it takes, since it blocks its name.

        Until then checkpoints name the partition: the next start finds it, and that it was deleted.
        """
        files.begin_deletion()
        try:
            await files.close()
            if files.key in self._aside:
                await self._put_aside(files.folder.path, files.topic, files.key, files.checkpointed)
                self._partitions.deleted(files.key)
                return
            folder = await delete_folder(self._disk, files.folder.path, os.urandom(8).hex())
            await files.folder.close()  # what was opened meanwhile: another one may be there under its name soon
        except FileNotFoundError:
            self._partitions.deleted(files.key)
            return
        except OSError as error:
            log.error("files of %s-%d cannot be removed now: %s", files.topic, files.key.partition, error)
            self._partitions.keep(files)
            self._doom(RETRY_MS, lambda _now_ms: self.remove_files(files))
            return
        self._partitions.deleted(files.key)
        self._doom(files.settings.file_delete_delay_ms, lambda _now_ms: self._free_folder(folder))

    async def _put_aside(self, path: Path, topic: str, key: TopicPartition, state: PartitionCheckpoint | None) -> None:
        """OSError: it stays where it was."""
        target = await put_aside(self._disk, self._data, path, topic, key, state, self._aside[key])
        log.warning("%s-%d: %s; the files were put aside in %s", topic, key.partition, self._aside.pop(key), target)

    async def _remove_offline_files(self, offline: OfflinePartition) -> None:
        try:
            if offline.key in self._aside and await is_folder_of(
                self._disk, self._data / "topics", offline.topic, offline.key
            ):
                path = self._data / "topics" / partition_folder_name(offline.topic, offline.key.partition)
                await self._put_aside(path, offline.topic, offline.key, offline.checkpoint)
            await self._clear_refused(offline)
            folder = await delete_offline_files(self._disk, self._data, offline.topic, offline.key, os.urandom(8).hex())
        except OSError as error:
            log.error("files of %s-%d cannot be removed: %s", offline.topic, offline.key.partition, error)
            self._doom(RETRY_MS, lambda _now_ms: self._remove_offline_files(offline))
            return
        self._partitions.deleted(offline.key)
        if folder is not None:
            self._doom(0, lambda _now_ms: self._free_folder(folder))

    async def _clear_refused(self, offline: OfflinePartition) -> None:
        """A folder that only its name says to be the deleted partition's, because the disk refuses the file that says
        so, goes to `lost+found` at the second attempt: it blocks that name. OSError: it was the first one.
        """
        path = self._data / "topics" / partition_folder_name(offline.topic, offline.key.partition)
        refused = await metadata_refused(self._disk, path)
        if refused is not None and offline.key not in self._refused:
            self._refused.add(offline.key)
            raise refused
        self._refused.discard(offline.key)
        if refused is not None:
            why = f"its partition.metadata cannot be read ({refused})"
            target = await put_deleted_aside(self._disk, self._data, path, offline.topic, offline.key, why)
            log.error("%s was deleted, and %s; its files are in %s now: remove them", path.name, why, target)

    async def _free_folder(self, folder: Path) -> None:
        try:
            await remove_folder(self._disk, folder)
        except OSError as error:
            log.warning("%s cannot be removed now: %s", folder, error)
            self._doom(RETRY_MS, lambda _now_ms: self._free_folder(folder))

    def folder_doomed(self, folder: Path, delay_ms: int) -> None:
        """A folder was given the name of a deleted one just now."""
        self._doom(delay_ms, lambda _now_ms: self._free_folder(folder))

    def segments_doomed(self, files: PartitionStorage) -> None:
        """Segments of a partition were renamed just now."""
        self._doom(files.settings.file_delete_delay_ms, lambda now_ms: self._free_segments(files, now_ms))

    async def _free_segments(self, files: PartitionStorage, now_ms: int) -> None:
        if files.failed is not None and self._partitions.storages.get(files.key) is not files:
            return  # it is deleted, and another one may be there under its name
        try:
            await files.purge(now_ms)
        except OSError as error:
            log.warning("segments of %s-%d cannot be removed now: %s", files.topic, files.key.partition, error)
            self._doom(RETRY_MS, lambda now_ms: self._free_segments(files, now_ms))

    def _doom(self, delay_ms: int, free: Callable[[int], Awaitable[None]]) -> None:
        heapq.heappush(self._doomed, (self._clock.wall_ms() + delay_ms, next(self._numbers), free))
        self._more.set()

    async def run(self) -> None:
        """Free what is due, until cancelled."""
        while True:
            self._more = trio.Event()
            await self.free(self._clock.wall_ms())
            with trio.move_on_after(self._seconds_to_next()):
                await self._more.wait()

    def _seconds_to_next(self) -> float:
        if not self._doomed:
            return math.inf
        return min(max(self._doomed[0][0] - self._clock.wall_ms(), 0) / 1000, LOOK_S)

    async def free_at_once(self) -> bool:
        """Whatever its delay: the disk is full. Whether there was anything."""
        return await self.free(FOR_EVER_MS)

    async def free(self, now_ms: int) -> bool:
        """What is due by then. Whether there was anything."""
        due = []
        while self._doomed and self._doomed[0][0] <= now_ms:
            due.append(heapq.heappop(self._doomed)[2])
        for free in due:
            await free(now_ms)
        return bool(due)
