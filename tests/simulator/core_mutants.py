"""Faults that are planted into what keeps a core's promises, each of which its simulator must find."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import trio

from tests.simulator.core_run import execute, plan
from tests.support.simulated_disk import SimulatedDisk
from tpc_broker._ring import lib
from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.recovery.checkpoint import Checkpointer, JournalFile
from tpc_broker.storage.segments.segments import SegmentFolder

_write_direct = SegmentFolder.write_direct


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
    await self.disk.write_at(self.fd, superblock.encode(), superblock.slot * BLOCK_BYTES)
    self.superblock = superblock


MUTANTS = [
    Mutant("no fdatasync", SimulatedDisk, "fdatasync", _nothing),
    Mutant("no sync of folders", SimulatedDisk, "fsync_directory", _nothing),
    Mutant("an earlier life is not waited for", SimulatedDisk, "wait_landed", _nothing, first_seed=20),
    Mutant("a checkpoint before its data", Checkpointer, "_capture_and_sync", _capture_without_sync),
    Mutant("past the page cache means durable", SegmentFolder, "write_direct", _direct_is_durable, first_seed=30),
    Mutant("a superblock in the page cache", JournalFile, "_write_superblock", _write_superblock_cached),
]

IN_C = {
    "commits are not flushed": lib.TPC_MUTANT_NO_DSYNC,
    "a commit is durable when it is submitted": lib.TPC_MUTANT_EARLY_ACKNOWLEDGE,
    "what is written in place is not flushed": lib.TPC_MUTANT_IN_PLACE_NO_DSYNC,
    "a commit does not wait for what it writes in place": lib.TPC_MUTANT_IN_PLACE_EARLY,
}
"""Faults that only an extension built with -DTPC_MUTANTS has (tests/support/mutants.py)."""
SEEDS_MAX = 60


def find(seeds: Iterable[int], steps: int, in_c: int = 0) -> str | None:
    """What the first run that fails says; None: none does."""
    for seed in seeds:
        try:
            execute(seed, plan(seed, steps), in_c)
        except AssertionError as error:
            return f"seed {seed}: {error}"
    return None


if __name__ == "__main__":
    print(find(range(1, SEEDS_MAX + 1), int(sys.argv[2]), IN_C[sys.argv[1]]) or "")
