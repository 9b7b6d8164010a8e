"""`Producer`: what a client's user sends records with."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio
import anyio.lowlevel

from tpc_broker.client.errors import ClientError, ClosedError, DeliveryError, RecordTooLargeError, UndeliveredError
from tpc_broker.client.net.loops import event_maker
from tpc_broker.client.producer.batch import Batch, Failure, as_cell, as_timestamp, header_pairs, record_size
from tpc_broker.client.producer.budget import Budget
from tpc_broker.client.producer.bulk import Bulk
from tpc_broker.client.producer.lane import Lane
from tpc_broker.client.producer.partitioning import TopicLanes
from tpc_broker.client.producer.sender import Sender
from tpc_broker.client.producer.session import Session
from tpc_broker.client.producer.slip import Slip, decided
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Delivered, Fate

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.batches import ProducerIdentity
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.net.tasks import Background
    from tpc_broker.client.producer.bulk import Records, Sent
    from tpc_broker.client.producer.session import TransactionPort
    from tpc_broker.client.producer.settings import ProducerSettings
    from tpc_broker.client.values import HeadersLike

TURN_BYTES: Final = 64 * 1024
"""Posted in one go: then other tasks have their turn."""

CLOSED: Final = "the client is closed: its block has been left"


class ProducerStatistics(NamedTuple):
    """Of one moment."""

    bytes_held: int
    """Of records that wait or are under way."""
    bytes_max: int
    posts_waiting_count: int
    """Calls that wait for room."""
    requests_count: int
    """Under way."""
    batches_count: int
    """Not delivered yet, nor failed."""


class Producer:
    """``tasks`` runs its sender. With ``transaction``: its batches belong to transactions, see `begin`. ``budget``:
    shared with other producers of the client. ``choose``: a number below another one by chance, for records without a
    key.
    """

    def __init__(  # noqa: PLR0913 - most of them have defaults
        self,
        fleet: Fleet,
        tasks: Background,
        settings: ProducerSettings,
        *,
        transaction: TransactionPort | None = None,
        budget: Budget | None = None,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self.settings = settings
        self.budget = Budget(settings.memory_bytes) if budget is None else budget
        self.session = Session(settings, transaction)
        self._fleet = fleet
        self._choose = choose
        self._sender = Sender(fleet, tasks, self.session, self._grow, self._give_up_topic)
        self._lanes: dict[TopicPartition, Lane] = {}
        self._topics: dict[str, TopicLanes] = {}
        self._losses: dict[tuple[TopicPartition, Fate], int] = {}
        self._reasons: dict[TopicPartition, str] = {}
        self._turn_bytes = 0
        self.make_event = event_maker()
        self._closed: str | None = None
        tasks.start_soon(self._sender.run)

    # -- one record ----------------------------------------------------------------------------------------------------

    async def send(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike,
        partition: int | None,
        timestamp: int | None,
    ) -> Delivered:
        """`Client.send`."""
        pairs = header_pairs(headers) if headers else ()
        if value is not None and value.__class__ is not bytes:
            value = as_cell("value", value)
        if key is not None and key.__class__ is not bytes:
            key = as_cell("key", key)
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        size = record_size(key, value, pairs)
        lane = self._lane_nowait(topic, key, partition, size) or await self._lane(topic, key, partition, size)
        if not self.budget.try_take(lane, size):
            lane = await self._room(lane, size, is_free=key is None and partition is None)
        now = time.monotonic()
        batch = lane.room_in(size, now)
        row = batch.add(key, value, pairs, int(time.time() * 1000) if timestamp is None else timestamp, size)
        batch.rows_seen.add(row)
        if not lane.is_queued:
            self._sender.send_now(lane, now)
        try:
            if not batch.is_decided:
                if batch.decided is None:
                    batch.decided = self.make_event()
                await batch.decided.wait()
        except BaseException:
            if not self.withdraw(batch, row):
                self.unsee(batch, row)
            raise
        return batch.result_of(row)

    async def post(  # noqa: PLR0913 - what a record has
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: HeadersLike,
        partition: int | None,
        timestamp: int | None,
    ) -> Slip:
        """`Client.post`."""
        pairs = header_pairs(headers) if headers else ()
        if value.__class__ is not bytes and value is not None:
            value = as_cell("value", value)
        if key is not None and key.__class__ is not bytes:
            key = as_cell("key", key)
        if timestamp is not None:
            timestamp = as_timestamp(timestamp)
        size = record_size(key, value, pairs)
        self._turn_bytes += size
        if self._turn_bytes > TURN_BYTES:
            self._turn_bytes = 0
            await anyio.lowlevel.checkpoint()
        lane = self._lane_nowait(topic, key, partition, size) or await self._lane(topic, key, partition, size)
        if not self.budget.try_take(lane, size):
            lane = await self._room(lane, size, is_free=key is None and partition is None)
        batch = lane.room_in(size, time.monotonic())
        row = batch.add(key, value, pairs, int(time.time() * 1000) if timestamp is None else timestamp, size)
        if not lane.is_queued:
            self._sender.queue(lane)
        return Slip(self, batch, row)

    def withdraw(self, batch: Batch, row: int) -> bool:
        if batch.fate is not Fate.WAITING or batch.is_withdrawn(row):
            return False
        keys, headers = batch.keys, batch.headers
        size = record_size(
            None if keys is None else keys[row], batch.values[row], () if headers is None else headers[row]
        )
        return self._lanes[batch.where].withdraw(batch, row, size)

    async def send_all(self, topic: str, records: Records, partition: int | None) -> Sent:
        """`Client.send_all`."""
        return await Bulk(self, await self.topic(topic), partition).send(records)

    # -- where it goes -------------------------------------------------------------------------------------------------

    def _lane_nowait(self, topic: str, key: bytes | None, partition: int | None, size: int) -> Lane | None:
        """None: it takes a question, or an error is due."""
        if self._closed is not None or self.session.failure is not None:
            raise self._refusal()
        known = self._topics.get(topic)
        if known is None:
            return None
        if partition is None:
            return known.of(key, size)
        return known.lanes[partition] if 0 <= partition < len(known.lanes) else None

    async def _lane(self, topic: str, key: bytes | None, partition: int | None, size: int) -> Lane:
        if topic in self._topics:  # the partition may be a new one
            await self._fleet.answered(lambda: self._fleet.metadata_once([topic]))
            self._grow()
        known = await self.topic(topic)
        return known.of(key, size) if partition is None else known.given(partition)

    async def topic(self, name: str) -> TopicLanes:
        """`UnknownTopicError` when it does not exist."""
        if not isinstance(name, str):
            raise TypeError(f"the name of a topic is str, not {type(name).__name__}")
        known = self._topics.get(name)
        if known is None:
            facts = await self._fleet.topic(name)
            known = self._topics.get(name)
            if known is None:
                lanes = [self._new_lane(name, partition) for partition in range(len(facts.leaders))]
                known = TopicLanes(name, lanes, self.settings.partitioner, self._choose)
                known.topic_id = facts.topic_id
                self._topics[name] = known
        return known

    def _new_lane(self, topic: str, partition: int) -> Lane:
        """One that there was before goes on: what it has under way is to be followed up."""
        where = TopicPartition(topic, partition)
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = Lane(where, self.session, self.budget, self._ended)
        return lane

    def _grow(self) -> list[str]:
        """Partitions that topics have got since, or lost as they were created again; gives the topics."""
        for name, known in self._topics.items():
            facts = self._fleet.topic_nowait(name)
            if facts is None:
                continue
            count = len(facts.leaders)
            for lane in known.cut_off(count, facts.topic_id):
                lane.give_up(Failure(f"the topic was deleted and created again with {count} partitions"))
            for partition in range(len(known.lanes), count):
                known.lanes.append(self._new_lane(name, partition))
        return list(self._topics)

    def _give_up_topic(self, name: str, failure: Failure) -> None:
        """It was deleted. Who sends to it from now on asks for it anew."""
        known = self._topics.pop(name, None)
        for lane in () if known is None else known.lanes:
            lane.give_up(failure)

    async def take(self, lane: Lane, size: int, *, is_free: bool) -> Lane:
        """Room in the budget, taken, now or later."""
        self._check_open()
        return lane if self.budget.try_take(lane, size) else await self._room(lane, size, is_free=is_free)

    def filled(self, lane: Lane) -> None:
        """Something was put into a batch of this lane."""
        if not lane.is_queued:
            self._sender.queue(lane)

    async def _room(self, lane: Lane, size: int, *, is_free: bool) -> Lane:
        """Room for a record, taken; ``is_free``: in whichever partition has it."""
        if size > self.budget.bytes_max:
            text = f"{lane.where}: a record of {size} bytes is larger than the client's memory of"
            raise RecordTooLargeError(f"{text} {self.budget.bytes_max} bytes for records (memory=)")
        known = self._topics.get(lane.where.topic) if is_free else None
        if known is not None:
            lane = known.move_on(size)
            if self.budget.try_take(lane, size):
                return lane
        waiter = self.budget.wait(lane, size)
        admitted = self.make_event()
        waiter.notify = admitted.set
        try:
            await admitted.wait()
            self._check_open()
        except BaseException:
            self.budget.give_up(lane, waiter)
            raise
        return lane

    # -- what became of it ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed is not None or self.session.failure is not None:
            raise self._refusal()

    def _refusal(self) -> ClientError:
        failure = self.session.failure
        if failure is None:
            return ClosedError(self._closed)
        return ClientError(f"the transaction {self.session.transactional_id} can only be aborted: {failure.text}")

    def withdrawn_error(self, where: TopicPartition) -> DeliveryError:
        return DeliveryError(f"{where}: the record was withdrawn", where, Fate.WITHDRAWN)

    def see(self, batch: Batch, row: int) -> None:
        """Somebody waits for a record, or is told of its end."""
        batch.rows_seen.add(row)
        if batch.is_decided:
            self._count(batch.where, batch.fate_of(row), -1)

    def unsee(self, batch: Batch, row: int) -> None:
        batch.rows_seen.discard(row)
        if batch.is_decided:
            self._count(batch.where, batch.fate_of(row), 1)

    def _ended(self, batch: Batch) -> None:
        for fate, count in batch.unseen_failures().items():
            self._count(batch.where, fate, count)
            if batch.failure is not None:
                self._reasons[batch.where] = batch.failure.text

    def _count(self, where: TopicPartition, fate: Fate, change: int) -> None:
        if fate not in (Fate.REFUSED, Fate.UNKNOWN):
            return
        count = self._losses.get((where, fate), 0) + change
        if count > 0:
            self._losses[where, fate] = count
        else:
            self._losses.pop((where, fate), None)

    def raise_losses(self) -> None:
        """`UndeliveredError` for what failed and nobody was told of; told of now."""
        if self._losses:
            losses, self._losses = self._losses, {}
            reasons, self._reasons = self._reasons, {}
            raise UndeliveredError(losses, reasons)

    def statistics(self) -> ProducerStatistics:
        batches_count = sum(len(lane.batches()) for lane in self._lanes.values())
        requests_count = self._sender.requests_count
        budget = self.budget
        return ProducerStatistics(
            budget.bytes_used, budget.bytes_max, budget.waiting_count, requests_count, batches_count
        )

    # -- the end -------------------------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """`Client.flush`."""
        batches = [batch for lane in self._lanes.values() for batch in lane.batches()]
        self._sender.flushes_count += 1
        try:
            self._sender.hurry()
            for batch in batches:
                if not batch.is_decided:
                    await decided(batch, self.make_event)
        finally:
            self._sender.flushes_count -= 1
        self.raise_losses()

    async def leave(self) -> None:
        """Flush for ``leave_seconds`` at most. `UndeliveredError`."""
        seconds = self.settings.leave_seconds
        with anyio.move_on_after(seconds):
            await self.flush()
        self.abandon(f"the client was left, and leave_seconds={seconds:g} were not enough")
        self.raise_losses()

    def close(self) -> None:
        """Nothing is under way, and nothing more comes."""
        self._closed = CLOSED
        self._sender.close()

    def abandon(self, why: str) -> None:
        """Whatever is not delivered yet fails, and nothing more is taken."""
        self._closed = CLOSED
        for lane in self._lanes.values():
            lane.give_up(Failure(why))

    def note_losses(self, error: BaseException) -> None:
        """To an error that the client's block was left by: what was not delivered."""
        try:
            self.raise_losses()
        except UndeliveredError as losses:
            error.add_note(str(losses))

    # -- transactions --------------------------------------------------------------------------------------------------

    def begin(self, identity: ProducerIdentity) -> None:
        """A transaction begins: its batches have this identity. Nothing of the one before is under way. Sequence
        numbers go on when the identity is that of the one before (transactions before KIP-890), else they begin with 0.
        """
        session = self.session
        same = session.identity == identity
        for lane in self._lanes.values():
            lane.forget_identity(keep_sequences=same)
        session.identity = identity
        if session.transaction is not None:
            session.version_max = session.transaction.produce_version_max
        session.failure = None
        session.announced.clear()
        self._losses.clear()
        self._reasons.clear()

    async def drain(self) -> None:
        """Until everything that was handed over is decided. `ClientError` when something was not delivered: the
        transaction can only be aborted.
        """
        batches = [batch for lane in self._lanes.values() for batch in lane.batches()]
        self._sender.flushes_count += 1
        try:
            self._sender.hurry()
            for batch in batches:
                if not batch.is_decided:
                    await decided(batch, self.make_event)
        finally:
            self._sender.flushes_count -= 1
        if self.session.failure is not None:
            raise self._refusal()

    async def discard(self) -> None:
        """Before an abort: what is not under way is dropped, and what is under way is waited for, so that nothing comes
        to the log behind the abort's marker.
        """
        for lane in self._lanes.values():
            lane.give_up(Failure("the transaction was aborted"))
        await self._sender.landed()
