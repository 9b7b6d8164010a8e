"""Partitions of a stream as streams of their own: each from its assignment to its revocation."""

from __future__ import annotations

import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import anyio

from tpc_broker.client.work.failures import FirstFailure, HandlerError, PartitionRevokedError, as_error, said_by
from tpc_broker.client.work.for_each import MEMORY_BYTES, WINDOW_RECORDS, ForEach, ForEachSettings
from tpc_broker.client.work.one_partition import OnePartition
from tpc_broker.client.work.order_book import Order
from tpc_broker.client.work.policies import Stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType

    from tpc_broker.client.consumer.ports import Source
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch, Record
    from tpc_broker.client.work.batches import WorkBatch, Works
    from tpc_broker.client.work.policies import OnError, Send

BATCH_RECORDS: Final = 500
CONCURRENCY: Final = 64


class Handling(NamedTuple):
    """What `for_each` of parts takes beside their source: who sends dead letters, and the memory for all of them."""

    send: Send
    memory_bytes: int = MEMORY_BYTES


class Part:
    """One partition, for one task. ``async with part:`` is its scope, which `for_each_partition` opens for its handler:

    When the partition is revoked, `is_ending` is true and there is no next item: loops over the part end. Within the
    grace the block may do what is left to do; what is finished when it is left is committed. When the grace is over, or
    the partition was lost without one, the block is cancelled.

    The position moves when the next item is asked for: the item that a loop was left with is read again.
    """

    def __init__(self, source: Source, works: Works, handling: Handling, where: TopicPartition) -> None:
        self.where = where
        self.topic, self.partition = where
        self.is_ending = False
        self.is_gone = False
        self._source = source
        self._works = works
        self._handling = handling
        self._stop: anyio.Event | None = None
        """Of `for_each`, while it runs."""
        self._scope = anyio.CancelScope()
        self._taking: anyio.CancelScope | None = None
        self._is_kept = False
        self._records: Sequence[Record] = ()
        """Of the batch that is out; `_index` is behind what was handed out, `_next_offset` behind all of it."""
        self._index = 0
        self._next_offset = 0
        self._last: tuple[int, float] | None = None

    # -- items --------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Part:
        """Its records. One iteration goes on where another was left."""
        return self

    async def __anext__(self) -> Record:
        index = self._index
        if index < len(self._records) and not self.is_ending:
            record = self._records[index]
            if index:
                self._source.finish(self.where, record.offset)
        else:
            index = 0
            record = (await self.next_batch(BATCH_RECORDS)).records[0]
        self._index = index + 1
        self._last = record.offset, time.monotonic()
        return record

    def batches(self, max_records: int = BATCH_RECORDS) -> PartBatches:
        """Its batches, of up to ``max_records``. Asking for the next one finishes the one before."""
        return PartBatches(self, max_records)

    def work(self, *, max_records: int = BATCH_RECORDS, commit: bool = True) -> AbstractAsyncContextManager[WorkBatch]:
        """A batch of this partition; as `Stream.work`. `PartitionRevokedError`: there is none any more."""
        return self._works.on(lambda: self._take_for_work(max_records), commit=commit)

    async def for_each(
        self,
        handle: Callable[[Record], Awaitable[object]],
        *,
        concurrency: int = CONCURRENCY,
        order: Literal["key", "none"] = "key",
        on_error: OnError = Stop(),  # noqa: B008 - it is frozen
        window: int = WINDOW_RECORDS,
    ) -> None:
        """Call ``handle`` with every record, for several at once; as `Stream.for_each`. It returns when the partition
        is revoked and what was under way is done, which the grace bounds.
        """
        if self._stop is not None:
            raise RuntimeError(f"{self.where} is handled by another for_each already")
        self._finish_handed_out()
        if self.is_ending:
            return
        share = self._handling.memory_bytes // max(1, len(self._source.held()))
        settings = ForEachSettings(concurrency, Order(order), on_error, window, share)
        self._stop = stop = anyio.Event()
        try:
            await ForEach(OnePartition(self._source, self.where), handle, settings, self._handling.send).run(stop)
        finally:
            self._stop = None

    async def commit(self) -> None:
        """What is finished, now. Leaving the part does it too, if it is left because it was revoked."""
        await self._source.commit()

    async def next_batch(self, max_records: int) -> Batch:
        """Finish what was handed out, and take what comes next. `StopAsyncIteration`: there is nothing any more."""
        self._finish_handed_out()
        try:
            batch = await self._take(max_records)
        except PartitionRevokedError:
            raise StopAsyncIteration from None
        self._records, self._next_offset = batch.records, batch.next_offset
        self._index = len(batch.records)
        self._last = batch.records[0].offset, time.monotonic()
        return batch

    # -- its scope ----------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if not self.is_gone:
            self._is_kept = True
            self._source.keep(self.where)
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._give_back_rest()
        if self._is_kept and not self.is_gone:
            self._source.let_go(self.where)
        self._is_kept = False
        return self._scope.__exit__(kind, error, trace)

    def end(self) -> None:
        """It is being revoked: there is no next item."""
        self.is_ending = True
        if self._taking is not None:
            self._taking.cancel()
        if self._stop is not None:
            self._stop.set()

    def lose(self) -> None:
        """It is another's: what is done with it here ends."""
        self.end()
        self.is_gone = True
        self._scope.cancel()

    def drop(self) -> None:
        """What was handed out is handed out again."""
        self._records, self._last = (), None

    @property
    def last(self) -> tuple[int, float] | None:
        """Of the item that was handed out and is not finished: its first offset, and since when (`time.monotonic`)."""
        return self._last

    # -- within -------------------------------------------------------------------------------------------------------

    async def _take(self, max_records: int) -> Batch:
        while not self.is_ending:
            with anyio.CancelScope() as scope:
                self._taking = scope
                try:
                    batch = await self._source.take(max_records, (self.where,))
                finally:
                    self._taking = None
                if batch.records:
                    return batch
                self._source.finish(self.where, batch.next_offset)
        raise PartitionRevokedError(f"{self.where} is being given to another member")

    async def _take_for_work(self, max_records: int) -> Batch:
        self._finish_handed_out()
        return await self._take(max_records)

    def _finish_handed_out(self) -> None:
        """The next item is asked for: those before are done, and what is left of their batch is not needed."""
        if self._last is not None and not self.is_gone:
            if self._index == len(self._records):
                self._source.finish(self.where, self._next_offset)
            else:
                rest = self._records[self._index].offset
                self._source.finish(self.where, rest)
                self._source.give_back(self.where, rest)
        self._records, self._last = (), None

    def _give_back_rest(self) -> None:
        if self._last is not None and not self.is_gone:
            self._source.give_back(self.where, self._last[0])
        self._records, self._last = (), None


class PartBatches:
    """`Part.batches`."""

    def __init__(self, part: Part, max_records: int) -> None:
        self._part = part
        self._max_records = max_records

    def __aiter__(self) -> PartBatches:
        return self

    async def __anext__(self) -> Batch:
        return await self._part.next_batch(self._max_records)


class Parts:
    """``async for part in parts``: each partition that the stream reads, and reads from now on, once for each time that
    it is assigned.
    """

    def __init__(self, source: Source, works: Works, handling: Handling) -> None:
        self._source = source
        self._works = works
        self._handling = handling
        self._new: deque[Part] = deque()
        self._parts: dict[TopicPartition, Part] = {}
        self._lost: list[Part] = []
        """Whose item is still worked on."""
        self._has_new = anyio.Event()
        self.assigned(source.held())

    def __aiter__(self) -> Parts:
        return self

    async def __anext__(self) -> Part:
        while True:
            while self._new:
                part = self._new.popleft()
                if not part.is_gone:
                    return part
            self._has_new = anyio.Event()
            await self._has_new.wait()

    def end(self) -> None:
        """Nobody tells these parts what becomes of them any more."""
        for part in self._parts.values():
            part.end()

    # -- `Watcher` ----------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            part = self._parts[where] = Part(self._source, self._works, self._handling, where)
            self._new.append(part)
        self._has_new.set()

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            if where in self._parts:
                self._parts[where].end()

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            part = self._parts.pop(where, None)
            if part is not None:
                part.lose()
                self._lost.append(part)

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        del offset
        if where in self._parts:
            self._parts[where].drop()
        return False

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        self._lost = [part for part in self._lost if part.last is not None]
        return {part.where: part.last for part in (*self._parts.values(), *self._lost) if part.last is not None}


@asynccontextmanager
async def parts_of(source: Source, works: Works, handling: Handling) -> AsyncIterator[Parts]:
    """Parts end with the block at the latest: their tasks belong into a task group within it."""
    parts = Parts(source, works, handling)
    source.watch(parts)
    try:
        yield parts
    finally:
        source.unwatch(parts)
        parts.end()


async def handle_each(
    made: AbstractAsyncContextManager[Parts], handle: Callable[[Part], Awaitable[object]]
) -> None:
    """A task for each partition while it is read here. ``made``: `parts_of`."""
    failures = FirstFailure()

    async def run(part: Part) -> None:
        async with part:
            try:
                await handle(part)
            except BaseException as raised:
                error = as_error(raised)
                if error is None:
                    raise
                if not (isinstance(error, PartitionRevokedError) and part.is_ending):
                    if isinstance(error, HandlerError):  # `Part.for_each` has named the record
                        failures.add(error, error.__cause__)
                    else:
                        failures.add(_failure_of(part, error), error)
                    tasks.cancel_scope.cancel()

    try:
        async with made as parts, anyio.create_task_group() as tasks:
            async for part in parts:
                tasks.start_soon(run, part)
    except BaseExceptionGroup as group:
        failures.surface(group)
    failures.surface()


def _failure_of(part: Part, error: Exception) -> HandlerError:
    offset = -1 if part.last is None else part.last[0]
    at = "" if part.last is None else f" at offset {offset}"
    return HandlerError(f"the handler of {part.where} failed{at}: {said_by(error)}", part.where, offset)
