"""Who leads what, channels to the brokers, and trying again until a deadline: `cluster` for tasks.

Metadata are fetched when they are needed, proved wrong or grow old (`directory`). What can be tried again is so until
the deadline, and only then raised. Channels are opened when they are needed, once for all who wait, and kept.

A broker answers the requests of one connection one after the other: what it may keep waiting (a Fetch, a JoinGroup)
goes to an `own_channel`, so that nothing waits behind it.
"""

from __future__ import annotations

import random
import secrets
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

import anyio

from tpc_broker.client import requests
from tpc_broker.client.cluster import BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX, MISSING_TOPIC_SECONDS, is_retriable
from tpc_broker.client.errors import (
    AuthenticationError,
    ClientError,
    ClosedError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
)
from tpc_broker.client.introduction import NONCE_BYTES
from tpc_broker.client.net.channel import Channel
from tpc_broker.client.net.directory import Directory
from tpc_broker.client.net.flights import Flights
from tpc_broker.client.net.settings import FleetSettings
from tpc_broker.client.net.wires import connect_plain
from tpc_broker.client.security import OAuthSettings, SaslSettings, tls_context
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from tpc_broker.client.coordinators import CoordinatorKind
    from tpc_broker.client.net.tasks import Background
    from tpc_broker.client.net.wires import Wire
    from tpc_broker.client.requests import Node, TopicFacts, TopicPartition
    from tpc_broker.client.sasl import Login

__all__ = ["Dial", "Fleet", "FleetSettings"]

AGE_CHECK_SECONDS: Final = 0.5
IDLE_SECONDS: Final = 540.0
"""After which a channel that nobody used is closed: a minute before brokers do (`connections.max.idle.ms`), so that no
request meets the end of its connection.
"""
FIRST_ANSWER_SECONDS: Final = 2.0
"""How long one broker may be silent about metadata before another one is asked; twice as long in the next round."""
BACKOFF_JITTER: Final = 0.2
_MANY_VERSION: Final = 4
"""Of FindCoordinator: from it on, several at once."""
_OF_COORDINATORS: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_OF_LEADERS: Final = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.LISTENER_NOT_FOUND,
)
"""Answers that say that the metadata may be wrong."""
Dial: TypeAlias = "Callable[[Node], Awaitable[Wire]]"
"""Makes a wire to an address, or raises `UnreachableError`."""
T = TypeVar("T")


class _Unreached(NamedTuple):
    """The last attempt at a broker, which is not made again before a pause is over: till then there is its error."""

    error: ClientError
    until: float
    pause: float


class Fleet:
    """``tasks`` runs the channels; its owner ends them. ``dial``: another way to the brokers than the network."""

    def __init__(self, settings: FleetSettings, tasks: Background, dial: Dial = connect_plain) -> None:
        self.settings = settings
        self._tls = None if settings.tls is None else tls_context(settings.tls)
        self._dial = dial
        self._tasks = tasks
        self._bootstrap = settings.nodes
        self._channels: dict[Node, Channel] = {}
        self._own: set[Channel] = set()
        self._openings: Flights[Channel] = Flights(tasks)
        self._unreached: dict[Node, _Unreached] = {}
        self._directory = Directory(self._ask_for_metadata, tasks, settings.metadata_seconds)
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._findings: Flights[int] = Flights(tasks)
        self._is_closed = False
        tasks.start_soon(self._watch)
        tasks.start_soon(self._directory.stay_fresh)

    def close(self) -> None:
        """Whoever waits for a broker gets an error, and so does who asks from now on."""
        self._is_closed = True
        for flights in (self._openings, self._findings, self._directory):
            flights.close()
        for channel in [*self._channels.values(), *self._own]:
            channel.close(ClosedError("the client was closed"))
        self._channels.clear()

    def attempts(
        self, retry_seconds: float | None = None, *, doubts: bool = True
    ) -> Iterator[Callable[[ClientError], Awaitable[None]]]:
        """Endless attempts; each gives a coroutine function that takes the attempt's error: it waits, or raises when it
        is over. It raises what is not retriable, and anything once the time is over. ``doubts``: whether what the error
        says of metadata is doubted.
        """
        seconds = self.settings.retry_seconds if retry_seconds is None else retry_seconds
        deadline = time.monotonic() + seconds
        pause = BACKOFF_SECONDS_FIRST

        async def failed(error: ClientError) -> None:
            if not is_retriable(error):
                raise error
            left = deadline - time.monotonic()
            wait = min(pause * random.uniform(1 - BACKOFF_JITTER, 1 + BACKOFF_JITTER), left / 2)
            if left < BACKOFF_SECONDS_FIRST:
                raise error.again(f"given up after {seconds:g} s (retry_seconds)") from error
            if doubts:
                self.doubt(error)
            await anyio.sleep(wait)

        while True:
            yield failed
            pause = min(2 * pause, BACKOFF_SECONDS_MAX)

    async def answered(
        self, ask: Callable[[], Awaitable[T]], retry_seconds: float | None = None, *, doubts: bool = True
    ) -> T:
        """What ``ask`` gives, in the first of `attempts` that does not fail with a `ClientError`; it is not waited for
        any longer than the attempts last.
        """
        seconds = self.settings.retry_seconds if retry_seconds is None else retry_seconds
        deadline = time.monotonic() + seconds
        before = ""
        for failed in self.attempts(retry_seconds, doubts=doubts):
            try:
                with anyio.move_on_after(deadline - time.monotonic()):
                    return await ask()
            except ClientError as error:
                before = f"; before: {error}"
                await failed(error)
            else:
                raise UnreachableError(f"no answer within {seconds:g} s (retry_seconds){before}")
        raise AssertionError

    def doubt(self, error: ClientError) -> None:
        """What an error says of metadata: they are asked for again, and who awaits them gets what is asked from now on.
        `leader_nowait` goes on with what is known meanwhile: who has no business with a broker that is away is not
        held up.
        """
        code = error.code if isinstance(error, RefusedError) else None
        if code is None or code in _OF_LEADERS:
            self._directory.doubt()
        if code is None or code in _OF_COORDINATORS:
            self._coordinators.clear()

    def forget(self, *names: str) -> None:
        """What is known of these topics proved wrong (none named: of all, and of coordinators)."""
        self._directory.forget(names or None)
        if not names:
            self._coordinators.clear()

    async def topic(self, name: str) -> TopicFacts:
        """`UnknownTopicError` when it does not exist."""
        found = self._directory.believed(name)
        if found is None:
            found = (await self.refresh([name])).topics[name]
        return self._directory.known(name) or found

    def topic_nowait(self, name: str) -> TopicFacts | None:
        """What is known of it; None: it has to be asked for."""
        return self._directory.usable(name)

    async def refresh(self, names: Iterable[str] | None) -> requests.ClusterFacts:
        """Ask for topics anew (None: for all). `UnknownTopicError` when one is missing for `MISSING_TOPIC_SECONDS`,
        from the first answer on that says so. The answer may tell of others as well.
        """
        asked = None if names is None else list(names)
        missing_until: float | None = None

        async def ask() -> requests.ClusterFacts:
            nonlocal missing_until
            facts = await self._directory.ask(asked)
            for name in asked or ():
                if name in facts.errors:
                    raise RefusedError(facts.errors[name], f"metadata of {name}")
            missing = sorted(facts.missing.intersection(asked or ()))
            if missing:
                text = f"there is no topic {', '.join(map(repr, missing))}"
                now = time.monotonic()
                missing_until = missing_until or now + MISSING_TOPIC_SECONDS
                raise (UnknownTopicError(text) if now > missing_until else UnreachableError(text))
            return facts

        return await self.answered(ask, doubts=False)

    async def metadata_once(self, names: list[str] | None) -> requests.ClusterFacts:
        """One question about topics; what is found is kept. The answer may tell of others as well."""
        facts = await self._directory.ask(names)
        for name in facts.errors if names is None else names:
            if name in facts.errors:
                raise RefusedError(facts.errors[name], f"metadata of {name}")
        return facts

    async def leader(self, where: TopicPartition) -> Channel:
        """A channel to the partition's leader. One attempt, metadata aside."""
        facts = await self.topic(where.topic)
        if where.partition not in facts.leaders:
            facts = (await self.refresh([where.topic])).topics[where.topic]
        if where.partition not in facts.leaders:
            raise UnknownTopicError(f"{where.topic} has no partition {where.partition}; it has {len(facts.leaders)}")
        return await self.channel(facts.leaders[where.partition], f"{where} has no leader now")

    def leader_nowait(self, where: TopicPartition) -> Channel | None:
        """The channel to the partition's leader when all that is known and open; None: `leader` has to be awaited."""
        facts = self._directory.usable(where.topic)
        node = None if facts is None else self._directory.nodes.get(facts.leaders.get(where.partition, -1))
        channel = None if node is None else self._channels.get(node)
        return channel if channel is not None and not channel.is_closed else None

    async def channel(self, broker_id: int, otherwise: str = "") -> Channel:
        """To a broker of the cluster. `UnreachableError` when there is none of that id."""
        return await self._open(await self._node(broker_id, otherwise), broker_id)

    async def own_channel(self, broker_id: int, request_seconds: float | None = None) -> Channel:
        """A new one that nobody shares. Who asked for it closes it. ``request_seconds`` is for one answer."""
        node = await self._node(broker_id)
        made = await self._connected(node, broker_id, request_seconds)
        self._own.add(made)
        return made

    async def _node(self, broker_id: int, otherwise: str = "") -> Node:
        if broker_id >= 0 and broker_id not in self._directory.nodes:
            await self._directory.ask([])
        node = self._directory.nodes.get(broker_id)
        if node is None:
            raise UnreachableError(otherwise or f"broker {broker_id} is not in the cluster")
        return node

    async def any_channel(self) -> Channel:
        """To any broker that can be reached, rather to one that has little to do."""
        return await self._any_channel(set())

    async def _any_channel(self, without: set[Node]) -> Channel:
        known = {node: broker_id for broker_id, node in self._directory.nodes.items() if node not in without}
        is_open = [
            channel
            for node, channel in self._channels.items()
            if not channel.is_closed and node not in without
        ]
        if is_open:
            return min(is_open, key=lambda channel: channel.in_flight_count)
        places = [node for node in dict.fromkeys([*known, *self._bootstrap]) if node not in without]
        places.sort(key=lambda node: self._unreached[node].until if node in self._unreached else 0.0)
        reasons = []
        for node in places:
            try:
                return await self._open(node, known.get(node, -1))
            except UnreachableError as error:
                reasons.append(str(error))
        raise UnreachableError("; ".join(dict.fromkeys(reasons)) or "no broker is left to ask")

    async def broker_ids(self) -> list[int]:
        """Asked anew: of all brokers."""
        await self._directory.ask([])
        return sorted(self._directory.nodes)

    async def coordinator(self, kind: CoordinatorKind, name: str) -> Channel:
        """A channel to the coordinator of a group or a transactional id. One attempt; `forget_coordinator` when it says
        that it is not.
        """
        known = self._coordinators.get((kind, name))
        if known is None:
            known = await self._findings.do((kind, name), lambda: self._find_coordinator(kind, name))
            self._coordinators[kind, name] = known
        return await self.channel(known, f"the coordinator of {kind} {name}, broker {known}, is not in the cluster")

    def forget_coordinator(self, kind: CoordinatorKind, name: str) -> None:
        self._coordinators.pop((kind, name), None)

    async def _find_coordinator(self, kind: CoordinatorKind, name: str) -> int:
        def make(version: int) -> Any:
            if version >= _MANY_VERSION:
                return messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
            return messages.FindCoordinatorRequest(key=name, key_type=kind)

        channel = await self.any_channel()
        answer = await channel.call(ApiKey.FIND_COORDINATOR, make)
        row = answer.coordinators[0] if answer.coordinators else answer
        if row.error_code:
            raise channel.refusal(row.error_code, f"the coordinator of {kind} {name}", row.error_message)
        return int(row.node_id)

    async def _ask_for_metadata(self, names: list[str] | None) -> requests.ClusterFacts:
        """The first answer of any broker: one that is silent is left alone after a while."""
        make = requests.in_any_version(requests.metadata_request(names))
        seconds = min(FIRST_ANSWER_SECONDS, self.settings.request_seconds)
        silent: set[Node] = set()
        while True:
            try:
                channel = await self._any_channel(silent)
            except UnreachableError:
                if not silent:
                    raise
                if seconds >= self.settings.request_seconds:
                    there = ", ".join(f"{node.host}:{node.port}" for node in sorted(silent))
                    text = f"no answer about metadata from {there} within {seconds:g} s (request_seconds)"
                    raise UnreachableError(text) from None
                silent.clear()
                seconds = min(2 * seconds, self.settings.request_seconds)
                continue
            with anyio.move_on_after(seconds):
                facts = requests.metadata_answer(await channel.call(ApiKey.METADATA, make))
                self._name_channels(facts.nodes)
                return facts
            silent.add(channel.node)

    def _name_channels(self, nodes: dict[int, Node]) -> None:
        ids = {node: broker_id for broker_id, node in nodes.items()}
        for node, channel in self._channels.items():
            channel.broker_id = ids.get(node, channel.broker_id)

    async def _open(self, node: Node, broker_id: int) -> Channel:
        found = self._channels.get(node)
        if found is not None and not found.is_closed:
            return found
        return await self._openings.do(node, lambda: self._opened(node, broker_id))

    async def _opened(self, node: Node, broker_id: int) -> Channel:
        made = self._channels[node] = await self._connected(node, broker_id)
        return made

    async def _connected(self, node: Node, broker_id: int, request_seconds: float | None = None) -> Channel:
        unreached = self._unreached.get(node)
        if unreached is not None and time.monotonic() < unreached.until:
            raise unreached.error.again()
        try:
            made = await self._connected_once(node, broker_id, request_seconds or self.settings.request_seconds)
        except ClientError as error:
            pause = BACKOFF_SECONDS_FIRST if unreached is None else min(2 * unreached.pause, BACKOFF_SECONDS_MAX)
            self._unreached[node] = _Unreached(error, time.monotonic() + pause, pause)
            raise
        self._unreached.pop(node, None)
        if self._is_closed:
            made.close()
            raise ClosedError("the client was closed")
        return made

    async def _connected_once(self, node: Node, broker_id: int, request_seconds: float) -> Channel:
        if self._is_closed:
            raise ClosedError("the client is closed")
        settings = self.settings
        wire: Wire | None = None
        channel: Channel | None = None
        try:
            with anyio.fail_after(settings.connect_seconds):
                wire = await self._dial(node)
                if self._tls is not None:
                    from tpc_broker.client.net.tls import TlsWire  # noqa: PLC0415 - who connects without it starts sooner

                    encrypted = TlsWire(node, wire, self._tls)
                    await encrypted.shake_hands()
                    wire = encrypted
                channel = Channel(node, broker_id, wire, settings.client_id, request_seconds)
                self._tasks.start_soon(channel.run)
                await channel.introduce(None if settings.auth is None else self._login)
        except BaseException as error:
            if channel is not None:
                channel.close()
            elif wire is not None:
                wire.close()
            if isinstance(error, TimeoutError):
                text = f"no connection to {node.host}:{node.port} within {settings.connect_seconds:g} s"
                raise UnreachableError(f"{text} (connect_seconds)") from None
            raise
        return channel

    async def _login(self) -> Login:
        from tpc_broker.client.sasl import login_of, login_with_token  # noqa: PLC0415 - likewise

        auth = self.settings.auth
        if isinstance(auth, SaslSettings):
            return login_of(auth, secrets.token_urlsafe(NONCE_BYTES))
        assert isinstance(auth, OAuthSettings)
        try:
            token = await auth.token()
        except Exception as error:  # the user's own code
            raise AuthenticationError(f"there is no token: {error!r} (auth.token)") from error
        return login_with_token(token, auth.extensions)

    async def _watch(self) -> None:
        """End what has waited too long, and what is not needed any more."""
        while True:
            await anyio.sleep(AGE_CHECK_SECONDS)
            now = time.monotonic()
            there = {*self._directory.nodes.values(), *self._bootstrap}
            for channel in [*self._channels.values(), *self._own]:
                channel.check_age(now)
                is_over = channel.node not in there or channel.used_at + IDLE_SECONDS < now
                if is_over and not channel.in_flight_count and channel not in self._own:
                    channel.close()
            self._own = {channel for channel in self._own if not channel.is_closed}
            self._channels = {node: channel for node, channel in self._channels.items() if not channel.is_closed}
            self._unreached = {node: last for node, last in self._unreached.items() if node in there}
