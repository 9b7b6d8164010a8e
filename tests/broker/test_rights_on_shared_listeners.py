"""Rights where a request is taken apart by the cores that share a listener: each part is asked where it is answered."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from tests.support.memory_clients import create_topic, owner_of, produce
from tests.support.memory_node import running_node
from tests.support.rights import (
    CONFIGS,
    CREATE,
    DESCRIBE,
    OF_CLUSTER,
    OF_GROUP,
    OF_TOPIC,
    allow_only,
    on_cluster,
    on_group,
    on_topic,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

NONE = ErrorCode.NONE


@asynccontextmanager
async def shared_node(monkeypatch):
    """Two cores behind one listener; topics t and u of four partitions with two records each."""
    async with running_node(settings=("offsets.topic.num.partitions=4",)) as node:
        for name in "tu":
            await create_topic(node, 0, name, 4)
            for index in range(4):
                await produce(node, owner_of(node, name, index), name, index, [b"a", b"b"])
        monkeypatch.setattr(type(node[0].view), "is_shared", lambda _view, _listener: True)
        yield node


def allow(node, *rights):
    for core in range(2):
        allow_only(node[core], *rights)


async def test_parts_that_are_refused_stand_beside_those_that_are_not(autojump_clock, monkeypatch):
    async with shared_node(monkeypatch) as node:
        allow(node, on_topic(DESCRIBE, "u"))
        kind = messages.ListOffsetsRequest
        parts = [kind.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(4)]
        topics = [kind.ListOffsetsTopic(name=name, partitions=parts) for name in ("t", "u", "none")]
        answer = await node.ask(0, kind(topics=topics))
        found = {
            (topic.name, part.partition_index): (part.error_code, part.offset)
            for topic in answer.topics
            for part in topic.partitions
        }
        assert found == {("t", index): (OF_TOPIC, -1) for index in range(4)} | {
            ("u", index): (NONE, 2) for index in range(4)
        } | {("none", index): (OF_TOPIC, -1) for index in range(4)}
        subjects = [node[core].access.authorizer.subjects for core in range(2)]
        assert subjects[0] == subjects[1] != set(), "the other core asks about the same one"


async def test_groups_of_other_cores_are_refused_there(autojump_clock, monkeypatch):
    async with shared_node(monkeypatch) as node:
        names = [f"g{number}" for number in range(8)]
        while any(one.error_code for one in await _coordinators(node, names)):
            await trio.sleep(0.1)
        allow(node, on_group(DESCRIBE, "g1"), on_group(DESCRIBE, "g6"))
        answer = await node.ask(0, messages.DescribeGroupsRequest(groups=names), 5)
        found = {one.group_id: one.error_code for one in answer.groups}
        assert found == {name: NONE if name in {"g1", "g6"} else OF_GROUP for name in names}


async def _coordinators(node, names):
    return (await node.ask(0, messages.FindCoordinatorRequest(key_type=0, coordinator_keys=names))).coordinators


async def test_the_directory_of_all_cores_is_refused_as_one(autojump_clock, monkeypatch):
    async with shared_node(monkeypatch) as node:
        asked = messages.DescribeLogDirsRequest(topics=None)
        allow(node)
        answer = await node.ask(0, asked)
        assert (answer.error_code, answer.results) == (OF_CLUSTER, [])
        allow_only(node[0], on_cluster(DESCRIBE))
        answer = await node.ask(0, asked)
        assert (answer.error_code, answer.results) == (OF_CLUSTER, []), "one core has heard of new rules, the other not"
        allow(node, on_cluster(DESCRIBE))
        (result,) = (await node.ask(0, asked)).results
        assert sum(len(topic.partitions) for topic in result.topics) >= 8


async def test_what_the_controller_decides_it_asks_about(autojump_clock, monkeypatch):
    async with shared_node(monkeypatch) as node:
        kind = messages.CreateTopicsRequest
        asked = kind(topics=[kind.CreatableTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=1000)
        allow_only(node[1], on_cluster(CREATE), on_topic(CONFIGS, "new"))
        allow_only(node[0])
        assert (await node.ask(1, asked)).topics[0].error_code == OF_TOPIC
        allow_only(node[0], on_cluster(CREATE), on_topic(CONFIGS, "new"))
        allow_only(node[1])
        assert (await node.ask(1, asked)).topics[0].error_code == NONE
