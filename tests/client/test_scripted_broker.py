"""The scripted broker itself: it does what its script says."""

from __future__ import annotations

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.scripted_broker import scripted_brokers, scripted_client
from tpc_broker.client import connect
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages


@on_both_loops
async def test_usual_answers_and_a_script():
    async def script(asked):
        if asked.key == ApiKey.PRODUCE:
            return messages.ProduceResponse(throttle_time_ms=7)
        return None

    async with scripted_client(script, topics={"t": 3}, brokers_count=2) as (client, brokers):
        channel = await client.fleet.leader(TopicPartition("t", 1))
        assert channel.broker_id == 1
        answer = await channel.call(ApiKey.PRODUCE, lambda _v: messages.ProduceRequest(acks=-1))
        assert answer.throttle_time_ms == 7
        (asked,) = brokers.asked_of(ApiKey.PRODUCE)
        assert asked.broker_id == 1
        assert asked.message.acks == -1


@on_both_loops
async def test_on_sockets():
    async with scripted_brokers(sockets=True, topics={"t": 1}) as brokers, connect(brokers.bootstrap) as client:
        assert set((await client.fleet.topic("t")).leaders) == {0}


@on_both_loops
async def test_what_has_no_answer_fails_the_test():
    with pytest.raises(AssertionError, match="no answer to"):
        async with scripted_client() as (client, _brokers):
            await (await client.fleet.any_channel()).call(ApiKey.PRODUCE, lambda _v: messages.ProduceRequest())


@on_both_loops
async def test_each_await_is_cancelled_once():
    seen = []

    async def three():
        for number in range(3):
            await anyio.lowlevel.checkpoint()
            seen.append(number)
        return "end"

    counts = []
    async for cancelled in at_each_await(three):
        assert cancelled.place == len(counts) + 1
        counts.append(len(seen))
        seen.clear()
    assert cancelled.is_done
    assert cancelled.result == "end"
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 3
