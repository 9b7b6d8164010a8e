"""Stream sockets of simulated rings (`simulated_ring`): the two ends of a connection as TCP and the kernel have them.

A `Socket` is a device: C has its descriptor, Python a stream on it (`tests/simulator/nodes_network.py`), one after the
other as in production. What is between two hosts (`SimulatedNetwork` there) says how long a way takes, and whether it
is open. Buffers are bounded: what the other end has no room for waits here, and a send for which there is no room here
waits in the ring. Sends take a part of what they are given, and receives give a part of what has come, by chance.

A send copies its bytes when it is done, which may be later than it was begun. They may not change in between.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import deque
from contextlib import contextmanager
from functools import partial
from itertools import count
from types import SimpleNamespace
from unittest import mock

from tests.support.simulated_ring import ACCEPT, POLL_ADD, RECV, SEND, SENDMSG, Device
from tpc_broker.node.links import sealed_links
from tpc_broker.node.links.surroundings import UNACKNOWLEDGED_MS_MAX

UNACKNOWLEDGED_S = UNACKNOWLEDGED_MS_MAX / 1000
POLLIN, POLLOUT, POLLERR, POLLHUP = select.POLLIN, select.POLLOUT, select.POLLERR, select.POLLHUP
END, RESET = b"", bytearray()
"""Of what a socket sends, beside bytes: its end; and that it knows of no connection any more."""
SHORT, LATE = 0.2, 0.2
"""How often a call takes or gives a part only, and a send is carried out later than it was begun."""
LATE_S_MAX = 0.001


@contextmanager
def handed_over(system):
    """While it is the context, Python gives C descriptors of that `SimulatedSystem` (`sealed_links.Handed`)."""

    def close(descriptor):
        error = -system.close(descriptor)
        if error:
            raise OSError(error, os.strerror(error))

    calls = SimpleNamespace(close=close, set_blocking=lambda _descriptor, _blocking: None)
    with mock.patch.object(sealed_links, "os", calls):
        yield


def piece(chance, size):
    """How much of so many bytes, at least one."""
    return chance.randint(1, size) if chance.random() < SHORT else size


class Socket(Device):
    """One end of a connection, of core `core` of the host `here`; `other` is the other one. It lives on when whoever
    had it has closed it, or has ended, as long as there is something to be sent.

    It is given up when what it sends was not acknowledged for `gives_up_s`; None: never.
    """

    numbers = count()

    def __init__(self, here, there, core, port, gives_up_s=UNACKNOWLEDGED_S):
        self.number = next(self.numbers)
        self.here, self.there, self.core, self.gives_up_s = here, there, core, gives_up_s
        self.address = here.address, port
        """None: of a Unix socket."""
        self.other: Socket
        self.is_gone = False
        """Its host is; nobody hears of that."""
        self.is_over = False
        """It was reset or given up: there is no connection any more."""
        self.is_closed = self.is_shut = self.is_deaf = self.is_ended = False
        """By whoever had it; for sending, and for receiving, by this end; by the other one, behind what has come."""
        self.on_sent = lambda _data: None
        """Called with all bytes that leave it, one after the other."""
        self._error = 0
        """Told once."""
        self._is_abandoned = False
        self._outgoing: deque[tuple[float, bytes]] = deque()
        """By when it arrives at the earliest."""
        self._outgoing_bytes = self._inbox_bytes = 0
        self._buffer_bytes = here.network.buffer_bytes()
        self._stalled_since_s: float | None = None
        self._inbox: deque[bytes] = deque()
        self._waiting: list[tuple[int, object]] = []
        """For what, and who is called then."""
        self._sends: deque[tuple[object, bytes]] = deque()
        """Begun, and what they had then."""
        here.ends.add(self)

    @property
    def _chance(self):
        return self.here.network.chance

    # -- calls ---------------------------------------------------------------------------------------------------------

    def send(self, data, *, more=False):
        """How many bytes were taken; or -errno."""
        if self._error:
            return -self._take_error()
        if self.is_shut or self.is_over:
            return -errno.EPIPE
        room = self._buffer_bytes - self._outgoing_bytes
        if room <= 0:
            return -errno.EAGAIN
        taken = bytes(data[: piece(self._chance, min(room, len(data)))]) if data else b""
        if taken:
            self.on_sent(taken)
            self._put(taken)
        return len(taken)

    def receive(self, bytes_max):
        if not self._inbox:
            if self._error:
                return -self._take_error()
            return b"" if self.is_ended or self.is_deaf or self.is_over else -errno.EAGAIN
        size, parts = piece(self._chance, min(bytes_max, self._inbox_bytes)), []
        self._inbox_bytes -= size
        while size:
            part = self._inbox.popleft()
            if len(part) > size:
                self._inbox.appendleft(part[size:])
            parts.append(part[:size])
            size -= len(parts[-1])
        if self.other._stalled_since_s is not None:
            self.here.network.wire.after(self.here.network.delay_s(), self.other.deliver)
        return b"".join(parts)

    def _take_error(self):
        error, self._error = self._error, 0
        return error

    def shut(self):
        """Both ways; what was sent before arrives."""
        if self.is_over:
            return -errno.ENOTCONN
        self.is_deaf = True
        self.end_sending()
        return 0

    def abandon(self):
        self._is_abandoned = True
        return 0

    def peer(self):
        if self.other.address is None:
            return struct.pack("=H", socket.AF_UNIX)
        address = b"".join(int(part).to_bytes() for part in self.other.address[0].split("."))
        return struct.pack("=H", socket.AF_INET) + self.other.address[1].to_bytes(2) + address + bytes(8)

    def end_sending(self):
        """As shutdown(2) for writing."""
        if not self.is_shut and not self.is_over:
            self.is_shut = True
            self._put(END)
        self._changed()

    def close(self):
        """What was sent arrives; if something has come that nobody has taken, it is a reset, as of the kernel."""
        if self.is_closed:
            return
        self.is_closed = True
        if (self._inbox or self._is_abandoned) and not self.is_over:
            self.reset()
        else:
            self.end_sending()
        self._leave_if_done()

    def _leave_if_done(self):
        if self.is_over or (self.is_closed and not self._outgoing):
            self.here.ends.discard(self)

    def end(self, *, is_silent):
        """Whoever had it is gone at once, and hears nothing of what was under way; `is_silent`: and so is its host."""
        self._waiting.clear()
        self._sends.clear()
        if is_silent:
            self.is_gone = self.is_closed = True
            self.here.ends.discard(self)
        else:
            self.close()

    def reset(self):
        """The other end is told so behind what is on the way; what is not yet is lost."""
        on_the_way = () if self._stalled_since_s is not None else tuple(self._outgoing)
        self._is_over(0)
        self._outgoing.extend(on_the_way)
        self._put(RESET)

    def ready(self):
        """As poll(2)."""
        found = 0
        if self._inbox or self.is_ended or self.is_deaf or self.is_over or self._error:
            found |= POLLIN
        if self._outgoing_bytes < self._buffer_bytes or self.is_shut or self.is_over:
            found |= POLLOUT
        if self.is_over or (self.is_shut and self.is_ended):
            found |= POLLHUP
        return found | POLLERR if self._error else found

    def when_ready(self, events, action):
        """`action(what)` once, as soon as one of these is ready, or it is over. What `forget` takes."""
        waiting = events | POLLERR | POLLHUP, action
        self._waiting.append(waiting)
        self._changed()
        return waiting

    def forget(self, waiting):
        if waiting in self._waiting:
            self._waiting.remove(waiting)

    # -- entries of a ring ---------------------------------------------------------------------------------------------

    def begin(self, operation):
        if operation.opcode == POLL_ADD:
            self.when_ready(operation.poll_events, operation.complete)
        elif operation.opcode == RECV:
            self.when_ready(POLLIN, partial(self._received, operation, operation.complete))
        elif operation.opcode in {SEND, SENDMSG}:
            self._sends.append((operation, _bytes_of(operation)))
            if self._chance.random() < LATE:
                self.here.network.wire.after(self._chance.uniform(0, LATE_S_MAX), self._go_on_sending)
            else:
                self._go_on_sending()
        else:
            super().begin(operation)

    def cancel(self, operation):
        for waiting in self._waiting:
            action = waiting[1]
            if operation.complete in (action, *getattr(action, "args", ())):
                self._waiting.remove(waiting)
                return True
        found = next((one for one in self._sends if one[0] is operation), None)
        if found is not None:
            self._sends.remove(found)
        return found is not None

    def _received(self, operation, complete, _ready):
        found = self.receive(operation.length) if operation.is_under_way else 0
        if not isinstance(found, int):
            operation.memory()[: len(found)] = found
            found = len(found)
        complete(found)

    def _go_on_sending(self):
        while self._sends:
            operation, before = self._sends[0]
            if not operation.is_under_way:
                self._sends.popleft()
                continue
            data = _bytes_of(operation)
            assert data == before, f"{operation}: its bytes have changed while they were being sent"
            result = self.send(data)
            if result == -errno.EAGAIN:
                return
            self._sends.popleft()
            operation.complete(result)

    def _changed(self):
        """Whoever waits for what is there now goes on."""
        self._go_on_sending()
        found = self.ready()
        due = [one for one in self._waiting if one[0] & found]
        self._waiting = [one for one in self._waiting if not one[0] & found]
        for events, action in due:
            action(events & found)

    # -- on the way ----------------------------------------------------------------------------------------------------

    def _put(self, data):
        network = self.here.network
        when_s = network.wire.now_s() + network.delay_s()
        if self._outgoing:
            when_s = max(when_s, self._outgoing[-1][0])
        self._outgoing.append((when_s, data))
        self._outgoing_bytes += len(data)
        network.wire.at(when_s, self.deliver)

    def deliver(self):
        """What is due, as far as the way is open and the other end has room."""
        network, now_s = self.here.network, self.here.network.wire.now_s()
        while self._outgoing and self._outgoing[0][0] <= now_s and not self.is_gone:
            due_s, data = self._outgoing[0]
            is_open = network.is_open(self.here.name, self.there.name)
            if self.is_over and (not is_open or not self.other.has_room(data)):
                self._outgoing.clear()  # nobody sends it again
                return
            if not is_open:
                network.stuck(self)
            elif self.other.knows_nothing(data):
                self.was_reset()
                return
            if not is_open or not self.other.has_room(data):
                self._stall(now_s)
                return
            taken = self.other.take(data)
            self._stalled_since_s = None
            self._outgoing.popleft()
            self._outgoing_bytes -= taken
            if taken < len(data):
                self._outgoing.appendleft((due_s, data[taken:]))
            self._leave_if_done()
            if not network.is_open(self.there.name, self.here.name) and self.gives_up_s is not None:
                network.wire.at(now_s + self.gives_up_s, self._look_whether_acknowledged)
            self._changed()

    def knows_nothing(self, data):
        """Whether what comes is answered by a reset."""
        return data is not RESET and (self.is_gone or self.is_over or (self.is_closed and data is not END))

    def has_room(self, data):
        return not data or self._inbox_bytes < self._buffer_bytes

    def take(self, data):
        """How many bytes there is room for, which are taken."""
        if data is RESET:
            self.was_reset()
        elif data is END:
            self.is_ended = True
        else:
            data = data[: self._buffer_bytes - self._inbox_bytes]
            self._inbox.append(data)
            self._inbox_bytes += len(data)
        self._changed()
        return len(data)

    def _stall(self, now_s):
        if self._stalled_since_s is None:
            self._stalled_since_s = now_s
            if self.gives_up_s is not None:
                self.here.network.wire.at(now_s + self.gives_up_s, partial(self._look_whether_stalled, now_s))

    def _look_whether_stalled(self, since_s):
        if self._stalled_since_s == since_s:
            self._is_over(errno.ETIMEDOUT)  # the kernel tells nobody: the other end finds out when it sends

    def _look_whether_acknowledged(self):
        network = self.here.network
        if not network.is_open(self.there.name, self.here.name):
            self._is_over(errno.ETIMEDOUT)

    def _is_over(self, error):
        if not self.is_over:
            self.is_over = True
            self._error = error
            self._outgoing.clear()
            self._outgoing_bytes, self._stalled_since_s = 0, None
            self._leave_if_done()
            self._changed()

    def was_reset(self):
        if not self.is_gone:
            self._is_over(errno.EPIPE if self.is_ended else errno.ECONNRESET)


class Listener(Device):
    """Of a core's port. Who comes is accepted by an entry of a ring, with a descriptor, or by `take`."""

    def __init__(self, core, system=None):
        """`system`: the `SimulatedSystem` that gives descriptors."""
        self.core, self._system = core, system
        self._came: deque[Socket] = deque()
        self._accepts: deque[object] = deque()
        self.on_came = lambda: None

    def put(self, end):
        self._came.append(end)
        self._go_on()
        self.on_came()

    def take(self):
        """None: nobody has come."""
        return self._came.popleft() if self._came else None

    def begin(self, operation):
        if operation.opcode != ACCEPT:
            super().begin(operation)
            return
        self._accepts.append(operation)
        self._go_on()

    def cancel(self, operation):
        if operation not in self._accepts:
            return False
        self._accepts.remove(operation)
        return True

    def _go_on(self):
        while self._came and self._accepts:
            self._accepts.popleft().complete(self._system.open(self._came.popleft()))

    def close(self):
        """Who was not accepted is reset."""
        self.drop(is_silent=False)

    def drop(self, *, is_silent):
        """Its process has ended; `is_silent`: with its host."""
        self._accepts.clear()
        while self._came:
            end = self._came.popleft()
            if is_silent:
                end.end(is_silent=True)
            else:
                end.reset()


def _bytes_of(operation):
    """What a send is to take, now."""
    if operation.opcode == SEND:
        return bytes(operation.memory())
    return b"".join(operation.vector())
