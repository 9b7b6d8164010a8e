"""Taking batches from those of a source's partitions that are open, while which ones are open changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from tpc_broker.client.consumer.ports import Source
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch


class Intake:
    """``shut`` is its owner's: nothing is taken from partitions that are in it. When one leaves it, or what is held has
    changed, the owner says `look_again`.
    """

    def __init__(self, source: Source, shut: AbstractSet[TopicPartition]) -> None:
        self._source = source
        self._shut = shut
        self._turn = anyio.Lock(fast_acquire=True)
        self._narrow: anyio.CancelScope | None = None
        """Of a task that takes among the open ones, or waits for one to open."""

    async def take(self, records_max: int) -> Batch:
        """The next batch of an open partition. One task at a time takes, others wait for their turn: who has a batch
        can shut its partition before the next one looks. A cancelled `take` takes nothing.
        """
        async with self._turn:
            while self._shut:
                with anyio.CancelScope() as scope:
                    self._narrow = scope
                    try:
                        return await self._take_narrowly(records_max)
                    finally:
                        self._narrow = None
            return await self._source.take(records_max)

    def look_again(self) -> None:
        if self._narrow is not None:
            self._narrow.cancel()

    async def _take_narrowly(self, records_max: int) -> Batch:
        among = set(self._source.held()) - self._shut
        if not among:
            await anyio.sleep_forever()
        return await self._source.take(records_max, among)
