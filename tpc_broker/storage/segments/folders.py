"""Partition folders as they lie in the data folder: found, made, deleted.

A folder belongs to the topic id in its `partition.metadata`, whatever its name says: a topic that was deleted and made
again under the same name never gets the old one's records.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import (
    DELETED_FOLDER_SUFFIX,
    LOG_SUFFIX,
    PARTITION_METADATA_FILE,
    TextFileError,
    decode_partition_metadata,
    deleted_folder_name,
    encode_partition_metadata,
    parse_partition_folder_name,
    parse_segment_file_name,
    partition_folder_name,
)
from tpc_broker.log.recovery import FOLDER_MISSING, PartitionFolder, SegmentFile
from tpc_broker.log.segment import LogSettings, SegmentIndexes
from tpc_broker.model import METADATA_TOPIC, METADATA_TOPIC_ID, PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.segments.partition_storage import PartitionStorage
from tpc_broker.storage.segments.segments import Segment, SegmentFolder, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from tpc_broker.log.recovery import PartitionPlan
    from tpc_broker.log.seals import Seal
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.storage.ports import Disk, FolderContents
    from tpc_broker.storage.segments.files import FileCache

OFFLINE_FILE: Final = "offline"
"""In a partition's folder: it was set aside for the reason in the file. Removing the file is the operator's
decision.
"""
SMALL_FILES: Final = (PARTITION_METADATA_FILE, OFFLINE_FILE)
LOST_MARK_FILE: Final = "set-aside"
"""In the folder beside the journals of a partition without a folder: `LostMark`. Earlier releases wrote `offline`
there, which nothing obeyed or removed: such a partition may long have been brought back, so it is not believed.
"""
SALVAGE_PREFIX: Final = "salvage-"
"""Of files with what a journal had for a partition that was set aside."""
_LOST_PREFIX: Final = "lost-"


class LostMark(NamedTuple):
    """That a partition without a folder was set aside."""

    topic: str
    """Its name; empty: not known yet, because neither a folder nor a checkpoint tells it."""
    reason: str
    has_salvage: bool = False
    """What the journal had for it lies beside the journals."""

    def counts_for(self, listing: PartitionListing | None) -> bool:
        """Whether the partition is offline by it. A folder that is there again, and can be read, has all of it where
        the journal had nothing.
        """
        return listing is None or listing.folder.problem is not None or self.has_salvage

    def encode(self) -> bytes:
        return f"{self.topic}: {self.reason}".encode()

    @classmethod
    def of(cls, contents: FolderContents) -> LostMark | None:
        """What the folder beside the journals says; None: nothing."""
        text = _mark(contents, LOST_MARK_FILE)
        if text is None:
            return None
        topic, _, reason = text.partition(": ")
        is_sound = not topic or parse_partition_folder_name(f"{topic}-0") is not None
        has_salvage = any(name.startswith(SALVAGE_PREFIX) for name in contents.sizes_bytes)
        is_known = is_sound and reason and not contents.unreadable
        return cls(topic, reason, has_salvage) if is_known else cls("", text, has_salvage)


# Rule: A topic that was deleted and made again never gets the old one's records. See also tpc_broker/log/recovery.py.
# Held by tests/storage/test_core_recovery.py.
@dataclass(frozen=True, slots=True)
class PartitionListing:
    """A partition folder with a topic id."""

    path: Path
    folder: PartitionFolder
    names: frozenset[str]
    """Without small files that cannot be read."""
    offline: str | None
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of all files, in bytes."""
    seals: Mapping[int, Seal] = field(default_factory=dict)
    """Of cleaned segments, by their bases: when `segment_swap.finish_swaps` has looked through it."""

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        return self.folder.segments

    @property
    def holds_records(self) -> bool:
        return any(segment.size_bytes for segment in self.folder.segments)

    @classmethod
    async def read(cls, disk: Disk, path: Path) -> PartitionListing | None:
        """None: no partition's folder, or one whose making was cut short (no metadata and nothing in it). OSError: also
        when one of its small files cannot be read.
        """
        contents = await _read_folder(disk, path)
        return None if contents is None else cls.of(path, contents)

    @classmethod
    def of(
        cls, path: Path, contents: FolderContents, label: str | None = None, named: TopicPartition | None = None
    ) -> PartitionListing | None:
        """The same of a folder that was read. `label`: TOPIC-NUMBER where that is not its name; `named`: whose it is by
        its name, should its `partition.metadata` not say so.
        """
        parsed, problem = parse_partition_folder_name(label or path.name), None
        if parsed is None:
            return None
        try:
            if PARTITION_METADATA_FILE in contents.unreadable:
                raise contents.unreadable[PARTITION_METADATA_FILE]
            topic_id = decode_partition_metadata(contents.small_files.get(PARTITION_METADATA_FILE, b""))
        except (OSError, TextFileError) as error:
            if isinstance(error, OSError) and parsed == (METADATA_TOPIC, 0):
                # Nobody else has this name, and its id is the same everywhere: nothing is lost with the file.
                return cls._of_names(path, contents, parsed, METADATA_TOPIC_ID, None)
            if named is None:
                return None
            topic_id, problem = named.topic_id, f"its partition.metadata cannot be read ({error})"
        return cls._of_names(path, contents, parsed, topic_id, problem)

    @classmethod
    def _of_names(
        cls,
        path: Path,
        contents: FolderContents,
        parsed: tuple[str, PartitionIndex],
        topic_id: TopicId,
        problem: str | None,
    ) -> PartitionListing:
        key = TopicPartition(topic_id, parsed[1])
        folder = PartitionFolder(parsed[0], key, _segments_of(contents.sizes_bytes), problem)
        names = frozenset(contents.sizes_bytes.keys() - contents.unreadable.keys())
        return cls(path, folder, names, _mark(contents), contents.sizes_bytes)

    def with_files(self, sizes: Mapping[str, int]) -> PartitionListing:
        """The same folder, when files were removed or have other names."""
        folder = replace(self.folder, segments=_segments_of(sizes))
        names = (self.names & sizes.keys()) | (sizes.keys() - self.sizes.keys())
        return replace(self, folder=folder, names=frozenset(names), sizes=sizes)


def _segments_of(sizes: Mapping[str, int]) -> tuple[SegmentFile, ...]:
    segments = []
    for name, size_bytes in sizes.items():
        segment = parse_segment_file_name(name)
        if segment is not None and segment[1] == LOG_SUFFIX:
            segments.append(SegmentFile(segment[0], size_bytes))
    return tuple(sorted(segments))


def _mark(contents: FolderContents, name: str = OFFLINE_FILE) -> str | None:
    """Why the folder's partition was set aside; None: it was not."""
    if name in contents.unreadable:
        return f"it was set aside, and why cannot be read ({contents.unreadable[name]})"
    mark = contents.small_files.get(name)
    return None if mark is None else mark.decode("utf-8", "replace")


async def _read_folder(disk: Disk, path: Path) -> FolderContents | None:
    """None: it is not there. OSError: also when one of its small files cannot be read."""
    [contents] = await disk.read_folders([path], SMALL_FILES)
    for error in contents.unreadable.values() if contents is not None else ():
        raise error
    return contents


async def list_partitions(
    disk: Disk, topics: Path, known: Iterable[PartitionCheckpoint] = ()
) -> dict[TopicPartition, PartitionListing]:
    """Every partition folder that has a topic id. A core that starts alone looks at folders of cores that live, which
    delete segments, and folders, meanwhile.

    A folder with records whose `partition.metadata` cannot be read counts, with its `problem`, as the partition of that
    name among those `known`.
    """
    paths = [topics / name for name in sorted(await disk.listdir(topics)) if parse_partition_folder_name(name)]
    by_name = {partition_folder_name(one.topic, one.partition): one.key for one in known}
    found: dict[TopicPartition, PartitionListing] = {}
    unsure = []
    for path, contents in zip(paths, await disk.read_folders(paths, SMALL_FILES), strict=True):
        listing = None if contents is None else PartitionListing.of(path, contents, named=by_name.get(path.name))
        if listing is None:
            continue
        if listing.folder.problem is None:
            found[listing.folder.partition] = listing
        elif listing.holds_records:
            unsure.append(listing)
    return {one.folder.partition: one for one in unsure} | found


async def name_unsure_folders(disk: Disk, topics: Path, plans: Iterable[PartitionPlan]) -> None:
    """A folder whose `partition.metadata` the disk refuses may be one that is missed, and is told with it."""
    missing = [plan for plan in plans if plan.offline == FOLDER_MISSING]
    if not missing:
        return
    paths = [topics / name for name in sorted(await disk.listdir(topics)) if parse_partition_folder_name(name)]
    found = zip(paths, await disk.read_folders(paths, SMALL_FILES), strict=True)
    names = [path.name for path, one in found if one is not None and PARTITION_METADATA_FILE in one.unreadable]
    for plan in missing if names else []:
        plan.offline = (
            f"{FOLDER_MISSING}, or is one whose partition.metadata the disk refuses now ({', '.join(names)}): have "
            "that file readable again before a repair"
        )


def log_settings(config: TopicConfig) -> LogSettings:
    """What of a topic's settings the segments act on."""
    return LogSettings(
        segment_bytes=config.segment_bytes,
        segment_ms=_segment_ms(config),
        segment_index_bytes=config.segment_index_bytes,
        index_interval_bytes=config.index_interval_bytes,
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        segment_age_ms=config.segment_age_ms,
        cleanup_delete="delete" in config.cleanup_policy,
        cleanup_compact="compact" in config.cleanup_policy,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        batch_bytes_max=config.max_message_bytes,
        file_delete_delay_ms=config.file_delete_delay_ms,
    )


def _segment_ms(config: TopicConfig) -> int:
    """What is to be compacted after a while must be sealed by then."""
    if "compact" in config.cleanup_policy and config.max_compaction_lag_ms > 0:
        return min(config.segment_ms, config.max_compaction_lag_ms)
    return config.segment_ms


async def is_folder_of(disk: Disk, topics: Path, topic: str, key: TopicPartition) -> bool:
    """Whether a partition's folder is there, or one that may be its own."""
    path = topics / partition_folder_name(topic, key.partition)
    contents = await _read_folder(disk, path)
    if contents is None:
        return False
    listing = PartitionListing.of(path, contents, named=key)
    return listing is None or listing.folder.partition == key


async def may_be_folder_of(disk: Disk, topics: Path, topic: str, key: TopicPartition) -> bool:
    """The same of a new partition, also where the disk refuses a small file that would say whose the folder is."""
    path = topics / partition_folder_name(topic, key.partition)
    [contents] = await disk.read_folders([path], SMALL_FILES)
    listing = None if contents is None else PartitionListing.of(path, contents, named=key)
    return contents is not None and (listing is None or listing.folder.partition == key)


async def metadata_refused(disk: Disk, path: Path, *, of_records: bool = False) -> OSError | None:
    """Why the disk does not give a folder's `partition.metadata`; None: it does, or there is none. `of_records`: of a
    folder with records only.
    """
    [contents] = await disk.read_folders([path], (PARTITION_METADATA_FILE,))
    refused = None if contents is None else contents.unreadable.get(PARTITION_METADATA_FILE)
    if refused is None or contents is None or not of_records:
        return refused
    return refused if any(segment.size_bytes for segment in _segments_of(contents.sizes_bytes)) else None


class FolderTakenError(StorageFailedError):
    """A partition cannot be made: the folder of its name belongs to another one."""

    def __init__(self, path: Path, owner: TopicPartition) -> None:
        super().__init__(f"{path} belongs to topic id {owner.topic_id}")
        self.path = path
        self.owner = owner


class FolderUnsureError(StorageFailedError):
    """A partition cannot be made: the folder of its name holds records, and the disk refuses the file that says whose
    they are.
    """

    def __init__(self, path: Path, problem: str) -> None:
        hint = "tried again; if the disk has lost that file, stop the broker and move the folder away"
        super().__init__(f"{path} holds records, and {problem}; {hint}")
        self.path = path
        self.problem = problem


async def create_partition(
    files: FileCache, topics: Path, topic: str, key: TopicPartition, settings: LogSettings
) -> PartitionStorage:
    """Make a partition's folder, durably, before anything of it may enter the journal.

    A folder that is there with the same topic id and without records is taken, and one without records whose topic id
    cannot be read. FolderTakenError: it belongs to another topic id. FolderUnsureError: it holds records, and the disk
    does not say whose. StorageFailedError: it holds records that recovery did not know of, or was set aside.
    """
    disk, path = files.disk, topics / partition_folder_name(topic, key.partition)
    await make_folder(disk, path)
    [contents] = await disk.read_folders([path], SMALL_FILES)
    refused = contents.unreadable if contents is not None else {}
    if OFFLINE_FILE in refused:
        raise refused[OFFLINE_FILE]
    listing = None if contents is None else PartitionListing.of(path, contents, named=key)
    if listing is not None:
        if listing.offline is not None:
            raise StorageFailedError(f"{path.name} was set aside: {listing.offline}")
        if listing.folder.partition != key:
            raise FolderTakenError(path, listing.folder.partition)
        if listing.holds_records and listing.folder.problem is not None and refused:
            raise FolderUnsureError(path, listing.folder.problem)
        if listing.holds_records and listing.folder.problem is not None:
            raise StorageFailedError(f"{path} holds records, and {listing.folder.problem}")
        if listing.holds_records:
            raise StorageFailedError(f"{path} holds records that neither a checkpoint nor a journal knows of")
    storage = new_partition(files, topics, topic, key, settings)
    if refused:
        await storage.folder.remove(PARTITION_METADATA_FILE)  # another file: its blocks may be what is damaged
    await storage.folder.write_file(PARTITION_METADATA_FILE, encode_partition_metadata(key.topic_id))
    await files.sync(path / PARTITION_METADATA_FILE)
    storage.folder.begin_sync()
    await disk.fsync_directory(path)
    await disk.fsync_directory(topics)
    return storage


async def prepare_folders(
    files: FileCache, topics: Path, wanted: Sequence[tuple[TopicPartition, str]], file_system_fd: int
) -> set[TopicPartition]:
    """Make the folders of many new partitions durable with one syncfs; which are ready for `new_partition`.

    Folders that were there are not among them: `create_partition` looks into them. OSError: none is ready.
    """
    ready: set[TopicPartition] = set()
    by_topic: dict[TopicId, list[tuple[TopicPartition, str]]] = {}
    for key, topic in wanted:
        by_topic.setdefault(key.topic_id, []).append((key, topic))
    for topic_id, group in by_topic.items():
        paths = [topics / partition_folder_name(topic, key.partition) for key, topic in group]
        made = await files.disk.make_folders(paths, PARTITION_METADATA_FILE, encode_partition_metadata(topic_id))
        ready.update(key for (key, _topic), is_made in zip(group, made, strict=True) if is_made)
    if ready:
        await files.disk.syncfs(file_system_fd)
    return ready


def new_partition(
    files: FileCache, topics: Path, topic: str, key: TopicPartition, settings: LogSettings
) -> PartitionStorage:
    """A partition whose folder is durable and holds nothing but its metadata."""
    folder = SegmentFolder(files, topics / partition_folder_name(topic, key.partition))
    segment = Segment(0, indexes=SegmentIndexes(0, settings.index_interval_bytes))
    return PartitionStorage(folder, PartitionCheckpoint(key.topic_id, key.partition, topic), [segment], settings)


def lost_folder_name(key: TopicPartition) -> str:
    """Beside the journals: what a journal had for an offline partition that has no folder."""
    return f"{_LOST_PREFIX}{key.topic_id}-{key.partition}"


def _parse_lost_folder_name(name: str) -> TopicPartition | None:
    topic_id, _, partition = name.removeprefix(_LOST_PREFIX).rpartition("-")
    with suppress(ValueError):
        key = TopicPartition(TopicId(UUID(topic_id)), PartitionIndex(int(partition)))
        return key if lost_folder_name(key) == name else None
    return None


async def lost_marks(
    disk: Disk, journals: Path, keys: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, LostMark]:
    """Partitions (of `keys`) that were set aside without a folder, by whatever core, and why: a folder that is there
    again lacks what the journal had for them.
    """
    asked = await _lost_folders(disk, journals) if keys is None else list(keys)
    found = await disk.read_folders([journals / lost_folder_name(key) for key in asked], (LOST_MARK_FILE,))
    marks = ((key, LostMark.of(one)) for key, one in zip(asked, found, strict=True) if one is not None)
    return {key: mark for key, mark in marks if mark is not None}


async def _lost_folders(disk: Disk, journals: Path) -> list[TopicPartition]:
    keys = (_parse_lost_folder_name(name) for name in await disk.listdir(journals))
    return [key for key in keys if key is not None]


async def remove_lost_folders(disk: Disk, journals: Path, is_deleted: Callable[[TopicId], bool]) -> None:
    """What journals had of deleted topics' partitions without folders, whichever core or release has put it there."""
    for key in await _lost_folders(disk, journals):
        if is_deleted(key.topic_id):
            await remove_folder(disk, journals / lost_folder_name(key))


async def remove_lost_mark(disk: Disk, data: Path, key: TopicPartition) -> None:
    """Durably: the partition has all that is to be had of it, or other files than those."""
    path = data / "journals" / lost_folder_name(key)
    with suppress(FileNotFoundError):
        await disk.unlink(path / LOST_MARK_FILE)
        await disk.fsync_directory(path)


async def delete_folder(disk: Disk, path: Path, unique: str) -> Path:
    """Take a deleted partition's folder out of the way, durably; `remove_folder` frees its space later."""
    parsed = parse_partition_folder_name(path.name)
    assert parsed is not None, path
    target = path.with_name(deleted_folder_name(*parsed, unique))
    await disk.rename(path, target)
    await disk.fsync_directory(path.parent)
    return target


async def delete_offline_files(disk: Disk, data: Path, topic: str, key: TopicPartition, unique: str) -> Path | None:
    """The same for a partition that recovery set aside, which may have no folder; what the journal had for it goes."""
    path, folder = data / "topics" / partition_folder_name(topic, key.partition), None
    listing = await PartitionListing.read(disk, path)
    if listing is not None and listing.folder.partition == key:
        folder = await delete_folder(disk, path, unique)
    await remove_folder(disk, data / "journals" / lost_folder_name(key))
    return folder


async def remove_folder(disk: Disk, path: Path) -> None:
    """Unlink a folder with its files, or what is left of it: cores that start together all find the same ones."""
    with suppress(FileNotFoundError):
        for name in await disk.listdir(path):
            with suppress(FileNotFoundError):
                await disk.unlink(path / name)
        await disk.rmdir(path)


async def remove_deleted_folders(disk: Disk, topics: Path) -> int:
    """At a start: free what earlier deletions left; how many folders."""
    names = [name for name in await disk.listdir(topics) if name.endswith(DELETED_FOLDER_SUFFIX)]
    for name in names:
        await remove_folder(disk, topics / name)
    return len(names)
