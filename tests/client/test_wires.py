"""The asynchronous client's sockets, on both loops."""

from __future__ import annotations

import contextlib
import socket
from contextlib import asynccontextmanager

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.ports import free_port_range
from tests.support.scripted_broker import CLOSE, NO_ANSWER, Bytewise, scripted_brokers
from tpc_broker.client import connect
from tpc_broker.client.errors import ClosedError, UnreachableError
from tpc_broker.client.net import wires
from tpc_broker.client.requests import Node
from tpc_broker.kafka import ApiKey, messages

LONG = b"long" * 1_000_000


def answering(instead):
    """A script for requests that carry bytes: ``instead`` of asked and what comes back."""

    async def script(asked):
        if asked.key != ApiKey.SASL_AUTHENTICATE:
            return None
        return instead(asked, messages.SaslAuthenticateResponse(auth_bytes=bytes(asked.message.auth_bytes)))

    return script


def request(data):
    return messages.SaslAuthenticateRequest(auth_bytes=data)


async def ask(channel, data):
    answer = await channel.call(ApiKey.SASL_AUTHENTICATE, lambda _version: request(data))
    return bytes(answer.auth_bytes)


@on_both_loops
async def test_much_goes_in_both_directions():
    script = answering(lambda _asked, answer: answer)
    async with scripted_brokers(script, sockets=True) as brokers, connect(brokers.bootstrap) as client:
        channel = await client.fleet.any_channel()
        got = []
        for number in range(6):
            channel.start(ApiKey.SASL_AUTHENTICATE, 2, request(LONG if number % 2 else b"short"), got.append)
        assert await ask(channel, LONG) == LONG
        assert [bytes(answer.auth_bytes) for answer in got] == [b"short", LONG] * 3


@on_both_loops
async def test_bytes_come_one_by_one():
    script = answering(lambda _asked, answer: Bytewise(answer))
    async with scripted_brokers(script, sockets=True) as brokers, connect(brokers.bootstrap) as client:
        channel = await client.fleet.any_channel()
        for number in range(20):
            assert await ask(channel, b"x" * number) == b"x" * number


@on_both_loops
async def test_a_wait_cancelled_at_each_await_leaves_the_connection_whole():
    script = answering(lambda _asked, answer: answer)
    async with scripted_brokers(script, sockets=True) as brokers, connect(brokers.bootstrap) as client:
        channel = await client.fleet.any_channel()
        async for cancelled in at_each_await(lambda: ask(channel, LONG)):
            assert await ask(channel, b"%d" % cancelled.place) == b"%d" % cancelled.place
        async for cancelled in at_each_await(lambda: client.fleet.own_channel(0)):
            if cancelled.result is not None:
                cancelled.result.close()
        assert await ask(channel, LONG) == LONG


@on_both_loops
async def test_a_broker_that_closes_and_a_client_that_is_closed_while_much_is_unsent():
    goes_on = anyio.Event()

    async def script(asked):
        if asked.key == ApiKey.SASL_AUTHENTICATE:
            await goes_on.wait()
            return CLOSE if asked.number else NO_ANSWER
        return None

    async with scripted_brokers(script, sockets=True) as brokers:
        async with connect(brokers.bootstrap) as client:
            channel = await client.fleet.any_channel()
            got = []
            for _ in range(4):
                channel.start(ApiKey.SASL_AUTHENTICATE, 2, request(LONG), got.append)
            goes_on.set()
            with pytest.raises(UnreachableError, match=r"the connection to .*127\.0\.0\.1:\d+.* broke: "):
                await ask(channel, LONG)
            assert {type(error) for error in got} == {UnreachableError}
        got.clear()
        goes_on = anyio.Event()
        async with connect(brokers.bootstrap) as client:
            channel = await client.fleet.any_channel()
            for _ in range(4):
                channel.start(ApiKey.SASL_AUTHENTICATE, 2, request(LONG), got.append)
        assert {type(error) for error in got} == {ClosedError}
        goes_on.set()


@on_both_loops
async def test_addresses_are_tried_one_after_the_other(monkeypatch):
    async with scripted_brokers(sockets=True) as brokers:
        (node,) = brokers.nodes.values()
        wrong, right = ((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in (1, node.port))

        async def addresses(_node):
            return [wrong, right]

        monkeypatch.setattr(wires, "_addresses", addresses)
        (await wires.connect_plain(Node("two.test", 1))).close()


@on_both_loops
async def test_who_cannot_be_reached_is_named():
    port = free_port_range(1)
    async with connect(f"127.0.0.1:{port}", retry_seconds=0.1) as client:
        with pytest.raises(UnreachableError, match=rf"no connection to 127\.0\.0\.1:{port}: .*refused") as told:
            await client.fleet.topic("t")
        assert "(retry_seconds)" in str(told.value)
    async with connect("no-such-host.invalid:9092") as client:
        with pytest.raises(UnreachableError, match=r"no connection to no-such-host\.invalid:9092: "):
            await client.fleet.any_channel()


class CountingSocket:
    def __init__(self, under):
        self._under = under
        self.reads_count = 0

    def recv_into(self, buffer):
        self.reads_count += 1
        return self._under.recv_into(buffer)

    def __getattr__(self, name):
        return getattr(self._under, name)


class Told:
    """A receiver with little room; ``then`` is called with what came."""

    def __init__(self, then):
        self._buffer = memoryview(bytearray(8))
        self._then = then

    def buffer(self):
        return self._buffer

    def received(self, count):
        self._then(bytes(self._buffer[:count]))


@asynccontextmanager
async def wire_and_peer():
    """A wire as `connect_plain` makes it, whose reads are counted, and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        wire = await wires.connect_plain(Node("127.0.0.1", listener.getsockname()[1]))
        peer, _address = listener.accept()
        wire._socket = CountingSocket(wire._socket)
        with peer:
            yield wire, peer
        wire.close()


@on_both_loops
async def test_what_comes_whole_is_read_by_one_system_call():
    """A second one would only say that there is no more, while somebody waits for the answer."""
    got = []
    came = anyio.Event()

    def then(data):
        got.append(data)
        came.set()

    async with wire_and_peer() as (wire, peer), anyio.create_task_group() as tasks:
        tasks.start_soon(wires.pushed, wire, Told(then))
        for number in range(5):
            came = anyio.Event()
            peer.send(b"%d" % number)
            await came.wait()
        assert got == [b"%d" % number for number in range(5)]
        await anyio.wait_all_tasks_blocked()
        assert wire._socket.reads_count == 5
        while b"".join(got) != b"01234" + b"much" * 10:
            came = anyio.Event()
            if len(got) == 5:
                peer.send(b"much" * 10)
            await came.wait()
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_who_is_given_something_may_close_the_wire():
    async with wire_and_peer() as (wire, peer):
        peer.send(b"x" * 20)
        with contextlib.suppress(anyio.ClosedResourceError):
            await wires.pushed(wire, Told(lambda _data: wire.close()))
        assert wire._socket.fileno() == -1
