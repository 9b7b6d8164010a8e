"""Which life each replica of a core has, where it is not the first.

A replica that was given up and came to its node again is another voter (`metadata.replica_moves`). A core that was down
meanwhile has files of the life before: without this file it would take them for the new voter's, whose promises they
are not. It is written, durably, when nothing of an earlier life is left, and before the new one says anything. Before a
replica goes to another core of the node, that one's file says it, too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tpc_broker.runtime.cluster.identity import FOLDER
from tpc_broker.runtime.durable_files import replace_file
from tpc_broker.runtime.options import StartError

if TYPE_CHECKING:
    from pathlib import Path


class ReplicaLives:
    """Of one core. Blocking: it is small, and written when a replica comes back to a node, which is seldom."""

    def __init__(self, data: Path, core: int) -> None:
        self._path = data / FOLDER / f"lives{core}.json"
        self._lives: dict[str, int] | None = None

    def of(self, group: str) -> int:
        """StartError: the file cannot be read."""
        return self._read().get(group, 0)

    def begin(self, group: str, life: int) -> None:
        """OSError: it is not written."""
        lives = {**self._read(), group: life}
        replace_file(self._path, json.dumps(lives).encode())
        self._lives = lives

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
