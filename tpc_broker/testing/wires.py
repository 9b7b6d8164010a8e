"""A client's wire to a broker in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from tpc_broker.client.errors import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.client.requests import Node

SIZE_BYTES = 4


class MemoryWire:
    """`Wire`. `take` gets the frames of requests, without their sizes, and `leave` is called when the client closes."""

    def __init__(self, node: Node, take: Callable[[bytes], None], leave: Callable[[], None]) -> None:
        self._node, self._take, self._leave = node, take, leave
        self._out, self._in = bytearray(), bytearray()
        self._is_over = self._is_closed = False
        self._changed = anyio.Event()

    def write(self, buffers: Sequence[Any]) -> bool:
        if self._is_over or self._is_closed:
            raise UnreachableError(f"the connection to {self._node.host}:{self._node.port} broke: it is closed")
        for buffer in buffers:
            self._out += buffer
        while len(self._out) >= SIZE_BYTES:
            end = SIZE_BYTES + int.from_bytes(self._out[:SIZE_BYTES], "big")
            if len(self._out) < end:
                break
            frame = bytes(self._out[SIZE_BYTES:end])
            del self._out[:end]
            self._take(frame)
        return True

    async def drain(self) -> None:
        await anyio.lowlevel.checkpoint()

    async def receive_into(self, buffer: memoryview) -> int:
        while not self._in and not self._is_over and not self._is_closed:
            self._changed = anyio.Event()
            await self._changed.wait()
        if self._is_closed:
            raise anyio.ClosedResourceError
        count = min(len(buffer), len(self._in))
        buffer[:count] = self._in[:count]
        del self._in[:count]
        return count

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._changed.set()
            self._leave()

    def give(self, data: bytes | None) -> None:
        """What the broker sends; None: it has closed the connection."""
        if data is None:
            self._is_over = True
        else:
            self._in += data
        self._changed.set()
