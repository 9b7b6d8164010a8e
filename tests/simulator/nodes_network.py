"""The network between simulated nodes: connections as TCP's, datagrams as UDP's (`surroundings.Network`).

A connection (`tests/support/simulated_sockets.py`) keeps order and loses nothing. What cannot go a way now waits (the
kernel sends it again); who has sent it gives the connection up when it was not acknowledged for `UNACKNOWLEDGED_S`, and
the other end hears of that when it sends something. Who is dialled where nothing answers waits, and is refused where
only the process is gone.
"""

from __future__ import annotations

import errno
import heapq
import os
import select
from collections import deque
from itertools import count
from typing import TYPE_CHECKING

import trio

from tests.support.simulated_sockets import UNACKNOWLEDGED_S, Listener, Socket

if TYPE_CHECKING:
    from tests.support.simulated_ring import SimulatedSystem

TCP, UDP = "tcp", "udp"
BUFFER_BYTES = (16_384, 65_536, 262_144)
RECEIVE_BYTES = 65_536


class Wire:
    """What will happen, by time, in no node's task. `now_s`: trio's time, or a test's own."""

    def __init__(self, now_s=trio.current_time):
        self.now_s = now_s
        self._planned, self._numbers = [], count()
        self._more, self._until_s = trio.Event(), float("inf")

    def at(self, when_s, action):
        heapq.heappush(self._planned, (when_s, next(self._numbers), action))
        if when_s < self._until_s:
            self._more.set()

    def after(self, delay_s, action):
        self.at(self.now_s() + delay_s, action)

    @property
    def next_s(self):
        """When something happens next."""
        return self._planned[0][0] if self._planned else float("inf")

    def do_what_is_due(self):
        while self.next_s <= self.now_s():
            heapq.heappop(self._planned)[2]()

    async def run(self):
        while True:
            self._more, self._until_s = trio.Event(), self.next_s
            with trio.move_on_at(self._until_s):
                await self._more.wait()
            self._until_s = float("-inf")
            self.do_what_is_due()


class SimulatedNetwork:
    """Between nodes, by their hosts' names. `loss`, `doubled`: of datagrams; a lost segment of TCP comes later."""

    def __init__(self, wire, chance):
        self.wire, self.chance = wire, chance
        self.delay_s_max, self.loss, self.doubled = 0.002, 0.0, 0.0
        self.system: SimulatedSystem | None = None
        """Whose rings have sockets of this network."""
        self._blocked: set[tuple[str, str, str]] = set()
        self._hosts: dict[str, _Host] = {}
        self._stuck: list[Socket] = []

    def host(self, name):
        if name not in self._hosts:
            self._hosts[name] = _Host(self, name, f"10.0.0.{len(self._hosts) + 1}")
        return self._hosts[name]

    def block(self, source, target, kinds=(TCP, UDP)):
        self._blocked.update((source, target, kind) for kind in kinds)

    def unblock(self, source, target):
        self._blocked.difference_update((source, target, kind) for kind in (TCP, UDP))
        self._go_on()

    def heal(self):
        self._blocked.clear()
        self.delay_s_max, self.loss, self.doubled = 0.002, 0.0, 0.0
        self._go_on()

    def is_open(self, source, target, kind=TCP):
        return (source, target, kind) not in self._blocked and not self._hosts[target].is_silent

    def _go_on(self):
        stuck, self._stuck = self._stuck, []
        for end in stuck:
            end.deliver()

    def stuck(self, end):
        if end not in self._stuck:
            self._stuck.append(end)

    def delay_s(self):
        delay_s = self.chance.uniform(0.0001, self.delay_s_max)
        while self.chance.random() < self.loss:
            delay_s += 0.2
        return delay_s

    def buffer_bytes(self):
        """Of a socket, for each direction."""
        return self.chance.choice(BUFFER_BYTES)

    def send_datagram(self, source, target, data):
        if self.chance.random() < self.loss:
            return
        for _copy in range(2 if self.chance.random() < self.doubled else 1):
            delay_s = self.chance.uniform(0.0001, self.delay_s_max)
            self.wire.after(delay_s, lambda: self._datagram_came(source, target, data))

    def _datagram_came(self, source, target, data):
        host = self._hosts.get(target[0])
        if host is not None and self.is_open(source[0], target[0], UDP):
            host.take_datagram(target[1], data, source)


class _Host:
    """A machine, with a process for each of its cores. `is_silent`: it is gone itself."""

    def __init__(self, network, name, address):
        self.network, self.name, self.address = network, name, address
        self.is_silent = False
        self.listening: dict[int, _Listening] = {}
        self.bound: dict[int, _Datagrams] = {}
        self.ends: set[Socket] = set()
        self._ports = count(30_000)

    def take_datagram(self, port, data, source):
        if port in self.bound:
            self.bound[port].put(data, source)

    def listen(self, port, core):
        """The device of a socket that listens, for a ring of that core."""
        self.listening[port] = listener = Listener(core, self.network.system)
        return listener

    def connect(self, there, port, core, gives_up_s=UNACKNOWLEDGED_S):
        """A new connection to a port of another host. OSError: nobody listens."""
        listening = there.listening.get(port)
        if listening is None:
            cause = ExceptionGroup("nobody listens", [ConnectionRefusedError()])
            raise OSError(f"{there.name}:{port} refuses") from cause
        ends = (
            Socket(self, there, core, next(self._ports), gives_up_s),
            Socket(there, self, listening.core, port, gives_up_s),
        )
        ends[0].other, ends[1].other = ends[1], ends[0]
        listening.put(ends[1])
        return ends[0]

    def end_process(self, core, *, is_silent=False):
        """Whatever it had is gone; with `is_silent`, of a machine that ended with it, nobody is told."""
        listening = [port for port, one in self.listening.items() if one.core == core]
        for port in listening:
            self._forget(self.listening.pop(port)).drop(is_silent=is_silent)
        self.bound = {port: one for port, one in self.bound.items() if one.core != core}
        for end in sorted((end for end in self.ends if end.core == core), key=lambda end: end.number):
            self._forget(end).end(is_silent=is_silent)

    def _forget(self, device):
        if self.network.system is not None:
            self.network.system.forget(device)
        return device

    def come_back(self):
        self.is_silent = False
        self.network._go_on()


class SimulatedStream:
    """One end of a connection, as the `trio.SocketStream` that it stands for."""

    def __init__(self, end):
        self._end = end
        self._error: Exception | None = None
        self.socket = _SocketFace(self)

    async def _call(self, events, call, *arguments):
        """As soon as it would not block."""
        await trio.lowlevel.checkpoint()
        while self._error is None:
            found = call(*arguments)
            if found == -errno.EAGAIN:
                await self._ready(events)
            elif isinstance(found, int) and found < 0:
                self._error = trio.BrokenResourceError(os.strerror(-found))
            else:
                return found
        raise self._error

    async def _ready(self, events):
        ready = trio.Event()
        waiting = self._end.when_ready(events, lambda _ready: ready.set())
        try:
            await ready.wait()
        finally:
            if self._end is not None:
                self._end.forget(waiting)

    async def send_all(self, data):
        left = memoryview(data)
        while left:
            left = left[await self._call(select.POLLOUT, lambda: self._end.send(left)) :]  # noqa: B023

    async def wait_send_all_might_not_block(self):
        await trio.lowlevel.checkpoint()

    async def receive_some(self, bytes_max=RECEIVE_BYTES):
        return await self._call(select.POLLIN, lambda: self._end.receive(bytes_max or RECEIVE_BYTES))

    async def aclose(self):
        end = self.give_up_end()
        if end is not None:
            end.close()
        await trio.lowlevel.checkpoint()

    def give_up_end(self):
        """It is somebody else's; None: it was so before."""
        end, self._end = self._end, None
        self._error = self._error or trio.ClosedResourceError()
        return end


class _SocketFace:
    """What is asked of `trio.SocketStream.socket`."""

    def __init__(self, stream):
        self._stream, end = stream, stream._end
        self._name, self._system = end.there.name, end.here.network.system

    def getpeername(self):
        return self._name, 0

    def detach(self):
        end = self._stream.give_up_end()
        return -1 if end is None else self._system.open(end)


class _Listening(Listener):
    """Of a port whose connections are Python's."""

    def __init__(self, core):
        super().__init__(core)
        self._came_one = trio.Event()
        self.on_came = lambda: self._came_one.set()  # noqa: PLW0108 (another one each time)

    async def accept(self):
        while (end := self.take()) is None:
            self._came_one = trio.Event()
            await self._came_one.wait()
        await trio.lowlevel.checkpoint()
        return SimulatedStream(end)


class _Datagrams:
    def __init__(self, host, port, core):
        self._host, self._port, self.core = host, port, core
        self._waiting: deque[tuple[bytes, tuple[str, int]]] = deque()
        self._came = trio.Event()

    def put(self, data, source):
        self._waiting.append((data, source))
        self._came.set()

    async def receive(self, _bytes_max):
        while not self._waiting:
            self._came = trio.Event()
            await self._came.wait()
        await trio.lowlevel.checkpoint()
        return self._waiting.popleft()

    def receive_now(self, _bytes_max):
        return self._waiting.popleft() if self._waiting else None

    def send(self, target, data, _start_soon):
        if self._host.bound.get(self._port) is self:
            self._host.network.send_datagram((self._host.name, self._port), tuple(target), data)


class NodeNetwork:
    """`surroundings.Network` of one life of a core. Sockets are ports' numbers here."""

    def __init__(self, network, name, core, gives_up_s=UNACKNOWLEDGED_S):
        self._network, self._host, self._core, self._gives_up_s = network, network.host(name), core, gives_up_s
        self._is_over = False

    def end(self):
        self._is_over = True

    def accepting(self, port):
        return self._host.listening.setdefault(port, _Listening(self._core))

    def datagrams(self, port):
        return self._host.bound.setdefault(port, _Datagrams(self._host, port, self._core))

    async def dial(self, host, port):
        here, there, network = self._host, self._network.host(host), self._network
        if self._is_over:
            await trio.sleep_forever()
        await trio.sleep(2 * network.delay_s())
        while not (network.is_open(here.name, host) and network.is_open(host, here.name)):
            await trio.sleep(0.2)
        return SimulatedStream(here.connect(there, port, self._core, self._gives_up_s))
