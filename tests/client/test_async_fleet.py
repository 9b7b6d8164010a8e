"""Connections and metadata of the asynchronous client, on both loops."""

from __future__ import annotations

import pytest

from tests.support.both_loops import on_both_loops
from tpc_broker.client import connect
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import UnknownTopicError
from tpc_broker.client.net import fleet
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages


@on_both_loops
async def test_leaders_and_coordinators_are_found(shared_broker):
    async with connect(shared_broker.bootstrap) as client:
        known = client.fleet
        name = "async-fleet"
        topic = messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        await (await known.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _v: request)
        for partition in range(3):
            where = TopicPartition(name, partition)
            channel = await known.leader(where)
            assert known.leader_nowait(where) is channel
        assert await known.answered(lambda: known.coordinator(CoordinatorKind.GROUP, "some"))


@on_both_loops
async def test_a_topic_that_is_missing_is_named(shared_broker, monkeypatch):
    monkeypatch.setattr(fleet, "MISSING_TOPIC_SECONDS", 0.05)
    async with connect(shared_broker.bootstrap) as client:
        with pytest.raises(UnknownTopicError, match="no-such-topic"):
            await client.fleet.topic("no-such-topic")


@on_both_loops
async def test_what_the_block_raises_comes_out_as_it_is(shared_broker):
    with pytest.raises(ZeroDivisionError):
        async with connect(shared_broker.bootstrap) as client:
            await client.fleet.broker_ids()
            raise ZeroDivisionError
