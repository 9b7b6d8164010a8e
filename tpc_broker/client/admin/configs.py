"""Settings of topics, brokers, groups and client metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tpc_broker.client import configs
from tpc_broker.client.configs import Resource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.admin.asking import Asker
    from tpc_broker.client.configs import Setting
    from tpc_broker.client.exchange import Exchange

T = TypeVar("T")


class Configs:
    """`client.admin.configs`. A broker's ``name`` is its id, "" is what holds for all brokers."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def describe(self, kind: Resource, name: str) -> list[Setting]:
        """All settings of one thing with their sources and explanations, by name."""
        return await self._ask(kind, name, configs.to_describe(kind, name))

    async def alter(
        self, kind: Resource, name: str, changes: Mapping[str, str | None], *, validate_only: bool = False
    ) -> None:
        """Set, or where the value is None, unset; all of it or nothing. What is not named stays.
        `RefusedError` with the broker's reason.
        """
        await self._ask(kind, name, configs.to_alter(kind, name, changes, validate_only=validate_only))

    async def topic(self, name: str) -> dict[str, str | None]:
        """A topic's settings without their explanations."""
        return {one.name: one.value for one in await self.describe(Resource.TOPIC, name)}

    async def _ask(self, kind: Resource, name: str, exchange: Exchange[T]) -> T:
        broker_id = configs.broker_asked(kind, name)
        if broker_id is None:
            return await self._asker.any_broker(exchange)
        return await self._asker.known_broker(broker_id, exchange)
