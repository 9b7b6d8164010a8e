"""A blocking connection to one broker. A failure of the network is an `UnreachableError` and ends the connection."""

import contextlib
import socket
from collections.abc import Callable
from typing import Any, Final

from tpc_broker.client.conversation import Conversation
from tpc_broker.client.errors import UnreachableError
from tpc_broker.client.requests import Node
from tpc_broker.kafka import ApiKey, CodecError

SIZE_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024

MakeRequest = Callable[[int], Any]
"""Makes the message for the version that both sides know."""


class Connection:
    """Requests may be sent ahead; answers come in the same order. Not for several threads at once."""

    def __init__(self, node: Node, client_id: str, timeout_seconds: float) -> None:
        self.node = node
        self._conversation = Conversation(client_id)
        try:
            self._socket = socket.create_connection(node, timeout=timeout_seconds)
        except OSError as error:
            raise UnreachableError(f"no connection to {node.host}:{node.port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._send(self._conversation.hello())
        self._conversation.agree(self.receive())

    @property
    def is_idle(self) -> bool:
        return self._conversation.in_flight_count == 0

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def send(self, key: ApiKey, make: MakeRequest) -> None:
        """Send a request; its answer is the next one that `receive` gives after those of earlier requests."""
        version = self._conversation.version(key)
        self._send(self._conversation.request(key, version, make(version)))

    def receive(self) -> Any:
        """The answer to the oldest request in flight."""
        size = int.from_bytes(self._read(SIZE_BYTES), "big", signed=True)
        if not 0 < size <= FRAME_BYTES_MAX:
            raise self._broken(f"a frame of {size} bytes")
        frame = self._read(size)
        try:
            return self._conversation.answer(frame)
        except CodecError as error:
            raise self._broken(f"an answer that cannot be read: {error}") from error

    def call(self, key: ApiKey, make: MakeRequest) -> Any:
        """`send` and `receive`."""
        assert self.is_idle, "answers of earlier requests are still to come"
        self.send(key, make)
        return self.receive()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _broken(self, why: object) -> UnreachableError:
        self.close()
        return UnreachableError(f"the connection to {self.node.host}:{self.node.port} broke: {why}")

    def _send(self, buffers: list[Any]) -> None:
        try:
            self._socket.sendall(b"".join(buffers))
        except OSError as error:
            raise self._broken(error) from error

    def _read(self, size: int) -> memoryview:
        buffer = memoryview(bytearray(size))
        position = 0
        while position < size:
            try:
                count = self._socket.recv_into(buffer[position:])
            except OSError as error:
                raise self._broken(error) from error
            if count == 0:
                raise self._broken("the broker closed it")
            position += count
        return buffer
