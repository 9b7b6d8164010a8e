"""What a Fetch that is left to Python asks of the data plane."""

from __future__ import annotations

from collections import Counter

from tests.support.memory_clients import create_topic, fetch_of_several, produce
from tests.support.memory_node import running_node

PARTITIONS = 5


async def test_where_a_partition_begins_and_ends_is_looked_up_once(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", PARTITIONS)
        for index in range(PARTITIONS):
            await produce(node, 0, "t", index, [b"v"])
        plane, looked = node[0].plane, Counter()
        bounds = plane.bounds

        def look(handle):
            looked[handle] += 1
            return bounds(handle)

        plane.bounds = look
        answer = await node.ask(0, fetch_of_several("t", dict.fromkeys(range(PARTITIONS), 0)), 12)
        plane.bounds = bounds
        assert all(one.records for one in answer.responses[0].partitions)
        handles = {node[0].partitions.find("t", index).handle for index in range(PARTITIONS)}
        assert looked == dict.fromkeys(handles, 1)
