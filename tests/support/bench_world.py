"""Where the benches of C live: on the kernel's rings and sockets, or on simulated ones (`simulated_ring`), where time
passes only when a ring has nothing else to do. Files are real in both.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import threading
import time

from tests.simulator.nodes_network import SimulatedNetwork, Wire
from tests.support.descriptors import open_descriptors
from tests.support.simulated_ring import (
    DESCRIPTOR_FIRST,
    FSYNC,
    READ,
    READV,
    WRITE,
    WRITEV,
    Device,
    SimulatedRing,
    SimulatedSystem,
)
from tests.support.simulated_sockets import UNACKNOWLEDGED_S
from tests.support.waiting import PATIENCE_S, let_pass
from tpc_broker._ring import lib
from tpc_broker.engine.ring import HOT_WORK_MAX, Ring

BACKLOG = 512
BUFFER_BYTES = 4 << 20
"""What a test sends at once without turning its ring."""
START_S = 1_000_000.0
WRITE_S_MAX = 0.002


class KernelWorld:
    make_ring, let_pass, socketpair = staticmethod(Ring), staticmethod(let_pass), staticmethod(socket.socketpair)
    monotonic_ns, open_descriptors = staticmethod(time.monotonic_ns), staticmethod(open_descriptors)
    is_simulated = False

    def let_arrive(self):
        """What was sent over loopback is there."""

    def listen(self):
        return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)

    def connect(self, address):
        return socket.create_connection(address)

    def is_sent_without_a_deadline(self, ring, receiver):
        heard = []

        def listen():
            heard.append(bool(select.select([receiver], [], [], PATIENCE_S / 4)[0]))
            ring.wake()

        listener = threading.Thread(target=listen)
        listener.start()
        while not heard:
            count = ring.wait(-1)
            if count > 0:
                ring.dispatch(count)
        listener.join()
        return heard[0]


class SimulatedWorld:
    is_simulated = True

    def __init__(self, seed=1, buffer_bytes=BUFFER_BYTES):
        self.now_s = START_S
        self.chance = random.Random(seed)
        self.wire = Wire(lambda: self.now_s)
        self.network = SimulatedNetwork(self.wire, self.chance)
        self.network.buffer_bytes = lambda: buffer_bytes
        self.system = self.network.system = _System(self)
        self.host = self.network.host("here")
        self.host.address = "127.0.0.1"
        self._port = 40_000

    def monotonic_ns(self):
        return round(self.now_s * 1e9)

    def make_ring(self, entries):
        return _SteppedRing(self, entries)

    def step(self, until_s=float("inf")):
        """To what happens next. AssertionError: that is nothing, for ever."""
        next_s = min(self.wire.next_s, until_s)
        assert next_s != float("inf"), "nothing will ever happen any more"
        self.now_s = max(self.now_s, next_s)
        self.wire.do_what_is_due()

    def let_pass(self, seconds):
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.step(until_s)

    def turn(self, rings, seconds):
        """So much time passes, in which these rings have their turns whenever they want them."""
        until_s = self.now_s + seconds
        while True:
            counts = [(ring, ring.wait_once()) for ring in rings]
            for ring, count in counts:
                if count > 0:
                    ring.dispatch(count)
            if any(count > 0 for _ring, count in counts):
                continue
            if self.now_s >= until_s:
                return
            self.step(min([until_s, *(ring.wanted_s() for ring in rings)]))

    def open_descriptors(self):
        return self.system.descriptors()

    def let_arrive(self):
        self.let_pass(self.network.delay_s_max)

    def listen(self):
        self._port += 1
        listener = self.host.listen(self._port, None)
        return _ListeningSocket(self.system.open(listener), ("127.0.0.1", self._port), self)

    def connect(self, address):
        return SimulatedSocket(self, self.host.connect(self.host, address[1], "client", None))

    def socketpair(self):
        one, other = self.connected(self.host, self.host, None)
        one.end.address = other.end.address = None
        return one, other

    def connected(self, here, there, gives_up_s=UNACKNOWLEDGED_S):
        """The two ends of a new connection between hosts."""
        listener = there.listen(0, None)
        end = here.connect(there, 0, None, gives_up_s)
        return SimulatedSocket(self, end), SimulatedSocket(self, listener.take())

    def is_sent_without_a_deadline(self, ring, receiver):
        """For ever is until nothing happens any more, or a minute."""
        until_s = self.now_s + 60
        while not receiver.end.ready() & select.POLLIN and self.now_s < until_s:
            ring.wait_once()
            self.step(until_s)
        return bool(receiver.end.ready() & select.POLLIN)

    def __enter__(self):
        self.system.__enter__()
        _worlds.append(self)
        return self

    def __exit__(self, *what):
        _worlds.remove(self)
        self.system.__exit__(*what)


_worlds: list[KernelWorld | SimulatedWorld] = [KernelWorld()]


def current_world():
    """The simulated one that is open; or else the kernel's."""
    return _worlds[-1]


class _System(SimulatedSystem):
    def __init__(self, world):
        super().__init__(world.monotonic_ns, lambda: round(world.now_s * 1000), world.chance)
        self._world = world

    def device(self, descriptor):
        return super().device(descriptor) or (_File(descriptor, self._world) if descriptor < DESCRIPTOR_FIRST else None)

    def _duplicate(self, descriptor):
        return os.dup(descriptor) if descriptor < DESCRIPTOR_FIRST else super()._duplicate(descriptor)

    def _close(self, descriptor):
        if descriptor >= DESCRIPTOR_FIRST:
            return super()._close(descriptor)
        os.close(descriptor)
        return 0


class _File(Device):
    """The kernel's. What it does takes a while."""

    def __init__(self, descriptor, world):
        self._descriptor, self._world = descriptor, world

    def begin(self, operation):
        wire = self._world.wire
        wire.after(self._world.chance.uniform(0, WRITE_S_MAX), lambda: self._carry_out(operation))

    def _carry_out(self, operation):
        if operation.is_under_way:
            try:
                operation.complete(self._result(operation))
            except OSError as error:
                operation.complete(-error.errno)

    def _result(self, operation):
        if operation.opcode == FSYNC:
            os.fdatasync(self._descriptor)
            return 0
        parts = operation.vector() if operation.opcode in {READV, WRITEV} else [operation.memory()]
        if operation.opcode in {WRITE, WRITEV}:
            return os.pwritev(self._descriptor, parts, operation.offset, operation.operation_flags)
        if operation.opcode in {READ, READV}:
            return os.preadv(self._descriptor, parts, operation.offset)
        return -errno.EINVAL


class _SteppedRing(SimulatedRing):
    """Its wait is the world's time."""

    def __init__(self, world, entries):
        super().__init__(world.system, entries)
        self._world = world

    def wait_once(self):
        """What there is to do now; as `wait`."""
        while True:
            count = super().wait(0)
            if self._system.failures:
                raise self._system.failures[0]
            if not self._begin_submitted() or count != -errno.ETIME:
                return count

    def wait(self, timeout_ns, _work_max=HOT_WORK_MAX):
        world = self._world
        until_s = float("inf") if timeout_ns < 0 else world.now_s + timeout_ns / 1e9
        world.wire.do_what_is_due()
        while (count := self.wait_once()) == -errno.ETIME and world.now_s < until_s:
            world.step(min(until_s, self.wanted_s()))
        return count

    def wanted_s(self):
        """When it wants its next turn."""
        wanted_ns = lib.tpc_simulated_until(self.pointer)
        return float("inf") if wanted_ns == 2**63 - 1 else wanted_ns / 1e9


class _ListeningSocket:
    def __init__(self, descriptor, address, world):
        self._descriptor, self._address, self._world = descriptor, address, world

    def fileno(self):
        return self._descriptor

    def getsockname(self):
        return self._address

    def close(self):
        self._world.host.listening.pop(self._address[1], None)
        self._world.system.close(self._descriptor)


class SimulatedSocket:
    """A `socket.socket`. A call that blocks lets time pass, but no ring has its turn meanwhile."""

    def __init__(self, world, end):
        self._world, self.end = world, end
        self._descriptor = world.system.open(end)
        self._is_blocking = True

    def _call(self, call, *arguments, blocks=True):
        while True:
            self._world.wire.do_what_is_due()
            found = call(*arguments)
            if not isinstance(found, int) or found >= 0:
                return found
            if found != -errno.EAGAIN or not (self._is_blocking and blocks):
                raise OSError(-found, os.strerror(-found))
            self._world.step()

    def setblocking(self, is_blocking):
        self._is_blocking = is_blocking

    def settimeout(self, _seconds):
        self._is_blocking = True

    def setsockopt(self, level, name, value):
        if (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            assert value[:4] == (1).to_bytes(4, "little")
            self.end.abandon()

    def send(self, data, _flags=0):
        """As much as there is room for."""
        sent = self._call(self.end.send, data)
        while sent < len(data) and (more := self.end.send(data[sent:])) > 0:
            sent += more
        return sent

    def sendall(self, data):
        left = memoryview(data)
        while left:
            left = left[self.send(left) :]

    def recv(self, size, flags=0):
        data = self._call(self.end.receive, size, blocks=not flags & socket.MSG_DONTWAIT)
        while flags & socket.MSG_WAITALL and len(data) < size and (more := self.recv(size - len(data))):
            data += more
        return data

    def shutdown(self, how):
        if how == socket.SHUT_WR:
            self.end.end_sending()
        else:
            self.end.shut()

    def getsockname(self):
        return self.end.address

    def getpeername(self):
        return self.end.other.address

    def fileno(self):
        return self._descriptor

    def detach(self):
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def close(self):
        if self._descriptor >= 0:
            self._world.system.close(self.detach())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
