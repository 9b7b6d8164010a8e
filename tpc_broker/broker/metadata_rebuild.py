"""The cluster's metadata made again from what is left of them and from the topics' folders. Only while no core runs.

What can be read of the metadata log counts, wherever it lies: segments, salvage files, journals that were not replayed.
A topic that none of these records makes or deletes is made from its folders: name and number from the folder's name,
the id from `partition.metadata`, owners as the checkpoints have them. Later settings of it that can be read apply.
Partitions that were put aside as unknown come back when their topic does.

The new log holds one snapshot, behind the end of the old one, whose folder is put aside. Producer ids go on far above
any that a partition has seen: an id that were given out twice would let a producer's records pass for repeated ones.
"""

from __future__ import annotations

from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.errors import StorageFailedError
from tpc_broker.kafka.records import Record, build_batch, read_records
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import LOG_SUFFIX, parse_segment_file_name, partition_folder_name
from tpc_broker.log.journal import EntryKind, JournalUnreadableError, WantedRun
from tpc_broker.log.segment import LogSettings, SegmentIndexes
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import (
    ClusterCreated,
    CoresChanged,
    MetadataDamagedError,
    MetadataRecord,
    ProducerIdsReserved,
    TopicAssigned,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from tpc_broker.model import (
    METADATA_TOPIC,
    METADATA_TOPIC_ID,
    CoreId,
    LeaderEpoch,
    MetadataVersion,
    Offset,
    PartitionIndex,
    ProducerId,
    TopicId,
    TopicPartition,
)
from tpc_broker.routing import Assignment, assign_all
from tpc_broker.storage.recovery.checkpoint import JournalFile, capture_and_sync, read_checkpoint, write_checkpoint
from tpc_broker.storage.recovery.lost_and_found import (
    METADATA_PARTITION,
    REASON_FILE,
    STATE_FILE,
    LostPartition,
    find_lost,
    list_lost,
    put_aside,
)
from tpc_broker.storage.segments.folders import SALVAGE_PREFIX, create_partition, list_partitions, remove_lost_mark
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.readable_runs import readable_runs
from tpc_broker.storage.segments.segments import Segment

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.recovery import RecoveredCore

PRODUCER_IDS_SKIPPED: Final = 1_000_000
"""Ids that may have been given out and never been used in a record that is left: a thousand blocks."""
RECORDS_PER_BATCH: Final = 1_000
_LABEL: Final = partition_folder_name(METADATA_TOPIC, METADATA_PARTITION.partition)


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of the metadata log and of the topics."""

    records: tuple[MetadataRecord, ...]
    unreadable_count: int
    end_offset: int
    """Never below the old log's."""
    leader_epoch: int
    partitions: Mapping[TopicPartition, str]
    """Topic names of partitions that have a folder, here or in `lost+found`."""
    holders: Mapping[TopicPartition, CoreId]
    """Whose checkpoint names a partition."""
    highest_producer_id: int
    lost: tuple[LostPartition, ...]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The image that the rebuilt log will have, and what of it was not in the readable records."""

    image: ClusterImage
    from_folders: tuple[TopicId, ...]
    grown: tuple[TopicId, ...]
    """Topics with folders of more partitions than the records gave them."""
    returning: tuple[LostPartition, ...]
    left_out: tuple[str, ...]
    """Partitions whose topic's name another topic has: put aside by the next start."""


# -- what is left ------------------------------------------------------------------------------------------------------


async def find_remains(disk: Disk, data: Path, cores: Sequence[CoreId]) -> Remains:
    """Read only."""
    states: dict[TopicPartition, tuple[CoreId, PartitionCheckpoint]] = {}
    for core in cores:
        _generation, partitions = await read_checkpoint(disk, data / "journals", core)
        states.update({key: (core, one) for key, one in partitions.items()})
    listings = await list_partitions(disk, data / "topics", [one for _core, one in states.values()])
    lost = tuple(one for one in await list_lost(disk, data) if one.key not in listings)
    names = {one.key: one.topic for one in lost} | {key: one.folder.topic for key, one in listings.items()}
    values: dict[int, list[bytes]] = {}
    state = states.get(METADATA_PARTITION, (None, None))[1]
    end, epoch = (state.log_end_offset, state.leader_epoch) if state else (Offset(0), LeaderEpoch(-1))
    async with aclosing(_metadata_batches(disk, data, cores)) as found:
        async for batch in found:
            offset = int.from_bytes(batch[:8], "big")
            epoch = LeaderEpoch(max(epoch, int.from_bytes(batch[12:16], "big", signed=True)))
            records = list(read_records(batch))
            values[offset] = [record.value or b"" for record in records]
            end = Offset(max(end, offset + len(records)))
    readable, unreadable = _decoded(values)
    highest = max((pid for _core, one in states.values() for pid in one.producers.producers), default=-1)
    return Remains(
        tuple(readable), unreadable, end, epoch,
        {key: name for key, name in names.items() if key.topic_id != METADATA_TOPIC_ID},
        {key: core for key, (core, _state) in states.items()}, highest, lost,
    )  # fmt: skip


def _decoded(values: Mapping[int, list[bytes]]) -> tuple[list[MetadataRecord], int]:
    records, unreadable = [], 0
    for offset in sorted(values):
        for value in values[offset]:
            try:
                records.append(decode_record(value))
            except MetadataDamagedError:
                unreadable += 1
    return records, unreadable


async def _metadata_batches(disk: Disk, data: Path, cores: Sequence[CoreId]) -> AsyncGenerator[bytes, None]:
    """Every batch of the metadata log that can be read; a later one at the same offset is the one that counts."""
    aside = await find_lost(disk, data, METADATA_TOPIC, METADATA_PARTITION)
    journals = data / "journals"
    lost_journal = [journals / name for name in await disk.listdir(journals) if name.startswith(_LOST_JOURNAL)]
    for folder in [*([aside] if aside else []), data / "topics" / _LABEL, *lost_journal]:
        try:
            names = sorted(await disk.listdir(folder))
        except FileNotFoundError:
            continue
        for name in names:
            parsed = parse_segment_file_name(name)
            is_segment = parsed is not None and parsed[1] == LOG_SUFFIX
            if not is_segment and not name.startswith(SALVAGE_PREFIX):
                continue
            base = int(parsed[0]) if parsed else None
            async with aclosing(readable_runs(disk, folder / name, base)) as runs:
                async for run in runs:
                    for batch in _split(run.data):
                        yield batch
    for core in cores:
        with suppress(FileNotFoundError, JournalUnreadableError):
            for batch in await _journalled(disk, journals, core):
                yield batch


async def _journalled(disk: Disk, journals: Path, core: CoreId) -> list[bytes]:
    """The metadata log's batches in a journal that was not replayed."""
    file, found = await JournalFile.open(disk, journals, core), []
    try:
        scan = await file.scan()
        wanted = {
            entry.number: WantedRun(entry.offset, entry.argument, 0)
            for entry in scan.entries
            if entry.partition == METADATA_PARTITION and entry.kind == EntryKind.APPEND
        }
        async with aclosing(file.payloads(scan, wanted, 1)) as windows:
            async for window in windows:
                for _target, batches in window:
                    found += _split(batches)
    finally:
        await file.close()
    return found


def _split(batches: memoryview) -> list[bytes]:
    found, place = [], 0
    while place < len(batches):
        size = int.from_bytes(batches[place + 8 : place + 12], "big") + 12
        found.append(bytes(batches[place : place + size]))
        place += size
    return found


_LOST_JOURNAL: Final = f"lost-{METADATA_TOPIC_ID}-"

# -- what will be ------------------------------------------------------------------------------------------------------


def rebuild_image(remains: Remains, cluster_id: str, cores_count: int, now_ms: int) -> Rebuilt:
    """What the metadata will say."""
    latest = {one.name: one.topic_id for one in remains.records if isinstance(one, TopicCreated)}
    deleted = {one.topic_id for one in remains.records if isinstance(one, TopicDeleted)}
    superseded = {  # made again under their name, and the record of their deletion is lost
        one.topic_id
        for one in remains.records
        if isinstance(one, TopicCreated) and latest[one.name] != one.topic_id and one.topic_id not in deleted
    }
    records = [one for one in remains.records if getattr(one, "topic_id", None) not in superseded]
    known = {one.topic_id for one in records if isinstance(one, TopicCreated | TopicDeleted)}
    live = ClusterImage().apply(records, MetadataVersion(1))
    made: dict[str, TopicCreated] = {}
    left_out, counts = [], _partition_counts(remains.partitions)
    for (topic_id, name), count in sorted(counts.items(), key=lambda one: (one[0][1], -one[1])):
        if topic_id in known:
            continue
        if name in made or live.topic(name) is not None:
            left_out.append(f"{name} (id {topic_id})")
            continue
        assignment = _assignment(topic_id, count, cores_count, remains.holders)
        made[name] = TopicCreated(name, topic_id, assignment.owners, now_ms, tuple(sorted(assignment.manual)))
    again = {one.topic_id for one in made.values()}
    settings = [one for one in records if getattr(one, "topic_id", None) in again]
    image = live.apply([*made.values(), *settings], MetadataVersion(1))
    begin: list[MetadataRecord] = [ClusterCreated(cluster_id), CoresChanged(image.cores_count or cores_count)]
    grown = []
    for (topic_id, _name), count in counts.items():
        topic = image.topic_by_id(topic_id)
        if topic is not None and count > topic.partitions_count:
            more = _assignment(topic_id, count, cores_count, remains.holders)
            owners = (*topic.assignment.owners, *more.owners[topic.partitions_count :])
            begin.append(TopicAssigned(topic_id, owners, tuple(sorted(topic.assignment.manual))))
            grown.append(topic_id)
    first = max(image.next_producer_id, remains.highest_producer_id + 1)
    begin.append(ProducerIdsReserved(CoreId(0), ProducerId(first), PRODUCER_IDS_SKIPPED))
    image = image.apply(begin, MetadataVersion(1))
    returning = tuple(one for one in remains.lost if image.topic_by_id(one.key.topic_id) is not None)
    return Rebuilt(image, tuple(one.topic_id for one in made.values()), tuple(grown), returning, tuple(left_out))


def _partition_counts(partitions: Mapping[TopicPartition, str]) -> dict[tuple[TopicId, str], int]:
    counts: dict[tuple[TopicId, str], int] = {}
    for key, name in partitions.items():
        counts[key.topic_id, name] = max(counts.get((key.topic_id, name), 0), key.partition + 1)
    return counts


def _assignment(
    topic_id: TopicId, count: int, cores_count: int, holders: Mapping[TopicPartition, CoreId]
) -> Assignment:
    """Each partition where it lies; those that differ from the rule must have been assigned by hand."""
    by_rule = assign_all(topic_id, count, cores_count).owners
    held = {
        PartitionIndex(index): core
        for index in range(count)
        if (core := holders.get(TopicPartition(topic_id, PartitionIndex(index)), by_rule[index])) < cores_count
    }
    owners = tuple(held.get(PartitionIndex(index), owner) for index, owner in enumerate(by_rule))
    return Assignment(owners, frozenset(index for index, core in held.items() if by_rule[index] != core))


# -- carried out -------------------------------------------------------------------------------------------------------


async def write_metadata(
    recovered: RecoveredCore, data: Path, rebuilt: Rebuilt, remains: Remains
) -> tuple[PartitionCheckpoint, Path | None]:
    """Put the old log aside and write the new one, durably; its state for the checkpoint, and where the old one is."""
    disk, path = recovered.files.disk, data / "topics" / _LABEL
    storage = recovered.storages.pop(METADATA_PARTITION, None)
    old = recovered.offline.pop(METADATA_PARTITION, None)
    before = storage.checkpointed if storage else old.checkpoint if old else None
    aside = None
    if storage is not None:
        await storage.close()
    if path.name in await disk.listdir(data / "topics"):
        reason = "the metadata log was rebuilt"
        aside = await put_aside(disk, data, path, METADATA_TOPIC, METADATA_PARTITION, before, reason)
    end = Offset(max(remains.end_offset, before.log_end_offset if before else 0))
    epoch = LeaderEpoch(max(remains.leader_epoch, before.leader_epoch if before else -1) + 1)
    return await write_image(recovered, data, rebuilt.image, end, epoch), aside


async def write_image(
    recovered: RecoveredCore, data: Path, image: ClusterImage, end: Offset, epoch: LeaderEpoch
) -> PartitionCheckpoint:
    """A metadata log that begins at an offset, durably, where there is none: an image. Its state for the checkpoint."""
    disk, files = recovered.files.disk, recovered.files
    fresh = await create_partition(files, data / "topics", METADATA_TOPIC, METADATA_PARTITION, LogSettings())
    state = PartitionCheckpoint(
        METADATA_TOPIC_ID, METADATA_PARTITION.partition, METADATA_TOPIC, segment_base=end, log_start_offset=end,
        log_end_offset=end, leader_epoch=epoch,
    )  # fmt: skip
    segment = Segment(end, indexes=SegmentIndexes(end, LogSettings().index_interval_bytes))
    fresh = PartitionStorage(fresh.folder, state, [segment], LogSettings())
    records = image.snapshot()
    for first in range(0, len(records), RECORDS_PER_BATCH):
        part = records[first : first + RECORDS_PER_BATCH]
        batch = bytearray(build_batch([Record(encode_record(record)) for record in part]))
        batch[:8] = fresh.written_end_offset.to_bytes(8, "big")
        batch[12:16] = epoch.to_bytes(4, "big")
        await fresh.append([bytes(batch)])
    states = await capture_and_sync(recovered.journal_file, [fresh])
    await disk.fsync_directory(data / "topics")
    fresh.mark_checkpointed(states[METADATA_PARTITION])
    recovered.storages[METADATA_PARTITION] = fresh
    return states[METADATA_PARTITION]


async def bring_back(
    recovered: RecoveredCore, data: Path, returning: Sequence[LostPartition]
) -> list[PartitionCheckpoint]:
    """Move partitions that were put aside to the topics again; the checkpoint entries of those that have one."""
    disk, states, topics = recovered.files.disk, [], data / "topics"
    names = set(await disk.listdir(topics))
    for one in returning:
        target = topics / partition_folder_name(one.topic, one.key.partition)
        if target.name in names:
            raise StorageFailedError(f"{one.path} cannot come back: {target} is there")
        await disk.rename(one.path, target)
        await disk.fsync_directory(one.path.parent)
        await disk.fsync_directory(topics)
        if one.state is not None:
            states.append(one.state)
    return states


async def forget_put_aside(disk: Disk, data: Path, returning: Sequence[LostPartition]) -> None:
    """After the checkpoint that names them: the notes of why they had been put aside go."""
    for one in returning:
        path = data / "topics" / partition_folder_name(one.topic, one.key.partition)
        for name in (REASON_FILE, STATE_FILE):
            with suppress(FileNotFoundError):
                await disk.unlink(path / name)
        await disk.fsync_directory(path)


async def rebuild_metadata(recovered: RecoveredCore, data: Path, rebuilt: Rebuilt, remains: Remains) -> Path | None:
    """All of it, into core 0's checkpoint; where the old log is now. OSError: to be done again."""
    _state, aside = await write_metadata(recovered, data, rebuilt, remains)
    more = await bring_back(recovered, data, rebuilt.returning)
    file = recovered.journal_file
    states = {key: storage.checkpointed for key, storage in recovered.storages.items()} | recovered.kept
    states |= {one.key: one for one in more}
    generation = file.superblock.checkpoint_generation + 1
    await write_checkpoint(file.disk, file.folder, file.core, generation, states.values())
    await file.update_superblock(checkpoint_generation=generation)
    await remove_lost_mark(file.disk, data, METADATA_PARTITION)
    await forget_put_aside(file.disk, data, rebuilt.returning)
    return aside
