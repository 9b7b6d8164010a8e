"""Replicas that are to be replicas no more: their logs end where records were committed, and know of no group.

For a copy of a node's data, recovered and not open: what such a log says of terms, votes and voters binds nobody any
more, and what is left of it is all committed, as in a partition that has one replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.log.checkpoint import NO_VOTE
from tpc_broker.log.files import partition_folder_name
from tpc_broker.storage.recovery.checkpoint import capture_and_sync, write_checkpoint
from tpc_broker.storage.segments.folders import delete_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.recovery.recovery import RecoveredCore


async def end_groups(recovered: RecoveredCore, bounds: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Cut each log at its bound (below 0: nowhere), and have it forget its group. Of those that are shorter than their
    bound: how long they are. What was cleaned since the bound was told is committed, and stays. OSError,
    StorageFailedError.
    """
    shorter = {}
    for key, storage in recovered.storages.items():
        bound = bounds.get(key, -1)
        if bound >= 0:
            await storage.truncate(max(bound, storage.cleaned.end_offset), trust_indexes=False)
        if storage.written_end_offset < bound:
            shorter[key] = storage.written_end_offset
        storage.notes.clear()
        storage.voted_for = NO_VOTE
        storage.mark_changed()
    return shorter


async def remove(recovered: RecoveredCore, data: Path, keys: Collection[TopicPartition]) -> None:
    """Partitions of which nothing is wanted, whether they could be recovered or not."""
    disk, topics = recovered.files.disk, data / "topics"
    names = set(await disk.listdir(topics))
    for key in keys:
        storage, offline = recovered.storages.pop(key, None), recovered.offline.pop(key, None)
        if storage is not None:
            await storage.close()
        topic = storage.topic if storage is not None else offline.topic if offline is not None else ""
        path = topics / partition_folder_name(topic, key.partition)
        if path.name in names:
            await delete_folder(disk, path, str(recovered.journal_file.superblock.generation))


async def write_recovered(recovered: RecoveredCore) -> None:
    """All that was changed since recovery, and a checkpoint that says so. OSError, StorageFailedError."""
    file, storages = recovered.journal_file, recovered.storages
    changed = [storage for storage in storages.values() if storage.changed]
    states = {key: storage.checkpointed for key, storage in storages.items()} | recovered.kept
    states |= await capture_and_sync(file, changed)
    generation = file.superblock.checkpoint_generation + 1
    await write_checkpoint(file.disk, file.folder, file.core, generation, states.values())
    await file.update_superblock(checkpoint_generation=generation)
    for storage in changed:
        storage.mark_checkpointed(states[storage.key])
