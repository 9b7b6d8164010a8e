"""Bringing an offline partition back with everything of it that can still be read. Only while no core runs.

`survey` finds out, reading only, which stretches of which files are sound, and says what a repair comes to: nothing
that can be read is dropped, and the log never ends below where it ended before: no offset is given out twice.
`repair_partition` carries that out, in this order:

1. files that are about to be replaced are copied to `lost+found`, durably;
2. segments with damage are written anew from their sound stretches and from what the journal still had (`salvage-…`);
   segments without stay as they are; what the journal had beyond them becomes a segment of its own;
3. a lost end is taken by a batch without records; indexes are made anew, and all of it is synced;
4. the core's checkpoint is written with the new state; 5. the `offline` marker goes, in its folder or beside the
journals.

Until step 5 the partition stays offline, and doing it again gives the same. What is lost is said in offsets: the log
has holes there. The leader epoch rises at the next opening, so clients learn where the old log ended.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header, empty_batch, walk_headers
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import (
    LOG_SUFFIX,
    LOSSES_FILE,
    PARTITION_METADATA_FILE,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    decode_losses,
    encode_losses,
    encode_partition_metadata,
    parse_segment_file_name,
    partition_folder_name,
)
from tpc_broker.log.journal import EntryKind
from tpc_broker.log.segment import AppendWalk, LogSettings, SegmentIndexes, WalkStop
from tpc_broker.log.state import LogState
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.storage.recovery.checkpoint import read_checkpoint, write_checkpoint
from tpc_broker.storage.recovery.in_place_replay import whole_batch
from tpc_broker.storage.recovery.lost_and_found import LOST_FOLDER, lost_name
from tpc_broker.storage.recovery.recovery import COPY_BYTES
from tpc_broker.storage.recovery.sealed_repair import (
    doubt_of,
    doubtful,
    finish_all_swaps,
    read_view,
    sealed_segments,
    waiting,
    write_fresh_seal,
)
from tpc_broker.storage.segments.batch_ranges import missing
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import (
    OFFLINE_FILE,
    SALVAGE_PREFIX,
    lost_folder_name,
    metadata_refused,
    remove_lost_mark,
)
from tpc_broker.storage.segments.readable_runs import OFFSETS_PER_SEGMENT, readable_runs
from tpc_broker.storage.segments.segments import Segment, SegmentFolder, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from tpc_broker.log.folder_view import FolderView
    from tpc_broker.log.journal import JournalEntry
    from tpc_broker.log.seals import Seal
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.checkpoint import JournalFile
    from tpc_broker.storage.recovery.recovery import OfflinePartition, RecoveredCore
    from tpc_broker.storage.recovery.sealed_repair import Doubt, SealedSegment
    from tpc_broker.storage.segments.folders import PartitionListing
    from tpc_broker.storage.segments.readable_runs import Run

_WHOLE: Final = LogSettings(segment_bytes=2**62, segment_ms=2**62, segment_index_bytes=2**40)


BeginGroup: TypeAlias = "Callable[[int, int], bytes]"
"""The note of a term that begins at an offset."""


class Stretch(NamedTuple):
    """Sound batches of a file: bytes [position, end_position), offsets from first_offset on, below end_offset."""

    path: Path
    position: int
    end_position: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Salvage:
    """A file with batches that the journal still had when the partition went offline."""

    path: Path
    size_bytes: int
    first_offset: int
    end_offset: int


class PlannedSegment(NamedTuple):
    """A segment as the repaired log has it. `parts` None: its file stays as it is. `seal`: of one that was cleaned; it
    gets a fresh one with a new file.
    """

    base_offset: int
    parts: tuple[Stretch, ...] | None
    seal: Seal | None = None


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What a repair does; see the module."""

    label: str
    log_start_offset: int
    log_end_offset: int
    segments: tuple[PlannedSegment, ...]
    filled: tuple[int, int] | None
    """The lost end, which gets a batch without records: readers that stand in front of it go on."""
    replaced: tuple[str, ...]
    """Files of the folder that get another content or go: copied to `lost+found` before."""
    salvaged_count: int
    """Offsets that come from the journal."""
    lost: tuple[tuple[int, int], ...]
    """Half-open ranges of offsets that are gone, or may be."""
    doubts: tuple[Doubt, ...] = ()
    """Damaged segments that were cleaned: what of them is lost, and what was cleaned away, nobody knows."""


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `repair_partition` did. The log holds [log_start_offset, log_end_offset) now, except for `lost`."""

    label: str
    log_start_offset: int
    log_end_offset: int
    salvaged_count: int
    lost: tuple[tuple[int, int], ...]
    kept: str | None
    """Where the files are now that were replaced."""
    doubts: tuple[Doubt, ...] = ()
    """As of the plan."""


# -- looking -----------------------------------------------------------------------------------------------------------


async def journalled_ranges(
    journal_file: JournalFile, path: Path, entries: Iterable[JournalEntry]
) -> tuple[tuple[int, int], ...]:
    """Ranges of offsets, [first, end), that the next recovery will put beside a partition that is offline, whose folder
    is `path`. Read only.

    A batch that was written in place is in its segment and nowhere else: one that is not whole there is not counted.
    """
    files = FileCache(journal_file.disk)
    folder, found = SegmentFolder(files, path), []
    try:
        for entry in entries:
            is_there = entry.kind == EntryKind.APPEND or (
                entry.kind == EntryKind.IN_PLACE and await whole_batch(folder, journal_file, entry) is not None
            )
            if is_there:
                found.append((entry.offset, entry.argument))
    finally:
        await files.close()
    return tuple(found)


async def survey(
    disk: Disk,
    data: Path,
    offline: OfflinePartition,
    listing: PartitionListing | None,
    journalled: Sequence[tuple[int, int]] = (),
) -> RepairPlan:
    """What a repair would do. Read only.

    `journalled`: ranges of offsets that a journal holds and the next recovery will put beside the partition.
    """
    key, state = offline.key, offline.checkpoint
    label = partition_folder_name(offline.topic, key.partition)
    path = listing.path if listing else data / "topics" / label
    names = listing.names if listing else frozenset()
    view, problems = await read_view(disk, path, names)
    sealed = await sealed_segments(disk, path, names, (view, problems), state.log_end_offset if state else 0)
    files, claimed = await _segment_stretches(disk, path, view, listing)
    claimed += [one.seal.end_offset for one in sealed.values()]
    sizes = {one.base_offset: (await disk.stat(path / one.log_name)).size_bytes for one in view.segments}
    covered = _Covered()
    for base, stretches in files.items():
        await covered.take_rising(disk, stretches)
        if base in sealed:  # no journal may bring back what was cleaned away
            covered.add(base, sealed[base].seal.end_offset)
    extra: list[Stretch] = []
    for salvage in reversed(await list_salvage(disk, data, key, path)):
        found = [_stretch(salvage.path, run) async for run in readable_runs(disk, salvage.path)]
        for stretch in reversed(found):
            extra += await covered.take_missing(disk, stretch)
    journal = data / "journals"
    for first, end in journalled:
        extra += [Stretch(journal, 0, 0, *hole) for hole in covered.missing_of(first, end)]
        covered.add(first, end)
    extra.sort(key=lambda one: one.first_offset)
    old_end = max([state.log_end_offset if state else 0, *claimed, *(end for _first, end in covered.ranges)], default=0)
    first = min((first for first, _end in covered.ranges), default=old_end)
    old_start = state.log_start_offset if state else first
    log_start = min(max(old_start, first), old_end)
    is_wrong = listing is not None and listing.folder.problem is not None and PARTITION_METADATA_FILE in listing.names
    problem = [*([PARTITION_METADATA_FILE] if is_wrong else []), *sorted(waiting(names, problems))]
    planned, replaced = _plan_segments(files, covered.kept, extra, sizes, sealed)
    salvaged = sum(min(one.end_offset, old_end) - max(one.first_offset, 0) for one in extra)
    readable_end = max((end for _first, end in covered.ranges), default=old_end)
    filled = (readable_end, old_end) if 0 < old_end - readable_end < OFFSETS_PER_SEGMENT else None
    known = sorted(await _known_losses(disk, path))
    in_doubt, doubts = _doubts(files, sizes, sealed)
    holes = sorted([(old_start, log_start), *covered.holes(log_start, old_end), *in_doubt])
    lost = [left for first, end in holes for left in missing(first, end, known)]
    return RepairPlan(
        label, log_start, old_end, tuple(planned), filled, (*problem, *replaced), salvaged,
        tuple(gap for gap in lost if gap[0] < gap[1]), doubts,
    )  # fmt: skip


def _doubts(
    files: dict[int, list[Stretch]], sizes: dict[int, int], sealed: dict[int, SealedSegment]
) -> tuple[list[tuple[int, int]], tuple[Doubt, ...]]:
    """Of damaged segments that were cleaned: ranges of offsets of which records may be lost, and what is told."""
    ranges, doubts = [], []
    for base, segment in sealed.items():
        if segment.problem is not None and not segment.is_log_sound:
            found = doubtful(segment, [one[1:] for one in files[base]], sizes[base])
            ranges += found
            doubts.append(doubt_of(segment, found))
    return ranges, tuple(doubts)


async def _known_losses(disk: Disk, path: Path) -> list[tuple[int, int]]:
    """What earlier repairs could not bring back."""
    [contents] = await disk.read_folders([path], (LOSSES_FILE,))
    if contents is None:
        return []
    for error in contents.unreadable.values():
        raise error
    return decode_losses(contents.small_files.get(LOSSES_FILE, b""))


def _stretch(path: Path, run: Run) -> Stretch:
    return Stretch(path, run.position, run.position + len(run.data), run.first_offset, run.end_offset)


async def _segment_stretches(
    disk: Disk, path: Path, view: FolderView, listing: PartitionListing | None
) -> tuple[dict[int, list[Stretch]], list[int]]:
    """The sound stretches of each segment, by base offset, and offsets that the log certainly reached."""
    files: dict[int, list[Stretch]] = {}
    claimed = []
    for name in listing.names if listing else ():
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed[1] in (LOG_SUFFIX, SNAPSHOT_SUFFIX):
            claimed.append(int(parsed[0]))
    for one in view.segments:
        file = path / one.log_name
        async with aclosing(readable_runs(disk, file, one.base_offset)) as runs:
            files[one.base_offset] = [_stretch(file, run) async for run in runs]
        stretches = files[one.base_offset] or [Stretch(file, 0, 0, one.base_offset, one.base_offset)]
        claimed += [await _claimed_end(disk, file, stretch) for stretch in stretches]
    return files, claimed


async def _claimed_end(disk: Disk, path: Path, stretch: Stretch) -> int:
    """Where the damaged batch behind a stretch says that it ends, if what it says fits."""
    fd = await disk.open(path, 0)
    try:
        data = await disk.read(fd, BATCH_HEADER_BYTES, stretch.end_position)
    finally:
        await disk.close(fd)
    try:
        header = decode_header(data) if len(data) == BATCH_HEADER_BYTES else None
    except BatchDamageError:
        return stretch.end_offset
    fits = header is not None and header.base_offset == stretch.end_offset
    if header is None or not fits or header.records_count != header.last_offset_delta + 1:
        return stretch.end_offset
    return header.next_offset


class _Covered:
    """Offsets that some stretch holds."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        """Rising, apart from each other."""
        self.kept: dict[Path, list[Stretch]] = {}

    def add(self, first: int, end: int) -> None:
        before = [one for one in self.ranges if one[1] < first]
        behind = [one for one in self.ranges if one[0] > end]
        touched = [one for one in self.ranges if one[1] >= first and one[0] <= end]
        merged = (min([first, *(one[0] for one in touched)]), max([end, *(one[1] for one in touched)]))
        self.ranges = [*before, merged, *behind]

    def missing_of(self, first: int, end: int) -> list[tuple[int, int]]:
        return list(self.holes(first, end)) if first < end else []

    def holes(self, first: int, end: int) -> Iterable[tuple[int, int]]:
        for begin, upto in self.ranges:
            if begin >= end:
                break
            if first < begin:
                yield first, begin
            first = max(first, upto)
        if first < end:
            yield first, end

    async def take_rising(self, disk: Disk, stretches: list[Stretch]) -> None:
        """The stretches of a segment, behind those of the segments before it."""
        for stretch in stretches:
            self.kept.setdefault(stretch.path, []).extend(await self.take_missing(disk, stretch))

    async def take_missing(self, disk: Disk, stretch: Stretch) -> list[Stretch]:
        """The parts of a stretch whose offsets nothing else holds."""
        taken = []
        for hole in self.missing_of(stretch.first_offset, stretch.end_offset):
            part = stretch if hole == (stretch.first_offset, stretch.end_offset) else await _part(disk, stretch, *hole)
            if part is not None:
                taken.append(part)
        for part in taken:
            self.add(part.first_offset, part.end_offset)
        return taken


async def _part(disk: Disk, stretch: Stretch, first: int, end: int) -> Stretch | None:
    """The batches of a stretch that lie wholly in [first, end)."""
    fd = await disk.open(stretch.path, 0)
    try:
        data = await disk.read(fd, stretch.end_position - stretch.position, stretch.position)
    finally:
        await disk.close(fd)
    inside = [
        (header, stretch.position + at)
        for header, at in walk_headers(data)
        if header.base_offset >= first and header.next_offset <= end
    ]
    if not inside:
        return None
    (head, position), (last, place) = inside[0], inside[-1]
    return Stretch(stretch.path, position, place + last.size_bytes, head.base_offset, last.next_offset)


def _plan_segments(
    files: dict[int, list[Stretch]],
    kept: dict[Path, list[Stretch]],
    extra: list[Stretch],
    sizes: dict[int, int],
    sealed: dict[int, SealedSegment],
) -> tuple[list[PlannedSegment], list[str]]:
    """The repaired log's segments, and the files that are replaced or go."""
    bases = sorted(base for base, size in sizes.items() if size or base in sealed)
    planned: list[PlannedSegment] = []
    replaced: list[str] = []
    in_front = [one for one in extra if not bases or one.first_offset < bases[0]]
    if in_front:
        planned.append(PlannedSegment(in_front[0].first_offset, tuple(in_front)))
    for base, behind in zip(bases, [*bases, 2**63][1:], strict=True):
        found = files[base]
        own = kept.get(found[0].path, []) if found else []
        more = [one for one in extra if base <= one.first_offset < behind]
        if base in sealed:
            seal, problem = sealed[base].seal, sealed[base].problem
            planned.append(PlannedSegment(base, None if problem is None else tuple(own), seal))
            planned += [PlannedSegment(more[0].first_offset, tuple(more))] if more else []
            replaced += [Segment(base).log_name] * (problem is not None)
            continue
        is_whole = bool(own) and own == found and _covers(own, sizes[base])
        if is_whole and not (more and more[0].first_offset < own[-1].end_offset):
            planned.append(PlannedSegment(base, None))
            if more:
                planned.append(PlannedSegment(more[0].first_offset, tuple(more)))
            continue
        replaced.append(Segment(base).log_name)
        parts = sorted([*own, *more], key=lambda one: one.first_offset)
        if parts:
            planned.append(PlannedSegment(base, tuple(parts)))
    return planned, replaced


def _covers(stretches: list[Stretch], size_bytes: int) -> bool:
    place = 0
    for one in stretches:
        if one.position != place:
            return False
        place = one.end_position
    return place == size_bytes


async def list_salvage(disk: Disk, data: Path, key: TopicPartition, path: Path) -> list[Salvage]:
    """A partition's salvage files, oldest first; those of a partition without folder lie beside the journals."""
    found = []
    for place in (data / "journals" / lost_folder_name(key), path):
        try:
            names = await disk.listdir(place)
        except FileNotFoundError:
            continue
        for name in sorted(names, key=lambda name: (len(name), name)):
            if not name.startswith(SALVAGE_PREFIX):
                continue
            first, end, size = -1, -1, (await disk.stat(place / name)).size_bytes
            async with aclosing(readable_runs(disk, place / name)) as runs:
                async for run in runs:
                    first = run.first_offset if first < 0 else min(first, run.first_offset)
                    end = max(end, run.end_offset)
            found.append(Salvage(place / name, size, first, end))
    return found


# -- doing -------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Log:
    """The repaired log as far as it was read again: its state, and the last segment's indexes."""

    end_offset: int = 0
    state: LogState = field(default_factory=LogState)
    indexes: SegmentIndexes = field(default_factory=lambda: SegmentIndexes(0, LogSettings().index_interval_bytes))
    segment: Segment = field(default_factory=lambda: Segment(0))

    def begin_segment(self, base_offset: int) -> None:
        self.indexes = SegmentIndexes(base_offset, LogSettings().index_interval_bytes)
        self.segment = Segment(base_offset, indexes=self.indexes)
        self.end_offset = base_offset

    def take(self, batches: memoryview) -> None:
        """Whole sound batches."""
        walk = AppendWalk(batches, _WHOLE, self.end_offset, self.state)
        walk.use(self.indexes, self.segment.size_bytes)
        while (stop := walk.step()) is not WalkStop.END:
            if stop is WalkStop.ROLL:
                walk.lift_limits()
            else:
                walk.take_stop(stop)
        self.state.settle(walk.next_offset)  # what is found counts as committed
        self.segment.size_bytes, self.end_offset = walk.position, walk.next_offset


# Rule: A repair drops nothing that can be read, gives no offset out twice, and keeps what it replaces. See also
# tpc_broker/storage/segments/readable_runs.py, tpc_broker/storage/recovery/sealed_repair.py. Held by
# tests/storage/test_repair.py, tests/storage/test_repair_cleaned.py, tests/durability/test_repair.py.
async def repair_partition(
    recovered: RecoveredCore,
    offline: OfflinePartition,
    data: Path,
    listing: PartitionListing | None,
    begin_group: BeginGroup | None = None,
) -> RepairReport:
    """Bring one partition of a recovered core back; see the module for what it does. OSError: the disk.

    `begin_group`: it has a group, in which it votes alone; this gives the note with which a term begins.
    """
    disk, key = recovered.files.disk, offline.key
    if listing is not None:
        listing = await finish_all_swaps(SegmentFolder(recovered.files, listing.path), listing)
    plan = await survey(disk, data, offline, listing)
    path = listing.path if listing else data / "topics" / plan.label
    kept = await _keep(disk, data, path, offline, plan.replaced)
    folder = SegmentFolder(recovered.files, path)
    if listing is None and (refused := await metadata_refused(disk, path, of_records=True)) is not None:
        raise refused  # its records may be what is missed, or another's: nothing is written over them
    if listing is None:
        await make_folder(disk, path)
    if listing is None or listing.folder.problem is not None:
        await folder.remove(PARTITION_METADATA_FILE)  # its blocks may be what is damaged
        await folder.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(key.topic_id))
    if plan.lost:
        known = decode_losses(await folder.read_file(LOSSES_FILE) or b"")
        await folder.write_file(LOSSES_FILE, encode_losses(sorted({*known, *plan.lost})))
    await _write_segments(folder, plan, offline.checkpoint.segment_base if offline.checkpoint else 0)
    new = await _finish_files(folder, plan, offline, begin_group)
    await _write_checkpoint(recovered, new)
    recovered.offline.pop(key, None)
    recovered.repaired[key] = new
    if listing is not None and listing.offline is not None:
        await disk.unlink(path / OFFLINE_FILE)
    await remove_lost_mark(disk, data, key)
    await disk.fsync_directory(path)
    return RepairReport(
        plan.label, plan.log_start_offset, plan.log_end_offset, plan.salvaged_count, plan.lost,
        None if kept is None else str(kept), plan.doubts,
    )  # fmt: skip


async def _keep(disk: Disk, data: Path, path: Path, offline: OfflinePartition, names: Sequence[str]) -> Path | None:
    """Step 1."""
    if not names:
        return None
    lost = data / LOST_FOLDER
    if await make_folder(disk, lost):
        await disk.fsync_directory(data)
    there, number = set(await disk.listdir(lost)), 1
    while (target := lost / f"{lost_name(offline.topic, offline.key)}.repaired-{number}").name in there:
        number += 1
    await make_folder(disk, target)
    for name in names:
        await _copy(disk, [_whole(path / name, (await disk.stat(path / name)).size_bytes)], target / name)
    await disk.fsync_directory(target)
    await disk.fsync_directory(lost)
    return target


def _whole(path: Path, size_bytes: int) -> Stretch:
    return Stretch(path, 0, size_bytes, 0, 0)


async def _copy(disk: Disk, parts: Sequence[Stretch], target: Path) -> None:
    """Write a file from stretches of others, durably but for its name."""
    out, place = await disk.open(target, os.O_RDWR | os.O_CREAT | os.O_TRUNC), 0
    try:
        for part in parts:
            source = await disk.open(part.path, 0)
            try:
                for position in range(part.position, part.end_position, COPY_BYTES):
                    data = await disk.read(source, min(COPY_BYTES, part.end_position - position), position)
                    await disk.write_at(out, data, place)
                    place += len(data)
            finally:
                await disk.close(source)
        await disk.fdatasync(out)
    finally:
        await disk.close(out)


async def _write_segments(folder: SegmentFolder, plan: RepairPlan, active_base: int) -> None:
    """Step 2. Indexes of what was the active segment end somewhere: they are made anew."""
    for base, parts, seal in plan.segments:
        if parts is None and base >= active_base and seal is None:
            await _remove_indexes(folder, base)
        if parts is not None:
            name = Segment(base).log_name
            await _copy(folder.disk, parts, folder.path / (name + TEMPORARY_SUFFIX))
            await _remove_indexes(folder, base)
            await folder.rename(name + TEMPORARY_SUFFIX, name)
    planned = {one.base_offset for one in plan.segments}
    for name in plan.replaced:
        parsed = parse_segment_file_name(name)
        if parsed is not None and parsed[0] not in planned:
            await _remove_indexes(folder, parsed[0])
            await folder.remove(name)
    await folder.disk.fsync_directory(folder.path)


async def _remove_indexes(folder: SegmentFolder, base_offset: int) -> None:
    for name in Segment(base_offset).file_names[1:4]:
        await folder.remove(name)


async def _finish_files(
    folder: SegmentFolder, plan: RepairPlan, offline: OfflinePartition, begin_group: BeginGroup | None
) -> PartitionCheckpoint:
    """Step 3, and the state that the checkpoint gets."""
    log = _Log()
    log.begin_segment(plan.log_end_offset)
    for number, planned in enumerate(plan.segments):
        batches_count = await _take_segment(folder, log, planned)
        if planned.seal is not None:
            if planned.parts is not None:
                await write_fresh_seal(folder, planned.seal, log.indexes, batches_count)
            log.end_offset = planned.seal.end_offset
        elif number + 1 == len(plan.segments) and log.end_offset == plan.log_end_offset:
            await folder.cut(log.segment, log.segment.size_bytes)
            await folder.flush_indexes(log.segment, sealed=False)
    state = offline.checkpoint or PartitionCheckpoint(offline.key.topic_id, offline.key.partition, offline.topic)
    if plan.filled is not None:
        await _begin_segment(folder, log, plan.filled[0])
        epoch = max(state.leader_epoch, log.state.epochs.latest, 0)
        filler = empty_batch(*plan.filled, epoch)
        await folder.write_file(log.segment.log_name, filler)
        log.take(memoryview(filler))
        await _remove_indexes(folder, log.segment.base_offset)
        await folder.flush_indexes(log.segment, sealed=False)
    ends_cleaned = bool(plan.segments) and plan.segments[-1].seal is not None and plan.filled is None
    if log.end_offset < plan.log_end_offset or not plan.segments or ends_cleaned:  # a cleaned one takes nothing
        await _begin_segment(folder, log, plan.log_end_offset)
        for name in log.segment.file_names[:4]:
            await folder.remove(name)
    log.state.producers.remember(state.producers, plan.log_end_offset)
    whole = LogState(state.epochs, log.state.producers)
    for entry in log.state.epochs.entries:
        whole.begin_epoch(*entry)
    whole.advance_start(plan.log_start_offset)
    leader_epoch = LeaderEpoch(max(state.leader_epoch, log.state.epochs.latest))
    notes: tuple[tuple[int, bytes], ...] = ()
    if begin_group is not None:  # what is there is as if from before the group: its terms may have lost their place
        leader_epoch = LeaderEpoch(max(leader_epoch, 0) + 1)
        whole.begin_epoch(leader_epoch, plan.log_end_offset)
        notes = ((int(leader_epoch), begin_group(leader_epoch, plan.log_end_offset)),)
    await folder.sync(whole.epochs.entries)
    await folder.disk.fsync_directory(folder.path.parent)
    segment, indexes = log.segment, log.indexes
    return PartitionCheckpoint(
        state.topic_id, state.partition, state.topic, Offset(segment.base_offset), segment.size_bytes,
        Offset(plan.log_start_offset), Offset(plan.log_end_offset),
        leader_epoch, state.voted_for,
        indexes.largest_timestamp, indexes.largest_timestamp_offset, indexes.first_timestamp,
        segment.flushed_bytes[0], segment.flushed_bytes[1], segment.flushed_bytes[2], whole.epochs.entries,
        whole.producers, Offset(plan.log_end_offset), notes,
    )  # fmt: skip


async def _begin_segment(folder: SegmentFolder, log: _Log, base_offset: int) -> None:
    """What comes is in the segment that begins there; beside it is who had a transaction open in front of it."""
    log.begin_segment(base_offset)
    await folder.complete_snapshot(base_offset, log.state.producers)


async def _take_segment(folder: SegmentFolder, log: _Log, planned: PlannedSegment) -> int:
    """Read one into the log; how many batches it has."""
    await _begin_segment(folder, log, planned.base_offset)
    count = 0
    async with aclosing(readable_runs(folder.disk, folder.path / log.segment.log_name, planned.base_offset)) as runs:
        async for run in runs:
            log.take(run.data)
            count += sum(1 for _batch in walk_headers(run.data)) if planned.seal is not None else 0
    if planned.seal is not None:
        log.indexes.seal()
        if planned.seal.may_lack_markers:
            log.state.producers.end_transactions(planned.seal.end_offset)
    return count


async def _write_checkpoint(recovered: RecoveredCore, new: PartitionCheckpoint) -> None:
    """Step 4."""
    file = recovered.journal_file
    states = {key: storage.checkpointed for key, storage in recovered.storages.items()} | recovered.kept
    states[new.key] = new
    generation = file.superblock.checkpoint_generation + 1
    await write_checkpoint(file.disk, file.folder, file.core, generation, states.values())
    await file.update_superblock(checkpoint_generation=generation)


async def checkpoints_of(
    disk: Disk, data: Path, cores: list[CoreId]
) -> dict[TopicPartition, tuple[CoreId, PartitionCheckpoint]]:
    """What the checkpoints say of every partition, and whose it is."""
    found = {}
    for core in cores:
        _generation, partitions = await read_checkpoint(disk, data / "journals", core)
        found.update({key: (core, one) for key, one in partitions.items()})
    return found
