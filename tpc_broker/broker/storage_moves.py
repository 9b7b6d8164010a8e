"""Partitions that change their core: between yesterday's number of cores and today's (HARD_PARTS 8).

Theory of operation
-------------------
What a partition's files certainly hold is said by the checkpoint of the core that owns it. So a partition moves by moving
its entry. When the number of cores has changed, every journal is recovered first, which leaves all of them without
anything to replay. Then, with no core running:

1. *gather*: the entries of all checkpoints go into one file, ``unowned.checkpoint``, durably; entries of cores win over
   those that an earlier gathering left there;
2. each core's checkpoint becomes an empty one.

Killed in between, it is done again with the same result. A core that starts *adopts* from the file what it owns today,
and its own checkpoint names that before its journal holds an entry for it. From then on its own checkpoint counts; what
the file still says of that partition is passed over.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from tpc_broker.broker.storage_checkpoint import read_checkpoint, write_checkpoint
from tpc_broker.log.checkpoint import decode_checkpoint, encode_checkpoint
from tpc_broker.log.files import TEMPORARY_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tpc_broker.broker.ports import Disk
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import CoreId, TopicPartition

UNOWNED_FILE: Final = "unowned.checkpoint"


async def read_unowned(disk: Disk, journals: Path) -> dict[TopicPartition, PartitionCheckpoint]:
    """Entries that the last gathering left; nothing where there was none. CheckpointError when unreadable."""
    path = journals / UNOWNED_FILE
    try:
        status = await disk.stat(path)
    except FileNotFoundError:
        return {}
    fd = await disk.open(path, os.O_RDONLY)
    try:
        data = await disk.read(fd, status.size_bytes, 0)
    finally:
        await disk.close(fd)
    return decode_checkpoint(data)[1]


async def gather(disk: Disk, journals: Path, cores: Iterable[CoreId]) -> int:
    """Take the partitions from all cores, whose journals were recovered just now; how many there are."""
    entries = await read_unowned(disk, journals)
    generations: dict[CoreId, int] = {}
    for core in cores:
        generations[core], of_core = await read_checkpoint(disk, journals, core)
        entries.update(of_core)
    path = journals / UNOWNED_FILE
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = await disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        await disk.write_at(fd, encode_checkpoint(1, entries.values()), 0)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)
    await disk.rename(temporary, path)
    await disk.fsync_directory(journals)
    for core, generation in generations.items():
        await write_checkpoint(disk, journals, core, generation + 1, [])
    return len(entries)
