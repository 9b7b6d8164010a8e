"""Tests of an app: handlers called at once, without a broker, or by a broker in memory."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

import anyio
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from tpc_broker.client.values import Delivered, Record
from tpc_broker.faststream.broker import TpcBroker
from tpc_broker.faststream.publisher import TpcProducer, TpcPublishCommand, TpcPublisher
from tpc_broker.faststream.subscriber import TpcSubscriber

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from tpc_broker.client.handle import Reachable


class TestTpcBroker(TestBroker[TpcBroker, Any], broker=TpcBroker):  # type: ignore[call-arg,unused-ignore]
    """``async with TestTpcBroker(broker) as broker: await broker.publish(…)``: the handlers of the topic have run when
    that returns, and what they raise is raised there. There are no partitions, groups or retries.

    ``memory``: a `MemoryBroker` that runs; the app connects to it in place of its own address, and everything is as in
    service: handlers run when the client hands them records. Wait for them by ``await handler.wait_call(timeout)``.
    """

    __test__ = False

    def __init__(self, *brokers: TpcBroker, memory: Reachable | None = None, connect_only: bool | None = None) -> None:
        super().__init__(*brokers, with_real=memory is not None, connect_only=connect_only)
        self._memory = memory

    @asynccontextmanager
    async def _create_ctx(self) -> AsyncGenerator[list[TpcBroker], None]:
        addresses = [broker.bootstrap for broker in self.brokers]
        if self._memory is not None:
            for broker in self.brokers:
                broker.bootstrap = self._memory
        try:
            async with super()._create_ctx() as brokers:
                yield brokers
        finally:
            for broker, address in zip(self.brokers, addresses, strict=True):
                broker.bootstrap = address

    def create_publisher_fake_subscriber(
        self, broker: TpcBroker, publisher: TpcPublisher
    ) -> tuple[TpcSubscriber, bool]:
        for each in self.brokers:
            for found in each.subscribers:
                assert isinstance(found, TpcSubscriber)
                if publisher.topic in found.topics:
                    return found, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: TpcBroker) -> Iterator[None]:
        producer = DirectProducer(broker, self.brokers)
        with change_producer(broker.config.broker_config, producer):
            yield

    async def _fake_connect(self, broker: TpcBroker, *_arguments: Any, **_named: Any) -> Any:
        producer = broker.config.broker_config.producer
        assert isinstance(producer, DirectProducer)
        producer.serializer = broker.config.fd_config._serializer  # noqa: SLF001  (it has no other name)
        return MagicMock()


class DirectProducer(TpcProducer):
    """Hands records to the subscribers of their topics."""

    def __init__(self, broker: TpcBroker, brokers: Sequence[TpcBroker]) -> None:
        super().__init__(broker.config.broker_parser, broker.config.broker_decoder)
        if broker.config.broker_codec is not None:
            self.codec = broker.config.broker_codec
        self._brokers, self._offsets = brokers, count()

    async def publish(self, cmd: TpcPublishCommand) -> Delivered:
        record = await self._record(cmd)
        for subscriber in self._subscribers_of(cmd.destination):
            await subscriber.process_message(record)
        return Delivered(record.topic, record.partition, record.offset, record.timestamp)

    async def request(self, cmd: TpcPublishCommand) -> Record:
        """What the first handler of the topic returns. `SubscriberNotFound`: it has none."""
        for subscriber in self._subscribers_of(cmd.destination):
            with anyio.fail_after(cmd.timeout):
                response = await subscriber.process_message(await self._record(cmd))
            answer = TpcPublishCommand.from_cmd(response.as_publish_command())
            answer.destination = cmd.reply_to
            return await self._record(answer)
        raise SubscriberNotFound(cmd.destination)

    def _subscribers_of(self, topic: str) -> Iterator[TpcSubscriber]:
        for broker in self._brokers:
            for subscriber in broker.subscribers:
                assert isinstance(subscriber, TpcSubscriber)
                if topic in subscriber.topics:
                    yield subscriber

    async def _record(self, cmd: TpcPublishCommand) -> Record:
        value, headers = await self.encoded(cmd)
        timestamp = time.time_ns() // 1_000_000 if cmd.timestamp is None else cmd.timestamp
        partition, offset = cmd.partition or 0, next(self._offsets)
        return Record(cmd.destination, partition, offset, timestamp, cmd.key_bytes, value, headers, 0)
