"""What sockets do under C's entries, in whatever way they are carried out: by the kernel, or by the simulation
(`tests/support/simulated_sockets.py`), which other tests take for the kernel's.
"""

import errno
import random
import socket
from types import SimpleNamespace

import pytest

from tests.support.bench_world import SimulatedWorld
from tests.support.connection_bench import frame_of, leave
from tests.support.contents import content
from tests.support.simulated_ring import SEND
from tests.support.steady_group import SteadyGroup
from tpc_broker.engine.connections import CloseReason, CloseWhen

MIB = 1 << 20
BODIES = [b"first", b"", b"x" * 300, b"last"]
STREAM = b"".join(map(frame_of, BODIES))
CUTS = [*range(0, 60, 7), 59, len(STREAM) - 1, len(STREAM)]


def whole(size):
    """The requests that are there in so many bytes of the stream."""
    found, position = [], 0
    for body in BODIES:
        position += len(frame_of(body))
        if position <= size:
            found.append(body)
    return found


@pytest.mark.parametrize("resets", [False, True])
def test_a_client_that_ends_anywhere_has_said_what_it_has_said(make_connections, resets):
    bench = make_connections()
    taken = []
    bench.on_request = lambda request: (taken.append(bytes(request.body)), bench.connections.answer_none(request))
    for cut in CUTS:
        taken.clear()
        client = bench.connect()
        client.sendall(STREAM[:cut])
        bench.until(lambda cut=cut: taken == whole(cut))
        leave(client, resets=resets)
        assert bench.next_closed()[1:] == ((CloseReason.RESET, errno.ECONNRESET) if resets else (CloseReason.PEER, 0))
        assert taken == whole(cut)


def test_what_came_before_an_end_is_taken_and_before_a_reset_as_far_as_it_was_read(make_connections):
    bench = make_connections()
    taken = []
    bench.on_request = lambda request: (taken.append(bytes(request.body)), bench.connections.answer_none(request))
    for resets in (False, True):
        taken.clear()
        client = bench.connect()
        client.sendall(STREAM)
        leave(client, resets=resets)
        reason = bench.next_closed()[1]
        assert reason is (CloseReason.RESET if resets else CloseReason.PEER)
        assert taken == BODIES if not resets else taken == BODIES[: len(taken)]


def test_a_client_that_has_said_all_is_still_answered(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(STREAM)
    requests = [bench.next_request() for _ in BODIES]
    client.shutdown(socket.SHUT_WR)
    assert bench.next_closed()[1] is CloseReason.PEER
    assert not any(bench.connections.answer(request, b"too late") for request in requests)
    assert bench.read_end(client)


def test_a_client_that_goes_while_its_answer_leaves_is_gone(make_connections):
    bench = make_connections()
    answer = content(16 * MIB)
    for size in (1, 100_000, 5 * MIB):
        client = bench.connect()
        client.sendall(frame_of(b"x"))
        bench.connections.answer(bench.next_request(), answer)
        bench.read(client, size)
        client.close()
        assert bench.next_closed()[1] in {CloseReason.RESET, CloseReason.PEER}


def test_large_answers_arrive_as_they_are_whatever_the_pace(make_connections):
    bench = make_connections(receive_share_bytes=1 << 30)
    client = bench.connect()
    answers = [content(size) for size in (8 * MIB, 1, 100_000, 3 * MIB + 1, 0)]
    for _ in answers:
        client.sendall(frame_of(b"x"))
    requests = [bench.next_request() for _ in answers]
    for request, answer in reversed([*zip(requests, answers, strict=True)]):
        bench.connections.answer(request, answer)
    chance = random.Random(3)
    stream = b"".join(len(answer).to_bytes(4) + answer for answer in answers)
    position = 0
    while position < len(stream):
        size = min(chance.choice([1, 4, 1_000, 500_000]), len(stream) - position)
        assert bench.read(client, size) == stream[position : position + size]
        position += size
    bench.until(lambda: bench.connections.statistics().answer_bytes_unsent == 0)


def test_what_is_queued_leaves_before_a_connection_closes(make_connections):
    """Also when something has come that nobody will take: closed over it, the kernel would reset the connection."""
    bench = make_connections()
    for more in (b"", STREAM):
        client = bench.connect()
        client.sendall(frame_of(b"x"))
        request = bench.next_request()
        answer = content(6 * MIB)
        bench.connections.answer(request, answer)
        bench.connections.close(request.connection, CloseReason.SHUTDOWN, CloseWhen.AFTER_TAKEN)
        client.sendall(more)
        bench.world.let_arrive()
        assert bench.read(client, 4 + len(answer))[4:] == answer
        assert bench.next_closed()[1] is CloseReason.SHUTDOWN
        assert bench.read_end(client)


def test_planes_replicate_over_links(make_bench):
    """Large batches and small ones, and across a link that was cut."""
    benches = [make_bench(region_blocks=4096) for _ in range(3)]
    world, chance = benches[0].world, random.Random(5)

    def connect(_one, _other):
        return [end.detach() for end in world.socketpair()]

    group = SteadyGroup(benches, connect)
    for _round in range(3):
        for _ in range(10):
            group.append(chance.randint(1, 3), bytes(chance.choice([10, 5_000, 60_000])))
        group.until(group.is_whole)
        group.check()
        logs = [member.log() for member in group.members]
        assert logs == logs[:1] * 3
        follower = group.followers[0]
        follower.steady.steady_close(follower.link)
        group.append(1, b"while it is not there")
        group.until(lambda follower=follower: not group.is_linked(follower))
        group.until(lambda: group.leader.state().high_watermark == group.leader.state().log_end_offset)
        group.link(follower)
    group.until(group.is_whole)
    group.shut()


def test_a_client_of_a_leader_is_answered_when_a_majority_has_it(make_bench):
    benches = [make_bench() for _ in range(3)]
    group = SteadyGroup(benches, lambda _one, _other: [end.detach() for end in benches[0].world.socketpair()])
    client = benches[0].connect()
    benches[0].send(client, [("t", 0, group.records(3))], acks=-1)
    group.until(lambda: group.is_whole() and group.leader.state().log_end_offset == 3)
    assert benches[0].answer(client) == [(0, 0)]
    group.shut()


def test_what_changes_while_it_is_being_sent_is_found():
    """The bytes of a send belong to whoever carries it out."""
    with SimulatedWorld(buffer_bytes=10) as world:
        one, other = world.socketpair()
        one.send(bytes(10))
        data = bytearray(20)
        operation = SimpleNamespace(opcode=SEND, is_under_way=True, memory=lambda: data)
        one.end.begin(operation)
        data[7] = 1
        with pytest.raises(AssertionError, match="have changed"):
            other.recv(10)
            other.recv(10)
