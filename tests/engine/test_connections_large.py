"""Large requests: received straight into their frames, in the right order with small ones, and given up safely."""

import contextlib
from random import Random

from tests.support.connection_bench import frame_of

MIB = 1024 * 1024


def test_large_requests_in_a_row_and_small_ones_between(make_connections):
    bench = make_connections()
    client = bench.connect()
    chooser = Random(5)
    bodies = [chooser.randbytes(300_000)]
    for _ in range(40):
        bodies.append(chooser.randbytes(chooser.choice([1, 100, 20_000, 200_000, 500_000, 900_000])))
    data = b"".join(frame_of(body) for body in bodies)
    client.setblocking(False)
    found = []
    place = 0
    while len(found) < len(bodies):
        if place < len(data):
            piece = data[place : place + chooser.choice([3, 5_000, 60_000, 400_000, 2_000_000])]
            with contextlib.suppress(BlockingIOError):
                place += client.send(piece)
        bench.turn(1)
        while bench.requests:
            request = bench.requests.popleft()
            found.append(bytes(request.body))
            bench.connections.answer(request, b"")
    assert found == bodies


def test_a_large_request_is_received_in_few_pieces(make_connections):
    bench = make_connections()
    client = bench.connect()
    bench.feed(client, frame_of(b"a" * MIB))
    bench.connections.answer(bench.next_request(), b"")
    bench.turn(20)
    before = bench.connections.statistics().receives
    bench.feed(client, frame_of(b"b" * MIB))
    assert bench.next_request().body == b"b" * MIB
    assert bench.connections.statistics().receives - before < MIB // (16 * 1024) // 2


def test_a_connection_closed_while_a_large_request_arrives(make_connections):
    """The kernel may still write into the frame: it has to live until it says that it is done."""
    bench = make_connections()
    for by_peer in (True, False):
        client = bench.connect()
        bench.feed(client, frame_of(b"a" * MIB))
        request = bench.next_request()
        bench.connections.answer(request, b"")
        bench.turn(20)
        bench.feed(client, frame_of(b"b" * MIB)[: MIB // 2])
        bench.turn(20)
        if by_peer:
            client.close()
        else:
            bench.connections.close_all()
        assert bench.next_closed()[0] == request.connection
    del request
    statistics = bench.connections.statistics()
    assert (statistics.frames, statistics.budget_bytes_used) == (0, 0)
