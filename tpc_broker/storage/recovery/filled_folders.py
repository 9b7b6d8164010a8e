"""Folders in which replicas are filled with what others ship to them, and what a start does with those that it finds,
and with those from which others are filled.

They are `filling/CORE-NAME` in the data directory, on the file system of the partitions' folders. What one is for, and
when its files take the place of a partition's: `installation`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tpc_broker.log.checkpoint import CheckpointError, decode_entry
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.storage.segments.folders import delete_folder, remove_folder, remove_lost_mark
from tpc_broker.storage.segments.segments import make_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tpc_broker.log.journal import JournalEntry
    from tpc_broker.model import CoreId
    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

FILLING: Final = "filling"
SHIPPING: Final = "shipping"
"""Of what other replicas are filled with: see `shipments`."""


def filling_name(core: CoreId, unique: str) -> str:
    """Of a folder in `filling`; what another core has there is not this one's to remove."""
    return f"{core:04d}-{unique}"


async def make_filling_folder(disk: Disk, data: Path, core: CoreId, unique: str) -> Path:
    """A new, empty one; its parent is made durable."""
    if await make_folder(disk, data / FILLING):
        await disk.fsync_directory(data)
    path = data / FILLING / filling_name(core, unique)
    await disk.mkdir(path)
    await disk.fsync_directory(path.parent)
    return path


async def put_in_place(disk: Disk, filled: Path, target: Path, unique: str) -> Path | None:
    """A filled folder becomes the partition's, durably; the old one's new name, None: there is none. May be done again
    after it was cut short. OSError.
    """
    old = None
    with suppress(FileNotFoundError):
        old = await delete_folder(disk, target, unique)
    await disk.rename(filled, target)
    await disk.fsync_directory(target.parent)
    await disk.fsync_directory(filled.parent)
    return old


async def finish_installations(disk: Disk, data: Path, entries: Iterable[JournalEntry], unique: str) -> None:
    """At a start: files that a durable entry of the journal names take their place, if they have not."""
    try:
        names = set(await disk.listdir(data / FILLING))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.kind != EntryKind.ADOPTED:
            continue
        try:
            state = decode_entry(entry.payload)
        except CheckpointError:
            continue  # the plan of its partition says so
        if state.filled in names:
            log.warning("%s-%d was being replaced by another replica's files", state.topic, state.partition)
            target = data / "topics" / partition_folder_name(state.topic, state.partition)
            await remove_lost_mark(disk, data, state.key)
            await put_in_place(disk, data / FILLING / state.filled, target, unique)


async def remove_unfinished(disk: Disk, data: Path, core: CoreId) -> None:
    """After recovery: what this core was filling when it ended is of no use."""
    with suppress(FileNotFoundError):
        for name in await disk.listdir(data / FILLING):
            if name.startswith(filling_name(core, "")):
                await remove_folder(disk, data / FILLING / name)


async def remove_shipments(disk: Disk, data: Path, core: CoreId) -> None:
    """At a start: those of the core's last life."""
    with suppress(FileNotFoundError):
        for name in await disk.listdir(data / SHIPPING):
            if name.startswith(f"{core:04d}-"):
                await remove_folder(disk, data / SHIPPING / name)
