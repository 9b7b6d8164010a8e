"""Handlers that a broker includes, under a prefix of their topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from faststream._internal.broker.router import BrokerRouter
from faststream._internal.constants import EMPTY

from tpc_broker.client.values import Record
from tpc_broker.faststream.config import TpcBrokerConfig
from tpc_broker.faststream.registrator import TpcRegistrator

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from fast_depends.dependencies import Dependant
    from faststream import AckPolicy
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class TpcRouter(TpcRegistrator, BrokerRouter[Record, TpcBrokerConfig]):
    """``router = TpcRouter("eu.")``; then ``@router.subscriber("orders")``, and ``broker.include_router(router)``."""

    def __init__(  # noqa: PLR0913  (FastStream's)
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[TpcRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = EMPTY,
    ) -> None:
        super().__init__(
            handlers=(),
            config=TpcBrokerConfig(
                prefix=prefix, ack_policy=ack_policy, broker_dependencies=dependencies, broker_middlewares=middlewares,
                broker_parser=parser, broker_decoder=decoder, include_in_schema=include_in_schema,
            ),
            routers=routers,
        )  # fmt: skip
