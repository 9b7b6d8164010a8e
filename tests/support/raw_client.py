"""A synchronous connection that sends what it is told, well formed or not, and waits for one answer at a time."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from tests.support.definitions import decode_response, encode_request
from tests.support.waiting import PATIENCE_S


class Closed(ConnectionError):  # noqa: N818 (it says what happened)
    """The broker closed the connection instead of answering."""


class RawConnection:
    """One TCP connection to a broker. Usable as a context manager."""

    def __init__(self, host: str, port: int, timeout_seconds: float = PATIENCE_S, source: str = "") -> None:
        """`source`: the own address, for what a broker does by address."""
        self._socket = socket.create_connection((host, port), timeout_seconds, (source, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    @property
    def socket(self) -> socket.socket:
        return self._socket

    def send_bytes(self, data: bytes) -> None:
        """Raw bytes, no length in front."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as problem:
            raise Closed(str(problem)) from problem

    def send_frame(self, payload: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(payload)) + payload)

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                piece = self._socket.recv(count - len(parts))
            except ConnectionResetError as problem:
                raise Closed(str(problem)) from problem
            if not piece:
                raise Closed(f"end of stream after {len(parts)} of {count} bytes")
            parts += piece
        return bytes(parts)

    def receive_frame(self) -> bytes:
        """The next answer without its length. Raises `Closed`, or `TimeoutError` when nothing comes."""
        (length,) = struct.unpack(">i", self._receive(4))
        assert 0 <= length < 1 << 30, length
        return self._receive(length)

    def wait_closed(self) -> bytes:
        """Read until the broker closes; returns what came before. Raises `TimeoutError` when it does not close."""
        received = bytearray()
        while True:
            try:
                piece = self._socket.recv(65536)
            except ConnectionResetError:
                return bytes(received)
            if not piece:
                return bytes(received)
            received += piece

    def send(self, api: str, version: int, values: dict[str, Any], client_id: str | None = "referee") -> int:
        """Send a request without waiting; returns its correlation id."""
        self._correlation_id += 1
        self.send_frame(encode_request(api, version, values, self._correlation_id, client_id))
        return self._correlation_id

    def ask(self, api: str, version: int, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the decoded body of its answer."""
        correlation_id = self.send(api, version, values or {})
        answered_id, body = decode_response(api, version, self.receive_frame())
        assert answered_id == correlation_id, (answered_id, correlation_id)
        return body
