"""One connection of the asynchronous client against brokers that do what they like, on both loops."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.scripted_broker import (
    CLOSE,
    NO_ANSWER,
    Behind,
    Bytewise,
    Cut,
    Raw,
    Twice,
    as_usual,
    scripted_client,
    size_of,
)
from tpc_broker.client.errors import ClientError, ClosedError, UnreachableError, UnsupportedError
from tpc_broker.client.net.frames import BUFFER_BYTES, FRAME_BYTES_MAX, Frames
from tpc_broker.kafka import ApiKey, EncodeError, messages

LONG = 3 * BUFFER_BYTES + 17


def produce(text="", version=9):
    """A request that is told from others by the script."""
    return ApiKey.PRODUCE, version, messages.ProduceRequest(transactional_id=text, acks=-1)


def echo(asked):
    """An answer that says to what."""
    kind = messages.ProduceResponse
    return kind(responses=[kind.TopicProduceResponse(name=asked.message.transactional_id)])


def text_of(answer):
    return answer.responses[0].name


async def ask(channel, text):
    return text_of(await channel.call(ApiKey.PRODUCE, lambda _version: produce(text)[2]))


def answering(instead):
    """A script: ``instead`` of asked says what becomes of each Produce."""

    async def script(asked):
        return instead(asked) if asked.key == ApiKey.PRODUCE else None

    return script


@asynccontextmanager
async def channel_to(script=as_usual, **settings):
    async with scripted_client(script, **settings) as (client, brokers):
        yield await client.fleet.channel(0), brokers


@on_both_loops
async def test_answers_come_whole_however_they_are_cut():
    def instead(asked):
        text = asked.message.transactional_id
        return {"b": Bytewise, "t": lambda answer: answer}[text[0]](echo(asked))

    async with channel_to(answering(instead)) as (channel, _brokers):
        assert await ask(channel, "bytewise") == "bytewise"
        got = []
        for number in range(50):
            channel.start(*produce(f"t{number}"), got.append)
        assert await ask(channel, "t-last") == "t-last"
        assert [text_of(answer) for answer in got] == [f"t{number}" for number in range(50)]


@on_both_loops
async def test_a_long_answer_between_short_ones():
    async def script(asked):
        if asked.key != ApiKey.SASL_AUTHENTICATE:
            return None
        answer = messages.SaslAuthenticateResponse(auth_bytes=b"x" * (LONG if asked.number % 2 else 1))
        return Bytewise(answer) if asked.number == 0 else answer

    async with channel_to(script) as (channel, _brokers):
        for number in range(6):
            request = messages.SaslAuthenticateRequest()
            answer = await channel.call(ApiKey.SASL_AUTHENTICATE, lambda _version, request=request: request)
            assert len(answer.auth_bytes) == (LONG if number % 2 else 1)


@pytest.mark.parametrize(
    ("instead", "said"),
    [
        (lambda _asked: CLOSE, "the broker closed it"),
        (lambda asked: Cut(echo(asked), 0), "the broker closed it"),
        (lambda asked: Cut(echo(asked), 3), "the broker closed it"),
        (lambda asked: Cut(echo(asked), 7), "the broker closed it"),
        (lambda _asked: Raw(size_of(2**31 - 1)), "a frame of 2147483647 bytes; allowed are 1 to"),
        (lambda _asked: Raw(size_of(-1)), "a frame of -1 bytes"),
        (lambda _asked: Raw(size_of(0)), "a frame of 0 bytes"),
        (lambda _asked: Raw(b"HTTP/1.1 400 Bad Request\r\n"), "it speaks HTTP"),
        (lambda _asked: Raw(b"\x15\x03\x03\x00\x02\x02\x46"), "it speaks TLS"),
        (lambda _asked: Raw(size_of(4) + b"\0\0\0\0"), "came for request|cannot be read"),
        (lambda _asked: Raw(size_of(1) + b"\0"), "cannot be read"),
    ],
)  # fmt: skip
@on_both_loops
async def test_what_is_no_answer_ends_the_connection_with_its_reason(instead, said):
    async with channel_to(answering(instead)) as (channel, _brokers):
        later = []
        channel.start(*produce("first"), later.append)
        with pytest.raises(UnreachableError, match=f"the connection to .*scripted:9092 broke: .*({said})"):
            await ask(channel, "second")
        assert channel.is_closed
        assert isinstance(later[0], UnreachableError)
        with pytest.raises(UnreachableError, match="broke"):
            channel.start(*produce(), later.append)
        assert len(later) == 1


@on_both_loops
async def test_an_answer_twice_and_answers_in_the_wrong_order():
    async with channel_to(answering(lambda asked: Twice(echo(asked)))) as (channel, _brokers):
        assert await ask(channel, "once") == "once"
        with pytest.raises(UnreachableError):
            await ask(channel, "again")
    later = []
    wrong = answering(lambda asked: (Behind, lambda answer: answer)[asked.number](echo(asked)))
    async with channel_to(wrong) as (channel, _brokers):
        channel.start(*produce("first"), later.append)
        with pytest.raises(UnreachableError, match="the answer to request 3 came for request 2"):
            await ask(channel, "second")
        assert isinstance(later[0], UnreachableError)


@on_both_loops
async def test_the_oldest_request_is_not_waited_for_longer_than_was_said():
    script = answering(lambda _asked: NO_ANSWER)
    async with channel_to(script, request_seconds=0.05) as (channel, _brokers):
        with pytest.raises(UnreachableError, match=r"no answer to produce within 0\.05 s \(request_seconds\)"):
            await ask(channel, "never")
    async with channel_to(script) as (channel, _brokers):
        got = []
        channel.start(*produce(), got.append, wait_seconds=100)
        channel.start(*produce(), got.append)
        channel.check_age(channel._since + 129)
        assert not channel.is_closed
        channel.check_age(channel._since + 131)
        assert [str(error) for error in got] == [
            "the connection to broker 0 at scripted:9092 broke: no answer to produce within 130 s (request_seconds)"
        ] * 2


@on_both_loops
async def test_what_the_broker_does_not_take_yet_is_sent_when_it_does():
    async with channel_to(answering(echo)) as (channel, brokers):
        (line,) = brokers.lines
        line.room = 5
        got = []
        for number in range(20):
            channel.start(*produce(f"t{number}"), got.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, channel, "last")
            for room in range(1, 400):
                line.room = room
                await anyio.lowlevel.checkpoint()
            assert not got or len(got) < 20 or not brokers.lines[0].is_closed
            line.room = None
        assert [text_of(answer) for answer in got] == [f"t{number}" for number in range(20)]


@on_both_loops
async def test_a_cancelled_wait_leaves_the_connection_whole():
    answers = anyio.Event()

    async def script(asked):
        if asked.key == ApiKey.PRODUCE:
            if asked.message.transactional_id == "late":
                await answers.wait()
            return echo(asked)
        return None

    async with channel_to(script) as (channel, brokers):
        async for cancelled in at_each_await(lambda: ask(channel, f"n{len(brokers.asked)}")):
            assert not channel.is_closed
            assert await ask(channel, f"behind-{cancelled.place}") == f"behind-{cancelled.place}"
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, channel, "late")
                await brokers.wait_asked(ApiKey.PRODUCE, len(brokers.asked_of(ApiKey.PRODUCE)) + 1)
                scope.cancel()
        answers.set()
        assert await ask(channel, "after") == "after"
        assert channel.in_flight_count == 0
        assert len(brokers.lines) == 1


@on_both_loops
async def test_what_cannot_be_encoded_leaves_the_connection_whole():
    async with channel_to(answering(echo)) as (channel, _brokers):
        for _ in range(2):
            with pytest.raises(EncodeError):
                channel.start(ApiKey.PRODUCE, 9, messages.ProduceRequest(acks="all"), print)
        assert await ask(channel, "after") == "after"


@on_both_loops
async def test_a_closed_client_says_so():
    async with scripted_client(answering(lambda _asked: NO_ANSWER)) as (client, _brokers):
        channel = await client.fleet.any_channel()
        got = []
        channel.start(*produce(), got.append)
    assert isinstance(got[0], ClosedError)
    for use in (client.fleet.any_channel, lambda: client.fleet.topic("t"), lambda: client.fleet.own_channel(0)):
        with pytest.raises(ClosedError):
            await use()
    with pytest.raises(ClosedError):
        await ask(channel, "late")


@on_both_loops
async def test_old_and_new_brokers():
    for offered in ((0, 0), (0, 2), (0, 3)):
        async with channel_to(answering(echo), versions={ApiKey.API_VERSIONS: offered}) as (channel, brokers):
            asked = [one.version for one in brokers.asked_of(ApiKey.API_VERSIONS)]
            assert asked == ([3] if offered[1] == 3 else [3, offered[1]])
            assert await ask(channel, "x") == "x"
    versions = {ApiKey.PRODUCE: (3, 5), ApiKey.FETCH: None, ApiKey.LIST_OFFSETS: (90, 99)}
    async with channel_to(answering(echo), versions=versions) as (channel, brokers):
        assert channel.version(ApiKey.PRODUCE) == 5
        assert not channel.has(ApiKey.FETCH)
        for key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS):
            with pytest.raises(UnsupportedError, match="broker 0 at scripted:9092: the broker and this client have no"):
                channel.version(key)


@on_both_loops
async def test_a_broker_without_versions_is_not_talked_to():
    async def script(asked):
        if asked.key == ApiKey.API_VERSIONS:
            return messages.ApiVersionsResponse(error_code=42)
        return None

    async with scripted_client(script) as (client, brokers):
        with pytest.raises(UnsupportedError, match="scripted:9092 does not say what it can"):
            await client.fleet.any_channel()
        assert brokers.lines[0].is_closed


@pytest.mark.parametrize("version", [5, 9])
@on_both_loops
async def test_who_is_asked_to_be_silent_is(version):
    """Since KIP-219: before, the broker has waited itself."""
    asked = []

    async def script(one):
        if one.key != ApiKey.PRODUCE:
            return None
        asked.append(anyio.current_time())
        answer = echo(one)
        answer.throttle_time_ms = 80 if one.message.transactional_id == "a" else 0
        return answer

    async with channel_to(script, versions={ApiKey.PRODUCE: (3, version)}) as (channel, _brokers):
        assert await ask(channel, "a") == "a"
        is_silent = version == 9
        assert (channel.silent_until > 0) is is_silent
        got = []
        channel.start(*produce("b", version), got.append)
        assert channel.in_flight_count == 1
        assert await ask(channel, "c") == "c"
        assert text_of(got[0]) == "b"
        assert channel.silent_until == 0
        if is_silent:
            assert asked[1] - asked[0] >= 0.079


@on_both_loops
async def test_what_was_held_back_fails_with_the_channel():
    def instead(asked):
        answer = echo(asked)
        answer.throttle_time_ms = 60_000
        return answer

    async with channel_to(answering(instead)) as (channel, brokers):
        assert await ask(channel, "a") == "a"
        got = []
        channel.start(*produce("b"), got.append)
        brokers.lines[0].close()
        with pytest.raises(UnreachableError, match="closed it"):
            await ask(channel, "c")
        assert isinstance(got[0], UnreachableError)


def test_frames_take_memory_only_for_sizes_that_can_be():
    taken = []
    frames = Frames(taken.append)
    view = frames.buffer()
    view[:4] = size_of(FRAME_BYTES_MAX + 1)
    with pytest.raises(ClientError, match="allowed are 1 to"):
        frames.received(4)
    assert taken == []


def test_frames_cut_anywhere_are_the_same():
    bodies = [b"a", b"bc" * BUFFER_BYTES, b"d" * 7, b"e" * (BUFFER_BYTES - 4), b"f" * (BUFFER_BYTES - 3), b"g"]
    stream = b"".join(size_of(len(body)) + body for body in bodies)
    for piece in (31, 4099, BUFFER_BYTES - 1, BUFFER_BYTES, len(stream)):
        taken = []
        frames = Frames(taken.append)
        left = stream
        while left:
            view = frames.buffer()
            count = min(piece, len(view), len(left))
            view[:count] = left[:count]
            frames.received(count)
            left = left[count:]
        assert [bytes(frame) for frame in taken] == bodies
