"""Random clients against a random broker: each client reads its answers in order, and nothing is left behind.

`--seed` replays the decisions (the kernel's timing is its own).
"""

import contextlib
import socket
from random import Random

import pytest

from tests.support.backends import on_io_uring
from tests.support.connection_bench import Bench, frame_of, leave
from tpc_broker.engine.connections import CloseReason, CloseWhen, ConnectionLimits

STEPS = 3000
LIMITS = ConnectionLimits(
    request_bytes_max=300_000,
    pipelined_requests_max=8,
    receive_share_bytes=400_000,
    zero_copy_bytes_min=50_000,
    zero_copy_local=True,
    assembly_stall_ms_max=50,
    receive_buffers_count=16,
    receive_buffer_bytes=2_048,
    budget_bytes=1_000_000,
)


def answer_to(number, sizes):
    return b"%08d" % number + bytes([number & 255]) * sizes[number % len(sizes)]


class Client:
    """Sends numbered requests in random pieces; checks that the answers are those numbers, in order."""

    def __init__(self, bench, random):
        self.random = random
        self.socket = socket.create_connection(bench.address)
        self.socket.setblocking(False)
        self.number = self.expected = 0
        self.outgoing, self.incoming = bytearray(), bytearray()
        self.gone = False

    def send(self):
        if len(self.outgoing) < 600_000:
            size = self.random.choice([0, 5, 100, 3_000, 150_000])
            self.outgoing += frame_of(b"%08d" % self.number + b"b" * size)
            self.number += 1
        with contextlib.suppress(BlockingIOError):
            sent = self.socket.send(self.outgoing[: self.random.choice([1, 50, 2_000, 200_000])])
            del self.outgoing[:sent]

    def receive(self, sizes):
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(self.random.choice([10, 1_000, 1_000_000]))
            self.gone = not data
            self.incoming += data
        while len(self.incoming) >= 4 and len(self.incoming) >= 4 + int.from_bytes(self.incoming[:4]):
            length = int.from_bytes(self.incoming[:4])
            answer = bytes(self.incoming[4 : 4 + length])
            del self.incoming[: 4 + length]
            while answer != answer_to(self.expected, sizes):
                assert self.expected % 7 == 3, f"answer {answer[:8]!r} instead of {self.expected}"
                self.expected += 1  # one of those that are not answered
            self.expected += 1

    def leave(self):
        leave(self.socket, resets=self.random.random() < 0.3)


def respond(bench, random, sizes, request):
    number = int(bytes(request.body[:8]))
    if number % 7 == 3:
        bench.connections.answer_none(request)
        return
    answer = answer_to(number, sizes)
    frame = bench.connections.new_frame(len(answer))
    if frame is None or random.random() < 0.5:
        bench.connections.answer(request, answer)
    else:
        frame.view[:] = answer
        cut = random.randrange(len(answer))
        head, tail = frame.slice(0, cut), frame.slice(cut + 1, len(answer) - cut - 1)
        bench.connections.answer_frames(request, head, answer[cut : cut + 1], tail)


def step(bench, random, sizes, clients):
    if len(clients) < 20 and random.random() < 0.1:
        clients.append(Client(bench, random))
    for client in random.sample(clients, min(4, len(clients))):
        try:
            random.choice([client.send, client.send, lambda client=client: client.receive(sizes)])()
        except ConnectionError:
            client.gone = True
        if client.gone or random.random() < 0.005:
            client.leave()
            clients.remove(client)
    bench.turn(random.choice([0, 0, 0, 1]))
    while bench.requests and random.random() < 0.8:
        bench.requests.rotate(random.randrange(4))
        request = bench.requests.pop()
        if random.random() < 0.005:
            bench.connections.close(request.connection, CloseReason.LOCAL, random.choice(list(CloseWhen)))
        respond(bench, random, sizes, request)


@pytest.mark.parametrize(
    ("hidden", "backend"),
    [
        on_io_uring("", "io_uring", name="all-features"),
        on_io_uring("5.8", "io_uring", name="as-5.8"),
        pytest.param("", "plain", id="plain"),
    ],
)
def test_random_lives(hidden, backend, monkeypatch, seed):
    monkeypatch.setenv("TPC_HIDE_FEATURES", hidden)
    monkeypatch.setenv("TPC_BACKEND", backend)
    random = Random(seed)
    sizes = [random.choice([0, 10, 1_000, 60_000, 120_000]) for _ in range(13)]
    bench = Bench(LIMITS)
    clients = []
    for _ in range(STEPS):
        step(bench, random, sizes, clients)
    for client in clients:
        client.leave()
    bench.on_request = bench.connections.answer_none
    for request in bench.requests:
        bench.connections.answer_none(request)
    bench.requests.clear()
    bench.until(lambda: bench.connections.statistics().opened == bench.connections.statistics().closed)
    bench.until(lambda: bench.connections.statistics().sends_in_kernel == 0)
    bench.until(lambda: bench.connections.statistics().frames == 0)
    statistics = bench.connections.statistics()
    assert (statistics.frames, statistics.budget_bytes_used, statistics.assembling_bytes) == (0, 0, 0)
    assert (statistics.requests_unanswered, statistics.answer_bytes_unsent) == (0, 0)
    assert statistics.requests > STEPS / 10
    bench.close()
