"""A record as FastStream has it, and what its handler has said of it."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio
from faststream.message import AckStatus, StreamMessage, decode_message

if TYPE_CHECKING:
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


class TpcMessage(StreamMessage[Any]):
    """``raw_message`` is the record: topic, partition, offset, timestamp, key, value, all of its headers. For a
    subscriber of batches it is their tuple, of one partition, and ``batch_headers`` has the headers of each as text.
    """

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


def headers_of(record: Record) -> dict[str, str]:
    """As text, of several with one name the last."""
    return {name: value.decode(errors="replace") for name, value in record.headers if value is not None}


async def parse_record(record: Record) -> TpcMessage:
    """A null value is an empty body (`raw_message` tells)."""
    headers = headers_of(record)
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


async def parse_batch(records: tuple[Record, ...]) -> TpcMessage:
    """Nobody gets an answer to a batch: its records may want theirs in different topics."""
    first, last = records[0], records[-1]
    headers = [headers_of(record) for record in records]
    return TpcMessage(
        raw_message=records,
        body=[record.value or b"" for record in records],
        headers=headers[0],
        batch_headers=headers,
        content_type=headers[0].get(CONTENT_TYPE),
        message_id=f"{first.topic}-{first.partition}-{first.offset}-{last.offset}",
        correlation_id=headers[0].get(CORRELATION_ID),
        delivery=current_delivery.get(),
    )


async def decode_batch(message: StreamMessage[Any]) -> Any:
    """Each by its own content type."""
    return [decode_message(await parse_record(record)) for record in message.raw_message]
