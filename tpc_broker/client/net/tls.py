"""TLS over another wire, by `ssl.MemoryBIO`: no thread, and no socket that the interpreter blocks on.

The handshake is done before there is a `TlsWire`; its caller bounds the time. Who cannot prove who it is, or is not let
in, is an `AuthenticationError`: also a broker that refuses the client's certificate, which with TLS 1.3 it says only
when the handshake is over here.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.errors import AuthenticationError, ClientError, UnreachableError
from tpc_broker.client.net.wires import broken, pushed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.client.net.wires import Receiver, Wire
    from tpc_broker.client.requests import Node

CIPHER_BYTES: Final = 64 * 1024
"""Of one receive: four records."""
PLAIN_BYTES: Final = 256 * 1024
"""Encrypted at once."""
SMALL_BYTES: Final = 16 * 1024
"""Buffers shorter than a record are joined before they are encrypted, so that each does not become one."""


class TlsWire:
    """Made by `shake_hands`."""

    def __init__(self, node: Node, under: Wire, context: ssl.SSLContext) -> None:
        self._node, self._under = node, under
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=node.host)
        self._cipher = memoryview(bytearray(CIPHER_BYTES))

    async def shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                await self._under.drain()
                if not await self._receive():
                    why = "the broker closed it during the TLS handshake: does it speak TLS there? (tls)"
                    raise broken(self._node, why) from None
            except (ssl.SSLError, ssl.CertificateError) as error:
                with contextlib.suppress(ClientError):
                    self._flush()  # the alert that says why
                raise AuthenticationError(f"no TLS with {self._node.host}:{self._node.port}: {error}") from error
            else:
                self._flush()
                await self._under.drain()
                return

    def write(self, buffers: Sequence[Any]) -> bool:
        is_all = True
        for piece in _pieces(buffers):
            try:
                self._tls.write(piece)
            except ssl.SSLError as error:
                raise self._failure(error) from error
            is_all = self._flush()
        return is_all

    def _flush(self) -> bool:
        return self._under.write([self._outgoing.read()])

    async def drain(self) -> None:
        await self._under.drain()

    async def receive_into(self, buffer: memoryview) -> int:
        while (count := self._read(buffer)) < 0:
            if not await self._receive():
                return 0  # also without a good-bye: answers have lengths, so that nothing is taken for whole
        return count

    def _read(self, buffer: memoryview) -> int:
        """0: the broker has said good-bye; -1: more has to be received first."""
        try:
            count: Any = self._tls.read(len(buffer), buffer)  # bytes for type checkers: it is so without a buffer
            return int(count)
        except ssl.SSLWantReadError:
            if self._outgoing.pending:
                self._flush()  # a new key was asked for
            return -1
        except ssl.SSLZeroReturnError:
            return 0
        except ssl.SSLError as error:
            raise self._failure(error) from error

    async def push_to(self, receiver: Receiver) -> None:
        deciphered = _Deciphered(self, receiver)
        deciphered.received(0)  # what came with the end of the handshake
        await pushed(self._under, deciphered)

    def cipher_buffer(self) -> memoryview:
        return self._cipher

    def decipher(self, count: int, receiver: Receiver) -> None:
        """So many bytes are in `cipher_buffer`: give away what they are."""
        self._incoming.write(self._cipher[:count])
        while (read := self._read(receiver.buffer())) > 0:
            receiver.received(read)
        if not read:
            raise broken(self._node, "the broker closed it")

    async def _receive(self) -> int:
        count = await self._under.receive_into(self._cipher)
        self._incoming.write(self._cipher[:count])
        return count

    def close(self) -> None:
        with contextlib.suppress(ssl.SSLError, ClientError):
            try:
                self._tls.unwrap()
            finally:
                self._flush()
        self._under.close()

    def _failure(self, error: ssl.SSLError) -> AuthenticationError | UnreachableError:
        if "ALERT" in (error.reason or ""):
            return AuthenticationError(f"{self._node.host}:{self._node.port} ended TLS: {error}")
        return broken(self._node, error)


class _Deciphered:
    """Takes what is encrypted for a receiver of what is not."""

    def __init__(self, wire: TlsWire, receiver: Receiver) -> None:
        self._wire, self._receiver = wire, receiver

    def buffer(self) -> memoryview:
        return self._wire.cipher_buffer()

    def received(self, count: int) -> None:
        self._wire.decipher(count, self._receiver)


def _pieces(buffers: Sequence[Any]) -> Any:
    """In order: small buffers joined, large ones in parts."""
    small: list[Any] = []
    small_bytes = 0
    for buffer in buffers:
        if len(buffer) < SMALL_BYTES and small_bytes < PLAIN_BYTES:
            small.append(buffer)
            small_bytes += len(buffer)
            continue
        if small:
            yield b"".join(small)
            small, small_bytes = [], 0
        view = memoryview(buffer).cast("B")
        for begin in range(0, len(view), PLAIN_BYTES):
            yield view[begin : begin + PLAIN_BYTES]
    if small_bytes:
        yield b"".join(small)
