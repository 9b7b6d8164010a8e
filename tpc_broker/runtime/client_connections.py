"""The client connections as the broker sees them (`tpc_broker.broker.ports.Connections`), over those in C."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tpc_broker.foreign_protocols import FIRST_BYTES, foreign_protocol
from tpc_broker.runtime.connections import CloseReason, CloseWhen, Connections, FrameSlice
from tpc_broker.runtime.quotas import ClientQuotasOfConnections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.dispatch import Dispatcher
    from tpc_broker.runtime.connections import Request

JOINED_BYTES_MAX = 4096
TOO_LARGE = "it announced a request larger than socket.request.max.bytes"
REASON_TEXTS = {
    CloseReason.LOCAL: "local",
    CloseReason.PEER: "peer closed",
    CloseReason.RESET: "reset",
    CloseReason.IDLE: "idle",
    CloseReason.SHUTDOWN: "shutdown",
    CloseReason.FRAME_TOO_LARGE: TOO_LARGE,
    CloseReason.FRAME_NEGATIVE: "it announced a request of negative length",
    CloseReason.FRAME_EMPTY: "it sent an empty request",
    CloseReason.HEADER_MALFORMED: "its request header could not be read",
    CloseReason.BUDGET: "memory was short and it held an unfinished request",
    CloseReason.SEND_DEADLINE: "it did not take its answers in time",
    CloseReason.REQUEST_INVALID: "its request could not be carried out",
}


LENGTH_REASONS = frozenset({CloseReason.FRAME_TOO_LARGE, CloseReason.FRAME_NEGATIVE})


FOREIGN_TEXTS = {
    "TLS": (
        "it sent a TLS hello, and this broker has no TLS: let the client use security.protocol=PLAINTEXT, "
        "or put a proxy that ends TLS in front"
    ),
    "HTTP": (
        "it sent an HTTP request to a port for Kafka clients: metrics and health are at --admin HOST:PORT, "
        "and a check of this port is to open a connection and no more"
    ),
    "PROXY": (
        "it began with the PROXY protocol, which this broker does not speak: switch it off in the load balancer"
    ),
    "SSH": "it spoke SSH to a port for Kafka clients",
}
"""Who did not mean to send a Kafka request: what to do about it."""


def _why(reason: CloseReason, detail: int) -> tuple[str, str]:
    """The reason, which is one of few texts, and its particulars."""
    if reason in LENGTH_REASONS:
        foreign = foreign_protocol(detail.to_bytes(FIRST_BYTES, "big", signed=True))
        return (REASON_TEXTS[reason], f" ({detail} bytes)") if foreign is None else (FOREIGN_TEXTS[foreign], "")
    return REASON_TEXTS.get(reason, reason.name), f" ({os.strerror(detail)})" if detail else ""


class ClientConnections(ClientQuotasOfConnections):
    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._connections = connections

    def serve(self, listen_fds: Sequence[int], dispatcher: Dispatcher) -> None:
        """Accept from the sockets of all listeners, in their order, and hand everything to the dispatcher."""
        connections = self._connections
        connections.on_opened = dispatcher.on_opened
        connections.on_request = dispatcher.on_request
        connections.on_closed = lambda connection, reason, detail: dispatcher.on_closed(
            connection, *_why(reason, detail)
        )
        for number, descriptor in enumerate(listen_fds):
            listener = connections.listen(descriptor)
            assert listener == number

    def show_open(self, place: memoryview) -> None:
        """See `Connections.show_open`."""
        self._connections.show_open(place)

    def answer(self, request: Request, buffers: Sequence[Any]) -> None:
        """Small buffers are joined, large ones copied once, slices of frames sent from where they lie."""
        parts: list[Any] = []
        small: list[Any] = []
        for buffer in buffers:
            if len(buffer) < JOINED_BYTES_MAX and not isinstance(buffer, FrameSlice):
                small.append(buffer)
                continue
            if small:
                parts.append(b"".join(small))
                small = []
            parts.append(buffer)
        if small:
            parts.append(b"".join(small))
        if len(parts) == 1 and type(parts[0]) is bytes:
            self._connections.answer(request, parts[0])
        else:
            self._connections.answer_frames(request, *parts)

    def answer_none(self, request: Request) -> None:
        self._connections.answer_none(request)

    def close(self, connection: int, _reason: str) -> None:
        self._connections.close(connection, CloseReason.REQUEST_INVALID, CloseWhen.AFTER_ANSWERED)

    def mark_of(self, connection: int) -> int:
        return self._connections.mark_of(connection)

    def stop_accepting(self) -> None:
        self._connections.stop_accepting()

    def take_no_more(self) -> None:
        self._connections.close_all(CloseReason.SHUTDOWN, CloseWhen.AFTER_TAKEN)

    def close_all(self) -> None:
        self._connections.close_all(CloseReason.SHUTDOWN, CloseWhen.NOW)

    def unanswered(self) -> int:
        return self._connections.drain().requests_unanswered

    def unsent_bytes(self) -> int:
        return self._connections.drain().answer_bytes_unsent
