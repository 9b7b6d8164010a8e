"""Cores of one node over ports in memory: metadata, records, restarts and drains as their clients see them."""

from __future__ import annotations

import trio
import trio.testing

from tests.support.memory_clients import (
    create_topic,
    delete_topic,
    fetch_request,
    fetched,
    leaders,
    metadata,
    owner_of,
    produce,
    produce_request,
)
from tests.support.memory_node import running_node
from tpc_broker.broker.metadata_service import RESUBSCRIBE_S
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionNotMadeError
from tpc_broker.kafka import messages
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE


async def test_a_topic_is_made_wherever_it_is_asked_for_and_each_core_opens_its_part(autojump_clock):
    async with running_node(cores=3) as node:
        assert await create_topic(node, 2, "t", 6) is NONE
        owners = [owner_of(node, "t", index) for index in range(6)]
        assert set(owners) == {0, 1, 2}
        for core in range(3):
            opened = {partition.index for partition in node[core].partitions.opened()}
            assert opened == {index for index, owner in enumerate(owners) if owner == core}
            assert await leaders(node, core, "t") == {index: (owner, 1) for index, owner in enumerate(owners)}
            topic_id = node[core].view.topic("t").topic_id
            assert node.lives[core].plane.owners == {("t", topic_id): tuple(owners)}
        assert await create_topic(node, 1, "t") is ErrorCode.TOPIC_ALREADY_EXISTS
        assert [node[core].statistics().requests_forwarded for core in range(3)] == [0, 1, 1]
        assert await delete_topic(node, 1, "t") is NONE
        for core in range(3):
            assert not list(node[core].partitions.opened())
            assert node.lives[core].plane.owners["t", topic_id] == ()
            assert (await metadata(node, core, "t")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_seed_repeats_a_run(autojump_clock):
    seen = []
    for seed in (1, 1, 2):
        async with running_node(seed=seed) as node:
            await create_topic(node, 0, "t")
            seen.append(node[0].view.topic("t").topic_id)
    assert seen[0] == seen[1] != seen[2]


async def test_records_are_acknowledged_and_readable_when_they_are_durable(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        plane = node.lives[0].plane
        plane.holds = True
        sent = node.send(0, produce_request("t", 0, [b"a", b"b"]), 12, connection=1)
        read = node.send(0, fetch_request("t", 0, 0, wait_ms=60_000), 12, connection=2)
        await trio.testing.wait_all_tasks_blocked()
        assert not sent.done.is_set()
        assert not read.done.is_set(), "it waits for the first byte"
        plane.make_durable()
        with trio.fail_after(1):
            await read.done.wait()
        assert answer_of(sent).responses[0].partition_responses[0].base_offset == 0
        assert fetched(answer_of(read)) == (NONE, 2, [0])
        assert not plane.fetches
        began_s = trio.current_time()
        assert fetched(await node.ask(0, fetch_request("t", 0, 2, wait_ms=500), 12)) == (NONE, 2, [])
        assert 0.5 <= trio.current_time() - began_s < 0.6
        assert fetched(await node.ask(0, fetch_request("t", 0, 3), 12))[0] is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_who_asks_the_wrong_core_is_told_the_right_one(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        index = next(index for index in range(4) if owner_of(node, "t", index) == 1)
        refused = await node.ask(0, produce_request("t", index, [b"a"]), 12)
        part = refused.responses[0].partition_responses[0]
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 1)
        assert [(one.node_id, one.port) for one in refused.node_endpoints] == [(1, 9093)]
        asked = fetch_request("t", index, 0)
        asked.topics[0].topic_id = node[0].view.topic("t").topic_id.bytes
        (part,) = (await node.ask(0, asked, 17)).responses[0].partitions
        assert (part.error_code, part.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)
        assert node[0].statistics().asked_of_wrong_core == 2
        assert await produce(node, 1, "t", index, [b"a"]) == (NONE, 0)


async def test_a_topic_is_made_on_first_use_where_that_is_allowed(autojump_clock):
    async with running_node() as node:
        assert (await metadata(node, 1, "first")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await metadata(node, 1, "first", creates=True)
        with trio.fail_after(5):
            while (await metadata(node, 1, "first")).error_code:
                await trio.sleep(0.01)
        assert (await metadata(node, 1, "..", creates=True)).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    async with running_node(settings=("auto.create.topics.enable=false",)) as node:
        assert (await metadata(node, 1, "x", creates=True)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_core_that_crashes_has_what_was_durable_under_a_later_epoch(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        await produce(node, 0, "t", 0, [b"a", b"b"])
        node.lives[0].plane.holds = True
        node.send(0, produce_request("t", 0, [b"lost"]), 12)
        await node.restart(0)
        assert await leaders(node, 0, "t") == {0: (0, 2)}
        assert fetched(await node.ask(0, fetch_request("t", 0, 0), 12)) == (NONE, 2, [0])
        assert await produce(node, 0, "t", 0, [b"c"]) == (NONE, 2)


async def test_others_serve_while_core_0_is_away_and_changes_wait_for_it(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        index = next(index for index in range(4) if owner_of(node, "t", index) == 1)
        await node.crash(0)
        assert await produce(node, 1, "t", index, [b"a"]) == (NONE, 0)
        assert (await leaders(node, 1, "t"))[index] == (1, 1)
        made = []
        async with trio.open_nursery() as nursery:

            async def create():
                made.append(await create_topic(node, 1, "later", 2))

            nursery.start_soon(create)
            await trio.sleep(5)
            assert not made, "it is not known yet what core 0 will say"
            await node.start(0)
        assert made == [NONE]
        for core in range(2):
            assert None not in (await leaders(node, core, "t")).values()
            assert None not in (await leaders(node, core, "later")).values()


async def test_a_change_that_core_0_cannot_be_asked_for_closes_the_connection_in_the_end(autojump_clock):
    async with running_node() as node:
        await node.crash(0)
        began_s = trio.current_time()
        kind = messages.CreateTopicsRequest
        topic = kind.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        assert await node.ask(1, kind(topics=[topic], timeout_ms=1000), connection=7) is None
        assert trio.current_time() - began_s >= 15
        assert node.lives[1].connections.closed == {7: "refused"}


async def test_a_core_that_was_away_or_missed_a_change_takes_the_whole_image(autojump_clock):
    async with running_node() as node:
        await node.crash(1)
        assert await create_topic(node, 0, "while-away", 4) is NONE
        await node.start(1)
        assert None not in (await leaders(node, 0, "while-away")).values()
        node.lives[0].mailboxes.lost.add("metadata.apply")
        assert await create_topic(node, 0, "missed", 4) is NONE, "core 0 does not wait for it"
        node.lives[0].mailboxes.lost.clear()
        assert node[1].view.topic("missed") is None
        assert await create_topic(node, 0, "next", 4) is NONE
        await trio.sleep(1.3 * RESUBSCRIBE_S)
        for name in ("missed", "next"):
            assert None not in (await leaders(node, 1, name)).values()


async def test_a_core_that_could_not_be_told_who_leads_is_told_again(autojump_clock):
    async with running_node() as node:
        node.lives[1].mailboxes.lost.add("leaders")
        await create_topic(node, 0, "t", 4)
        owned = [index for index in range(4) if owner_of(node, "t", index) == 1]
        assert [(await leaders(node, 0, "t"))[index] for index in owned] == [None] * len(owned)
        node.lives[1].mailboxes.lost.clear()
        await trio.sleep(1.3 * RESUBSCRIBE_S)
        assert [(await leaders(node, 0, "t"))[index] for index in owned] == [(1, 1)] * len(owned)
        node.lives[1].mailboxes.lost.add("leaders")
        topic = node[1].view.topic("t")
        node.lives[1].storage.give_up(TopicPartition(topic.topic_id, PartitionIndex(owned[0])), "its disk")
        await trio.sleep(2 * RESUBSCRIBE_S)
        assert (await leaders(node, 0, "t"))[owned[0]] == (1, 1)
        node.lives[1].mailboxes.lost.clear()
        await trio.sleep(1.3 * RESUBSCRIBE_S)
        assert (await leaders(node, 0, "t"))[owned[0]] is None


async def test_broker_settings_are_applied_by_every_core(autojump_clock):
    async with running_node() as node:
        kind = messages.IncrementalAlterConfigsRequest
        change = kind.AlterableConfig(name="max.connections", config_operation=0, value="5000")
        resource = kind.AlterConfigsResource(resource_type=4, resource_name="", configs=[change])
        answer = await node.ask(1, kind(resources=[resource]))
        assert [one.error_code for one in answer.responses] == [0]
        assert [node.lives[core].settings_told[-1].max_connections for core in range(2)] == [5000, 5000]
        await node.restart(1)
        assert node.lives[1].settings_told[-1].max_connections == 5000


async def test_a_partition_that_could_not_be_made_is_made_later_and_everybody_hears_of_it(autojump_clock):
    async with running_node() as node:
        real_open, storage = node.lives[1].storage.open, node.lives[1].storage
        has_space = False

        async def open_if_there_is_space(key, topic, config):
            if not has_space:
                raise PartitionNotMadeError("no space")
            return await real_open(key, topic, config)

        storage.open = open_if_there_is_space
        await create_topic(node, 0, "t", 4)
        index = next(index for index in range(4) if owner_of(node, "t", index) == 1)
        assert (await leaders(node, 0, "t"))[index] is None
        assert await produce(node, 1, "t", index, [b"a"]) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        has_space = True
        await trio.sleep(1)
        assert (await leaders(node, 0, "t"))[index] == (1, 1)
        assert await produce(node, 1, "t", index, [b"a"]) == (NONE, 0)


async def test_a_partition_that_is_given_up_or_in_a_new_epoch_is_told_to_all_cores(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        topic = node[1].view.topic("t")
        index, other = [index for index in range(4) if owner_of(node, "t", index) == 1][:2]
        key, other_key = (TopicPartition(topic.topic_id, PartitionIndex(one)) for one in (index, other))
        node.lives[1].storage.give_up(key, "its disk")
        node.lives[1].storage.files[other_key].leader_epoch = 2
        node.lives[1].storage.tell_epochs([(other_key, 2)])
        await trio.testing.wait_all_tasks_blocked()
        found = await leaders(node, 0, "t")
        assert (found[index], found[other]) == (None, (1, 2))
        assert node[1].statistics().partitions_offline == 1


async def test_a_drain_answers_what_was_taken_and_takes_nothing_more(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        await produce(node, 0, "t", 0, [b"a"])
        waiting = node.send(0, fetch_request("t", 0, 1, wait_ms=60_000), 12, connection=2)
        life = node.lives[0]
        life.plane.holds = True
        sent = node.send(0, produce_request("t", 0, [b"b"]), 12, connection=3)
        drained = []
        async with trio.open_nursery() as nursery:

            async def drain():
                with trio.fail_after(20):
                    drained.append(await life.core.drain())

            nursery.start_soon(drain)
            await trio.sleep(0.1)
            assert fetched(answer_of(waiting)) == (NONE, 1, [])
            late = node.send(0, produce_request("t", 0, [b"late"]), 12, connection=2)
            assert not drained, "a request that was taken is not answered yet"
            life.plane.make_durable()
        assert drained == [True]
        assert answer_of(sent).responses[0].partition_responses[0].base_offset == 1
        assert not late.done.is_set()
        assert not life.connections.is_accepting
        assert not life.connections.open


async def test_producer_ids_are_given_once(autojump_clock):
    async with running_node() as node:
        seen = []
        for core in (0, 1, 1, 0):
            answer = await node.ask(core, messages.InitProducerIdRequest(transactional_id=None))
            seen.append(answer.producer_id)
        await node.restart(1)
        await node.restart(0)
        for core in (0, 1):
            seen.append((await node.ask(core, messages.InitProducerIdRequest(transactional_id=None))).producer_id)
        assert len(set(seen)) == 6
        await node.crash(0)
        node[1].producer_ids._next = node[1].producer_ids._end
        answer = await node.ask(1, messages.InitProducerIdRequest(transactional_id=None))
        assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
