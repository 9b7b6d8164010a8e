"""Faults that are planted into what keeps a core's promises, each of which its simulator must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import trio

from tests.support.simulated_disk import SimulatedDisk
from tpc_broker.storage.checkpoint import Checkpointer, JournalFile
from tpc_broker.storage.partition_storage import PartitionStorage
from tpc_broker.storage.segments import SegmentFolder

_write_direct = SegmentFolder.write_direct
_truncate = PartitionStorage.truncate
_update_superblock = JournalFile.update_superblock


@dataclass(frozen=True)
class Mutant:
    """`replacement` takes the place of a method of `owner`; `first_seed` shows it, as the code is now."""

    name: str
    owner: type
    method: str
    replacement: Callable[..., Any]
    first_seed: int = 1

    @contextmanager
    def planted(self) -> Iterator[None]:
        with mock.patch.object(self.owner, self.method, self.replacement):
            yield


async def _nothing(_self: object, *_arguments: object) -> None:
    await trio.lowlevel.checkpoint()


async def _capture_without_sync(_checkpointer: Any, storages: Any, _pace_seconds: float) -> dict[Any, Any]:
    return {storage.key: await storage.capture() for storage in storages}


async def _direct_is_durable(folder: Any, name: str, data: Any, position: int) -> None:
    await _write_direct(folder, name, data, position)
    folder._written.discard(name)
    folder.files.mark_synced(folder.path / name)


async def _write_superblock_cached(self: Any, superblock: Any) -> None:
    await self.disk.write_at(self.fd, superblock.encode(), superblock.slot * 4096)
    self.superblock = superblock


MUTANTS = [
    Mutant("no fdatasync", SimulatedDisk, "fdatasync", _nothing),
    Mutant("no sync of folders", SimulatedDisk, "fsync_directory", _nothing),
    Mutant("an earlier life is not waited for", SimulatedDisk, "wait_landed", _nothing),
    Mutant("a checkpoint before its data", Checkpointer, "_capture_and_sync", _capture_without_sync),
    Mutant("past the page cache means durable", SegmentFolder, "write_direct", _direct_is_durable),
    Mutant("a superblock in the page cache", JournalFile, "_write_superblock", _write_superblock_cached),
]
