"""Partitions that could not be made or opened, for want of space or of a journal that works, say: each is tried again,
at longer and longer distances (`storage.upkeep.retry_delays`).
"""

from __future__ import annotations

import math
from typing import Final

import trio

from tpc_broker.model import TopicPartition
from tpc_broker.storage.upkeep.retry_delays import RetryDelays

RETRY_S: Final = 0.25
"""Between two looks at what is due, and after the first attempt at each."""
RETRY_S_MAX: Final = 10.0


class LackingPartitions(set[TopicPartition]):
    """Of one core. What is tried is taken out, and added again when it fails."""

    def __init__(self) -> None:
        super().__init__()
        self._delays = RetryDelays(RETRY_S_MAX)
        self._more = trio.Event()

    def add(self, key: TopicPartition) -> None:
        """It could not be made."""
        super().add(key)
        self._more.set()

    def due(self, *, due_only: bool = True) -> list[TopicPartition]:
        """Those to be tried now, or all."""
        return [key for key in self if not due_only or self._delays.is_due(key)]

    def tried(self, key: TopicPartition) -> None:
        """It is tried just now."""
        self.discard(key)
        self._delays.tried(key, RETRY_S)

    async def wait_due(self) -> None:
        """Until there are any to be tried."""
        while not self.due():
            self._more = trio.Event()
            with trio.move_on_after(RETRY_S if self else math.inf):
                await self._more.wait()
