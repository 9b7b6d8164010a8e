"""Bytes to and from a broker. A wire has one reader and one writer task at most.

`write` takes buffers at once, as far as the kernel does; what is left is sent by `drain`. Failures of the network are
`UnreachableError`. A wire that is closed while a task waits for it raises `anyio.ClosedResourceError` there.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import anyio

from tpc_broker.client.errors import UnreachableError
from tpc_broker.client.net.loops import is_on_trio

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from tpc_broker.client.requests import Node

BUFFERS_AT_ONCE: Final = 512
"""Of one sendmsg(2), which takes at most IOV_MAX (1024)."""


class Wire(Protocol):
    def write(self, buffers: Sequence[Any]) -> bool:
        """Take buffers of bytes in order; True: all of them have left, False: `drain` has something to do."""

    async def drain(self) -> None:
        """Until what was written has left."""

    async def receive_into(self, buffer: memoryview) -> int:
        """At least one byte; 0: the broker closed it."""

    def close(self) -> None: ...


class Receiver(Protocol):
    def buffer(self) -> memoryview:
        """Where the next bytes go: never empty."""

    def received(self, count: int) -> None:
        """So many are there now."""


@runtime_checkable
class PushingWire(Protocol):
    """One that gives what it receives away from within the event loop, without a task that waits for it."""

    def push_to(self, receiver: Receiver) -> Coroutine[Any, Any, None]:
        """Until the broker closes it; raises what the receiver raised."""


def pushed(wire: Wire, receiver: Receiver) -> Coroutine[Any, Any, None]:
    """All that a wire receives, until the broker closes it, in the wire's own way."""
    return wire.push_to(receiver) if isinstance(wire, PushingWire) else _pulled(wire, receiver)


async def _pulled(wire: Wire, receiver: Receiver) -> None:
    while count := await wire.receive_into(receiver.buffer()):
        receiver.received(count)


class PlainWire:
    """A non-blocking socket."""

    def __init__(self, node: Node, connected: socket.socket) -> None:
        self.node = node
        self._socket = connected
        self._left: deque[memoryview] = deque()

    def write(self, buffers: Sequence[Any]) -> bool:
        if not self._left and len(buffers) == 1:
            (whole,) = buffers
            try:
                sent = self._socket.send(whole)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                raise broken(self.node, error) from error
            if sent == len(whole):
                return True
            buffers = [memoryview(whole).cast("B")[sent:]]
        is_behind = bool(self._left)
        self._left.extend(memoryview(buffer).cast("B") for buffer in buffers if len(buffer))
        return not is_behind and self._send()

    async def drain(self) -> None:
        while not self._send():
            await anyio.wait_writable(self._socket)

    def _send(self) -> bool:
        left = self._left
        while left:
            try:
                sent = self._socket.sendmsg([left[place] for place in range(min(len(left), BUFFERS_AT_ONCE))])
            except BlockingIOError:
                return False
            except OSError as error:
                raise broken(self.node, error) from error
            while left and sent >= len(left[0]):
                sent -= len(left.popleft())
            if sent:
                left[0] = left[0][sent:]
        return True

    async def receive_into(self, buffer: memoryview) -> int:
        while True:
            try:
                return self._socket.recv_into(buffer)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise broken(self.node, error) from error

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
        self._left.clear()
        with contextlib.suppress(OSError):
            self._socket.close()


def broken(node: Node, why: object) -> UnreachableError:
    return UnreachableError(f"the connection to {node.host}:{node.port} broke: {why}")


async def connect_plain(node: Node) -> PlainWire:
    """To the first of the host's addresses that takes it. `UnreachableError`. The caller bounds the time."""
    connected = await connected_socket(node)
    if is_on_trio():
        from tpc_broker.client.net.trio_wire import TrioWire  # noqa: PLC0415 - asyncio does without trio

        return TrioWire(node, connected)
    from tpc_broker.client.net.asyncio_wire import AsyncioWire  # noqa: PLC0415 - and trio without asyncio

    return AsyncioWire(node, connected)


async def connected_socket(node: Node) -> socket.socket:
    """Non-blocking, without Nagle's algorithm."""
    reasons: list[str] = []
    found = await _addresses(node)
    for place, (family, kind, protocol, _name, address) in enumerate(found):
        try:
            made = socket.socket(family, kind, protocol)
        except OSError as error:  # a family that this host has not
            reasons.append(str(error))
            continue
        try:
            made.setblocking(False)  # noqa: FBT003 - the socket's own signature
            with anyio.fail_after(_share(len(found) - place)):
                await _connect(made, address)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            made.close()
            reasons.append(str(error) or f"no answer from {address[0]}")
        except BaseException:
            made.close()
            raise
        else:
            return made
    raise UnreachableError(f"no connection to {node.host}:{node.port}: {'; '.join(dict.fromkeys(reasons))}")


def _share(addresses_left: int) -> float | None:
    """Of the caller's time, so that an address that does not answer does not take it from the others."""
    left = anyio.current_effective_deadline() - anyio.current_time()
    return None if addresses_left == 1 else left / addresses_left


async def _addresses(node: Node) -> Any:
    try:
        with contextlib.suppress(socket.gaierror):  # it is a name: the resolver blocks, and has a thread
            return socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return await anyio.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: no host has such a name
        raise UnreachableError(f"no connection to {node.host}:{node.port}: {error}") from error


async def _connect(made: socket.socket, address: Any) -> None:
    try:
        made.connect(address)
    except BlockingIOError:
        await anyio.wait_writable(made)
        code = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None
