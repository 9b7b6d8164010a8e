"""`TpcBroker`: a client of the cluster for as long as an app runs, and publishing by it."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

import anyio
from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.message import gen_cor_id
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from tpc_broker.client import Client, connect
from tpc_broker.client.errors import ClientError
from tpc_broker.client.values import Record
from tpc_broker.faststream.config import ConnectOptions, TpcBrokerConfig
from tpc_broker.faststream.publisher import REQUEST_SECONDS, TpcProducer, TpcPublishCommand, request_command
from tpc_broker.faststream.registrator import TpcRegistrator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    from fast_depends import Provider
    from fast_depends.dependencies import Dependant
    from fast_depends.library.serializer import SerializerProto
    from faststream import AckPolicy
    from faststream._internal.basic_types import LoggerProto, SendableMessage
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable, IdGenerator
    from faststream.specification.schema.extra import Tag, TagDict
    from typing_extensions import Unpack

    from tpc_broker.client.handle import Reachable
    from tpc_broker.client.producer.slip import Slip
    from tpc_broker.client.values import Delivered
    from tpc_broker.faststream.message import TpcMessage



class _Record(TypedDict, total=False):
    """What a record has besides a body and a topic."""

    key: bytes | str | None
    partition: int | None
    timestamp: int | None
    headers: dict[str, str] | None
    correlation_id: str | None
    reply_to: str


PING_SECONDS = 5.0
MESSAGE_ID_WIDTH = 10


class TpcBroker(TpcRegistrator, BrokerUsecase[Record, Client, TpcBrokerConfig]):
    """``bootstrap``: host:port, several with commas; or a `tpc_broker.testing.MemoryBroker`.

    ``client``: options of `tpc_broker.client.connect`, such as ``{"tls": True, "auth": …, "compression": "zstd"}``.
    ``graceful_timeout``: seconds that handlers have to end when the broker stops. ``ack_policy``: of subscribers that
    have none of their own. The other parameters are FastStream's.
    """

    def __init__(  # noqa: PLR0913  (FastStream's)
        self,
        bootstrap: str | Reachable = "localhost:9092",
        *,
        client: ConnectOptions | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[TpcRegistrator] = (),
        id_generator: IdGenerator = gen_cor_id,
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Tag | TagDict] = (),
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: SerializerProto | None = EMPTY,
        provider: Provider | None = None,
        context: ContextRepo | None = None,
    ) -> None:
        self.bootstrap = bootstrap
        self._options: ConnectOptions = client or {}
        self._task: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()
        shown = bootstrap if isinstance(bootstrap, str) else "memory"
        super().__init__(
            routers=routers,
            config=TpcBrokerConfig(
                producer=TpcProducer(parser, decoder), broker_middlewares=middlewares, broker_parser=parser,
                broker_decoder=decoder, broker_codec=codec, broker_dependencies=dependencies,
                logger=make_logger_state(logger=logger, log_level=log_level, default_storage_cls=_LogParameters),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types, serializer=serializer, provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                graceful_timeout=graceful_timeout, ack_policy=ack_policy, id_generator=id_generator,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description, url=[specification_url or shown], protocol="kafka", protocol_version="auto",
                tags=tags, security=None,
            ),
        )  # fmt: skip

    # -- life ----------------------------------------------------------------------------------------------------------

    async def _connect(self) -> Client:
        """The client lives in a task of its own: an app may start its broker in one task and stop it in another."""
        self._ends = asyncio.Event()
        connected: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run_client(connected))
        either: set[asyncio.Future[Any]] = {self._task, connected}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not connected.done():
            connected.cancel()
            await self._task
        client = connected.result()
        config = self.config.broker_config
        config.connected = client
        cast("TpcProducer", config.producer).connect(client, config.fd_config._serializer, self.config.broker_codec)  # noqa: SLF001  (it has no other name)
        return client

    async def _run_client(self, connected: asyncio.Future[Client]) -> None:
        async with connect(self.bootstrap, **self._options) as client:
            await client.fleet.broker_ids()
            connected.set_result(client)
            await self._ends.wait()

    async def start(self) -> None:
        """Connect, and begin to read."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Subscribers end first, then what was published is delivered. `UndeliveredError`: some of it was not."""
        await super().stop(exc_type, exc_val, exc_tb)
        config = self.config.broker_config
        await cast("TpcProducer", config.producer).end_replies()
        self._ends.set()
        self._connection = None
        config.connected = None
        cast("TpcProducer", config.producer).disconnect()
        task, self._task = self._task, None
        if task is not None:
            await task

    async def ping(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (FastStream's own)
        """Whether a broker answers within ``timeout`` seconds."""
        connected = self.config.broker_config.connected
        if connected is None:
            return False
        with anyio.move_on_after(PING_SECONDS if timeout is None else timeout):
            try:
                await connected.fleet.metadata_once([])
            except ClientError:
                return False
            return True
        return False

    # -- publishing ----------------------------------------------------------------------------------------------------

    @overload  # type: ignore[override,unused-ignore]
    async def publish(
        self, message: SendableMessage = None, topic: str = "", *, waits: Literal[True] = True,
        **record: Unpack[_Record],
    ) -> Delivered: ...  # fmt: skip
    @overload
    async def publish(
        self, message: SendableMessage = None, topic: str = "", *, waits: Literal[False], **record: Unpack[_Record],
    ) -> Slip: ...  # fmt: skip
    async def publish(  # noqa: PLR0913  (what a record has)
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        waits: bool = True,
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> Delivered | Slip:
        """Send a record, and wait until it is in the log: gives where.

        ``waits`` False: only for room in the client's memory; gives a `Slip`, which can be awaited. A ``message`` of
        None with a ``key`` is a null value. ``timestamp`` in ms since 1970. ``reply_to``: a topic for the answer of
        whoever handles it. Errors are those of `Client.send`.
        """
        cmd = TpcPublishCommand(
            message, topic=topic, key=key, partition=partition, timestamp=timestamp, headers=headers, reply_to=reply_to,
            correlation_id=correlation_id or self.config.id_generator(), waits=waits,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip
        return cast("Delivered | Slip", await self._basic_publish(cmd, producer=self.config.producer))

    async def request(  # type: ignore[override,unused-ignore]  # noqa: PLR0913  (what a record has)
        self,
        message: SendableMessage = None,
        topic: str = "",
        *,
        reply_to: str,
        timeout: float | None = REQUEST_SECONDS,  # noqa: ASYNC109  (FastStream's own)
        key: bytes | str | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
    ) -> TpcMessage:
        """Send a record, and wait for the answer of whoever handles it, which comes in the topic ``reply_to``.

        That topic has to be there; it is read, all of it, from the first request on until the broker stops, so that it
        should be one for each program that asks. `TimeoutError`: no answer within ``timeout`` seconds; the record may
        be handled all the same. `ValueError`: there is no ``reply_to``. Others are those of `Client.send`.
        """
        cmd = request_command(
            message, topic=topic, key=key, partition=partition, timestamp=timestamp, headers=headers,
            reply_to=reply_to, correlation_id=correlation_id or self.config.id_generator(), timeout=timeout,
        )  # fmt: skip
        return cast("TpcMessage", await self._basic_request(cmd, producer=self.config.producer))


class _LogParameters(DefaultLoggerStorage):
    """How wide the columns of the log are."""

    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 4, "group": 0}
        self._level = logging.INFO

    def set_level(self, level: int) -> None:
        self._level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        made = self._get_logger_ref()
        if made is None:
            columns = "".join(f"%({name})-{width}s | " for name, width in self._widths.items() if width)
            text = f"%(asctime)s %(levelname)-8s - {columns}%(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s"
            made = get_broker_logger(
                name="tpc", default_context={"topic": "", "group": ""}, message_id_ln=MESSAGE_ID_WIDTH, fmt=text,
                context=context, log_level=self._level,
            )  # fmt: skip
            self._logger_ref.add(made)
        return cast("LoggerProto", made)
