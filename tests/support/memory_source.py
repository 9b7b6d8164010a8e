"""A `Source` in memory: logs that the test assigns and revokes; what a front has to keep is asserted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

import anyio

from tpc_broker.client.consumer.ports import Watcher
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Batch, Record


def record_of(where: TopicPartition, offset: int, key: bytes | None = None, value: bytes | None = b"v") -> Record:
    return Record(where.topic, where.partition, offset, 1_000 + offset, key, value, (("h", b"1"), ("h", None)), 0)


class _Held:
    def __init__(self, position: int) -> None:
        self.position = position
        """Finished below."""
        self.cursor = position
        """What is handed out next."""
        self.keeps = 0
        self.is_revoking = False

    @property
    def is_idle(self) -> bool:
        return self.position == self.cursor and not self.keeps


class MemorySource:
    """``logs`` by partition; ``committed`` what the group has. One source is one member."""

    def __init__(
        self, logs: dict[TopicPartition, list[Record]], committed: dict[TopicPartition, int] | None = None
    ) -> None:
        self.logs = logs
        self.committed: dict[TopicPartition, int] = {} if committed is None else committed
        self.commits_count = 0
        self.watchers: list[Watcher] = []
        self.given_back: list[tuple[TopicPartition, int]] = []
        self._held: dict[TopicPartition, _Held] = {}
        self._changed = anyio.Event()
        self._turns: dict[TopicPartition, int] = defaultdict(int)
        self.commit_fails: Exception | None = None

    # -- for the test -------------------------------------------------------------------------------------------------

    def assign(self, *partitions: TopicPartition) -> None:
        for where in partitions:
            assert where not in self._held
            self._held[where] = _Held(self.committed.get(where, 0))
        for watcher in list(self.watchers):
            watcher.assigned(partitions)
        self._tell()

    async def revoke(self, *partitions: TopicPartition, grace_seconds: float = 5.0) -> None:
        """With the commit and the `forget` that a membership does behind it."""
        for where in partitions:
            self._held[where].is_revoking = True
        for watcher in list(self.watchers):
            watcher.revoking(partitions)
        with anyio.move_on_after(grace_seconds):
            while not all(self._held[where].is_idle for where in partitions):
                await self._changed.wait()
        self._forget(partitions)

    def lose(self, *partitions: TopicPartition) -> None:
        self._forget(partitions)

    def append(self, *records: Record) -> None:
        for record in records:
            self.logs.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        self._tell()

    def position(self, where: TopicPartition) -> int:
        return self._held[where].position

    async def wait_until_all_is_finished(self) -> None:
        ends = {where: log[-1].offset + 1 for where, log in self.logs.items() if log}
        while any(self.position(where) < ends.get(where, 0) for where in self._held):
            await self._changed.wait()

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for watcher in list(self.watchers):
            watcher.gone(list(partitions))
        for where in partitions:
            held = self._held.pop(where)
            if held.is_revoking:
                self.committed[where] = held.position
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    # -- `Source` -----------------------------------------------------------------------------------------------------

    async def take(self, records_max: int | None = None, among: Collection[TopicPartition] | None = None) -> Batch:
        while True:
            for where in sorted(self._held, key=lambda each: (self._turns[each], each)):
                held = self._held[where]
                if held.is_revoking or (among is not None and where not in among):
                    continue
                log = self.logs[where]
                first = next((index for index, record in enumerate(log) if record.offset >= held.cursor), len(log))
                records = log[first : None if records_max is None else first + records_max]
                if records:
                    self._turns[where] += 1
                    held.cursor = records[-1].offset + 1
                    return Batch(where, records, held.cursor)
            await self._changed.wait()

    def held(self) -> Collection[TopicPartition]:
        return [where for where, held in self._held.items() if not held.is_revoking]

    def is_held(self, where: TopicPartition) -> bool:
        return where in self._held and not self._held[where].is_revoking

    def finish(self, where: TopicPartition, next_offset: int) -> None:
        held = self._held.get(where)
        if held is not None:
            assert held.position <= next_offset <= held.cursor, (where, held.position, next_offset, held.cursor)
            held.position = next_offset
            self._tell()

    def give_back(self, where: TopicPartition, offset: int) -> None:
        self.given_back.append((where, offset))
        held = self._held.get(where)
        if held is not None:
            assert held.position <= offset <= held.cursor, (where, held.position, offset, held.cursor)
            held.cursor = offset
            self._tell()

    async def commit(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self.commit_fails is not None:
            raise self.commit_fails
        self.commits_count += 1
        self.committed |= {where: held.position for where, held in self._held.items()}

    def watch(self, watcher: Watcher) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.remove(watcher)

    def keep(self, where: TopicPartition) -> None:
        self._held[where].keeps += 1

    def let_go(self, where: TopicPartition) -> None:
        held = self._held.get(where)
        if held is not None:
            held.keeps -= 1
            self._tell()
