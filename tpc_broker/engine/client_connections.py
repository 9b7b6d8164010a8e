"""The client connections as the broker sees them (`tpc_broker.broker.ports.Connections`), over those in C."""

from __future__ import annotations

import errno
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from tpc_broker.auth.principal_mapping import NoPrincipalError
from tpc_broker.auth.principals import NOBODY, USER, Principal, Subject
from tpc_broker.engine.connections import CloseReason, CloseWhen, Connections, FrameSlice, Stage
from tpc_broker.engine.quotas import ClientQuotasOfConnections
from tpc_broker.engine.tls import error_text, let_speak, peer_name, secure
from tpc_broker.foreign_protocols import FIRST_BYTES, foreign_protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tpc_broker.broker.access import AccessControl
    from tpc_broker.broker.dispatch import Dispatcher
    from tpc_broker.engine.connections import Request
    from tpc_broker.engine.listener_tls import ListenerTls, Naming

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
    CloseReason.TLS: "its TLS could not be taken",
    CloseReason.HANDSHAKE_DEADLINE: "its TLS handshake took too long",
    CloseReason.AUTHENTICATION: "it was not let in",
    CloseReason.UNAUTHENTICATED: (
        "it asked for something before it had said who it is (is its security.protocol that of this listener?)"
    ),
    CloseReason.AUTHENTICATION_LATE: "it did not say who it is in time",
    CloseReason.STRANGER_TOO_LARGE: (
        "it announced a request larger than sasl.server.max.receive.size before it had said who it is"
    ),
    CloseReason.SESSION_OVER: "its session was over, and it had not authenticated again",
}


LENGTH_REASONS = frozenset({
    CloseReason.FRAME_TOO_LARGE, CloseReason.FRAME_NEGATIVE, CloseReason.STRANGER_TOO_LARGE,
})  # fmt: skip


FOREIGN_TEXTS = {
    "TLS": (
        "it sent a TLS hello to a listener without TLS: let the client use security.protocol=PLAINTEXT (or "
        "SASL_PLAINTEXT), or the port of a listener with SSL"
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
    if reason is CloseReason.TLS:
        return REASON_TEXTS[reason], f" ({error_text(detail)})"
    return REASON_TEXTS.get(reason, reason.name), f" ({os.strerror(detail)})" if detail else ""


def subject_of_names(principal: bytes, host: bytes) -> Subject:
    """What another core has said; NOBODY where that is no UTF-8, or no principal."""
    try:
        named = Principal.parsed(principal.decode())
        return Subject(named, host.decode()) if named is not None and named.is_whole else NOBODY
    except UnicodeDecodeError:
        return NOBODY


class ClientConnections(ClientQuotasOfConnections):
    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)
        self._connections = connections
        self._authenticated: frozenset[int] = frozenset()
        self._namings: dict[int, Naming] = {}

    def attend(self, dispatcher: Dispatcher, access: AccessControl, authenticated: Collection[int] = ()) -> None:
        """Hand everything to the dispatcher from now on: before other cores send streams, and clients come.
        `authenticated`: numbers of the listeners whose clients have to say who they are.
        """
        connections = self._connections
        self._access = access
        self._authenticated = frozenset(authenticated)
        for number in self._authenticated:
            connections.begin_in(number, Stage.SASL)
        connections.on_opened = lambda connection, peer, listener: dispatcher.on_opened(
            connection, peer, listener, self._carried_subject(connection)
        )
        connections.on_secured = partial(self._name, dispatcher)
        connections.on_request = dispatcher.on_request
        connections.on_closed = lambda connection, reason, detail: dispatcher.on_closed(
            connection, *_why(reason, detail)
        )

    def serve(self, listen_fds: Sequence[int]) -> None:
        """Accept from the sockets of all listeners, in their order."""
        for number, descriptor in enumerate(listen_fds):
            listener = self._connections.listen(descriptor)
            assert listener == number

    def secure(self, number: int, listener: ListenerTls) -> None:
        """Who comes to that listener from now on speaks TLS, and has its name from its certificate."""
        secure(self._connections, number, listener.material)
        if listener.naming is not None:
            self._namings[number] = listener.naming

    def _name(self, dispatcher: Dispatcher, connection: int, listener: int) -> None:
        """Who it is that has made a handshake. Who gave no certificate, or is to log in, stays who it was."""
        if self.needs_authentication(listener):
            let_speak(self._connections, connection)
            return
        state, naming = dispatcher.state_of(connection), self._namings.get(listener)
        if state is None or naming is None:
            self._connections.close(connection, CloseReason.AUTHENTICATION)
            return
        try:
            certified = peer_name(self._connections, connection, naming.source)
            name = None if certified is None else naming.mapping.name_of(certified)
        except (LookupError, NoPrincipalError) as error:
            dispatcher.complain(state.peer, "connection closed: its certificate names nobody", f" ({error})")
            self._connections.close(connection, CloseReason.LOCAL)
            return
        if name is not None:
            dispatcher.let_in(connection, Subject(Principal(USER, name), state.host), 0)
        let_speak(self._connections, connection)

    def _carried_subject(self, connection: int) -> Subject | None:
        names = self._connections.carried_subject(connection)
        if names is None:
            return None
        subject = subject_of_names(*names)
        if subject == NOBODY:
            self._connections.close(connection, CloseReason.AUTHENTICATION)
        return subject

    def needs_authentication(self, listener: int) -> bool:
        return listener in self._authenticated

    def require_subject(self, *, on: bool) -> None:
        self._connections.require_subject(on=on)

    def let_in(self, connection: int, subject_number: int, deadline_ns: int) -> None:
        """Who has a name that other cores could not be told is not let in: its connection is closed."""
        subject, connections = self._access.subject_of_number(subject_number), self._connections
        self.set_user(connection, subject.principal.name)
        try:
            connections.let_in(connection, subject_number, deadline_ns, str(subject.principal), subject.host)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            connections.close(connection, CloseReason.AUTHENTICATION)

    def expect_tokens(self, connection: int, *, on: bool) -> None:
        self._connections.expect_tokens(connection, on=on)

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
