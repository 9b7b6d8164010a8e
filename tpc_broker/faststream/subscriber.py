"""A stream of the client, handed to a handler."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio
from faststream import AckPolicy
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import StopConsume
from faststream.message import AckStatus
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec
from faststream.specification.schema.bindings import ChannelBinding, kafka

from tpc_broker.faststream.config import (
    TpcBrokerConfig,
    TpcSubscriberConfig,
    TpcSubscriberSpecificationConfig,
    names_of,
)
from tpc_broker.faststream.failures import NackedError, RejectedError, text_of
from tpc_broker.faststream.message import Delivery, TpcMessage, current_delivery, decode_record, parse_record
from tpc_broker.faststream.publisher import ReplyPublisher

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from faststream._internal.endpoint.publisher import PublisherProto
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.client.handle import Client
    from tpc_broker.client.values import Record

AT_MOST_ONCE_RECORDS = 100
"""Committed at once, before the first of them is handled."""


class TpcSubscriber(TasksMixin):
    """Made by ``broker.subscriber(…)``."""

    _parse: Any = staticmethod(parse_record)
    _decode: Any = staticmethod(decode_record)

    def __init__(
        self, config: TpcSubscriberConfig, specification: SubscriberSpecification[Any, Any], calls: CallsCollection[Any]
    ) -> None:
        config.parser, config.decoder = self._parse, self._decode
        super().__init__(config, specification, calls)
        self._config = config
        self._ends = anyio.Event()
        self._waiting: set[anyio.CancelScope] = set()
        """Of tasks that wait for a batch, which the end takes nothing away from."""
        self._pulled: MemoryObjectReceiveStream[Record] | None = None

    @property
    def topics(self) -> list[str]:
        return names_of(self._outer_config.prefix, self._config.topics)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        topic = ",".join(self.topics) if message is None else self._topic_of(message)
        return {"topic": topic, "group": _name_of(self._config.group), "message_id": getattr(message, "message_id", "")}

    @staticmethod
    def _topic_of(message: StreamMessage[Any]) -> str:
        return str(message.raw_message.topic)

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Sequence[PublisherProto]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await super().start()
        self._ends = anyio.Event()
        if self.calls:
            self.add_task(self._consume)
        self._post_start()

    async def stop(self) -> None:
        """What is under way may end within the broker's ``graceful_timeout``, and is committed; then it is cancelled,
        and handled again by who reads next.
        """
        self.running = False
        self._ends.set()
        for scope in list(self._waiting):
            scope.cancel()
        if current_delivery.get() is not None:  # by its own handler, which it would wait for
            return
        under_way = {task for task in self.tasks if not task.done()}
        if self.calls and under_way:
            await asyncio.wait(under_way, timeout=self._outer_config.graceful_timeout)
        await super().stop()
        if under_way:  # cancelled: what is finished is committed while there is a client
            await asyncio.wait(under_way)
        if self._pulled is not None:
            self._pulled.close()
            self._pulled = None

    @asynccontextmanager
    async def _stream(self) -> AsyncIterator[Stream]:
        config = self._config
        client: Client = cast("TpcBrokerConfig", self._outer_config).client
        async with client.read(self.topics, group=config.group, start=config.start, **config.read) as stream:
            yield stream

    async def _consume(self) -> None:
        async with self._stream() as stream:
            if self.ack_policy is AckPolicy.ACK_FIRST:
                await self._consume_at_most_once(stream)
            else:
                await self._consume_at_least_once(stream)

    async def _consume_at_least_once(self, stream: Stream) -> None:
        await stream.for_each(
            self._handle, concurrency=self._config.concurrency, order=self._config.order,
            on_error=self._config.on_error, stop=self._ends,
        )  # fmt: skip

    async def _work(
        self, stream: Stream, max_records: int, handle: Callable[[Sequence[Record]], Awaitable[None]]
    ) -> None:
        """One batch, unless the end comes first. It is finished when ``handle`` returns."""
        with anyio.CancelScope() as waiting:
            self._waiting.add(waiting)
            try:
                async with stream.work(max_records=max_records, commit=False) as batch:
                    self._waiting.discard(waiting)
                    await handle(batch.records)
            finally:
                self._waiting.discard(waiting)

    async def _consume_at_most_once(self, stream: Stream) -> None:
        """Committed first, then handled."""
        records: Sequence[Record] = ()

        async def take(found: Sequence[Record]) -> None:
            nonlocal records
            records = found

        while not self._ends.is_set():
            await self._work(stream, self._at_most_once_records, take)
            if records:
                await stream.commit()
                found, records = records, ()
                await self._handle_all_once(found)

    @property
    def _at_most_once_records(self) -> int:
        return AT_MOST_ONCE_RECORDS

    async def _handle_all_once(self, records: Sequence[Record]) -> None:
        """``concurrency`` at a time."""
        limiter = anyio.CapacityLimiter(self._config.concurrency)
        async with anyio.create_task_group() as tasks:
            for record in records:
                await limiter.acquire_on_behalf_of(record)
                tasks.start_soon(self._handle_once, record, limiter)

    async def _handle_once(self, record: Record, limiter: anyio.CapacityLimiter) -> None:
        try:
            await self.consume(record)
        finally:
            limiter.release_on_behalf_of(record)

    # -- one record, or batch ------------------------------------------------------------------------------------------

    async def _handle(self, record: Any) -> None:
        """Returns when it is finished. `NackedError`, `RejectedError`: what the handler has said of it."""
        delivery, failure = Delivery(), None
        token = current_delivery.set(delivery)
        try:
            await self.process_message(record)
        except StopConsume:
            await self.stop()
            delivery.settle(AckStatus.NACKED)
        except SystemExit:
            await self.stop()
            if app := self._outer_config.context.get("app"):
                app.exit()
            delivery.settle(AckStatus.NACKED)
        except Exception as error:  # noqa: BLE001  (FastStream's middleware has logged it)
            failure = error
        finally:
            current_delivery.reset(token)
        if self.ack_policy is AckPolicy.MANUAL:
            if failure is not None:
                delivery.settle(AckStatus.NACKED)
            await delivery.settled.wait()
        if delivery.status is AckStatus.NACKED:
            raise NackedError(text_of(failure)) from failure
        if delivery.status is AckStatus.REJECTED:
            raise RejectedError(text_of(failure)) from failure

    # -- without a handler ---------------------------------------------------------------------------------------------

    async def _parsed(self, record: Record | None) -> TpcMessage | None:
        parser, decoder = self._get_parser_and_decoder()
        middlewares = (one(record, context=self._outer_config.context) for one in self._broker_middlewares)
        found = await process_msg(msg=record, middlewares=middlewares, parser=parser, decoder=decoder)
        assert found is None or isinstance(found, TpcMessage)
        return found

    async def get_one(self, *, timeout: float = 5.0) -> TpcMessage | None:  # noqa: ASYNC109  (FastStream's own)
        """The next record within ``timeout`` seconds; a wait that ends without one takes none."""
        record = None
        with anyio.move_on_after(timeout):
            record = await self._records().receive()
        return await self._parsed(record)

    async def __aiter__(self) -> AsyncIterator[TpcMessage]:  # type: ignore[override,unused-ignore]
        """All that come, until the subscriber is stopped: a loop that is left takes no more."""
        records = self._records()
        while True:
            message = await self._parsed(await records.receive())
            assert message is not None
            yield message

    def _records(self) -> MemoryObjectReceiveStream[Record]:
        assert not self.calls, "a subscriber with handlers hands all records to them"
        if self._pulled is None:
            send, self._pulled = anyio.create_memory_object_stream[Any](0)
            self.add_task(self._pull, (send,), restart_on_failure=False)
        return self._pulled

    async def _pull(self, send: MemoryObjectSendStream[Record]) -> None:
        """In a task of its own: a stream is read and left in the same one."""
        async with send, self._stream() as stream:
            async for record in stream:
                await send.send(record)


def _name_of(group: Any) -> str:
    return "" if group is None else group if isinstance(group, str) else str(group.group)


class TpcSubscriberSpecification(SubscriberSpecification[TpcBrokerConfig, TpcSubscriberSpecificationConfig]):
    @property
    def topics(self) -> list[str]:
        return names_of(self._outer_config.prefix, self.config.topics)

    @property
    def channel_labels(self) -> list[str]:
        return self.topics

    def get_schema(self) -> dict[str, SubscriberSpec]:
        payload, topics = resolve_payloads(self.get_payloads()), self.topics
        channels = {}
        for topic in topics:
            name = self._channel_key(topic, split=len(topics) > 1)
            binding = kafka.ChannelBinding(topic=topic, partitions=None, replicas=None)
            message = Message(title=f"{name}:Message", payload=payload)
            channels[name] = SubscriberSpec(
                address=topic, description=self.description, operation=Operation(message=message, bindings=None),
                bindings=ChannelBinding(kafka=binding),
            )  # fmt: skip
        return channels
