"""The C ring by itself, without trio: set-up, the wait, its ends, events, shut-down. With all features, with
5.8's, and on the plain backend."""

import contextlib
import errno
import fcntl
import os
import select
import signal
import threading

import pytest

from tests.support.backends import on_io_uring
from tests.support.waiting import PATIENCE_S, takes_at_least
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import unavailable

ALL_HIDDEN = (1 << lib.TPC_FEATURES_COUNT) - 1
EVENTS_MAX = 64
PAUSE_S = 0.05


HOW = {
    "all-features": (0, lib.TPC_BACKEND_IO_URING),
    "as-5.8": (ALL_HIDDEN, lib.TPC_BACKEND_IO_URING),
    "plain": (0, lib.TPC_BACKEND_PLAIN),
    "plain-as-5.8": (ALL_HIDDEN, lib.TPC_BACKEND_PLAIN),
}


plain_rings = set()
"""An io_uring of another test, which was closed a moment ago, ends one wait of its thread in epoll as a signal does."""


@pytest.fixture(params=[name if name.startswith("plain") else on_io_uring(name) for name in HOW])
def ring(request):
    out = ffi.new("tpc_ring **")
    if error := lib.tpc_ring_new(256, *HOW[request.param], out):
        raise unavailable(-error)
    if request.param.startswith("plain"):
        plain_rings.add(out[0])
    yield out[0]
    plain_rings.discard(out[0])
    assert lib.tpc_ring_close(out[0], PATIENCE_S * 1_000_000_000) == 0


def wait(ring, timeout_ms=60_000, work_max=1000, *, is_signalled=False):
    events = ffi.new("tpc_event[]", EVENTS_MAX)
    count = lib.tpc_ring_wait(ring, timeout_ms * 1_000_000, work_max, events, EVENTS_MAX)
    while count == -errno.EINTR and ring in plain_rings and not is_signalled:
        count = lib.tpc_ring_wait(ring, timeout_ms * 1_000_000, work_max, events, EVENTS_MAX)
    if count < 0:
        return count
    return [(events[i].kind, events[i].token, events[i].a, events[i].b) for i in range(count)]


LATER_MS = int(3000 * PATIENCE_S)


def statistics(ring):
    result = ffi.new("tpc_ring_statistics *")
    lib.tpc_ring_get_statistics(ring, result)
    return result


def test_a_wait_with_nothing_to_do_ends_with_its_timeout(ring):
    with takes_at_least(0.029):
        assert wait(ring, 30) == -errno.ETIME
    assert wait(ring, 0) == -errno.ETIME
    assert statistics(ring).timeouts == 2


def test_an_earlier_deadline_after_a_later_one(ring):
    assert lib.tpc_operation_nop(ring, 1) > 0
    assert wait(ring, LATER_MS) == [(lib.TPC_EVENT_OPERATION, 1, 0, 0)]
    with takes_at_least(0.019):
        assert wait(ring, 20) == -errno.ETIME


def test_events_that_do_not_fit_come_next_time_in_order(ring):
    for token in range(200):
        assert lib.tpc_operation_nop(ring, token) > 0
    tokens, sizes = [], []
    while len(tokens) < 200:
        events = wait(ring)
        sizes.append(len(events))
        tokens += [event[1] for event in events]
    assert tokens == list(range(200))
    assert max(sizes) <= EVENTS_MAX
    assert statistics(ring).operations == 0


def test_all_that_is_ready_at_once_comes_at_once(ring):
    """From kernel 6.13 a call carries out some twenty, and leaves the others to the next one."""
    waiting = {token: os.eventfd(0) for token in range(EVENTS_MAX)}
    for token, fd in waiting.items():
        assert lib.tpc_operation_poll(ring, token, fd, select.POLLIN) > 0
    assert wait(ring, 0) == -errno.ETIME
    for fd in waiting.values():
        os.eventfd_write(fd, 1)
    assert [token for _, token, *_ in wait(ring)] == list(waiting)
    for fd in waiting.values():
        os.close(fd)


def test_serving_in_between_takes_all_that_is_ready(ring):
    waiting = {token: os.eventfd(0) for token in range(EVENTS_MAX)}
    for token, fd in waiting.items():
        assert lib.tpc_operation_poll(ring, token, fd, select.POLLIN) > 0
    assert wait(ring, 0) == -errno.ETIME
    before = statistics(ring).completions
    for fd in waiting.values():
        os.eventfd_write(fd, 1)
    assert lib.tpc_ring_serve(ring, 0) == 1
    assert statistics(ring).completions - before == EVENTS_MAX
    assert [token for _, token, *_ in wait(ring)] == list(waiting)
    for fd in waiting.values():
        os.close(fd)


def test_another_thread_wakes_the_wait(ring):
    threading.Timer(0.02, lib.tpc_ring_wake, [ring]).start()
    assert wait(ring, 60_000) == []
    assert statistics(ring).wakes == 1
    lib.tpc_ring_wake(ring)
    assert wait(ring, 60_000) == []
    assert wait(ring, 0) == -errno.ETIME


def test_serving_in_between_handles_what_has_completed_and_keeps_events_and_wakes_for_the_next_wait(ring):
    assert wait(ring, 0) == -errno.ETIME
    assert lib.tpc_ring_serve(ring, 3600 * 10**9) == 0, "too early"
    assert lib.tpc_operation_nop(ring, 7) > 0
    assert lib.tpc_ring_serve(ring, 0) == 1
    assert statistics(ring).completions >= 1
    lib.tpc_ring_wake(ring)
    while statistics(ring).wakes == 0:
        lib.tpc_ring_serve(ring, 0)
    assert wait(ring, 60_000) == [(lib.TPC_EVENT_OPERATION, 7, 0, 0)], "at once, and once"
    assert wait(ring, 0) == -errno.ETIME
    lib.tpc_ring_wake(ring)
    while statistics(ring).wakes == 1:
        lib.tpc_ring_serve(ring, 0)
    assert wait(ring, 60_000) == [], "a wake-up that came while Python worked ends the next wait"
    assert wait(ring, 0) == -errno.ETIME
    found = statistics(ring)
    assert found.serves >= 3
    assert found.turns_with_events == 1
    assert sum(found.python_spans) == found.serves + found.turns - 1, "each time Python had between two visits, once"


def test_more_operations_than_the_submission_queue_has_entries(ring):
    for token in range(3000):
        assert lib.tpc_operation_nop(ring, token) > 0
    seen = 0
    while seen < 3000:
        seen += len(wait(ring))
    assert statistics(ring).outstanding == 1  # the armed wake-up


def test_cancel_gives_the_operation_its_last_event(ring):
    reading, writing = os.pipe()
    buffer = ffi.new("char[16]")
    operation = lib.tpc_operation_read(ring, 7, reading, buffer, 16, 2**64 - 1)
    assert operation > 0
    assert wait(ring, 10) == -errno.ETIME
    assert lib.tpc_operation_cancel(ring, operation) == 0
    [(kind, token, result, _)] = wait(ring)
    assert (kind, token) == (lib.TPC_EVENT_OPERATION, 7)
    assert result in {-errno.ECANCELED, -errno.EINTR}
    assert lib.tpc_operation_cancel(ring, operation) == -errno.ENOENT
    os.close(reading)
    os.close(writing)


def test_closing_drains_what_is_under_way(ring):
    reading, writing = os.pipe()
    buffer = ffi.new("char[16]")
    for token in range(20):
        assert lib.tpc_operation_read(ring, token, reading, buffer, 16, 2**64 - 1) > 0
        assert lib.tpc_operation_poll(ring, 100 + token, reading, select.POLLIN) > 0
    assert wait(ring, 10) == -errno.ETIME
    assert statistics(ring).operations == 40
    os.close(reading)
    os.close(writing)
    # the fixture closes the ring, which must not time out


def test_linked_write_and_fdatasync_give_one_event(ring, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    data = ffi.from_buffer(b"x" * 100)
    assert lib.tpc_operation_write_fdatasync(ring, 5, fd, data, 100, 10) > 0
    assert wait(ring) == [(lib.TPC_EVENT_OPERATION, 5, 100, 0)]
    assert os.pread(fd, 200, 0) == b"\0" * 10 + b"x" * 100
    os.close(fd)
    assert lib.tpc_operation_write_fdatasync(ring, 6, fd, data, 100, 10) > 0
    [(_, token, written, synced)] = wait(ring)
    assert (token, written, synced) == (6, -errno.EBADF, -errno.ECANCELED)


def test_work_in_c_without_events_ends_the_wait_after_its_share(ring, tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    data = ffi.from_buffer(b"x" * 500)
    assert lib.tpc_operation_write_in_parts(ring, 1, fd, data, 500, 0, 10) > 0
    assert wait(ring, 60_000, work_max=10) == []
    assert statistics(ring).hot_limits == 1
    assert wait(ring, 60_000) == [(lib.TPC_EVENT_OPERATION, 1, 500, 0)]
    assert (tmp_path / "file").read_bytes() == b"x" * 500
    os.close(fd)


def waits_out_its_time_beside_a_slow_completion(ring):
    """A part that is written at once, one that is written while the wait goes on, then nothing: did the wait last?"""
    reading, writing = os.pipe()
    page_bytes = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    data = ffi.new("char[]", 3 * page_bytes)
    assert lib.tpc_operation_write_in_parts(ring, 1, writing, data, 3 * page_bytes, 0, page_bytes) > 0
    reader = threading.Timer(0.05, os.read, [reading, page_bytes])
    reader.start()
    result = wait(ring, 300)
    reader.join()
    os.read(reading, page_bytes)
    assert result != -errno.ETIME or wait(ring, 60_000) == [(lib.TPC_EVENT_OPERATION, 1, 3 * page_bytes, 0)]
    os.close(reading)
    os.close(writing)
    return result == -errno.ETIME


def test_time_that_was_waited_is_no_hot_work(ring):
    # A process that is interrupted in the middle of its work has worked for long, so it may try again.
    assert any(waits_out_its_time_beside_a_slow_completion(ring) for _ in range(10))


@contextlib.contextmanager
def signalled():
    """This thread is sent a signal again and again: one that comes before a wait has begun does not end it."""
    is_over, here = threading.Event(), threading.get_ident()

    def send():
        while not is_over.wait(PAUSE_S):
            signal.pthread_kill(here, signal.SIGUSR2)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        is_over.set()
        sender.join()


def test_a_signal_ends_the_wait(ring):
    came = []
    previous = signal.signal(signal.SIGUSR2, lambda *_: came.append(True))
    try:
        for _ in range(2):  # the first wait submits the wake-up's poll as well
            before = len(came)
            with signalled():
                assert wait(ring, 60_000, is_signalled=True) == -errno.EINTR
                while ring in plain_rings and len(came) == before:
                    assert wait(ring, 60_000, is_signalled=True) == -errno.EINTR
            assert len(came) > before
    finally:
        signal.signal(signal.SIGUSR2, previous)
