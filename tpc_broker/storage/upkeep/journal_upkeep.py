"""A core's journal kept going: its control entries, its growth, and opening it again after a failure.

A failed journal takes nothing (appends are refused) until it was opened again: a new run begins with the cuts of what
was not durable, and with a new leader epoch for each partition that was cut, because its offsets are given out again.
What knows of leader epochs here follows at once, clients when the epochs are durable. The file is opened anew each
time, because the kernel tells an error to the descriptor that was open then.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import JournalStoppedError, PartitionOfflineError
from tpc_broker.model import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.log.journal import EntryKind
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.journal_growth import JournalGrowth
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
    from tpc_broker.storage.upkeep.refusals import Failures

log = logging.getLogger(__name__)

MENDED_S = 0.05
"""Between two looks at a journal that has failed."""
FAILED = "a journal write failed; appends are refused until the journal works again"
STILL_FAILS = "the journal still fails"


async def wait_kept(plane: StoragePlane, sequence: int) -> None:
    """For a cut or an adoption: memory has forgotten what was there before, so a journal that fails is waited for. It
    goes on with the entry in the place that this had, so that no room has to be made while checkpoints are held up.
    JournalStoppedError: at the end of the process it may be there or not.
    """
    while sequence:
        try:
            await plane.wait_durable(sequence)
        except JournalStoppedError:
            raise
        except PartitionOfflineError as error:
            log.debug("a cut or an adoption: %s", error)
            while plane.journal_error():
                await trio.sleep(MENDED_S)
            sequence = plane.cuts_sequence()
        else:
            return


class JournalUpkeep:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        partitions: CorePartitions,
        growth: JournalGrowth,
        in_place_windows: InPlaceWindows,
        requests: MaintenanceRequests,
        failures: Failures,
        *,
        room: JournalRoom,
        new_run_id: Callable[[], int],
        reopen_file: Callable[[], tuple[int, int]],
    ) -> None:
        self._plane = plane
        self._led = partitions.led
        self._growth = growth
        self._in_place_windows = in_place_windows
        self._requests = requests
        self._failures = failures
        self._room = room
        self._new_run_id = new_run_id
        self._reopen_file = reopen_file
        self._errors_before = 0
        self._epochs_begun: dict[TopicPartition, LeaderEpoch] = {}
        self._tell_epochs: Callable[[list[tuple[TopicPartition, LeaderEpoch]]], None] = lambda _epochs: None
        plane.on_journal_space(self._needs_space)
        plane.on_journal_failed(self._failed)

    def on_epochs_begun(self, callback: Callable[[list[tuple[TopicPartition, LeaderEpoch]]], None]) -> None:
        """Called with the leader epochs that began because the journal had failed, when they are durable."""
        self._tell_epochs = callback

    async def append_entry(
        self,
        kind: EntryKind,
        key: TopicPartition,
        offset: int,
        argument: int,
        then: Callable[[], None] = lambda: None,
        payload: bytes = b"",
    ) -> None:
        """One control entry, durable when this returns. PartitionOfflineError when the journal failed.

        `then` takes over what the entry says, before a checkpoint can cover it.
        """
        sequence = await self.put_entry(kind, key, offset, argument, payload)
        await self._plane.wait_durable(sequence, then)

    async def put_entry(
        self, kind: EntryKind, key: TopicPartition, offset: int, argument: int, payload: bytes = b""
    ) -> int:
        """The same for a caller that waits for many of them at once: the sequence to wait for, which never falls."""
        while True:
            sequence = self._plane.journal_append(kind, key, offset, argument, payload)
            if sequence is not None:
                return sequence
            await self._room.wait()

    async def append_at_last(
        self, kind: EntryKind, key: TopicPartition, argument: int, payload: bytes, then: Callable[[], None]
    ) -> None:
        """One that is not taken back: the disk may have it although the journal failed, so it is written again until it
        is durable. JournalStoppedError: at the end of the process it may be there or not.
        """
        while True:
            try:
                await self.append_entry(kind, key, 0, argument, then, payload)
            except JournalStoppedError:
                raise
            except PartitionOfflineError as error:
                log.debug("partition %s: %s", key, error)
                while self._plane.journal_error():
                    await trio.sleep(MENDED_S)
            else:
                return

    def tell_epoch(self, key: TopicPartition, epoch: LeaderEpoch) -> None:
        """One that began by itself is durable."""
        self._tell_epochs([(key, epoch)])

    def _needs_space(self) -> None:
        self._requests.checkpoint.ask()
        self._growth.wanted()

    def _failed(self, error: int) -> None:
        self._in_place_windows.journal_failed()
        if self._failures.failed(FAILED, os.strerror(error)):
            self._errors_before = self._plane.partition_errors()
        self._requests.mend.ask()

    async def mend(self) -> bool:
        """Open it again if it has failed; whether it works."""
        if not self._plane.journal_error():
            return True
        try:
            descriptor, mode = self._reopen_file()
            sequence = self._plane.reopen_journal(descriptor, mode, self._new_run_id())
            self._follow_epochs()
            await self._plane.wait_durable(sequence)
        except (OSError, PartitionOfflineError) as error:
            self._failures.failed(STILL_FAILS, error)
            return False
        self._failures.over(STILL_FAILS)
        self._failures.over(FAILED)
        self._in_place_windows.journal_mended()
        begun, self._epochs_begun = self._epochs_begun, {}
        if begun:
            self._tell_epochs(list(begun.items()))
        refused = self._plane.partition_errors() - self._errors_before
        log.warning("the journal works again; %d produces to partitions were answered with an error", refused)
        return True

    def _follow_epochs(self) -> None:
        """In the call that opened the journal again: a checkpoint that covers their entries must say them, too."""
        for led in self._led.values():
            state, files = self._plane.state(led.handle), led.files
            if files.commit_offset is None and state.leader_epoch > files.leader_epoch:
                files.leader_epoch = epoch = LeaderEpoch(state.leader_epoch)
                files.epochs.assign(epoch, Offset(self._plane.bounds(led.handle).log_end_offset))
                files.mark_changed()
                self._epochs_begun[files.key] = epoch
