"""All ways to work on one stream's records: what `Stream` has of this package."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from tpc_broker.client.work.batches import Works
from tpc_broker.client.work.for_each import MEMORY_BYTES, ForEach
from tpc_broker.client.work.parts import Handling, Parts, handle_each, parts_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    import anyio

    from tpc_broker.client.consumer.ports import GroupIdentity, Source
    from tpc_broker.client.values import Record
    from tpc_broker.client.work.batches import WorkBatch
    from tpc_broker.client.work.for_each import ForEachSettings, HandledStatistics, UnderWay
    from tpc_broker.client.work.parts import Part
    from tpc_broker.client.work.policies import Send


class Fronts:
    """Of one stream. One kind is in use at a time, as each keeps its own account of what is done; `work` may be entered
    by several tasks.
    """

    def __init__(
        self,
        source: Source,
        send: Send,
        identity: Callable[[], GroupIdentity | None],
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._source = source
        self._send = send
        self._works = Works(source, identity)
        self._handling = Handling(send, memory_bytes)
        self._used_by = ""
        self._uses_count = 0
        self._for_each: ForEach | None = None

    @asynccontextmanager
    async def work(self, *, max_records: int, commit: bool) -> AsyncIterator[WorkBatch]:
        with self._used("work"):
            async with self._works.any(max_records, commit=commit) as batch:
                yield batch

    async def for_each(
        self, handle: Callable[[Record], Awaitable[object]], settings: ForEachSettings, stop: anyio.Event | None = None
    ) -> None:
        with self._used("for_each"):
            self._for_each = ForEach(self._source, handle, settings, self._send)
            await self._for_each.run(stop)

    @asynccontextmanager
    async def partitions(self) -> AsyncIterator[Parts]:
        with self._used("partitions"):
            async with parts_of(self._source, self._works, self._handling) as parts:
                yield parts

    async def for_each_partition(self, handle: Callable[[Part], Awaitable[object]]) -> None:
        with self._used("partitions"):
            await handle_each(parts_of(self._source, self._works, self._handling), handle)

    def statistics(self) -> HandledStatistics | None:
        """Of the last `for_each`. None: there was none."""
        return None if self._for_each is None else self._for_each.statistics()

    def records_under_way(self) -> list[UnderWay]:
        """Of `for_each`: what handlers have now, that for longest first."""
        return [] if self._for_each is None else self._for_each.records_under_way()

    @property
    def is_used(self) -> bool:
        return self._uses_count > 0

    @contextmanager
    def _used(self, kind: str) -> Iterator[None]:
        if self._uses_count and not self._used_by == kind == "work":
            raise RuntimeError(f"the stream is read by {self._used_by} already: {kind} would not know what is done")
        if not self._uses_count:
            self._source.watch(self._works)
        self._used_by = kind
        self._uses_count += 1
        try:
            yield
        finally:
            self._uses_count -= 1
            if not self._uses_count:
                self._source.unwatch(self._works)
