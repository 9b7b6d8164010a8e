"""The Python face of a core's connections: requests in, answers out. C does the work (`native/net/connection*.c`).

Purpose. :class:`Connections` accepts clients, frames their requests, hands each to `on_request`, and sends the answers
of a connection in the order of its requests, whatever order they were given in. Its bounds: :class:`ConnectionLimits`.

Invariants. A connection's id is never used again. Its events come in order: opened, requests, closed; closed comes
exactly once, and nothing after it. Every :class:`Request` is answered exactly once (:meth:`Connections.answer`,
`answer_frames`, `answer_slices`, `answer_none`) or taken over by C (:meth:`Request.taken`); an answer to a client that
is gone is quietly dropped. A request that is forgotten closes its connection, since no answer behind it could leave.

Callbacks are synchronous and run inside :meth:`Ring.dispatch`; they start tasks, they do not wait. One thread: the
ring's.
"""

from __future__ import annotations

import errno
import os
from dataclasses import asdict, dataclass, fields
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict

import trio

from tpc_broker import limits
from tpc_broker._ring import ffi, lib
from tpc_broker.auth.principals import NOBODY
from tpc_broker.native_bytes import pinned

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.engine.ring import Ring

    Buffer = bytes | bytearray | memoryview
    from tpc_broker._ring import tpc_connection_info, tpc_frame, tpc_request, tpc_slice

_MIB: Final = 1024 * 1024
COPIED_BODY_BYTES_MAX: Final = 16 * 1024
"""Up to this a request's body is copied into Python, which is cheaper than keeping its frame alive."""
_REQUEST = Struct("=QqQQQqIiihhBxH4xB3x4xI4x16x")
assert _REQUEST.size == ffi.sizeof("tpc_request")


class CloseReason(IntEnum):
    """Why a connection ended; the culprit of each is told in `cdef/30_connection.h`."""

    LOCAL = lib.TPC_CLOSE_LOCAL
    PEER = lib.TPC_CLOSE_PEER
    RESET = lib.TPC_CLOSE_RESET
    FRAME_TOO_LARGE = lib.TPC_CLOSE_FRAME_TOO_LARGE
    FRAME_NEGATIVE = lib.TPC_CLOSE_FRAME_NEGATIVE
    FRAME_EMPTY = lib.TPC_CLOSE_FRAME_EMPTY
    HEADER_MALFORMED = lib.TPC_CLOSE_HEADER_MALFORMED
    BUDGET = lib.TPC_CLOSE_BUDGET
    SEND_DEADLINE = lib.TPC_CLOSE_SEND_DEADLINE
    IDLE = lib.TPC_CLOSE_IDLE
    IO_ERROR = lib.TPC_CLOSE_IO_ERROR
    REQUEST_INVALID = lib.TPC_CLOSE_REQUEST_INVALID
    SHUTDOWN = lib.TPC_CLOSE_SHUTDOWN
    AUTHENTICATION = lib.TPC_CLOSE_AUTHENTICATION
    UNAUTHENTICATED = lib.TPC_CLOSE_UNAUTHENTICATED
    AUTHENTICATION_LATE = lib.TPC_CLOSE_AUTHENTICATION_LATE
    STRANGER_TOO_LARGE = lib.TPC_CLOSE_STRANGER_TOO_LARGE
    SESSION_OVER = lib.TPC_CLOSE_SESSION_OVER
    TLS = lib.TPC_CLOSE_TLS
    HANDSHAKE_DEADLINE = lib.TPC_CLOSE_HANDSHAKE_DEADLINE


assert len(CloseReason) == lib.TPC_CLOSE_REASONS_COUNT - 1


class Stage(IntEnum):
    """What a connection may do; see `native/net/connection_identity.c`."""

    SERVES = lib.TPC_STAGE_SERVES
    SASL = lib.TPC_STAGE_SASL
    TOKEN = lib.TPC_STAGE_TOKEN


class CloseWhen(IntEnum):
    """How long a connection that is told to close may go on; in no case does it take another request."""

    NOW = lib.TPC_CLOSE_NOW
    AFTER_ANSWERED = lib.TPC_CLOSE_AFTER_ANSWERED
    """Until what is answered, in order, has been sent."""
    AFTER_TAKEN = lib.TPC_CLOSE_AFTER_TAKEN
    """Until every request that was taken is answered and sent."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Every bound of the connections of one core. A duration of 0 means that there is none."""

    connections_max: int = 10_000
    """Further ones are accepted, closed at once, and counted as refused."""
    connections_per_ip_max: int = 2**32 - 1
    """Of one address, loopback as well; handled as `connections_max`. Unix sockets have none, and are not counted."""
    request_bytes_max: int = 100 * _MIB
    pipelined_requests_max: int = 64
    """Requests of one connection that were taken and whose answers have not left; above, its receiving pauses."""
    receive_share_bytes: int = 32 * _MIB
    """Unanswered requests and unsent answers of one connection; above, its receiving pauses."""
    zero_copy_bytes_min: int = 128 * 1024
    """Sends from this size on are made without a copy; 0: never."""
    zero_copy_local: bool = False
    """Also to peers on this host, where the kernel copies all the same."""
    send_deadline_ms: int = 30_000
    """A client that takes no byte of its answers for so long is cut off."""
    idle_ms_max: int = 600_000
    assembly_stall_ms_max: int = 5_000
    """While memory is short: how long an unfinished request may stand still before it costs its connection."""
    receive_buffers_count: int = 256
    """A power of two."""
    receive_buffer_bytes: int = 16 * 1024
    authentication_bytes_max: int = limits.AUTHENTICATION_BYTES_MAX
    """Of one request of a connection that is not let in yet."""
    authentication_ms_max: int = limits.AUTHENTICATION_MS_MAX
    """From the opening of a connection that has to be let in until it is."""
    strangers_bytes_max: int = limits.STRANGERS_BYTES_MAX
    """Memory of all connections that are not let in yet, outside Python; whoever holds most goes."""
    handshake_ms_max: int = 10_000
    """Of TLS, from the opening of a connection."""
    handshakes_max: int = 1024
    """Of TLS, begun and not at their end: 30 to 70 KiB each. For one more the oldest one's connection is closed."""
    accept_retry_ms: int = 100
    """Rest after accepting failed for want of descriptors or memory."""
    budget_bytes: int = 512 * _MIB
    """Frames of the core together: requests, answers, and what the tail of the partitions keeps. At least the largest
    request and all receive buffers, so that one client alone always gets on.
    """


@dataclass(frozen=True, slots=True)
class ConnectionStatistics:
    """Counters since the start, and what is now. The fields up to `slots` are those of C, explained there."""

    opened: int
    closed: int
    refused: int
    refused_per_ip: int
    accept_failures: int
    requests: int
    requests_hot: int
    answers: int
    answers_none: int
    answers_void: int
    received_bytes: int
    sent_bytes: int
    receives: int
    sends: int
    sends_partial: int
    sends_zero_copy: int
    sends_of_files: int
    reads_of_files: int
    pauses: int
    starvations: int
    receive_buffers_short: int
    handshakes: int
    handshakes_put_off: int
    requests_unanswered: int
    answer_bytes_unsent: int
    answer_bytes_held: int
    assembling_bytes: int
    connections: int
    operations: int
    sends_in_kernel: int
    slots: int
    requests_forgotten: int
    budget_bytes_used: int
    budget_bytes_peak: int
    budget_refusals: int
    frames: int
    closed_by_reason: dict[CloseReason, int]


class Latency(TypedDict):
    """Times of requests: their sum, and how many took how long: [i] less than 2^i us, the last all longer ones too."""

    sum_ns: int
    spans: list[int]


class SlowRequest(NamedTuple):
    """The fields of `tpc_slow_request`; `answered_ns` is monotonic."""

    took_ns: int
    answered_ns: int
    connection: int
    answer_bytes: int
    request_bytes: int
    api_key: int
    api_version: int


_C_STATISTICS: Final = tuple(field.name for field in fields(ConnectionStatistics))[:31]
assert _C_STATISTICS[-1] == "slots"
_LISTENER_FIELDS: Final = ("opened", "refused", "requests", "received_bytes", "sent_bytes", "connections")


@dataclass(frozen=True, slots=True)
class ConnectionDescription:
    """One connection as it is now. Instants are monotonic, in ns."""

    connection: int
    peer: str
    opened_ns: int
    active_ns: int
    requests: int
    received_bytes: int
    sent_bytes: int
    held_bytes: int
    requests_unanswered: int
    paused: bool
    closing: bool
    listener: int


@dataclass(frozen=True, slots=True)
class Drain:
    """What is left to do before a core may stop."""

    requests_unanswered: int
    answer_bytes_unsent: int
    connections: int

    @property
    def done(self) -> bool:
        return self.requests_unanswered == 0 and self.answer_bytes_unsent == 0


class Frame:
    """A buffer that counts against the core's budget and is sent without a copy; freed when nobody refers to it."""

    __slots__ = ("pointer",)

    def __init__(self, ring: Ring, pointer: tpc_frame) -> None:
        """Take over one reference of a `tpc_frame *`."""
        self.pointer = _released_at_end(ring, pointer)

    @property
    def view(self) -> memoryview:
        """The frame's bytes, writable; keeps the frame alive. Write only before the first answer that refers to it."""
        return memoryview(_keeping(self.pointer, self.pointer.data, self.pointer.length))

    def slice(self, position: int, length: int) -> FrameSlice:
        """Bytes for :meth:`Connections.answer_frames`."""
        if not 0 <= position <= position + length <= self.pointer.length:
            raise ValueError(f"[{position}, {position + length}) is not within a frame of {self.pointer.length} bytes")
        return FrameSlice(self, position, length)


class FrameSlice:
    """Some bytes of a :class:`Frame`."""

    __slots__ = ("frame", "length", "position")

    def __init__(self, frame: Frame, position: int, length: int) -> None:
        self.frame = frame
        self.position = position
        self.length = length


def _released_at_end(ring: Ring, frame: tpc_frame) -> Any:
    """A `tpc_frame *` that gives its reference back, in the ring's thread: frames count without locks."""
    return ffi.gc(frame, partial(ring.in_own_thread, lib.tpc_frame_release))


def _keeping(owner: Any, data: Any, length: int) -> Any:
    """A buffer over `data` that keeps the cffi object `owner` alive as long as any view of it lives."""
    held = ffi.gc(ffi.cast("uint8_t *", data), lambda _data, _owner=owner: None)
    return ffi.buffer(held, length)


class Request:
    """One request of a client, header decoded. `pointer` (`tpc_request *`) is `None` once it is answered or taken."""

    __slots__ = (
        "_body",
        "_connections",
        "api_key",
        "api_version",
        "body_bytes",
        "client_id_bytes",
        "connection",
        "correlation_id",
        "fallback_reason",
        "flexible",
        "listener",
        "pointer",
        "received_ns",
        "sequence",
        "subject",
        "throttle_ms",
    )

    def __init__(self, connections: Connections, pointer: tpc_request) -> None:
        self._connections = connections
        self.pointer: Any = pointer  # a tpc_request; None when it was answered
        self._body: memoryview | None = None
        self.subject = NOBODY
        (
            self.connection,
            self.sequence,
            _,
            _,
            _,
            self.received_ns,
            self.body_bytes,
            self.client_id_bytes,
            self.correlation_id,
            self.api_key,
            self.api_version,
            self.flexible,
            self.listener,
            self.fallback_reason,
            self.throttle_ms,
        ) = _REQUEST.unpack(_buffer(pointer))

    @property
    def client_id(self) -> str | None:
        """As the client gave it; bytes that are no UTF-8 are replaced. Only before the answer."""
        if self.client_id_bytes < 0:
            return None
        return bytes(_buffer(self.pointer.client_id, self.client_id_bytes)).decode(errors="replace")

    @property
    def body(self) -> memoryview:
        """What follows the header. Asked for once before the answer, it stays valid for good."""
        body = self._body
        if body is None:
            if self.body_bytes <= COPIED_BODY_BYTES_MAX:
                body = memoryview(_buffer(self.pointer.body, self.body_bytes)[:])
            else:
                frame = _released_at_end(self._connections.ring, lib.tpc_frame_retain(self.pointer.frame))
                body = memoryview(_keeping(frame, self.pointer.body, self.body_bytes)).toreadonly()
            self._body = body
        return body

    def taken(self) -> None:
        """C has taken the request over (`tpc_plane_produce` said 1): it answers and releases it."""
        self.pointer = None

    def __del__(self) -> None:
        if self.pointer is not None:
            connections = self._connections
            connections.ring.in_own_thread(connections.forget, self.connection, self.pointer)

    def __repr__(self) -> str:
        api = f"key {self.api_key} v{self.api_version}"
        return f"<Request {self.connection:#x}/{self.sequence} {api} id {self.correlation_id}>"


_buffer = ffi.buffer
_cast = ffi.cast
_REQUEST_POINTER: Final = ffi.typeof("tpc_request *")


class Connections:
    """The listeners and connections of one core, on its ring."""

    def __init__(self, ring: Ring, limits: ConnectionLimits | None = None) -> None:
        """Raise `OSError` when memory is missing, `ValueError` for bounds that contradict each other."""
        self.ring = ring
        self.limits = limits if limits is not None else ConnectionLimits()
        self.on_opened: Callable[[int, str, int], None] = _ignore
        """`(connection, peer, listener)`"""
        self.on_request: Callable[[Request], None] = _not_served
        self.on_closed: Callable[[int, CloseReason, int], None] = _ignore
        """`(connection, reason, errno)`; errno is 0 when there is none to tell."""
        self.on_secured: Callable[[int, int], None] = _ignore
        """`(connection, listener)`: whose certificate is to be looked at; it is not served until `tls.let_speak`."""
        self.on_accept_failed: Callable[[int, int], None] = _ignore
        """`(listener, errno)`: no descriptors or memory (it tries again), or the socket is no listener (it stops)."""
        bounds = self._c_limits(self.limits)
        self.budget = lib.tpc_budget_new(self.limits.budget_bytes)
        """`tpc_budget *` of the core, for the other C parts too."""
        self.pointer = lib.tpc_connections_new(ring.pointer, self.budget, bounds)
        if self.pointer == ffi.NULL:
            error = ffi.errno
            lib.tpc_budget_free(self.budget)
            raise OSError(error, f"connections: {os.strerror(error)}")
        self.closed, self._forgotten = False, 0
        self._info, self._names = ffi.new("tpc_connection_info *"), ffi.new("tpc_subject_names *")
        ring.on_event(lib.TPC_EVENT_REQUEST, self._request)
        ring.on_event(lib.TPC_EVENT_OPENED, self._opened)
        ring.on_event(lib.TPC_EVENT_CLOSED, self._closed)
        ring.on_event(lib.TPC_EVENT_SECURED, self._secured)
        ring.on_event(lib.TPC_EVENT_ACCEPT_FAILED, self._accept_failed)

    @staticmethod
    def _c_limits(limits: ConnectionLimits) -> Any:
        needed = limits.request_bytes_max + limits.receive_buffers_count * limits.receive_buffer_bytes
        if limits.budget_bytes < needed:
            raise ValueError(
                f"budget_bytes {limits.budget_bytes} is below request_bytes_max and all receive buffers: {needed}"
            )
        values = asdict(limits)
        del values["budget_bytes"]
        return ffi.new("tpc_connection_limits *", values)

    def set_limits(self, limits: ConnectionLimits) -> None:
        """Change bounds while running. The receive buffers stay as they were made."""
        lib.tpc_connections_set_limits(self.pointer, self._c_limits(limits))
        self.budget.bytes_max = limits.budget_bytes
        self.limits = limits

    # ------------------------------------------------------------------------------------------ events

    def _request(self, _connection: int, _sequence: int, _frame_bytes: int, pointer: int) -> None:
        self.on_request(Request(self, _cast(_REQUEST_POINTER, pointer)))

    def _opened(self, connection: int, _descriptor: int, listener: int, _pointer: int) -> None:
        gone = lib.tpc_connection_describe(self.pointer, connection, self._info) < 0
        self.on_opened(connection, "gone" if gone else ffi.string(self._info.peer).decode(), listener)

    def _secured(self, connection: int, listener: int, _b: int, _pointer: int) -> None:
        self.on_secured(connection, listener)

    def _closed(self, connection: int, reason: int, error: int, _pointer: int) -> None:
        self.on_closed(connection, CloseReason(reason), error)

    def _accept_failed(self, listener: int, _a: int, error: int, _pointer: int) -> None:
        self.on_accept_failed(listener, error)

    # ------------------------------------------------------------------------------------------ accepting

    def listen(self, fd: int) -> int:
        """Accept from a listening stream socket, which stays the caller's; the listener's number."""
        return _checked(lib.tpc_connections_listen(self.pointer, fd), "listen")

    def adopt(self, fd: int, listener: int = 0) -> int:
        """Take over a connected stream socket in blocking mode, as one of that listener's; the connection's id.

        `OSError` EMFILE above connections_max, EUSERS above connections_per_ip_max: then it stays the caller's.
        """
        out = ffi.new("uint64_t *")
        _checked(lib.tpc_connections_adopt(self.pointer, fd, listener, out), "adopt")
        connection: int = out[0]
        return connection

    def show_open(self, place: Buffer) -> None:
        """Keep the number of open connections in the first four bytes of `place`, for as long as there are any."""
        address, _length, self._open_shown = pinned(place, writable=True)
        lib.tpc_connections_show_open(self.pointer, _cast("uint32_t *", address))

    def stop_accepting(self) -> None:
        """For good. The listening sockets may be closed once :attr:`quiet`, or after the ring."""
        lib.tpc_connections_stop_accepting(self.pointer)

    # ------------------------------------------------------------------------------------------ who they are

    def begin_in(self, listener: int, stage: Stage) -> None:
        """In which stage connections of a listener begin from now on; its number may be one that is yet to come."""
        _checked(lib.tpc_connections_listener_stage(self.pointer, listener, stage), "stage")

    def require_subject(self, *, on: bool) -> None:
        """Whether nobody is served without a subject; streams of other cores that have none end."""
        lib.tpc_connections_require_subject(self.pointer, on)

    def let_in(self, connection: int, number: int, deadline_ns: int, principal: str, host: str) -> bool:
        """Serve a connection from now on, as that subject (a number > 0, and how other cores are told); past the
        deadline (monotonic; 0: none) only what renews it. Again, to renew it. False: it is gone. `OSError` EINVAL: the
        names are longer than `TPC_PRINCIPAL_BYTES_MAX` or `TPC_HOST_BYTES_MAX`, or have control bytes.
        """
        names, who, where = self._names, principal.encode(), host.encode()
        if len(who) > lib.TPC_PRINCIPAL_BYTES_MAX or len(where) > lib.TPC_HOST_BYTES_MAX:
            raise OSError(errno.EINVAL, "let in: a name that is too long")
        names.principal_bytes, names.host_bytes = len(who), len(where)
        ffi.memmove(names.principal, who, len(who))
        ffi.memmove(names.host, where, len(where))
        result = lib.tpc_connection_let_in(self.pointer, connection, number, deadline_ns, names)
        return result != -errno.ENOTCONN and _checked(result, "let in") == 0

    def expect_tokens(self, connection: int, *, on: bool) -> bool:
        """Whether what comes of one that is not let in are tokens of a mechanism, of API -1. False: it is gone."""
        result: int = lib.tpc_connection_expect_tokens(self.pointer, connection, on)
        return result == 0

    def carried_subject(self, connection: int) -> tuple[bytes, bytes] | None:
        """Principal and host of the client that a stream is for; `None`: it is no stream, or its core did not say."""
        if lib.tpc_connection_carried_subject(self.pointer, connection, self._names) < 0:
            return None
        names = self._names
        principal, host = _buffer(names.principal, names.principal_bytes), _buffer(names.host, names.host_bytes)
        return bytes(principal), bytes(host)

    def subject_number_of(self, connection: int) -> int:
        """0: nobody yet, or it is gone."""
        return int(lib.tpc_connection_subject(self.pointer, connection))

    # ------------------------------------------------------------------------------------------ answers

    def answer(self, request: Request, *buffers: Buffer) -> bool:
        """Answer with these bytes, correlation id first (the length field is put before them in C). They are copied.

        False: the client is gone, and nothing happens.
        """
        pointer = request.pointer
        if pointer is None:
            raise ValueError(f"{request} was answered before")
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if type(data) is bytes:
            result = lib.tpc_request_answer_bytes(self.pointer, pointer, data, len(data))
        else:
            size = memoryview(data).nbytes
            result = lib.tpc_request_answer_bytes(self.pointer, pointer, ffi.from_buffer(data), size)
        request.pointer = None
        return result == 0 or _void(result)

    def answer_frames(self, request: Request, *parts: Buffer | FrameSlice) -> bool:
        """As :meth:`answer`, but frames are sent from where they lie and kept until the client has them."""
        slices = ffi.new("tpc_slice[]", len(parts))
        held = []
        for target, part in zip(slices, parts, strict=True):
            if isinstance(part, FrameSlice):
                target.frame = lib.tpc_frame_retain(part.frame.pointer)
                target.data = part.frame.pointer.data + part.position
                target.length = part.length
            else:
                target.data, target.length, view = pinned(part)
                held.append(view)
        return self.answer_slices(request, slices, len(parts))

    def answer_slices(self, request: Request, slices: tpc_slice, count: int) -> bool:
        """As :meth:`answer_frames`, with an array of `tpc_slice` whose references are taken over.

        A slice without a frame is copied.
        """
        pointer = request.pointer
        if pointer is None:
            raise ValueError(f"{request} was answered before")
        request.pointer = None
        result = lib.tpc_request_answer_slices(self.pointer, pointer, slices, count)
        return result == 0 or _void(result)

    def answer_none(self, request: Request) -> bool:
        """Nothing is sent for this request (acks=0)."""
        pointer = request.pointer
        if pointer is None:
            raise ValueError(f"{request} was answered before")
        request.pointer = None
        result = lib.tpc_request_answer_none(self.pointer, pointer)
        return result == 0 or _void(result)

    def forget(self, connection: int, pointer: Any) -> None:
        """Give up a request without an answer: its connection is closed, since nothing behind it could be answered."""
        if not self.closed:
            self._forgotten += 1
            lib.tpc_connection_close(self.pointer, connection, CloseReason.LOCAL, CloseWhen.NOW)
        lib.tpc_request_release(pointer)

    def new_frame(self, length: int, *, forced: bool = False) -> Frame | None:
        """A frame to read into; `None` when the budget has no room (never with `forced`)."""
        pointer = (lib.tpc_frame_new_forced if forced else lib.tpc_frame_new)(self.budget, length)
        if pointer == ffi.NULL:
            if forced:
                raise MemoryError
            return None
        return Frame(self.ring, pointer)

    # ------------------------------------------------------------------------------------------ closing

    def close(self, connection: int, reason: CloseReason = CloseReason.LOCAL, when: CloseWhen = CloseWhen.NOW) -> bool:
        """Close one connection; False when it is gone or going already. `on_closed` comes in a later turn."""
        result: int = lib.tpc_connection_close(self.pointer, connection, reason, when)
        return result == 0

    def close_all(self, reason: CloseReason = CloseReason.SHUTDOWN, when: CloseWhen = CloseWhen.NOW) -> None:
        lib.tpc_connections_close_all(self.pointer, reason, when)

    def drain(self) -> Drain:
        """What is left; to be asked after :meth:`stop_accepting` and `close_all(when=CloseWhen.AFTER_TAKEN)`."""
        now = self._c_statistics()
        return Drain(now.requests_unanswered, now.answer_bytes_unsent, now.connections)

    @property
    def quiet(self) -> bool:
        """Whether the kernel works for no connection or listener any more."""
        now = self._c_statistics()
        return not (now.connections or now.operations or now.sends_in_kernel)

    def free(self) -> None:
        """Free everything in C; `OSError` EBUSY unless :attr:`quiet`. Twice is allowed.

        Requests and frames may outlive it.
        """
        if self.closed:
            return
        _checked(lib.tpc_connections_free(self.pointer), "free")
        self.closed = True
        kinds = (lib.TPC_EVENT_OPENED, lib.TPC_EVENT_CLOSED, lib.TPC_EVENT_SECURED, lib.TPC_EVENT_ACCEPT_FAILED)
        for kind in (lib.TPC_EVENT_REQUEST, *kinds):
            self.ring.on_event(kind, None)
        lib.tpc_budget_free(self.budget)

    async def aclose(self, reason: CloseReason = CloseReason.SHUTDOWN) -> None:
        """Stop accepting, close every connection now, wait until all is quiet, free."""
        self.stop_accepting()
        self.close_all(reason)
        with trio.CancelScope(shield=True):
            while not self.quiet:
                await trio.sleep(0.001)
        self.free()

    # ------------------------------------------------------------------------------------------ looking at it

    def _c_statistics(self) -> Any:
        out = ffi.new("tpc_connection_statistics *")
        lib.tpc_connections_statistics(self.pointer, out)
        return out

    def statistics(self) -> ConnectionStatistics:
        now = self._c_statistics()
        return ConnectionStatistics(
            **{name: getattr(now, name) for name in _C_STATISTICS},
            requests_forgotten=self._forgotten,
            budget_bytes_used=self.budget.bytes_used,
            budget_bytes_peak=self.budget.bytes_peak,
            budget_refusals=self.budget.refusals,
            frames=self.budget.frames,
            closed_by_reason={reason: now.closed_by_reason[reason] for reason in CloseReason},
        )

    def listener_statistics(self) -> list[dict[str, int]]:
        """Fields of `tpc_listener_statistics`, by number of the listener. Looks at every connection."""
        out = ffi.new("tpc_listener_statistics[]", limits.LISTENERS_MAX)
        count = lib.tpc_connections_listener_statistics(self.pointer, out, limits.LISTENERS_MAX)
        return [{name: int(getattr(out[number], name)) for name in _LISTENER_FIELDS} for number in range(count)]

    def latencies(self) -> dict[int, Latency]:
        """By API key, of those that were asked."""
        values = lib.tpc_connections_latencies(self.pointer)
        found = {}
        for key in range(lib.TPC_LATENCY_APIS):
            spans = list(values.apis[key].spans)
            if any(spans):
                found[key] = Latency(sum_ns=values.apis[key].sum_ns, spans=spans)
        return found

    def slowest_requests(self) -> list[SlowRequest]:
        """Of this minute and the one before, the slowest first; without those that wait by design."""
        values = lib.tpc_connections_latencies(self.pointer)
        found = [
            SlowRequest(*(getattr(row, name) for name in SlowRequest._fields))
            for table in (values.slowest, values.slowest_before)
            for row in table
            if row.took_ns
        ]
        return sorted(found, key=lambda one: -one.took_ns)

    def mark_of(self, connection: int) -> int:
        """Of the last prepared answer with a mark that it was given; 0: none, or it is gone."""
        return int(lib.tpc_connection_mark(self.pointer, connection))

    def describe_connection(self, connection: int) -> ConnectionDescription | None:
        """`None` when it is gone."""
        if lib.tpc_connection_describe(self.pointer, connection, self._info) < 0:
            return None
        return _description(self._info)


def _description(info: tpc_connection_info) -> ConnectionDescription:
    return ConnectionDescription(
        connection=info.connection,
        peer=ffi.string(info.peer).decode(),
        opened_ns=info.opened_ns,
        active_ns=info.active_ns,
        requests=info.requests,
        received_bytes=info.received_bytes,
        sent_bytes=info.sent_bytes,
        held_bytes=info.held_bytes,
        requests_unanswered=info.requests_unanswered,
        paused=bool(info.paused),
        closing=bool(info.closing),
        listener=info.listener,
    )


def _void(result: int) -> bool:
    """The answer went nowhere. Being gone is the client's right; anything else is a mistake of ours."""
    if result == -errno.ENOTCONN:
        return False
    raise OSError(-result, f"answer: {os.strerror(-result)}")


def _checked(result: int, what: str) -> int:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
    return result


def _ignore(*_event: object) -> None:
    pass


def _not_served(request: Request) -> None:
    raise RuntimeError(f"nobody serves {request}: on_request is not set")
