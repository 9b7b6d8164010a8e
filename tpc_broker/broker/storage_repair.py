"""Bringing an offline partition back with what of it can still be read. Only while no core runs.

Duties of `repair_partition`, in order:

1. read every segment from the oldest on, with checksums; the log ends where the first batch is damaged or out of order;
2. put what the journal still had for the partition (`salvage-…` files) behind that end, if it goes on there;
3. cut the files, remove the segments behind, make the active segment's indexes anew, sync all of it;
4. write the core's checkpoint with the new state; 5. remove the `offline` marker.

Until step 5 the partition stays offline, and doing it again gives the same. What is lost is said in offsets. The leader
epoch rises at the next opening, so clients learn where the old log ended.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tpc_broker.broker.storage_checkpoint import read_checkpoint, write_checkpoint
from tpc_broker.broker.storage_folders import OFFLINE_FILE, PartitionListing, lost_folder_name
from tpc_broker.broker.storage_recovery import SALVAGE_PREFIX
from tpc_broker.broker.storage_segments import Segment, SegmentFolder, make_folder
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import PARTITION_METADATA_FILE, encode_partition_metadata, partition_folder_name
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.segment import AppendWalk, LogSettings, SegmentIndexes, WalkStop
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.native_bytes import find_batches_end

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tpc_broker.broker.ports import Disk
    from tpc_broker.broker.storage_recovery import OfflinePartition, RecoveredCore
    from tpc_broker.model import CoreId, TopicPartition

READ_BYTES: Final = 4 * 1024 * 1024
_WHOLE: Final = LogSettings(segment_bytes=2**62, segment_ms=2**62, segment_index_bytes=2**40)


@dataclass(frozen=True, slots=True)
class Salvage:
    """A file with batches that the journal still had when the partition went offline."""

    path: Path
    size_bytes: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What `repair_partition` did. The log holds [log_start_offset, log_end_offset) now, except for `lost`."""

    label: str
    log_start_offset: int
    log_end_offset: int
    salvaged_count: int
    """Offsets that came from salvage files."""
    lost: tuple[tuple[int, int], ...]
    """Half-open ranges of offsets that are gone."""


@dataclass(slots=True)
class _Log:
    """The readable log as far as it was read."""

    end_offset: int
    producers: ProducerState = field(default_factory=ProducerState)
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    indexes: SegmentIndexes | None = None
    segment: Segment | None = None
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """Where a segment begins behind the end of the one before."""

    def begin_segment(self, base_offset: int) -> None:
        self.indexes = SegmentIndexes(base_offset, LogSettings().index_interval_bytes)
        self.segment = Segment(base_offset, indexes=self.indexes)

    def take(self, batches: memoryview) -> None:
        """Whole batches, into the segment. BatchDamageError: one does not belong there; what is before it is taken."""
        assert self.indexes is not None
        assert self.segment is not None
        walk = AppendWalk(batches, _WHOLE, self.end_offset, self.epochs.latest)
        walk.use(self.indexes, self.segment.size_bytes)
        try:
            while (stop := walk.step(self.producers)) is not WalkStop.END:
                if stop is WalkStop.ROLL:
                    far = walk.header.last_offset
                    raise BatchDamageError(f"offset {far} is too far from {self.segment.base_offset}")
                walk.take_stop(stop, self.producers, self.epochs)
        finally:  # the indexes and producers hold what was taken before damage
            self.segment.size_bytes, self.end_offset = walk.position, walk.next_offset


async def _valid_batches(disk: Disk, path: Path, next_offset: int) -> AsyncGenerator[memoryview, None]:
    """Runs of whole batches with right checksums and rising offsets, until the file's end or the first other bytes."""
    size = (await disk.stat(path)).size_bytes
    fd = await disk.open(path, 0)
    try:
        position, length = 0, READ_BYTES
        while position < size:
            data = memoryview(await disk.read(fd, min(length, size - position), position))
            end, next_offset = find_batches_end(data, next_offset)
            if end == 0:
                if len(data) < length or length >= size:
                    return
                length *= 4  # a batch larger than the window
                continue
            yield data[:end]
            position, length = position + end, READ_BYTES
    finally:
        await disk.close(fd)


async def _read_log(disk: Disk, path: Path, listing: PartitionListing | None, end_offset: int) -> _Log:
    """Duty 1."""
    segments = [one for one in listing.segments if one.size_bytes] if listing else []
    if not segments:
        return _Log(end_offset)
    log = _Log(segments[0].base_offset)
    for number, one in enumerate(segments):
        if one.base_offset < log.end_offset:
            break
        if one.base_offset > log.end_offset and number:
            log.gaps.append((log.end_offset, one.base_offset))
        before = (log.segment, log.indexes, log.end_offset)
        log.begin_segment(one.base_offset)
        log.end_offset = one.base_offset
        assert log.segment is not None
        async with aclosing(_valid_batches(disk, path / log.segment.log_name, one.base_offset)) as runs:
            with suppress(BatchDamageError):
                async for batches in runs:
                    log.take(batches)
        if log.segment.size_bytes < one.size_bytes:
            if log.segment.size_bytes == 0 and before[0] is not None:  # nothing of it; the one before is the last
                log.segment, log.indexes, log.end_offset = before
                log.gaps = [gap for gap in log.gaps if gap[1] <= log.end_offset]
            break
    return log


async def _append_salvage(folder: SegmentFolder, log: _Log, salvages: list[Salvage]) -> int:
    """Duty 2: how many offsets came back. They go to a segment of their own."""
    before = log.end_offset
    for salvage in salvages:
        async for batches in _valid_batches(folder.disk, salvage.path, -1):
            walk = _from_offset(batches, log.end_offset)
            if walk is None:
                continue
            if log.end_offset == before:
                log.begin_segment(before)
                await folder.write_file(Segment(before).log_name, b"")
            assert log.segment is not None
            position = log.segment.size_bytes
            with suppress(BatchDamageError):  # what is behind the damage finds nothing to follow on
                log.take(walk)
            await folder.write(log.segment.log_name, [walk[: log.segment.size_bytes - position]], position)
    return log.end_offset - before


def _from_offset(batches: memoryview, offset: int) -> memoryview | None:
    """The part of a run of batches from the one on that begins at an offset; None: none does."""
    place = 0
    while place < len(batches):
        if int.from_bytes(batches[place : place + 8], "big") == offset:
            return batches[place:]
        place += int.from_bytes(batches[place + 8 : place + 12], "big") + 12
    return None


async def list_salvage(disk: Disk, data: Path, key: TopicPartition, path: Path) -> list[Salvage]:
    """A partition's salvage files, oldest first; those of a partition without folder lie beside the journals."""
    found = []
    for place in (path, data / "journals" / lost_folder_name(key)):
        try:
            names = await disk.listdir(place)
        except FileNotFoundError:
            continue
        for name in sorted(names):
            if not name.startswith(SALVAGE_PREFIX):
                continue
            first, end, size = -1, -1, (await disk.stat(place / name)).size_bytes
            async for batches in _valid_batches(disk, place / name, -1):
                first = int.from_bytes(batches[:8], "big") if first < 0 else first
                end = find_batches_end(batches, -1)[1]
            found.append(Salvage(place / name, size, first, end))
    return sorted(found, key=lambda one: one.first_offset)


async def repair_partition(
    recovered: RecoveredCore, offline: OfflinePartition, data: Path, listing: PartitionListing | None
) -> RepairReport:
    """Bring one partition of a recovered core back; see the module for what it does. OSError: the disk."""
    disk, key = recovered.files.disk, offline.key
    label = partition_folder_name(offline.topic, key.partition)
    path = listing.path if listing else data / "topics" / label
    state = offline.checkpoint or PartitionCheckpoint(key.topic_id, key.partition, offline.topic)
    salvages = await list_salvage(disk, data, key, path)
    log = await _read_log(disk, path, listing, state.log_end_offset)
    folder = SegmentFolder(recovered.files, path)
    if listing is None and await make_folder(disk, path):
        await folder.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(key.topic_id))
    readable_end = log.end_offset
    salvaged = await _append_salvage(folder, log, salvages)
    bases = [one.base_offset for one in listing.segments if one.size_bytes] if listing else []
    first = min(bases, default=readable_end)
    log_start = min(max(state.log_start_offset, first), log.end_offset)
    new = await _write_files(folder, listing, log, state, log_start)
    old_end = max([state.log_end_offset, log.end_offset, *(one.end_offset for one in salvages)])
    lost = [(state.log_start_offset, log_start), *log.gaps, (log.end_offset, old_end)]
    recovered.offline.pop(key)
    await _write_checkpoint(recovered, new)
    if listing is not None and OFFLINE_FILE in listing.names:
        await disk.unlink(path / OFFLINE_FILE)
    await disk.fsync_directory(path)
    return RepairReport(label, log_start, log.end_offset, salvaged, tuple(gap for gap in lost if gap[0] < gap[1]))


async def _write_files(
    folder: SegmentFolder, listing: PartitionListing | None, log: _Log, state: PartitionCheckpoint, log_start: int
) -> PartitionCheckpoint:
    """Duty 3, and the state that the checkpoint gets."""
    segment = log.segment
    if segment is None:
        log.begin_segment(log.end_offset)
        segment = log.segment
        assert segment is not None
    size, indexes = segment.size_bytes, log.indexes
    assert indexes is not None
    for one in listing.segments if listing else ():
        if one.base_offset > segment.base_offset or (one.base_offset == segment.base_offset and not size):
            for name in Segment(one.base_offset).file_names:
                await folder.remove(name)
    if size:
        await folder.cut(segment, size)
        await folder.flush_indexes(segment, sealed=False)
    epochs = LeaderEpochs(state.epochs)
    epochs.truncate_end(Offset(log.end_offset))
    for entry in log.epochs.entries:
        epochs.assign(entry.epoch, entry.start_offset)
    epochs.truncate_start(Offset(log_start))
    await folder.sync(epochs.entries)
    await folder.disk.fsync_directory(folder.path.parent)
    return PartitionCheckpoint(
        state.topic_id, state.partition, state.topic, Offset(segment.base_offset), size, Offset(log_start),
        Offset(log.end_offset), LeaderEpoch(max(state.leader_epoch, log.epochs.latest)), state.voted_for,
        indexes.largest_timestamp, indexes.largest_timestamp_offset, indexes.first_timestamp,
        segment.flushed_bytes[0], segment.flushed_bytes[1], segment.flushed_bytes[2], epochs.entries, log.producers,
    )  # fmt: skip


async def _write_checkpoint(recovered: RecoveredCore, new: PartitionCheckpoint) -> None:
    """Duty 4."""
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
