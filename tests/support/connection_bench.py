"""A core with connections, turned by hand, and the client side of a socket: what the tests of connections share."""

import errno
import socket
import struct
from collections import deque

from tests.support.bench_world import current_world
from tests.support.waiting import PATIENCE_S, patiently
from tpc_broker.engine.connections import Connections


def header_of(api_key=3, api_version=1, correlation_id=1, client_id=None):
    raw = client_id.encode() if client_id is not None else b""
    length = len(raw) if client_id is not None else -1
    return struct.pack(">hhih", api_key, api_version, correlation_id, length) + raw


def frame_of(body, **header):
    payload = header_of(**header) + body
    return struct.pack(">i", len(payload)) + payload


def leave(client, *, resets=False):
    """Close a client's socket; `resets`: as the kernel does for a process killed with something left to read."""
    if resets:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def name_of(client):
    host, port = client.getsockname()
    return f"{host}:{port}"


def read_exactly(client, length):
    data = bytearray()
    while len(data) < length:
        chunk = client.recv(length - len(data))
        if not chunk:
            raise EOFError(f"{len(data)} of {length} bytes")
        data += chunk
    return bytes(data)


class Bench:
    """One ring, one listener; every `turn` is one wait and the dispatch of its events."""

    def __init__(self, limits, entries=256):
        self.world = current_world()
        self.ring = self.world.make_ring(entries)
        try:
            self.connections = Connections(self.ring, limits)
        except BaseException:
            self.ring.close()
            raise
        self.listener = self.world.listen()
        self.address = self.listener.getsockname()
        self.connections.listen(self.listener.fileno())
        self.more_listeners = []
        self.requests, self.closed, self.opened, self.held = deque(), deque(), [], []
        self.clients = []
        self.on_request = self.requests.append
        self.on_closed = lambda *event: self.closed.append(event)
        # The tests replace on_request and on_closed of the bench, also later.
        self.connections.on_request = lambda request: self.on_request(request)  # noqa: PLW0108
        self.connections.on_opened = lambda *event: self.opened.append(event)
        self.connections.on_closed = lambda *event: self.on_closed(*event)  # noqa: PLW0108

    def turn(self, timeout_ms=10):
        count = self.ring.wait(timeout_ms * 1_000_000)
        if count > 0:
            self.ring.dispatch(count)
        return count

    def until(self, condition):
        for _ in patiently(lambda: f"did not come about: {self.connections.statistics()}"):
            if condition():
                break
            self.turn()

    def is_sent_without_a_deadline(self, receiver):
        """Whether `receiver` gets something while the ring waits without end, as a core does that has nothing else to
        do: what is sent only when a wait is over does not come.
        """
        return self.world.is_sent_without_a_deadline(self.ring, receiver)

    def listen(self):
        """One more listener; its address."""
        self.more_listeners.append(self.world.listen())
        self.connections.listen(self.more_listeners[-1].fileno())
        return self.more_listeners[-1].getsockname()

    def connect(self, address=None, *, wait=True):
        before = self.connections.statistics().opened
        client = self.world.connect(address or self.address)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.clients.append(client)
        if wait:
            self.until(lambda: self.connections.statistics().opened > before)
        return client

    def next_request(self):
        self.until(lambda: self.requests)
        return self.requests.popleft()

    def next_closed(self):
        self.until(lambda: self.closed)
        return self.closed.popleft()

    def feed(self, client, data, *, patient=True):
        """Send while turning; without patience, stop when the other side takes nothing for a while."""
        client.setblocking(False)
        view, refused = memoryview(data), 0
        while view and (patient or refused < 20):
            try:
                view = view[client.send(view[:262_144]) :]
                refused = 0
            except BlockingIOError:
                refused += 1
            self.turn(2)
        client.setblocking(True)

    def sent_until_it_comes(self, data):
        """By who comes again when it is cut off, as one is whom the machine keeps from sending for as long as may be
        stood still. Gives the request, and how often it was cut off.
        """
        times, client, position = 0, self.connect(), 0
        for _ in patiently("the request of who goes on sending is whole"):
            if self.requests:
                break
            client.setblocking(False)
            try:
                position += client.send(data[position : position + 262_144])
            except BlockingIOError:
                pass
            except ConnectionError:
                times, client, position = times + 1, self.connect(), 0
            self.turn(2)
        return self.next_request(), times

    def read(self, client, length):
        """Exactly so many bytes, turning meanwhile."""
        client.setblocking(False)
        data = bytearray()

        def complete():
            try:
                while len(data) < length:
                    chunk = client.recv(min(length - len(data), 1 << 20))
                    if not chunk:
                        raise EOFError(f"{len(data)} of {length} bytes")
                    data.extend(chunk)
            except BlockingIOError:
                return False
            return True

        self.until(complete)
        client.setblocking(True)
        return bytes(data)

    def read_frame(self, client):
        return self.read(client, int.from_bytes(self.read(client, 4)))

    def read_end(self, client):
        """Whether the connection ends without another byte."""
        try:
            self.read(client, 1)
        except EOFError:
            return True
        except OSError as error:
            return error.errno == errno.ECONNRESET
        return False

    def exchange(self, client, body=b"ping", answered=None):
        client.sendall(frame_of(body))
        if answered is None:
            request = self.next_request()
            assert bytes(request.body) == body
            self.connections.answer(request, b"pong")
            answered = b"pong"
        assert self.read_frame(client) == answered

    def forget_clients(self):
        for client in self.clients:
            client.close()
        self.clients.clear()

    def close(self):
        """Everything down, and nothing left: this is an assertion of every test."""
        self.forget_clients()
        self.requests.clear()
        self.held.clear()
        self.connections.stop_accepting()
        self.connections.close_all()
        self.until(lambda: self.connections.quiet)
        statistics = self.connections.statistics()
        assert statistics.opened == statistics.closed
        self.connections.free()
        self.ring.close(PATIENCE_S)
        for listener in (self.listener, *self.more_listeners):
            listener.close()
