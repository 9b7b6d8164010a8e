"""Byte streams on the ring, for mailboxes and control pipes: trio's stream interface over Unix and TCP sockets.

A stream receives ahead of its reader with one multishot entry (single receives where the kernel has none) and sends
behind its writer: `send_all` returns when the bytes are queued and the queue is under its bound. So an error of the
socket may come one call late, and `aclose` and `send_eof` wait for what is queued. Order on the wire is the order of
the calls: at most one send entry is under way, and what is queued behind it goes out together.

Checkpoints: every method looks for cancellation; one that need not wait gives up its turn only at every 16th such
call in a row, because a turn costs more than a small message.

Closing is: shutdown, cancel, wait for the last completions, close.
"""

from __future__ import annotations

import errno
import operator
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NoReturn

import outcome
import trio

from tpc_broker._ring import lib
from tpc_broker.native_bytes import pinned
from tpc_broker.runtime.ring import PINNED_BYTES_MIN, RECEIVE_BUFFER_BYTES, Ring

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.storage.ports import Buffer

SEND_QUEUE_BYTES_MAX: Final = 64 * 1024
"""Queued bytes from which on `send_all` waits."""
SEND_BYTES_MAX: Final = 256 * 1024
"""What goes into one send entry."""
RECEIVE_AHEAD_BYTES_MAX: Final = 256 * 1024
"""Received bytes that nobody has read from which on the receive is cancelled; armed again below half."""
UNYIELDING_CALLS_MAX: Final = 16

_MORE: Final = lib.TPC_MORE


def packed_address(family: int, address: str | tuple[str, int]) -> bytes:
    """`struct sockaddr` of a Unix path (a leading NUL: abstract) or of a numeric host and a port."""
    if family == socket.AF_UNIX:
        path = os.fsencode(address if isinstance(address, str) else address[0])
        if len(path) > 107:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(address))
        return struct.pack("=H", family) + path + (b"" if path.startswith(b"\0") else b"\0")
    if isinstance(address, str):
        raise TypeError("an internet address is a pair of numeric host and port")
    host, port = address
    packed_host = socket.inet_pton(family, host)
    if family == socket.AF_INET:
        return struct.pack("=H", family) + struct.pack("!H", port) + packed_host + bytes(8)
    return struct.pack("=H", family) + struct.pack("!HI", port, 0) + packed_host + bytes(4)


class RingStream(trio.abc.HalfCloseableStream):
    """One connected stream socket, owned. One task may receive and one may send at a time."""

    def __init__(self, ring: Ring, connected: socket.socket) -> None:
        """Take over a connected socket (which is detached from its object)."""
        if connected.family in {socket.AF_INET, socket.AF_INET6}:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)  # noqa: FBT003 (positional in Python)
        self._ring = ring
        self._fd = connected.detach()
        self._closing = False
        self._unyielding = 0

        self._buffers = ring.receive_buffers()
        self._chunks: deque[bytes] = deque()
        self._ahead_bytes = 0
        self._receive_operation = 0
        self._receive_into: bytearray | None = None
        self._receive_end = False
        self._receive_error = 0
        self._receiver: trio.lowlevel.Task | None = None

        self._in_flight: bytes | memoryview = b""
        self._queued: list[bytes] = []
        self._queued_bytes = 0
        self._send_operation = 0
        self._send_quiet = False
        self._send_token = ring.keep_callback(self._on_sent)
        self._send_error = 0
        self._send_busy = False
        self._sending_ended = False
        self._sender: trio.lowlevel.Task | None = None
        self._idle: trio.Event | None = None

    def fileno(self) -> int:
        """The descriptor; -1 when closed."""
        return self._fd

    async def _checkpoint(self) -> None:
        self._unyielding += 1
        if self._unyielding < UNYIELDING_CALLS_MAX:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._unyielding = 0
            await trio.lowlevel.checkpoint()

    # ------------------------------------------------------------------------------------------ receiving

    def _arm_receive(self) -> None:
        if self._buffers is not None:
            self._receive_operation = self._ring.start(
                lib.tpc_operation_receive_multishot, self._fd, self._buffers, callback=self._on_multishot
            )
            return
        self._receive_into = bytearray(RECEIVE_BUFFER_BYTES)
        pointer, size, held = pinned(self._receive_into, writable=True)
        self._receive_operation = self._ring.start(
            lib.tpc_operation_receive, self._fd, pointer, size, 0, callback=self._on_single, held=held
        )

    def _on_multishot(self, result: int, flags: int, data: int) -> None:
        if result > 0:
            self._chunks.append(self._ring.received(data, result))
            self._ahead_bytes += result
            if self._receiver is not None:
                task, self._receiver = self._receiver, None
                trio.lowlevel.reschedule(task)
        if not flags & _MORE:
            self._on_receive_end(result)
        elif self._ahead_bytes > RECEIVE_AHEAD_BYTES_MAX:
            self._ring.cancel(self._receive_operation)

    def _on_single(self, result: int, _flags: int, _data: int) -> None:
        if result > 0 and self._receive_into is not None:
            self._chunks.append(bytes(memoryview(self._receive_into)[:result]))
            self._ahead_bytes += result
        self._on_receive_end(result)

    def _on_receive_end(self, result: int) -> None:
        """The entry is over: end of stream, an error, or to be armed again when there is room."""
        self._receive_operation = 0
        if self._closing:
            self._check_idle()
            return
        if result == 0:
            self._receive_end = True
        elif result < 0 and result not in {-errno.ENOBUFS, -errno.ECANCELED, -errno.EINTR}:
            self._receive_error = -result
        elif self._ahead_bytes <= RECEIVE_AHEAD_BYTES_MAX:
            self._arm_receive()
        if self._receiver is not None and (self._chunks or self._receive_end or self._receive_error):
            task, self._receiver = self._receiver, None
            trio.lowlevel.reschedule(task)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes as they came, at least one; `b""` at the end of the stream.

        Raises `trio.BrokenResourceError` (peer gone), `trio.ClosedResourceError`, `trio.BusyResourceError`.
        """
        if max_bytes is not None and operator.index(max_bytes) < 1:
            raise ValueError("max_bytes must be at least 1")
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is receiving from this stream")
        if self._chunks or self._closing or self._receive_end or self._receive_error:
            await self._checkpoint()
        while not self._chunks:
            self._raise_unless_receivable()
            if self._receive_end:
                return b""
            if not self._receive_operation:
                self._arm_receive()
            self._receiver = trio.lowlevel.current_task()
            self._unyielding = 0
            await trio.lowlevel.wait_task_rescheduled(self._abort_receive)
        return self._take(max_bytes)

    def _raise_unless_receivable(self) -> None:
        if self._closing:
            raise trio.ClosedResourceError("this stream is closed")
        if self._receive_error:
            raise trio.BrokenResourceError(os.strerror(self._receive_error)) from OSError(
                self._receive_error, os.strerror(self._receive_error)
            )

    def _abort_receive(self, _: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        self._receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, max_bytes: int | None) -> bytes:
        chunk = self._chunks.popleft()
        if max_bytes is not None and len(chunk) > max_bytes:
            self._chunks.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._ahead_bytes -= len(chunk)
        over = self._receive_operation or self._receive_end or self._receive_error or self._closing
        if not over and self._ahead_bytes <= RECEIVE_AHEAD_BYTES_MAX // 2:
            self._arm_receive()
        return chunk

    # ------------------------------------------------------------------------------------------ sending

    def _start_send(self, data: bytes | memoryview) -> None:
        self._in_flight = data
        if len(data) < PINNED_BYTES_MIN:
            self._send_quiet = True
            piece = data if isinstance(data, bytes) else bytes(data)
            self._send_operation = self._ring.send_quietly(self._send_token, self._fd, piece)
            return
        pointer, size, held = pinned(data)
        self._send_operation = self._ring.start(
            lib.tpc_operation_send, self._fd, pointer, size, 0, callback=self._on_sent, held=held
        )

    def _sending(self) -> bool:
        """Whether a send is under way; then `_on_sent` will be called."""
        if self._send_quiet:
            self._send_quiet = False
            if self._ring.settled(self._send_operation):
                self._send_operation = 0
        return self._send_operation != 0

    def _on_sent(self, result: int, _flags: int, _data: int) -> None:
        self._send_operation = 0
        self._send_quiet = False
        if result < 0:
            self._send_error = self._send_error or -result
        if self._send_error:
            self._in_flight = b""
            self._queued.clear()
            self._queued_bytes = 0
        elif result < len(self._in_flight):
            self._start_send(memoryview(self._in_flight)[result:])
        elif self._queued:
            self._start_send(self._next_piece())
        sending = self._sending()  # and so this is called again when it is over
        if self._sender is not None and self._queued_bytes < SEND_QUEUE_BYTES_MAX:
            task, self._sender = self._sender, None
            trio.lowlevel.reschedule(task)
        if self._idle is not None and not sending:
            self._idle.set()

    def _next_piece(self) -> bytes | memoryview:
        if self._queued_bytes <= SEND_BYTES_MAX:
            piece = self._queued[0] if len(self._queued) == 1 else b"".join(self._queued)
            self._queued.clear()
            self._queued_bytes = 0
            return piece
        size, count = 0, 0
        while count < len(self._queued) and (count == 0 or size + len(self._queued[count]) <= SEND_BYTES_MAX):
            size += len(self._queued[count])
            count += 1
        piece = b"".join(self._queued[:count])
        del self._queued[:count]
        self._queued_bytes -= size
        return piece

    def _raise_unless_sendable(self) -> None:
        if self._closing or self._sending_ended:
            raise trio.ClosedResourceError("this stream is closed for sending")
        if self._send_error:
            raise trio.BrokenResourceError(os.strerror(self._send_error)) from OSError(
                self._send_error, os.strerror(self._send_error)
            )

    async def send_all(self, data: Buffer) -> None:
        """Queue bytes; waits while more than the bound is queued. What a cancelled call had queued is sent all the
        same.

        Raises `trio.BrokenResourceError` when this or an earlier send failed, `trio.ClosedResourceError`,
        `trio.BusyResourceError`.
        """
        if self._send_busy:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._send_busy = True
        try:
            self._unyielding += 1
            if self._unyielding < UNYIELDING_CALLS_MAX:
                await trio.lowlevel.checkpoint_if_cancelled()
            else:
                await self._checkpoint()
            if self._closing or self._sending_ended or self._send_error:
                self._raise_unless_sendable()
            piece = data if isinstance(data, bytes) else bytes(data)
            if not piece:
                return
            if not self._send_operation or not self._sending():
                self._start_send(piece)
                return
            self._queued.append(piece)
            self._queued_bytes += len(piece)
            if self._queued_bytes >= SEND_QUEUE_BYTES_MAX:
                await self._wait_sent_below()
        finally:
            self._send_busy = False

    async def _wait_sent_below(self) -> None:
        self._sender = trio.lowlevel.current_task()

        def abort(_: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
            self._sender = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._unyielding = 0
        await trio.lowlevel.wait_task_rescheduled(abort)
        self._raise_unless_sendable()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the queue is under its bound."""
        if self._send_busy:
            raise trio.BusyResourceError("another task is sending on this stream")
        self._send_busy = True
        try:
            await self._checkpoint()
            self._raise_unless_sendable()
            if self._queued_bytes >= SEND_QUEUE_BYTES_MAX:
                await self._wait_sent_below()
        finally:
            self._send_busy = False

    async def _flush(self) -> None:
        while self._sending() and not self._send_error:
            self._idle = trio.Event()
            await self._idle.wait()

    def _check_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()

    async def send_eof(self) -> None:
        """Finish sending what is queued and end that direction; receiving goes on."""
        if self._send_busy:
            raise trio.BusyResourceError("another task is sending on this stream")
        await trio.lowlevel.checkpoint()
        if self._sending_ended and not self._closing:
            return
        self._raise_unless_sendable()
        self._sending_ended = True
        await self._flush()
        if self._send_error:
            raise trio.BrokenResourceError(os.strerror(self._send_error))
        await self._ring.shutdown(self._fd, socket.SHUT_WR)

    async def aclose(self) -> None:
        """Flush the queue (given up when cancelled), then close. Tasks that use the stream get ClosedResourceError."""
        if self._fd < 0 or self._closing:
            await trio.lowlevel.checkpoint()
            return
        self._closing = True
        for task in (self._receiver, self._sender):
            if task is not None:
                trio.lowlevel.reschedule(
                    task, outcome.Error(trio.ClosedResourceError("another task closed this stream"))
                )
        self._receiver = self._sender = None
        try:
            await self._flush()
        finally:
            with trio.CancelScope(shield=True):
                await self._release()

    async def _release(self) -> None:
        if self._sending() or self._receive_operation:
            self._queued.clear()
            self._queued_bytes = 0
            self._send_error = self._send_error or errno.ECANCELED
            _shutdown_nowait(self._fd)
            for operation in (self._receive_operation, self._send_operation):
                if operation:
                    self._ring.cancel(operation)
            while self._receive_operation or self._send_operation:
                self._idle = trio.Event()
                await self._idle.wait()
        self._ring.drop_callback(self._send_token)
        fd, self._fd = self._fd, -1
        self._chunks.clear()
        await self._ring.close_fd(fd)


def _shutdown_nowait(fd: int) -> None:
    """Send the end of the stream at once. A peer that has gone already is what we want."""
    borrowed = socket.socket(fileno=fd)
    try:
        borrowed.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    finally:
        borrowed.detach()


class RingListener(trio.abc.Listener[RingStream]):
    """A listening socket, owned; any number of tasks may accept."""

    def __init__(self, ring: Ring, listening: socket.socket) -> None:
        listening.setblocking(False)  # noqa: FBT003 (positional in Python)
        self._ring = ring
        self.socket = listening
        self._accepting = 0
        self._closing = False
        self._unused = trio.Event()

    async def accept(self) -> RingStream:
        """Wait for a connection. `OSError` when the kernel has none; `trio.ClosedResourceError` when the listener is
        closed.
        """
        if self._closing:
            raise trio.ClosedResourceError("this listener is closed")
        self._accepting += 1
        try:
            fd = await self._ring.accept(self.socket.fileno())
        except OSError:
            if self._closing:
                raise trio.ClosedResourceError("another task closed this listener") from None
            raise
        finally:
            self._accepting -= 1
            if not self._accepting:
                self._unused.set()
        return RingStream(self._ring, socket.socket(fileno=fd))

    async def aclose(self) -> None:
        """Stop listening: tasks that accept get ClosedResourceError."""
        self._closing = True
        if self._accepting:
            _shutdown_nowait(self.socket.fileno())
            self._unused = trio.Event()
            with trio.CancelScope(shield=True):
                await self._unused.wait()
        self.socket.close()
        await trio.lowlevel.checkpoint()


async def connect_stream(ring: Ring, family: int, address: str | tuple[str, int]) -> RingStream:
    """Connect to a Unix path (`AF_UNIX`) or a numeric host and port. `OSError` when it fails."""
    connecting = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connecting.setblocking(False)  # noqa: FBT003 (positional in Python)
        await ring.connect(connecting.fileno(), packed_address(family, address))
    except BaseException:
        connecting.close()
        raise
    return RingStream(ring, connecting)
