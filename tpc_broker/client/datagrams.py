"""Records as datagrams: the format as a machine without I/O, and a small producer on anyio (asyncio or trio).

``docs/datagrams.md`` has the format. A record is written at least once: twice when an answer was lost on its way.
"""

from __future__ import annotations

import random
import struct
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import anyio

from tpc_broker.client.errors import ClientError, RefusedError, UnreachableError
from tpc_broker.kafka import ErrorCode
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from anyio.abc import ConnectedUDPSocket

VERSION: Final = 1
ACKNOWLEDGE, HAS_KEY, HAS_TIMESTAMP, ANSWER = 1, 2, 4, 128
DATAGRAM_BYTES_MAX: Final = 16_384
RETRIED: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Answers after which a record is sent again."""
LEADERS_MAX: Final = 10_000
"""Partitions of which a producer remembers who took their last record."""
_HEADER: Final = struct.Struct(">BBHIII")
_TIMESTAMP: Final = struct.Struct(">q")
_U32_MAX: Final = 2**32 - 1


class TooLargeError(ClientError):
    """The record does not fit into a datagram."""


class Answer(NamedTuple):
    topic: int
    partition: int
    request_id: int
    error_code: int


def topic_hash(topic: str) -> int:
    return crc32c(topic.encode())


def encode_datagram(  # noqa: PLR0913 (the fields of the format)
    topic: str,
    partition: int,
    value: bytes,
    *,
    key: bytes | None = None,
    timestamp_ms: int | None = None,
    request_id: int = 0,
    acknowledge: bool = True,
) -> bytes:
    """One record. ValueError for what the format has no place for; TooLargeError."""
    if not 0 <= partition <= _U32_MAX or not 0 <= request_id <= _U32_MAX:
        raise ValueError(f"partition {partition}, request {request_id}: expected 0 to {_U32_MAX}")
    if timestamp_ms is not None and timestamp_ms < 0:
        raise ValueError(f"time stamp {timestamp_ms}: expected milliseconds since 1970")
    flags = (ACKNOWLEDGE if acknowledge else 0) | (HAS_KEY if key is not None else 0)
    told = b""
    if timestamp_ms is not None:
        flags |= HAS_TIMESTAMP
        told = _TIMESTAMP.pack(timestamp_ms)
    size = _HEADER.size + len(told) + len(key or b"") + len(value)
    if size > DATAGRAM_BYTES_MAX:
        raise TooLargeError(f"{topic}-{partition}: a datagram of {size} bytes; {DATAGRAM_BYTES_MAX} are allowed")
    head = _HEADER.pack(VERSION, flags, len(key or b""), topic_hash(topic), partition, request_id)
    return b"".join((head, told, key or b"", value))


def decode_answer(data: bytes) -> Answer | None:
    """None: it is none."""
    if len(data) != _HEADER.size:
        return None
    version, flags, code, topic, partition, request_id = _HEADER.unpack(data)
    return Answer(topic, partition, request_id, code) if (version, flags) == (VERSION, ANSWER) else None


@dataclass(frozen=True, slots=True)
class DatagramSettings:
    retry_seconds: float = 0.2
    """Without an answer, until a record is sent again for the first time; twice as long each further time."""
    retry_seconds_max: float = 2.0
    give_up_seconds: float = 30.0
    """Without an acknowledgement."""
    in_flight_max: int = 256
    """Records that wait for their answers at the same time; more senders wait for their turn."""

    def __post_init__(self) -> None:
        for name in ("retry_seconds", "retry_seconds_max", "give_up_seconds", "in_flight_max"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")


class _Waiting:
    """A record under way."""

    __slots__ = ("answer", "answered_by", "asked", "changed", "place")

    def __init__(self, place: tuple[int, int]) -> None:
        self.place = place
        self.asked = 0
        """Which of the addresses it was sent to last."""
        self.answer: Answer | None = None
        self.answered_by = 0
        self.changed = anyio.Event()


class DatagramProducer:
    """``async with DatagramProducer("127.0.0.1", 9095) as producer: await producer.send("t", 0, b"value")``.

    Of a cluster the ports of its other nodes can be named too: a record goes to the node that took the partition's last
    one, and, when that refuses it as not its own or does not answer, to the next.

    Any number of tasks may send at once. Whoever is cancelled in `send` leaves nothing behind here; whether the record
    was written is not known then.
    """

    def __init__(
        self,
        host: str,
        port: int,
        settings: DatagramSettings | None = None,
        *,
        other_nodes: Sequence[tuple[str, int]] = (),
    ) -> None:
        self._addresses = ((host, port), *other_nodes)
        self._leaders: dict[tuple[int, int], int] = {}
        """Which of the addresses took a partition's last record."""
        self._settings = settings or DatagramSettings()
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = random.randrange(_U32_MAX + 1)
        self._open = AsyncExitStack()
        self.sent_again = 0
        """Datagrams beyond the first of each record."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            self._sockets = [await opening.enter_async_context(await _connected(each)) for each in self._addresses]
            self._sending = anyio.Lock()
            self._room = anyio.Semaphore(self._settings.in_flight_max)
            tasks = await opening.enter_async_context(anyio.create_task_group())
            opening.callback(tasks.cancel_scope.cancel)
            for place, one in enumerate(self._sockets):
                tasks.start_soon(self._receive, one, place)
            self._open = opening.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._open.__aexit__(kind, error, trace)

    @property
    def in_flight(self) -> int:
        """Records that wait for their answers."""
        return len(self._waiting)

    async def send(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, timestamp_ms: int | None = None
    ) -> None:
        """Until the record is durable. RefusedError; UnreachableError when nobody has acknowledged it in time."""
        async with self._room:
            request_id = self._take_id()
            data = encode_datagram(
                topic, partition, value, key=key, timestamp_ms=timestamp_ms, request_id=request_id
            )
            waiting = self._waiting[request_id] = _Waiting((topic_hash(topic), partition))
            try:
                await self._deliver(data, waiting, f"{topic}-{partition}")
            finally:
                del self._waiting[request_id]

    async def send_unconfirmed(
        self, topic: str, partition: int, value: bytes, *, key: bytes | None = None, timestamp_ms: int | None = None
    ) -> None:
        """Sent once; what becomes of it nobody tells."""
        data = encode_datagram(topic, partition, value, key=key, timestamp_ms=timestamp_ms, acknowledge=False)
        await self._send(data, self._leaders.get((topic_hash(topic), partition), 0))

    def _take_id(self) -> int:
        while self._next_id in self._waiting:
            self._next_id = (self._next_id + 1) & _U32_MAX
        taken, self._next_id = self._next_id, (self._next_id + 1) & _U32_MAX
        return taken

    async def _deliver(self, data: bytes, waiting: _Waiting, where: str) -> None:
        settings = self._settings
        patience = settings.retry_seconds
        refused = asked = 0
        place = self._leaders.get(waiting.place, 0)
        with anyio.move_on_after(settings.give_up_seconds):
            while True:
                waiting.asked = place
                await self._send(data, place)
                asked += 1
                asked_at = anyio.current_time()
                with anyio.move_on_after(patience):
                    await waiting.changed.wait()
                if waiting.answer is not None:  # also one that came when patience had just ended
                    code = waiting.answer.error_code
                    if code == ErrorCode.NONE:
                        self._note_leader(waiting)
                        return
                    if code not in RETRIED:
                        raise RefusedError(code, where)
                    refused = code
                    waiting.answer, waiting.changed = None, anyio.Event()
                    if asked % len(self._addresses) == 0:  # all of them were asked
                        await anyio.sleep(max(0.0, patience - (anyio.current_time() - asked_at)))
                place = (place + 1) % len(self._addresses)
                if asked % len(self._addresses) == 0:
                    patience = min(2 * patience, settings.retry_seconds_max)
                self.sent_again += 1
        if refused:
            raise RefusedError(refused, f"{where}, tried for {settings.give_up_seconds:g} s")
        named = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        raise UnreachableError(f"{where}: no answer from {named} within {settings.give_up_seconds:g} s")

    def _note_leader(self, waiting: _Waiting) -> None:
        """For the partition's next record. The first address needs no note."""
        self._leaders.pop(waiting.place, None)
        if waiting.answered_by:
            self._leaders[waiting.place] = waiting.answered_by
            if len(self._leaders) > LEADERS_MAX:
                del self._leaders[next(iter(self._leaders))]

    async def _send(self, data: bytes, place: int) -> None:
        """What the network refuses is lost like any datagram: an answer will be missed."""
        async with self._sending:
            try:
                await self._sockets[place].send(data)
            except (OSError, anyio.BrokenResourceError):
                return

    async def _receive(self, one: ConnectedUDPSocket, place: int) -> None:
        while True:
            try:
                data = await one.receive()
            except anyio.ClosedResourceError:
                return
            except (OSError, anyio.BrokenResourceError):  # nobody listens there now
                await anyio.sleep(self._settings.retry_seconds)
                continue
            answer = decode_answer(data)
            waiting = self._waiting.get(answer.request_id) if answer is not None else None
            if answer is not None and waiting is not None and waiting.place == (answer.topic, answer.partition):
                is_durable = answer.error_code == ErrorCode.NONE
                if waiting.answer is None and (is_durable or place == waiting.asked):  # else a refusal comes late
                    waiting.answer, waiting.answered_by = answer, place
                    waiting.changed.set()


async def _connected(address: tuple[str, int]) -> ConnectedUDPSocket:
    host, port = address
    try:
        return await anyio.create_connected_udp_socket(remote_host=host, remote_port=port)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host has such a name
        raise UnreachableError(f"datagrams to {host}:{port}: {error}") from error
