"""A replica's files give way to another replica's: what was shipped becomes the log, atomically.

What was shipped lies in a folder of its own (`filled_logs`), whole, checked and durable. Then, in this order:

1. ADOPTED in this core's journal, with the partition as its new files have it, its own term and vote, and the name of
   that folder. Nothing that the journal says of the partition in front of it counts any more (`log.lives`);
2. when that is durable: the old folder gets a name by which it is deleted, the new one takes its place;
3. the partition is here as if it had been recovered.

The entry is never taken back, because the disk may have it although the journal failed. A start that finds the entry,
and the folder that it names, goes on with step 2 before it looks at anything; one that finds the folder alone removes
it. So after any crash the replica has either all of its old log or all of the new one.

A replica may only be replaced by a log that contains everything which it has ever acknowledged, or proves it void:
whoever asks for it judges that, in the very moment in which the entry is written.
"""

from __future__ import annotations

import logging
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.seals import SealError
from tpc_broker.storage.recovery.filled_folders import FILLING, put_in_place
from tpc_broker.storage.recovery.recovery import open_checkpointed
from tpc_broker.storage.segments.folders import PartitionListing, remove_lost_mark
from tpc_broker.storage.segments.segments import SegmentFolder
from tpc_broker.storage.upkeep.journal_upkeep import wait_kept

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tpc_broker.log.checkpoint import Handed, PartitionCheckpoint
    from tpc_broker.log.producer_state import ProducerState
    from tpc_broker.log.segment import LogSettings
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.recovery.handed_producers import HandedProducers
    from tpc_broker.storage.segments.files import FileCache
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.deletion import Deletions
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests

    Judge = Callable[[PartitionStorage | None], PartitionCheckpoint | None]
    """`Installation.install`."""
    Install = Callable[[TopicPartition, Judge], Awaitable[bool]]
    """Replace a replica's files by those that were filled, and begin anew with them; whether that was done."""

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""For folders that cannot be renamed now."""


class Installation:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        data: Path,
        files: FileCache,
        partitions: CorePartitions,
        *,
        room: JournalRoom,
        deletions: Deletions,
        requests: MaintenanceRequests,
        handed: HandedProducers,
    ) -> None:
        self._plane = plane
        self._data = data
        self._files = files
        self._partitions = partitions
        self._room = room
        self._deletions = deletions
        self._requests = requests
        self._handed = handed

    async def install(
        self, key: TopicPartition, settings: LogSettings, judge: Judge, then: Callable[[], None]
    ) -> bool:
        """Replace a replica's files by those of a filled folder; whether that was done.

        `judge` is called in the moment of the journal's entry, with the files that are there (None: the replica is
        offline), and gives the partition as it is to be, with its own term, vote and notes, or None: it may not be
        replaced. `then` is called at once when the entry is in the journal: from there on nothing is said for the
        replica, or appended to it, until this returns and it is opened again.

        PartitionOfflineError: the journal fails, or the partition is neither open nor offline; nothing was done.
        """
        handed: Handed | None = None
        in_file: ProducerState | None = None
        try:
            while True:
                async with AsyncExitStack() as held:
                    await held.enter_async_context(self._partitions.checkpointing)
                    led = self._led(key)
                    if led is not None:
                        await held.enter_async_context(led.lock)
                    if led is not self._led(key):
                        continue
                    state = judge(None if led is None else led.files)
                    if state is None:
                        self._handed.given_up(handed)
                        return False
                    if state.producers is not in_file:
                        self._handed.given_up(handed)
                        handed = None
                    payload = self._handed.payload_nowait(state, handed)
                    sequence = None if payload is None else self._plane.adopt(key, state.moves, payload)
                    if sequence is not None:
                        in_entry, handed = handed, None
                        then()
                        with trio.CancelScope(shield=True):  # the entry is not taken back
                            await self._replace(key, led, state, sequence, settings)
                        self._handed.named(in_entry)
                        return True
                if payload is None:
                    handed, in_file = await self._handed.write(state.producers), state.producers
                    continue
                self._requests.checkpoint.ask()
                await self._room.wait()
        except BaseException:
            self._handed.given_up(handed)
            raise

    def _led(self, key: TopicPartition) -> LeaderPartition | None:
        """None: it is offline."""
        for led in self._partitions.led.values():
            if led.files.key == key:
                return led
        if key not in self._partitions.offline:
            raise PartitionOfflineError("the partition is neither open nor offline")
        return None

    async def _replace(
        self,
        key: TopicPartition,
        led: LeaderPartition | None,
        state: PartitionCheckpoint,
        sequence: int,
        settings: LogSettings,
    ) -> None:
        old = self._partitions.storages.get(key)
        self._partitions.begin_replacement(key, None if led is None else led.handle)
        if led is not None:
            self._plane.withdraw(led.handle)
        if old is not None:
            old.begin_deletion()
        await wait_kept(self._plane, sequence)
        if old is not None:
            await self._close(old)
        self._partitions.replaced(await self._put_in_place(state, settings))

    async def _close(self, files: PartitionStorage) -> None:
        try:
            await files.close()
        except OSError as error:
            log.warning("%s-%d: %s", files.topic, files.key.partition, error)

    async def _put_in_place(self, state: PartitionCheckpoint, settings: LogSettings) -> PartitionStorage:
        """As often as it takes: the journal says that it is so."""
        label = partition_folder_name(state.topic, state.partition)
        path, told = self._data / "topics" / label, ""
        while True:
            try:
                filled = self._data / FILLING / state.filled
                if await self._is_there(filled):
                    await remove_lost_mark(self._files.disk, self._data, state.key)
                    old = await put_in_place(self._files.disk, filled, path, os.urandom(8).hex())
                    await self._files.forget_folder(path)  # what was opened of the one before meanwhile
                    if old is not None:
                        self._deletions.folder_doomed(old, settings.file_delete_delay_ms)
                listing = await PartitionListing.read(self._files.disk, path)
                if listing is None:
                    raise FileNotFoundError(f"{path} is not its folder")
                return await open_checkpointed(
                    SegmentFolder(self._files, path), listing, replace(state, filled=""), settings
                )
            except (OSError, SealError) as error:
                if str(error) != told:
                    told = str(error)
                    log.error("%s: its new files cannot be put in place now: %s", label, error)
                await trio.sleep(RETRY_S)

    async def _is_there(self, path: Path) -> bool:
        try:
            await self._files.disk.stat(path)
        except FileNotFoundError:
            return False
        return True
