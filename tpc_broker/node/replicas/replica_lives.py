"""Which life each replica of a core has, where it is not the first.

A replica that was given up and came to its node again is another voter (`metadata.replica_moves`). A core that was down
meanwhile has files of the life before: without this file it would take them for the new voter's, whose promises they
are not. It is written, durably, when nothing of an earlier life is left, and before the new one says anything. Before a
replica goes to another core of the node, that one's file says it, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from tpc_broker.engine import durable_files
from tpc_broker.node.membership.identity import FOLDER
from tpc_broker.options import StartError
from tpc_broker.storage.segments.files import replace_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.storage.ports import Disk
    from tpc_broker.storage.recovery.handover import Given


class ReplicaLives:
    """Of one core. It is read once, and written for all replicas together that come back to the node."""

    def __init__(self, data: Path, core: int) -> None:
        self._path = data / FOLDER / f"lives{core}.json"
        self._lives: dict[str, int] | None = None
        self._writing = trio.Lock()

    def of(self, group: str) -> int:
        """StartError: the file cannot be read."""
        return self._read().get(group, 0)

    async def begin(self, disk: Disk, lives: dict[str, int]) -> None:
        """By group; durable when this returns. OSError: it is not written."""
        async with self._writing:
            found = {**self._read(), **lives}
            await replace_file(disk, self._path, json.dumps(found).encode())
            self._lives = found

    def begin_blocking(self, lives: dict[str, int]) -> None:
        """The same while no core runs."""
        found = {**self._read(), **lives}
        durable_files.replace_file(self._path, json.dumps(found).encode())
        self._lives = found

    def _read(self) -> dict[str, int]:
        if self._lives is None:
            try:
                read = json.loads(self._path.read_text()).items()
                self._lives = {str(group): int(life) for group, life in read}
            except FileNotFoundError:
                self._lives = {}
            except (OSError, ValueError, AttributeError) as error:
                raise StartError(f"{self._path} cannot be read: {error}; it says which replicas began anew") from error
        return self._lives


def hand_lives_over(data: Path, given: Iterable[Given], group_of: Callable[[TopicPartition], str]) -> None:
    """Before replicas go from core to core while none runs: each stays the voter that it was. StartError, OSError."""
    lives: dict[CoreId, ReplicaLives] = {}
    changed: dict[CoreId, dict[str, int]] = {}
    for key, source, target in given:
        for core in (source, target):
            lives.setdefault(core, ReplicaLives(data, core))
        life = lives[source].of(group_of(key))
        if lives[target].of(group_of(key)) != life:
            changed.setdefault(target, {})[group_of(key)] = life
    for core, found in changed.items():
        lives[core].begin_blocking(found)
