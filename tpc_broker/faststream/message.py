"""A record as FastStream has it, and what its handler has said of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

import anyio
from faststream.message import AckStatus, StreamMessage, decode_message

from tpc_broker.client.values import Record

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation_id"
REPLY_TO: Final = "reply_to"


class Delivery:
    """One record on its way through a handler."""

    def __init__(self) -> None:
        self.status: AckStatus | None = None
        self.settled = anyio.Event()

    def settle(self, status: AckStatus) -> None:
        if self.status is None:
            self.status = status
            self.settled.set()


current_delivery: Final[ContextVar[Delivery | None]] = ContextVar("current_delivery", default=None)
"""Of the record that this task handles: parsers are called with the record alone."""


class TpcMessage(StreamMessage[Record]):
    """``raw_message`` is the record: topic, partition, offset, timestamp, key, value, all of its headers."""

    def __init__(self, *arguments: Any, delivery: Delivery | None = None, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._delivery = delivery

    async def ack(self) -> None:
        """The record is finished."""
        await super().ack()
        self._settle()

    async def nack(self) -> None:
        """It is to be handled again."""
        await super().nack()
        self._settle()

    async def reject(self) -> None:
        """It cannot be handled."""
        await super().reject()
        self._settle()

    def _settle(self) -> None:
        if self._delivery is not None and self.committed is not None:
            self._delivery.settle(self.committed)


async def parse_record(record: Record) -> TpcMessage:
    """Headers as text, of several with one name the last; a null value is an empty body (`raw_message` tells)."""
    headers = {name: value.decode(errors="replace") for name, value in record.headers if value is not None}
    return TpcMessage(
        raw_message=record,
        body=record.value or b"",
        headers=headers,
        reply_to=headers.get(REPLY_TO, ""),
        content_type=headers.get(CONTENT_TYPE),
        message_id=f"{record.topic}-{record.partition}-{record.offset}",
        correlation_id=headers.get(CORRELATION_ID),
        delivery=current_delivery.get(),
    )


async def decode_record(message: StreamMessage[Any]) -> Any:
    return decode_message(message)
