"""DescribeTopicPartitions on cores in memory: pages of any size say together what Metadata says at once."""

from __future__ import annotations

import pytest

from tests.support.memory_clients import create_topic, metadata
from tests.support.memory_node import running_node
from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

KIND = messages.DescribeTopicPartitionsRequest
TOPICS = {"b": 3, "a": 1, "c": 2}
ALL = [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 0), ("c", 1)]


async def pages(node, names, size, core=0):
    """Each page as (topic, partition) pairs."""
    cursor, found = None, []
    while True:
        asked = KIND(topics=[KIND.TopicRequest(name=name) for name in names], response_partition_limit=size)
        asked.cursor = cursor
        answer = await node.ask(core, asked)
        found.append([(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions])
        if answer.next_cursor is None:
            return found
        cursor = KIND.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )


async def made(node):
    for name, count in TOPICS.items():
        await create_topic(node, 0, name, count)


@pytest.mark.parametrize("size", range(-1, 9))
async def test_pages_have_every_partition_once_in_the_order_of_names(autojump_clock, size):
    async with running_node(cores=2) as node:
        await made(node)
        for names in (["c", "b", "a", "b"], []):
            found = await pages(node, names, size, core=1)
            assert [one for page in found for one in page] == ALL
            assert {len(page) for page in found[:-1]} <= {max(1, size)}


async def test_a_page_has_as_many_partitions_as_the_broker_allows(autojump_clock, monkeypatch):
    monkeypatch.setattr(limits, "PARTITIONS_A_PAGE_MAX", 4)
    async with running_node(cores=1) as node:
        await made(node)
        assert [len(page) for page in await pages(node, [], 2**31 - 1)] == [4, 2]


async def test_what_is_told_of_a_partition_is_what_metadata_tells(autojump_clock):
    async with running_node(cores=2) as node:
        await made(node)
        wanted = await metadata(node, 1, "b")
        (topic,) = (await node.ask(1, KIND(topics=[KIND.TopicRequest(name="b")]))).topics
        assert (topic.topic_id, topic.error_code) == (wanted.topic_id, ErrorCode.NONE)
        fields = ("partition_index", "leader_id", "leader_epoch", "replica_nodes", "isr_nodes", "error_code")
        for told, other in zip(topic.partitions, wanted.partitions, strict=True):
            assert [getattr(told, name) for name in fields] == [getattr(other, name) for name in fields]
            assert (told.eligible_leader_replicas, told.last_known_elr) == ([], [])


async def test_a_topic_that_goes_between_two_pages_is_passed_over_where_all_are_asked_for(autojump_clock):
    async with running_node(cores=1) as node:
        await made(node)
        cursor = KIND.Cursor(topic_name="bb", partition_index=1)
        answer = await node.ask(0, KIND(topics=[], cursor=cursor))
        assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [("c", 2)]
        named = [KIND.TopicRequest(name=name) for name in ("c", "bb")]
        told = (await node.ask(0, KIND(topics=named, cursor=cursor))).topics
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [(topic.name, topic.error_code) for topic in told] == [("bb", unknown), ("c", ErrorCode.NONE)]


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1), ("z", 0)])
async def test_a_cursor_that_stands_nowhere_is_refused(autojump_clock, cursor):
    async with running_node(cores=1) as node:
        await made(node)
        asked = KIND(topics=[KIND.TopicRequest(name="a"), KIND.TopicRequest(name="c")])
        asked.cursor = KIND.Cursor(topic_name=cursor[0], partition_index=cursor[1])
        answer = await node.ask(0, asked)
        invalid = ErrorCode.INVALID_REQUEST
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [("a", invalid), ("c", invalid)]
        assert answer.next_cursor is None
