"""Quotas of clients over whole cores: set at the controller, told by each core, and obeyed by the controller's own."""

from __future__ import annotations

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
