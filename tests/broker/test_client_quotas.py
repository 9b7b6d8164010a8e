"""Quotas of clients over whole cores: set at the controller, told by each core, and obeyed by the controller's own."""

from __future__ import annotations

import trio

from tests.support.memory_node import running_node
from tpc_broker.kafka import messages

EXACT, DEFAULT, SPECIFIED = range(3)
BYTES, PERCENT = "producer_byte_rate", "request_percentage"


async def alter(node, entity, *, core=0, only=False, **values):
    kind = messages.AlterClientQuotasRequest
    asked = kind.EntryData(
        entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity.items()],
        ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )
    (entry,) = (await node.ask(core, kind(entries=[asked], validate_only=only), 1)).entries
    return entry.error_code, entry.error_message


async def describe(node, *components, core=0, strict=False):
    kind = messages.DescribeClientQuotasRequest
    asked = [kind.ComponentData(entity_type=a, match_type=b, match=c) for a, b, c in components]
    found = await node.ask(core, kind(components=asked, strict=strict), 1)
    assert found.error_code == 0
    return [
        ({one.entity_type: one.entity_name for one in entry.entity}, {one.key: one.value for one in entry.values})
        for entry in found.entries
    ]


async def test_a_quota_that_any_core_is_given_is_told_by_each_and_outlives_it(autojump_clock):
    async with running_node(cores=2) as node:
        pair = {"user": "a", "client-id": None}
        assert await alter(node, pair, core=1, **{BYTES: 1000.0, PERCENT: 12.5}) == (0, None)
        assert await alter(node, {"user": None}, only=True, **{BYTES: 5.0}) == (0, None)
        told = [({"client-id": None, "user": "a"}, {BYTES: 1000.0, PERCENT: 12.5})]
        for core in (0, 1):
            assert await describe(node, core=core) == told
        await node.crash(0)
        await node.start(0)
        assert await describe(node, core=0) == told
        assert await alter(node, {"user": "a", "client-id": None}, **{BYTES: None, PERCENT: None}) == (0, None)
        assert await describe(node, core=1) == []


async def test_what_is_asked_is_told_and_no_more(autojump_clock):
    async with running_node(cores=1) as node:
        for entity in ({"user": "a"}, {"user": "a", "client-id": "c"}, {"client-id": None}):
            await alter(node, entity, **{BYTES: 7.0})

        async def found(*components, strict=False):
            return [entity for entity, _values in await describe(node, *components, strict=strict)]

        assert await found(("user", EXACT, "a")) == [{"client-id": "c", "user": "a"}, {"user": "a"}]
        assert await found(("user", EXACT, "a"), strict=True) == [{"user": "a"}]
        assert await found(("client-id", DEFAULT, None)) == [{"client-id": None}]
        assert await found(("client-id", SPECIFIED, None)) == [{"client-id": "c", "user": "a"}, {"client-id": None}]
        assert await found(("ip", SPECIFIED, None)) == []


# -- changes of topics -------------------------------------------------------------------------------------------------


async def create(node, name, partitions, version, *, core=0, connection=1):
    kind = messages.CreateTopicsRequest
    topic = kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    answer = await node.ask(core, kind(topics=[topic], timeout_ms=1000), version, connection=connection)
    return [one.error_code for one in answer.topics], answer.throttle_time_ms


async def grow(node, name, count, version):
    kind = messages.CreatePartitionsRequest
    topic = kind.CreatePartitionsTopic(name=name, count=count, assignments=None)
    answer = await node.ask(0, kind(topics=[topic], timeout_ms=1000), version)
    return [one.error_code for one in answer.results], answer.throttle_time_ms


async def delete(node, name, version):
    kind = messages.DeleteTopicsRequest
    answer = await node.ask(0, kind(topic_names=[name], timeout_ms=1000), version)
    return [one.error_code for one in answer.responses], answer.throttle_time_ms


async def test_topics_above_the_quota_are_refused_to_those_that_know_of_it(autojump_clock):
    """One partition a second, eleven at once."""
    async with running_node(cores=2) as node:
        await alter(node, {"user": "ANONYMOUS"}, controller_mutation_rate=1.0)
        assert await create(node, "a", 14, 6) == ([0], 0), "while there is anything, it may take more than that"
        assert await create(node, "b", 1, 6) == ([89], 3000)
        assert await create(node, "b", 1, 7, core=1) == ([89], 3000), "whichever core is asked"
        assert await grow(node, "a", 15, 3) == ([89], 3000)
        assert await delete(node, "a", 5) == ([89], 3000)
        assert node.lives[0].connections.muted == [(1, 3000)] * 3
        assert node.lives[1].connections.muted == [(1, 3000)], "where its client is connected"
        await trio.sleep(3)
        assert await create(node, "b", 1, 6) == ([0], 0)


async def test_earlier_versions_are_carried_out_and_throttled(autojump_clock):
    async with running_node(cores=1) as node:
        await alter(node, {"client-id": None}, controller_mutation_rate=0.5)
        assert await create(node, "a", 5, 5) == ([0], 0)
        assert await grow(node, "a", 7, 2) == ([0], 3000)
        assert await create(node, "b", 1, 5) == ([0], 5000)
        assert await delete(node, "b", 4) == ([0], 7000)
        assert node.lives[0].connections.muted == [(1, 3000), (1, 5000), (1, 7000)]


async def test_what_is_refused_for_another_reason_takes_nothing(autojump_clock):
    async with running_node(cores=1) as node:
        await alter(node, {"user": "ANONYMOUS"}, controller_mutation_rate=1.0)
        for _ in range(30):
            assert (await create(node, "not/a name", 10, 7))[0] == [17]
            assert (await delete(node, "absent", 5))[0] == [3]
        assert await create(node, "a", 1, 7) == ([0], 0)


# -- time, and what answers say ----------------------------------------------------------------------------------------


async def test_the_throttle_time_is_in_whatever_answer_has_a_place_for_it(autojump_clock):
    async with running_node(cores=2) as node:
        for message, version in (
            (messages.MetadataRequest(topics=[]), 12), (messages.ApiVersionsRequest(), 3),
            (messages.DescribeClientQuotasRequest(components=[]), 1),
        ):  # fmt: skip
            answer = await node.ask(1, message, version, throttle_ms=77)
            assert answer.throttle_time_ms == 77
        answer = await node.ask(1, messages.AlterClientQuotasRequest(entries=[]), 1, throttle_ms=78)
        assert answer.throttle_time_ms == 78, "one that core 0 has made"
        await node.ask(1, messages.MetadataRequest(topics=[]), 0, throttle_ms=77)  # it has no place


async def test_time_in_python_is_counted_while_there_is_a_quota_of_it(autojump_clock, monkeypatch):
    async with running_node(cores=1) as node:
        live = node.lives[0]
        await node.ask(0, messages.MetadataRequest(topics=[]), 12)
        assert live.connections.time_spent == []
        await alter(node, {"user": "a"}, **{PERCENT: 10.0})
        ticks = iter(range(0, 10**6, 5))
        monkeypatch.setattr(type(live.core.clock), "cpu_ns", lambda _clock: next(ticks))
        await node.ask(0, messages.MetadataRequest(topics=[]), 12)
        assert live.connections.time_spent == [(1, "a-client", 5)]
        live.connections.time_spent.clear()
        await alter(node, {"user": "a"}, **{PERCENT: None})
        steps = live.connections.time_spent
        assert len(steps) > 1, "each step of one that waits"
        assert set(steps) == {(1, "a-client", 5)}


async def test_the_connections_are_told_of_quotas_as_they_change(autojump_clock):
    async with running_node(cores=2) as node:
        await alter(node, {"user": "u", "client-id": None}, **{BYTES: 5.0, PERCENT: 2.0})
        await alter(node, {"client-id": "c"}, consumer_byte_rate=7.0)
        await alter(node, {"ip": "10.0.0.1"}, connection_creation_rate=3.0)
        await alter(node, {"ip": None}, connection_creation_rate=9.0)
        for core in (0, 1):
            windows, rows, addresses = node.lives[core].connections.quotas
            assert windows == (11, 1.0)
            assert sorted(rows, key=str) == [("u", "", 5.0, 0.0, 2.0), (None, "c", 0.0, 7.0, 0.0)]
            assert addresses == {"10.0.0.1": 3.0, None: 9.0}
