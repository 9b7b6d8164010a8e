"""What a node tells of the compaction of a topic's partitions, to who asks by a tagged field."""

from __future__ import annotations

from tests.broker.test_core import create_topic
from tests.support.memory_node import running_node
from tpc_broker.broker.handlers.metadata import CLEANING_TAG
from tpc_broker.cli.told_facts import facts_told
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.protocol import encode_request
from tpc_broker.kafka.source import uvarint
from tpc_broker.testing.connections import MemoryRequest


async def told(node, core, topic):
    encoded = encode_request(ApiKey.DESCRIBE_CLUSTER, 2, messages.DescribeClusterRequest())
    name = topic.encode()
    body = memoryview(encoded[:-1] + uvarint(1) + uvarint(CLEANING_TAG) + uvarint(len(name)) + name)
    request = MemoryRequest(50, int(ApiKey.DESCRIBE_CLUSTER), 2, 1, body, 0)
    node.lives[core].connections.send(request)
    await request.done.wait()
    return facts_told(request.answer, CLEANING_TAG)


async def test_all_cores_of_a_node_tell_of_a_topic(autojump_clock):
    async with running_node(cores=2) as node:
        await create_topic(node, 0, "kept", 4, cleanup_policy="compact")
        for core in range(2):
            for partition in node[core].partitions.opened():
                if partition.topic_name == "kept":
                    node.lives[core].storage.cleaning.measured(
                        partition.key, "kept", dirty_bytes=partition.index, clean_bytes=3, first_dirty_offset=5
                    )
        for core in range(2):
            found = await told(node, core, "kept")
            assert found["node"] == 0
            assert {int(index): facts["dirty_bytes"] for index, facts in found["partitions"].items()} == {
                0: 0, 1: 1, 2: 2, 3: 3
            }  # fmt: skip
            assert found["partitions"]["3"]["dirty_ratio"] == 0.5
            assert await told(node, core, "other") == {"node": 0, "partitions": {}}


async def test_a_core_that_is_away_tells_nothing(autojump_clock):
    async with running_node(cores=2) as node:
        await create_topic(node, 0, "kept", 2, cleanup_policy="compact")
        for core in range(2):
            for partition in node[core].partitions.opened():
                node.lives[core].storage.cleaning.measured(
                    partition.key, "kept", dirty_bytes=1, clean_bytes=1, first_dirty_offset=0
                )
        await node.crash(1)
        found = await told(node, 0, "kept")
        assert len(found["partitions"]) == 1
