"""Requests of all connections of one core, each connection in its order, to their handlers.

Kafka answers one request of a connection before it looks at the next, and so does this, with one exception: a Produce
is *taken* by the data plane at once (offsets are assigned in order, the answer follows when it is durable), so that
produces of one connection overlap. Anything else waits for what stands before it in the queue, and what comes behind it
waits too.

A handler is ``handle(core, request, message)`` and returns the response message, or None when it has answered by
itself. One that never waits is a plain function and runs at once, without a task.

Errors by culprit: what cannot be decoded closes the connection (the peer's fault, logged with its address, at a limited
rate); an API or version that is not offered closes it too, as in Kafka; a bug is logged with its traceback and closes
the connection, and nobody else notices.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpc_broker.broker.handlers.forward import EncodedResponse
from tpc_broker.broker.rate_limiter import RateLimiter
from tpc_broker.kafka.api_keys import ApiKey, api, apis
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.protocol import encode_response_header

if TYPE_CHECKING:
    import trio

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

log = logging.getLogger(__name__)

TRAILING_BYTES_PASSED = frozenset({int(ApiKey.METADATA)})
"""librdkafka 2.16 sends bytes behind a Metadata request; Kafka does not look there. Elsewhere they are refused."""

Handler = Callable[["Core", "Request", Any], Any]
"""Plain or async; returns the response message or None."""


@dataclass(slots=True)
class ConnectionState:
    """Small, since most of ten thousand connections are idle."""

    peer: str
    queue: deque[Request] | None = None
    """What is to be worked through, in order, while a task does so; None: no task does."""
    client_software: str = ""


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    connections: int
    requests: int
    refused: int
    failed: int


class Dispatcher:
    def __init__(self, core: Core, handlers: dict[ApiKey, Handler], nursery: trio.Nursery) -> None:
        self._core = core
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        self._async = {key: inspect.iscoroutinefunction(handler) for key, handler in self._handlers.items()}
        self._names = {key: api(key).request_name for key in self._handlers}
        self._nursery = nursery
        self._connections: dict[int, ConnectionState] = {}
        self._limiter = RateLimiter()
        self._requests = self._refused = self._failed = 0

    # -- called by the connections, inside a turn; they never wait ---------------------------------------------------

    def on_opened(self, connection: int, peer: str) -> None:
        self._connections[connection] = ConnectionState(peer)

    def on_closed(self, connection: int, reason: str, detail: str) -> None:
        state = self._connections.pop(connection, None)
        if state is None:
            return
        if reason not in ("peer closed", "local", "idle", "reset", "shutdown"):
            self.complain(state.peer, f"connection closed: {reason}{detail}")
        if state.queue is not None:
            state.queue.clear()

    def on_request(self, request: Request) -> None:
        self._requests += 1
        state = self._connections.get(request.connection)
        if state is None:
            self._core.connections.answer_none(request)
            return
        if state.queue is not None:
            state.queue.append(request)
            return
        if request.api_key == ApiKey.PRODUCE and self._core.produce_now(request):
            return
        if not self._async.get(request.api_key, True):
            self._handle_now(state, request)
            return
        state.queue = deque((request,))
        self._nursery.start_soon(self._work_through, state, state.queue)

    def peer_of(self, connection: int) -> str:
        state = self._connections.get(connection)
        return state.peer if state is not None else "a closed connection"

    def is_open(self, connection: int) -> bool:
        return connection in self._connections

    def note_client_software(self, connection: int, software: str) -> None:
        state = self._connections.get(connection)
        if state is not None:
            state.client_software = software

    def is_idle(self) -> bool:
        return all(state.queue is None for state in self._connections.values())

    def complain(self, peer: str, text: str) -> None:
        """One line about a peer's fault, at a limited rate for each peer's host and kind of complaint."""
        host = peer.rpartition(":")[0]
        swallowed = self._limiter.admit(f"{host} {text[:40]}", time.monotonic())
        if swallowed is not None:
            log.warning("%s: %s%s", peer, text, f" ({swallowed} more like this)" if swallowed else "")

    def statistics(self) -> DispatchStatistics:
        return DispatchStatistics(len(self._connections), self._requests, self._refused, self._failed)

    # -- handling ------------------------------------------------------------------------------------------------------

    async def _work_through(self, state: ConnectionState, queue: deque[Request]) -> None:
        try:
            while queue:
                request = queue.popleft()
                if request.api_key == ApiKey.PRODUCE and self._core.produce_now(request):
                    continue
                if self._async.get(request.api_key, False):
                    await self._handle(state, request)
                else:
                    self._handle_now(state, request)
        finally:
            state.queue = None

    def _handle_now(self, state: ConnectionState, request: Request) -> None:
        try:
            message = self._decode(request)
            response = self._handlers[request.api_key](self._core, request, message)
            self._respond(request, response)
        except Exception as error:  # the connection is given up; everybody else goes on
            self._give_up(state, request, error)

    async def _handle(self, state: ConnectionState, request: Request) -> None:
        try:
            message = self._decode(request)
            result: Awaitable[Any] = self._handlers[request.api_key](self._core, request, message)
            self._respond(request, await result)
        except Exception as error:  # the connection is given up; everybody else goes on
            self._give_up(state, request, error)

    def _decode(self, request: Request) -> Any:
        key, version = request.api_key, request.api_version
        if key == ApiKey.API_VERSIONS and not api(key).is_valid(version):
            return None  # its handler answers that in version 0
        if key not in self._handlers:
            known = apis().get(key)
            raise RefusedRequestError(f"API {known.name} is not offered" if known else f"unknown API key {key}")
        if not api(key).is_valid(version):
            raise RefusedRequestError(
                f"{api(key).name} version {version} is not offered; "
                f"{api(key).first_version} to {api(key).last_version} are"
            )
        if key in TRAILING_BYTES_PASSED:
            return codec(self._names[key], version).decode_prefix(request.body)[0]
        return codec(self._names[key], version).decode(request.body)

    def _respond(self, request: Request, response: Any) -> None:
        if response is None:
            return
        version = request.api_version
        if request.api_key == ApiKey.API_VERSIONS and not api(request.api_key).is_valid(version):
            version = 0
        header = encode_response_header(request.api_key, version, request.correlation_id)
        if isinstance(response, EncodedResponse):
            self._core.connections.answer(request, [header, response.body])
            return
        parts = codec(api(request.api_key).response_name, version).encode_parts(response)
        self._core.connections.answer(request, [header, *parts])

    def _give_up(self, state: ConnectionState, request: Request, error: Exception) -> None:
        client = f" (client id {request.client_id})" if request.client_id else ""
        if isinstance(error, DecodeError | RefusedRequestError):
            self._refused += 1
            self.complain(state.peer, f"request refused, connection closed: {error}{client}")
        else:
            self._failed += 1
            log.error("%s: request of API %d version %d failed%s", state.peer, request.api_key, request.api_version,
                      client, exc_info=error)  # fmt: skip
        if state.queue is not None:
            state.queue.clear()
        self._core.connections.answer_none(request)
        self._core.connections.close(request.connection, "refused")


class RefusedRequestError(Exception):
    """A request that this broker does not offer or that cannot be answered otherwise: the connection is closed."""
