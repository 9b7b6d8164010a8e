"""Who leads what, channels to the brokers, and trying again until a deadline: `cluster` for tasks.

Metadata is fetched when it is needed or proved wrong. What can be tried again is tried again until the deadline, and
only then raised. Channels are opened when they are needed, by one task at a time, and kept.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

import anyio

from tpc_broker.client import requests
from tpc_broker.client.cluster import (
    BACKOFF_SECONDS_FIRST,
    BACKOFF_SECONDS_MAX,
    MISSING_TOPIC_SECONDS,
    is_retriable,
    parse_bootstrap,
)
from tpc_broker.client.errors import ClientError, RefusedError, UnknownTopicError, UnreachableError, refusal_of
from tpc_broker.client.net.channel import Channel
from tpc_broker.client.net.wires import connect_plain
from tpc_broker.client.security import SecuritySettings
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from anyio.abc import TaskGroup

    from tpc_broker.client.coordinators import CoordinatorKind
    from tpc_broker.client.net.wires import Wire
    from tpc_broker.client.requests import Node, TopicFacts, TopicPartition

AGE_CHECK_SECONDS: Final = 0.5
_MANY_VERSION: Final = 4
"""Of FindCoordinator: from it on, several at once."""
Dial: TypeAlias = "Callable[[Node], Awaitable[Wire]]"
"""Makes a wire to an address, or raises `UnreachableError`."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """Times in seconds: for one connection to be made, for one answer, and for a whole operation with repetitions."""

    bootstrap: str
    client_id: str = "tpc"
    connect_seconds: float = 10.0
    request_seconds: float = 30.0
    retry_seconds: float = 120.0
    rack: str = ""
    security: SecuritySettings = field(default_factory=SecuritySettings)


class Fleet:
    """``tasks`` runs the channels; its owner ends them. ``dial``: another way to the brokers than the network."""

    def __init__(self, settings: FleetSettings, tasks: TaskGroup, dial: Dial = connect_plain) -> None:
        self.settings = settings
        self._dial = dial
        self._tasks = tasks
        self._bootstrap = parse_bootstrap(settings.bootstrap)
        self._channels: dict[Node, Channel] = {}
        self._own: WeakSet[Channel] = WeakSet()
        self._opening: dict[Node, anyio.Lock] = {}
        self._nodes: dict[int, Node] = {}
        self._topics: dict[str, TopicFacts] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        tasks.start_soon(self._watch_ages)

    def close(self) -> None:
        for channel in [*self._channels.values(), *self._own]:
            channel.close()
        self._channels.clear()

    def attempts(self, retry_seconds: float | None = None) -> Iterator[Callable[[ClientError], Awaitable[None]]]:
        """Endless attempts; each gives a coroutine function that takes the attempt's error: it waits, or raises when it
        is over. It raises what is not retriable, and anything once the time is over.
        """
        deadline = time.monotonic() + (self.settings.retry_seconds if retry_seconds is None else retry_seconds)
        pause = BACKOFF_SECONDS_FIRST

        async def failed(error: ClientError) -> None:
            if not is_retriable(error) or time.monotonic() + pause > deadline:
                raise error
            self.forget()
            await anyio.sleep(pause)

        while True:
            yield failed
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    async def answered(self, ask: Callable[[], Awaitable[T]], retry_seconds: float | None = None) -> T:
        """What ``ask`` gives, in the first of `attempts` that does not fail with a `ClientError`."""
        for failed in self.attempts(retry_seconds):
            try:
                return await ask()
            except ClientError as error:
                await failed(error)
        raise AssertionError

    def forget(self) -> None:
        """The metadata proved wrong."""
        self._topics.clear()
        self._coordinators.clear()

    async def topic(self, name: str) -> TopicFacts:
        """`UnknownTopicError` when it does not exist."""
        found = self._topics.get(name)
        if found is None:
            await self.refresh([name])
            found = self._topics[name]
        return found

    def topic_nowait(self, name: str) -> TopicFacts | None:
        """What is known of it; None: it has to be asked for."""
        return self._topics.get(name)

    async def refresh(self, names: Iterable[str] | None) -> requests.ClusterFacts:
        """Ask for topics anew (None: for all). `UnknownTopicError` when one is missing for `MISSING_TOPIC_SECONDS`."""
        asked = None if names is None else list(names)
        missing_until = time.monotonic() + MISSING_TOPIC_SECONDS

        async def ask() -> requests.ClusterFacts:
            facts = await self.metadata_once(asked)
            if facts.missing:
                text = f"there is no topic {', '.join(map(repr, sorted(facts.missing)))}"
                raise (UnknownTopicError(text) if time.monotonic() > missing_until else UnreachableError(text))
            return facts

        return await self.answered(ask)

    async def metadata_once(self, names: list[str] | None) -> requests.ClusterFacts:
        """One question about topics; what is found is kept."""
        channel = await self.any_channel()
        answer = await channel.call(ApiKey.METADATA, requests.in_any_version(requests.metadata_request(names)))
        facts = requests.metadata_answer(answer)
        self._nodes = facts.nodes
        self._topics.update(facts.topics)
        for name, code in facts.errors.items():
            raise RefusedError(code, f"metadata of {name}")
        return facts

    async def leader(self, where: TopicPartition) -> Channel:
        """A channel to the partition's leader. One attempt, metadata aside."""
        facts = await self.topic(where.topic)
        if where.partition not in facts.leaders:
            raise UnknownTopicError(f"{where.topic} has no partition {where.partition}; it has {len(facts.leaders)}")
        return await self.channel(facts.leaders[where.partition], f"{where} has no leader now")

    def leader_nowait(self, where: TopicPartition) -> Channel | None:
        """The channel to the partition's leader when all that is known and open; None: `leader` has to be awaited."""
        facts = self._topics.get(where.topic)
        node = None if facts is None else self._nodes.get(facts.leaders.get(where.partition, -1))
        channel = None if node is None else self._channels.get(node)
        return channel if channel is not None and _is_usable(channel) else None

    async def channel(self, broker_id: int, otherwise: str = "") -> Channel:
        """To a broker of the cluster. `UnreachableError` when there is none of that id."""
        if broker_id >= 0 and broker_id not in self._nodes:
            await self.metadata_once([])
        node = self._nodes.get(broker_id)
        if node is None:
            raise UnreachableError(otherwise or f"broker {broker_id} is not in the cluster")
        return await self._open(node, broker_id)

    async def own_channel(self, broker_id: int, request_seconds: float | None = None) -> Channel:
        """A new one that nobody shares, for requests that are answered late or must not wait behind others. Who asked
        for it closes it. ``request_seconds`` is for one answer.
        """
        if broker_id not in self._nodes:
            await self.metadata_once([])
        if broker_id not in self._nodes:
            raise UnreachableError(f"broker {broker_id} is not in the cluster")
        made = await self._connected(self._nodes[broker_id], broker_id, request_seconds)
        self._own.add(made)
        return made

    async def any_channel(self) -> Channel:
        """To any broker that can be reached."""
        known = {node: broker_id for broker_id, node in self._nodes.items()}
        for node in known:
            found = self._channels.get(node)
            if found is not None and _is_usable(found):
                return found
        reasons = []
        for node in dict.fromkeys([*known, *self._bootstrap]):
            try:
                return await self._open(node, known.get(node, -1))
            except UnreachableError as error:
                reasons.append(str(error))
        raise UnreachableError("; ".join(reasons))

    async def broker_ids(self) -> list[int]:
        """Asked anew: of all brokers."""
        await self.metadata_once([])
        return sorted(self._nodes)

    async def coordinator(self, kind: CoordinatorKind, name: str) -> Channel:
        """A channel to the coordinator of a group or a transactional id. One attempt; `forget_coordinator` when it says
        that it is not.
        """
        known = self._coordinators.get((kind, name))
        if known is None:
            known = self._coordinators[kind, name] = await self._find_coordinator(kind, name)
        return await self.channel(known, f"the coordinator of {kind} {name}, broker {known}, is not in the cluster")

    def forget_coordinator(self, kind: CoordinatorKind, name: str) -> None:
        self._coordinators.pop((kind, name), None)

    async def _find_coordinator(self, kind: CoordinatorKind, name: str) -> int:
        def make(version: int) -> Any:
            if version >= _MANY_VERSION:
                return messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
            return messages.FindCoordinatorRequest(key=name, key_type=kind)

        answer = await (await self.any_channel()).call(ApiKey.FIND_COORDINATOR, make)
        row = answer.coordinators[0] if answer.coordinators else answer
        if row.error_code:
            raise refusal_of(row, f"the coordinator of {kind} {name}")
        return int(row.node_id)

    async def _open(self, node: Node, broker_id: int) -> Channel:
        found = self._channels.get(node)
        if found is not None and _is_usable(found):
            return found
        async with self._opening.setdefault(node, anyio.Lock()):
            found = self._channels.get(node)
            if found is not None and _is_usable(found):
                return found
            made = await self._connected(node, broker_id)
            self._channels[node] = made
            return made

    async def _connected(self, node: Node, broker_id: int, request_seconds: float | None = None) -> Channel:
        settings = self.settings
        request_seconds = request_seconds or settings.request_seconds
        channel: Channel | None = None
        try:
            with anyio.fail_after(settings.connect_seconds):
                wire = await self._dial(node)
                channel = Channel(node, broker_id, wire, settings.client_id, request_seconds)
                self._tasks.start_soon(channel.run)
                await channel.hello()
        except TimeoutError:
            if channel is not None:
                channel.close()
            text = f"no connection to {node.host}:{node.port} within {settings.connect_seconds:g} s"
            raise UnreachableError(text) from None
        except BaseException:
            if channel is not None:
                channel.close()
            raise
        return channel

    async def _watch_ages(self) -> None:
        while True:
            await anyio.sleep(AGE_CHECK_SECONDS)
            now = time.monotonic()
            for channel in [*self._channels.values(), *self._own]:
                channel.check_age(now)


def _is_usable(channel: Channel) -> bool:
    return not channel.is_closed and time.monotonic() < channel.expires_at
