"""Mailboxes: how cores of one node talk. Bounded, framed, over Unix stream sockets.

Each core listens on a socket that the supervisor made for it (so that a restarted core answers at the same place), and
dials every other core when it has something to say. A dialled connection carries calls one way and their answers the
other way.

Theory of operation
-------------------
*Credits.* A core has at most ``MAILBOX_CALLS_MAX`` calls under way to one other core. The next one raises
``MailboxFullError`` at once: the caller gives its client a retriable error. Nothing ever waits for room, so two cores
that are both full cannot wait for each other in a circle.

*Room for answers.* An answer is sent by the task that served the call, and there are at most as many of those as calls
were admitted, so that the answers of a peer are bounded by the same credits.

*Failure.* When a peer's connection ends, all calls under way to it raise ``CoreDownError``. A call is never repeated
here: whether a repetition is safe only the caller knows.

Frame, little-endian: u32 length of what follows | u8 type | u64 call id | u32 length of the JSON part | JSON | blobs,
each as u32 length | bytes. Types: 1 call, 2 answer, 3 error answer, 4 notice (no answer).

Only processes of the same user are let in (SO_PEERCRED); everything else is closed at once.
"""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import trio

from tpc_broker import limits
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.broker.payloads import Payload
from tpc_broker.errors import (
    CallFailedError,
    CoreDownError,
    JournalStoppedError,
    MailboxError,
    MailboxFullError,
    NotDeliveredError,
)
from tpc_broker.model import CoreId
from tpc_broker.storage.upkeep.refusals import Refusals

log = logging.getLogger(__name__)

FRAME = struct.Struct("<IBQI")
BLOB = struct.Struct("<I")
CALL, ANSWER, ERROR, NOTICE = 1, 2, 3, 4
HELLO = struct.Struct("<I")
"""The first bytes of a connection: the core that dialled."""
FOR_A_LINK = 1 << 31
"""Beside the core in a HELLO: what follows is C's (`links`)."""

Blobs = Sequence[bytes]
Handler = Callable[[CoreId, Payload, list[bytes]], Awaitable[tuple[Payload, Blobs] | None]]


@dataclass(frozen=True, slots=True)
class MailboxStatistics:
    calls: int
    served: int
    refused_full: int
    failed: int
    under_way: int


def encode_frame(kind: int, call_id: int, payload: Payload, blobs: Blobs) -> bytes:
    text = json.dumps(payload).encode()
    parts = [text]
    for blob in blobs:
        parts += (BLOB.pack(len(blob)), blob)
    body = b"".join(parts)
    length = FRAME.size - 4 + len(body)
    if length > limits.MAILBOX_FRAME_BYTES_MAX:
        raise MailboxError(f"a mailbox message of {length} bytes is over {limits.MAILBOX_FRAME_BYTES_MAX}")
    return FRAME.pack(length, kind, call_id, len(text)) + body


async def read_exactly(stream: trio.abc.ReceiveStream, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        data = await stream.receive_some(min(count - len(parts), 1 << 20))
        if not data:
            return None
        parts += data
    return bytes(parts)


async def read_frame(stream: trio.abc.ReceiveStream) -> tuple[int, int, Payload, list[bytes]] | None:
    header = await read_exactly(stream, FRAME.size)
    if header is None:
        return None
    length, kind, call_id, text_length = FRAME.unpack(header)
    body_length = length - (FRAME.size - 4)
    if not 0 <= text_length <= body_length <= limits.MAILBOX_FRAME_BYTES_MAX:
        raise MailboxError("a mailbox frame with impossible lengths")
    body = await read_exactly(stream, body_length)
    if body is None:
        return None
    payload = json.loads(body[:text_length]) if text_length else {}
    blobs = []
    position = text_length
    while position < len(body):
        (size,) = BLOB.unpack_from(body, position)
        blobs.append(body[position + 4 : position + 4 + size])
        position += 4 + size
    return kind, call_id, payload, blobs


@dataclass(slots=True)
class PendingCall:
    done: trio.Event = field(default_factory=trio.Event)
    result: tuple[Payload, list[bytes]] | None = None
    error: MailboxError | None = None


class Peer:
    """The dialled connection to one other core and the calls under way on it."""

    def __init__(self, owner: Mailboxes, core: CoreId) -> None:
        self.owner = owner
        self.core = core
        self.pending: dict[int, PendingCall] = {}
        self._stream: trio.SocketStream | None = None
        self._dialling = trio.Lock()
        self._sending = trio.Lock()
        self._next_id = 1

    async def send(self, kind: int, payload: Payload, blobs: Blobs, pending: PendingCall | None) -> None:
        call_id = self._next_id
        self._next_id += 1
        frame = encode_frame(kind, call_id, payload, blobs)
        stream = await self._connected()
        if pending is not None:
            self.pending[call_id] = pending
        try:
            with trio.CancelScope(shield=True):  # half a frame would spoil the stream for everybody
                async with self._sending:
                    await stream.send_all(frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.pending.pop(call_id, None)
            self.lost(stream)
            raise CoreDownError(f"core {self.core} does not answer") from error

    def forget(self, pending: PendingCall) -> None:
        for call_id, candidate in list(self.pending.items()):
            if candidate is pending:
                del self.pending[call_id]

    def lost(self, stream: trio.SocketStream) -> None:
        if self._stream is not stream:
            return
        self._stream = None
        for pending in self.pending.values():
            pending.error = CoreDownError(f"core {self.core} went away")
            pending.done.set()
        self.pending.clear()

    async def _connected(self) -> trio.SocketStream:
        async with self._dialling:
            if self._stream is None:
                self._stream = await self._dial()
                self.owner.nursery.start_soon(self._receive, self._stream)
            return self._stream

    async def _dial(self) -> trio.SocketStream:
        sock = await self.owner.dial(self.core, self.owner.core_id)
        return trio.SocketStream(sock)

    async def _receive(self, stream: trio.SocketStream) -> None:
        try:
            while (frame := await read_frame(stream)) is not None:
                kind, call_id, payload, blobs = frame
                pending = self.pending.pop(call_id, None)
                if pending is None:
                    continue
                if kind == ANSWER:
                    pending.result = (payload, blobs)
                else:
                    pending.error = CallFailedError(f"core {self.core}: {payload.get('message', 'failed')}")
                pending.done.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.lost(stream)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)


# Rule: Mailboxes never wait for room. Held by tests/engine/test_mailbox.py.
class Mailboxes:
    """All mailboxes of one core. ``serve`` a method by name, ``call`` it on another core."""

    def __init__(self, core_id: CoreId, addresses: Sequence[str], listener: socket.socket) -> None:
        self.core_id = core_id
        self._addresses = list(addresses)
        self._listener = trio.socket.from_stdlib_socket(listener)
        self._handlers: dict[str, Handler] = {}
        self._peers: dict[CoreId, Peer] = {}
        self._calls = self._served = self._refused_full = self._failed = 0
        self.log_limiter = LogLimiter(trio.current_time)
        self._full = Refusals("another core takes no more calls", what="calls for clients")
        self.nursery: trio.Nursery
        self.on_link: Callable[[CoreId, trio.socket.SocketType], None] | None = None
        """Takes over the socket of a core that dialled for a link."""

    def address_of(self, core: CoreId) -> str:
        """Abstract Unix address: begins with a NUL byte."""
        return "\0" + self._addresses[core]

    async def dial(self, core: CoreId, hello: int) -> trio.socket.SocketType:
        """A socket to another core, or NotDeliveredError."""
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await sock.connect(self.address_of(core))
            await trio.SocketStream(sock).send_all(HELLO.pack(hello))
        except (OSError, trio.BrokenResourceError) as error:
            sock.close()
            raise NotDeliveredError(f"core {core} does not answer: {error}") from error
        except BaseException:
            sock.close()
            raise
        return sock

    async def dial_link(self, core: CoreId) -> trio.socket.SocketType:
        """A socket for a link to another core, or NotDeliveredError."""
        return await self.dial(core, self.core_id | FOR_A_LINK)

    def serve(self, method: str, handler: Handler) -> None:
        assert method not in self._handlers, method
        self._handlers[method] = handler

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and serve for ever; the listener is closed at the end."""
        with self._listener:
            await self._accept(task_status)

    async def _accept(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            while True:
                sock, _address = await self._listener.accept()
                if self._is_ours(sock):
                    self.nursery.start_soon(self._serve_connection, trio.SocketStream(sock))
                else:
                    sock.close()

    async def call(
        self, core: CoreId, method: str, payload: Payload, blobs: Blobs = (), *, timeout_ms: int | None = None
    ) -> tuple[Payload, list[bytes]]:
        """Call ``method`` on another core (or on this one, directly).

        Raises MailboxFullError (no credit), CoreDownError (not there, gone, or too late), CallFailedError (its handler
        raised).
        """
        self._calls += 1
        if core == self.core_id:
            answer = await self._handlers[method](core, payload, list(blobs))
            return (answer[0], list(answer[1])) if answer else ({}, [])
        peer = self._peer(core)
        if len(peer.pending) >= limits.MAILBOX_CALLS_MAX:
            self._refused_full += 1
            self._full.refused(f"{limits.MAILBOX_CALLS_MAX} to core {core} are under way")
            raise MailboxFullError(f"{limits.MAILBOX_CALLS_MAX} calls to core {core} are under way already")
        self._full.succeeded()
        pending = PendingCall()
        timeout_s = (timeout_ms or limits.MAILBOX_CALL_TIMEOUT_MS) / 1000
        try:
            with trio.move_on_after(timeout_s):
                await peer.send(CALL, {"method": method, **payload}, blobs, pending)
                await pending.done.wait()
        finally:
            if not pending.done.is_set():
                peer.forget(pending)
        if pending.error is not None:
            self._failed += 1
            raise pending.error
        if pending.result is None:
            self._failed += 1
            raise CoreDownError(f"core {core} did not answer {method} in {timeout_s:g} s")
        return pending.result

    async def notify(self, core: CoreId, method: str, payload: Payload, blobs: Blobs = ()) -> bool:
        """Tell without asking for an answer; False when that core is not there."""
        if core == self.core_id:
            await self._handlers[method](core, payload, list(blobs))
            return True
        try:
            await self._peer(core).send(NOTICE, {"method": method, **payload}, blobs, None)
        except MailboxError:
            return False
        return True

    def statistics(self) -> MailboxStatistics:
        under_way = sum(len(peer.pending) for peer in self._peers.values())
        return MailboxStatistics(self._calls, self._served, self._refused_full, self._failed, under_way)

    def _peer(self, core: CoreId) -> Peer:
        if core not in self._peers:
            self._peers[core] = Peer(self, core)
        return self._peers[core]

    def _is_ours(self, sock: trio.socket.SocketType) -> bool:
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _pid, user, _group = struct.unpack("3i", credentials)
        if user != os.geteuid():
            self.log_limiter.say(log, "turned away", str(user), f"mailbox: a process of user {user} was turned away")
            return False
        return True

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        sending = trio.Lock()
        credits = trio.Semaphore(limits.MAILBOX_CALLS_MAX)
        try:
            hello = await read_exactly(stream, HELLO.size)
            if hello is None:
                return
            caller = CoreId(HELLO.unpack(hello)[0])
            if caller & FOR_A_LINK:
                if self.on_link is not None:
                    self.on_link(CoreId(caller & ~FOR_A_LINK), stream.socket)
                return
            while True:
                await credits.acquire()
                frame = await read_frame(stream)
                if frame is None:
                    return
                self.nursery.start_soon(self._serve_frame, stream, sending, credits, caller, frame)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _serve_frame(
        self,
        stream: trio.SocketStream,
        sending: trio.Lock,
        credits: trio.Semaphore,
        caller: CoreId,
        frame: tuple[int, int, Payload, list[bytes]],
    ) -> None:
        kind, call_id, payload, blobs = frame
        method = payload.pop("method", "")
        self._served += 1
        try:
            try:
                answer = await self._handlers[method](caller, payload, blobs)
                data = encode_frame(ANSWER, call_id, *(answer or ({}, [])))
            except JournalStoppedError as error:
                text = f"mailbox: {method} from core {caller} comes too late: {error}"
                self.log_limiter.say(log, "too late", f"{method} {caller}", text, level=logging.INFO)
                data = _error_frame(call_id, error)
            except NotDeliveredError as error:
                text = f"mailbox: {method} from core {caller} was not begun: {error}"
                self.log_limiter.say(log, "not begun", f"{method} {caller}", text, level=logging.INFO)
                data = _error_frame(call_id, error)
            except MailboxError as error:  # whom this core asked on the caller's behalf
                text = f"mailbox: {method} from core {caller} was passed on, and has no answer: {error}"
                self.log_limiter.say(log, "no answer", f"{method} {caller}", text, level=logging.INFO)
                data = _error_frame(call_id, error)
            except Exception as error:  # the caller is told; the log has the traceback
                log.exception("mailbox: %s from core %d failed", method, caller)
                data = _error_frame(call_id, error)
            if kind == CALL:
                with trio.CancelScope(shield=True):
                    async with sending:
                        await stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            credits.release()


def _error_frame(call_id: int, error: Exception) -> bytes:
    return encode_frame(ERROR, call_id, {"message": f"{type(error).__name__}: {error}"}, ())


def make_mailbox_listeners(cores: int) -> tuple[list[str], list[socket.socket]]:
    """One abstract Unix listener a core, made by the supervisor so that it outlives the core. Names without the NUL."""
    unique = f"tpc-broker-{os.getpid()}-{os.urandom(8).hex()}"
    names, listeners = [], []
    for core in range(cores):
        name = f"{unique}-{core}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("\0" + name)
        listener.listen(math.ceil(cores * 2))
        names.append(name)
        listeners.append(listener)
    return names, listeners
