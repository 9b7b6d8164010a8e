"""What stands in the ``async with``: sending, reading done, commit or abort."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client.batches import ProducerIdentity
from tpc_broker.client.conversation import VERSION_MAX
from tpc_broker.client.errors import (
    ClientError,
    FencedError,
    PartitionsLostError,
    RefusedError,
    TransactionAbortedError,
    TransactionError,
    TransactionInUseError,
)
from tpc_broker.client.producer.front import Producer
from tpc_broker.client.producer.sending import Sending
from tpc_broker.client.transaction.coordination import ANNOUNCED_VERSIONS
from tpc_broker.client.transaction.owner import END_SECONDS, Outcome, Owner
from tpc_broker.client.transaction.reading import Readings
from tpc_broker.kafka import ApiKey, ErrorCode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection
    from contextlib import AbstractAsyncContextManager

    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.net.tasks import Background
    from tpc_broker.client.producer.budget import Budget
    from tpc_broker.client.producer.settings import ProducerSettings
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.transacting import OpenTransaction
    from tpc_broker.client.transaction.reading import Doable, Held, Readable

IDLE_MAX: Final = 16
"""Transactional ids whose producers are kept between their transactions: those used last."""
NEXT_GENERATION_SECONDS: Final = 10.0
"""How long a group may take to tell its member the next generation while a commit waits for it."""
NEXT_GENERATION_PAUSE_SECONDS: Final = 0.05
_OLD_GENERATION: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.REBALANCE_IN_PROGRESS}
)


class Transaction(Sending):
    """Made by `Client.transaction`. What is sent in it is seen by readers of committed records when the block has ended
    well, all of it or nothing.

    A record that is not delivered spoils the transaction: `TransactionAbortedError` at the next call and at the block's
    end. Slips need not be awaited: the block's end waits for all of them.
    """

    def __init__(self, transactor: Transactor, readings: Readings) -> None:
        self.transactional_id = transactor.transactional_id
        self.outcome = Outcome.OPEN
        """What became of it, once its block has ended in whatever way."""
        self._transactor = transactor
        self._readings = readings

    @property
    def producer(self) -> Producer:
        """`TransactionAbortedError`: it can only be aborted."""
        self._check()
        return self._transactor.producer

    def _check(self) -> None:
        if self.outcome is not Outcome.OPEN:
            raise TransactionError(self.transactional_id, f"the transaction is over ({self.outcome.value})")
        failure = self._transactor.producer.session.failure
        if failure is not None:
            raise TransactionAbortedError(self.transactional_id, f"it can only be aborted: {failure.text}")

    def done(self, *what: Doable, stream: Readable | None = None) -> None:
        """The group has read this when the transaction is committed, and reads it again when it is aborted: batches,
        records, or positions by partition (the offset to read on from, below which all is done). Say so before the next
        item is asked for: what is finished by that, the stream may commit by itself.

        ``stream``: whose group that is. None: of all streams of this client, the one that reads the partition.
        `ValueError` when that is none or several, when it is read without a group, or when something before it in its
        partition is under way still.
        """
        self._check()
        for one in what:
            self._readings.done(one, stream)


class Transactor:
    """One transactional id's transactions in a client, one after the other. A `TransactionPort` of its producer."""

    def __init__(
        self, fleet: Fleet, tasks: Background, settings: ProducerSettings, budget: Budget, transactional_id: str
    ) -> None:
        self.transactional_id = transactional_id
        self._owner = Owner(fleet, transactional_id)
        self._making = fleet, tasks, replace(settings, idempotent=True, acks="all")
        self._budget = budget
        self._producer: Producer | None = None
        self._identity: OpenTransaction | None = None
        self._is_touched = False
        """Something of the transaction may be at the coordinator."""
        self._is_in_use = False

    @property
    def producer(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(*self._making, transaction=self, budget=self._budget)
        return self._producer

    @property
    def is_idle(self) -> bool:
        """It has a producer that nothing is done with."""
        if self._producer is None or self._is_in_use:
            return False
        statistics = self._producer.statistics()
        return not statistics.batches_count and not statistics.requests_count

    def abandon(self, why: str) -> None:
        if self._producer is not None:
            self._producer.abandon(why)

    def release(self) -> None:
        """The producer of an idle one. Who owns the id is remembered: another client that has taken it over by then is
        not fenced by the next transaction, which asks for an identity anew, as its sequence numbers begin anew.
        """
        assert self._producer is not None
        self._producer.close()
        self._producer = None
        self._owner.doubt()

    # -- what the producer asks

    @property
    def produce_version_max(self) -> int:
        return (ANNOUNCED_VERSIONS if self._owner.is_announcing else VERSION_MAX)[ApiKey.PRODUCE]

    async def announce(self, partitions: Collection[TopicPartition]) -> None:
        self._is_touched = True
        if self._owner.is_announcing and self._identity is not None:
            await self._owner.coordination.add_partitions(self._identity, partitions)

    # -- one transaction

    @asynccontextmanager
    async def transaction(self, timeout_seconds: float, readings: Readings) -> AsyncIterator[Transaction]:
        if self._is_in_use:
            text = "this client has a transaction of it open; take another id, or wait until that one has ended"
            raise TransactionInUseError(self.transactional_id, text)
        self._is_in_use = True
        try:
            if self._producer is not None:
                await self._producer.discard()  # what an abort had no time to wait for
            self._identity = identity = await self._owner.begin(round(timeout_seconds * 1000))
            self.producer.begin(ProducerIdentity(identity.producer_id, identity.producer_epoch))
            self._is_touched = False
            transaction = Transaction(self, readings)
            try:
                yield transaction
            except BaseException as error:
                found = await self._abort(transaction, readings)
                if found is not None and isinstance(error, ClientError):
                    raise found from error
                if found is not None:
                    error.add_note(str(found))
                raise
            await self._end(transaction, readings)
        finally:
            self._identity = None
            self._is_in_use = False

    async def _end(self, transaction: Transaction, readings: Readings) -> None:
        assert self._identity is not None
        try:
            await self.producer.drain()
            for stream, held in readings.parts():
                await self._commit_offsets(stream, held)
        except ClientError as error:
            undone = await self._abort(transaction, readings)
            if isinstance(undone, FencedError):
                raise undone from error
            raise TransactionAbortedError(self.transactional_id, f"it was aborted: {error}") from error
        except BaseException:
            await self._abort(transaction, readings)
            raise
        if not self._is_touched:
            self._owner.leave_unused()
            transaction.outcome = Outcome.COMMITTED
            readings.committed()
            return
        transaction.outcome, refusal = await self._owner.commit()
        if transaction.outcome is Outcome.COMMITTED:
            readings.committed()
        else:
            readings.aborted()
        if refusal is not None:
            raise refusal
        self._owner.raise_cancellation()

    async def _commit_offsets(self, stream: Readable, held: dict[TopicPartition, Held]) -> None:
        assert self._identity is not None
        positions = {where: one.position for where, one in held.items()}
        until = time.monotonic() + NEXT_GENERATION_SECONDS
        while True:
            lost = [str(where) for where, one in held.items() if not stream.ledger.is_held_still(one.partition)]
            identity = stream.identity
            if lost or identity is None:
                text = f"{', '.join(lost)} went to another member of the group, which reads again what was done"
                raise PartitionsLostError(text)
            self._is_touched = True
            try:
                await self._owner.coordination.commit_offsets(self._identity, identity, positions)
            except RefusedError as error:
                if error.code not in _OLD_GENERATION or time.monotonic() > until:
                    raise
            else:
                return
            # The member may keep the partitions in the next generation, of which it hears by a heartbeat.
            while stream.identity == identity and time.monotonic() <= until:
                await anyio.sleep(NEXT_GENERATION_PAUSE_SECONDS)

    async def _abort(self, transaction: Transaction, readings: Readings) -> TransactionError | None:
        """What the coordinator says of it beside, where it says something. Whatever is cancelled."""
        transaction.outcome = Outcome.ABORTED
        with anyio.move_on_after(END_SECONDS, shield=True):
            await self.producer.discard()
        found = None
        if self._is_touched:
            found = await self._owner.abort()
        else:
            self._owner.leave_unused()
        readings.aborted()
        return found


class Transactors:
    """Of a client, by transactional id, and the streams that what is done in them comes from."""

    def __init__(self, fleet: Fleet, tasks: Background, settings: ProducerSettings, budget: Budget) -> None:
        self._making = fleet, tasks, settings, budget
        self._made: dict[str, Transactor] = {}

    def abandon(self, why: str) -> None:
        """Nothing more is sent in any of them."""
        for transactor in self._made.values():
            transactor.abandon(why)

    def begin(
        self, transactional_id: str, timeout_seconds: float, streams: Collection[Readable]
    ) -> AbstractAsyncContextManager[Transaction]:
        """``streams``: those of the client, as they are at any moment."""
        if not transactional_id:
            raise ValueError("a transactional id has at least one character")
        if not timeout_seconds >= 0.001:
            raise ValueError(f"timeout_seconds is {timeout_seconds}: 0.001 or more")
        made = self._made.pop(transactional_id, None) or Transactor(*self._making, transactional_id)
        self._made[transactional_id] = made  # behind the others
        idle = [one for one in self._made.values() if one.is_idle]
        for one in idle[:-IDLE_MAX]:
            one.release()
        return made.transaction(timeout_seconds, Readings(streams))
