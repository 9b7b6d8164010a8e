"""Bringing a core's partitions back after any kind of stop: plans of `tpc_broker.log.recovery`, carried out.

Duties of `recover_core`, in order:

1. open the journal (or make one), read the checkpoint, scan the journal's chain; damage stops here;
2. finish the installations that were cut short, look through the partition folders and plan;
3. per partition: reset to the checkpoint, cut, or set aside with a reason (offline), or remove (deleted);
4. read the journal once, front to back, and append what the plans name;
5. sync everything, write a checkpoint, and a superblock that begins behind the chain.

Before step 5 is complete the old checkpoint and the whole journal are there, so recovery may be killed anywhere and
run again. A partition that is set aside keeps its files; what the journal still had for it is put beside them
(`salvage-…`), because the journal will be used again.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.files import (
    SNAPSHOT_SUFFIX,
    SPARE_FILE,
    TEMPORARY_SUFFIX,
    parse_segment_file_name,
    partition_folder_name,
)
from tpc_broker.log.in_place import decode_extent
from tpc_broker.log.journal import EntryKind, JournalEntry, JournalScan, WantedRun
from tpc_broker.log.recovery import PartitionPlan, plan_partition, plan_recovery
from tpc_broker.log.seals import SealError
from tpc_broker.log.segment import LogSettings, SegmentIndexes
from tpc_broker.model import LeaderEpoch
from tpc_broker.storage.recovery.checkpoint import (
    JOURNAL_BYTES_MAX_DEFAULT,
    JournalFile,
    capture_and_sync,
    read_checkpoint,
    write_checkpoint,
)
from tpc_broker.storage.recovery.filled_folders import finish_installations, remove_shipments, remove_unfinished
from tpc_broker.storage.recovery.handed_producers import remove_handed
from tpc_broker.storage.recovery.in_place_replay import InPlaceReplay, in_order, kept_position, whole_batch
from tpc_broker.storage.recovery.journal_opening import checked_scan, open_journal
from tpc_broker.storage.recovery.lost_and_found import put_deleted_aside
from tpc_broker.storage.recovery.replayed_runs import append_together
from tpc_broker.storage.recovery.side_by_side import for_each
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import (
    LOST_MARK_FILE,
    OFFLINE_FILE,
    SALVAGE_PREFIX,
    LostMark,
    PartitionListing,
    delete_folder,
    list_partitions,
    lost_folder_name,
    lost_marks,
    name_unsure_folders,
    remove_folder,
    remove_lost_mark,
)
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.segment_swap import finish_swaps
from tpc_broker.storage.segments.segments import Segment, SegmentFolder, make_folder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

COPY_BYTES: Final = 8 * 1024 * 1024
SURPLUS: Final = "its segments may hold what its core's journal has lost"


@dataclass(frozen=True, slots=True)
class OfflinePartition:
    """A partition that could not be opened, and why. Its files are untouched."""

    topic: str
    key: TopicPartition
    reason: str
    checkpoint: PartitionCheckpoint | None = None


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery of one core found and did, for the log."""

    commits_count: int
    entries_count: int
    replayed_bytes: int
    in_place_bytes: int
    """Of these, in batches that were written in place and were found in their segments."""
    trimmed_bytes: int
    """In segments, behind what the checkpoint names; what was acknowledged of it came back from the journal."""
    torn_commits_count: int
    remarks: tuple[str, ...]


@dataclass(slots=True)
class RecoveredCore:
    """A core's storage, ready for use. `scan.next` and `scan.last_run_id` are where the journal's next run goes on."""

    journal_file: JournalFile
    scan: JournalScan
    files: FileCache
    storages: dict[TopicPartition, PartitionStorage]
    offline: dict[TopicPartition, OfflinePartition]
    report: RecoveryReport
    released: dict[TopicPartition, PartitionCheckpoint] = field(default_factory=dict)
    """Partitions that another core has adopted, or may adopt."""
    marked: set[TopicPartition] = field(default_factory=set)
    """Those that were set aside without a folder, and of which this core's journal and checkpoint say nothing: whose
    they are only the metadata tell. As of the start: meanwhile other cores may have removed marks.
    """
    repaired: dict[TopicPartition, PartitionCheckpoint] = field(default_factory=dict)
    """Partitions that were offline, as `repair_partition` has written them."""

    @property
    def kept(self) -> dict[TopicPartition, PartitionCheckpoint]:
        """Checkpoint entries of partitions without a storage here: every later checkpoint has to carry them."""
        offline = {key: one.checkpoint for key, one in self.offline.items() if one.checkpoint is not None}
        return self.released | offline | self.repaired

    async def close(self) -> None:
        """Close files; nothing is written."""
        await self.files.close()
        await self.journal_file.close()


@dataclass(slots=True)
class _Recovery:
    """State of one run of `recover_core`."""

    files: FileCache
    topics: Path
    journals: Path
    journal_file: JournalFile
    settings_of: Callable[[str], LogSettings]
    listings: dict[TopicPartition, PartitionListing]
    storages: dict[TopicPartition, PartitionStorage] = field(default_factory=dict)
    offline: dict[TopicPartition, OfflinePartition] = field(default_factory=dict)
    released: dict[TopicPartition, PartitionCheckpoint] = field(default_factory=dict)
    in_place_writes: dict[TopicPartition, InPlaceReplay] = field(default_factory=dict)
    replayed_bytes: int = 0
    in_place_bytes: int = 0

    @property
    def disk(self) -> Disk:
        return self.files.disk

    async def prepare(self, plan: PartitionPlan) -> None:
        """Steps 1 and 2 of a partition's plan, or setting it aside."""
        listing = self.listings.get(plan.key)
        reason = plan.offline or (listing.offline if listing else None)
        if plan.deleted:
            if listing is not None and listing.folder.problem is None:
                await delete_folder(self.disk, listing.path, str(self.journal_file.superblock.generation))
            elif listing is not None:  # it would block its name for ever: the journal is about to be forgotten
                await self._put_deleted_aside(plan, listing.path, str(listing.folder.problem))
            return
        if plan.is_released and plan.offline is None:
            self.released[plan.key] = plan.start
            return
        if reason is None:
            try:
                await self._open(plan, listing)
            except (BatchDamageError, ValueError) as error:
                reason = f"its segments cannot be read: {error}"
        if reason is not None:
            self.set_aside(plan, reason)

    async def _put_deleted_aside(self, plan: PartitionPlan, path: Path, why: str) -> None:
        data = self.topics.parent
        try:
            target = await put_deleted_aside(self.disk, data, path, plan.start.topic, plan.key, why)
        except OSError as error:
            log.error("%s was deleted, and %s; its files stay in %s: %s", plan.label, why, path, error)
            return
        log.error("%s was deleted, and %s; its files are in %s now: remove them, unless a topic was made again under "
                  "that name and lacks records", plan.label, why, target)  # fmt: skip

    def set_aside(self, plan: PartitionPlan, reason: str) -> None:
        self.storages.pop(plan.key, None)
        checkpoint = None
        if plan.in_checkpoint:  # the journal is about to be forgotten; what the replica has promised is not
            notes = tuple(sorted(plan.notes.items()))
            checkpoint = replace(
                plan.start, leader_epoch=LeaderEpoch(plan.leader_epoch), voted_for=plan.voted_for, notes=notes
            )
        self.offline[plan.key] = OfflinePartition(plan.start.topic, plan.key, reason, checkpoint)

    async def _open(self, plan: PartitionPlan, listing: PartitionListing | None) -> None:
        path = listing.path if listing else self.topics / plan.label
        folder = SegmentFolder(self.files, path)
        if listing is None:
            return  # an empty partition whose folder never became durable; the broker makes it again
        is_overwritten = bool(plan.appends) and plan.cut_offset is None and not plan.in_place_writes
        storage = await open_checkpointed(
            folder, listing, plan.start, self.settings_of(plan.start.topic), cut_offset=plan.cut_offset,
            kept_position=kept_position(plan.start, plan.in_place_writes), is_overwritten=is_overwritten,
            log_start_offset=plan.log_start_offset,
        )  # fmt: skip
        self.in_place_writes[plan.key] = InPlaceReplay(storage, self.journal_file, plan.in_place_writes)
        if plan_changes(plan):
            storage.mark_changed()
        self.storages[plan.key] = storage

    async def replay(self, plans: dict[TopicPartition, PartitionPlan], scan: JournalScan) -> None:
        """Append what the plans name, reading the journal once."""
        targets = [plans[key] for key in self.storages if plans[key].appends]
        wanted = {
            append.run_number: WantedRun(append.from_offset, append.upto_offset, target)
            for target, plan in enumerate(targets)
            for append in plan.appends
            if append.in_place is None
        }
        async with aclosing(self.journal_file.payloads(scan, wanted, len(targets))) as windows:
            async for window in windows:
                by_target: dict[int, list[memoryview]] = {}
                for target, batches in window:
                    by_target.setdefault(target, []).append(batches)
                await self._append_together(targets, by_target)
                await for_each(list(by_target.items()), lambda one: self._append(targets[one[0]], one[1]))
        await for_each([plan for plan in targets if plan.in_place_writes], lambda plan: self._append(plan, []))

    async def _append_together(self, targets: list[PartitionPlan], window: dict[int, list[memoryview]]) -> None:
        """Take out of a window what needs nothing but one write for each partition."""
        runs, numbers = [], {}
        for target, batches in window.items():
            storage = self.storages.get(targets[target].key)
            if storage is not None and len(batches) == 1 and not targets[target].in_place_writes:
                runs.append((storage, batches[0]))
                numbers[storage.key] = target
        left = {storage.key for storage, _batches in await append_together(self.files, runs)}
        for storage, appended in runs:
            if storage.key not in left:
                self.replayed_bytes += len(appended)
                del window[numbers[storage.key]]

    async def _append(self, plan: PartitionPlan, batches: list[memoryview]) -> None:
        """Batches of the journal, and those written in place before them; nothing: all that are left of the latter."""
        self.replayed_bytes += sum(map(len, batches))
        if plan.key not in self.storages:
            return
        in_place_writes = self.in_place_writes[plan.key]
        try:
            for view in batches:
                self.in_place_bytes += await in_place_writes.append(view)
            if not batches:
                self.in_place_bytes += await in_place_writes.bring_in()
        except (BatchDamageError, AssertionError) as error:
            self.set_aside(plan, f"its journal entries cannot be appended: {error}")
        except StorageFailedError as error:
            raise error.__cause__ or error from None

    async def finish(self, plan: PartitionPlan) -> None:
        """Step 4 of a partition's plan."""
        storage = self.storages.get(plan.key)
        if storage is None:
            return
        if storage.written_end_offset != plan.log_end_offset:
            self.set_aside(plan, f"recovery ended at offset {storage.written_end_offset}, not {plan.log_end_offset}")
            return
        storage.log_start_offset = plan.log_start_offset
        storage.leader_epoch, storage.voted_for, storage.notes = plan.leader_epoch, plan.voted_for, plan.notes
        storage.log_state.follow_plan(plan.start.epochs, plan.epochs, plan.log_start_offset)
        for state in (storage, storage.checkpointed):  # what was answered before it was durable may be gone
            state.producers.mark_lost()
        if plan.in_place_writes or storage.active.reserved_end_position > storage.active.size_bytes:
            await storage.folder.shorten(storage.active)

    async def _whole_in_place(
        self, one: OfflinePartition, folder: SegmentFolder, scan: JournalScan
    ) -> list[memoryview]:
        """The batches written in place that can be read."""
        batches = []
        for entry in scan.entries:
            if entry.partition == one.key and entry.kind == EntryKind.IN_PLACE:
                batch = await whole_batch(folder, self.journal_file, entry)
                if batch is not None:
                    batches.append(batch)
        return batches

    async def salvage(self, one: OfflinePartition, scan: JournalScan) -> None:
        """Keep what the journal has for an offline partition beside its files, and mark it."""
        listing = self.listings.get(one.key)
        path = listing.path if listing else self.journals / lost_folder_name(one.key)
        if listing is None:
            await make_folder(self.disk, path)
        folder = SegmentFolder(self.files, path)
        name = f"{SALVAGE_PREFIX}{self.journal_file.superblock.generation}"
        position, in_place_writes = 0, await self._whole_in_place(one, folder, scan)
        wanted = {
            entry.number: WantedRun(entry.offset, entry.argument, 0)
            for entry in scan.entries
            if entry.partition == one.key and entry.kind == EntryKind.APPEND
        }
        async with aclosing(self.journal_file.payloads(scan, wanted, 1)) as windows:
            async for window in windows:
                for _target, batches in window:
                    for part in in_order(batches, in_place_writes):
                        await folder.write(name, [part], position)
                        position += len(part)
        for batch in in_place_writes:
            await folder.write(name, [batch], position)
            position += len(batch)
        if listing is None:
            mark = LostMark("" if one.checkpoint is None else one.topic, one.reason)
            await folder.write_file(LOST_MARK_FILE, mark.encode())
        elif listing.offline is None:  # one that cannot be read may not be written either
            await folder.write_file(OFFLINE_FILE, one.reason.encode())
        for written in sorted(folder.written_names()):
            await self.files.sync(path / written)
        await self.disk.fsync_directory(path)
        await self.disk.fsync_directory(path.parent)
        await folder.close()


def plan_changes(plan: PartitionPlan) -> bool:
    """Whether carrying a plan out changes what a checkpoint would say."""
    start = plan.start
    return bool(
        not plan.in_checkpoint
        or plan.appends
        or plan.cut_offset is not None
        or plan.trimmed_bytes
        or plan.log_start_offset != start.log_start_offset
        or plan.leader_epoch != start.leader_epoch
        or plan.voted_for != start.voted_for
        or plan.epochs != start.epochs
    )


async def open_checkpointed(
    folder: SegmentFolder,
    listing: PartitionListing,
    state: PartitionCheckpoint,
    settings: LogSettings,
    *,
    cut_offset: int | None = None,
    kept_position: int = 0,
    is_overwritten: bool = False,
    log_start_offset: int = -1,
) -> PartitionStorage:
    """A partition exactly as a checkpoint says: what its files hold behind that is removed; then cut, when it was cut.

    `kept_position`: up to there the active segment's file is left alone, for the batches in it written in place.
    `is_overwritten`: the journal's batches are about to be appended, mostly as far as the file goes, so what is behind
    the checkpoint's end stays until then, as reserved space; what is left of it then is to be cut
    (`SegmentFolder.shorten`).

    `log_start_offset`: where the journal has moved the log's start to; segments below it may have gone.

    Swaps of cleaned segments that were cut short are finished first.

    Where the checkpointed segment is shorter than it should be (the planner has found that nothing of it is needed, or
    that it was cut), the segment is taken as it is, or begun anew at the checkpoint's end.
    """
    base = state.segment_base
    listing = await finish_swaps(folder, listing, base, max(state.log_start_offset, log_start_offset))
    for name in sorted(listing.names):
        parsed = parse_segment_file_name(name)
        if (parsed and parsed[0] > base) or name == SPARE_FILE or name.endswith((TEMPORARY_SUFFIX, ".deleted")):
            await folder.remove(name)
    segments = [
        Segment(one.base_offset, one.size_bytes, seal=listing.seals.get(one.base_offset))
        for one in listing.segments
        if one.base_offset < base
    ]
    held = next((one.size_bytes for one in listing.segments if one.base_offset == base), None)
    if state.segment_position == 0 or held is None:
        active = Segment(base if state.segment_position == 0 else state.log_end_offset)
        active.indexes = SegmentIndexes(active.base_offset, settings.index_interval_bytes)
        for name in active.file_names:
            if is_overwritten and name == active.log_name:
                active.reserved_end_position = held or 0
            elif name in listing.names and not name.endswith(SNAPSHOT_SUFFIX):
                await folder.remove(name)
    else:
        active = Segment(base, min(held, state.segment_position))
        if cut_offset is None:
            active.size_bytes = held
            await _open_active(
                folder, listing, active, state, settings, kept_position=kept_position, is_overwritten=is_overwritten
            )
    storage = PartitionStorage(folder, state, [*segments, active], settings)
    if cut_offset is not None:
        await storage.truncate(cut_offset, trust_indexes=False)
    storage.mark_checkpointed(state)
    return storage


async def _open_active(
    folder: SegmentFolder,
    listing: PartitionListing,
    active: Segment,
    state: PartitionCheckpoint,
    settings: LogSettings,
    *,
    kept_position: int,
    is_overwritten: bool,
) -> None:
    """Cut the active segment at its checkpointed position and load its indexes; wrong ones are made again."""
    recorded = [state.index_bytes, state.time_index_bytes, state.transaction_index_bytes]
    surplus = [
        name for name, size in zip(active.file_names[1:4], recorded, strict=True) if name in listing.names and not size
    ]
    if is_overwritten and active.size_bytes > state.segment_position and not surplus:
        active.size_bytes, active.reserved_end_position = state.segment_position, active.size_bytes
    if active.size_bytes > state.segment_position or surplus:
        position = min(state.segment_position, active.size_bytes)
        await folder.cut(active, position, recorded, surplus, min(kept_position, active.size_bytes))
    active.flushed_bytes = recorded
    if not any(recorded):
        active.indexes = SegmentIndexes(active.base_offset, settings.index_interval_bytes)
    else:
        for name, size in zip(active.file_names[1:4], recorded, strict=True):
            if size and name in listing.names:
                async with folder.use(name) as file:
                    await folder.disk.truncate(file.fd, size)
        active.indexes = await folder.load_indexes(active, state.log_end_offset, settings.index_interval_bytes)
    active.indexes.resume(state.largest_timestamp, state.largest_timestamp_offset, state.first_timestamp)


# Rule: Nothing acknowledged is lost by `kill -9`, and nothing is invented. Held by tests/durability/test_kill.py.
async def recover_core(
    disk: Disk,
    data: Path,
    core: CoreId,
    *,
    new_journal_id: bytes,
    settings_of: Callable[[str], LogSettings] = lambda _topic: LogSettings(),
    journal_bytes_max: int = JOURNAL_BYTES_MAX_DEFAULT,
    journals_count: int = 1,
    accept_damage: bool = False,
    lock: Callable[[int], Awaitable[None]] | None = None,
) -> RecoveredCore:
    """Recover one core's journal into segments, down to a checkpoint with nothing behind it.

    `lock` is called with the journal's descriptor before anything is read. JournalDamagedError, JournalUnreadableError,
    CheckpointError: the whole core cannot start. OSError: the disk. What was opened is closed then.
    """
    journals, topics = data / "journals", data / "topics"
    await for_each([journals, topics], partial(make_folder, disk))
    create = partial(
        JournalFile.create, disk, journals, core, journal_id=new_journal_id, bytes_max=journal_bytes_max,
        journals_count=journals_count,
    )  # fmt: skip
    if accept_damage:
        generation, _checkpoints = await read_checkpoint(disk, journals, core)
        create = partial(create, checkpoint_generation=generation)
    journal_file = await open_journal(disk, journals, core, create, lock, accept_damage=accept_damage)
    files = FileCache(disk)
    try:
        recovered, generation = await _recover(data, journal_file, files, settings_of, accept_damage=accept_damage)
    except BaseException:
        await files.close()
        await journal_file.close()
        raise
    if recovered.scan.damage is not None:
        await _begin_anew(recovered, partial(create, checkpoint_generation=generation + 1))
    return recovered


async def _begin_anew(recovered: RecoveredCore, create: Callable[[], Awaitable[JournalFile]]) -> None:
    """Another journal in the place of one that is damaged."""
    await recovered.journal_file.close()
    try:
        recovered.journal_file = await create()
    except BaseException:
        await recovered.files.close()
        raise
    try:
        recovered.scan = await recovered.journal_file.scan()
    except BaseException:
        await recovered.close()
        raise


async def _recover(
    data: Path,
    journal_file: JournalFile,
    files: FileCache,
    settings_of: Callable[[str], LogSettings],
    *,
    accept_damage: bool,
) -> tuple[RecoveredCore, int]:
    """What `recover_core` does with the journal that it has opened, and the generation of the checkpoint."""
    disk, core, journals, topics = journal_file.disk, journal_file.core, data / "journals", data / "topics"
    # Rule: Names that a start finds are made durable: whoever made them may have ended before, and with the journal's
    # name all in it would go. Held by tests/storage/test_core_recovery.py, tests/simulator/test_core.py.
    await for_each([data, journals, topics], disk.fsync_directory)
    generation, checkpoints = await read_checkpoint(disk, journals, core)  # behind the lock
    scan = await checked_scan(journal_file, generation, accept_damage=accept_damage)
    generation = max(generation, journal_file.superblock.checkpoint_generation)
    await finish_installations(disk, data, scan.entries, str(journal_file.superblock.generation))
    listings = await list_partitions(disk, topics, checkpoints.values())
    plan = plan_recovery({key: listing.folder for key, listing in listings.items()}, checkpoints, scan.entries)
    for one in plan.partitions.values():
        if accept_damage and one.trimmed_bytes and not one.deleted:
            one.offline = one.offline or SURPLUS
    await name_unsure_folders(disk, topics, plan.partitions.values())
    marked = await _obey_marks(disk, data, plan.partitions, listings)
    work = _Recovery(files, topics, journals, journal_file, settings_of, listings)
    await for_each(list(plan.partitions.values()), work.prepare)
    await work.replay(plan.partitions, scan)
    for one in plan.partitions.values():
        await work.finish(one)
    for offline in work.offline.values():
        await work.salvage(offline, scan)
    report = RecoveryReport(
        scan.commits_count, scan.entries_count, work.replayed_bytes + work.in_place_bytes, work.in_place_bytes,
        sum(one.trimmed_bytes for one in plan.partitions.values()), scan.torn_commits_count, plan.remarks,
    )  # fmt: skip
    recovered = RecoveredCore(
        journal_file, scan, work.files, work.storages, work.offline, report, work.released, marked
    )
    await _finish_core(recovered, checkpoints, generation)
    await remove_unfinished(disk, data, core)
    await remove_shipments(disk, data, core)
    await remove_handed(disk, journals, core)
    return recovered, generation


async def _obey_marks(
    disk: Disk,
    data: Path,
    plans: Mapping[TopicPartition, PartitionPlan],
    listings: Mapping[TopicPartition, PartitionListing],
) -> set[TopicPartition]:
    """What was set aside without a folder stays so when it has one again, but for one that holds all of it
    (`LostMark.counts_for`). The marks of which no plan is left.
    """
    journals = data / "journals"
    marks = await lost_marks(disk, journals)
    for key in plans.keys() & marks.keys():
        plan, mark = plans[key], marks.pop(key)
        if plan.deleted:
            await remove_folder(disk, journals / lost_folder_name(key))
        elif plan.is_released:
            continue
        elif mark.counts_for(listings.get(key)):
            plan.offline = plan.offline or mark.reason
        else:
            await remove_lost_mark(disk, data, key)
    return set(marks)


async def _finish_core(
    recovered: RecoveredCore, checkpoints: dict[TopicPartition, PartitionCheckpoint], generation: int
) -> None:
    """Step 5. Without anything new only the clean mark is taken off.

    The files with leader epochs, which nobody needs before the new epochs that each partition begins now, are left to
    the first checkpoint after the start.
    """
    file, scan = recovered.journal_file, recovered.scan
    changed = [storage for storage in recovered.storages.values() if storage.changed]
    named = set(recovered.storages) | set(recovered.kept)
    if changed or scan.commits_count or named != set(checkpoints):
        states = {storage.key: storage.checkpointed for storage in recovered.storages.values()}
        try:
            states.update(await capture_and_sync(file, changed))
        except StorageFailedError as error:
            raise error.__cause__ or error from None
        generation += 1
        kept = [*states.values(), *recovered.kept.values()]
        await write_checkpoint(file.disk, file.folder, file.core, generation, kept)
        for storage in changed:
            storage.mark_checkpointed(states[storage.key])
    await file.update_superblock(
        replay_block=scan.next.block,
        replay_sequence=scan.next.sequence,
        replay_previous_crc=scan.next.previous_crc,
        checkpoint_generation=generation,
        clean=False,
    )


async def set_aside(recovered: RecoveredCore, data: Path, offline: OfflinePartition) -> None:
    """Put what the journal has now of a partition that failed beside its files, and mark it, durably. Not while a
    checkpoint runs. OSError; StorageFailedError: it has no folder that could be marked.
    """
    journal_file, topics = recovered.journal_file, data / "topics"
    path = topics / partition_folder_name(offline.topic, offline.key.partition)
    listing = await PartitionListing.read(recovered.files.disk, path)
    if listing is None or listing.folder.partition != offline.key:
        raise StorageFailedError(f"{path} is not its folder any more")
    work = _Recovery(
        recovered.files, topics, journal_file.folder, journal_file, lambda _topic: LogSettings(), {offline.key: listing}
    )
    await work.salvage(offline, await journal_file.scan())


async def rewrite_partition(
    storage: PartitionStorage, journal_file: JournalFile, scan: JournalScan, written_offset: int = 0
) -> None:
    """After a failed write or sync: put the segments behind the last checkpoint into new files, from the journal.

    The checkpointed beginning of the active segment is copied, because only the old file's pages behind it are in
    doubt; after a write that merely found no space none is, and the file is cut instead. Raises OSError or
    StorageFailedError when that fails too; then the partition stays failed.

    What was changing the files when they failed (retention's roll, a swap) ends first: it goes by the segments of
    before, and would publish them, and a file that is gone, among the new ones. What waits its turn is refused, or
    finds these.

    `scan`: what the journal holds, taken since the failure. `written_offset`: what the data plane takes for written; an
    attempt that failed half-way has come less far.
    """
    folder = storage.folder
    own = [entry for entry in scan.entries if entry.partition == storage.key]
    in_place_writes = [entry for entry in own if entry.kind == EntryKind.IN_PLACE]
    async with storage.locked(beside_swaps=False):
        state, end_offset = storage.checkpointed, max(storage.written_end_offset, written_offset)
        if storage.life.pages_in_doubt:
            await _copy_active(folder, state, in_place_writes)
        listing = await PartitionListing.read(folder.disk, folder.path)
        if listing is None:
            raise StorageFailedError(f"{folder.path} is not its folder any more")
        plan = plan_partition(listing.folder, state, storage.topic, storage.key, own)
        if plan.offline is not None:
            raise StorageFailedError(f"{plan.label}: {plan.offline}")
        try:
            fresh = await open_checkpointed(
                folder, listing, state, storage.settings, cut_offset=plan.cut_offset,
                kept_position=kept_position(state, plan.in_place_writes), log_start_offset=plan.log_start_offset,
            )  # fmt: skip
        except SealError as error:
            raise StorageFailedError(f"{plan.label}: {error}") from error
        storage.take_over(fresh)
    replay = InPlaceReplay(storage, journal_file, [one for one in plan.in_place_writes if one.argument <= end_offset])
    storage.rolls.hold_until(max((one.argument for one in plan.in_place_writes), default=-1))
    wanted = {
        append.run_number: WantedRun(append.from_offset, min(append.upto_offset, end_offset), 0)
        for append in plan.appends
        if append.in_place is None
    }
    try:
        async with aclosing(journal_file.payloads(scan, wanted, 1)) as windows:
            async for window in windows:
                for _target, batches in window:
                    await replay.append(batches)
        await replay.bring_in()
    except BaseException as error:
        storage.fail(f"it could not be written anew: {error}")
        raise
    if storage.written_end_offset < min(end_offset, plan.log_end_offset):
        storage.fail(f"its journal entries end at {storage.written_end_offset}, not {plan.log_end_offset}")
        raise StorageFailedError(storage.failed)
    storage.life.end_rewrite()


async def _copy_active(folder: SegmentFolder, state: PartitionCheckpoint, in_place_writes: list[JournalEntry]) -> None:
    """A new file for the checkpointed part of the active segment, and for the batches behind it written in place
    (no page of the cache had them), durable, under the old name.

    A file that is missing or shorter was cut or retained away since; the planner judges whether that can be.
    """
    name = Segment(state.segment_base).log_name
    try:
        held = (await folder.disk.stat(folder.path / name)).size_bytes
    except FileNotFoundError:
        return
    copy, end = name + TEMPORARY_SUFFIX, min(held, state.segment_position)
    await folder.write_file(copy, b"")
    async with folder.use(name) as source:
        for position in range(0, end, COPY_BYTES):
            data = await folder.disk.read(source.fd, min(COPY_BYTES, end - position), position)
            await folder.write(copy, [data], position)
        for begin, last in (decode_extent(entry.payload).blocks for entry in in_place_writes):
            await folder.write(copy, [await folder.disk.read(source.fd, last - begin, begin)], begin)
    await folder.files.sync(folder.path / copy)
    await folder.files.forget(folder.path / name)
    await folder.rename(copy, name)
    await folder.disk.fsync_directory(folder.path)
