"""Connections over real sockets: framing, order, bounds, closing. With all features, and with those of kernel 5.8."""

import contextlib
import errno
import os
import resource
import socket
import struct
import threading
from itertools import pairwise
from random import Random

import pytest

from tests.support.connection_bench import frame_of, header_of, leave, name_of, read_exactly
from tests.support.contents import content
from tests.support.descriptors import open_descriptors
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.connections import CloseReason, CloseWhen, ConnectionLimits
from tpc_broker.engine.ring import Feature

MIB = 1024 * 1024
SHORT_BUDGET = {"budget_bytes": 3 * MIB, "request_bytes_max": 2 * MIB, "receive_buffers_count": 32}


def test_one_request_and_its_answer(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"hello", api_key=18, api_version=2, correlation_id=77, client_id="a client"))
    request = bench.next_request()
    assert (request.api_key, request.api_version, request.correlation_id) == (18, 2, 77)
    assert request.client_id == "a client"
    assert bytes(request.body) == b"hello"
    assert request.sequence == 0
    assert bench.connections.answer(request, b"\0\0\0\x4d", b"answer")
    bench.turn()
    assert bench.read(client, 14) == b"\0\0\0\x0a\0\0\0\x4danswer"
    assert bench.opened == [(request.connection, name_of(client), 0)]


def test_a_request_carries_the_listener_that_its_connection_came_to(make_connections):
    """Also one that is too long for a receive buffer."""
    bench = make_connections()
    addresses = [bench.address, bench.listen(), bench.listen()]
    for number in (2, 0, 1, 2):
        client = bench.connect(addresses[number])
        client.sendall(frame_of(b"short"))
        short = bench.next_request()
        bench.feed(client, frame_of(bytes(MIB)))
        long = bench.next_request()
        assert (short.listener, long.listener) == (number, number)
        assert bench.connections.describe_connection(short.connection).listener == number
        for request in (short, long):
            bench.connections.answer_none(request)


def test_answers_leave_in_the_order_of_their_requests(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(b"".join(frame_of(b"%d" % i) for i in range(50)))
    requests = [bench.next_request() for _ in range(50)]
    assert [bytes(request.body) for request in requests] == [b"%d" % i for i in range(50)]
    for request in reversed(requests[1:]):
        bench.connections.answer(request, b"%d" % request.sequence)
    bench.turn(0)
    with pytest.raises(BlockingIOError):
        client.recv(1, socket.MSG_DONTWAIT)
    bench.connections.answer(requests[0], b"0")
    assert [bench.read_frame(client) for _ in range(50)] == [b"%d" % i for i in range(50)]


def test_a_request_without_answer_does_not_hold_up_those_behind_it(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"a") + frame_of(b"b") + frame_of(b"c") + frame_of(b"d"))
    a, b, c, d = (bench.next_request() for _ in range(4))
    bench.connections.answer(d, b"d")
    bench.connections.answer_none(c)
    bench.connections.answer(b, b"b")
    bench.connections.answer_none(a)
    assert bench.read_frame(client) == b"b"
    assert bench.read_frame(client) == b"d"
    assert bench.connections.statistics().answers_none == 2


def test_an_answer_behind_an_open_one_waits(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"0") + frame_of(b"1") + frame_of(b"2"))
    requests = [bench.next_request() for _ in range(3)]
    bench.connections.answer(requests[2], b"2")
    bench.connections.answer(requests[0], b"0")
    assert bench.read_frame(client) == b"0"
    bench.turn(20)
    with pytest.raises(BlockingIOError):
        client.recv(1, socket.MSG_DONTWAIT)
    bench.connections.answer(requests[1], b"1")
    assert [bench.read_frame(client), bench.read_frame(client)] == [b"1", b"2"]


def test_byte_by_byte_equals_whole(make_connections):
    bench = make_connections()
    client = bench.connect()
    stream = frame_of(b"first") + frame_of(b"") + frame_of(b"x" * 300)
    for i in range(len(stream)):
        client.sendall(stream[i : i + 1])
        bench.turn(2)
    assert [bytes(bench.next_request().body) for _ in range(3)] == [b"first", b"", b"x" * 300]


def test_large_requests_arrive_whole(make_connections):
    bench = make_connections()
    client = bench.connect()
    bodies = [content(size) for size in (5 * MIB, 1, 65_536, 16_384, 16_383, 3 * MIB + 1)]
    bench.feed(client, b"".join(frame_of(body) for body in bodies))
    for body in bodies:
        request = bench.next_request()
        assert request.body == body
        kept = request.body
        bench.connections.answer_none(request)
        assert kept == body


@pytest.mark.parametrize(
    ("announced", "reason"),
    [
        (0, CloseReason.FRAME_EMPTY),
        (-1, CloseReason.FRAME_NEGATIVE),
        (-(2**31), CloseReason.FRAME_NEGATIVE),
        (2**31 - 1, CloseReason.FRAME_TOO_LARGE),
        (1_001, CloseReason.FRAME_TOO_LARGE),
        (7, CloseReason.HEADER_MALFORMED),
    ],
)
def test_wrong_lengths_close_with_their_reason(make_connections, announced, reason):
    bench = make_connections(request_bytes_max=1_000)
    client, other = bench.connect(), bench.connect()
    client.sendall(frame_of(b"before") + struct.pack(">i", announced) + b"\0" * 7)
    assert bytes(bench.next_request().body) == b"before"
    _connection, told, detail = bench.next_closed()
    assert told == reason
    assert detail == (announced if reason in (CloseReason.FRAME_NEGATIVE, CloseReason.FRAME_TOO_LARGE) else 0)
    assert bench.read_end(client)
    bench.exchange(other)


def test_the_largest_allowed_request_passes(make_connections):
    body = b"x" * 1_000
    bench = make_connections(request_bytes_max=1_000 + len(header_of()))
    client = bench.connect()
    client.sendall(frame_of(body))
    assert bench.next_request().body == body


def test_announcing_much_takes_no_memory(make_connections):
    bench = make_connections()
    clients = [bench.connect() for _ in range(100)]
    for piece in (struct.pack(">i", 100 * MIB) + header_of(), b"x" * 50, b"x" * 50):
        before = bench.connections.statistics().assembling_bytes
        for client in clients:
            client.sendall(piece)
        bench.until(lambda: bench.connections.statistics().assembling_bytes >= before + 100 * len(piece) - 400)  # noqa: B023
    assert bench.connections.statistics().budget_bytes_used < 100 * 2_048


def test_a_client_that_never_reads_is_bounded_and_cut_off(make_connections):
    bench = make_connections(send_deadline_ms=300, receive_share_bytes=4 * MIB, pipelined_requests_max=32)
    lazy, other = bench.connect(), bench.connect()
    big = b"y" * MIB
    bench.on_request = lambda request: bench.connections.answer(request, big if request.body == b"big" else b"small")
    lazy.setblocking(False)
    closed = []
    bench.on_closed = lambda *event: closed.append(event)
    stream, position, peak = frame_of(b"big") * 100_000, 0, 0
    while not closed:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            position += lazy.send(stream[position : position + 65_536])
        bench.turn(5)
        bench.exchange(other, b"small", answered=b"small")
        peak = max(peak, bench.connections.statistics().budget_bytes_used)
    assert closed[0][1:] == (CloseReason.SEND_DEADLINE, errno.ETIMEDOUT)
    assert peak < (32 + 4 + 2) * MIB  # each request taken may bring one answer; then the share
    assert bench.connections.statistics().pauses > 0
    assert position < len(stream)


def test_pausing_loses_and_reorders_nothing(make_connections):
    bench = make_connections(pipelined_requests_max=4, receive_share_bytes=10_000)
    client = bench.connect()
    count = 1_000
    bench.on_request = bench.held.append
    received, answers = [], []
    stream = b"".join(frame_of(b"%d " % i + b"z" * (i % 700)) for i in range(count))
    client.setblocking(False)
    position, pending = 0, bytearray()
    while len(answers) < count:
        if position < len(stream):
            with contextlib.suppress(BlockingIOError):
                position += client.send(stream[position : position + 50_000])
        bench.turn(5)
        assert len(bench.held) <= 4
        for request in bench.held[::-1]:
            received.append(int(bytes(request.body).split()[0]))
            bench.connections.answer(request, b"%d" % request.sequence)
        bench.held.clear()
        bench.turn(5)
        with contextlib.suppress(BlockingIOError):
            pending += client.recv(65_536)
        while len(pending) >= 4 and len(pending) >= 4 + int.from_bytes(pending[:4]):
            length = int.from_bytes(pending[:4])
            answers.append(int(pending[4 : 4 + length]))
            del pending[: 4 + length]
    assert answers == list(range(count))
    assert sorted(received) == answers
    assert bench.connections.statistics().pauses > 10


def test_a_short_budget_starves_and_goes_on(make_connections):
    """One large request has the budget; another waits for it, and is whole in the end."""
    bench = make_connections(**SHORT_BUDGET, assembly_stall_ms_max=60_000)
    first, second = bench.connect(), bench.connect()
    body = content(2 * MIB - 100)
    bench.feed(first, frame_of(body))
    holder = bench.next_request()
    second.setblocking(False)
    stream, position = frame_of(body), 0
    while position < len(stream) or not bench.requests:
        with contextlib.suppress(BlockingIOError):
            position += second.send(stream[position : position + 65_536])
        bench.turn(2)
        if holder is not None and bench.connections.statistics().starvations:
            bench.connections.answer_none(holder)
            holder = None
    assert holder is None
    assert bench.next_request().body == body


def test_half_requests_that_fill_the_budget_are_cut_off_oldest_first(make_connections):
    bench = make_connections(**SHORT_BUDGET, assembly_stall_ms_max=100)
    attackers = [bench.connect() for _ in range(4)]
    half = frame_of(b"h" * (2 * MIB - 100))[:MIB]
    for attacker in attackers:
        attacker.setblocking(False)
        with contextlib.suppress(ConnectionError):  # of a machine that paused
            bench.feed(attacker, half, patient=False)
    request, times = bench.sent_until_it_comes(frame_of(b"q" * MIB))
    assert request.body == b"q" * MIB
    assert times == 0 or not bench.world.is_simulated
    oldest = bench.opened[0][0]
    cut_off = [connection for connection, reason, *_more in bench.closed if reason == CloseReason.BUDGET]
    assert cut_off[0] == oldest
    assert bench.connections.statistics().closed_by_reason[CloseReason.BUDGET] == len(cut_off)


def test_idle_connections_are_closed_and_busy_ones_are_not(make_connections):
    bench = make_connections(idle_ms_max=1500)
    idle, waiting = bench.connect(), bench.connect()
    waiting.sendall(frame_of(b"long poll"))
    request = bench.next_request()
    closed = bench.next_closed()
    assert closed[1:] == (CloseReason.IDLE, 0)
    assert closed[0] != request.connection
    assert bench.read_end(idle)
    bench.turn(2000)
    assert bench.connections.answer(request, b"late")
    assert bench.read_frame(waiting) == b"late"
    assert bench.next_closed() == (request.connection, CloseReason.IDLE, 0)


def test_the_peer_leaves_while_its_requests_are_here(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"1") + frame_of(b"2") + frame_of(b"half")[:-2])
    first, second = bench.next_request(), bench.next_request()
    client.close()
    assert bench.next_closed() == (first.connection, CloseReason.PEER, 0)
    assert bytes(second.body) == b"2"
    assert not bench.connections.answer(first, b"void")
    assert not bench.connections.answer_none(second)
    assert bench.connections.statistics().answers_void == 2
    assert bench.connections.drain().done


def test_requests_parked_when_the_peer_leaves_are_still_handed_over(make_connections):
    """Producers with acks=0 send and go; nothing that arrived may be lost."""
    bench = make_connections(pipelined_requests_max=2)
    client = bench.connect()
    client.sendall(b"".join(frame_of(b"%d" % i) for i in range(100)))
    client.close()
    for i in range(100):
        request = bench.next_request()
        assert bytes(request.body) == b"%d" % i
        bench.connections.answer_none(request)
    assert bench.next_closed()[1] == CloseReason.PEER


def test_a_reset_is_told(make_connections):
    bench = make_connections()
    client = bench.connect()
    bench.exchange(client)
    leave(client, resets=True)
    assert bench.next_closed()[1:] == (CloseReason.RESET, errno.ECONNRESET)


def test_closing_now_and_after_the_answers(make_connections):
    bench = make_connections()
    now, answered, taken = (bench.connect() for _ in range(3))
    requests = {}
    for client in (now, answered, taken):
        client.sendall(frame_of(b"1") + frame_of(b"2"))
        requests[client] = [bench.next_request(), bench.next_request()]
    big = content(8 * MIB)
    for client in (answered, taken):
        assert bench.connections.answer(requests[client][0], big)
    ids = {client: pair[0].connection for client, pair in requests.items()}
    assert bench.connections.close(ids[now])
    assert not bench.connections.close(ids[now])
    assert bench.connections.close(ids[answered], CloseReason.AUTHENTICATION, CloseWhen.AFTER_ANSWERED)
    assert bench.connections.close(ids[taken], CloseReason.SHUTDOWN, CloseWhen.AFTER_TAKEN)
    assert bench.next_closed() == (ids[now], CloseReason.LOCAL, 0)
    assert bench.read_frame(answered) == big
    assert bench.read_end(answered)
    assert bench.next_closed() == (ids[answered], CloseReason.AUTHENTICATION, 0)
    assert not bench.connections.answer(requests[answered][1], b"too late")
    taken.sendall(frame_of(b"not taken any more"))
    assert bench.read_frame(taken) == big
    assert bench.connections.answer(requests[taken][1], b"the last")
    assert bench.read_frame(taken) == b"the last"
    assert bench.next_closed() == (ids[taken], CloseReason.SHUTDOWN, 0)
    assert not bench.requests


def test_a_forgotten_request_closes_its_connection(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"x"))
    request = bench.next_request()
    connection = request.connection
    del request
    assert bench.next_closed() == (connection, CloseReason.LOCAL, 0)
    assert bench.connections.statistics().requests_forgotten == 1


def test_what_another_thread_drops_goes_in_the_thread_of_the_ring(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"x"))
    dropped = [bench.connections.new_frame(1000), bench.next_request()]
    connection, before = dropped[1].connection, bench.connections.statistics()
    thread = threading.Thread(target=dropped.clear)
    thread.start()
    thread.join()
    assert bench.connections.statistics() == before, "C may have been at work in the ring's thread"
    assert bench.next_closed() == (connection, CloseReason.LOCAL, 0)
    after = bench.connections.statistics()
    assert (after.requests_forgotten, after.frames) == (1, before.frames - 2)


def test_answering_twice_is_a_mistake(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"x") + frame_of(b"y"))
    x, y = bench.next_request(), bench.next_request()
    pointer = bench.connections.pointer
    assert lib.tpc_answer_bytes(pointer, y.connection, 1, b"y", 1) == 0
    assert lib.tpc_answer_bytes(pointer, y.connection, 1, b"y", 1) == -errno.EALREADY
    assert lib.tpc_answer_bytes(pointer, y.connection, 2, b"y", 1) == -errno.EINVAL
    assert lib.tpc_answer_bytes(pointer, y.connection, -1, b"y", 1) == -errno.EINVAL
    with pytest.raises(OSError, match="answer"):
        bench.connections.answer(y, b"again")
    bench.connections.answer(x, b"x")
    with pytest.raises(ValueError, match="answered before"):
        bench.connections.answer(x, b"again")


def test_slices_of_frames_and_bytes_are_sent_in_order(make_connections):
    bench = make_connections()
    client = bench.connect()
    for zero_copy_bytes_min in (0, 1_000):
        bench.connections.set_limits(ConnectionLimits(zero_copy_bytes_min=zero_copy_bytes_min, zero_copy_local=True))
        frames = []
        for fill in (b"A", b"B", b"C"):
            frame = bench.connections.new_frame(200_000)
            frame.view[:] = fill * 200_000
            frames.append(frame)
        client.sendall(frame_of(b"x") + frame_of(b"y"))
        x, y = bench.next_request(), bench.next_request()
        many = [part for i in range(100) for part in (b"<%d>" % i, frames[i % 3].slice(i, i * 7))]
        expected = b"".join(b"<%d>" % i + b"ABC"[i % 3 : i % 3 + 1] * (i * 7) for i in range(100))
        head, tail = frames[0].slice(0, 200_000), frames[1].slice(5, 100_000)
        bench.connections.answer_frames(x, head, b"", b"between", memoryview(b"!"), tail)
        del head, tail
        bench.connections.answer_frames(y, *many)
        del frames, frame
        assert bench.read_frame(client) == b"A" * 200_000 + b"between!" + b"B" * 100_000
        assert bench.read_frame(client) == expected
        del many
    x = y = None
    bench.until(lambda: bench.connections.statistics().frames == 0)


def test_closing_during_zero_copy_keeps_the_frames_until_the_kernel_is_done(make_connections):
    bench = make_connections(zero_copy_bytes_min=1, zero_copy_local=True)
    clients = [bench.connect() for _ in range(8)]
    frame = bench.connections.new_frame(16 * MIB)
    frame.view[:] = b"z" * len(frame.view)
    for client in clients:
        client.sendall(frame_of(b"x"))
        request = bench.next_request()
        bench.connections.answer_frames(request, frame.slice(0, 16 * MIB))
    del frame, request
    bench.turn(5)
    for client in clients[::2]:
        bench.read(client, 100_000)
    bench.connections.close_all()
    for _ in clients:
        assert bench.next_closed()[1] == CloseReason.SHUTDOWN
    for client in clients:
        client.close()
    bench.until(lambda: bench.connections.statistics().sends_in_kernel == 0)
    statistics = bench.connections.statistics()
    assert (statistics.frames, statistics.budget_bytes_used, statistics.sends_in_kernel) == (0, 0, 0)


def test_zero_copy_is_used_for_large_sends_only_and_not_to_this_host(make_connections):
    for local in (False, True):
        bench = make_connections(zero_copy_bytes_min=100_000, zero_copy_local=local)
        client = bench.connect()
        for size in (99_000, 101_000):
            client.sendall(frame_of(b"x"))
            bench.connections.answer(bench.next_request(), b"y" * size)
            bench.read_frame(client)
        has_it = Feature.SENDMSG_ZC in bench.ring.features
        assert bench.connections.statistics().sends_zero_copy == (1 if local and has_it else 0)


def test_late_answers_never_reach_the_next_owner_of_slot_and_descriptor(make_connections):
    bench = make_connections()
    stale = []
    for i in range(200):
        client = bench.connect()
        client.sendall(frame_of(b"%d" % i))
        stale.append(bench.next_request())
        client.close()
        bench.next_closed()
    assert len({request.connection for request in stale}) == 200
    assert len({request.connection & 0xFFFFFFFF for request in stale}) == 1
    client = bench.connect()
    client.sendall(frame_of(b"live"))
    live = bench.next_request()
    for request in stale:
        assert not bench.connections.answer(request, b"for somebody else")
        assert not bench.connections.close(request.connection)
    bench.connections.answer(live, b"mine")
    assert bench.read_frame(client) == b"mine"


def test_churn_leaves_nothing_behind(make_connections):
    bench = make_connections()
    bench.exchange(bench.connect())
    bench.turn(10)
    descriptors = len(bench.world.open_descriptors()) - 1
    for _ in range(20):
        clients = [bench.connect() for _ in range(100)]
        for i, client in enumerate(clients):
            client.sendall(frame_of(b"x" * i) + frame_of(b"half")[: i % 5])
        requests = [bench.next_request() for _ in clients]
        for i, request in enumerate(requests):
            if i % 3 == 0:
                bench.connections.answer(request, b"x" * i)
            elif i % 3 == 1:
                bench.connections.close(request.connection)
        for client in clients:
            client.close()
        for _ in requests:
            bench.next_closed()
        for request in requests[2::3]:
            bench.connections.answer_none(request)
        del request, requests, client, clients
    bench.forget_clients()
    bench.next_closed()
    statistics = bench.connections.statistics()
    assert (statistics.opened, statistics.closed) == (2_001, 2_001)
    assert (statistics.connections, statistics.requests_unanswered, statistics.answer_bytes_unsent) == (0, 0, 0)
    assert (statistics.frames, statistics.budget_bytes_used, statistics.assembling_bytes) == (0, 0, 0)
    assert statistics.slots <= 256
    assert len(bench.world.open_descriptors()) == descriptors - 1


def test_connections_above_the_maximum_are_refused_and_counted(make_connections):
    bench = make_connections(connections_max=3)
    clients = [bench.connect() for _ in range(3)]
    extra = bench.connect(wait=False)
    assert bench.read_end(extra)
    assert bench.connections.statistics().refused == 1
    clients.pop().close()
    bench.next_closed()
    bench.exchange(bench.connect())


def test_out_of_descriptors_accepting_rests_and_goes_on(make_connections):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Lowered first: a multishot accept goes by the limit of the moment in which it was armed.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_descriptors()) + 20, hard))
    fillers = []
    try:
        bench = make_connections(accept_retry_ms=20)
        failures = []
        bench.connections.on_accept_failed = lambda *event: failures.append(event)
        bench.exchange(bench.connect())
        with socket.socket() as client:
            with contextlib.suppress(OSError):
                while True:
                    fillers.append(os.dup(0))
            client.connect(bench.address)
            bench.until(lambda: len(failures) >= 2)
            assert failures[0] == (0, errno.EMFILE)
            os.close(fillers.pop())
            bench.exchange(client)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def test_stop_accepting_leaves_the_connections_alone(make_connections):
    bench = make_connections()
    client = bench.connect()
    bench.connections.stop_accepting()
    bench.turn(20)
    assert bench.connections.statistics().operations == 1
    late = bench.world.connect(bench.address)
    bench.turn(20)
    bench.exchange(client)
    assert bench.connections.statistics().opened == 1
    late.close()


def test_adopted_unix_sockets_work_and_refuse_zero_copy_quietly(make_connections):
    bench = make_connections(zero_copy_bytes_min=1, zero_copy_local=True)
    ours, theirs = bench.world.socketpair()
    connection = bench.connections.adopt(ours.detach())
    theirs.sendall(frame_of(b"x"))
    request = bench.next_request()
    assert request.connection == connection
    bench.connections.answer(request, b"y" * 300_000)
    assert bench.read_frame(theirs) == b"y" * 300_000
    assert bench.connections.describe_connection(connection).peer == "unix"
    theirs.close()
    assert bench.next_closed()[1] == CloseReason.PEER


def test_answers_inside_the_wait_and_from_python_keep_their_order(make_connections):
    """The hot handler is not asked while an earlier request of the connection is with Python: order holds."""
    bench = make_connections()
    pointer = bench.connections.pointer

    @ffi.callback("int(void *, tpc_request *)")
    def hot(_context, request):
        if request.api_key != 0:
            return 0
        assert lib.tpc_request_answer_bytes(pointer, request, b"hot", 3) == 0
        return 1

    lib.tpc_connections_set_hot(pointer, hot, ffi.NULL)
    client = bench.connect()
    python, hot_one = frame_of(b"", api_key=3), frame_of(b"", api_key=0)
    client.sendall(hot_one + python + hot_one)
    second, third = bench.next_request(), bench.next_request()
    assert (second.sequence, third.sequence) == (1, 2)
    bench.connections.answer(third, b"third")
    bench.connections.answer(second, b"second")
    assert [bench.read_frame(client) for _ in range(3)] == [b"hot", b"second", b"third"]
    client.sendall(hot_one)
    assert bench.read_frame(client) == b"hot"
    lib.tpc_connections_set_hot(pointer, ffi.NULL, ffi.NULL)
    assert bench.connections.statistics().requests_hot == 2


def test_the_hot_handler_may_close_its_own_connection(make_connections):
    bench = make_connections()
    pointer = bench.connections.pointer

    @ffi.callback("int(void *, tpc_request *)")
    def hot(_context, request):
        lib.tpc_connection_close(pointer, request.connection, lib.TPC_CLOSE_REQUEST_INVALID, lib.TPC_CLOSE_NOW)
        lib.tpc_request_release(request)
        return 1

    lib.tpc_connections_set_hot(pointer, hot, ffi.NULL)
    client = bench.connect()
    client.sendall(frame_of(b"") * 10)
    assert bench.next_closed()[1] == CloseReason.REQUEST_INVALID
    assert bench.connections.statistics().requests == 1
    lib.tpc_connections_set_hot(pointer, ffi.NULL, ffi.NULL)


def test_many_small_frames_over_many_connections(make_connections):
    bench = make_connections(receive_buffers_count=8, receive_buffer_bytes=4_096)
    bench.on_request = lambda request: bench.connections.answer(request, request.body)
    clients = [bench.connect() for _ in range(60)]
    stream = b"".join(frame_of(b"%06d" % i) for i in range(500))
    expected = b"".join(struct.pack(">i", 6) + b"%06d" % i for i in range(500))
    received = {client: bytearray() for client in clients}
    for client in clients:
        client.setblocking(False)
        assert client.send(stream) == len(stream)
    while any(len(data) < len(expected) for data in received.values()):
        bench.turn(5)
        for client, data in received.items():
            with contextlib.suppress(BlockingIOError):
                data.extend(client.recv(65_536))
    assert all(data == expected for data in received.values())


def test_an_unknown_api_key_reaches_python_without_a_body(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(struct.pack(">ihhi", 12, 9_999, 0, 5) + b"junk")
    request = bench.next_request()
    assert (request.api_key, request.correlation_id, request.client_id, bytes(request.body)) == (9_999, 5, None, b"")


def test_descriptions_and_drain(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"x"))
    request = bench.next_request()
    described = bench.connections.describe_connection(request.connection)
    assert described.connection == request.connection
    assert described.peer == name_of(client)
    assert (described.requests, described.requests_unanswered, described.closing) == (1, 1, False)
    assert not bench.connections.drain().done
    bench.connections.answer(request, b"x")
    read_exactly(client, 0)
    bench.until(lambda: bench.connections.drain().done)
    with pytest.raises(OSError, match="free"):
        bench.connections.free()
    assert bench.connections.describe_connection(12345) is None


def test_receive_buffers_come_back_when_connections_close_over_unread_data(make_connections):
    bench = make_connections(receive_buffers_count=8, receive_buffer_bytes=1_024, request_bytes_max=1_000)
    for _ in range(20):
        client = bench.connect()
        client.sendall(struct.pack(">i", -1) + b"z" * 7_000)
        assert bench.next_closed()[1] == CloseReason.FRAME_NEGATIVE
    bench.exchange(bench.connect())


def test_any_cut_of_the_stream_gives_the_same_requests(make_connections):
    bench = make_connections(receive_buffers_count=4, receive_buffer_bytes=256)
    random = Random(7)
    for _ in range(30):
        client = bench.connect()
        bodies = [random.randbytes(random.choice([0, 1, 10, 200, 245, 246, 247, 1_030, 5_000])) for _ in range(20)]
        stream = b"".join(frame_of(body) for body in bodies)
        cuts = sorted(random.sample(range(len(stream)), 15))
        for start, end in pairwise([0, *cuts, len(stream)]):
            client.sendall(stream[start:end])
            bench.turn(random.choice([0, 1]))
        for body in bodies:
            request = bench.next_request()
            assert request.body == body
            bench.connections.answer_none(request)


def test_random_bytes_harm_only_their_own_connection(make_connections):
    bench = make_connections(request_bytes_max=10_000)
    honest = bench.connect()
    bench.on_request = lambda request: bench.connections.answer(request, request.body)
    random = Random(11)
    for _ in range(200):
        client = bench.connect()
        data = random.randbytes(random.randrange(1, 3_000))
        if random.random() < 0.5:
            data = struct.pack(">i", random.randrange(1, 200)) + data
        client.sendall(data)
        client.close()
    for _ in range(200):
        bench.next_closed()
    bench.exchange(honest, answered=b"ping")
    reasons = {reason for reason, count in bench.connections.statistics().closed_by_reason.items() if count}
    assert {CloseReason.FRAME_NEGATIVE, CloseReason.FRAME_TOO_LARGE, CloseReason.HEADER_MALFORMED} <= reasons


def test_bounds_that_contradict_each_other_are_refused(make_connections):
    with pytest.raises(ValueError, match="budget_bytes 1000 is below"):
        make_connections(request_bytes_max=10, budget_bytes=1_000)
