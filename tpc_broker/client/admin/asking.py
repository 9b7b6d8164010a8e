"""Where an exchange goes: to any broker, the controller, a coordinator, leaders or all brokers, until the deadline."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from tpc_broker.client.cluster import MISSING_TOPIC_SECONDS, is_retriable
from tpc_broker.client.errors import ClientError, RefusedError, UnknownTopicError
from tpc_broker.kafka import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tpc_broker.client.coordinators import CoordinatorKind
    from tpc_broker.client.exchange import Exchange
    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.requests import TopicPartition

_MISSING: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
T = TypeVar("T")


class Asker:
    """What can be tried again is tried again for the fleet's `retry_seconds`. A topic may be missing for
    `MISSING_TOPIC_SECONDS` before that is believed, as brokers hear of a new one one after the other.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._controller_id: int | None = None

    async def answered(self, ask: Callable[[], Awaitable[T]]) -> T:
        missing_until: float | None = None

        async def bounded() -> T:
            nonlocal missing_until
            try:
                return await ask()
            except RefusedError as error:
                if error.code in _MISSING:
                    now = time.monotonic()
                    missing_until = missing_until or now + MISSING_TOPIC_SECONDS
                    if now > missing_until:
                        raise UnknownTopicError(str(error)) from error
                raise

        return await self.fleet.answered(bounded)

    async def any_broker(self, exchange: Exchange[T]) -> T:
        async def ask() -> T:
            return await exchange.through(await self.fleet.any_channel())

        return await self.answered(ask)

    async def controller(self, exchange: Exchange[T]) -> T:
        async def ask() -> T:
            return await exchange.through(await self.controller_channel())

        return await self.changing(ask)

    async def changing(self, ask: Callable[[], Awaitable[T]]) -> T:
        """`answered` of a change that ``ask`` sends to `controller_channel`. What was known is outdated then."""

        async def ask_anew() -> T:
            try:
                return await ask()
            except ClientError:
                self._controller_id = None
                raise
            finally:
                self.fleet.forget()

        return await self.answered(ask_anew)

    async def controller_channel(self) -> Channel:
        """One attempt. Brokers without ZooKeeper name any of them, which hands requests on to the controller."""
        if self._controller_id is None:
            self._controller_id = (await self.fleet.metadata_once([])).controller_id
        if self._controller_id < 0:
            self._controller_id = None
            return await self.fleet.any_channel()
        return await self.fleet.channel(self._controller_id, f"the controller, broker {self._controller_id}, is away")

    async def known_broker(self, broker_id: int, exchange: Exchange[T]) -> T:
        """The broker of this id. Where there is none any other is asked, which says so."""

        async def ask() -> T:
            fleet = self.fleet
            is_there = broker_id in await fleet.broker_ids()
            return await exchange.through(await (fleet.channel(broker_id) if is_there else fleet.any_channel()))

        return await self.answered(ask)

    async def coordinator(self, kind: CoordinatorKind, name: str, exchange: Exchange[T]) -> T:
        return await self.with_coordinator(kind, name, exchange.through)

    async def with_coordinator(
        self, kind: CoordinatorKind, name: str, ask_there: Callable[[Channel], Awaitable[T]]
    ) -> T:
        async def ask() -> T:
            return await ask_there(await self.fleet.coordinator(kind, name))

        return await self.answered(ask)

    async def all_brokers(self, to_ask: Callable[[int], Exchange[T]]) -> list[T]:
        """What each broker answers, by broker id. ``to_ask``: what a broker of this id is asked."""

        async def one(broker_id: int) -> T:
            return await to_ask(broker_id).through(await self.fleet.channel(broker_id))

        async def ask() -> list[T]:
            found = await gathered([partial(one, broker_id) for broker_id in await self.fleet.broker_ids()])
            raise_worst(each for each in found if isinstance(each, ClientError))
            return [each for each in found if not isinstance(each, ClientError)]

        return await self.answered(ask)

    async def leaders(
        self,
        places: Iterable[TopicPartition],
        to_ask: Callable[[list[TopicPartition]], Exchange[dict[TopicPartition, T | RefusedError]]],
    ) -> dict[TopicPartition, T]:
        """What the leaders answer for these partitions. Who has answered is not asked again."""
        found: dict[TopicPartition, T] = {}
        asked = list(dict.fromkeys(places))

        async def ask() -> None:
            by_leader: dict[Channel, list[TopicPartition]] = {}
            for where in asked:
                if where not in found:
                    by_leader.setdefault(await self.fleet.leader(where), []).append(where)
            exchanges = [partial(to_ask(part).through, channel) for channel, part in by_leader.items()]
            errors: list[ClientError] = []
            for told in await gathered(exchanges):
                if isinstance(told, ClientError):
                    errors.append(told)
                    continue
                for where, value in told.items():
                    if isinstance(value, RefusedError):
                        errors.append(value)
                    else:
                        found[where] = value
            raise_worst(errors)

        await self.answered(ask)
        return {where: found[where] for where in asked}


async def gathered(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T | ClientError]:
    """What the calls give, side by side: each its value, or its `ClientError`."""
    found: list[Any] = [None] * len(calls)

    async def one(place: int) -> None:
        try:
            found[place] = await calls[place]()
        except ClientError as error:
            found[place] = error

    if len(calls) == 1:
        await one(0)
        return found
    async with anyio.create_task_group() as tasks:
        for place in range(len(calls)):
            tasks.start_soon(one, place)
    return found


def raise_worst(errors: Iterable[ClientError]) -> None:
    """The first that cannot be mended by trying again, else the first; with what the others say as notes."""
    ordered = sorted(errors, key=is_retriable)
    if ordered:
        for other in ordered[1:]:
            ordered[0].add_note(f"and: {other}")
        raise ordered[0]
