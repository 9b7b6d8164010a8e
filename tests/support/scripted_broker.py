"""A cluster of brokers that is a script: what each request is answered with, or what happens instead of an answer.

A script is an async function from a request to its answer::

    async def script(asked):
        if asked.key == ApiKey.PRODUCE:
            return messages.ProduceResponse(…)      # the answer, sent whole
        return None                                 # as usual: see below

    @on_both_loops
    async def test_something():
        async with scripted_client(script, topics={"orders": 3}) as (client, brokers):
            await client.send("orders", b"value")
            assert [one.key for one in brokers.asked_of(ApiKey.PRODUCE)] == [ApiKey.PRODUCE]

`asked` has ``key``, ``version``, ``message``, ``broker_id`` (whom it was sent to), ``line`` (the number of the
connection, from 0 on) and ``number`` (how many requests of that key there were before, on all lines). Requests of one
line are taken one after the other, as brokers do: a script that waits for an event answers late, and holds up what was
sent behind. Instead of a message a script may return

    NO_ANSWER                 nothing comes, the line stays
    CLOSE                     the line is closed
    Cut(answer, 7)            the first 7 bytes of the frame, then the line is closed
    Bytewise(answer)          each byte is received by itself
    Twice(answer)             the same frame once more
    Behind(answer)            after the answer to the next request of the line: the wrong order
    Raw(b"…")                 these bytes, whatever they are: `Raw(size_of(2**31 - 1))` promises a huge frame

What a script answers with None to has these usual answers: ApiVersions, Metadata (`topics`, `leaders`, `nodes`, which
may be changed at any time), FindCoordinator (broker 0, or `coordinators[name]`). All else is an AssertionError that
names the request, and comes out of the test's block. As ``versions`` says which versions of an API are offered
(``{ApiKey.FETCH: (4, 11), ApiKey.PRODUCE: None}``: None, not at all), old and new brokers are played with it; an
ApiVersions request newer than offered gets UNSUPPORTED_VERSION in version 0.

`brokers.lines` are the connections: `line.close()` at any moment, and `line.room = 10` takes no more than 10 bytes from
the client until it is made larger or None again. `await brokers.wait_asked(key, count)` returns when as many requests
of that key have come. `brokers.refused` are ids of brokers to which no connection is made, `brokers.dials` who was
dialled.

In memory a broker is at scripted:9092 + its id; `dial` is a `Dial`. Where a socket is needed (``sockets=True``), each
listens on a loopback port instead, with `tls` as an `ssl.SSLContext` for servers where it is given.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio.abc import SocketAttribute
from anyio.streams.tls import TLSStream

from tpc_broker.client.conversation import VERSION_MAX
from tpc_broker.client.errors import UnreachableError
from tpc_broker.client.handle import Client, opened
from tpc_broker.client.net.fleet import FleetSettings
from tpc_broker.client.net.tasks import background_tasks
from tpc_broker.client.requests import Node
from tpc_broker.kafka import ApiKey, CodecError, ErrorCode, api, messages, protocol

if TYPE_CHECKING:
    import ssl

    from anyio.abc import TaskGroup

SIZE_BYTES: Final = 4
HOST: Final = "scripted"
FIRST_PORT: Final = 9092


class Asked(NamedTuple):
    key: ApiKey
    version: int
    message: Any
    broker_id: int
    line: int
    number: int
    correlation_id: int
    client_id: str


class Cut(NamedTuple):
    answer: Any
    bytes_count: int


class Bytewise(NamedTuple):
    answer: Any


class Twice(NamedTuple):
    answer: Any


class Behind(NamedTuple):
    answer: Any


class Raw(NamedTuple):
    data: bytes


class _Instead(NamedTuple):
    name: str


NO_ANSWER: Final = _Instead("no answer")
CLOSE: Final = _Instead("close")
Script = Callable[[Asked], Awaitable[Any]]


async def as_usual(_asked: Asked) -> None:
    """The script that leaves everything to the usual answers."""


def size_of(frame_bytes: int) -> bytes:
    """The prefix of a frame."""
    return frame_bytes.to_bytes(SIZE_BYTES, "big", signed=True)


def topic_id_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()[:16]


class Line:
    """One connection, as its broker has it."""

    def __init__(self, number: int, broker_id: int) -> None:
        self.number, self.broker_id = number, broker_id
        self.is_closed = False
        self.sent: deque[bytes] = deque()
        """To the client; each is received by itself."""
        self.behind: list[bytes] = []
        self._room: float = math.inf
        self._taken = bytearray()
        self._changed = anyio.Event()

    @property
    def room(self) -> float | None:
        return None if self._room == math.inf else self._room

    @room.setter
    def room(self, bytes_count: float | None) -> None:
        self._room = math.inf if bytes_count is None else bytes_count
        self.tell()

    def tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def take(self, data: memoryview) -> int:
        """From the client: how many bytes there is room for."""
        count = int(min(len(data), self._room))
        self._room -= count
        self._taken += data[:count]
        if count:
            self.tell()
        return count

    async def send(self, data: bytes) -> None:
        if not self.is_closed:
            self.sent.append(data)
            self.tell()

    async def receive_frame(self) -> bytes | None:
        """None: the line is closed."""
        while True:
            size = int.from_bytes(self._taken[:SIZE_BYTES], "big") + SIZE_BYTES
            if len(self._taken) >= max(size, SIZE_BYTES + 1):
                frame = bytes(self._taken[SIZE_BYTES:size])
                del self._taken[:size]
                return frame
            if self.is_closed:
                return None
            await self.fill()

    async def fill(self) -> None:
        await self.wait_changed()

    def close(self) -> None:
        self.is_closed = True
        self.tell()


class MemoryWire:
    """The client's end of a line in memory."""

    def __init__(self, node: Node, line: Line) -> None:
        self._node, self._line = node, line
        self._left = b""
        self._is_closed = False

    def write(self, buffers: Any) -> bool:
        if self._is_closed or self._line.is_closed:
            raise UnreachableError(f"the connection to {self._node.host}:{self._node.port} broke: closed")
        self._left += b"".join(map(bytes, buffers))
        return self._send()

    def _send(self) -> bool:
        self._left = self._left[self._line.take(memoryview(self._left)) :]
        return not self._left

    async def drain(self) -> None:
        while not self._send():
            if self._is_closed or self._line.is_closed:
                raise anyio.ClosedResourceError
            await self._line.wait_changed()

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            if self._is_closed:
                raise anyio.ClosedResourceError
            if self._line.sent:
                data = self._line.sent.popleft()
                count = min(len(data), len(buffer))
                buffer[:count] = data[:count]
                if count < len(data):
                    self._line.sent.appendleft(data[count:])
                return count
            if self._line.is_closed:
                return 0
            await self._line.wait_changed()

    def close(self) -> None:
        self._is_closed = True
        self._line.close()


class SocketLine(Line):
    """One connection on a socket, with TLS or without."""

    def __init__(self, number: int, broker_id: int, stream: Any, tasks: TaskGroup) -> None:
        super().__init__(number, broker_id)
        self._stream, self._tasks = stream, tasks

    async def send(self, data: bytes) -> None:
        try:
            await self._stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.is_closed = True

    async def fill(self) -> None:
        try:
            self._taken += await self._stream.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.is_closed = True

    def close(self) -> None:
        if not self.is_closed:
            super().close()
            self._tasks.start_soon(self._stream.aclose)


@dataclass
class Shape:
    """What the usual answers say."""

    topics: dict[str, int]
    """Partitions by topic."""
    nodes: dict[int, Node]
    leaders: dict[tuple[str, int], int]
    """Where it is not the partition modulo the number of brokers; -1: none."""
    leader_epochs: dict[tuple[str, int], int]
    coordinators: dict[str, int]
    versions: dict[ApiKey, tuple[int, int] | None]


class ScriptedBrokers:
    """Made by `scripted_brokers`."""

    def __init__(self, script: Script, shape: Shape, tasks: TaskGroup) -> None:
        self.script = script
        self.topics, self.nodes, self.leaders = shape.topics, shape.nodes, shape.leaders
        self.leader_epochs, self.coordinators, self.versions = (
            shape.leader_epochs, shape.coordinators, shape.versions,
        )  # fmt: skip
        self.asked: list[Asked] = []
        self.lines: list[Line] = []
        self.dials: list[Node] = []
        self.refused: set[int] = set()
        self._tasks = tasks
        self._news = anyio.Event()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes.values())

    async def dial(self, node: Node) -> MemoryWire:
        """A `Dial`."""
        self.dials.append(node)
        await anyio.lowlevel.checkpoint()
        broker_id = next((one for one, place in self.nodes.items() if place == node), None)
        if broker_id is None or broker_id in self.refused:
            raise UnreachableError(f"no connection to {node.host}:{node.port}: refused")
        line = Line(len(self.lines), broker_id)
        self.lines.append(line)
        self._tasks.start_soon(self._serve, line)
        return MemoryWire(node, line)

    async def listen(self, broker_id: int, tls: ssl.SSLContext | None = None) -> None:
        """On a loopback port, which is from now on the broker's in `nodes`."""
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        self.nodes[broker_id] = Node("127.0.0.1", listener.extra(SocketAttribute.local_port))

        async def take(stream: Any) -> None:
            if tls is not None:
                try:
                    stream = await TLSStream.wrap(stream, server_side=True, ssl_context=tls, standard_compatible=False)
                except (anyio.BrokenResourceError, anyio.EndOfStream, OSError):  # also what `ssl` raises
                    await stream.aclose()
                    return
            line = SocketLine(len(self.lines), broker_id, stream, self._tasks)
            self.lines.append(line)
            async with stream:
                await self._serve(line)

        async def serve() -> None:
            async with listener:
                await listener.serve(take)

        self._tasks.start_soon(serve)

    def asked_of(self, key: ApiKey) -> list[Asked]:
        return [one for one in self.asked if one.key == key]

    async def wait_asked(self, key: ApiKey, count: int = 1) -> None:
        while len(self.asked_of(key)) < count:
            await self._news.wait()

    async def _serve(self, line: Line) -> None:
        while (frame := await line.receive_frame()) is not None:
            asked = self._read(line, frame)
            self.asked.append(asked)
            news, self._news = self._news, anyio.Event()
            news.set()
            answer = await self.script(asked)
            if answer is None:
                answer = self.usual(asked)
            await self._play(line, asked, answer)

    def _read(self, line: Line, frame: bytes) -> Asked:
        header, position = protocol.decode_request_header(frame)
        key, version = ApiKey(header.request_api_key), header.request_api_version
        try:
            message = protocol.decode_request(key, version, frame, position)
        except CodecError:
            message = None
        number = len(self.asked_of(key))
        return Asked(key, version, message, line.broker_id, line.number, number, header.correlation_id,
                     header.client_id)  # fmt: skip

    async def _play(self, line: Line, asked: Asked, answer: Any) -> None:
        if answer is NO_ANSWER:
            return
        if answer is CLOSE:
            line.close()
            return
        if isinstance(answer, Raw):
            await line.send(answer.data)
            return
        is_wrapped = isinstance(answer, Cut | Bytewise | Twice | Behind)
        frame = _framed(asked, answer.answer if is_wrapped else answer)
        if isinstance(answer, Behind):
            line.behind.append(frame)
            return
        if isinstance(answer, Cut):
            await line.send(frame[: answer.bytes_count])
            line.close()
            return
        pieces = [bytes([byte]) for byte in frame] if isinstance(answer, Bytewise) else [frame]
        for piece in [*pieces, *(pieces if isinstance(answer, Twice) else []), *line.behind]:
            await line.send(piece)
        line.behind.clear()

    def usual(self, asked: Asked) -> Any:
        """The answer that a script need not give."""
        if asked.key == ApiKey.API_VERSIONS:
            return self._api_versions(asked)
        if asked.key == ApiKey.METADATA:
            return self._metadata(asked)
        if asked.key == ApiKey.FIND_COORDINATOR:
            return self._coordinators(asked)
        raise AssertionError(f"the script has no answer to {asked}")

    def _api_versions(self, asked: Asked) -> Any:
        kind = messages.ApiVersionsResponse
        offered = {key: (api(key).first_version, min(api(key).last_version, top)) for key, top in VERSION_MAX.items()}
        offered |= self.versions  # type: ignore[arg-type]
        rows = [
            kind.ApiVersion(api_key=key, min_version=row[0], max_version=row[1])
            for key, row in offered.items()
            if row is not None
        ]
        _first, last = offered[ApiKey.API_VERSIONS]
        if asked.version <= last:
            return kind(api_keys=rows)
        own = [row for row in rows if row.api_key == ApiKey.API_VERSIONS]
        refusal = kind(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=own)
        frame = protocol.encode_response_frame(ApiKey.API_VERSIONS, 0, asked.correlation_id, refusal)
        return Raw(b"".join(map(bytes, frame)))

    def _metadata(self, asked: Asked) -> Any:
        kind = messages.MetadataResponse
        brokers = [
            kind.MetadataResponseBroker(node_id=broker_id, host=node.host, port=node.port)
            for broker_id, node in self.nodes.items()
        ]
        names = list(self.topics) if asked.message.topics is None else [one.name for one in asked.message.topics]
        return kind(brokers=brokers, cluster_id="scripted", controller_id=0, topics=list(map(self._topic, names)))

    def _topic(self, name: str) -> Any:
        kind = messages.MetadataResponse
        if name not in self.topics:
            return kind.MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)
        ids = sorted(self.nodes)
        partitions = []
        for index in range(self.topics[name]):
            leader = self.leaders.get((name, index), ids[index % len(ids)])
            code = ErrorCode.NONE if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE
            row = kind.MetadataResponsePartition(error_code=code, partition_index=index, leader_id=leader)
            row.leader_epoch = self.leader_epochs.get((name, index), 0)
            row.replica_nodes = row.isr_nodes = ids
            partitions.append(row)
        return kind.MetadataResponseTopic(name=name, topic_id=topic_id_of(name), partitions=partitions)

    def _coordinators(self, asked: Asked) -> Any:
        kind = messages.FindCoordinatorResponse
        names = asked.message.coordinator_keys or [asked.message.key]
        found = []
        for name in names:
            broker_id = self.coordinators.get(name, min(self.nodes))
            host, port = self.nodes[broker_id]
            found.append(kind.Coordinator(key=name, node_id=broker_id, host=host, port=port))
        if asked.version >= 4:
            return kind(coordinators=found)
        return kind(node_id=found[0].node_id, host=found[0].host, port=found[0].port)


def _framed(asked: Asked, message: Any) -> bytes:
    frame = protocol.encode_response_frame(asked.key, asked.version, asked.correlation_id, message)
    return b"".join(map(bytes, frame))


@asynccontextmanager
async def scripted_brokers(
    script: Script = as_usual,
    *,
    topics: dict[str, int] | None = None,
    brokers_count: int = 1,
    versions: dict[ApiKey, tuple[int, int] | None] | None = None,
    sockets: bool = False,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ScriptedBrokers]:
    """Brokers 0 to ``brokers_count`` - 1."""
    nodes = {broker_id: Node(HOST, FIRST_PORT + broker_id) for broker_id in range(brokers_count)}
    async with background_tasks() as tasks:
        made = ScriptedBrokers(script, Shape(topics or {}, nodes, {}, {}, {}, versions or {}), tasks)
        if sockets or tls is not None:
            for broker_id in range(brokers_count):
                await made.listen(broker_id, tls)
        yield made


@asynccontextmanager
async def scripted_client(
    script: Script = as_usual,
    *,
    topics: dict[str, int] | None = None,
    brokers_count: int = 1,
    versions: dict[ApiKey, tuple[int, int] | None] | None = None,
    **settings: Any,
) -> AsyncIterator[tuple[Client, ScriptedBrokers]]:
    """`scripted_brokers` in memory and a client of them; ``settings`` are those of `FleetSettings`, like
    ``retry_seconds=0.5``.
    """
    async with (
        scripted_brokers(script, topics=topics, brokers_count=brokers_count, versions=versions) as brokers,
        opened(FleetSettings(brokers.bootstrap, **settings), dial=brokers.dial) as client,
    ):
        yield client, brokers
