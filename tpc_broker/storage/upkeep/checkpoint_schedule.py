"""When a core's checkpoints are made: when the journal fills up, now and then, when somebody asks, and at the end.

A checkpoint covers what is in the segments, so write-behind comes first, and log starts that ran ahead of the records
written behind. What a failed partition holds back is tried again when that was mended (`mending` asks for it). One that
failed is tried again by and by, up to ten seconds later (`retry_delays`), sooner while the journal needs the space.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.recovery.checkpoint import release_ballast
from tpc_broker.storage.upkeep.checkpoint_beginning import CheckpointBeginning
from tpc_broker.storage.upkeep.journal_room import is_pressed
from tpc_broker.storage.upkeep.retry_delays import RetryDelays

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.storage.ports import JournalCursor, StoragePlane
    from tpc_broker.storage.recovery.checkpoint import Checkpointer
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
    from tpc_broker.storage.upkeep.refusals import Failures
    from tpc_broker.storage.upkeep.retention import Retention
    from tpc_broker.storage.upkeep.write_behind import WriteBehindWriter

log = logging.getLogger(__name__)

INTERVAL_S = 60.0
RETRY_S = 0.5
"""After the first one that failed, and between two looks whether the next is due."""
RETRY_S_MAX = 10.0
CHECKPOINT = "checkpoint"


class CheckpointSchedule:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        data: Path,
        partitions: CorePartitions,
        checkpointer: Checkpointer,
        *,
        write_behind: WriteBehindWriter,
        retention: Retention,
        in_place_windows: InPlaceWindows,
        room: JournalRoom,
        requests: MaintenanceRequests,
        failures: Failures,
    ) -> None:
        self._plane = plane
        self._data = data
        self._partitions = partitions
        self._checkpointer = checkpointer
        self._write_behind = write_behind
        self._retention = retention
        self._in_place_windows = in_place_windows
        self._room = room
        self._requests = requests
        self._failures = failures
        self._delays = RetryDelays(RETRY_S_MAX)
        self._beginning = CheckpointBeginning()

    async def run(self) -> None:
        """Whenever it is time, until cancelled."""
        while True:
            with trio.move_on_after(INTERVAL_S):
                await self._requests.checkpoint.wait()
            await self._wait_due()
            await self.take()

    async def _wait_due(self) -> None:
        """After one that failed: for a while, whoever asks."""
        while not self._delays.is_due(CHECKPOINT):
            await trio.sleep(RETRY_S)
            if is_pressed(self._plane):
                break

    async def take(self) -> bool:
        """One checkpoint; False when it was held back (the log says why)."""
        file = self._checkpointer.file
        async with self._partitions.checkpointing:
            begun, number = self._in_place_windows.checkpoint_begins(), self._partitions.checkpoint_begins()
            blocks_covered = self._plane.journal_use().blocks_used
            synced_before = self._checkpointer.statistics().partitions_synced_count
            try:
                done = await self._checkpointer.run(self._bring_to_files)
                if done:
                    self._partitions.checkpoint_done(number)
            except OSError as error:
                self._failures.failed("checkpoint failed", error)
                if error.errno == errno.ENOSPC:
                    await release_ballast(file.disk, self._data)
                self._delays.tried(CHECKPOINT, RETRY_S)
                self._requests.checkpoint.ask()
                return False
        self._failures.over("checkpoint failed", "checkpoints are written again")
        self._plane.extend(file.superblock.initialised_blocks)
        if done:
            self._room.made()  # else whoever waits would find none, ask for a checkpoint, and so on without a rest
            synced = self._checkpointer.statistics().partitions_synced_count - synced_before
            self._begin_next(self._beginning.after(blocks_covered, synced, self._plane.journal_use()))
            self._in_place_windows.checkpoint_done(begun)
            self._failures.over("checkpoint held back", "checkpoints are held back no longer")
        else:
            held_back_by = self._checkpointer.statistics().held_back_by
            self._failures.failed("checkpoint held back", held_back_by, logging.WARNING)
        return done

    def _begin_next(self, blocks: int) -> None:
        """When so much of the journal is in use; until then records wait in memory (0: as ever)."""
        self._plane.want_space_at(blocks)
        self._write_behind.wait_for_more(blocks * BLOCK_BYTES)

    async def _bring_to_files(self, place: JournalCursor) -> str | None:
        """Everything in front of a place: records, and log starts that ran ahead of the records written behind. Nothing
        of producers that are too many.
        """
        await self._write_behind.write(all_of_it=True)
        led_here = self._partitions.led
        for led in list(led_here.values()):
            if led.files.failed is not None or led.handle not in led_here:
                continue  # a failed one holds the checkpoint back by itself
            if led.files.producers:
                self._retention.forget_producers(led)
            log_start_offset = self._plane.bounds(led.handle).log_start_offset
            if log_start_offset > led.files.log_start_offset:
                try:
                    await self._retention.advance(led, log_start_offset)
                except PartitionOfflineError as error:
                    log.error("%s-%d: %s", led.files.topic, led.files.key.partition, error)
        is_left = self._plane.is_unwritten_below(place.sequence)
        return "records that were durable when it began are not in their segments" if is_left else None
