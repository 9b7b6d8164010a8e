"""Requests of all connections of one core, each connection in its order, to their handlers.

Kafka answers one request of a connection before it looks at the next, and so does this, with one exception: a Produce
is *taken* by the data plane at once (offsets are assigned in order, the answer follows when it is durable), so that
produces of one connection overlap. Anything else waits for what stands before it in the queue, and what comes behind it
waits too.

A turn of the loop begins a share of the requests and leaves the rest to the next one, however many came: so timers,
writes and whoever else works on this core get their turn in between. Connections take turns with a request each; those
of group members go first, because their sessions end when they are late, with half of a share at most while others
wait. What a handler that waits does at its beginning is not seen here, so of those as many are begun in a turn as the
last turns had CPU time for.

A handler is called with the request and its message, and returns the response message, None when it has answered by
itself, or something to be awaited for it. One that never waits is a plain function and runs at once, without a task.

Errors by culprit: what cannot be decoded closes the connection (the peer's fault, logged with its address, at a limited
rate); an API or version that is not offered closes it too, as in Kafka, with a line an hour; a bug is logged
with its traceback and closes the connection, and nobody else notices.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker import limits
from tpc_broker.auth.principals import ANONYMOUS, NOBODY, Subject, host_of
from tpc_broker.broker.authentication import RAW_TOKEN, NotLoggedInError
from tpc_broker.broker.core_ground import CoreGround
from tpc_broker.broker.handled import EncodedResponse, Handled
from tpc_broker.broker.ports import PYTHON_DECIDES
from tpc_broker.kafka.api_keys import ApiKey, api, apis
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.kafka.protocol import encode_response_header
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from tpc_broker.auth.session import SaslSession
    from tpc_broker.broker.access import AccessControl
    from tpc_broker.broker.authentication import Authentication
    from tpc_broker.broker.client_quotas import ClientQuotas
    from tpc_broker.broker.handled import Request
    from tpc_broker.kafka.message import Message

log = logging.getLogger(__name__)

TRAILING_BYTES_PASSED = frozenset({int(ApiKey.METADATA), int(ApiKey.ALTER_USER_SCRAM_CREDENTIALS)})
"""librdkafka 2.16 sends bytes behind these; Kafka does not look there. Elsewhere they are refused."""

READ_BY_THE_PLANE = frozenset({int(ApiKey.PRODUCE)})
"""Not decoded here: the handler asks the data plane what it has read (`ProducePort.asked`)."""

Handle = Callable[["Request", Any], Handled | Awaitable[Handled]]
"""Plain or async. `Any`: each takes the message of its API, which is what its place in the table says."""

_OF_ANY_LEVEL: Mapping[ApiKey, int] = MappingProxyType({})

# Rule: What came whole before its client went is carried out, if it may be: producers with acks=0 send and go. See also
# native/net/link.c. Held by tests/broker/test_dispatch.py, tests/engine/test_link_subjects.py.
GONE = frozenset({"peer closed", "reset"})
"""How a client goes. Its Produces that stand in line stay there."""

SHARE_NS = 2_000_000
"""Of a turn, for beginning requests."""
TURN_CPU_NS_MAX = 20_000_000
"""Above it fewer handlers that wait are begun in a turn. C's own part, 10 ms at most, is within it."""
STARTS_FIRST, STARTS_MAX = 64, 1024
CATCH_UP_S_MAX = 2.0


@dataclass(slots=True)
class ConnectionState:
    """Small, since most of ten thousand connections are idle."""

    peer: str
    subject: Subject
    """NOBODY: it has not said who it is."""
    listener: int
    is_named: bool = False
    """C knows its subject by number."""
    sasl: SaslSession | None = None
    """Of a client that logs in."""
    queue: deque[Request] | None = None
    """What comes behind the request that is under way, or all of it while that stands in line; None: there is none."""
    is_given_up: bool = False
    """And the log has said why."""

    @property
    def host(self) -> str:
        return host_of(self.peer)

    @property
    def is_served(self) -> bool:
        """Whether any request is, and not only what logs a client in."""
        return self.sasl is None or self.sasl.is_served


@dataclass(frozen=True, slots=True)
class DispatchStatistics:
    connections: int
    requests: int
    refused: int
    failed: int


class CoreWithClients(CoreGround):
    """It has connections, and knows who they are, what they may do, and how much of it."""

    access: AccessControl
    authentication: Authentication
    quotas: ClientQuotas
    dispatcher: Dispatcher


class Dispatcher:
    def __init__(
        self,
        core: CoreWithClients,
        handlers: Mapping[ApiKey, Handle],
        prompt: Collection[ApiKey],
        nursery: trio.Nursery,
        first_levels: Mapping[ApiKey, int] = _OF_ANY_LEVEL,
    ) -> None:
        """`prompt`: the APIs of group members. `first_levels`: of those that are not offered at every feature level."""
        self._core = core
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        self._first_levels = {int(key): level for key, level in first_levels.items()}
        self._prompt_apis = frozenset(int(key) for key in prompt)
        self._names = {key: api(key).request_name for key in self._handlers}
        self._nursery = nursery
        self._connections: dict[int, ConnectionState] = {}
        self._waits: dict[int, trio.CancelScope] = {}
        self._monotonic_ns, self._cpu_ns = core.clock.monotonic_ns, core.clock.cpu_ns
        self._requests = self._refused = self._failed = 0
        self.on_gone: Callable[[int], None] = lambda _connection: None
        """Called when a connection is closed."""
        self._prompt: deque[ConnectionState] = deque()
        self._others: deque[ConnectionState] = deque()
        self._share_wanted = trio.lowlevel.ParkingLot()
        self._share_until_ns = 0
        self._starts_max = self._starts_left = STARTS_FIRST
        self._cheap_turns = 0
        self._others_are_due = False
        """They stood in line, and the share before had none of them."""
        nursery.start_soon(self._share_out)

    # -- called by the connections, inside a turn; they never wait ---------------------------------------------------

    def on_opened(self, connection: int, peer: str, listener: int, carried: Subject | None = None) -> None:
        """`carried`: for whom it is, of a stream of another core's requests; that core has let its client in."""
        core, sasl = self._core, None
        if carried is not None:
            subject = carried
        elif core.connections.needs_authentication(listener):
            subject, sasl = NOBODY, core.authentication.session_of(listener)
        else:
            subject = Subject(ANONYMOUS, host_of(peer))
        self._connections[connection] = state = ConnectionState(peer, subject, listener, sasl=sasl)
        if carried is not None or core.access.authorizer is not None:
            self._name(connection, state)

    def let_in(self, connection: int, subject: Subject, deadline_ns: int) -> None:
        """Somebody has shown who it is, until then (monotonic; 0: for good); before it is answered."""
        state = self._connections.get(connection)
        if state is not None:
            state.subject = subject
            self._name(connection, state, deadline_ns)

    def name_all(self) -> None:
        """Rights are asked for from now on: C has to know who is who."""
        for connection, state in self._connections.items():
            if not state.is_named:
                self._name(connection, state)

    def subjects(self) -> Iterator[Subject]:
        """Of the connections that are open, as often as they have them."""
        return (state.subject for state in self._connections.values())

    def _name(self, connection: int, state: ConnectionState, deadline_ns: int = 0) -> None:
        if state.subject == NOBODY:
            return
        state.is_named = True
        self._core.connections.let_in(connection, self._core.access.number_of(state.subject), deadline_ns)

    def on_closed(self, connection: int, reason: str, detail: str) -> None:
        state = self._connections.pop(connection, None)
        if state is None:
            return
        if reason not in ("peer closed", "local", "idle", "reset", "shutdown") and not state.is_given_up:
            self.complain(state.peer, f"connection closed: {reason}", detail)
        if state.queue is not None:
            kept = [one for one in state.queue if one.api_key == ApiKey.PRODUCE] if reason in GONE else []
            state.queue.clear()
            state.queue.extend(kept)
        if connection in self._waits:
            self._waits[connection].cancel()
        self.on_gone(connection)

    def on_request(self, request: Request) -> None:
        self._requests += 1
        state = self._connections.get(request.connection)
        if state is None:
            self._core.connections.answer_none(request)
            return
        if state.queue is not None:
            state.queue.append(request)
            return
        is_produce = request.api_key == ApiKey.PRODUCE and request.fallback_reason not in PYTHON_DECIDES
        if is_produce and state.is_served and self._core.produce_now(request):
            return
        state.queue = deque()
        if self._has_share():
            self._begin(state, request)
        else:
            state.queue.append(request)
            self._line_up(state)

    def peer_of(self, connection: int) -> str:
        state = self._connections.get(connection)
        return state.peer if state is not None else "a closed connection"

    def subject_of(self, connection: int) -> Subject:
        state = self._connections.get(connection)
        return state.subject if state is not None else NOBODY

    def told_versions(self, connection: int) -> None:
        """ApiVersions was answered without an error."""
        state = self._connections.get(connection)
        if state is not None and state.sasl is not None:
            state.sasl.told_versions()

    def state_of(self, connection: int) -> ConnectionState | None:
        """None: it is closed."""
        return self._connections.get(connection)

    def is_open(self, connection: int) -> bool:
        return connection in self._connections

    @contextmanager
    def while_open(self, connection: int) -> Iterator[trio.CancelScope]:
        """For a handler's wait, which is given up when the connection is closed, or was already."""
        assert connection not in self._waits, "one request of a connection is handled at a time"
        with trio.CancelScope() as scope:
            if connection not in self._connections:
                scope.cancel()
            self._waits[connection] = scope
            try:
                yield scope
            finally:
                del self._waits[connection]

    def is_idle(self) -> bool:
        return all(state.queue is None for state in self._connections.values())

    def complain(self, peer: str, cause: str, detail: str = "") -> None:
        """A line about a peer's fault, one of a cause and host in a minute. `detail` may be of the peer's choice."""
        self._core.log_limiter.say(log, cause, host_of(peer), f"{peer}: {cause}{detail}")

    def note_in_vain(self, request: Request, what: str, text: str) -> None:
        """A line about a client that asks for what is not there, one for each client id in an hour: clients say little
        of it, or nothing. `what`: of few names, such as that of an API.
        """
        client, peer = shortened(request.client_id), self.peer_of(request.connection)
        line = f"{peer}: {text} (client id {client}; once an hour)"
        self._core.log_limiter.say(log, f"in vain: {what}", client, line, period_s=limits.VAIN_LINE_S)

    def statistics(self) -> DispatchStatistics:
        return DispatchStatistics(len(self._connections), self._requests, self._refused, self._failed)

    # -- handling ------------------------------------------------------------------------------------------------------

    def _has_share(self) -> bool:
        """Whether a request may be begun as soon as it comes."""
        if self._prompt or self._others:
            return False
        now_ns = self._monotonic_ns()
        if not self._share_until_ns:
            self._share_until_ns = now_ns + SHARE_NS
            self._share_wanted.unpark()
        return now_ns < self._share_until_ns and self._starts_left > 0

    def _line_up(self, state: ConnectionState) -> None:
        assert state.queue
        (self._prompt if state.queue[0].api_key in self._prompt_apis else self._others).append(state)
        self._share_wanted.unpark()

    # Rule: A turn of Python begins a share of the requests, fair over connections, members of groups first. Sessions
    # end only after what members sent was heard. See also tpc_broker/broker/coordinator_driver.py. Held by
    # tests/broker/test_dispatch.py, tests/integration/test_herd.py.
    async def _share_out(self) -> None:
        """Begin a share of what stands in line, each turn."""
        cpu_ns = self._cpu_ns()
        while True:
            if not (self._prompt or self._others or self._share_until_ns):
                await self._share_wanted.park()
                cpu_ns = self._cpu_ns()
            before_ns, cpu_ns = cpu_ns, self._cpu_ns()
            self._share(cpu_ns - before_ns)
            if self._prompt or self._others:
                await trio.lowlevel.checkpoint()

    def _share(self, spent_ns: int) -> None:
        """`spent_ns`: of CPU time since the share before, if that left something."""
        if spent_ns > TURN_CPU_NS_MAX:
            self._cheap_turns, self._starts_max = 0, max(1, self._starts_max // 2)
        elif self._starts_left <= 0:
            self._cheap_turns += 1
            if self._cheap_turns > 1:  # what was begun in the turn before has run in this or in the one before
                self._cheap_turns, self._starts_max = 0, min(STARTS_MAX, self._starts_max * 2)
        self._starts_left = self._starts_max
        self._share_until_ns = 0
        begun_ns = now_ns = self._monotonic_ns()
        first_until_ns = begun_ns + (0 if self._others_are_due else SHARE_NS // 2)
        self._others_are_due = bool(self._others)
        while (self._prompt or self._others) and self._starts_left > 0 and now_ns < begun_ns + SHARE_NS:
            is_prompt = self._prompt and (now_ns < first_until_ns or not self._others)
            if not is_prompt:
                self._others_are_due, first_until_ns = False, begun_ns + SHARE_NS // 2
            state = (self._prompt if is_prompt else self._others).popleft()
            self._begin_next(state)
            self._core.disk.poll_ring()
            now_ns = self._monotonic_ns()

    def _begin_next(self, state: ConnectionState) -> None:
        if not state.queue:  # its connection was closed meanwhile
            state.queue = None
            return
        request = state.queue.popleft()
        if request.api_key == ApiKey.PRODUCE and state.is_served and self._core.produce_now(request):
            self._go_on(state)
        else:
            self._begin(state, request)

    def _begin(self, state: ConnectionState, request: Request) -> None:
        """One request of a connection; the next one waits until this one is answered. Who has sent it is said here: its
        connection may be closed before its handler asks.
        """
        request.subject = state.subject
        try:
            result = self._handlers_result(state, request)
            if not inspect.isawaitable(result):
                self.respond(request, result)
                self._go_on(state)
                return
        except Exception as error:  # the connection is given up; everybody else goes on
            self._give_up(state, request, error)
            self._go_on(state)
            return
        self._starts_left -= 1
        if request.api_key in self._prompt_apis:
            with in_queue(TaskQueue.COORDINATORS):
                self._nursery.start_soon(self._finish, state, request, result)
        else:
            self._nursery.start_soon(self._finish, state, request, result)

    async def _finish(self, state: ConnectionState, request: Request, result: Awaitable[Handled]) -> None:
        try:
            self.respond(request, await result)
        except Exception as error:  # the connection is given up; everybody else goes on
            self._give_up(state, request, error)
        finally:
            self._go_on(state)

    def _go_on(self, state: ConnectionState) -> None:
        if state.queue:
            self._line_up(state)
        else:
            state.queue = None

    async def wait_caught_up(self) -> None:
        """Until what group members had sent when this was called is begun. Under a load that does not let up,
        `CATCH_UP_S_MAX`.
        """
        with trio.move_on_after(CATCH_UP_S_MAX):
            while True:
                requests_before = self._requests
                await trio.lowlevel.checkpoint()
                if self._requests == requests_before and not self._prompt:
                    return

    def _handlers_result(self, state: ConnectionState, request: Request) -> Handled | Awaitable[Handled]:
        quotas = self._core.quotas
        if quotas.counts_time:
            return quotas.timed(request, lambda request: self._handle(state, request))
        return self._handle(state, request)

    def _handle(self, state: ConnectionState, request: Request) -> Handled | Awaitable[Handled]:
        if state.sasl is not None:
            ended = self._core.authentication.gate(state.sasl, request)
            if ended is not None:
                return ended
            if request.api_key == RAW_TOKEN:
                return self._core.authentication.take(state, state.sasl, request, bytes(request.body))
        message = self._decode(request)
        return self._handlers[request.api_key](request, message)

    def _decode(self, request: Request) -> Message | None:
        key, version = request.api_key, request.api_version
        if key == ApiKey.API_VERSIONS and not api(key).is_valid(version):
            return None  # its handler answers that in version 0
        if key not in self._handlers or self._is_too_early(key):
            known = apis().get(key)
            if known is None:
                raise RefusedRequestError("an API that is not known", f"there is no API with key {key}")
            raise RefusedRequestError(known.name, f"{known.name} is not offered")
        if not api(key).is_valid(version):
            raise RefusedRequestError(
                f"a version of {api(key).name}",
                f"{api(key).name} version {version} is not offered; "
                f"{api(key).first_version} to {api(key).last_version} are",
            )
        if key in READ_BY_THE_PLANE:
            return None
        if key in TRAILING_BYTES_PASSED:
            message: Message = codec(self._names[key], version).decode_prefix(request.body)[0]
        else:
            message = codec(self._names[key], version).decode(request.body)
        return message

    def _is_too_early(self, key: int) -> bool:
        first = self._first_levels.get(key)
        return first is not None and self._core.view.image.level < first

    def respond(self, request: Request, response: Handled) -> None:
        """None: its handler has."""
        if response is None:
            return
        version = request.api_version
        if request.api_key == ApiKey.API_VERSIONS and not api(request.api_key).is_valid(version):
            version = 0
        response = self._core.quotas.told(request, version, response)
        header = encode_response_header(request.api_key, version, request.correlation_id)
        if isinstance(response, EncodedResponse):
            self._core.connections.answer(request, [header, response.body])
            return
        parts = codec(api(request.api_key).response_name, version).encode_parts(response)
        self._core.connections.answer(request, [header, *parts])

    def answer_last(self, request: Request, response: Message | None) -> None:
        """Nothing that comes behind is looked at. None: it has no answer."""
        state = self._connections.get(request.connection)
        if state is not None:
            state.is_given_up = True
        if response is None:
            self._core.connections.answer_none(request)
        else:
            self.respond(request, response)
        self._core.connections.close(request.connection, "refused")

    def _give_up(self, state: ConnectionState, request: Request, error: Exception) -> None:
        client = f" (client id {shortened(request.client_id)})" if request.client_id else ""
        if isinstance(error, RefusedRequestError):
            self._refused += 1
            self.note_in_vain(request, error.what, f"request refused, connection closed: {error}")
        elif isinstance(error, DecodeError | NotLoggedInError):
            self._refused += 1
            self.complain(state.peer, "request refused, connection closed", f": {error}{client}")
        else:
            self._failed += 1
            what = f"request of API {request.api_key} version {request.api_version} failed"
            self._core.log_limiter.say(log, f"{what}: {type(error).__name__}", host_of(state.peer),
                                       f"{state.peer}: {what}{client}", level=logging.ERROR, error=error)  # fmt: skip
        state.is_given_up = True
        if state.queue is not None:
            state.queue.clear()
        self._core.connections.answer_none(request)
        self._core.connections.close(request.connection, "refused")


def shortened(client_id: str | None) -> str:
    """In quotes and in one line, whatever it is made of."""
    if client_id is None:
        return "(none)"
    cut = client_id[: limits.CLIENT_ID_SHOWN_MAX]
    return repr(cut) + ("…" if cut != client_id else "")


class RefusedRequestError(Exception):
    """A request for an API or a version that this broker does not offer: the connection is closed."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(text)
        self.what = what
