"""What a core in memory has in place of a machine: clock and chance that are given, and no disk."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, TypeVar

import trio

from tpc_broker.storage.ports import FileSystemStatus

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

T = TypeVar("T")


class MemoryClock:
    """trio's, and a wall clock that goes with it: `wall_ahead_ms` ahead of it, which can be set."""

    def __init__(self, wall_ahead_ms: int = 0) -> None:
        self.wall_ahead_ms = wall_ahead_ms

    def wall_ms(self) -> int:
        return self.monotonic_ms() + self.wall_ahead_ms

    def monotonic_ms(self) -> int:
        return self.monotonic_ns() // 1_000_000

    def monotonic_ns(self) -> int:
        return round(trio.current_time() * 1e9)

    def cpu_ns(self) -> int:
        return 0


class MemoryChance:
    """`Chance` from a seed."""

    def __init__(self, source: random.Random) -> None:
        self.uniform = source.uniform
        self._source = source

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self._source.getrandbits(128), version=4)


async def in_turn(function: Callable[..., T], /, *arguments: Any) -> T:
    """`InThread`, without a thread."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


class NoDisk:
    """As much of `Disk` as requests ask for: its size, all of which is free."""

    total_bytes = 1 << 40

    def poll_ring(self) -> None:
        """There is none."""

    async def statvfs(self, _path: Path) -> FileSystemStatus:
        await trio.lowlevel.checkpoint()
        return FileSystemStatus(self.total_bytes, self.total_bytes)
