"""`stream.work()`: a batch that is finished by leaving its block, and given back by an error or a cancel."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from tpc_broker.client.values import Batch
from tpc_broker.client.work.failures import PartitionRevokedError
from tpc_broker.client.work.intake import Intake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from tpc_broker.client.consumer.ports import GroupIdentity, Source
    from tpc_broker.client.requests import TopicPartition


class WorkBatch(Batch):
    """A `Batch` whose block finishes it. ``next_offset`` is what is committed when its records are done."""

    is_lost: bool
    """The partition is another member's, who handles these records again: leaving the block commits nothing."""
    is_taken_back: bool
    """A transaction that had it was aborted: its records are handed out again."""
    since: float
    _identity: Callable[[], GroupIdentity | None]

    @classmethod
    def of(cls, batch: Batch, identity: Callable[[], GroupIdentity | None]) -> WorkBatch:
        made = cls(batch.where, batch.records, batch.next_offset)
        made.is_lost = made.is_taken_back = False
        made.since = time.monotonic()
        made._identity = identity
        return made

    @property
    def identity(self) -> GroupIdentity | None:
        """The group, and as which member of it the stream reads now: what fences a commit. None: no group.
        `PartitionRevokedError` when the batch `is_lost`: the member that we are now has nothing to say of it.
        """
        if self.is_lost:
            raise PartitionRevokedError(f"{self.where} was given to another member before these records were done")
        return self._identity()


class Works:
    """The batches of one stream that are worked on: of each partition one at a time, so that leaving a block commits
    nothing that another block has not done.
    """

    def __init__(self, source: Source, identity: Callable[[], GroupIdentity | None]) -> None:
        self._source = source
        self._identity = identity
        self._out: dict[TopicPartition, WorkBatch] = {}
        self._shut: set[TopicPartition] = set()
        self._lost: list[WorkBatch] = []
        """Whose blocks have not been left."""
        self._intake = Intake(source, self._shut)

    @asynccontextmanager
    async def any(self, max_records: int, *, commit: bool) -> AsyncIterator[WorkBatch]:
        """Of any partition that nobody works on."""
        async with self.on(lambda: self._intake.take(max_records), commit=commit) as batch:
            yield batch

    @asynccontextmanager
    async def on(self, take: Callable[[], Awaitable[Batch]], *, commit: bool) -> AsyncIterator[WorkBatch]:
        """What ``take`` gives."""
        while not (taken := await take()).records:
            self._source.finish(taken.where, taken.next_offset)
        batch = self._begin(taken)
        try:
            yield batch
        except BaseException:
            self._end(batch)
            if not batch.is_lost and not batch.is_taken_back:
                self._source.give_back(batch.where, batch.records[0].offset)
            raise
        self._end(batch)
        if batch.is_lost or batch.is_taken_back:
            return
        self._source.finish(batch.where, batch.next_offset)
        if commit:
            await self._source.commit()

    def _begin(self, taken: Batch) -> WorkBatch:
        batch = WorkBatch.of(taken, self._identity)
        self._out[batch.where] = batch
        self._shut.add(batch.where)
        return batch

    def _end(self, batch: WorkBatch) -> None:
        if self._out.get(batch.where) is batch:
            del self._out[batch.where]
            self._shut.discard(batch.where)
            self._intake.look_again()
        self._lost = [lost for lost in self._lost if lost is not batch]

    # -- `Watcher` ----------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        del partitions
        self._intake.look_again()

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        """What is out may still be done."""

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        for where in partitions:
            batch = self._out.get(where)
            if batch is not None:
                batch.is_lost = True
                self._end(batch)
                self._lost.append(batch)

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        batch = self._out.get(where)
        if batch is not None and batch.next_offset > offset:
            batch.is_taken_back = True
        return False

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        return {batch.where: (batch.records[0].offset, batch.since) for batch in (*self._out.values(), *self._lost)}
