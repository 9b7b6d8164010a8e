"""The FastStream broker on a broker in memory: publishing, acknowledging in all of its ways, and its end."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json

import anyio
import pytest
from faststream import FastStream
from faststream.exceptions import (
    FeatureNotSupportedException,
    IncorrectState,
    NackMessage,
    RejectMessage,
    StopConsume,
    SubscriberNotFound,
)
from faststream.message import AckStatus
from faststream.specification import AsyncAPI

from tests.support.waiting import PATIENCE_S
from tpc_broker.client import Delivered, TopicPartition, connect
from tpc_broker.client.errors import ClosedError, UnknownTopicError, UnreachableError
from tpc_broker.client.net import fleet
from tpc_broker.client.values import Fate
from tpc_broker.faststream import AckPolicy, TestTpcBroker, TpcBroker, TpcMessage, TpcResponse, TpcRouter
from tpc_broker.testing import MemoryBroker

PASSES_S = 0.05
TOPICS = {"in": 1, "out": 1, "dead": 1, "many": 3}
GROUP = "some"


def on_asyncio(test):
    """``async def test_…(memory)``, with a broker in memory: FastStream runs there only."""

    @functools.wraps(test)
    def run(**arguments):
        async def main():
            with anyio.fail_after(PATIENCE_S):
                async with MemoryBroker(topics=TOPICS) as memory:
                    await test(memory, **arguments)

        anyio.run(main, backend="asyncio")

    del run.__wrapped__
    _memory, *others = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature(others)
    return run


async def committed(memory, topic="in"):
    """Where a new member of the group would go on."""
    async with connect(memory) as client:
        assignment = {TopicPartition(topic, 0): None}
        async with client.read(assignment=assignment, group=GROUP, start=1_000_000_000_000_000) as stream:
            while not stream.positions:
                await anyio.sleep(0.001)
            return stream.positions[TopicPartition(topic, 0)].offset


async def records_of(memory, topic, count):
    async with connect(memory) as client, client.read(topic) as stream:
        return [await anext(stream) for _number in range(count)]


class Calls:
    """What a handler was called with."""

    def __init__(self):
        self.bodies, self._came = [], anyio.Event()

    def add(self, body):
        self.bodies.append(body)
        self._came.set()
        return len(self.bodies)

    async def reach(self, count):
        while len(self.bodies) < count:
            self._came = anyio.Event()
            await self._came.wait()


@on_asyncio
async def test_a_record_goes_out_with_all_that_it_has(memory):
    async with TpcBroker(memory) as broker:
        done = await broker.publish(
            {"a": 1}, "many", key="k", partition=2, timestamp=5_000, headers={"h": "1"}, correlation_id="c",
            reply_to="out",
        )  # fmt: skip
        assert done == Delivered("many", 2, 0, 5_000)
        slip = await broker.publish("text", "many", waits=False)
        assert (await slip).topic == "many"
        assert slip.fate is Fate.DELIVERED
        assert await broker.ping(timeout=PATIENCE_S)
    first, second = sorted(await records_of(memory, "many", 2), key=lambda record: record.key is None)
    assert (first.key, json.loads(first.value), first.timestamp) == (b"k", {"a": 1}, 5_000)
    assert dict(first.headers) == {
        "content-type": b"application/json", "correlation_id": b"c", "reply_to": b"out", "h": b"1",
    }  # fmt: skip
    assert second.value == b"text"


@on_asyncio
async def test_a_null_value_is_published_with_its_key(memory):
    async with TpcBroker(memory) as broker:
        await broker.publish(None, "in", key=b"gone")
        await broker.publish(None, "in")
    assert [record.value for record in await records_of(memory, "in", 2)] == [None, b""]


@on_asyncio
async def test_what_a_handler_returns_is_published(memory):
    broker = TpcBroker(memory)

    @broker.subscriber("in", group=GROUP)
    @broker.publisher("out", headers={"by": "us"})
    async def handle(body: str, message: TpcMessage):
        return TpcResponse(body.upper(), key=message.raw_message.key, timestamp=7_000)

    async with broker:
        await broker.start()
        await broker.publish("a", "in", key="k", correlation_id="c")
        (record,) = await records_of(memory, "out", 1)
    assert (record.key, record.value, record.timestamp) == (b"k", b"A", 7_000)
    assert dict(record.headers)["by"] == b"us"
    assert dict(record.headers)["correlation_id"] == b"c"
    assert await committed(memory) == 1


@on_asyncio
async def test_who_asks_for_an_answer_gets_it(memory):
    broker = TpcBroker(memory)

    @broker.subscriber("in", group=GROUP)
    async def handle(body: str):
        return f"answer to {body}"

    async with broker:
        await broker.start()
        await broker.publish("a", "in", reply_to="out")
        assert (await records_of(memory, "out", 1))[0].value == b"answer to a"


@on_asyncio
async def test_requests_wait_for_their_own_answers(memory):
    broker = TpcBroker(memory)

    @broker.subscriber("in", concurrency=8, order="none")
    async def handle(number: int):
        for _ in range(8 - number):
            await anyio.lowlevel.checkpoint()
        return TpcResponse({"twice": 2 * number}, headers={"by": "us"})

    publisher = broker.publisher("in", reply_to="out")
    async with broker:
        await broker.publish("of nobody", "out")
        await broker.start()
        answers = await asyncio.gather(*(broker.request(n, "in", reply_to="out") for n in range(5)))
        assert [await answer.decode() for answer in answers] == [{"twice": 2 * n} for n in range(5)]
        assert {answer.headers["by"] for answer in answers} == {"us"}
        assert await (await publisher.request(7, correlation_id="mine")).decode() == {"twice": 14}
        with pytest.raises(TimeoutError):
            await broker.request(1, "many", reply_to="out", timeout=PASSES_S)
        with pytest.raises(ValueError, match="reply_to="):
            await broker.publisher("in").request(1)
        assert await (await broker.request(3, "in", reply_to="out")).decode() == {"twice": 6}


@on_asyncio
async def test_a_request_whose_answer_can_come_nowhere_fails(memory, monkeypatch):
    monkeypatch.setattr(fleet, "MISSING_TOPIC_SECONDS", 0.0)
    broker = TpcBroker(memory)
    with pytest.raises(FeatureNotSupportedException, match="not connected"):
        await broker.request(1, "in", reply_to="out")
    async with broker:
        await broker.start()
        for _ in range(2):
            with pytest.raises(UnknownTopicError, match="there is no topic 'nowhere'"):
                await broker.request(1, "in", reply_to="nowhere")
        asked = asyncio.create_task(broker.request(1, "in", reply_to="out"))
        async with connect(memory) as client, client.read("in") as stream:
            await anext(stream)
    with pytest.raises(ClosedError, match="the broker was stopped"):
        await asked


@pytest.mark.parametrize("how", ["nack()", "NackMessage", "an error"])
@on_asyncio
async def test_what_is_nacked_is_handled_again_before_what_is_behind(memory, how):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber("in", group=GROUP, retry_seconds=0.001, ack_policy=AckPolicy.NACK_ON_ERROR)
    async def handle(body: str, message: TpcMessage):
        if calls.add(body) > 2:
            return
        if how == "nack()":
            await message.nack()
        elif how == "NackMessage":
            raise NackMessage
        else:
            raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("a", "in", key="k")
        await broker.publish("b", "in", key="k")
        await calls.reach(4)
    assert calls.bodies == ["a", "a", "a", "b"]
    assert await committed(memory) == 2


@on_asyncio
async def test_what_was_nacked_too_often_is_a_dead_letter(memory):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber(
        "in", group=GROUP, retries=2, retry_seconds=0.001, dead_letter="dead", ack_policy=AckPolicy.NACK_ON_ERROR
    )
    async def handle(body: str):
        calls.add(body)
        raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("a", "in", key="k")
        (record,) = await records_of(memory, "dead", 1)
    told = dict(record.headers)
    assert (record.key, record.value, told["dead_letter.attempts"]) == (b"k", b"a", b"3")
    assert b"ValueError: a" in told["dead_letter.text"]
    assert calls.bodies == ["a"] * 3
    assert await committed(memory) == 1


@pytest.mark.parametrize("how", ["reject()", "RejectMessage", "an error"])
@pytest.mark.parametrize("dead_letter", [None, "dead"])
@on_asyncio
async def test_what_is_rejected_is_finished(memory, how, dead_letter):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber("in", group=GROUP, dead_letter=dead_letter, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def handle(body: str, message: TpcMessage):
        calls.add(body)
        if how == "reject()":
            await message.reject()
        elif how == "RejectMessage":
            raise RejectMessage
        else:
            raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("a", "in")
        await broker.publish("b", "in")
        await calls.reach(2)
        if dead_letter is not None:
            assert [record.value for record in await records_of(memory, dead_letter, 2)] == [b"a", b"b"]
    assert calls.bodies == ["a", "b"]
    assert await committed(memory) == 2


@on_asyncio
async def test_an_error_finishes_by_default(memory):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber("in", group=GROUP)
    async def handle(body: str):
        calls.add(body)
        raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("a", "in")
        await broker.publish("b", "in")
        await calls.reach(2)
    assert await committed(memory) == 2


@on_asyncio
async def test_a_manual_acknowledgement_may_come_from_another_task(memory):
    broker, kept, calls = TpcBroker(memory), [], Calls()

    @broker.subscriber("in", group=GROUP, concurrency=4, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: TpcMessage):
        kept.append(message)
        calls.add(body)

    async with broker:
        await broker.start()
        for body in "abc":
            await broker.publish(body, "in", key=body)
        await calls.reach(3)
        first, second, third = sorted(kept, key=lambda message: message.raw_message.offset)
        await first.ack()
        await third.ack()
        assert third.committed is AckStatus.ACKED
        await second.reject()
    assert await committed(memory) == 3


@on_asyncio
async def test_what_is_not_finished_when_it_ends_is_handled_again(memory):
    broker, calls = TpcBroker(memory, graceful_timeout=0.05), Calls()

    @broker.subscriber("in", group=GROUP, concurrency=2, ack_policy=AckPolicy.MANUAL)
    async def handle(body: str, message: TpcMessage):
        if calls.add(body) == 1:
            await message.ack()

    async with broker:
        await broker.start()
        await broker.publish("a", "in", key="a")
        await calls.reach(1)
        await broker.publish("b", "in", key="b")
        await calls.reach(2)
    assert await committed(memory) == 1


@on_asyncio
async def test_at_most_once_commits_first(memory):
    broker, positions, calls = TpcBroker(memory), [], Calls()

    @broker.subscriber("in", group=GROUP, ack_policy=AckPolicy.ACK_FIRST)
    async def handle(body: str):
        positions.append(await committed(memory))
        calls.add(body)
        raise ValueError(body)

    async with broker:
        await broker.start()
        await broker.publish("a", "in")
        await calls.reach(1)
        await broker.publish("b", "in")
        await calls.reach(2)
    assert positions == [1, 2]


@on_asyncio
async def test_a_handler_can_stop_its_subscriber(memory):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber("in", group=GROUP)
    async def handle(body: str):
        calls.add(body)
        raise StopConsume

    async with broker:
        await broker.start()
        await broker.publish("a", "in")
        await calls.reach(1)
        await broker.publish("b", "in")
        while any(not task.done() for each in broker.subscribers for task in each.tasks):
            await anyio.sleep(0.001)
    assert calls.bodies == ["a"]


@on_asyncio
async def test_a_subscriber_without_a_handler_gives_one_after_the_other(memory):
    async with TpcBroker(memory) as broker:
        subscriber = broker.subscriber("in", group=GROUP)
        await subscriber.start()
        assert await subscriber.get_one(timeout=PASSES_S) is None
        await broker.publish("a", "in")
        await broker.publish("b", "in")
        first, second = await subscriber.get_one(timeout=PATIENCE_S), await subscriber.get_one(timeout=PATIENCE_S)
        assert [await first.decode(), await second.decode()] == ["a", "b"]
        await subscriber.stop()
        other = broker.subscriber("in")
        async for message in other:
            assert await message.decode() == "a"
            break
        assert await (await other.get_one(timeout=PATIENCE_S)).decode() == "b"


@on_asyncio
async def test_an_app_runs_and_ends(memory):
    broker, calls = TpcBroker(memory), Calls()
    app, router = FastStream(broker), TpcRouter("i")

    @router.subscriber("n", group=GROUP)
    async def handle(body: int):
        calls.add(body)

    broker.include_router(router)

    @app.after_startup
    async def publish():
        await broker.publish(5, "in")

    running = asyncio.create_task(app.run())
    await calls.reach(1)
    app.exit()
    await running
    assert calls.bodies == [5]
    assert await committed(memory) == 1
    with pytest.raises(IncorrectState):
        _ = broker.config.client
    assert not await broker.ping()


@on_asyncio
async def test_a_cluster_that_is_not_there_is_named(memory):
    assert memory.bootstrap != "127.0.0.1:1"
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        async with TpcBroker("127.0.0.1:1", client={"retry_seconds": 0.01}):
            pass


def test_an_app_on_a_broker_of_processes(shared_broker):
    names = "faststream-in", "faststream-out"
    broker, calls = TpcBroker(shared_broker.bootstrap), Calls()

    @broker.subscriber(names[0], group="faststream", retry_seconds=0.001, concurrency=8)
    @broker.publisher(names[1])
    async def handle(body: int, message: TpcMessage):
        if calls.add(body) % 3 == 0:
            raise NackMessage
        return TpcResponse(body + 1, key=message.raw_message.key)

    async def main():
        async with connect(shared_broker.bootstrap) as client:
            for name in names:
                await client.admin.topics.create(name, partitions=2)
            async with broker:
                await broker.start()
                for number in range(20):
                    await broker.publish(number, names[0], key=str(number % 5))
                async with client.read(names[1]) as stream:
                    found = [await anext(stream) for _number in range(20)]
            for name in names:
                await client.admin.topics.delete(name)
        for key in range(5):
            of_key = [int(record.value) for record in found if record.key == b"%d" % key]
            assert of_key == list(range(key + 1, 21, 5)), "in the order of the key, whatever was nacked"

    anyio.run(main, backend="asyncio")


@on_asyncio
async def test_batches_are_lists_of_one_partition_and_finished_as_a_whole(memory):
    broker, calls, raw = TpcBroker(memory), Calls(), []

    @broker.subscriber("many", group=GROUP, batch=True, max_records=4)
    async def handle(bodies: list[int], message: TpcMessage):
        records = message.raw_message
        assert [int(record.value) for record in records] == bodies
        assert len({record.partition for record in records}) == 1
        assert [headers["n"] for headers in message.batch_headers] == [str(body) for body in bodies]
        raw.append(records)
        calls.bodies += bodies
        calls.add(None)

    async with broker:
        for number in range(20):
            await broker.publish(number, "many", partition=number % 2, headers={"n": str(number)})
        await broker.start()
        await calls.reach(20 + 6)
        while len({body for body in calls.bodies if body is not None}) < 20:
            await anyio.sleep(0.001)
    assert sorted(body for body in calls.bodies if body is not None) == list(range(20))
    assert max(map(len, raw)) == 4
    for partition in range(2):
        offsets = [record.offset for records in raw for record in records if record.partition == partition]
        assert offsets == list(range(10))
    assert await committed(memory, "many") == 10


@on_asyncio
async def test_a_batch_that_is_nacked_is_handled_again_and_then_all_of_it_is_dead(memory):
    broker, calls = TpcBroker(memory), Calls()

    @broker.subscriber(
        "in", group=GROUP, batch=True, max_records=2, retry_seconds=0.001, retries=2, dead_letter="dead",
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )  # fmt: skip
    async def handle(bodies: list[str]):
        calls.add(bodies)
        if "b" in bodies:
            raise ValueError(bodies)

    async with broker:
        for body in "abcd":
            await broker.publish(body, "in")
        await broker.start()
        await calls.reach(4)
    assert calls.bodies == [["a", "b"]] * 3 + [["c", "d"]]
    letters = await records_of(memory, "dead", 2)
    assert [letter.value for letter in letters] == [b"a", b"b"]
    assert {dict(letter.headers)["dead_letter.attempts"] for letter in letters} == {b"3"}
    assert await committed(memory) == 4


@on_asyncio
async def test_a_batch_that_pauses_at_the_end_is_read_again(memory):
    broker, calls = TpcBroker(memory, graceful_timeout=2 * PATIENCE_S), Calls()

    @broker.subscriber("in", group=GROUP, batch=True, max_records=1, retry_seconds=2 * PATIENCE_S)
    async def handle(bodies: list[str]):
        calls.add(bodies)
        if bodies == ["b"]:
            raise NackMessage

    async with broker:
        for body in "abc":
            await broker.publish(body, "in")
        await broker.start()
        await calls.reach(2)
    assert calls.bodies == [["a"], ["b"]]
    assert await committed(memory) == 1


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("policy", [AckPolicy.ACK_FIRST, AckPolicy.ACK])
@on_asyncio
async def test_who_waits_for_records_ends_at_once(memory, policy, batch):
    broker, calls = TpcBroker(memory, graceful_timeout=2 * PATIENCE_S), Calls()

    @broker.subscriber("in", group=GROUP, ack_policy=policy, batch=batch)
    async def handle(body):
        calls.add(body)

    async with broker:
        await broker.publish("a", "in")
        await broker.start()
        await calls.reach(1)
    assert calls.bodies == [["a"] if batch else "a"]
    assert await committed(memory) == 1


def test_what_a_subscriber_cannot_be():
    broker = TpcBroker()
    with pytest.raises(ValueError, match="needs a topic"):
        broker.subscriber()
    with pytest.raises(ValueError, match="dead_letter"):
        broker.subscriber("in", retries=3)
    with pytest.raises(ValueError, match="max_records"):
        broker.subscriber("in", batch=True, max_records=0)


def test_it_is_described():
    broker = TpcBroker("some:9092", description="ours")
    broker.subscriber("in", "other", group=GROUP)(_handle)
    broker.publisher("out", title="Out", schema=str)
    told = AsyncAPI(broker).to_specification().to_jsonable()
    assert {channel["address"] for channel in told["channels"].values()} == {"in", "other", "out"}
    assert told["servers"]["development"]["host"] == "some:9092"


async def _handle(body: str):
    """For descriptions."""


def test_handlers_are_called_at_once_in_tests():
    broker = TpcBroker("some:9092")

    @broker.subscriber("in")
    @broker.publisher("out")
    async def handle(body: str, message: TpcMessage):
        if message.raw_message.key is None:
            raise ValueError(body)
        return body.upper()

    async def main():
        async with TestTpcBroker(broker):
            await broker.publish("a", "in", key="k")
            handle.mock.assert_called_once_with("a")
            with pytest.raises(ValueError, match="b"):
                await broker.publish("b", "in")

    anyio.run(main, backend="asyncio")


def test_requests_are_answered_at_once_in_tests():
    broker = TpcBroker("some:9092")

    @broker.subscriber("in")
    async def handle(number: int):
        return 2 * number

    async def main():
        async with TestTpcBroker(broker):
            assert await (await broker.request(5, "in", reply_to="out")).decode() == 10
            with pytest.raises(SubscriberNotFound):
                await broker.request(5, "nobody", reply_to="out")

    anyio.run(main, backend="asyncio")


def test_a_handler_of_batches_is_called_with_one_record_in_tests():
    broker = TpcBroker("some:9092")

    @broker.subscriber("in", batch=True)
    async def handle(bodies: list[int]):
        """Its mock has the call."""

    async def main():
        async with TestTpcBroker(broker):
            await broker.publish(5, "in")
            handle.mock.assert_called_once_with([5])

    anyio.run(main, backend="asyncio")
