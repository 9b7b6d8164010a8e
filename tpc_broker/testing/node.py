"""A node's cores in memory: the real `Core` of each over ports without disk, ring, network or real time.

`MemoryNode` plays the supervisor: it starts cores and says who is up. `ask` sends one request through a core's
dispatcher, encoded and decoded as on the wire. Time is trio's, chance has a seed: a run can be repeated.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import trio

from tpc_broker.broker.core import Core
from tpc_broker.broker.core_ground import CoreIdentity
from tpc_broker.broker.handlers.table import APIS
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.protocol import decode_response_frame, encode_request
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode, SecurityProtocol
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.testing.connections import MemoryConnections, MemoryRequest
from tpc_broker.testing.mailboxes import MemoryMailboxes
from tpc_broker.testing.plane import MemoryPlane
from tpc_broker.testing.storage import CoreFiles, MemoryStorage
from tpc_broker.testing.surroundings import MemoryChance, MemoryClock, NoDisk, in_turn

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from tpc_broker.broker.ports import Connections, CoreStorage, DataPlane
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.ports import Disk
    from tpc_broker.testing.logs import MemoryFiles

PORT, LOGIN_PORT = 9092, 9192
DATA_PATH = Path("/data")


class Life:
    """One core from a start to its end."""

    def __init__(self, node: MemoryNode[Any], number: CoreId, nursery: trio.Nursery) -> None:
        self.connections = node.make_connections()
        self.settings_told: list[Settings] = []
        self.plane = node.make_plane(self.connections)
        self.storage = node.make_storage(self.plane, number)
        self.mailboxes = MemoryMailboxes(number, node.posts, node.delay_s)
        self.nursery = nursery
        # The ports in memory have all of their protocols but for what replicas on other nodes need.
        self.core = Core(
            CoreIdentity(number, node.cores, node.listeners, DATA_PATH, "a-cluster", b"a secret"),
            node.configuration, apis=APIS,
            connections=cast("Connections", self.connections), plane=cast("DataPlane", self.plane),
            storage=cast("CoreStorage", self.storage), disk=node.make_disk(), mailboxes=self.mailboxes,
            clock=node.clock, chance=MemoryChance(node.chance), nursery=nursery,
            on_settings=self.settings_told.append, in_thread=in_turn,
        )  # fmt: skip
        self.connections.dispatcher = self.core.dispatcher
        self.connections.authenticated = {
            number for number, listener in enumerate(node.listeners) if listener.security.authenticates
        }


def _listener(name: str, security: SecurityProtocol, host: str, port: int, cores: int) -> Listener:
    addresses = tuple(Address(host, port + number) for number in range(cores))
    return Listener(name, ListenerMode.PER_CORE_PORT, addresses, addresses, security)


LifeT = TypeVar("LifeT", bound=Life)


class MemoryNode(Generic[LifeT]):
    """Of `host`, where the first core has port 9092, and 9192 for who logs in. `settings`: `NAME=VALUE`."""

    def __init__(  # noqa: PLR0913  (a node is put together here)
        self, nursery: trio.Nursery, cores: int, settings: Sequence[str], chance: random.Random,
        clock: MemoryClock, host: str = "memory",
    ) -> None:  # fmt: skip
        self.cores = cores
        self.files = {CoreId(number): CoreFiles() for number in range(cores)}
        self.folders: dict[TopicPartition, MemoryFiles] = {}
        self.posts: dict[CoreId, MemoryMailboxes] = {}
        self.clock, self.chance = clock, chance
        self.listeners = (
            _listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, host, PORT, cores),
            _listener("LOGIN", SecurityProtocol.SASL_PLAINTEXT, host, LOGIN_PORT, cores),
        )
        self.configuration = load_settings("", ("group.initial.rebalance.delay.ms=0", *settings))
        self.lives: dict[CoreId, LifeT] = {}
        self._nursery = nursery
        self._asked = count(1)

    def __getitem__(self, number: int) -> Core:
        return self.lives[CoreId(number)].core

    # -- what its cores are made of: for who needs others --------------------------------------------------------------

    def make_life(self, number: CoreId, nursery: trio.Nursery) -> Life:
        return Life(self, number, nursery)

    def make_connections(self) -> MemoryConnections:
        return MemoryConnections()

    def make_plane(self, connections: MemoryConnections) -> MemoryPlane:
        return MemoryPlane(connections, self.clock)

    def make_storage(self, plane: MemoryPlane, number: CoreId) -> MemoryStorage:
        return MemoryStorage(plane, self.files[number], self.folders)

    def make_disk(self) -> Disk:
        return cast("Disk", NoDisk())

    def delay_s(self) -> float:
        """Of a call between two cores."""
        return 0.0

    # -- life ----------------------------------------------------------------------------------------------------------

    async def start(self, number: int) -> LifeT:
        """A core, until it serves; the others hear of it."""
        life: LifeT = await self._nursery.start(self.live, CoreId(number))
        self.lives[CoreId(number)] = life
        await self.tell_who_is_up()
        return life

    async def live(self, number: CoreId, *, task_status: trio.TaskStatus[Life]) -> None:
        async with trio.open_nursery() as nursery:
            life = self.make_life(number, nursery)
            life.core.serve_metadata_calls()
            life.mailboxes.open(nursery)
            await life.core.start()
            task_status.started(life)

    async def tell_who_is_up(self) -> None:
        up = sorted(self.lives)
        async with trio.open_nursery() as nursery:
            for life in list(self.lives.values()):
                nursery.start_soon(life.core.cores_changed, up)

    # -- requests ------------------------------------------------------------------------------------------------------

    def send(  # noqa: PLR0913  (a request and who sends it)
        self, number: int, message: Any, version: int | None = None, *, connection: int = 1,
        client_id: str | None = "a-client", listener: int = 0, throttle_ms: int = 0,
    ) -> MemoryRequest:  # fmt: skip
        """A request by its message; in the newest version that is offered unless another is named."""
        key = ApiKey[api_name(message)]
        version = api(key).last_version if version is None else version
        body = memoryview(encode_request(key, version, message))
        request = MemoryRequest(
            connection, int(key), version, next(self._asked), body, self.clock.monotonic_ns(), listener,
            client_id=client_id, throttle_ms=throttle_ms,
        )  # fmt: skip
        self.lives[CoreId(number)].connections.send(request)
        return request

    async def ask(self, number: int, message: Any, version: int | None = None, **client: Any) -> Any:
        """The response's message; None when there is none, or the connection was closed. `client`: as of `send`."""
        request = self.send(number, message, version, **client)
        await request.done.wait()
        return answer_of(request)


def answer_of(request: MemoryRequest) -> Any:
    if request.answer is None:
        return None
    correlation_id, message = decode_response_frame(request.api_key, request.api_version, request.answer)
    assert correlation_id == request.correlation_id
    return message


def api_name(message: object) -> str:
    """`CREATE_TOPICS` of a CreateTopicsRequest."""
    words = type(message).__name__.removesuffix("Request")
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words).strip("_")
