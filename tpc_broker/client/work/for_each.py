"""Handlers on the records of a stream: as many at once as was said, in the order that was said.

`ForEach.run` is a task group of
    1. the intake, which adds batches to the order book while it wants more
    2. up to ``concurrency`` workers, made when they are needed first and parked when there is nothing to start: each
       goes from partition to partition, and handles up to `RUN_RECORDS` in a scope that ends when the partition is lost
    3. the clock, which wakes what paused before it is handled again
and hears what becomes of partitions as a `Watcher` of its source. What it decides is in `OrderBook` and `policies`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
from anyio.lowlevel import checkpoint

from tpc_broker.client.work.failures import DeadLetterError, FirstFailure, HandlerError, as_error, place_of, said_by
from tpc_broker.client.work.intake import Intake
from tpc_broker.client.work.order_book import Order, OrderBook, Standing
from tpc_broker.client.work.policies import DeadLetter, OnError, Skip, Stop, dead_letter_headers, decide

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from anyio.abc import TaskGroup

    from tpc_broker.client.consumer.ports import Source
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch, Record
    from tpc_broker.client.work.order_book import Item, Ledger
    from tpc_broker.client.work.policies import Send

RUN_RECORDS: Final = 128
RUN_SECONDS: Final = 0.005
"""That a worker handles of one partition at most, or begins to, before it looks at the others and lets other tasks run:
handlers that await nothing would keep heartbeats from being sent.
"""
BATCH_RECORDS: Final = 500
WINDOW_RECORDS: Final = 4096
MEMORY_BYTES: Final = 64 * 1024 * 1024
AHEAD_RECORDS: Final = 1024
"""Ready to be started, beside two for each worker."""
AWAKENED: Final = 2
"""By a worker that was awakened and leaves something to start."""


@dataclass(frozen=True, slots=True)
class ForEachSettings:
    """``window``: records of a partition from the lowest that is not done on, before it has to wait. ``concurrency``:
    handlers at once. ``memory_bytes``: of records that are not done.
    """

    concurrency: int = 64
    order: Order = Order.KEY
    on_error: OnError = Stop()  # noqa: RUF009 - it is frozen
    window: int = WINDOW_RECORDS
    memory_bytes: int = MEMORY_BYTES

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.window < 1:
            raise ValueError(f"concurrency {self.concurrency} and window {self.window} have to be at least 1")


class UnderWay(NamedTuple):
    """A record that a handler has now. ``seconds``: for how long; ``attempts``: of which this is the last."""

    topic: str
    partition: int
    offset: int
    key_bytes: int | None
    attempts: int
    seconds: float


@dataclass(frozen=True, slots=True)
class HandledStatistics:
    """Counts of records since the beginning, and of those that are here now."""

    handled: int
    """Those that were skipped or became dead letters among them."""
    retried: int
    skipped: int
    dead_letters: int
    under_way: int
    paused: int
    held: int
    """Not done, or done above one that is not; what is under way and paused among them."""


class ForEach:
    """One call of ``for_each``."""

    def __init__(
        self,
        source: Source,
        handle: Callable[[Record], Awaitable[object]],
        settings: ForEachSettings,
        send: Send,
        chance: Random | None = None,
    ) -> None:
        self._source = source
        self._handle = handle
        self._settings = settings
        self._send = send
        self._chance = Random() if chance is None else chance
        ahead = AHEAD_RECORDS + 2 * settings.concurrency
        self._book = OrderBook(settings.order, window=settings.window, ahead=ahead)
        self._intake = Intake(source, self._book.full)
        self._tasks: TaskGroup
        self._workers_count = 0
        self._parked: list[anyio.Event] = []
        self._scopes: dict[Ledger, set[anyio.CancelScope]] = {}
        self._room: anyio.Event | None = None
        """The intake waits for it: there is enough to start."""
        self._pause: anyio.Event | None = None
        """The clock waits for it: something pauses, and ends sooner."""
        self._taking = anyio.CancelScope()
        self._is_ending = False
        self._failures = FirstFailure()
        self._handled = self._retried = self._skipped = self._dead_letters = 0

    async def run(self, stop: anyio.Event | None = None) -> None:
        """Until it is cancelled, a handler's error surfaces, or ``stop`` is set and what was under way is done."""
        self._source.watch(self)
        self._share()
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._take_in)
                self._tasks.start_soon(self._end_pauses)
                if stop is not None:
                    self._tasks.start_soon(self._stop_after, stop)
        except BaseExceptionGroup as group:
            self._failures.surface(group)
        finally:
            self._source.unwatch(self)
            for ledger in self._book.ledgers():
                self._source.give_back(ledger.where, ledger.position)
        self._failures.surface()

    def statistics(self) -> HandledStatistics:
        book = self._book
        counts = self._handled, self._retried, self._skipped, self._dead_letters
        return HandledStatistics(*counts, book.running_count, book.paused_count, book.held_count)

    def records_under_way(self) -> list[UnderWay]:
        """What handlers have now, that for longest first."""
        now = time.monotonic()
        items = sorted(self._book.under_way(), key=lambda item: item.since)
        rows = ((item.record, item) for item in items)
        return [
            UnderWay(
                record.topic, record.partition, record.offset, None if record.key is None else len(record.key),
                item.attempts, now - item.since,
            )
            for record, item in rows
        ]  # fmt: skip

    # -- what the source tells: `Watcher` -----------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        del partitions
        self._share()
        self._intake.look_again()

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            ledger = self._book.withdraw(where)
            if ledger is not None:
                self._release_if_idle(ledger)
        self._look_for_room()

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            ledger = self._book.lose(where)
            for scope in self._scopes.get(ledger, ()) if ledger is not None else ():
                scope.cancel()
        self._share()
        self._look_for_room()

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        """Its handler ends by an error then, and the policy says what is done."""
        del where, offset
        return True

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        now = time.monotonic()
        found = {ledger.where: (ledger.position, now) for ledger in self._book.ledgers()}
        for item in self._book.under_way():
            where = item.ledger.where
            if where not in found or item.since < found[where][1]:
                found[where] = item.record.offset, item.since
        return found

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        with self._taking:
            while True:
                if self._book.wants_more:
                    self._add(await self._intake.take(BATCH_RECORDS))
                else:
                    self._room = anyio.Event()
                    await self._room.wait()

    def _add(self, batch: Batch) -> None:
        where, records, next_offset = batch.where, batch.records, batch.next_offset
        if self._is_ending or not self._source.is_held(where):
            self._source.give_back(where, records[0].offset if records else next_offset)
            return
        ledger = self._book.add(batch)
        if not ledger.held:
            self._source.finish(where, ledger.position)
        self._wake(1)

    async def _end_pauses(self) -> None:
        book = self._book
        while True:
            self._pause = anyio.Event()
            due = book.next_due
            with anyio.CancelScope(deadline=float("inf") if due is None else due):
                await self._pause.wait()
            book.due(anyio.current_time())
            self._wake(1)

    async def _stop_after(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._taking.cancel()
        self._start_no_more()
        for ledger in self._book.ledgers():
            self._release_if_idle(ledger)
        self._end_if_stopped()

    async def _work(self) -> None:
        book = self._book
        is_awakened = True
        while True:
            ledger = book.turn()
            if ledger is None:
                awake = anyio.Event()
                self._parked.append(awake)
                await awake.wait()
                is_awakened = True
                continue
            scopes = self._scopes.setdefault(ledger, set())
            with anyio.CancelScope() as scope:
                scopes.add(scope)
                try:
                    await self._handle_run(ledger, is_awakened=is_awakened)
                finally:
                    is_awakened = False
                    scopes.discard(scope)
                    if not scopes:
                        self._scopes.pop(ledger, None)
            self._release_if_idle(ledger)
            if ledger.standing is Standing.LOST:
                self._wake(1)  # what came back has waited for this end
            if self._is_ending:
                self._end_if_stopped()
            await checkpoint()

    async def _handle_run(self, ledger: Ledger, *, is_awakened: bool) -> None:
        book, handle, finish = self._book, self._handle, self._source.finish
        where, start, done, now = ledger.where, book.start, book.done, time.monotonic
        until = now() + RUN_SECONDS
        for _ in range(RUN_RECORDS):
            begun = now()
            item = start(ledger, begun) if begun < until else None
            if item is None:
                return
            if is_awakened:
                self._wake(AWAKENED)
                is_awakened = False
            try:
                await handle(item.record)
            except BaseException as raised:
                error = as_error(raised)
                if error is None:
                    book.abandon(item)
                    raise
                is_done = await self._settle(item, error)
            else:
                is_done = True
            if is_done:
                self._handled += 1
                if done(item):
                    finish(where, ledger.position)
            if book.has_opened or self._room is not None:
                self._look_for_room()

    # -- what follows from a handler's error --------------------------------------------------------------------------

    async def _settle(self, item: Item, error: Exception) -> bool:
        """True: the record is done, all the same."""
        decided = decide(self._settings.on_error, error, item.attempts, self._chance)
        if isinstance(decided, float):
            self._retry(item, decided)
            return False
        if isinstance(decided, Skip):
            self._skipped += 1
            return True
        if isinstance(decided, DeadLetter):
            return await self._write_dead_letter(item, error, decided.topic)
        times = f" the last of {item.attempts} times" if item.attempts > 1 else ""
        text = f"the handler of {place_of(item.record)} failed{times}: {said_by(error)}"
        self._fail(item, HandlerError(text, item.ledger.where, item.record.offset), error)
        return False

    def _retry(self, item: Item, pause_seconds: float) -> None:
        self._retried += 1
        if self._book.again(item, anyio.current_time() + pause_seconds) and self._pause is not None:
            self._pause.set()

    async def _write_dead_letter(self, item: Item, error: Exception, topic: str) -> bool:
        record = item.record
        headers = dead_letter_headers(record, error, item.attempts, time.time_ns() // 1_000_000)
        try:
            await self._send(topic, record.value, key=record.key, headers=headers)
        except Exception as refusal:  # noqa: BLE001 - whatever it is, the record has no dead letter
            text = f"no dead letter of {place_of(record)} in {topic}: {said_by(refusal)}"
            text += f" (its handler had failed: {said_by(error)})"
            self._fail(item, DeadLetterError(text, item.ledger.where, record.offset), refusal)
            return False
        except BaseException:
            self._book.abandon(item)
            raise
        self._dead_letters += 1
        return True

    def _fail(self, item: Item, failure: HandlerError, cause: Exception) -> None:
        self._book.abandon(item)
        self._start_no_more()
        self._failures.add(failure, cause)
        self._tasks.cancel_scope.cancel()

    def _share(self) -> None:
        """Half of the memory, so that partitions that are stuck leave room for others however many they are."""
        self._book.share_bytes = self._settings.memory_bytes // (2 * max(1, len(self._source.held())))

    # -- small steps --------------------------------------------------------------------------------------------------

    def _wake(self, count: int) -> None:
        """Workers, while there is something to start. Each that finds some does the same, before its handler."""
        for _ in range(count):
            if not self._book.can_start:
                return
            if self._parked:
                self._parked.pop().set()
            elif self._workers_count < self._settings.concurrency:
                self._workers_count += 1
                self._tasks.start_soon(self._work)

    def _look_for_room(self) -> None:
        if self._book.has_opened:
            self._book.has_opened = False
            self._intake.look_again()
        if self._room is not None and self._book.wants_more:
            self._room.set()
            self._room = None

    def _release_if_idle(self, ledger: Ledger) -> None:
        """Of a partition that is being given up, the last handler has ended: nobody needs to wait any longer."""
        if self._book.release(ledger):
            self._source.give_back(ledger.where, ledger.position)

    def _start_no_more(self) -> None:
        self._is_ending = True
        for ledger in self._book.ledgers():
            self._book.withdraw(ledger.where)

    def _end_if_stopped(self) -> None:
        if self._is_ending and not self._book.ledgers() and not self._book.running_count:
            self._tasks.cancel_scope.cancel()

