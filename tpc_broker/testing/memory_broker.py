"""`MemoryBroker`: the real broker's machines in memory, started in a millisecond or two, for tests of programs."""

from __future__ import annotations

import random
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Self

import trio

from tpc_broker.client.errors import UnreachableError
from tpc_broker.client.requests import Node
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.testing.connections import ServedConnection
from tpc_broker.testing.hosting import hosted
from tpc_broker.testing.node import Life, MemoryNode
from tpc_broker.testing.surroundings import MemoryClock
from tpc_broker.testing.wires import MemoryWire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from tpc_broker.client.net.fleet import Dial
    from tpc_broker.testing.hosting import CallSoon

CREATE_TIMEOUT_MS: Final = 10_000
DEFAULTS: Final[dict[str, object]] = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "group.consumer.assignment.interval.ms": 0,
}
"""Unless a setting says something else: what is made once in a broker's life is made for each test here, and nobody
waits to join together with others.
"""


@dataclass(frozen=True, slots=True)
class Address:
    """What `connect` takes in place of an address: where, and the way there."""

    bootstrap: str
    dial: Dial


@dataclass(frozen=True, slots=True)
class _Place:
    """A listener of a core."""

    core: CoreId
    listener: int


class MemoryBroker:
    """A broker for tests, in the memory of the process that asks it::

        async with MemoryBroker(topics={"orders": 3}) as broker, connect(broker) as client:
            await client.send("orders", b"one")

    It runs the broker's own code for requests, metadata, groups, transactions, logins and rights, beside the program's
    tasks: on trio with the program's clock (`trio.testing.MockClock` moves groups' time-outs too), on asyncio in the
    same loop and thread. It needs no files, ports, io_uring or rights, and leaves nothing behind.

    ``topics``: created at once, with so many partitions. Others are made by `Client.admin`, and on their first use by
    clients that ask for that, which this package's does not. ``settings``: the broker's, by name, such as
    ``{"auto.create.topics.enable": False}``; unless they say otherwise, topics of groups and transactions have one
    partition, and groups assign at once. ``brokers``: how many a client sees; partitions and groups are spread over
    them. ``seed``: of all that is left to chance, such as ids of topics and members; a run can be repeated.

    `ValueError`: of a setting that is none, when it is made; of a topic that cannot be created, when the block begins.

    What it does not do: there is no port, so only this package's asynchronous client gets there. Nothing outlives the
    block. A partition has one replica, there is no failover. Records are never deleted by age or size, nor compacted
    (DeleteRecords works). Quotas are kept and told, and slow down nobody. There is no TLS. A fetch may hold more than
    the memory that a real core would lend it. Time costs nothing in it: it is no measure of speed.
    """

    def __init__(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        settings: Mapping[str, object] | None = None,
        brokers: int = 1,
        seed: int = 1,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: there is at least one")
        self._topics = dict(topics or {})
        self._settings = [f"{name}={_text(value)}" for name, value in (DEFAULTS | dict(settings or {})).items()]
        load_settings("", self._settings)
        self._brokers, self._seed = brokers, seed
        self._fault: ValueError | None = None
        self._stack = AsyncExitStack()
        self._node: MemoryNode[Life] | None = None
        self._call_soon: CallSoon | None = None
        self._places: dict[Node, _Place] = {}
        self._served: dict[int, ServedConnection] = {}
        self._numbers = count(1)

    # -- what `connect` takes ------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """Where clients need not log in."""
        return self._bootstrap_of(0)

    @property
    def login(self) -> Address:
        """Where they have to, by SASL: ``connect(broker.login, …)``."""
        return Address(self._bootstrap_of(1), self.dial)

    async def dial(self, node: Node) -> MemoryWire:
        """A connection to one of its addresses. `UnreachableError`: it has no such address, or has ended."""
        place, call_soon = self._places.get(node), self._call_soon
        if place is None or call_soon is None:
            raise UnreachableError(f"no connection to {node.host}:{node.port}: no broker in memory is there")
        life, number = self._running.lives[place.core], next(self._numbers)
        wire = MemoryWire(node, lambda frame: call_soon(served.take, frame), lambda: call_soon(served.leave))
        served = self._served[number] = ServedConnection(
            life.connections, number, place.listener, self._running.clock.monotonic_ns, wire.give
        )
        return wire

    def drop_connections(self) -> None:
        """Close those of all clients at once, as a broker does that is killed and comes back: what was asked and not
        answered may have happened, and clients connect anew.
        """
        served, self._served = self._served, {}
        for one in served.values():
            one.over()
            if self._call_soon is not None:
                self._call_soon(one.leave)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._node is not None:
            raise RuntimeError("a broker in memory runs once")
        async with AsyncExitStack() as stack:
            self._call_soon = await stack.enter_async_context(hosted(self._serve))
            if self._fault is not None:
                raise self._fault
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self.drop_connections()
        self._call_soon = None
        self._places.clear()
        return await self._stack.__aexit__(kind, error, traceback)

    async def _serve(self, ready: Callable[[], None]) -> None:
        """A task of trio."""
        clock = MemoryClock(time.time_ns() // 1_000_000 - round(trio.current_time() * 1000))
        async with trio.open_nursery() as nursery:
            chance = random.Random(self._seed)
            self._node = node = MemoryNode[Life](nursery, self._brokers, self._settings, chance, clock)
            for number in range(self._brokers):
                life = await node.start(number)
                life.connections.on_close = self._closed
            if self._topics:
                await self._create_topics(node)
            for listener, each in enumerate(node.listeners):
                for number, address in enumerate(each.advertised):
                    self._places[Node(address.host, address.port)] = _Place(CoreId(number), listener)
            ready()
            await trio.sleep_forever()

    def _closed(self, connection: int) -> None:
        """By the broker."""
        served = self._served.pop(connection, None)
        if served is not None:
            served.over()

    async def _create_topics(self, node: MemoryNode[Life]) -> None:
        kind: Any = messages.CreateTopicsRequest
        wanted = [
            kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
            for name, partitions in self._topics.items()
        ]
        answer = await node.ask(0, kind(topics=wanted, timeout_ms=CREATE_TIMEOUT_MS), connection=next(self._numbers))
        for row in answer.topics:
            if row.error_code:
                why = row.error_message or ErrorCode(row.error_code).name
                self._fault = ValueError(f"topic {row.name!r} cannot be created: {why}")

    @property
    def _running(self) -> MemoryNode[Life]:
        if self._node is None:
            raise RuntimeError("the broker in memory does not run: it is an `async with` block")
        return self._node

    def _bootstrap_of(self, listener: int) -> str:
        return ",".join(map(str, self._running.listeners[listener].advertised))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
