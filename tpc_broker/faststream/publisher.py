"""What is published: commands of FastStream, and what sends them by the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand, Response
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec
from faststream.specification.schema.bindings import ChannelBinding, kafka

from tpc_broker.faststream.config import TpcBrokerConfig, TpcPublisherConfig, TpcPublisherSpecificationConfig
from tpc_broker.faststream.message import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, decode_record, parse_record
from tpc_broker.faststream.replies import Replies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fast_depends.library.serializer import SerializerProto
    from faststream._internal.basic_types import SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import CustomCallable, PublisherMiddleware

    from tpc_broker.client.handle import Client
    from tpc_broker.client.producer.slip import Slip
    from tpc_broker.client.values import Delivered, Headers, Record
    from tpc_broker.faststream.message import TpcMessage

NO_REPLY_TO = "a request needs reply_to=: the topic that its answer comes in"
NOT_CONNECTED = "the broker is not connected: `await broker.connect()`"
REQUEST_SECONDS: Final = 30.0
NO_BATCHES = "publish() is one record; the client gathers batches by itself"


class TpcResponse(Response):
    """What a handler returns that says more than a body: the key, headers, a time stamp (ms since 1970)."""

    def __init__(
        self,
        body: SendableMessage,
        *,
        key: bytes | str | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timestamp: int | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key, self.timestamp = key, timestamp

    def get_publish_key(self) -> bytes | str | None:
        return self.key

    def as_publish_command(self) -> TpcPublishCommand:
        return TpcPublishCommand(
            self.body, topic="", key=self.key, timestamp=self.timestamp, headers=self.headers,
            correlation_id=self.correlation_id, _publish_type=PublishType.PUBLISH,
        )  # fmt: skip


class TpcPublishCommand(PublishCommand):
    def __init__(  # noqa: PLR0913  (what a record has)
        self,
        body: SendableMessage,
        *,
        topic: str,
        _publish_type: PublishType,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        waits: bool = True,
        timeout: float | None = None,
    ) -> None:
        super().__init__(
            body, destination=topic, reply_to=reply_to, correlation_id=correlation_id, headers=headers,
            _publish_type=_publish_type,
        )  # fmt: skip
        self.key, self.partition, self.timestamp, self.waits = key, partition, timestamp, waits
        self.timeout = timeout

    @classmethod
    def from_cmd(cls, cmd: PublishCommand) -> TpcPublishCommand:
        if isinstance(cmd, TpcPublishCommand):
            return cmd
        return cls(
            cmd.body, topic=cmd.destination, headers=cmd.headers, correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to, _publish_type=cmd.publish_type,
        )  # fmt: skip

    @property
    def key_bytes(self) -> bytes | None:
        return self.key.encode() if isinstance(self.key, str) else self.key


def request_command(message: SendableMessage, **named: Any) -> TpcPublishCommand:
    """`ValueError`: it does not say where the answer comes."""
    if not named["reply_to"]:
        raise ValueError(NO_REPLY_TO)
    return TpcPublishCommand(message, waits=True, _publish_type=PublishType.REQUEST, **named)


class TpcProducer(ProducerProto[TpcPublishCommand]):
    """Sends by the client, once the broker is connected."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse_record)
        self._decoder = ParserComposition(decoder, decode_record)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self._client: Client | None = None
        self._replies: dict[str, Replies] = {}

    def connect(self, client: Client, serializer: SerializerProto | None, codec: CodecProto | None) -> None:
        self._client, self.serializer, self.codec = client, serializer, codec or DefaultCodec()

    def disconnect(self) -> None:
        self._client = None

    async def encoded(self, cmd: TpcPublishCommand) -> tuple[bytes | None, Headers]:
        """Value and headers. A body of None with a key is a null value: it deletes the key of a compacted topic."""
        payload, content_type = await self.codec.encode(cmd.body, self.serializer)
        told = {
            CONTENT_TYPE: content_type, CORRELATION_ID: cmd.correlation_id, REPLY_TO: cmd.reply_to, **cmd.headers,
        }  # fmt: skip
        headers = tuple(
            (name, value if isinstance(value, bytes) else str(value).encode()) for name, value in told.items() if value
        )
        return (None if cmd.body is None and cmd.key is not None else payload), headers

    async def publish(self, cmd: TpcPublishCommand) -> Delivered | Slip:
        if self._client is None:
            raise FeatureNotSupportedException(NOT_CONNECTED)
        value, headers = await self.encoded(cmd)
        send = self._client.send if cmd.waits else self._client.post
        return await send(
            cmd.destination, value, key=cmd.key_bytes, headers=headers, partition=cmd.partition,
            timestamp=cmd.timestamp,
        )  # fmt: skip

    async def request(self, cmd: TpcPublishCommand) -> Record:
        """The answer, as it came. `TimeoutError`: there was none in time."""
        if self._client is None:
            raise FeatureNotSupportedException(NOT_CONNECTED)
        assert cmd.correlation_id is not None
        replies = self._replies.get(cmd.reply_to)
        if replies is None or replies.has_failed:
            replies = self._replies[cmd.reply_to] = Replies(self._client, cmd.reply_to)
        with anyio.fail_after(cmd.timeout):
            return await replies.answer(cmd.correlation_id, lambda: self.publish(cmd))

    async def end_replies(self) -> None:
        """While there is a client."""
        replies, self._replies = self._replies, {}
        for one in replies.values():
            await one.end()

    async def publish_batch(self, _cmd: TpcPublishCommand) -> Any:
        raise FeatureNotSupportedException(NO_BATCHES)


class TpcPublisher(PublisherUsecase):
    """Made by ``broker.publisher(…)``."""

    def __init__(self, config: TpcPublisherConfig, specification: PublisherSpecification[Any, Any]) -> None:
        super().__init__(config, specification)
        self._topic, self.key, self.partition = config.topic, config.key, config.partition
        self.headers, self.reply_to = config.headers, config.reply_to

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._topic}"

    async def publish(  # noqa: PLR0913  (what a record has)
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Delivered:
        """As `TpcBroker.publish`, with what this publisher has in place of what is not given."""
        cmd = TpcPublishCommand(
            message, topic=topic or self.topic, key=self.key if key is None else key,
            partition=self.partition if partition is None else partition, timestamp=timestamp,
            headers=self.headers | (headers or {}), correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to, _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        return cast("Delivered", await self._basic_publish(
            cmd, producer=self._outer_config.producer, _extra_middlewares=()
        ))  # fmt: skip

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]) -> None:
        """What a handler has returned."""
        cmd = TpcPublishCommand.from_cmd(cmd)
        cmd.destination = self.topic
        cmd.reply_to = self.reply_to
        cmd.add_headers(self.headers, override=False)
        cmd.partition = self.partition if cmd.partition is None else cmd.partition
        cmd.key = self.key if cmd.key is None else cmd.key
        await self._basic_publish(cmd, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(  # noqa: PLR0913  (what a record has)
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        timeout: float | None = REQUEST_SECONDS,  # noqa: ASYNC109  (FastStream's own)
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> TpcMessage:
        """As `TpcBroker.request`, with what this publisher has in place of what is not given."""
        cmd = request_command(
            message, topic=topic or self.topic, key=self.key if key is None else key,
            partition=self.partition if partition is None else partition, timestamp=timestamp,
            headers=self.headers | (headers or {}), correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self.reply_to, timeout=timeout,
        )  # fmt: skip
        return cast("TpcMessage", await self._basic_request(cmd, producer=self._outer_config.producer))


class ReplyPublisher(FakePublisher):
    """To the topic that a record wants its answer in."""

    def __init__(self, producer: ProducerProto[Any], topic: str) -> None:
        super().__init__(producer=producer)
        self.topic = topic

    def patch_command(self, cmd: PublishCommand) -> TpcPublishCommand:
        made = TpcPublishCommand.from_cmd(super().patch_command(cmd))
        made.destination = self.topic
        return made


class TpcPublisherSpecification(PublisherSpecification[TpcBrokerConfig, TpcPublisherSpecificationConfig]):
    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        binding = kafka.ChannelBinding(topic=self.topic, partitions=None, replicas=None)
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.topic, description=self.config.description_,
                operation=Operation(message=message, bindings=None), bindings=ChannelBinding(kafka=binding),
            )
        }  # fmt: skip
