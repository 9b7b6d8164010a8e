"""A blocking connection to one broker, with TLS and SASL where the settings say so.

A failure of the network is an `UnreachableError`, one of identity an `AuthenticationError`; both end the connection.
"""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.conversation import Conversation, Request
from tpc_broker.client.errors import AuthenticationError, UnreachableError
from tpc_broker.client.introduction import NONCE_BYTES, introduction
from tpc_broker.client.requests import Node
from tpc_broker.client.security import SaslSettings, SecuritySettings, TlsSettings, tls_context
from tpc_broker.kafka import ApiKey, CodecError
from tpc_broker.kafka.source import uvarint

if TYPE_CHECKING:
    from tpc_broker.client.sasl import Login

SIZE_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
SESSION_SHARE: Final = 0.85
"""A session that the broker limits is given up after this share of its life, before the broker ends it."""
BUFFERS_AT_ONCE: Final = 512
"""Of one sendmsg(2), which takes at most IOV_MAX (1024)."""

MakeRequest = Callable[[int], Any]
"""Makes the message for the version that both sides know."""


class Connection:
    """Requests may be sent ahead; answers come in the same order. Not for several threads at once."""

    def __init__(
        self, node: Node, client_id: str, timeout_seconds: float, security: SecuritySettings | None = None
    ) -> None:
        self.node = node
        self._conversation = Conversation(client_id)
        self._expires_at = float("inf")
        self._is_encrypted = security is not None and security.tls is not None
        try:
            self._socket = socket.create_connection(node, timeout=timeout_seconds)
        except (OSError, UnicodeError) as error:  # UnicodeError: no host has such a name
            raise UnreachableError(f"no connection to {node.host}:{node.port}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security is not None and security.tls is not None:
                self._wrap(security.tls)
            self._introduce(None if security is None else security.sasl)
        except BaseException:
            self.close()
            raise

    def _wrap(self, settings: TlsSettings) -> None:
        import ssl  # noqa: PLC0415 - a connection without it is opened sooner

        context = tls_context(settings)
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=self.node.host)
        except ssl.SSLError as error:
            raise AuthenticationError(f"no TLS with {self.node.host}:{self.node.port}: {error}") from error
        except OSError as error:
            raise self._broken(error) from error

    def _introduce(self, settings: SaslSettings | None) -> None:
        login: Login | None = None
        if settings is not None:
            import secrets  # noqa: PLC0415 - likewise

            from tpc_broker.client.sasl import login_of  # noqa: PLC0415 - likewise

            login = login_of(settings, secrets.token_urlsafe(NONCE_BYTES))
        machine = introduction(self._conversation, f"{self.node.host}:{self.node.port}", login)
        try:
            asked = next(machine)
            while True:
                self._send(self._conversation.request(Request(*asked)))
                asked = machine.send(self.receive())
        except StopIteration as ended:
            self._expires_at = time.monotonic() + SESSION_SHARE * ended.value

    @property
    def is_expired(self) -> bool:
        """Whether the broker will end the session soon: make another one."""
        return time.monotonic() >= self._expires_at

    @property
    def is_idle(self) -> bool:
        return not self._conversation.in_flight

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0

    def has(self, key: ApiKey) -> bool:
        """Whether the broker has an API at all."""
        return self._conversation.knows(key)

    def send(self, key: ApiKey, make: MakeRequest) -> None:
        """Send a request; its answer is the next one that `receive` gives after those of earlier requests."""
        version = self._conversation.version(key)
        self._send(self._conversation.request(Request(key, version, make(version))))

    def call_tagged(
        self, key: ApiKey, make: MakeRequest, tag: int, value: bytes = b""
    ) -> tuple[Any, memoryview]:
        """`call_whole`, with a tagged field of a number that Kafka has not; others pass over it. The request's last
        field must not be tagged, and its version flexible.
        """
        assert self.is_idle, "answers of earlier requests are still to come"
        version = self._conversation.version(key)
        frame = b"".join(self._conversation.request(Request(key, version, make(version))))
        body = frame[SIZE_BYTES:]
        assert body.endswith(b"\0"), "the count of tagged fields"
        body = body[:-1] + b"\1" + uvarint(tag) + uvarint(len(value)) + value
        self._send([len(body).to_bytes(SIZE_BYTES, "big") + body])
        return self._receive()

    def receive(self) -> Any:
        """The answer to the oldest request in flight."""
        return self._receive()[0]

    def call_whole(self, key: ApiKey, make: MakeRequest) -> tuple[Any, memoryview]:
        """`call`, and the answer as it came: with tagged fields that this client does not know."""
        assert self.is_idle, "answers of earlier requests are still to come"
        self.send(key, make)
        return self._receive()

    def _receive(self) -> tuple[Any, memoryview]:
        size = int.from_bytes(self._read(SIZE_BYTES), "big", signed=True)
        if not 0 < size <= FRAME_BYTES_MAX:
            raise self._broken(f"a frame of {size} bytes")
        frame = self._read(size)
        try:
            return self._conversation.answer(frame), frame
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
            if self._is_encrypted:  # which copies everything anyway, and has no sendmsg
                self._socket.sendall(b"".join(buffers))
            else:
                self._send_in_place(buffers)
        except OSError as error:
            raise self._broken(error) from error

    def _send_in_place(self, buffers: list[Any]) -> None:
        """Without a copy of large records."""
        left = [memoryview(buffer) for buffer in buffers if len(buffer)]
        while left:
            sent = self._socket.sendmsg(left[:BUFFERS_AT_ONCE])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

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
