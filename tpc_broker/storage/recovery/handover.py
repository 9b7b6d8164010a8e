"""Moving partitions between the checkpoints of cores, while no core runs: after the number of cores changed.

A partition belongs to the journal and checkpoint of one core. When ownership changes, everything is first recovered
(all journals are empty then), and the partitions' checkpoint entries move:

1. the marker file `handover` is made;
2. who keeps more of each partition by core hears which ones go (`giving`);
3. every new owner's checkpoint is written with what it has and what it gets;
4. every old owner's checkpoint is written without what it gave; journals of cores that are no more are removed, of
   each when `core_ended` has returned;
5. the marker goes.

A partition that one core has released to another, and that none has adopted, goes to its owner like all others.

Between 3 and 4 a partition stands in two checkpoints with equal entries. Nothing is appended before 5 is done, so a
hand-over that was cut short is done again from what is there: the supervisor sees the marker.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.log.files import (
    HANDOVER_FILE,
    checkpoint_file_name,
    parse_checkpoint_file_name,
    parse_journal_file_name,
)
from tpc_broker.model import CoreId, TopicPartition
from tpc_broker.storage.recovery.checkpoint import JOURNAL_BYTES_MAX_DEFAULT, JournalFile, write_checkpoint
from tpc_broker.storage.recovery.recovery import recover_core

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.recovery import RecoveredCore

async def journal_cores(disk: Disk, data: Path) -> list[CoreId]:
    """Cores whose journals are there."""
    try:
        names = await disk.listdir(data / "journals")
    except FileNotFoundError:
        return []
    return sorted(core for core in map(parse_journal_file_name, names) if core is not None)


async def stored_cores(disk: Disk, data: Path) -> list[CoreId]:
    """Cores whose journals or checkpoints are there; the latter alone when a journal was lost."""
    names = await disk.listdir(data / "journals")
    found = {*map(parse_journal_file_name, names), *map(parse_checkpoint_file_name, names)}
    return sorted(core for core in found if core is not None)


# Rule: A start replays every journal, whatever `--cores` says. See also tpc_broker/process/supervisor.py. Held by
# tests/storage/test_handover.py, tests/durability/test_kill.py.
async def recover_all(
    disk: Disk,
    data: Path,
    new_journal_id: Callable[[], bytes],
    *,
    lock: Callable[[int], Awaitable[None]] | None = None,
    cores: Collection[CoreId] | None = None,
) -> dict[CoreId, RecoveredCore]:
    """Recover every journal that is there (of `cores`), one after the other. Errors as of `recover_core`; what was
    recovered before is closed then.
    """
    recovered: dict[CoreId, RecoveredCore] = {}
    there = await stored_cores(disk, data) if await journal_cores(disk, data) else []
    try:
        for core in there if cores is None else [one for one in there if one in cores]:
            recovered[core] = await recover_core(disk, data, core, new_journal_id=new_journal_id(), lock=lock)
    except BaseException:
        for one in recovered.values():
            await one.close()
        raise
    return recovered


class Given(NamedTuple):
    """A partition that goes from one core to another."""

    key: TopicPartition
    source: CoreId
    target: CoreId


async def _nobody_hears(_of: object) -> None:
    """Of a broker without a cluster."""


async def hand_over(
    disk: Disk,
    data: Path,
    recovered: dict[CoreId, RecoveredCore],
    owner_of: Callable[[TopicPartition, CoreId], CoreId],
    *,
    cores_count: int,
    new_journal_id: Callable[[], bytes],
    journal_bytes_max: int = JOURNAL_BYTES_MAX_DEFAULT,
    giving: Callable[[list[Given]], Awaitable[None]] = _nobody_hears,
    core_ended: Callable[[CoreId], Awaitable[None]] = _nobody_hears,
) -> int:
    """Give each partition's checkpoint entry to its owner; how many moved. Closes what `recover_all` opened.

    `owner_of(partition, core)`: `core` has it now; of what was handed over in part already it may be the owner itself.
    """
    journals = data / "journals"
    before = _settled({core: _entries(one) for core, one in recovered.items()})
    after: dict[CoreId, dict[TopicPartition, PartitionCheckpoint]] = {CoreId(core): {} for core in range(cores_count)}
    given: list[Given] = []
    for core, entries in before.items():
        for key, entry in entries.items():
            owner = owner_of(key, core)
            after[owner][key] = entry
            if owner != core:
                given.append(Given(key, core, owner))
    files = {core: one.journal_file for core, one in recovered.items()}
    await disk.close(await disk.open(journals / HANDOVER_FILE, os.O_RDWR | os.O_CREAT))
    await disk.fsync_directory(journals)
    await giving(given)
    for core, entries in after.items():
        if core not in files:
            files[core] = await JournalFile.create(
                disk, journals, core, journal_id=new_journal_id(), bytes_max=journal_bytes_max,
                journals_count=cores_count,
            )  # fmt: skip
        await _write(files[core], {**before.get(core, {}), **entries})
    for core in sorted(before):
        await _write(files[core], after.get(core, {}))
        if core >= cores_count:
            await core_ended(core)
            await _remove(files[core])
    await disk.unlink(journals / HANDOVER_FILE)
    await disk.fsync_directory(journals)
    for one in recovered.values():
        await one.files.close()
    for file in files.values():
        await file.close()
    return len({one.key for one in given})


def _entries(core: RecoveredCore) -> dict[TopicPartition, PartitionCheckpoint]:
    return {**{key: storage.checkpointed for key, storage in core.storages.items()}, **core.kept}


def _settled(
    before: dict[CoreId, dict[TopicPartition, PartitionCheckpoint]],
) -> dict[CoreId, dict[TopicPartition, PartitionCheckpoint]]:
    """Each partition where it is: releases of what another core has are forgotten; of several that nobody has adopted
    the latest counts, and it is taken back.
    """
    held = {key for entries in before.values() for key, entry in entries.items() if entry.released is None}
    latest: dict[TopicPartition, int] = {}
    for entries in before.values():
        for key, entry in entries.items():
            if key not in held:
                latest[key] = max(latest.get(key, 0), entry.moves)
    settled: dict[CoreId, dict[TopicPartition, PartitionCheckpoint]] = {}
    for core, entries in before.items():
        settled[core] = {
            key: entry if entry.released is None else replace(entry, released=None, moves=entry.moves + 1)
            for key, entry in entries.items()
            if entry.released is None or latest.get(key) == entry.moves
        }
    return settled


async def _write(file: JournalFile, entries: dict[TopicPartition, PartitionCheckpoint]) -> None:
    generation = file.superblock.checkpoint_generation + 1
    await write_checkpoint(file.disk, file.folder, file.core, generation, entries.values())
    await file.update_superblock(checkpoint_generation=generation)


async def _remove(file: JournalFile) -> None:
    """A journal and its checkpoint, both empty. In this order any part of it alone is an empty core as well."""
    await file.update_superblock(checkpoint_generation=0)
    await file.disk.unlink(file.folder / checkpoint_file_name(file.core))
    await file.disk.fsync_directory(file.folder)
    await file.disk.unlink(file.path)
    await file.disk.fsync_directory(file.folder)
