"""What lies between a membership, which says what is read, and the fronts, which take it.

`StreamReader` is `Reader` and `Source` of `ports`.

A wait that is cancelled takes nothing: whatever is taken is taken after the last await.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Protocol

import anyio
from anyio.lowlevel import checkpoint

from tpc_broker.client.consumer.fetching import Fetcher, FetchSettings
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.starts import Start
from tpc_broker.client.consumer.stock import Stock
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.values import Batch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tpc_broker.client.consumer.decoding import Piece
    from tpc_broker.client.consumer.partitions import Partition
    from tpc_broker.client.consumer.ports import Membership, Watcher
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.requests import TopicPartition

CHECKPOINT_RECORDS: Final = 1000
"""Other tasks run at least once while so many records are taken, even when there is always one."""


class Front(Protocol):
    """Who takes pieces and hands out their records one by one."""

    @property
    def works_at(self) -> TopicPartition | None:
        """Where the records are from that its user has, until the next item is asked for."""

    def settle(self) -> None:
        """Say what is finished by now."""

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Hand out no more of these; the rest of what was taken is given back."""

    def take_back(self, where: TopicPartition) -> None:
        """What was handed out of this one is not worked on any more, and not finished either."""


class StreamReader:
    """``start``: where partitions begin that have no position. ``front`` is set by who makes one."""

    def __init__(self, fleet: Fleet, settings: FetchSettings, start: Start) -> None:
        self._fetcher = Fetcher(fleet, settings)
        self.stock = self._fetcher.stock = Stock(settings.limits, self._fetcher.room, self._there_is_some)
        self.front: Front | None = None
        self.membership: Membership | None = None
        self._settings = settings
        self._start = start
        self._ready = anyio.Event()
        self._quiet = anyio.Event()
        self._taken_count = 0
        self._kept: set[TopicPartition] = set()
        self._watchers: list[Watcher] = []
        self._left_behind: tuple[TopicPartition, float] | None = None
        """What the front's user still works at of a partition that was forgotten, and since when."""

    async def run(self) -> None:
        """Fetch, until cancelled."""
        await self._fetcher.run()

    async def leave(self) -> None:
        """When `run` has ended. The caller bounds the time."""
        await self._fetcher.leave()

    # ---- Reader: what a membership tells and asks

    async def assign(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self.stock.add(positions, self._start)
        self._fetcher.look()
        for watcher in list(self._watchers):
            watcher.assigned(list(positions))

    async def revoke(self, partitions: Collection[TopicPartition], grace_seconds: float) -> None:
        mine = [found for where in partitions if (found := self.stock.partitions.get(where)) is not None]
        for found in mine:
            found.is_held = False
        self._drop(partitions)
        for found in mine:
            self.stock.let_go(found)
        for watcher in list(self._watchers):
            watcher.revoking(partitions)
        with anyio.move_on_after(grace_seconds):
            while any(found.handed or found.where in self._kept for found in mine if self._has(found)):
                await self._quiet.wait()
        self._gone(partitions)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        self._drop(partitions)
        self._gone(partitions)
        for where in partitions:
            found = self.stock.partitions.get(where)
            if found is not None and found.handed and self.front is not None and self.front.works_at == where:
                self._left_behind = where, found.handed_since
            self.stock.remove(where)
            self._kept.discard(where)
        self._now_quiet()
        self._fetcher.look()

    def finished(self) -> dict[TopicPartition, Position]:
        self._settle()
        return {
            where: found.finished
            for where, found in self.stock.partitions.items()
            if found.finished is not None and found.held_from is None and found.finished != found.committed
        }

    def handed_out(self) -> dict[TopicPartition, float]:
        self._settle()
        since = {where: found.handed_since for where, found in self.stock.partitions.items() if found.handed}
        if self._left_behind is not None:
            where, at = self._left_behind
            if self.front is None or self.front.works_at != where:
                self._left_behind = None
            else:
                since[where] = at
        for watcher in self._watchers:
            since.update({where: at for where, (_offset, at) in watcher.under_way().items()})
        return since

    def _drop(self, partitions: Collection[TopicPartition]) -> None:
        if self.front is not None:
            self.front.drop(partitions)

    def _settle(self) -> None:
        if self.front is not None:
            self.front.settle()

    def _gone(self, partitions: Collection[TopicPartition]) -> None:
        """Each is told once, also when `revoke` was cancelled before it came to that."""
        found = [found for where in partitions if (found := self.stock.partitions.get(where)) and not found.is_gone]
        for each in found:
            each.is_gone = True
        if found:
            for watcher in list(self._watchers):
                watcher.gone([each.where for each in found])

    def _has(self, found: Partition) -> bool:
        return self.stock.partitions.get(found.where) is found

    # ---- Source: what a front takes

    def held(self) -> Collection[TopicPartition]:
        return [where for where, found in self.stock.partitions.items() if found.is_held]

    def is_held(self, where: TopicPartition) -> bool:
        found = self.stock.partitions.get(where)
        return found is not None and found.is_held

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def keep(self, where: TopicPartition) -> None:
        self._kept.add(where)

    def let_go(self, where: TopicPartition) -> None:
        self._kept.discard(where)
        self._now_quiet()

    async def take(self, records_max: int | None = None, among: Collection[TopicPartition] | None = None) -> Batch:
        piece = await self.take_piece(records_max, among)
        return Batch(piece.where, list(piece.records), piece.next_offset)

    async def take_piece(
        self, records_max: int | None = None, among: Collection[TopicPartition] | None = None
    ) -> Piece:
        """As `take`, with records that are made when they are asked for."""
        if self._taken_count >= CHECKPOINT_RECORDS:
            await checkpoint()
            self._taken_count = 0
        while True:
            piece = self.stock.take(records_max, among, time.monotonic())
            if piece is not None:
                self._taken_count += piece.records_count
                return piece
            await self._ready.wait()
            self._taken_count = 0

    def finish(self, where: TopicPartition, next_offset: int) -> None:
        found = self.stock.partitions.get(where)
        if found is not None:
            found.finish(next_offset, time.monotonic())
            if not found.handed:
                self._now_quiet()

    def give_back(self, where: TopicPartition, offset: int) -> None:
        found = self.stock.partitions.get(where)
        if found is None or not found.handed or offset >= found.handed[-1].end:
            return  # a seek has been faster
        self.stock.go_back(found, max(offset, found.handed[0].begin))
        self._fetcher.look()
        self._now_quiet()

    async def commit(self) -> None:
        if self.membership is not None:
            await self.membership.commit(self.finished())

    # ---- what transactions have of it

    # Rule: What a transaction holds, or has committed, is never committed by the stream: an offset that is committed
    # plainly stands behind one that waits for the end of a transaction, and would win. Held by
    # tests/client/test_transaction_reading.py.
    def hold(self, where: TopicPartition, first_offset: int | None, after: int | None) -> Partition:
        """Let a transaction have what was handed out from this offset on (None: from the oldest on); ``after``: up to
        where it has it already. `ValueError`: that is not what comes next, or not under way.
        """
        found = self.stock.partitions.get(where)
        if found is None:
            raise ValueError(f"{where} is not read here (any more)")
        self._settle()
        found.hold(first_offset, after)
        return found

    def is_held_still(self, held: Partition) -> bool:
        return self._has(held)

    def commit_held(self, held: Partition, next_offset: int) -> None:
        """The transaction is committed."""
        if self._has(held):
            held.commit_held(next_offset, time.monotonic())
            if not held.handed:
                self._now_quiet()

    def take_back_held(self, held: Partition) -> None:
        """The transaction is aborted: what it had is handed out again."""
        offset, held.held_from, held.finish_asked = held.held_from, None, -1
        if not self._has(held) or offset is None:
            return
        if self.front is not None:
            self.front.take_back(held.where)
        is_seen_to = False
        for watcher in list(self._watchers):
            is_seen_to |= watcher.taken_back(held.where, offset)
        if not is_seen_to:
            self.give_back(held.where, offset)

    def _there_is_some(self) -> None:
        self._ready.set()
        self._ready = anyio.Event()

    def _now_quiet(self) -> None:
        self._quiet.set()
        self._quiet = anyio.Event()

    # ---- what a stream's user asks for

    def positions(self) -> dict[TopicPartition, Position]:
        self._settle()
        return {where: at for where, found in self.stock.partitions.items() if (at := found.reached) is not None}

    def lag(self) -> dict[TopicPartition, int]:
        is_committed = self._settings.isolation == Isolation.READ_COMMITTED
        told = {}
        for where, at in self.positions().items():
            found = self.stock.partitions[where]
            end = found.last_stable_offset if is_committed and found.last_stable_offset >= 0 else found.high_watermark
            if end >= 0:
                told[where] = max(0, end - at.offset)
        return told

    def seek(self, where: TopicPartition, to: Position | Start) -> None:
        """`KeyError`: the partition is not read."""
        found = self.stock.partitions[where]
        self._drop([where])
        if isinstance(to, Start) and to.offset is not None:
            to = Position(to.offset)
        if isinstance(to, Position):
            self.stock.seek(found, to)
            found.finished = to
            found.needs_check = to.leader_epoch >= 0
        else:
            self.stock.restart(found, to)
        self._now_quiet()
        self._fetcher.look()

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """What lies ready is dropped, so that it takes no memory."""
        for where in partitions:
            found = self.stock.partitions[where]
            self._drop([where])
            found.is_paused = True
            self.stock.let_go(found)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for where in partitions:
            self.stock.partitions[where].is_paused = False
        self._fetcher.look()
