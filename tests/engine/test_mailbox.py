"""Mailboxes between cores: calls, credits, failures. The listeners are made as the supervisor makes them."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager

import pytest
import trio
import trio.lowlevel

from tpc_broker import limits
from tpc_broker.engine import mailbox as mailbox_module
from tpc_broker.engine.mailbox import Mailboxes, encode_frame, make_mailbox_listeners
from tpc_broker.errors import CallFailedError, CoreDownError, JournalStoppedError, MailboxFullError, NotDeliveredError
from tpc_broker.model import CoreId
from tpc_broker.storage.upkeep import refusals


@asynccontextmanager
async def two_cores():
    names, listeners = make_mailbox_listeners(2)
    cores = [Mailboxes(CoreId(core), names, listeners[core]) for core in range(2)]
    async with trio.open_nursery() as nursery:
        for core in cores:
            await nursery.start(core.run)
        yield cores
        nursery.cancel_scope.cancel()


async def echo(caller, payload, blobs):
    return {"caller": caller, **payload}, [blob[::-1] for blob in blobs]


def test_a_call_carries_payload_and_blobs_both_ways() -> None:
    async def main() -> None:
        async with two_cores() as (zero, one):
            one.serve("echo", echo)
            payload, blobs = await zero.call(CoreId(1), "echo", {"text": "grüße"}, [b"abc", b"", b"x" * 300_000])
            assert payload == {"caller": 0, "text": "grüße"}
            assert blobs == [b"cba", b"", b"x" * 300_000]

    trio.run(main)


def test_a_call_to_the_own_core_needs_no_socket() -> None:
    async def main() -> None:
        async with two_cores() as (zero, _one):
            zero.serve("echo", echo)
            assert await zero.call(CoreId(0), "echo", {"a": 1}) == ({"caller": 0, "a": 1}, [])

    trio.run(main)


def test_calls_overlap_and_each_gets_its_own_answer() -> None:
    async def main() -> None:
        release = [trio.Event() for _ in range(10)]

        async def slow(_caller, payload, _blobs):
            await release[payload["number"]].wait()
            return {"number": payload["number"]}, []

        async with two_cores() as (zero, one):
            one.serve("slow", slow)
            answers = []

            async def ask(number: int) -> None:
                payload, _ = await zero.call(CoreId(1), "slow", {"number": number})
                assert payload["number"] == number
                answers.append(number)

            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(ask, number)
                for number in reversed(range(10)):
                    release[number].set()
                    while number not in answers:
                        await trio.sleep(0.001)
            assert answers == list(reversed(range(10)))

    trio.run(main)


def test_a_full_mailbox_refuses_at_once_and_recovers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "MAILBOX_CALLS_MAX", 3)
    monkeypatch.setattr(refusals, "QUIET_S", 0.0)

    async def main() -> None:
        go_on = trio.Event()

        async def wait(_caller, _payload, _blobs):
            await go_on.wait()
            return {}, []

        async with two_cores() as (zero, one):
            one.serve("wait", wait)
            one.serve("echo", echo)
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(zero.call, CoreId(1), "wait", {})
                while zero.statistics().under_way < 3:
                    await trio.sleep(0.001)
                with pytest.raises(MailboxFullError, match="3 calls to core 1"):
                    await zero.call(CoreId(1), "echo", {})
                go_on.set()
            assert zero.statistics().refused_full == 1
            assert (await zero.call(CoreId(1), "echo", {"again": True}))[0]["again"] is True

    trio.run(main)
    assert "calls for clients are refused until this is over (3 to core 1 are under way)" in caplog.text
    assert "1 calls for clients were refused" in caplog.text


def test_a_handler_that_raises_is_told_to_the_caller_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def broken(_caller, _payload, _blobs):
            raise ValueError("no such thing")

        async with two_cores() as (zero, one):
            one.serve("broken", broken)
            one.serve("echo", echo)
            with pytest.raises(CallFailedError, match="ValueError: no such thing"):
                await zero.call(CoreId(1), "broken", {})
            assert await zero.call(CoreId(1), "echo", {})

    trio.run(main)
    assert "broken from core 0 failed" in caplog.text


def test_what_comes_to_a_core_that_stops_is_told_to_the_caller_and_is_no_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async def stopping(_caller, _payload, _blobs):
            raise JournalStoppedError("the core is stopping")

        async with two_cores() as (zero, one):
            one.serve("change", stopping)
            with pytest.raises(CallFailedError, match="JournalStoppedError: the core is stopping"):
                await zero.call(CoreId(1), "change", {})

    trio.run(main)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("kind", [CoreDownError, NotDeliveredError, CallFailedError])
def test_that_a_third_one_gives_no_answer_is_told_to_the_caller_and_is_no_fault(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """Core 0 asks other nodes for the other cores, and a node may be gone."""

    async def main() -> None:
        async def passed_on(_caller, _payload, _blobs):
            raise kind("node 3 did not answer in 5000 ms")

        async with two_cores() as (zero, one):
            one.serve("ask", passed_on)
            with pytest.raises(CallFailedError, match=f"{kind.__name__}: node 3 did not answer in 5000 ms"):
                await zero.call(CoreId(1), "ask", {})

    caplog.set_level("INFO")
    trio.run(main)
    assert "node 3 did not answer in 5000 ms" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_core_that_is_not_there_fails_before_delivery_and_one_that_dies_after() -> None:
    async def main() -> None:
        names, listeners = make_mailbox_listeners(2)
        zero = Mailboxes(CoreId(0), names, listeners[0])
        one = Mailboxes(CoreId(1), names, listeners[1])
        life_of_one = trio.CancelScope()

        async def live() -> None:
            with life_of_one:
                await one.run()

        async def die_when_called(_caller, _payload, _blobs):
            life_of_one.cancel()
            await trio.sleep_forever()

        one.serve("die", die_when_called)
        async with trio.open_nursery() as nursery:
            await nursery.start(zero.run)
            nursery.start_soon(live)
            with pytest.raises(CoreDownError):
                await zero.call(CoreId(1), "die", {})
            with pytest.raises(NotDeliveredError):
                await zero.call(CoreId(1), "die", {})
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_an_oversized_message_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAILBOX_FRAME_BYTES_MAX", 1000)
    with pytest.raises(mailbox_module.MailboxError, match="over 1000"):
        encode_frame(mailbox_module.CALL, 1, {}, [b"x" * 1001])


def test_the_socket_of_a_link_is_handed_over_and_others_are_closed() -> None:
    async def main() -> None:
        async with two_cores() as (zero, one):
            taken = []
            one.on_link = lambda core, sock: taken.append((core, sock.detach()))
            async with trio.SocketStream(await zero.dial_link(CoreId(1))) as ours:
                while not taken:
                    await trio.lowlevel.checkpoint()
                ((caller, descriptor),) = taken
                assert caller == 0
                with socket.socket(fileno=descriptor) as theirs:
                    theirs.send(b"from C")
                    assert await ours.receive_some() == b"from C"
            async with trio.SocketStream(await one.dial_link(CoreId(0))) as unwanted:
                assert await unwanted.receive_some() == b""

    trio.run(main)
