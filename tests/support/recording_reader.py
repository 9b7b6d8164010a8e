"""A reader of the client that fetches nothing: it keeps what a membership tells it, and has done what a test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

import anyio

from tests.support.waiting import PATIENCE_S
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.requests import TopicPartition


class RecordingReader:
    """`told` has every call in order, `held` what is read now, with the position it began at."""

    def __init__(self) -> None:
        self.told: list[tuple[str, frozenset[TopicPartition]]] = []
        self.held: dict[TopicPartition, Position | None] = {}
        self.done: dict[TopicPartition, Position] = {}
        self.under_way: dict[TopicPartition, float] = {}
        self._changed = anyio.Event()

    def _tell(self, what: str, partitions: Collection[TopicPartition]) -> None:
        self.told.append((what, frozenset(partitions)))
        self.changed()

    def changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_until(self, look: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not look():
                await self._changed.wait()

    def works_at(self, where: TopicPartition) -> None:
        self.under_way[where] = time.monotonic()

    def works_no_more(self, where: TopicPartition) -> None:
        self.under_way.pop(where, None)
        self.changed()

    # Reader

    async def assign(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        assert not self.held.keys() & positions.keys(), "what is read already is assigned again"
        self.held |= positions
        self._tell("assign", positions.keys())

    async def revoke(self, partitions: Collection[TopicPartition], grace_seconds: float) -> None:
        assert self.held.keys() >= set(partitions)
        self._tell("revoke", partitions)
        with anyio.move_on_after(grace_seconds):
            await self.wait_until(lambda: not self.under_way.keys() & set(partitions))

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            self.held.pop(where, None)
            self.done.pop(where, None)
        self._tell("forget", partitions)

    def finished(self) -> dict[TopicPartition, Position]:
        return dict(self.done)

    def handed_out(self) -> dict[TopicPartition, float]:
        return dict(self.under_way)
