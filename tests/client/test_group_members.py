"""Members of groups of both protocols against a broker, alone and beside members that are librdkafka."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from confluent_kafka import Consumer

from tests.support.both_loops import on_both_loops
from tests.support.recording_reader import RecordingReader
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import connect
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.membership.group import GroupMembership
from tpc_broker.client.membership.settings import GroupSettings, Subscription
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages

KINDS = {
    "range": ({"protocol": "classic", "assignors": ("range",)}, {"partition.assignment.strategy": "range"}),
    "cooperative": (
        {"protocol": "classic", "assignors": ("cooperative-sticky",)},
        {"partition.assignment.strategy": "cooperative-sticky"},
    ),
    "unsaid": ({"protocol": "classic"}, {}),
    "consumer": ({}, {"group.protocol": "consumer"}),
}
"""Of a group: what our member is told, and what librdkafka is."""
OF_CLASSIC = {"session.timeout.ms": 1000 * PATIENCE_S, "heartbeat.interval.ms": 100}


@pytest.fixture
def name(request):
    """Of a topic and a group that only this test has."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")


async def make_topic(fleet: Any, name: str, partitions: int = 4) -> frozenset[TopicPartition]:
    topic = messages.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    await (await fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _v: request)
    await fleet.refresh([name])
    return frozenset(TopicPartition(name, partition) for partition in range(partitions))


@asynccontextmanager
async def member(fleet: Any, subscription: Subscription, settings: GroupSettings):
    """A member that leaves at the end of the block."""
    reader = RecordingReader()
    membership = GroupMembership(fleet, reader, subscription, settings)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(membership.run)
        try:
            yield reader, membership
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await membership.leave()


@on_both_loops
async def test_members_share_commit_and_leave(shared_broker, name):
    await share_commit_and_leave(shared_broker.bootstrap, "classic", name)


def test_members_by_kip_848_share_commit_and_leave(shared_broker, name):
    anyio.run(share_commit_and_leave, shared_broker.bootstrap, "consumer", name, backend="asyncio")


async def share_commit_and_leave(bootstrap, protocol, name):
    settings = GroupSettings(name, protocol=protocol, heartbeat_seconds=0.1)
    async with connect(bootstrap) as client:
        places = await make_topic(client.fleet, name)
        async with member(client.fleet, Subscription((name,)), settings) as (first, membership):
            await first.wait_until(lambda: first.held.keys() == places)
            assert set(first.held.values()) == {None}
            first.done = {where: Position(where.partition + 7, metadata="m") for where in places}
            async with member(client.fleet, Subscription((name,)), settings) as (second, _other):
                await second.wait_until(lambda: len(second.held) == 2)
                await first.wait_until(lambda: len(first.held) == 2)
                assert first.held.keys() | second.held.keys() == places
                assert {where: held.offset for where, held in second.held.items()} == {
                    where: where.partition + 7 for where in second.held
                }
                await membership.commit({where: Position(100) for where in first.held})
            await first.wait_until(lambda: first.held.keys() == places)


@asynccontextmanager
async def librdkafka(bootstrap, topic, group, config):
    """A member that polls."""
    details = config if "group.protocol" in config else {**OF_CLASSIC, **config}
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", **details}
    )
    consumer.subscribe([topic])

    async def poll():
        while True:
            await anyio.to_thread.run_sync(consumer.poll, 0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(poll)
        try:
            yield lambda: {TopicPartition(place.topic, place.partition) for place in consumer.assignment()}
        finally:
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(consumer.close)


async def shares(places, reader, theirs):
    """Until both have half of it."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            mine, other = set(reader.held), theirs()
            if len(mine) == len(other) == len(places) // 2:
                assert mine | other == places
                return
            await anyio.sleep(0.02)


async def beside_librdkafka(bootstrap, name, kind):
    ours, config = KINDS[kind]
    settings = GroupSettings(name, heartbeat_seconds=0.1, **ours)
    async with connect(bootstrap) as client:
        places = await make_topic(client.fleet, name)
        async with librdkafka(bootstrap, name, name, config) as theirs:
            async with member(client.fleet, Subscription((name,)), settings) as (first, membership):
                await shares(places, first, theirs)
                await membership.commit({where: Position(5) for where in first.held})
                async with member(client.fleet, Subscription((name,)), settings) as (second, _membership):
                    await second.wait_until(lambda: second.held)
                await shares(places, first, theirs)
            with anyio.fail_after(PATIENCE_S):
                while theirs() != places:
                    await anyio.sleep(0.02)
        if kind in {"unsaid", "consumer"}:  # the group would have other assignors; all would be the same again
            return
        async with member(client.fleet, Subscription((name,)), settings) as (first, _membership):
            await first.wait_until(lambda: first.held.keys() == places)
            async with librdkafka(bootstrap, name, name, config) as theirs:
                await shares(places, first, theirs)
            await first.wait_until(lambda: first.held.keys() == places)


@pytest.mark.parametrize(("kind", "backend"), [
    ("range", "trio"), *(
        pytest.param(kind, backend, marks=pytest.mark.clients)
        for kind, backend in (("cooperative", "asyncio"), ("unsaid", "trio"), ("consumer", "trio"))
    ),
])  # fmt: skip
def test_beside_members_that_are_librdkafka(shared_broker, name, kind, backend):
    anyio.run(beside_librdkafka, shared_broker.bootstrap, name, kind, backend=backend)


@on_both_loops
async def test_an_expression_is_the_brokers(shared_broker, name):
    settings = GroupSettings(name)
    async with connect(shared_broker.bootstrap) as client:
        places = await make_topic(client.fleet, f"{name}-1", 2)
        await make_topic(client.fleet, f"other-{name}", 2)
        async with member(client.fleet, Subscription((), f"{name}-[0-9]"), settings) as (reader, _membership):
            await reader.wait_until(lambda: reader.held.keys() == places)


@on_both_loops
async def test_streams_share_a_topic_and_go_on_where_the_group_is(shared_broker, name):
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client.fleet, name, 2)
        sent = [b"%d" % number for number in range(20)]
        for number, value in enumerate(sent):
            await client.send(name, value, partition=number % 2)
        seen = []
        for stop in (7, 21):  # what the first loop breaks at is not finished
            async with client.read(name, group=name) as stream:
                async for record in stream:
                    seen.append(record.value)
                    if len(seen) == stop:
                        break
        assert sorted(seen) == sorted([*sent, seen[6]])


@pytest.mark.clients
@on_both_loops
async def test_who_works_too_long_at_a_record_reads_on_as_a_new_member(shared_broker, name):
    settings = GroupSettings(name, max_work_seconds=0.3)
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client.fleet, name, 1)
        for _ in range(3):
            await client.send(name, b"v")
        seen = []
        async with client.read(name, group=settings, commit_seconds=600) as stream:
            async for record in stream:
                seen.append(record.offset)
                if len(seen) == 2:
                    with anyio.fail_after(PATIENCE_S):
                        while stream.assignment or await members_of(client.fleet, name):
                            await anyio.sleep(0.02)
                if len(seen) == 5:
                    break
        assert seen == [0, 1, 0, 1, 2], "nothing was committed, and what was lost is read again"


async def members_of(fleet: Any, group: str) -> list[Any]:
    channel = await fleet.coordinator(CoordinatorKind.GROUP, group)
    request = messages.ConsumerGroupDescribeRequest(group_ids=[group])
    (told,) = (await channel.call(ApiKey.CONSUMER_GROUP_DESCRIBE, lambda _v: request)).groups
    return list(told.members)
