"""What a node among others has of the world, besides its disk: connections, datagrams, clocks and chance.

`SYSTEM` is the host's. The simulator of whole nodes (`tests/simulator/nodes_run.py`) has its own, so that a run of
several nodes in one process can be repeated.
"""

from __future__ import annotations

import random
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from tpc_broker.engine.clocks import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.ports import Clock
    from tpc_broker.swim.model import Address

UNACKNOWLEDGED_MS_MAX: Final = 2_000
"""The kernel ends a connection whose peer takes nothing for so long: a new one is there sooner than a resend."""
TCP_USER_TIMEOUT: Final = 18


class Accepting(Protocol):
    """A socket that listens."""

    async def accept(self) -> trio.SocketStream:
        """The next connection. OSError: try again, a little later."""
        ...


class Datagrams(Protocol):
    """A node's UDP socket."""

    async def receive(self, bytes_max: int) -> tuple[bytes, Any]:
        """The next one, waited for, and its source: host and port first."""
        ...

    def receive_now(self, bytes_max: int) -> tuple[bytes, Any] | None:
        """The next one that is there."""
        ...

    def send(self, target: Address, data: bytes, start_soon: Callable[..., None]) -> None:
        """One that cannot be sent at once is lost. `start_soon`: of a nursery, for names that have to be looked up."""
        ...


class Network(Protocol):
    """How nodes reach each other."""

    async def dial(self, host: str, port: int) -> trio.SocketStream:
        """OSError as of `trio.open_tcp_stream`, also for what cannot be the name of a host."""
        ...

    def accepting(self, listener: socket.socket) -> Accepting: ...

    def datagrams(self, bound: socket.socket) -> Datagrams: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`chance`: what makes nodes, lives and questions differ from each other, and cannot be guessed by others."""

    network: Network
    clock: Clock
    chance: random.Random

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.chance.getrandbits(128), version=4)


# ---- the host's ----


class _SystemAccepting:
    def __init__(self, listener: socket.socket) -> None:
        self._listener = trio.socket.from_stdlib_socket(listener)

    async def accept(self) -> trio.SocketStream:
        connected, _address = await self._listener.accept()
        stream = trio.SocketStream(connected)
        with suppress(OSError):  # one that has ended already
            _set_options(stream)
        return stream


class _SystemDatagrams:
    def __init__(self, bound: socket.socket) -> None:
        self._bound, self._socket = bound, trio.socket.from_stdlib_socket(bound)

    async def receive(self, bytes_max: int) -> tuple[bytes, Any]:
        while True:
            try:
                return await self._socket.recvfrom(bytes_max)
            except OSError:  # what an earlier datagram met with: a port that nobody has
                continue

    def receive_now(self, bytes_max: int) -> tuple[bytes, Any] | None:
        try:
            return self._bound.recvfrom(bytes_max, socket.MSG_DONTWAIT)
        except OSError:
            return None

    def send(self, target: Address, data: bytes, start_soon: Callable[..., None]) -> None:
        """Addresses are numbers, or names of the machine's own table."""
        try:
            found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            start_soon(self._send_by_name, target, data)
            return
        except UnicodeError:  # no host has such a name
            return
        self._send_now(data, found[0][4])

    async def _send_by_name(self, target: Address, data: bytes) -> None:
        try:
            found = await trio.socket.getaddrinfo(target.host, target.port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError):
            return
        self._send_now(data, found[0][4])

    def _send_now(self, data: bytes, address: Any) -> None:
        with suppress(OSError):
            self._bound.sendto(data, socket.MSG_DONTWAIT, address)


class _SystemNetwork:
    async def dial(self, host: str, port: int) -> trio.SocketStream:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except UnicodeError as error:
            raise OSError(f"{host}: no host has such a name ({error})") from error
        try:
            _set_options(stream)
        except OSError:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            raise
        return stream

    def accepting(self, listener: socket.socket) -> Accepting:
        return _SystemAccepting(listener)

    def datagrams(self, bound: socket.socket) -> Datagrams:
        return _SystemDatagrams(bound)


def _set_options(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream.socket.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


SYSTEM: Final = Surroundings(_SystemNetwork(), SystemClock(), random.SystemRandom())
