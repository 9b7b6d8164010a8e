"""Rights to write and to read records: asked as records are taken and as they are read, whatever was allowed before."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.support.memory_clients import (
    create_topic,
    fetch_of_several,
    fetch_request,
    fetched,
    produce,
    produce_request,
)
from tests.support.memory_node import running_node
from tests.support.rights import (
    OF_TOPIC,
    OF_TRANSACTION,
    READ,
    WRITE,
    allow_only,
    on_cluster,
    on_topic,
    on_transaction,
)
from tpc_broker.auth.operations import Operation
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE
VERSION = 12


def of_topics(*names, **fields):
    kind = messages.ProduceRequest
    topics = [
        kind.TopicProduceData(name=name, partition_data=[kind.PartitionProduceData(index=0, records=records)])
        for name, records in names
    ]
    return kind(acks=-1, timeout_ms=1000, topic_data=topics, **fields)


def told(answer):
    return {one.name: ErrorCode(one.partition_responses[0].error_code) for one in answer.responses}


async def test_of_several_topics_those_are_written_that_may_be(autojump_clock):
    async with running_node(cores=1) as node:
        for name in "tu":
            await create_topic(node, 0, name, 1)
        allow_only(node[0], on_topic(WRITE, "u"))
        message = of_topics(*((name, batch(0, [b"a"])) for name in ("t", "u", "none")))
        assert told(await node.ask(0, message, VERSION)) == {"t": OF_TOPIC, "u": NONE, "none": OF_TOPIC}
        ends = {name: node[0].partitions.find(name, 0).bounds().log_end_offset for name in "tu"}
        assert ends == {"t": 0, "u": 1}


@pytest.mark.parametrize("transactional_id", [None, "x"])
async def test_a_batch_that_says_transactional_spoils_the_request_without_the_right_to_its_id(
    autojump_clock, transactional_id
):
    async with running_node(cores=1) as node:
        for name in "tu":
            await create_topic(node, 0, name, 1)
        allow_only(node[0], on_topic(WRITE), on_topic(WRITE, "u"))
        asked = []
        node[0].transactions.calls.verify = lambda *what: asked.append(what)
        of_transaction = batch(0, [b"a"], producer=(7, 0, 0), transactional=True)
        message = of_topics(("t", of_transaction), ("u", batch(0, [b"a"])), transactional_id=transactional_id)
        assert told(await node.ask(0, message, VERSION)) == {"t": OF_TRANSACTION, "u": OF_TRANSACTION}
        assert asked == [], "nothing is added to the transaction"
        assert node[0].partitions.find("u", 0).bounds().log_end_offset == 0


async def test_what_may_not_be_written_is_not_added_to_a_transaction(autojump_clock):
    async with running_node(cores=1) as node:
        for name in "tu":
            await create_topic(node, 0, name, 1)
        allow_only(node[0], on_topic(WRITE, "u"), on_transaction(WRITE))
        asked = []

        async def verify(_asked, names):
            asked.append(names)
            await trio.lowlevel.checkpoint()
            return dict.fromkeys(names, NONE)

        node[0].transactions.calls.verify = verify
        records = batch(0, [b"a"], producer=(7, 0, 0), transactional=True)
        message = of_topics(("t", records), ("u", records), transactional_id="x")
        assert told(await node.ask(0, message, VERSION)) == {"t": OF_TOPIC, "u": NONE}
        assert asked == [[("u", 0)]]


async def test_a_right_that_is_taken_away_while_a_produce_waits_for_room_is_gone(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        plane = node[0].plane
        allow_only(node[0], on_topic(WRITE))
        plane.refuses = [ProduceFallback.NOT_ADMITTED]
        request = node.send(0, produce_request("t", 0, [b"a"]), VERSION)
        await trio.testing.wait_all_tasks_blocked()
        assert not request.done.is_set()
        allow_only(node[0])
        await request.done.wait()
        assert told(answer_of(request)) == {"t": OF_TOPIC}
        assert node[0].partitions.find("t", 0).bounds().log_end_offset == 0


async def test_a_fetch_that_waits_gives_nothing_when_its_right_is_taken_away(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        allow_only(node[0], on_topic(READ), on_topic(WRITE))
        waits = node.send(0, fetch_request("t", 0, 0, wait_ms=60_000), VERSION, connection=5)
        await trio.sleep(1)
        assert not waits.done.is_set()
        allow_only(node[0], on_topic(WRITE))
        assert (await produce(node, 0, "t", 0, [b"secret"]))[0] is NONE
        await waits.done.wait()
        assert b"secret" not in waits.answer
        assert fetched(answer_of(waits))[0] is OF_TOPIC
        allow_only(node[0], on_topic(READ))
        assert fetched(await node.ask(0, fetch_request("t", 0, 0), VERSION)) == (NONE, 1, [0])


async def test_of_several_topics_those_are_read_that_may_be(autojump_clock):
    async with running_node(cores=1) as node:
        for name in "tu":
            await create_topic(node, 0, name, 1)
            await produce(node, 0, name, 0, [b"a"])
        allow_only(node[0], on_topic(READ, "u"))
        message = fetch_of_several("t", {0: 0})
        message.topics += fetch_of_several("u", {0: 0}).topics
        answer = await node.ask(0, message, VERSION)
        found = {one.topic: (one.partitions[0].error_code, bool(one.partitions[0].records)) for one in answer.responses}
        assert found == {"t": (OF_TOPIC, False), "u": (NONE, True)}


@pytest.mark.parametrize("version", [4, 12])
async def test_who_says_that_it_is_a_follower_needs_the_right_of_brokers(autojump_clock, version):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        await produce(node, 0, "t", 0, [b"a"])
        message = fetch_request("t", 0, 0, wait_ms=0)
        message.replica_id = 1
        for rights, code in (((on_topic(READ),), OF_TOPIC), ((on_cluster(Operation.CLUSTER_ACTION),), None)):
            allow_only(node[0], *rights)
            (part,) = (await node.ask(0, message, version)).responses[0].partitions
            assert part.error_code == code or (code is None and part.error_code != OF_TOPIC)
            assert not part.records, "nobody follows"


async def test_an_id_that_is_guessed_tells_no_more_than_kafka_does(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        allow_only(node[0])
        known, guessed = node[0].view.topic("t").topic_id.bytes, bytes(15) + b"\1"
        for topic_id, code in ((known, OF_TOPIC), (guessed, ErrorCode.UNKNOWN_TOPIC_ID)):
            answer = await node.ask(0, produce_request("", 0, [b"a"], topic_id=topic_id), 13)
            assert answer.responses[0].partition_responses[0].error_code == code
            kind = messages.FetchRequest
            topic = kind.FetchTopic(topic_id=topic_id, partitions=[kind.FetchPartition(partition=0)])
            (part,) = (await node.ask(0, kind(topics=[topic]), 13)).responses[0].partitions
            assert (part.error_code, bytes(part.records or b"")) == (code, b"")
