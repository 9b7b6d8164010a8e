"""trio's own primitives under the ring's IOManager, and the ring's operations awaited by tasks."""

import errno
import functools
import gc
import logging
import os
import signal
import socket
import threading
import weakref
from dataclasses import replace

import pytest
import trio
import trio.testing

from tests.support.backends import on_io_uring
from tests.support.contents import content
from tests.support.descriptors import open_descriptors
from tests.support.waiting import PATIENCE_S, eventually, let_pass, stopwatch, takes_at_least
from tpc_broker._ring import lib
from tpc_broker.engine import ring as ring_module
from tpc_broker.engine import trio_ring
from tpc_broker.engine.ring import SERVE_AFTER_NS, Backend, Feature, Ring, RingUnavailable, hidden_features
from tpc_broker.engine.trio_ring import RingOptions, current_ring
from tpc_broker.native_bytes import pinned

HOW = {
    "all-features": RingOptions(hidden=frozenset(), backend=Backend.IO_URING, stall_log_ms=50),
    "as-5.8": RingOptions(hidden=frozenset(Feature), backend=Backend.IO_URING, stall_log_ms=50),
    "as-6.0": RingOptions(hidden=hidden_features("6.0"), backend=Backend.IO_URING, stall_log_ms=50),
    "plain": RingOptions(hidden=frozenset(), backend=Backend.PLAIN, stall_log_ms=50),
}


@pytest.fixture(params=[name if name == "plain" else on_io_uring(name) for name in HOW], autouse=True)
def run(request):
    def run_on_ring(function, *arguments, **more):
        options = replace(HOW[request.param], stall_ms=more.pop("stall_ms", 0))
        return trio_ring.run(function, *arguments, options=options, **more)

    return run_on_ring


def test_result_and_exception_of_the_main_task(run):
    async def main(value):
        await trio.lowlevel.checkpoint()
        return value + 1

    assert run(main, 4) == 5

    async def fails():
        raise KeyError("x")

    with pytest.raises(KeyError):
        run(fails)


@pytest.mark.parametrize("is_virtual", [False, True])
def test_timeouts_and_nurseries(run, is_virtual):
    async def main():
        order = []

        async def sleeper(name, seconds):
            await trio.sleep(seconds)
            order.append(name)

        with takes_at_least(0 if is_virtual else 0.09):
            async with trio.open_nursery() as nursery:
                for name, seconds in (("c", 0.09), ("a", 0.03), ("b", 0.06)):
                    nursery.start_soon(sleeper, name, seconds)
        with trio.move_on_after(0.02) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught
        return order

    if is_virtual:
        assert run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == ["a", "b", "c"]
    else:
        assert sorted(run(main)) == ["a", "b", "c"], "a machine that pauses has them end in one turn, in any order"


def test_autojump_clock_and_wait_all_tasks_blocked(run):
    async def main():
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        await trio.sleep(3600)
        return trio.current_time() - started

    assert run(main, clock=trio.testing.MockClock(autojump_threshold=0)) == pytest.approx(3600)


def test_threads_wake_the_loop(run):
    async def main():
        def work():
            let_pass(0.02)
            return trio.from_thread.run_sync(trio.current_time)

        assert isinstance(await trio.to_thread.run_sync(work), float)

    run(main)


def test_signals(run):
    async def main():
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGUSR1]).start()
            return await anext(aiter(signals))

    assert run(main) == signal.SIGUSR1


def test_keyboard_interrupt_reaches_a_waiting_loop(run):
    async def main():
        threading.Timer(0.05, signal.raise_signal, [signal.SIGINT]).start()
        await trio.sleep(3 * PATIENCE_S)

    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with SIG_IGN
    try:
        with takes_at_least(0), pytest.raises(KeyboardInterrupt):
            run(main)
    finally:
        signal.signal(signal.SIGINT, inherited)


def test_subprocess(run):
    async def main():
        return (await trio.run_process(["cat"], stdin=b"through a pipe", capture_stdout=True)).stdout

    assert run(main) == b"through a pipe"


def test_trio_sockets(run):
    async def echo(stream):
        async for data in stream:
            await stream.send_all(data)

    async def main():
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(functools.partial(trio.serve_tcp, echo, 0, host="127.0.0.1"))
            port = listeners[0].socket.getsockname()[1]
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                payload = content(2_000_000)
                nursery.start_soon(stream.send_all, payload)
                back = bytearray()
                while len(back) < len(payload):
                    back += await stream.receive_some()
            nursery.cancel_scope.cancel()
        return bytes(back) == payload

    assert run(main)


def test_readiness_busy_cancelled_and_closing(run):
    async def main():
        left, right = socket.socketpair()
        with left, right:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(0.02) as scope:
                    await trio.lowlevel.wait_readable(left)
                assert scope.cancelled_caught
                nursery.start_soon(trio.lowlevel.wait_readable, left)
                await trio.testing.wait_all_tasks_blocked()
                await trio.lowlevel.wait_writable(left)
                assert trio.lowlevel.current_statistics().io_statistics.tasks_waiting_read >= 1
                with pytest.raises(trio.BusyResourceError):
                    await trio.lowlevel.wait_readable(left)
                right.send(b"x")

            async def closed():
                left.recv(1)
                with pytest.raises(trio.ClosedResourceError):
                    await trio.lowlevel.wait_readable(left)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(closed)
                await trio.testing.wait_all_tasks_blocked()
                trio.lowlevel.notify_closing(left)
        with pytest.raises(OSError, match="Bad file descriptor"):
            await trio.lowlevel.wait_readable(900)

    run(main)


def test_a_cancelled_read_ends_with_its_completion_and_keeps_no_buffer(run):
    async def main():
        ring = current_ring()
        reading, writing = os.pipe()
        buffer = bytearray(100)
        for _ in range(20):
            with trio.move_on_after(0.002) as scope:
                await ring.read(reading, buffer, 0)
            assert scope.cancelled_caught
        assert ring.statistics().operations <= 1  # trio's own wake-up
        buffer.extend(b"no export holds the buffer any more")
        os.close(reading)
        os.close(writing)

    run(main)


def test_while_a_cancelled_operation_is_under_way_its_buffer_is_held(run):
    async def main():
        ring = current_ring()
        reading, writing = os.pipe()
        buffer = bytearray(100)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ring.read, reading, buffer, 0)
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
                with pytest.raises(BufferError):  # cancelled, but the completion has not come
                    buffer.extend(b"x")
        buffer.extend(b"x")
        os.close(reading)
        os.close(writing)

    run(main)


def test_a_started_operation_holds_its_buffer_until_its_completion(run):
    async def main():
        ring = current_ring()
        reading, writing = os.pipe()
        buffer = bytearray(10)
        results = []
        done = trio.Event()

        def complete(result, _flags):
            results.append(result)
            done.set()

        def start():
            pointer, size, held = pinned(buffer, writable=True)
            ring.start(lib.tpc_operation_read, reading, pointer, size, 0, callback=complete, held=held)

        start()
        gc.collect()
        with pytest.raises(BufferError):
            buffer.extend(b"x")
        os.write(writing, b"hello")
        await done.wait()
        assert results == [5]
        buffer.extend(b"x")
        assert buffer[:5] == b"hello"
        os.close(reading)
        os.close(writing)

    run(main)


def test_only_a_timeout_counts_as_no_events():
    """trio's clock jumps, and idle waiters wake, when get_events is false."""
    manager = trio_ring.RingIOManager(Ring(), RingOptions(stall_ms=0))
    manager.force_wakeup()
    assert manager.get_events(10)
    assert not manager.get_events(0.001)
    manager.close()


def test_another_thread_may_not_wait():
    """As guest mode would."""
    manager = trio_ring.RingIOManager(Ring(), RingOptions(stall_ms=0))
    caught = []

    def wait():
        try:
            manager.get_events(0)
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    manager.close()
    assert "guest mode" in caught[0]


def test_a_trio_whose_private_names_have_moved_is_refused(monkeypatch):
    monkeypatch.delattr(trio_ring.trio_run, "TheIOManager")
    with pytest.raises(RuntimeError, match=r"range in pyproject\.toml"):
        trio_ring.check_trio()


def writing_end(path):
    """Of a named pipe that somebody opens for reading; None: nobody does yet."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def test_an_open_that_beats_its_cancel_is_delivered(run, tmp_path):
    """Opening a named pipe waits for who opens its other end."""

    async def main():
        ring = current_ring()
        path = str(tmp_path / "pipe")
        os.mkfifo(path)
        before = open_descriptors()
        got = []

        async def opens():
            got.append(await ring.open(path, os.O_RDONLY))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(opens)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(PATIENCE_S):
                while (other_end := writing_end(path)) is None:
                    await trio.sleep(0.001)
            nursery.cancel_scope.cancel()
        os.close(other_end)
        for fd in got:
            os.close(fd)
        assert open_descriptors() == before
        return len(got)

    assert run(main) in {0, 1}


def test_file_operations_and_their_errors(run, tmp_path):
    async def main():
        ring = current_ring()
        path = str(tmp_path / "file")
        fd = await ring.open(path, os.O_RDWR | os.O_CREAT)
        assert not os.get_inheritable(fd)
        assert await ring.write(fd, b"0123456789", 0, durable=True) == 10
        assert await ring.writev(fd, [b"ab", bytearray(b"cd"), memoryview(b"ef")], 10) == 6
        assert await ring.write_fdatasync(fd, b"xyz", 16) == 3
        await ring.fallocate(fd, 1, 0, 1 << 20)
        assert os.fstat(fd).st_size == 19
        assert os.fstat(fd).st_blocks * 512 >= 1 << 20
        await ring.ftruncate(fd, 18)
        await ring.fdatasync(fd)
        await ring.fsync(fd)
        buffer = bytearray(100)
        assert await ring.read(fd, buffer, 0) == 18
        assert bytes(buffer[:18]) == b"0123456789abcdefxy"
        assert await ring.read(fd, buffer, 18) == 0
        await ring.close_fd(fd)
        with pytest.raises(OSError) as caught:
            await ring.close_fd(fd)
        assert caught.value.errno == errno.EBADF
        with pytest.raises(OSError) as caught:
            await ring.write_fdatasync(fd, b"x", 0)
        assert caught.value.errno == errno.EBADF
        await ring.unlink(path)
        with pytest.raises(FileNotFoundError) as caught:
            await ring.open(path, os.O_RDONLY)
        assert caught.value.filename == path
        with pytest.raises(FileNotFoundError):
            await ring.unlink(path)

    run(main)


def test_a_full_device_is_an_error(run):
    async def main():
        fd = await current_ring().open("/dev/full", os.O_WRONLY)
        with pytest.raises(OSError) as caught:
            await current_ring().write(fd, b"x", 0)
        assert caught.value.errno == errno.ENOSPC
        os.close(fd)

    run(main)


def test_a_stalled_turn_is_counted_and_logged_with_its_place(run, caplog, monkeypatch):
    monkeypatch.setattr(trio_ring, "STALL_LOG_INTERVAL_S", 0)  # another turn may stall by itself on a busy machine

    took_s: list[float] = []

    def said(where="holds_the_core"):
        return [line for record in caplog.records if where in (line := record.getMessage())]

    async def holds_the_core():
        let_pass(0.08)  # that is the fault
        eventually(said, "its line")

    async def main():
        passed_s = stopwatch()
        let_pass(0.02)  # counted, and not worth a line
        took_s.append(passed_s())
        await trio.sleep(0.01)
        await holds_the_core()
        await trio.sleep(0.01)
        return current_ring().statistics()

    with caplog.at_level(logging.WARNING):
        statistics = run(main, stall_ms=10)
    assert statistics.stalls >= 1
    assert statistics.stall_ns_max >= 80_000_000
    [line] = said()
    assert "for 50 ms" in line
    assert said("let_pass") in ([], [line]) or took_s[0] >= 0.05


def test_what_a_stalled_turn_had_is_not_kept_with_its_line(run, caplog):
    class Held:
        pass

    async def holds_the_core():
        held = Held()
        eventually(lambda: caplog.records, "a line")  # that is the fault
        return weakref.ref(held)

    async def main():
        held = await holds_the_core()
        with trio.fail_after(PATIENCE_S):
            while held() is not None:  # the other thread may be in the midst of its line
                await trio.sleep(0.001)

    with caplog.at_level(logging.WARNING):
        run(main, stall_ms=10)


def test_current_ring_needs_a_ring(run):
    async def main():
        current_ring()

    with pytest.raises(RuntimeError, match="does not run on a ring"):
        trio.run(main)
    with pytest.raises(RuntimeError, match="from a task"):
        current_ring()


def test_trio_has_its_own_manager_back_after_the_run(run, request):
    async def backend():
        return trio.lowlevel.current_statistics().io_statistics.backend

    assert run(backend) == ("plain" if request.node.callspec.params["run"] == "plain" else "io_uring")
    assert trio.run(backend) == "epoll"


def test_the_feature_switch_says_what_is_allowed():
    assert hidden_features("5.8") == frozenset(Feature)
    assert hidden_features("6.1") == {Feature.FTRUNCATE, Feature.CACHESTAT}
    assert hidden_features("send_zc, EXT_ARG") == {Feature.SEND_ZC, Feature.EXT_ARG}
    with pytest.raises(ValueError, match="multishot_accept"):
        hidden_features("warp")


def test_a_refused_ring_is_one_clear_sentence(monkeypatch):
    class Refusing:
        def __getattr__(self, name):
            return getattr(module_lib, name)

        def tpc_ring_new(self, *_):
            return -errno.EPERM

    module_lib = ring_module.lib
    monkeypatch.setattr(ring_module, "lib", Refusing())
    with pytest.raises(RingUnavailable, match="seccomp"):
        Ring()


def test_between_the_steps_of_a_turn_c_gets_its_turn():
    """Two tasks run in the same turn, each for longer than C is kept waiting."""

    async def main():
        ring = current_ring()
        started = trio.Event()

        async def work():
            await started.wait()
            let_pass(2 * SERVE_AFTER_NS / 1e9)

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(work)
            await trio.testing.wait_all_tasks_blocked()
            before = ring.statistics()
            started.set()
        return ring.statistics().serves - before.serves

    assert trio_ring.run(main) >= 9
