"""Members of groups of both protocols against a broker: joining, sharing, committing, leaving."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.recording_reader import RecordingReader
from tpc_broker.client import connect
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.membership.group import GroupMembership
from tpc_broker.client.membership.settings import GroupSettings, Subscription
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages

PROTOCOLS = ("classic", "consumer")


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


@pytest.mark.parametrize("protocol", PROTOCOLS)
@on_both_loops
async def test_members_share_commit_and_leave(shared_broker, protocol, name):
    settings = GroupSettings(name, protocol=protocol, heartbeat_seconds=0.1)
    async with connect(shared_broker.bootstrap) as client:
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
