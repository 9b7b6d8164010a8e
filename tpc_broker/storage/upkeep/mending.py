"""What has failed is mended, again and again until the disk is well: the journal first, then partitions.

Each is tried at longer and longer distances (`retry_delays`), up to ten seconds, on its own: one that cannot be mended
keeps neither the others nor checkpoints waiting. Where it takes space that the journal lacks, there is no such
patience: then it is tried at every turn, and soon given up (`journal_room.is_lacking`).

A partition whose segment failed is written anew from the journal, which gives nothing of it back before
(`recovery.rewrite_partition`). Where that cannot be and the journal needs the space, the partition is *given up*: it is
taken out of the data plane, what the journal has of it is put beside its files, and then it is offline and holds no
checkpoint back any more. What is refused meanwhile is KAFKA_STORAGE_ERROR.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.model import LeaderEpoch
from tpc_broker.storage.recovery.lost_and_found import METADATA_PARTITION
from tpc_broker.storage.recovery.recovery import OfflinePartition, rewrite_partition, set_aside
from tpc_broker.storage.upkeep.journal_room import is_lacking
from tpc_broker.storage.upkeep.retry_delays import RetryDelays

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path

    from tpc_broker.log.journal import JournalScan
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.recovery.checkpoint import JournalFile
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.recovery.recovery import RecoveredCore
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.upkeep.deletion import Deletions
    from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows
    from tpc_broker.storage.upkeep.journal_upkeep import JournalUpkeep
    from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
    from tpc_broker.storage.upkeep.refusals import Failures
    from tpc_broker.storage.upkeep.segment_space import SegmentSpace

log = logging.getLogger(__name__)

RETRY_S = 0.5
"""Between two looks at what is due, and after the first attempt at each."""
RETRY_S_MAX = 10.0
JOURNAL = "journal"
ATTEMPTS_MIN = 10
"""Before a partition is taken offline, and then only when the journal needs the space."""


class FailedOnes:
    """What the journal holds of partitions that have failed, read once for as many as there are."""

    def __init__(self, file: JournalFile, led: Mapping[int, LeaderPartition], in_place_windows: InPlaceWindows) -> None:
        self.file = file
        self._led = led
        self._in_place_windows = in_place_windows
        self._handles: frozenset[int] = frozenset()
        self._scan: JournalScan | None = None

    async def scan(self, led: LeaderPartition) -> JournalScan:
        """Not while a checkpoint runs. What an earlier scan found of a partition that had failed by then, and whose
        in-place writes were over, is there still: it holds every later checkpoint back. And it is all that its files
        have to hold again, because they took nothing since.
        """
        if self._scan is None or led.handle not in self._handles:
            failed = [one for one in self._led.values() if one.files.failed is not None]
            for one in failed:
                await self._in_place_windows.wait_closed(one)
            self._handles = frozenset(one.handle for one in failed)
            self._scan = await self.file.scan()
        return self._scan


# Rule: A segment that failed is written anew from the journal, and nothing is trimmed before. Where that cannot be and
# the journal needs the space, the partition goes offline with what the journal has of it beside its files. See also
# tpc_broker/storage/recovery/recovery.py. Held by tests/storage/test_partition_storage.py,
# tests/engine/test_trouble.py.
class Mending:
    """Of one core."""

    def __init__(
        self,
        plane: StoragePlane,
        data: Path,
        recovered: RecoveredCore,
        partitions: CorePartitions,
        *,
        journal: JournalUpkeep,
        deletions: Deletions,
        space: SegmentSpace,
        in_place_windows: InPlaceWindows,
        requests: MaintenanceRequests,
        failures: Failures,
    ) -> None:
        self._plane = plane
        self._data = data
        self._recovered = recovered
        self._partitions = partitions
        self._journal = journal
        self._deletions = deletions
        self._space = space
        self._in_place_windows = in_place_windows
        self._requests = requests
        self._failures = failures
        self._attempts: Counter[int] = Counter()
        self._delays = RetryDelays(RETRY_S_MAX)
        self._tell_given_up: Callable[[TopicPartition, str], None] = lambda _key, _reason: None

    def on_given_up(self, callback: Callable[[TopicPartition, str], None]) -> None:
        """Called with each partition that is given up, and why."""
        self._tell_given_up = callback

    async def run(self) -> None:
        """Open a failed journal again, write failed partitions anew, until both succeed; until cancelled."""
        while True:
            await self._requests.mend.wait()
            await trio.sleep(RETRY_S)
            if not await self.mend_once(due_only=True):
                self._requests.mend.ask()

    async def mend_once(self, *, due_only: bool = False) -> bool:
        """Whether all is well. `due_only`: what was tried lately is left for another time."""
        if self._plane.journal_error():
            if due_only and not self._delays.is_due(JOURNAL):
                return False
            self._delays.tried(JOURNAL, RETRY_S)
            if not await self._journal.mend():
                return False
            self._requests.checkpoint.ask()
        await self._deletions.delete_what_is_left()
        return await self.mend_partitions(due_only=due_only)

    async def mend_partitions(self, *, due_only: bool = False) -> bool:
        """Whether none is left that has failed."""
        well, partitions = True, self._partitions
        journal = FailedOnes(self._recovered.journal_file, partitions.led, self._in_place_windows)
        for led in list(partitions.led.values()):
            if led.files.failed is not None:
                well &= await self._mend_partition(led, journal, due_only=due_only)
        for offline in list(partitions.given_up.values()):
            well &= await self._set_aside(offline, due_only=due_only)
        return well

    async def _mend_partition(self, led: LeaderPartition, journal: FailedOnes, *, due_only: bool) -> bool:
        """Whether a partition that had failed is well, or is no longer led."""
        label, partitions = f"{led.files.topic}-{led.files.key.partition}", self._partitions
        if due_only and not self._is_due(led.handle):
            return False
        async with partitions.checkpointing, led.lock:
            if led.handle not in partitions.led or led.files.failed is None:
                return True  # deleted, or mended, while this waited
            self._delays.tried(led.handle, RETRY_S)
            try:
                self._plane.close_windows(led.handle)
                scan = await journal.scan(led)
                written_offset = self._plane.state(led.handle).written_offset
                await rewrite_partition(led.files, journal.file, scan, written_offset)
            except (OSError, StorageFailedError, BatchDamageError) as error:
                if led.handle not in partitions.led:  # deleted meanwhile
                    return True
                self._failures.failed(f"{label} still fails", error)
                if self._is_given_up(led, error):
                    self._give_up(led, str(error))
                return False
            cleaned_upto = led.files.cleaned.end_offset
            if cleaned_upto:  # a swap may have been finished
                self._plane.segments_replaced(led.handle, cleaned_upto)
                led.files.on_cleaned()
            self._attempts.pop(led.handle, None)
            await self._space.reserve_anew(led)
            self._failures.over(f"{label} still fails")
            log.warning("%s works again", label)
            self._requests.checkpoint.ask()  # one may have been held back
            return True

    def _is_due(self, what: Hashable) -> bool:
        return is_lacking(self._plane) or self._delays.is_due(what)

    def _is_given_up(self, led: LeaderPartition, error: Exception) -> bool:
        """Whether a partition that could not be mended, often enough, takes space of the journal that others need.
        Not on a full disk, which is mended from outside; nor the metadata log, without which there is no broker.
        """
        self._attempts[led.handle] += 1
        cause = error if isinstance(error, OSError) else error.__cause__
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or led.files.key == METADATA_PARTITION or self._attempts[led.handle] < ATTEMPTS_MIN:
            return False
        return is_lacking(self._plane)

    def _give_up(self, led: LeaderPartition, reason: str) -> None:
        """It takes nothing more from here on: what was acknowledged is what the journal and its files have now."""
        files = led.files
        self._failures.over(f"{files.topic}-{files.key.partition} still fails")
        reason = f"its segments could not be written anew: {reason}"
        kept = replace(  # the journal will be forgotten; what the replica has promised is not
            files.checkpointed, leader_epoch=LeaderEpoch(files.leader_epoch), voted_for=files.voted_for,
            notes=tuple(sorted(files.notes.items())),
        )  # fmt: skip
        self._partitions.give_up(led, OfflinePartition(files.topic, files.key, reason, kept))
        del self._attempts[led.handle]
        self._plane.withdraw(led.handle)
        self._tell_given_up(files.key, reason)

    async def _set_aside(self, offline: OfflinePartition, *, due_only: bool) -> bool:
        """Put what the journal has of such a partition beside its files, so that it holds no checkpoint back."""
        key, partitions = offline.key, self._partitions
        if due_only and not self._is_due(key):
            return False
        async with partitions.checkpointing:
            if partitions.given_up.get(key) is not offline:  # deleted while this waited
                return True
            self._delays.tried(key, RETRY_S)
            try:
                await set_aside(self._recovered, self._data, offline)
            except (OSError, StorageFailedError) as error:
                self._failures.failed(f"{offline.topic}-{key.partition} cannot be set aside", error)
                return False
            self._failures.over(f"{offline.topic}-{key.partition} cannot be set aside")
            files = partitions.set_aside(offline)
        self._requests.checkpoint.ask()
        log.error("%s-%d is offline: %s", offline.topic, key.partition, offline.reason)
        try:
            await files.close()
        except OSError as error:
            log.warning("%s-%d: %s", offline.topic, key.partition, error)
        return True
