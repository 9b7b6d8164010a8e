"""What `Client.read` gives: records one by one, batches, positions, commits.

The position of a partition moves when the next item is asked for. So what a break or an error in a loop's body leaves
is not finished, not committed, and read again by whoever has the partition next; a loop that is begun again on the
same stream goes on behind it.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import anyio

from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.starts import start_of
from tpc_broker.client.errors import ClientError, PartitionsLostError
from tpc_broker.client.net.tasks import background_tasks
from tpc_broker.client.values import Batch
from tpc_broker.client.work.for_each import WINDOW_RECORDS, ForEachSettings
from tpc_broker.client.work.fronts import Fronts
from tpc_broker.client.work.order_book import Order
from tpc_broker.client.work.policies import OnError, Stop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from tpc_broker.client.consumer.decoding import Piece
    from tpc_broker.client.consumer.ports import GroupIdentity, Membership
    from tpc_broker.client.consumer.reader import StreamReader
    from tpc_broker.client.consumer.starts import StartLike
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Record
    from tpc_broker.client.work.batches import WorkBatch
    from tpc_broker.client.work.for_each import HandledStatistics, UnderWay
    from tpc_broker.client.work.parts import Part, Parts
    from tpc_broker.client.work.policies import Send

BATCH_RECORDS: Final = 1000
WORK_RECORDS: Final = 500
logger = logging.getLogger("tpc.client")


class Stream:
    """Made by `Client.read`. One task at a time reads from it, in one way at a time; several may be in `work`."""

    def __init__(self, reader: StreamReader, membership: Membership, send: Send) -> None:
        self._reader = reader
        self._membership = membership
        self._records: Iterator[Record] = iter(())
        """Of the piece, those that were not handed out."""
        self._piece: Piece | None = None
        self._given: tuple[TopicPartition, int] | None = None
        """What is under way at most, and is finished when the next item is asked for."""
        self._is_waiting = False
        self._is_closed = False
        memory_bytes = reader.stock.limits.memory_bytes
        self._fronts = Fronts(reader, send, lambda: membership.identity, memory_bytes)
        reader.front = self

    # ---- Records and batches

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Record:
        for record in self._records:
            return record
        return await self._next_record()

    async def _next_record(self) -> Record:
        while True:
            self._finish()
            piece = await self._next_piece(None)
            self._piece, self._records = piece, piece.records
            self._given = piece.where, piece.next_offset
            for record in self._records:
                return record

    def batches(self, max_records: int = BATCH_RECORDS) -> Batches:
        """``async for batch in stream.batches()``: records of one partition each, at most ``max_records``, and no more
        than are there already. `ValueError` when that is less than 1.
        """
        if max_records < 1:
            raise ValueError(f"max_records is {max_records}: 1 or more")
        return Batches(self, max_records)

    async def next_batch(self, max_records: int) -> Batch:
        """The next item of `batches`. The one before is finished."""
        self._give_back_rest()
        self._finish()
        piece = await self._next_piece(max_records)
        self._given = piece.where, piece.next_offset
        return Batch(piece.where, list(piece.records), piece.next_offset)

    async def _next_piece(self, records_max: int | None) -> Piece:
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._is_waiting or self._fronts.is_used:
            raise anyio.BusyResourceError("reading from")
        self._is_waiting = True
        try:
            return await self._reader.take_piece(records_max)
        finally:
            self._is_waiting = False

    def _finish(self) -> None:
        """The next item is asked for."""
        self._piece, self._records = None, iter(())
        if self._given is not None:
            where, next_offset = self._given
            self._given = None
            self._reader.finish(where, next_offset)

    def _give_back_rest(self) -> None:
        """Records that nobody has seen."""
        piece = self._piece
        if piece is None or piece.taken_count == piece.records_count:
            return
        offset = piece.offset(piece.taken_count)
        self._piece, self._records, self._given = None, iter(()), (piece.where, offset)
        self._reader.give_back(piece.where, offset)

    # ---- Working on records

    def work(self, *, max_records: int = WORK_RECORDS, commit: bool = True) -> AbstractAsyncContextManager[WorkBatch]:
        """``async with stream.work() as batch:``: records of one partition, at most ``max_records`` of those there are.

        Leaving the block finishes them; an error, or being cancelled, gives them back: they are read again, here or by
        who has the partition then. ``commit`` True also commits before the block is over, and raises what comes of it
        (they stay finished then). False leaves the commit to `commit`, to the stream's own (every ``commit_seconds``
        and at the end), or to a transaction within the block: ``async with client.transaction(…) as tx: …
        tx.done(batch)``.

        Several tasks may work at once: of each partition one has a batch. When the partition is revoked, the block may
        be ended within the group's ``grace_seconds``; behind it `WorkBatch.is_lost`, and leaving commits nothing.
        """
        return self._taken_over().work(max_records=max_records, commit=commit)

    async def for_each(  # noqa: PLR0913 - options with defaults
        self,
        handle: Callable[[Record], Awaitable[object]],
        *,
        concurrency: int = 64,
        order: Literal["key", "partition", "none"] = "key",
        on_error: OnError = Stop(),  # noqa: B008 - it is frozen
        window: int = WINDOW_RECORDS,
        stop: anyio.Event | None = None,
    ) -> None:
        """Call ``handle`` with every record, for up to ``concurrency`` records at once, until cancelled.

        ``order`` "key": records of one key (and partition) one after the other, others beside each other; a record
        without a key has no order to keep. "partition": those of a partition one after the other. "none": all at once.

        What is committed (every ``commit_seconds``, and at the end) lies below everything that is not done. ``window``
        bounds how many records of a partition may lie above, and the stream's ``memory`` how many bytes of all that is
        not done: then the partition waits, and others go on.

        ``on_error``, when ``handle`` raises: ``Stop()``: `HandlerError`, naming the record, surfaces here; ``Skip()``;
        ``dead_letter("topic")``: written there, and finished when that is delivered, else `DeadLetterError`;
        ``Retry(5, then=…)``: tried again after growing pauses, while only what has to keep its order behind it waits.

        Cancelled, or ended by an error, what handlers have is cancelled and read again. ``stop``: once it is set
        nothing more is begun, and this returns when what was under way is done. When a partition is revoked, what is
        under way of it may end within the group's ``grace_seconds``, and is cancelled behind it.
        """
        memory_bytes = self._reader.stock.limits.memory_bytes
        settings = ForEachSettings(concurrency, Order(order), on_error, window, memory_bytes)
        await self._taken_over().for_each(handle, settings, stop)

    def partitions(self) -> AbstractAsyncContextManager[Parts]:
        """``async with stream.partitions() as parts: async for part in parts: …``: each partition that this stream
        reads, and will read, as a `Part` for a task of its own, which ends within the block.
        """
        return self._taken_over().partitions()

    async def for_each_partition(self, handle: Callable[[Part], Awaitable[object]]) -> None:
        """Run ``handle(part)`` in a task of its own for each partition while it is read here, until cancelled.

        When the partition is revoked, loops over the part end, and ``handle`` may do what is left within the group's
        ``grace_seconds``; behind it it is cancelled. Who returns earlier leaves the rest of the partition unread.
        `HandlerError`, naming the partition, when one raises.
        """
        await self._taken_over().for_each_partition(handle)

    def under_way(self) -> list[UnderWay]:
        """Which records the handlers of `for_each` have now, that for longest first."""
        return self._fronts.records_under_way()

    @property
    def handled(self) -> HandledStatistics | None:
        """What the last `for_each` has done by now; None: there was none."""
        return self._fronts.statistics()

    def _taken_over(self) -> Fronts:
        if self._is_closed:
            raise anyio.ClosedResourceError
        if self._is_waiting:
            raise anyio.BusyResourceError("reading from")
        self._give_back_rest()
        self._finish()
        return self._fronts

    # ---- Front: what the reader asks

    @property
    def works_at(self) -> TopicPartition | None:
        return None if self._given is None else self._given[0]

    def settle(self) -> None:
        """The record that was handed out last is under way; those before it are finished."""
        piece = self._piece
        if piece is not None and piece.taken_count:
            self._reader.finish(piece.where, piece.offset(piece.taken_count - 1))

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        piece = self._piece
        if piece is not None and piece.where in partitions:
            self.settle()
            self._give_back_rest()

    def take_back(self, where: TopicPartition) -> None:
        if self._piece is not None and self._piece.where == where:
            self._piece, self._records = None, iter(())
        if self._given is not None and self._given[0] == where:
            self._given = None

    # ---- What else there is to a stream

    @property
    def ledger(self) -> StreamReader:
        """For transactions, which have what they took from here."""
        return self._reader

    @property
    def identity(self) -> GroupIdentity | None:
        """Who commits; None without a group."""
        return self._membership.identity

    @property
    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return sorted(self._reader.stock.partitions)

    @property
    def positions(self) -> dict[TopicPartition, Position]:
        """Where reading would go on if it ended now: behind what is finished. Partitions that nothing is known of yet
        are left out.
        """
        return self._reader.positions()

    @property
    def lag(self) -> dict[TopicPartition, int]:
        """Offsets between each partition's position and its end as readers see it, as far as the last answer told."""
        return self._reader.lag()

    @property
    def held_bytes(self) -> int:
        """What was fetched and not handed out, in bytes: at most ``memory``, and one batch of each broker."""
        return self._reader.stock.held_bytes

    async def commit(self) -> None:
        """What is finished, now. `ClientError`: there is no group, or what the group's coordinator said in the end."""
        await self._reader.commit()

    def seek(self, where: TopicPartition, to: StartLike | Position) -> None:
        """Go on there with a partition; an offset is ``Offset(…)`` or a `Position`. What is under way of it is not
        finished by this. `KeyError`: the partition is not read; `ValueError`: no such place.
        """
        self._reader.seek(where, to if isinstance(to, Position) else start_of(to))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`, and fetch nothing. `KeyError`: a partition is not read."""
        self._reader.pause(partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """`KeyError`: a partition is not read."""
        self._reader.resume(partitions)

    async def _commit_at_times(self, seconds: float) -> None:
        before: object = None
        while True:
            await anyio.sleep(seconds)
            finished = self._reader.finished()
            if finished and finished != before:
                try:
                    await self._reader.commit()
                except PartitionsLostError as error:
                    logger.info("%s", error)
                before = finished

    async def _leave(self, seconds: float) -> None:
        with anyio.move_on_after(seconds, shield=True) as scope:
            self.settle()
            try:
                if self.identity is not None and self._reader.finished():
                    await self._reader.commit()
            except ClientError as error:
                logger.warning("on leaving, what was finished could not be committed: %s", error)
        if scope.cancelled_caught:
            logger.warning("on leaving, what was finished could not be committed within %g s (leave_seconds)", seconds)

    async def _say_goodbye(self, seconds: float) -> None:
        self._is_closed = True
        self._finish_nothing()
        has_left = False
        with anyio.move_on_after(seconds, shield=True):
            try:
                await self._membership.leave()
            except ClientError as error:
                logger.warning("the group could not be left, which it notices in a while: %s", error)
            has_left = True
            await self._reader.leave()
        if not has_left:
            logger.warning("the group could not be left within %g s (leave_seconds)", seconds)

    def _finish_nothing(self) -> None:
        self._piece, self._records, self._given = None, iter(()), None


class Batches:
    """The batches of a stream, as an asynchronous iterator."""

    def __init__(self, stream: Stream, max_records: int) -> None:
        self._stream = stream
        self._max_records = max_records

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> Batch:
        return await self._stream.next_batch(self._max_records)


@asynccontextmanager
async def streaming(
    reader: StreamReader, membership: Membership, send: Send, *, commit_seconds: float, leave_seconds: float
) -> AsyncIterator[Stream]:
    """A stream that runs while the block does. Leaving commits what is finished, and takes at most ``leave_seconds``
    for that and as many for saying goodbye to the group and to brokers.

    A block that is cancelled is a member until it has left, as background tasks go on till then: handlers that end what
    they have may take their time, and the last commit may have to wait for the group's next round.
    """
    reader.membership = membership
    stream = Stream(reader, membership, send)
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(reader.run)
            tasks.start_soon(membership.run)
            if membership.identity is not None:
                tasks.start_soon(stream._commit_at_times, commit_seconds)  # noqa: SLF001 - of this module
            try:
                yield stream
            finally:
                await stream._leave(leave_seconds)  # noqa: SLF001
    finally:
        await stream._say_goodbye(leave_seconds)  # noqa: SLF001
