"""What only the plain backend can do wrong: numbers of descriptors that come back, and operations in threads.

What it has in common with io_uring is tested by the ring's own tests, which run on both.
"""

import contextlib
import errno
import fcntl
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import seccomp
from tests.support.connection_bench import Bench, frame_of
from tests.support.waiting import patiently
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.connections import ConnectionLimits, Connections
from tpc_broker.engine.ring import BACKEND_VARIABLE, Backend, Ring

EVENTS_MAX = 64
TASKS = Path("/proc/self/task")


class PlainRing:
    def __init__(self):
        out = ffi.new("tpc_ring **")
        assert lib.tpc_ring_new(64, 0, lib.TPC_BACKEND_PLAIN, out) == 0
        self.pointer = out[0]
        self.results = {}

    def turn(self, timeout_ms=10):
        events = ffi.new("tpc_event[]", EVENTS_MAX)
        count = lib.tpc_ring_wait(self.pointer, timeout_ms * 1_000_000, 1000, events, EVENTS_MAX)
        for event in events[0 : max(count, 0)]:
            assert event.token not in self.results, "a second result"
            self.results[event.token] = event.a

    def result_of(self, token):
        for _ in patiently(lambda: f"no result of {token}: {self.results}"):
            if token in self.results:
                break
            self.turn()
        return self.results[token]

    def poll(self, token, fd, events=select.POLLIN):
        operation = lib.tpc_operation_poll(self.pointer, token, fd, events)
        assert operation > 0
        return operation


@pytest.fixture
def ring():
    made = PlainRing()
    yield made
    assert lib.tpc_ring_close(made.pointer, 60_000_000_000) == 0


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


EPOLLONESHOT = 1 << 30


def armed_events(number):
    """What the set of a ring with this descriptor in it waits for there."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if "[eventpoll]" not in str(path.readlink()):
                continue
            for line in Path("/proc/self/fdinfo", path.name).read_text().splitlines():
                if line.startswith("tfd:") and int(line.split()[1]) == number:
                    return int(line.split()[3], 16)
    return None


def turn_until(ring, condition):
    for _ in patiently("it did not come about"):
        if condition():
            break
        count = ring.wait(10_000_000)
        if count > 0:
            ring.dispatch(count)


def descriptor_of(bench, connection):
    info = ffi.new("tpc_connection_info *")
    assert lib.tpc_connection_describe(bench.connections.pointer, connection, info) == 0
    return info.descriptor


@pytest.fixture
def make_connections(monkeypatch):
    """A bench of connections on the plain backend, and its first client."""
    benches = []

    def make(**limits):
        monkeypatch.setenv(BACKEND_VARIABLE, Backend.PLAIN)
        benches.append(Bench(ConnectionLimits(**limits)))
        return benches[-1], benches[-1].connect()

    yield make
    for bench in benches:
        bench.close()


class FullPipe:
    """A write to it stays in its thread until somebody reads."""

    def __init__(self):
        self.reading, self.writing = os.pipe()
        self.page_bytes = fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, 4096)
        os.write(self.writing, bytes(self.page_bytes))

    def let_go(self):
        os.read(self.reading, self.page_bytes)

    def close(self):
        os.close(self.reading)
        os.close(self.writing)


@pytest.fixture
def pipe():
    made = FullPipe()
    yield made
    made.close()


def threads(of="", where=""):
    """Those with this name and function of the kernel. One that has been joined may still be there, and then not."""
    found = set()
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):
            if of in (task / "comm").read_text() and where in (task / "wchan").read_text():
                found.add(task)
    return found


def running(ring, token, pipe, data):
    """A write that a thread is in."""
    before = threads("files", "pipe_write")
    operation = lib.tpc_operation_write(ring.pointer, token, pipe.writing, data, len(data), 0, 0)
    assert operation > 0
    ring.turn(0)
    for _ in patiently("the write did not begin"):
        if threads("files", "pipe_write") - before:
            break
    return operation


def test_who_waits_for_a_closed_descriptor_is_told_when_its_number_comes_back(ring, pair):
    ours, theirs = pair
    number = ours.fileno()
    ring.poll(1, number)
    ring.turn(0)
    reading, writing = os.pipe()
    ours.detach()
    os.close(number)
    os.dup2(reading, number)
    ring.poll(2, number)
    assert ring.result_of(1) == -errno.EBADF
    assert 2 not in ring.results
    theirs.close()
    os.write(writing, b"x")
    assert ring.result_of(2) == select.POLLIN
    for fd in (reading, writing, number):
        os.close(fd)


def test_an_event_of_a_file_that_had_the_number_before_is_nobodys(ring, pair):
    """The file is still open, so the set still has it."""
    ours, theirs = pair
    number = ours.fileno()
    ring.poll(1, number)
    ring.turn(0)
    kept = ours.dup()
    reading, writing = os.pipe()
    ours.detach()
    os.close(number)
    os.dup2(reading, number)
    ring.poll(2, number)
    ring.turn(0)
    theirs.send(b"for the old file")
    for _ in range(5):
        ring.turn(0)
    assert ring.results == {1: -errno.EBADF}
    os.write(writing, b"x")
    assert ring.result_of(2) == select.POLLIN
    kept.close()
    for fd in (reading, writing, number):
        os.close(fd)


def test_who_is_left_after_an_event_still_waits(ring, pair):
    ours, theirs = pair
    while True:
        try:
            ours.send(bytes(65536), socket.MSG_DONTWAIT)
        except BlockingIOError:
            break
    ring.poll(1, ours.fileno(), select.POLLOUT)
    ring.poll(2, ours.fileno())
    ring.turn(0)
    theirs.send(b"x")
    assert ring.result_of(2) == select.POLLIN
    assert 1 not in ring.results
    theirs.close()
    assert ring.result_of(1) & select.POLLOUT


def test_what_is_cancelled_while_it_waits_is_not_told_of_events(ring, pair):
    ours, theirs = pair
    operation = ring.poll(1, ours.fileno())
    ring.poll(2, ours.fileno())
    ring.turn(0)
    assert lib.tpc_operation_cancel(ring.pointer, operation) == 0
    theirs.send(b"x")
    assert ring.result_of(1) == -errno.ECANCELED
    assert ring.result_of(2) == select.POLLIN


def test_a_connection_that_only_receives_stays_armed(make_connections):
    bench, client = make_connections()
    for _ in range(3):
        bench.exchange(client)
        [(connection, *_where)] = bench.opened
        number = descriptor_of(bench, connection)
        bench.turn(0)
        assert armed_events(number) == select.EPOLLIN | select.EPOLLERR | select.EPOLLHUP


def test_a_connection_that_is_paused_is_not_armed_and_loses_nothing(make_connections):
    """What it is sent meanwhile is told of once."""
    bench, client = make_connections(pipelined_requests_max=1)
    bench.on_request = bench.held.append
    client.sendall(frame_of(b"first"))
    bench.until(lambda: bench.held)
    number = descriptor_of(bench, bench.held[0].connection)
    client.sendall(frame_of(b"second"))
    bench.until(lambda: bench.connections.statistics().pauses)
    client.sendall(frame_of(b"third"))
    bench.until(lambda: armed_events(number) & EPOLLONESHOT)
    bench.turn()
    assert not armed_events(number) & select.EPOLLIN
    bodies = []
    while len(bodies) < 3:
        bench.until(lambda: bench.held)
        request = bench.held.pop()
        bodies.append(bytes(request.body))
        bench.connections.answer(request, b"pong")
        assert bench.read_frame(client) == b"pong"
    assert bodies == [b"first", b"second", b"third"]


def served_by_a_table(ring, number, body):
    """Two requests by the first connection of a table of its own, with this descriptor; the connection's id."""
    ours, theirs = socket.socketpair()
    os.dup2(ours.fileno(), number)
    ours.close()
    connections = Connections(ring, ConnectionLimits())
    got = []
    connections.on_request = got.append
    connection = connections.adopt(number)
    for _ in range(2):
        theirs.sendall(frame_of(body))
        turn_until(ring, lambda: got)
        request = got.pop()
        assert bytes(request.body) == body
        connections.answer_none(request)
    theirs.close()
    turn_until(ring, lambda: connections.quiet)
    connections.free()
    return connection


def test_connections_of_another_table_are_armed_anew(monkeypatch):
    """With the same slot, generation and number of the descriptor."""
    monkeypatch.setenv(BACKEND_VARIABLE, Backend.PLAIN)
    ring = Ring(64)
    number = 500  # above what is open
    assert served_by_a_table(ring, number, b"one") == served_by_a_table(ring, number, b"two")
    ring.close()


def test_a_regular_file_is_ready_and_a_closed_number_is_not(ring, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    ring.poll(1, fd)
    assert ring.result_of(1) == select.POLLIN
    os.close(fd)
    ring.poll(2, fd)
    assert ring.result_of(2) == -errno.EBADF


def test_an_operation_that_runs_is_not_cancelled_and_its_result_is_delivered(ring, pipe):
    data = ffi.new("char[]", b"kept until the write is over")
    operation = running(ring, 1, pipe, data)
    assert lib.tpc_operation_cancel(ring.pointer, operation) == 0
    for _ in range(5):
        ring.turn(0)
    assert not ring.results
    pipe.let_go()
    assert ring.result_of(1) == len(data)


def test_what_waits_for_a_thread_is_cancelled(ring, tmp_path):
    pipes = [FullPipe() for _ in range(4)]
    data = ffi.new("char[]", 10)
    for token, pipe in enumerate(pipes):
        running(ring, token, pipe, data)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    operation = lib.tpc_operation_write_fdatasync(ring.pointer, 10, fd, data, 10, 0)
    ring.turn(0)
    assert lib.tpc_operation_cancel(ring.pointer, operation) == 0
    assert ring.result_of(10) == -errno.ECANCELED
    for pipe in pipes:
        pipe.let_go()
    assert [ring.result_of(token) for token in range(4)] == [len(data)] * 4
    assert os.fstat(fd).st_size == 0
    os.close(fd)
    for pipe in pipes:
        pipe.close()


def test_what_waits_for_a_thread_never_meets_another_file_of_that_number(ring, tmp_path):
    pipes = [FullPipe() for _ in range(4)]
    data = ffi.new("char[]", b"0123456789")
    for token, pipe in enumerate(pipes):
        running(ring, token, pipe, data)
    meant, other = (os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("meant", "other"))
    assert lib.tpc_operation_write(ring.pointer, 10, meant, data, 10, 0, os.RWF_DSYNC) > 0
    ring.turn(0)
    os.dup2(other, meant)
    for pipe in pipes:
        pipe.let_go()
    assert ring.result_of(10) == 10
    assert (tmp_path / "meant").read_bytes() == b"0123456789"
    assert (tmp_path / "other").read_bytes() == b""
    for token, pipe in enumerate(pipes):
        ring.result_of(token)
        pipe.close()
    os.close(meant)
    os.close(other)


def test_a_ring_with_a_write_that_does_not_end_is_left_alone(pipe):
    ring = PlainRing()
    data = ffi.new("char[]", 10)
    running(ring, 1, pipe, data)
    assert lib.tpc_ring_close(ring.pointer, 1_000_000) == -errno.ETIMEDOUT
    pipe.let_go()
    assert lib.tpc_ring_close(ring.pointer, 60_000_000_000) == 0


def test_threads_take_no_signals_and_are_on_all_cpus(tmp_path):
    """Those of a ring that is made on one CPU, as a pinned core's is."""
    allowed = os.sched_getaffinity(0)
    found, before = {}, threads()

    def pinned():
        os.sched_setaffinity(0, {min(allowed)})
        ring = PlainRing()
        fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        assert lib.tpc_operation_fsync(ring.pointer, 1, fd, True) > 0
        assert ring.result_of(1) == 0
        for task in threads("files") - before:
            lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines())
            found[task] = (os.sched_getaffinity(int(task.name)), int(lines["SigBlk"], 16))
        os.close(fd)
        assert lib.tpc_ring_close(ring.pointer, 60_000_000_000) == 0

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    [(cpus, blocked)] = found.values()
    assert cpus == allowed
    unblockable = {9, 19, 32, 33}  # the last two are glibc's own
    assert all(blocked >> (number - 1) & 1 for number in range(1, 65) if number not in unblockable)


def test_a_held_file_keeps_its_lock_until_the_ring_is_closed(tmp_path):
    ring = PlainRing()
    path = tmp_path / "lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert lib.tpc_ring_hold_file(ring.pointer, file.fileno()) == 0
        assert lib.tpc_ring_hold_file(ring.pointer, file.fileno()) == -errno.EBUSY
    with path.open("w") as another:
        with pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lib.tpc_ring_close(ring.pointer, 60_000_000_000) == 0
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)


DURABLE_WRITE = """
import os, sys
from tests.engine.test_plain_ring import PlainRing
from tpc_broker._ring import ffi, lib
ring = PlainRing()
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
data = ffi.new("char[]", b"0123456789")
for token, flags in ((1, os.RWF_DSYNC), (2, 0)):
    assert lib.tpc_operation_write(ring.pointer, token, fd, data, 10, 0, flags) > 0
    print(ring.result_of(token))
"""


@pytest.mark.plain
@pytest.mark.usefixtures("system_call_filters")
@pytest.mark.parametrize(("flush_fails", "durable"), [(True, -errno.EIO), (False, 10)])
def test_a_durable_write_without_its_flag_is_flushed(tmp_path, flush_fails, durable):
    """Where pwritev2(2) is not known: what could not be flushed was not written, and nobody flushes without need."""
    profile = seccomp.refusing(errno.ENOSYS, "pwritev2")
    if flush_fails:
        profile["syscalls"] += seccomp.refusing(errno.EIO, "fdatasync", "fsync")["syscalls"]
    command = [*seccomp.under(profile, tmp_path), sys.executable, "-c", DURABLE_WRITE, str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(durable), "10"]
