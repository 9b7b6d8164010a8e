"""The network between simulated nodes: connections as TCP's, datagrams as UDP's (`surroundings.Network`).

A connection keeps order and loses nothing. What cannot go a way now waits (the kernel sends it again); who has sent it
gives the connection up when it was not acknowledged for `UNACKNOWLEDGED_S`, and the other end hears of that only where
the way is open. Who is dialled where nothing answers waits, and is refused where only the process is gone.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from itertools import count
from types import SimpleNamespace

import trio

from tpc_broker.runtime.cluster.surroundings import UNACKNOWLEDGED_MS_MAX

UNACKNOWLEDGED_S = UNACKNOWLEDGED_MS_MAX / 1000
TCP, UDP = "tcp", "udp"


class Wire:
    """What will happen, by time, in no node's task."""

    def __init__(self):
        self._planned, self._numbers = [], count()
        self._more = trio.Event()

    def at(self, when_s, action):
        heapq.heappush(self._planned, (when_s, next(self._numbers), action))
        self._more.set()

    def after(self, delay_s, action):
        self.at(trio.current_time() + delay_s, action)

    async def run(self):
        while True:
            self._more = trio.Event()
            until = self._planned[0][0] if self._planned else float("inf")
            with trio.move_on_at(until):
                await self._more.wait()
            while self._planned and self._planned[0][0] <= trio.current_time():
                heapq.heappop(self._planned)[2]()


class SimulatedNetwork:
    """Between nodes, by their hosts' names. `loss`, `doubled`: of datagrams; a lost segment of TCP comes later."""

    def __init__(self, wire, chance):
        self.wire, self._chance = wire, chance
        self.delay_s_max, self.loss, self.doubled = 0.002, 0.0, 0.0
        self._blocked: set[tuple[str, str, str]] = set()
        self._hosts: dict[str, _Host] = {}
        self._stuck: list[_End] = []

    def host(self, name):
        return self._hosts.setdefault(name, _Host(self, name))

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
        delay_s = self._chance.uniform(0.0001, self.delay_s_max)
        while self._chance.random() < self.loss:
            delay_s += 0.2
        return delay_s

    def send_datagram(self, source, target, data):
        if self._chance.random() < self.loss:
            return
        for _copy in range(2 if self._chance.random() < self.doubled else 1):
            delay_s = self._chance.uniform(0.0001, self.delay_s_max)
            self.wire.after(delay_s, lambda: self._datagram_came(source, target, data))

    def _datagram_came(self, source, target, data):
        host = self._hosts.get(target[0])
        if host is not None and self.is_open(source[0], target[0], UDP):
            host.take_datagram(target[1], data, source)


class _Host:
    """A machine, with a process for each of its cores. `is_silent`: it is gone itself."""

    def __init__(self, network, name):
        self.network, self.name = network, name
        self.is_silent = False
        self.listening: dict[int, _Listening] = {}
        self.bound: dict[int, _Datagrams] = {}
        self.ends: set[_End] = set()

    def take_datagram(self, port, data, source):
        if port in self.bound:
            self.bound[port].put(data, source)

    def end_process(self, core, *, is_silent=False):
        """Whatever it had is gone; with `is_silent`, of a machine that ended with it, nobody is told."""
        self.listening = {port: one for port, one in self.listening.items() if one.core != core}
        self.bound = {port: one for port, one in self.bound.items() if one.core != core}
        ends = sorted((end for end in self.ends if end.core == core), key=lambda end: end.number)
        self.ends.difference_update(ends)
        for end in ends:
            end.is_gone = True
            if not is_silent:
                end.reset_other()

    def come_back(self):
        self.is_silent = False
        self.network._go_on()


class _End:
    """One end of a connection, as the `trio.SocketStream` that it stands for."""

    numbers = count()

    def __init__(self, here, there, core):
        self.number = next(self.numbers)
        self.here, self.there, self.core = here, there, core
        self.other: _End
        self.is_gone = self.is_broken = self.is_ended = False
        self._outgoing: deque[tuple[float, bytes | None]] = deque()
        self._inbox: deque[bytes] = deque()
        self._came = trio.Event()
        self.socket = SimpleNamespace(getpeername=lambda: (there.name, 0), detach=lambda: here.network.detach(self))
        self.on_news = lambda: None
        here.ends.add(self)

    # -- the stream ----------------------------------------------------------------------------------------------------

    async def send_all(self, data):
        await trio.lowlevel.checkpoint()
        if self.is_broken or self.is_gone:
            raise trio.BrokenResourceError
        self._put(bytes(data))

    async def receive_some(self, bytes_max):
        await trio.lowlevel.checkpoint()
        while not self._inbox:
            if self.is_broken or self.is_gone:
                raise trio.BrokenResourceError
            if self.is_ended:
                return b""
            await self._came.wait()
        data = self._inbox.popleft()
        if len(data) > bytes_max:
            self._inbox.appendleft(data[bytes_max:])
        return data[:bytes_max]

    async def aclose(self):
        if not self.is_gone and not self.is_broken:
            self._put(None)
        self.is_broken = True
        self.here.ends.discard(self)
        await trio.lowlevel.checkpoint()

    # -- on the way ----------------------------------------------------------------------------------------------------

    def _put(self, data):
        network = self.here.network
        when_s = trio.current_time() + network.delay_s()
        if self._outgoing:
            when_s = max(when_s, self._outgoing[-1][0])
        self._outgoing.append((when_s, data))
        network.wire.at(when_s, self.deliver)

    def deliver(self):
        """What is due, as far as the way is open."""
        network, now_s = self.here.network, trio.current_time()
        while self._outgoing and self._outgoing[0][0] <= now_s and not self.is_gone:
            due_s, data = self._outgoing[0]
            if not network.is_open(self.here.name, self.there.name):
                network.stuck(self)
                network.wire.at(max(now_s, due_s + UNACKNOWLEDGED_S), partial(self._look_at, due_s))
                return
            self._outgoing.popleft()
            if self.other.is_gone or self.other.is_broken:  # nobody there knows of it any more, and that is said
                self._break()
                return
            self.other.take(data)
            if not network.is_open(self.there.name, self.here.name):
                network.wire.at(now_s + UNACKNOWLEDGED_S, self._look_whether_acknowledged)

    def _look_at(self, due_s):
        if self._outgoing and self._outgoing[0][0] <= due_s:
            self._outgoing.clear()
            self._break()

    def _look_whether_acknowledged(self):
        if not self.here.network.is_open(self.there.name, self.here.name):
            self._break()

    def take(self, data):
        if data is None:
            self.is_ended = True
        else:
            self._inbox.append(data)
        self._wake()

    def _break(self):
        """This end gives it up."""
        if not self.is_broken and not self.is_gone:
            self.is_broken = True
            self._wake()
            self.reset_other()

    def reset_other(self):
        network = self.here.network
        if network.is_open(self.here.name, self.there.name):
            network.wire.after(network.delay_s(), self.other.was_reset)

    def was_reset(self):
        self.is_broken = True
        self._wake()

    def _wake(self):
        self.on_news()
        self._came.set()
        self._came = trio.Event()


class _Listening:
    def __init__(self, core):
        self.core = core
        self._waiting: deque[_End] = deque()
        self._came = trio.Event()

    def put(self, end):
        self._waiting.append(end)
        self._came.set()

    async def accept(self):
        while not self._waiting:
            self._came = trio.Event()
            await self._came.wait()
        await trio.lowlevel.checkpoint()
        return self._waiting.popleft()


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

    def __init__(self, network, name, core):
        self._network, self._host, self._core = network, network.host(name), core
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
        if port not in there.listening:
            cause = ExceptionGroup("nobody listens", [ConnectionRefusedError()])
            raise OSError(f"{host}:{port} refuses") from cause
        end, other = _End(here, there, self._core), _End(there, here, there.listening[port].core)
        end.other, other.other = other, end
        there.listening[port].put(other)
        return end
