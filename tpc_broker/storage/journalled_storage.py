"""The files and the journal of one core behind its partitions: the face that the broker uses.

Theory of operation
-------------------
The data plane (C) takes appends into the journal and memory. This brings them further, each part in a module of its
own, which calls those above it in this list and asks the others for work (`maintenance_requests`):

* *deletion*: partitions forgotten, files freed when their delay is over (`deletion`);
* *room*: segment space is reserved before a batch is admitted to the journal (`segment_space`);
* *journal*: waiting for room in it, its growth, its own entries, opening it again after a failure (`journal_room`,
  `journal_growth`, `journal_upkeep`);
* *log starts*: moved durably, and segments dropped below them (`retention`);
* *write-behind*: durable batches go from memory to the segments, so that memory and journal can be given back
  (`write_behind`);
* *checkpoints*: when three eighths of the journal are used (an eighth while it grows), now and then, and at the end
  (`checkpoint_schedule`);
* *moves*: partitions that go to another core of the node, or come from there (`core_moves`);
* *replicas*: terms, votes and cuts of replicated partitions (`replicas`);
* *installation*: a replica's files give way to those that another one has shipped (`installation`);
* *cleanings*: what is to be compacted is, by the cleaner's process (`cleanings`);
* *mending*: a journal that failed is opened again, a partition whose segment failed is written anew from the journal,
  both again and again until the disk is well (`mending`).

Here partitions are opened and given to the data plane. The tables that the parts share are in `core_partitions`.

A full disk fails neither: the journal has its space, and so has everything that was admitted.
"""

from __future__ import annotations

import logging
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import JournalStoppedError, PartitionNotMadeError, PartitionOfflineError, StorageFailedError
from tpc_broker.feature_levels import FIRST_WITH_COMPACTION
from tpc_broker.log.journal import EntryKind, encode_note
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.model import LeaderEpoch, TopicPartition
from tpc_broker.storage.core_moves import CoreMoves
from tpc_broker.storage.drain import drain
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.recovery.core_partitions import CorePartitions, PartitionState
from tpc_broker.storage.recovery.lost_and_found import put_unknown_aside, put_unsure_aside
from tpc_broker.storage.recovery.recovery import OfflinePartition
from tpc_broker.storage.replicas.installation import Installation
from tpc_broker.storage.replicas.replicas import PlaneCommit, Replicas
from tpc_broker.storage.replicas.shipments import Shipments
from tpc_broker.storage.segments.files import replace_file
from tpc_broker.storage.segments.folders import (
    LOST_MARK_FILE,
    FolderTakenError,
    FolderUnsureError,
    LostMark,
    create_partition,
    delete_folder,
    log_settings,
    lost_folder_name,
    lost_marks,
    may_be_folder_of,
    new_partition,
    prepare_folders,
    remove_deleted_folders,
    remove_folder,
    remove_lost_folders,
)
from tpc_broker.storage.segments.leader_partition import LeaderPartition, partition_params
from tpc_broker.storage.upkeep.checkpoint_schedule import CheckpointSchedule
from tpc_broker.storage.upkeep.cleanings import Cleanings
from tpc_broker.storage.upkeep.deletion import RETRY_MS, Deletions
from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows, PlaneWindow
from tpc_broker.storage.upkeep.journal_growth import JournalGrowth
from tpc_broker.storage.upkeep.journal_room import JournalRoom
from tpc_broker.storage.upkeep.journal_upkeep import JournalUpkeep
from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
from tpc_broker.storage.upkeep.mending import Mending
from tpc_broker.storage.upkeep.refusals import Failures
from tpc_broker.storage.upkeep.retention import Retention
from tpc_broker.storage.upkeep.segment_space import Lack, SegmentSpace
from tpc_broker.storage.upkeep.write_behind import WriteBehindWriter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.segment import LogSettings
    from tpc_broker.metadata.cleaner_settings import CleaningBounds
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.model import CoreId
    from tpc_broker.storage.disk_watch import DiskWatch
    from tpc_broker.storage.ports import Cleaner, Clock, Disk, Leave, StoragePlane
    from tpc_broker.storage.recovery.recovery import RecoveredCore
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.cleaning_status import CleaningBook

log = logging.getLogger(__name__)

NEW_FOLDERS_FEW = 16


# Rule: Whatever fails in the middle of an operation of the storage, nothing is lost, and it works again when the disk
# does. Held by tests/engine/test_storage_faults.py (journal, disk and space at each point).
class JournalledStorage:
    """See the module's theory. ``CoreStorage`` of the ports."""

    def __init__(
        self,
        recovered: RecoveredCore,
        plane: StoragePlane,
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
        self._reopen_journal_file = reopen_journal_file
        self._maintenance = trio.CancelScope()
        self._first_image = ClusterImage()
        """What is deleted later has had an owner here; of topics that are made later nothing was here before."""
        self._unsure: set[TopicPartition] = set()
        """Those that could not be made once, because nobody could tell whose the records in their folder are."""
        self._settings_read: tuple[TopicConfig, LogSettings] | None = None
        journal_file = recovered.journal_file
        self._requests = requests = MaintenanceRequests()
        self._failures = failures = Failures()
        self._checkpointer = Checkpointer(journal_file, plane, recovered.storages, recovered.kept)
        self._partitions = partitions = CorePartitions(recovered.storages, recovered.offline, self._checkpointer.kept)
        self._room = room = JournalRoom(self._checkpointer)
        self._deletions = Deletions(
            plane, disk, data, clock, partitions=partitions, checkpointer=self._checkpointer, room=room,
            requests=requests, failures=failures,
        )  # fmt: skip
        self._space = SegmentSpace(plane, disk, data, partitions.led, self._deletions)
        self._growth = JournalGrowth(journal_file, plane, partitions.checkpointing, self._space, room)
        self._in_place_windows = windows = InPlaceWindows(plane, partitions.led, requests)
        self._journal = JournalUpkeep(
            plane, partitions, self._growth, windows, requests, failures, room=room, new_run_id=new_run_id,
            reopen_file=reopen_journal_file,
        )  # fmt: skip
        self._retention = Retention(plane, clock, partitions, journal=self._journal, deletions=self._deletions)
        self._write_behind = WriteBehindWriter(
            plane, disk, data, partitions.led, space=self._space, in_place_windows=windows
        )
        self._checkpoints = CheckpointSchedule(
            plane, data, partitions, self._checkpointer, write_behind=self._write_behind, retention=self._retention,
            in_place_windows=windows, room=room, requests=requests, failures=failures,
        )  # fmt: skip
        self._replicas = Replicas(plane, partitions, room=room, space=self._space, in_place_windows=windows)
        self._moves = CoreMoves(
            plane, data, recovered.files, partitions, journal=self._journal, write_behind=self._write_behind,
            retention=self._retention, in_place_windows=windows, handed=self._checkpointer.handed,
        )  # fmt: skip
        self._installation = Installation(
            plane, data, recovered.files, partitions, room=room, deletions=self._deletions, requests=requests,
            handed=self._checkpointer.handed,
        )  # fmt: skip
        self.files = recovered.files
        """All of the core's open files."""
        self.cleanings = Cleanings(
            plane, clock, partitions.led, space=self._space, retention=self._retention, requests=requests
        )
        self.shipments = Shipments(recovered.files, data, journal_file.core)
        self._mending = Mending(
            plane, data, recovered, partitions, journal=self._journal, deletions=self._deletions, space=self._space,
            in_place_windows=windows, requests=requests, failures=failures,
        )  # fmt: skip

    # -- compaction ------------------------------------------------------------------------------------------------

    @property
    def cleaning(self) -> CleaningBook:
        """What is known of the compaction of its partitions, for people."""
        return self.cleanings.book

    @property
    def cleaner(self) -> Cleaner | None:
        """None: there is none."""
        return self.cleanings.cleaner

    @cleaner.setter
    def cleaner(self, cleaner: Cleaner | None) -> None:
        self.cleanings.cleaner = cleaner

    @property
    def cleaning_bounds(self) -> CleaningBounds:
        """As the broker's settings are now."""
        return self.cleanings.bounds

    @cleaning_bounds.setter
    def cleaning_bounds(self, bounds: CleaningBounds) -> None:
        self.cleanings.bounds = bounds

    # -- opening ---------------------------------------------------------------------------------------------------

    async def prepare(self, wanted: Sequence[tuple[TopicPartition, str]]) -> None:
        """Folders of many partitions that are new, made and synced at once; `open` makes a few by itself."""
        partitions = self._partitions
        recovered = self._recovered
        new = [
            (key, topic)
            for key, topic in wanted
            if partitions.state(key) is PartitionState.ABSENT and key not in recovered.marked
        ]
        if len(new) <= NEW_FOLDERS_FEW:
            return
        try:
            ready = await prepare_folders(recovered.files, self._data / "topics", new, recovered.journal_file.fd)
        except OSError as error:
            log.warning("folders of %d new partitions are made one by one: %s", len(new), error)
        else:
            partitions.prepared(ready)

    def has(self, key: TopicPartition) -> bool:
        """Also while it is made, and until it is deleted; not when it was released."""
        return self._partitions.is_here(key)

    def unclaimed(self) -> list[TopicPartition]:
        return list(self._partitions.unclaimed)

    def damaged(self) -> list[TopicPartition]:
        return list(self._partitions.offline)

    def unclaimed_terms(self) -> list[tuple[TopicPartition, int]]:
        return [(key, files.leader_epoch) for key, files in self._partitions.unclaimed.items()]

    def remembers(self, keys: Iterable[TopicPartition]) -> bool:
        """`CorePartitions.remembers`."""
        return self._partitions.remembers(keys)

    async def is_left_over(self, key: TopicPartition, topic: str) -> bool:
        """PartitionNotMadeError: its folder cannot be read now."""
        try:
            return not self.has(key) and await may_be_folder_of(self._disk, self._data / "topics", topic, key)
        except OSError as error:
            raise PartitionNotMadeError(f"its folder cannot be read: {error}") from error

    async def open(self, key: TopicPartition, topic: str, config: TopicConfig) -> PartitionStorage:
        """Recovered, or made. PartitionOfflineError when damaged, PartitionNotMadeError when it cannot be made now."""
        partitions = self._partitions
        if key in self._recovered.marked:
            await self._obey_mark(key, topic)
        offline = partitions.offline.get(key) or partitions.given_up.get(key)
        if offline is not None:
            raise PartitionOfflineError(offline.reason)
        settings = self._settings_of(config)
        await self._moves.take_back(key, settings)
        files = partitions.claim(key) or await self._make(key, topic, settings)
        files.settings = settings
        return files

    async def _obey_mark(self, key: TopicPartition, topic: str) -> None:
        """If it is there still: the core that had the partition may have deleted it, or filled it. A repair learns the
        topic's name from it.
        """
        journals = self._data / "journals"
        try:
            mark = (await lost_marks(self._disk, journals, [key])).get(key)
            if mark is not None and not mark.topic:
                path = journals / lost_folder_name(key) / LOST_MARK_FILE
                await replace_file(self._disk, path, LostMark(topic, mark.reason).encode())
        except OSError as error:
            raise PartitionNotMadeError(f"whether it was set aside cannot be told: {error}") from error
        self._recovered.marked.discard(key)
        if mark is not None and self._partitions.state(key) is PartitionState.ABSENT:
            self._partitions.set_aside_before(OfflinePartition(topic, key, mark.reason))

    async def forget_mark(self, key: TopicPartition) -> None:
        """What is to be opened is another replica than the one that was set aside. PartitionNotMadeError: the disk."""
        try:
            await remove_folder(self._disk, self._data / "journals" / lost_folder_name(key))
        except OSError as error:
            raise PartitionNotMadeError(f"what was set aside of it cannot be removed: {error}") from error
        self._recovered.marked.discard(key)

    def _settings_of(self, config: TopicConfig) -> LogSettings:
        """Read once for all partitions of a topic that are opened together."""
        if self._settings_read is None or self._settings_read[0] is not config:
            self._settings_read = config, log_settings(config)
        return self._settings_read[1]

    async def _make(self, key: TopicPartition, topic: str, settings: LogSettings) -> PartitionStorage:
        topics, made = self._data / "topics", None
        is_ready = self._partitions.make(key)
        try:
            if is_ready:
                made = new_partition(self._recovered.files, topics, topic, key, settings)
            else:
                made = await self._create(key, topic, settings)
        except (OSError, StorageFailedError) as error:
            raise PartitionNotMadeError(str(error)) from error
        finally:
            if made is None:
                self._partitions.not_made(key)
        self._partitions.made(made)
        return made

    async def _create(self, key: TopicPartition, topic: str, settings: LogSettings) -> PartitionStorage:
        """A folder that a deleted topic has left there gives its name up: it could not be removed when it was deleted,
        and what told of it then is forgotten.
        """
        topics = self._data / "topics"
        try:
            return await create_partition(self._recovered.files, topics, topic, key, settings)
        except FolderTakenError as error:
            if not self._first_image.is_deleted(error.owner.topic_id) or self.has(error.owner):
                raise
            log.warning("%s was left by a deleted topic; removing it", error.path)
            folder = await delete_folder(self._disk, error.path, os.urandom(8).hex())
            self._deletions.folder_doomed(folder, 0)
        except FolderUnsureError as error:
            await self._put_unsure_aside(key, error)
        files = await create_partition(self._recovered.files, topics, topic, key, settings)
        self._unsure.discard(key)
        return files

    async def _put_unsure_aside(self, key: TopicPartition, unsure: FolderUnsureError) -> None:
        """At the second attempt, from the way of a topic that was made since the start: it is not that one's.
        FolderUnsureError: it stays, since it may be its own, or the disk may come to itself. OSError.
        """
        first = self._first_image
        if key not in self._unsure or not first.version or first.topic_by_id(key.topic_id) is not None:
            self._unsure.add(key)
            raise unsure
        target = await put_unsure_aside(self._disk, self._data, unsure.path, unsure.problem)
        log.error("%s holds records of a topic that is no more, or that nobody knows: %s; it is %s now", unsure.path,
                  unsure.problem, target)  # fmt: skip

    async def begin_epoch(self, files: PartitionStorage, note: bytes = b"") -> None:
        """A leader epoch above every earlier one, durable when this returns. PartitionNotMadeError: the journal fails,
        and the partition is to be opened again; JournalStoppedError: at the next start. `note`: as of a term.
        """
        await self._begin_epochs([files], note)

    async def begin_epochs(self, opened: Sequence[PartitionStorage]) -> None:
        """The same for many, which wait for one commit; after an error none of them has begun."""
        await self._begin_epochs(opened)

    async def _begin_epochs(self, opened: Sequence[PartitionStorage], note: bytes = b"") -> None:
        payload, sequence = encode_note(note) if note else b"", 0
        try:
            for files in opened:
                epoch = LeaderEpoch(files.leader_epoch + 1)
                end_offset = files.written_end_offset
                files.leader_epoch = epoch  # before the wait: a checkpoint that covers the entry must say it too
                files.epochs.forget_empty()
                files.log_state.begin_epoch(epoch, end_offset)
                if note:
                    files.notes[epoch] = note
                files.mark_changed()
                sequence = await self._journal.put_entry(EntryKind.EPOCH, files.key, end_offset, epoch, payload)
                self._disk.poll_ring()
            await self._plane.wait_durable(sequence)
        except PartitionOfflineError as error:
            for files in opened:
                self._partitions.give_back(files)
            if isinstance(error, JournalStoppedError):
                raise
            raise PartitionNotMadeError(str(error)) from error

    def register(
        self, files: PartitionStorage, config: TopicConfig, *, is_internal: bool, is_replicated: bool = False
    ) -> int:
        """A place in the data plane. A replicated partition has no role in it yet, others are led in their epoch."""
        params = partition_params(files, config, is_internal=is_internal, is_replicated=is_replicated)
        handle = self._plane.register(params, files.log_state)
        if is_replicated:
            files.commit_offset = PlaneCommit(self._plane, handle, params.high_watermark)
        files.life.on_failed = self._requests.mend.ask
        if files.failed is not None:
            self._requests.mend.ask()
        self._partitions.lead(LeaderPartition(files, handle, trio.Lock(), is_internal))
        files.rolls.follow(PlaneWindow(self._plane, handle))
        self._disk.poll_ring()  # thousands of them in a row
        return handle

    def alter(
        self,
        files: PartitionStorage,
        handle: int,
        config: TopicConfig,
        *,
        is_internal: bool,
        is_replicated: bool = False,
    ) -> None:
        files.settings = log_settings(config)
        params = partition_params(files, config, is_internal=is_internal, is_replicated=is_replicated)
        self._plane.update(handle, params)

    def follow_level(self, image: ClusterImage) -> None:
        """What other nodes, and the releases that may come after this one, can read."""
        self._checkpointer.handed.may_write = image.knows_transactions
        self.cleanings.may_clean = image.level >= FIRST_WITH_COMPACTION

    async def forget_unclaimed(self, image: ClusterImage) -> None:
        """After the first image: what was recovered of a deleted topic goes, what is unknown is put aside."""
        partitions = self._partitions
        self._first_image = image
        for key, files in list(partitions.unclaimed.items()):
            if image.is_deleted(key.topic_id):
                log.info("%s-%d belongs to a deleted topic; removing its files", files.topic, key.partition)
                await self.delete_offline(key)
        closed = (*partitions.offline, *partitions.all_released())
        for key in [key for key in closed if image.is_deleted(key.topic_id)]:
            await self.delete_offline(key)
        try:
            await remove_lost_folders(self._disk, self._data / "journals", image.is_deleted)
        except OSError as error:
            log.warning("what journals had of deleted topics cannot be removed: %s", error)
        async with partitions.checkpointing:
            if await put_unknown_aside(self._disk, self._data, partitions, image):
                self._requests.checkpoint.ask()
        await remove_deleted_folders(self._disk, self._data / "topics")

    # -- moves between cores -----------------------------------------------------------------------------------------

    async def release(
        self, handle: int, target: CoreId, move_id: int, then: Callable[[], None], leave: Leave | None = None
    ) -> PartitionCheckpoint:
        """`CoreMoves.release`."""
        return await self._moves.release(handle, target, move_id, then, leave)

    async def adopt(self, released: PartitionCheckpoint, config: TopicConfig) -> None:
        """`CoreMoves.adopt`."""
        await self._moves.adopt(released, log_settings(config))

    def released(self, key: TopicPartition) -> PartitionCheckpoint | None:
        """`CorePartitions.released`."""
        return self._partitions.released(key)

    def all_released(self) -> list[TopicPartition]:
        """`CorePartitions.all_released`."""
        return self._partitions.all_released()

    def forget_release(self, key: TopicPartition) -> None:
        """`CorePartitions.forget_release`."""
        self._partitions.forget_release(key)

    # -- replicated partitions ---------------------------------------------------------------------------------------

    def begin_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        """`Replicas.begin_term`."""
        return self._replicas.begin_term(handle, term, note)

    def note_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        """`Replicas.note_term`."""
        return self._replicas.note_term(handle, term, note)

    async def cut(self, handle: int, offset: int, last_epoch_kept: int) -> None:
        """`Replicas.cut`."""
        await self._replicas.cut(handle, offset, last_epoch_kept)

    async def install(
        self,
        key: TopicPartition,
        config: TopicConfig,
        judge: Callable[[PartitionStorage | None], PartitionCheckpoint | None],
        then: Callable[[], None],
    ) -> bool:
        """`Installation.install`."""
        return await self._installation.install(key, log_settings(config), judge, then)

    # -- the parts' work ---------------------------------------------------------------------------------------------

    async def wait_journal_room(self) -> None:
        """Until a checkpoint has given journal space back, or for a short while (there are other reasons to wait)."""
        await self._room.wait()

    async def make_room(self, files: PartitionStorage, handle: int, size: int) -> None:
        """Segment space for so many more bytes; OSError (ENOSPC) when there is none, PartitionOfflineError. For a
        client, which waits no longer than until `leads_no_more` (LeadershipLostError).
        """
        await self._space.make_for_client(files, handle, size)

    async def make_replica_room(self, files: PartitionStorage, handle: int, size: int) -> None:
        """The same for what another replica's leader has sent."""
        await self._space.make_for_request(files, handle, size)

    def leads_no_more(self, handle: int) -> None:
        """A partition's leadership has ended."""
        self._space.leads_no_more(handle)

    @property
    def disk_watch(self) -> DiskWatch:
        """What the disk has been asked for and has not answered."""
        return self._disk.watch

    @property
    def lacking(self) -> Mapping[int, Lack]:
        """Partitions, by handle, that were refused segment space, and for which there is none yet."""
        return self._space.lacking

    async def write_behind(self, *, all_of_it: bool = True) -> int:
        """`WriteBehindWriter.write`."""
        return await self._write_behind.write(all_of_it=all_of_it)

    async def checkpoint(self) -> bool:
        """One checkpoint; False when it was held back (the log says why)."""
        return await self._checkpoints.take()

    @asynccontextmanager
    async def hold_checkpoints(self) -> AsyncIterator[None]:
        """One checkpoint now if that can be, and then none until the end of the block: what is on the disk is what a
        crash would leave, and the journal keeps everything behind the checkpoint. It fills meanwhile, and does not
        grow: not for long. No cleaned segment takes the place of another in the block, either.
        """
        await self.checkpoint()
        async with self._moves.lock, self._partitions.checkpointing, self.cleanings.swaps.held():
            yield

    @property
    def cuts_begun(self) -> int:
        """`Replicas.cuts_begun`."""
        return self._replicas.cuts_begun

    async def mend_once(self) -> bool:
        """Whether all is well."""
        return await self._mending.mend_once()

    def on_given_up(self, callback: Callable[[TopicPartition, str], None]) -> None:
        """`Mending.on_given_up`."""
        self._mending.on_given_up(callback)

    def on_epochs_begun(self, callback: Callable[[list[tuple[TopicPartition, LeaderEpoch]]], None]) -> None:
        """`JournalUpkeep.on_epochs_begun`."""
        self._journal.on_epochs_begun(callback)

    async def set_log_start(self, handle: int, offset: int) -> None:
        """The log starts here from now on, durably; whole segments below it go."""
        await self._retention.set_log_start(handle, offset)

    async def retain(self, files: PartitionStorage, handle: int, now_ms: int) -> int:
        """One round of retention by age and size; how many segments went."""
        return await self._retention.retain(files, handle, now_ms)

    async def delete(self, files: PartitionStorage, handle: int) -> None:
        """Forget a partition, durably, and free its files after ``file.delete.delay.ms``."""
        await self._deletions.delete(files, handle)

    def keep_aside(self, key: TopicPartition, reason: str) -> None:
        """`Deletions.keep_aside`."""
        self._deletions.keep_aside(key, reason)

    async def delete_offline(self, key: TopicPartition) -> None:
        """The same for a partition that recovery set aside: its files, and what was kept of the journal for it."""
        await self._deletions.delete_offline(key)

    def remove_later(self, folder: Path) -> None:
        """A folder that nothing names any more, and that cannot be removed now."""
        self._deletions.folder_doomed(folder, RETRY_MS)

    async def purge_folders(self) -> None:
        """Free what was deleted long enough ago."""
        await self._deletions.free(self._clock.wall_ms())

    def counters(self) -> dict[str, int]:
        """For operators; ages in milliseconds, states as 0 and 1."""
        checkpoints = self._checkpointer.statistics()
        return {
            "checkpoints": checkpoints.checkpoints_count,
            "checkpoint_age_ms": int(checkpoints.age_s * 1000),
            "checkpoint_held_back": int(checkpoints.held_back_by is not None),
            "partitions_synced": checkpoints.partitions_synced_count,
            "partitions_failed": sum(files.failed is not None for files in self._partitions.storages.values()),
            "disk_full": int(self._space.is_disk_full),
            "disk_full_refusals": self._space.refused_count,
            "partitions_released": self._moves.released_count,
            "partitions_adopted": self._moves.adopted_count,
            "moves_stopped_us": int(self._moves.stopped_s * 1e6),
            "moves_adopting_us": int(self._moves.adopting_s * 1e6),
        }

    # -- life --------------------------------------------------------------------------------------------------------

    async def run_maintenance(self) -> None:
        """Until cancelled: write behind, checkpoint, grow the journal, mend what failed."""
        with self._maintenance:
            async with trio.open_nursery() as nursery:
                for part in (
                    self._write_behind.run, self._space.make_when_low, self._checkpoints.run, self._growth.run,
                    self._mending.run, self._space.serve, self._space.keep_ballast, self._space.look_for_lacking,
                    self._space.take_ahead_together, self._deletions.run, self.cleanings.run,
                ):  # fmt: skip
                    nursery.start_soon(part)

    async def drain(self) -> bool:
        """`drain.drain`."""
        self._in_place_windows.end()
        storages = self._partitions.storages.values
        return await drain(self._plane, self._disk, self.checkpoint, self._maintenance, storages)
