"""Metadata, channels and repetitions of the asynchronous client against scripted brokers, on both loops."""

from __future__ import annotations

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.scripted_broker import CLOSE, NO_ANSWER, as_usual, scripted_client
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import (
    AuthenticationError,
    ClientError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
)
from tpc_broker.client.net import directory, fleet
from tpc_broker.client.requests import Node, TopicPartition
from tpc_broker.kafka import ApiKey, ErrorCode, messages

HERE = TopicPartition("t", 0)


async def together(count, ask):
    """What so many tasks get that ask at the same time."""
    got = []

    async def one():
        try:
            got.append(await ask())
        except ClientError as error:
            got.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return got


@pytest.fixture
def quick(monkeypatch):
    """Waits of seconds are short ones."""
    monkeypatch.setattr(fleet, "MISSING_TOPIC_SECONDS", 0.2)
    monkeypatch.setattr(fleet, "FIRST_ANSWER_SECONDS", 0.05)
    monkeypatch.setattr(fleet, "AGE_CHECK_SECONDS", 0.02)
    monkeypatch.setattr(directory, "QUIET_SECONDS", 0.02)


@on_both_loops
async def test_many_tasks_share_one_connection_and_one_question():
    async with scripted_client(topics={"t": 2}, brokers_count=2) as (client, brokers):
        channels = await together(50, lambda: client.fleet.leader(HERE))
        assert len(set(channels)) == 1
        assert len(brokers.asked_of(ApiKey.METADATA)) <= 2
        assert len(brokers.dials) == 1
        coordinators = await together(50, lambda: client.fleet.coordinator(CoordinatorKind.GROUP, "g"))
        assert set(coordinators) == set(channels)
        assert len(brokers.asked_of(ApiKey.FIND_COORDINATOR)) == 1
        client.fleet.forget()
        assert client.fleet.leader_nowait(HERE) is None
        asked = len(brokers.asked_of(ApiKey.METADATA))
        await together(50, lambda: client.fleet.leader(HERE))
        assert len(brokers.asked_of(ApiKey.METADATA)) == asked + 1


@on_both_loops
async def test_connect_leader_and_coordinator_cancelled_at_each_await():
    async with scripted_client(topics={"t": 2}, brokers_count=2) as (client, brokers):
        fleet_ = client.fleet

        async def all_anew():
            for channel in list(fleet_._channels.values()):
                channel.close()
            fleet_.forget()
            assert (await fleet_.leader(TopicPartition("t", 1))).broker_id == 1
            return await fleet_.coordinator(CoordinatorKind.GROUP, "g")

        found = []
        async for cancelled in at_each_await(all_anew):
            found.append(cancelled.result)
            channel = await fleet_.answered(lambda: fleet_.leader(HERE))
            assert channel.broker_id == 0
            assert await fleet_.broker_ids() == [0, 1]
        assert len(found) > 3
        assert found[-1].broker_id == 0
        assert len([line for line in brokers.lines if not line.is_closed]) <= 2


@on_both_loops
async def test_a_new_connection_of_ones_own_cancelled_at_each_await_leaves_none_open():
    async with scripted_client() as (client, brokers):
        await client.fleet.any_channel()
        async for cancelled in at_each_await(lambda: client.fleet.own_channel(0)):
            is_open = [line for line in brokers.lines if not line.is_closed]
            assert len(is_open) == (2 if cancelled.result is not None else 1)
            if cancelled.result is not None:
                cancelled.result.close()


@on_both_loops
async def test_a_leader_that_moves_is_found_and_an_outdated_broker_not_believed(quick):
    async with scripted_client(topics={"t": 1}, brokers_count=2) as (client, brokers):
        assert (await client.fleet.leader(HERE)).broker_id == 0
        brokers.leaders[HERE], brokers.leader_epochs[HERE] = 1, 5
        client.fleet.doubt(RefusedError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-0"))
        assert client.fleet.leader_nowait(HERE).broker_id == 0
        assert (await client.fleet.leader(HERE)).broker_id == 1
        brokers.leaders[HERE], brokers.leader_epochs[HERE] = 0, 4
        client.fleet.forget()
        assert (await client.fleet.leader(HERE)).broker_id == 1
        assert client.fleet.topic_nowait("t").epochs == {0: 5}


@on_both_loops
async def test_what_is_doubted_is_asked_for_also_when_nobody_waits(quick):
    async with scripted_client(topics={"t": 1}, brokers_count=2) as (client, brokers):
        await client.fleet.leader(HERE)
        await client.fleet.channel(1)
        brokers.leaders[HERE], brokers.leader_epochs[HERE] = 1, 1
        for _ in range(100):
            client.fleet.doubt(UnreachableError("gone"))
        await brokers.wait_asked(ApiKey.METADATA, 2)
        while client.fleet.leader_nowait(HERE).broker_id == 0:
            await anyio.sleep(0.001)
        assert len(brokers.asked_of(ApiKey.METADATA)) <= 4


@on_both_loops
async def test_metadata_grow_old(quick):
    async with scripted_client(topics={"t": 1, "u": 1}, metadata_seconds=0.05) as (client, brokers):
        await client.fleet.topic("t")
        brokers.topics["t"] = 4
        await brokers.wait_asked(ApiKey.METADATA, 3)
        while len(client.fleet.topic_nowait("t").leaders) < 4:
            await anyio.sleep(0.001)
        assert {one.name for asked in brokers.asked_of(ApiKey.METADATA) for one in asked.message.topics} == {"t"}
        del brokers.topics["t"]
        while client.fleet.topic_nowait("t") is not None:
            await anyio.sleep(0.001)


@on_both_loops
async def test_an_answer_that_took_long_is_no_proof_that_a_topic_stays_missing(clock_of):
    clock = clock_of("net.fleet", "net.channel")

    async def script(asked):
        if asked.key == ApiKey.METADATA:
            clock.passes(20)
            brokers.topics = {"t": 1} if asked.number else {}

    async with scripted_client(topics={}) as (client, brokers):
        brokers.script = script
        assert set((await client.fleet.topic("t")).leaders) == {0}


async def no_topic_v(client):
    with pytest.raises(UnknownTopicError, match="there is no topic 'v'"):
        await client.fleet.topic("v")


@on_both_loops
async def test_a_partition_or_topic_that_is_made_later_is_seen(quick, clock_of, monkeypatch):
    clock = clock_of("net.fleet", "net.channel")
    monkeypatch.setattr(fleet, "MISSING_TOPIC_SECONDS", 1000)
    async with scripted_client(topics={"t": 1}, retry_seconds=10_000) as (client, brokers):
        await client.fleet.topic("t")
        with pytest.raises(UnknownTopicError, match="t has no partition 3; it has 1"):
            await client.fleet.leader(TopicPartition("t", 3))
        brokers.topics["t"] = 4
        assert (await client.fleet.leader(TopicPartition("t", 3))).broker_id == 0
        async with anyio.create_task_group() as tasks:
            asked_count = len(brokers.asked_of(ApiKey.METADATA))
            tasks.start_soon(client.fleet.topic, "u")
            await brokers.wait_asked(ApiKey.METADATA, asked_count + 2)
            brokers.topics["u"] = 1
        async with anyio.create_task_group() as tasks:
            asked_count = len(brokers.asked_of(ApiKey.METADATA))
            tasks.start_soon(no_topic_v, client)
            await brokers.wait_asked(ApiKey.METADATA, asked_count + 2)
            clock.passes(1001)


@on_both_loops
async def test_one_topics_error_is_not_another_ones(quick):
    async def script(asked):
        if asked.key != ApiKey.METADATA:
            return None
        answer = brokers.usual(asked)
        for row in answer.topics:
            if row.name == "secret":
                row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer

    async with scripted_client(topics={"t": 1, "secret": 1}) as (client, brokers):
        brokers.script = script
        got = {}

        async def ask(name):
            try:
                got[name] = await client.fleet.topic(name)
            except ClientError as error:
                got[name] = error

        async with anyio.create_task_group() as tasks:
            for name in ("t", "secret", "missing"):
                tasks.start_soon(ask, name)
        assert set(got["t"].leaders) == {0}
        said = "metadata of secret: TOPIC_AUTHORIZATION_FAILED (an ACL of the topic for this user)"
        assert str(got["secret"]) == said
        assert isinstance(got["missing"], UnknownTopicError)


@on_both_loops
async def test_a_broker_that_is_silent_about_metadata_holds_up_nobody(quick, clock_of):
    async def script(asked):
        return NO_ANSWER if asked.key == ApiKey.METADATA and asked.broker_id == 0 else None

    async with scripted_client(topics={"t": 1}, brokers_count=3) as (client, brokers):
        await client.fleet.any_channel()
        brokers.script = script
        brokers.leaders[HERE] = 1
        assert (await client.fleet.leader(HERE)).broker_id == 1
    clock = clock_of("net.fleet", "net.channel")

    async def hold_up(asked):
        clock.passes(35 if asked.key == ApiKey.METADATA else 0)
        return await script(asked)

    async with scripted_client(hold_up, retry_seconds=60) as (client, _brokers):
        with pytest.raises(UnreachableError, match=r"within 30 s \(request_seconds\)"):
            await client.fleet.topic("t")


@on_both_loops
async def test_a_dead_broker_is_not_dialled_all_the_time(quick, clock_of):
    clock = clock_of("net.fleet", "net.channel")

    async def be_over(brokers):
        while len([node for node in brokers.dials if node.port == 9093]) < 5:
            await anyio.sleep(0.001)
        clock.passes(1001)

    async with scripted_client(topics={"t": 2}, brokers_count=2, retry_seconds=1000) as (client, brokers):
        await client.fleet.topic("t")
        brokers.refused.add(1)
        there = TopicPartition("t", 1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_over, brokers)
            got = await together(30, lambda: client.fleet.answered(lambda: client.fleet.leader(there)))
        assert all("no connection to scripted:9093: refused" in str(one) for one in got)
        assert all("1000 s (retry_seconds)" in str(one) for one in got)
        assert len([node for node in brokers.dials if node.port == 9093]) <= 12
        assert (await client.fleet.leader(HERE)).broker_id == 0
        brokers.refused.clear()
        assert (await client.fleet.answered(lambda: client.fleet.leader(there))).broker_id == 1


@on_both_loops
async def test_a_connection_that_ends_while_it_is_made():
    async def script(asked):
        return CLOSE if asked.key == ApiKey.API_VERSIONS and asked.number < 2 else None

    async with scripted_client(script, topics={"t": 1}) as (client, brokers):
        assert (await client.fleet.answered(lambda: client.fleet.leader(HERE))).broker_id == 0
        assert [line.is_closed for line in brokers.lines] == [True, True, False]


@on_both_loops
async def test_a_broker_that_does_not_say_hello_is_given_up():
    async def script(asked):
        return NO_ANSWER

    async with scripted_client(script, connect_seconds=0.05) as (client, brokers):
        got = await together(20, client.fleet.any_channel)
        assert {str(one) for one in got} == {"no connection to scripted:9092 within 0.05 s (connect_seconds)"}
        assert len(brokers.dials) == 1
        assert brokers.lines[0].is_closed


@on_both_loops
async def test_brokers_that_left_the_cluster_or_moved(quick):
    async with scripted_client(topics={"t": 2}, brokers_count=2) as (client, brokers):
        old = await client.fleet.leader(TopicPartition("t", 1))
        brokers.nodes[1] = Node("scripted", 9999)
        client.fleet.forget()
        new = await client.fleet.leader(TopicPartition("t", 1))
        assert (old.node.port, new.node.port) == (9093, 9999)
        brokers.nodes[7] = brokers.nodes.pop(1)
        brokers.topics["t"] = 1
        assert await client.fleet.broker_ids() == [0, 7]
        with pytest.raises(UnreachableError, match="broker 1 is not in the cluster"):
            await client.fleet.channel(1)
        assert (await client.fleet.channel(7)).broker_id == 7
        del brokers.nodes[7]
        client.fleet.forget()
        await client.fleet.broker_ids()
        while not new.is_closed:
            await anyio.sleep(0.001)
        brokers.nodes.clear()
        await client.fleet.broker_ids()
        assert (await client.fleet.leader(HERE)).broker_id == 0


@on_both_loops
async def test_idle_connections_are_closed_before_brokers_do(quick, monkeypatch):
    monkeypatch.setattr(fleet, "IDLE_SECONDS", 0.05)
    async with scripted_client(topics={"t": 1}) as (client, _brokers):
        channel = await client.fleet.leader(HERE)
        while not channel.is_closed:
            await anyio.sleep(0.001)
        assert client.fleet.leader_nowait(HERE) is None
        assert (await client.fleet.leader(HERE)) is not channel


@on_both_loops
async def test_an_operation_is_not_waited_for_beyond_its_deadline():
    async def script(asked):
        return NO_ANSWER if asked.key == ApiKey.INIT_PRODUCER_ID else None

    async with scripted_client(script) as (client, _brokers):

        async def ask():
            channel = await client.fleet.any_channel()
            return await channel.call(ApiKey.INIT_PRODUCER_ID, lambda _version: messages.InitProducerIdRequest())

        with pytest.raises(UnreachableError, match=r"no answer within 0\.05 s \(retry_seconds\)"):
            await client.fleet.answered(ask, 0.05)
        assert not (await client.fleet.any_channel()).is_closed


@on_both_loops
async def test_what_is_not_retriable_is_raised_at_once():
    attempts = []

    async def ask():
        attempts.append(1)
        raise AuthenticationError("wrong")

    async with scripted_client(as_usual) as (client, _brokers):
        with pytest.raises(AuthenticationError, match="wrong"):
            await client.fleet.answered(ask)
    assert len(attempts) == 1
