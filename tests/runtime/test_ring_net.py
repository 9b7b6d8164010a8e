"""Streams on the ring: trio's own checks for streams, back-pressure, half-close, closing under way, descriptors."""

import os
import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from tpc_broker.runtime import net, trio_ring
from tpc_broker.runtime.net import (
    RECEIVE_AHEAD_BYTES_MAX,
    SEND_QUEUE_BYTES_MAX,
    RingListener,
    RingStream,
    connect_stream,
    packed_address,
)
from tpc_broker.runtime.ring import Feature
from tpc_broker.runtime.trio_ring import RingOptions, current_ring

HIDDEN = {"all-features": frozenset(), "as-5.8": frozenset(Feature)}


@pytest.fixture(params=HIDDEN)
def run(request):
    def run_on_ring(function):
        return trio_ring.run(function, options=RingOptions(hidden=HIDDEN[request.param], stall_ms=0))

    return run_on_ring


def stream_pair(**buffers):
    left, right = socket.socketpair()
    for end in (left, right):
        for option, size in buffers.items():
            end.setsockopt(socket.SOL_SOCKET, getattr(socket, option), size)
    return RingStream(current_ring(), left), RingStream(current_ring(), right)


def open_descriptors():
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


async def read_all(stream):
    received = bytearray()
    while data := await stream.receive_some():
        received += data
    return bytes(received)


def test_trios_checks_for_half_closeable_streams(run, monkeypatch):
    monkeypatch.setattr(net, "UNYIELDING_CALLS_MAX", 1)  # the one intended difference

    async def make_pair():
        return stream_pair()

    async def make_clogged_pair():
        left, right = stream_pair(SO_SNDBUF=4096)
        for end in (left, right):
            while end._queued_bytes < SEND_QUEUE_BYTES_MAX:
                with trio.move_on_after(0.05):
                    await end.send_all(bytes(16384))
        return left, right

    async def main():
        await trio.testing.check_half_closeable_stream(make_pair, make_clogged_pair)

    run(main)


@pytest.mark.parametrize("size", [1, 100, 5000, 3_000_000])
def test_bytes_arrive_whole_and_in_order_over_tcp(run, size):
    async def main():
        listening = socket.create_server(("127.0.0.1", 0))
        payload = os.urandom(size)
        async with trio.open_nursery() as nursery, RingListener(current_ring(), listening) as listener:
            address = listening.getsockname()

            async def echo():
                async with await listener.accept() as stream:
                    while data := await stream.receive_some():
                        await stream.send_all(data)

            nursery.start_soon(echo)
            async with await connect_stream(current_ring(), socket.AF_INET, address) as stream:

                async def send():
                    for start in range(0, size, 70_000):
                        await stream.send_all(memoryview(payload)[start : start + 70_000])
                    await stream.send_eof()

                nursery.start_soon(send)
                assert await read_all(stream) == payload

    run(main)


def test_unix_path_and_the_errors_of_connecting(run, tmp_path):
    async def main():
        path = str(tmp_path / "mailbox")
        with pytest.raises(FileNotFoundError):
            await connect_stream(current_ring(), socket.AF_UNIX, path)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen()
        async with RingListener(current_ring(), listening) as listener:
            client = await connect_stream(current_ring(), socket.AF_UNIX, path)
            server = await listener.accept()
            await client.send_all(b"credit")
            assert await server.receive_some(3) == b"cre"
            assert await server.receive_some() == b"dit"
            await client.aclose()
            assert await server.receive_some() == b""
            await server.aclose()
        with pytest.raises(ConnectionRefusedError):
            await connect_stream(current_ring(), socket.AF_UNIX, path)
        with pytest.raises(OSError, match="too long"):
            packed_address(socket.AF_UNIX, "x" * 108)

    run(main)


def test_a_sender_without_reader_is_held_up_and_the_reader_takes_only_its_share(run):
    async def main():
        left, right = stream_pair()
        sent = 0
        with trio.move_on_after(0.3) as scope:
            while True:
                await left.send_all(bytes(10_000))
                sent += 10_000
                if sent == 10_000:
                    assert len(await right.receive_some(10)) == 10  # arms the receive
        assert scope.cancelled_caught
        socket_bytes_max = 2 * 1024 * 1024
        assert right._ahead_bytes < RECEIVE_AHEAD_BYTES_MAX + socket_bytes_max // 2
        assert sent < RECEIVE_AHEAD_BYTES_MAX + SEND_QUEUE_BYTES_MAX + socket_bytes_max
        async with trio.open_nursery() as nursery:
            nursery.start_soon(left.aclose)
            assert len(await read_all(right)) + 10 >= sent
        await right.aclose()

    run(main)


def test_closing_wakes_the_receiver_and_leaks_nothing(run):
    async def main():
        current_ring().receive_buffers()
        before = open_descriptors()
        left, right = stream_pair()

        async def receive():
            with pytest.raises(trio.ClosedResourceError):
                await left.receive_some()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await trio.testing.wait_all_tasks_blocked()
            await left.aclose()
        assert await right.receive_some() == b""
        with pytest.raises(trio.ClosedResourceError):
            await left.send_all(b"x")
        await right.aclose()
        assert open_descriptors() == before
        assert current_ring().statistics().operations <= 1  # trio's own wake-up

    run(main)


def test_closing_with_unsendable_bytes_ends_when_it_is_cancelled(run):
    async def main():
        left, right = stream_pair()
        with trio.move_on_after(0.2):
            while True:
                await left.send_all(bytes(100_000))
        with trio.move_on_after(0.05) as scope:
            await left.aclose()
        assert scope.cancelled_caught
        assert left.fileno() == -1
        await right.aclose()

    run(main)


def test_a_peer_that_is_gone_breaks_the_stream(run):
    async def main():
        left, right = stream_pair()
        await right.aclose()
        with pytest.raises(trio.BrokenResourceError):
            for _ in range(20):
                await left.send_all(b"x")
                await trio.sleep(0.001)
        await left.aclose()

    run(main)


def test_closing_a_listener_ends_its_acceptors(run):
    async def main():
        listener = RingListener(current_ring(), socket.create_server(("127.0.0.1", 0)))

        async def accept():
            with pytest.raises(trio.ClosedResourceError):
                await listener.accept()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            nursery.start_soon(accept)
            await trio.testing.wait_all_tasks_blocked()
            await listener.aclose()

    run(main)
