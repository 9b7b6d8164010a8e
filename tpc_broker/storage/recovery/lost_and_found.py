"""Partitions that the cluster's metadata do not know: put aside with what is known of them, never removed.

Only a durable record of a deletion removes files (`ClusterImage.is_deleted`, PARTITION_DELETED in a journal). What is
merely unknown - the metadata are older than the partitions, or came from elsewhere - goes to `lost+found` in the data
folder, each partition in a folder of its own with two more files: `reason`, and `partition.checkpoint`, its entry of
the checkpoint, so that `tpc-broker repair --rebuild-metadata` can bring it back as it was.

Order: state and reason are durable in the folder, then it is renamed, then the next checkpoint leaves the partition
out. A start in between finds a partition without folder that lies in `lost+found`, and leaves it out as well.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_checkpoint, encode_checkpoint
from tpc_broker.log.files import parse_partition_folder_name, partition_folder_name
from tpc_broker.model import METADATA_TOPIC, METADATA_TOPIC_ID, PartitionIndex, TopicPartition
from tpc_broker.storage.segments.files import replace_file
from tpc_broker.storage.segments.folders import SMALL_FILES, PartitionListing
from tpc_broker.storage.segments.segments import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.core_partitions import CorePartitions
    from tpc_broker.storage.recovery.recovery import RecoveredCore

log = logging.getLogger(__name__)

METADATA_PARTITION: Final = TopicPartition(METADATA_TOPIC_ID, PartitionIndex(0))
LOST_FOLDER: Final = "lost+found"
REASON_FILE: Final = "reason"
STATE_FILE: Final = "partition.checkpoint"
_NAME: Final = re.compile(r"(.+-\d+)\.[0-9a-f-]{36}(\.\d+)?")


@dataclass(frozen=True, slots=True)
class LostPartition:
    """One folder of `lost+found` that holds a partition. `state` None: nothing but its segments tells of it."""

    path: Path
    topic: str
    key: TopicPartition
    reason: str
    state: PartitionCheckpoint | None
    listing: PartitionListing


def unknown_reason(image: ClusterImage, key: TopicPartition) -> str | None:
    """Why the cluster's metadata have no place for a partition; None: they have, or say that it was deleted."""
    topic = image.topic_by_id(key.topic_id)
    if key.topic_id == METADATA_TOPIC_ID or image.is_deleted(key.topic_id):
        return None
    if topic is None:
        return f"the cluster's metadata know no topic with id {key.topic_id}, and no deletion of one"
    if key.partition >= topic.partitions_count:
        return f"the cluster's metadata give the topic {topic.name} {topic.partitions_count} partitions"
    return None


def lost_name(topic: str, key: TopicPartition) -> str:
    """The name of a partition's folder in `lost+found`. Topic names may be as long as a file name, so it is cut."""
    tail = f"-{key.partition}.{key.topic_id}"
    return topic[: 240 - len(tail)] + tail


async def find_lost(disk: Disk, data: Path, topic: str, key: TopicPartition) -> Path | None:
    """Where a partition was put aside."""
    name = lost_name(topic, key)
    try:
        names = await disk.listdir(data / LOST_FOLDER)
    except FileNotFoundError:
        return None
    return data / LOST_FOLDER / name if name in names else None


async def put_aside(
    disk: Disk, data: Path, path: Path, topic: str, key: TopicPartition, state: PartitionCheckpoint | None, reason: str
) -> Path:
    """Move a partition's folder to `lost+found`, durably; where it is then. OSError: it stays where it was."""
    if state is not None:
        await replace_file(disk, path / STATE_FILE, encode_checkpoint(0, [state]))
    return await _move_there(disk, data, path, lost_name(topic, key), reason)


async def put_deleted_aside(
    disk: Disk, data: Path, path: Path, topic: str, key: TopicPartition, why_unsure: str
) -> Path:
    """The same with the folder of a deleted partition, of which only its name says that it is that one's. It is not
    removed then, and no rebuild of the metadata brings it back (`list_lost`).
    """
    reason = f"its partition was deleted, and {why_unsure}"
    return await _move_there(disk, data, path, f"{lost_name(topic, key)}.deleted", reason)


async def put_unsure_aside(disk: Disk, data: Path, path: Path, why_unsure: str) -> Path:
    """The same with a folder of records of which only the name is known: it is in the way of another partition of that
    name. No rebuild of the metadata brings it back either.
    """
    reason = f"it held records when another partition of that name was made, and {why_unsure}"
    return await _move_there(disk, data, path, f"{path.name[:240]}.unknown", reason)


async def _move_there(disk: Disk, data: Path, path: Path, name: str, reason: str) -> Path:
    lost = data / LOST_FOLDER
    if await make_folder(disk, lost):
        await disk.fsync_directory(data)
    target, number = lost / name, 2
    names = set(await disk.listdir(lost))
    while target.name in names:
        target, number = lost / f"{name}.{number}", number + 1
    await replace_file(disk, path / REASON_FILE, f"{reason}\n".encode())
    await disk.fsync_directory(path)
    await disk.rename(path, target)
    await disk.fsync_directory(lost)
    await disk.fsync_directory(path.parent)
    return target


# Rule: Only a durable record of a deletion removes a topic's files. Without readable metadata nothing is opened. What
# is unknown is put aside. See also tpc_broker/metadata/image.py, tpc_broker/process/assembly.py. Held by
# tests/durability/test_lost_metadata.py.
async def put_unknown_aside(
    disk: Disk,
    data: Path,
    partitions: CorePartitions,
    image: ClusterImage,
) -> int:
    """Put aside what a core has recovered and the cluster's metadata do not know; how many partitions.

    The next checkpoint leaves them out: they are in none of the tables any more. What cannot be moved stays where it
    is, and stays in the checkpoint.
    """
    count = 0
    for key in [*partitions.unclaimed, *partitions.offline]:
        reason = unknown_reason(image, key)
        if reason is None:
            continue
        files, offline = partitions.unclaimed.get(key), partitions.offline.get(key)
        topic = files.topic if files else offline.topic if offline else ""
        path = files.folder.path if files else data / "topics" / partition_folder_name(topic, key.partition)
        try:
            if files is not None:
                await files.close()
            listing = await PartitionListing.read(disk, path)
            if listing is not None and listing.folder.partition == key:
                state = files.checkpointed if files else offline.checkpoint if offline else None
                target: Path | None = await put_aside(disk, data, path, topic, key, state, reason)
            else:
                target = await find_lost(disk, data, topic, key)
        except OSError as error:
            log.error("%s: %s; it cannot be put aside (%s) and is left as it is", path.name, reason, error)
            continue
        if target is None:
            continue
        partitions.put_aside(key)
        count += 1
        log.error(
            "%s: %s; nothing of it was deleted, it was put aside in %s; to bring it back, stop the broker and see: "
            "tpc-broker repair --rebuild-metadata --data %s", path.name, reason, target, data,
        )  # fmt: skip
    return count


def metadata_problem(recovered: Iterable[RecoveredCore], folders: Iterable[str]) -> str | None:
    """Why there are no metadata that a start may believe, although they must have been there; None: all is well.

    `folders`: names in the folder of topics.
    """
    key, label = METADATA_PARTITION, partition_folder_name(METADATA_TOPIC, METADATA_PARTITION.partition)
    for one in recovered:
        offline, storage = one.offline.get(key), one.storages.get(key)
        if offline is not None:
            return f"{label} cannot be used: {offline.reason}"
        if storage is not None and storage.written_end_offset > storage.log_start_offset:
            return None
    others = [name for name in folders if parse_partition_folder_name(name) and name != label]
    return f"{label} is missing or empty beside the folders of {len(others)} partitions" if others else None


async def list_lost(disk: Disk, data: Path) -> list[LostPartition]:
    """Partitions in `lost+found`; folders of it that hold none are left out."""
    lost = data / LOST_FOLDER
    try:
        paths = [lost / name for name in sorted(await disk.listdir(lost))]
    except (FileNotFoundError, PermissionError):
        return []
    found = []
    wanted = (*SMALL_FILES, REASON_FILE, STATE_FILE)
    for path, contents in zip(paths, await disk.read_folders(paths, wanted), strict=True):
        if contents is None:
            continue
        state, parsed = _state(contents.small_files.get(STATE_FILE)), _NAME.fullmatch(path.name)
        if state is None and parsed is None and STATE_FILE not in contents.unreadable:
            continue
        for error in contents.unreadable.values():
            raise error
        label = partition_folder_name(state.topic, state.partition) if state else parsed[1] if parsed else ""
        listing = PartitionListing.of(path, contents, label, state.key if state else None)
        if listing is not None:
            reason = contents.small_files.get(REASON_FILE, b"").decode("utf-8", "replace").strip()
            found.append(LostPartition(path, listing.folder.topic, listing.folder.partition, reason, state, listing))
    return found


def _state(data: bytes | None) -> PartitionCheckpoint | None:
    try:
        return None if data is None else next(iter(decode_checkpoint(data)[1].values()), None)
    except CheckpointError:
        return None
