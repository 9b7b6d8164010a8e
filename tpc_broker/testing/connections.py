"""Connections of clients to a core in memory, and the requests that come by them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.auth.principals import NOBODY, Subject
from tpc_broker.kafka import DecodeError
from tpc_broker.kafka.protocol import decode_request_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.broker.dispatch import Dispatcher
    from tpc_broker.kafka.encoder import Piece

SIZE_BYTES = 4


@dataclass(eq=False)
class MemoryRequest:
    """A request, and what became of it: `answer` is header and body, None without one."""

    connection: int
    api_key: int
    api_version: int
    correlation_id: int
    body: memoryview
    received_ns: int
    listener: int = 0
    fallback_reason: int = 0
    throttle_ms: int = 0
    client_id: str | None = "a-client"
    subject: Subject = NOBODY
    answer: bytes | None = None
    done: trio.Event = field(default_factory=trio.Event)
    on_done: Callable[[], None] = lambda: None

    def end(self, answer: bytes | None) -> None:
        self.answer = answer
        self.done.set()
        self.on_done()


class MemoryConnections:
    """`Connections`. A connection is a number, open from its first request on. All are served, whoever they are; `let`
    keeps what is said of them. Nobody is muted, and no time is counted.
    """

    dispatcher: Dispatcher

    def __init__(self) -> None:
        self.is_accepting = self.takes_more = True
        self.open: set[int] = set()
        self.closed: dict[int, str] = {}
        """Why, by connection: what the broker has closed."""
        self.marks: dict[int, int] = {}
        self.let: dict[int, tuple[int, int]] = {}
        self.authenticated: set[int] = set()
        self.tokens: set[int] = set()
        self.requires_subject = False
        self.quotas: Any = None
        self.on_close: Callable[[int], None] = lambda _connection: None
        """Called when the broker closes one."""
        self._waiting: set[MemoryRequest] = set()

    def send(self, request: MemoryRequest) -> None:
        """As a client does. Nothing is taken any more during a drain."""
        if request.connection not in self.open:
            self.open.add(request.connection)
            self.dispatcher.on_opened(request.connection, f"127.0.0.1:{request.connection}", request.listener)
        if self.takes_more:
            self._waiting.add(request)
            self.dispatcher.on_request(request)

    def leave(self, connection: int) -> None:
        """The client has closed it."""
        if connection in self.open:
            self.open.remove(connection)
            self.dispatcher.on_closed(connection, "peer closed", "")

    def _end(self, request: MemoryRequest, answer: bytes | None) -> None:
        self._waiting.remove(request)
        request.end(answer)

    def answer(self, request: MemoryRequest, buffers: Sequence[Piece]) -> None:
        self._end(request, b"".join(map(bytes, buffers)))

    def answer_none(self, request: MemoryRequest) -> None:
        self._end(request, None)

    def close(self, connection: int, reason: str) -> None:
        if connection in self.open:
            self.open.remove(connection)
            self.closed[connection] = reason
            self.dispatcher.on_closed(connection, "local", "")
            self.on_close(connection)

    def needs_authentication(self, listener: int) -> bool:
        return listener in self.authenticated

    def let_in(self, connection: int, subject_number: int, deadline_ns: int) -> None:
        if connection in self.open:
            self.let[connection] = (subject_number, deadline_ns)

    def expect_tokens(self, connection: int, *, on: bool) -> None:
        (self.tokens.add if on else self.tokens.discard)(connection)

    def require_subject(self, *, on: bool) -> None:
        self.requires_subject = on

    def mark_of(self, connection: int) -> int:
        return self.marks.get(connection, 0)

    def set_quotas(self, windows: object, rows: object, addresses: object) -> None:
        self.quotas = windows, rows, addresses

    def mute(self, connection: int, milliseconds: int) -> None:
        """Not here."""

    def spent(self, connection: int, client_id: str, spent_ns: int) -> None:
        """Time costs nothing here."""

    def stop_accepting(self) -> None:
        self.is_accepting = False

    def take_no_more(self) -> None:
        self.takes_more = False

    def close_all(self) -> None:
        for connection in list(self.open):
            self.close(connection, "shutdown")

    def unanswered(self) -> int:
        return len(self._waiting)

    def unsent_bytes(self) -> int:
        return 0


class ServedConnection:
    """The broker's end of a client's connection: frames come, and the answers' frames go to ``give``, in the order of
    the requests; None: the broker has closed it.
    """

    def __init__(
        self,
        connections: MemoryConnections,
        number: int,
        listener: int,
        monotonic_ns: Callable[[], int],
        give: Callable[[bytes | None], None],
    ) -> None:
        self._connections, self._number, self._listener = connections, number, listener
        self._monotonic_ns, self._give = monotonic_ns, give
        self._requests: deque[MemoryRequest] = deque()
        self._is_over = False

    def take(self, frame: bytes) -> None:
        """A request, without its size."""
        if self._is_over:
            return
        try:
            header, position = decode_request_header(frame)
        except DecodeError:
            self._connections.leave(self._number)
            self.over()
            return
        request = MemoryRequest(
            self._number, header.request_api_key, header.request_api_version, header.correlation_id,
            memoryview(frame)[position:], self._monotonic_ns(), self._listener, client_id=header.client_id,
            on_done=self._send_ready,
        )  # fmt: skip
        self._requests.append(request)
        self._connections.send(request)

    def _send_ready(self) -> None:
        while self._requests and self._requests[0].done.is_set():
            answer = self._requests.popleft().answer
            if answer is not None and not self._is_over:
                self._give(len(answer).to_bytes(SIZE_BYTES, "big") + answer)

    def over(self) -> None:
        """The broker has closed it."""
        if not self._is_over:
            self._is_over = True
            self._give(None)

    def leave(self) -> None:
        """The client has."""
        self._is_over = True
        self._connections.leave(self._number)
