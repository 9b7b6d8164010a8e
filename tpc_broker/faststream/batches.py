"""Batches of records, handed to a handler as lists."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING, Any, cast

import anyio

from tpc_broker.client.values import Record
from tpc_broker.client.work.policies import DeadLetter, dead_letter_headers, decide
from tpc_broker.faststream.failures import NackedError, RejectedError
from tpc_broker.faststream.message import decode_batch, parse_batch
from tpc_broker.faststream.subscriber import TpcSubscriber

if TYPE_CHECKING:
    from collections.abc import Sequence

    from faststream._internal.endpoint.subscriber import SubscriberSpecification
    from faststream._internal.endpoint.subscriber.call_item import CallsCollection
    from faststream.message import StreamMessage

    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.faststream.config import TpcBrokerConfig, TpcSubscriberConfig


class TpcBatchSubscriber(TpcSubscriber):
    """Made by ``broker.subscriber(…, batch=True)``. What a handler says is said of all records of its batch."""

    _parse = staticmethod(parse_batch)
    _decode = staticmethod(decode_batch)

    def __init__(
        self, config: TpcSubscriberConfig, specification: SubscriberSpecification[Any, Any], calls: CallsCollection[Any]
    ) -> None:
        super().__init__(config, specification, calls)
        self._chance = Random()

    async def process_message(self, msg: Any) -> Any:
        """``msg``: a record alone (of `TestTpcBroker`) is a batch of one."""
        return await super().process_message((msg,) if isinstance(msg, Record) else msg)

    @staticmethod
    def _topic_of(message: StreamMessage[Any]) -> str:
        return str(message.raw_message[0].topic)

    async def _consume_at_least_once(self, stream: Stream) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(self._config.concurrency):
                tasks.start_soon(self._work_on, stream)

    async def _work_on(self, stream: Stream) -> None:
        while not self._ends.is_set():
            try:
                await self._work(stream, self._config.max_records, self._handle_batch)
            except NackedError:
                assert self._ends.is_set(), "a batch was given back, and nobody stops"

    async def _handle_batch(self, records: Sequence[Record]) -> None:
        """Until it is finished. `NackedError`: it is not, and the end has come."""
        attempts = 0
        while True:
            attempts += 1
            try:
                await self._handle(tuple(records))
            except (NackedError, RejectedError) as error:
                decided = decide(self._config.on_error, error, attempts, self._chance)
                if isinstance(decided, DeadLetter):
                    await self._write_dead_letters(records, error, attempts, decided.topic)
                if not isinstance(decided, float):
                    return
                with anyio.move_on_after(decided):
                    await self._ends.wait()
                if self._ends.is_set():
                    raise NackedError(str(error)) from error
            else:
                return

    async def _write_dead_letters(
        self, records: Sequence[Record], error: Exception, attempts: int, topic: str
    ) -> None:
        client = cast("TpcBrokerConfig", self._outer_config).client
        now_ms = time.time_ns() // 1_000_000
        slips = [
            await client.post(
                topic, record.value, key=record.key, headers=dead_letter_headers(record, error, attempts, now_ms)
            )
            for record in records
        ]
        for slip in slips:
            await slip

    @property
    def _at_most_once_records(self) -> int:
        return self._config.max_records

    async def _handle_all_once(self, records: Sequence[Record]) -> None:
        await self.consume(tuple(records))
