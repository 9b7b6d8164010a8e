"""Every API that is offered asks for the rights that its row names, and refuses with Kafka's codes where one lacks."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest
import trio

from tests.support.consumer_members import ConsumerMember
from tests.support.memory_clients import Member, create_topic, metadata, produce
from tests.support.memory_node import running_node
from tests.support.rights import (
    ALTER,
    ANSWERED_IN_PART,
    CONFIGS,
    CREATE,
    DESCRIBE,
    OF_ABSENT_TOPICS,
    OF_CLUSTER,
    OF_GROUP,
    OF_NOBODY,
    OF_TOPIC,
    OF_TRANSACTION,
    READ,
    REFUSALS,
    REQUESTS,
    WRITE,
    OnlyThese,
    allow_only,
    codes,
    on_cluster,
    on_group,
    on_topic,
    on_transaction,
)
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.auth.principals import ANONYMOUS, Subject
from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR
from tpc_broker.broker.handlers.metadata import CLEANING_TAG, LOADS_TAG, RELEASES_TAG
from tpc_broker.broker.handlers.table import ROWS
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import encode_request
from tpc_broker.kafka.source import uvarint
from tpc_broker.testing.connections import MemoryRequest

SETTINGS = (
    "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1",
    "group.consumer.assignment.interval.ms=0", "offsets.retention.minutes=100000",
)  # fmt: skip
NONE = ErrorCode.NONE


@asynccontextmanager
async def node_with():
    """Topic t with a record, group g with an offset, consumer group c that has t, transactional id x."""
    async with running_node(cores=1, settings=SETTINGS) as node:
        await create_topic(node, 0, "t", 1)
        assert (await produce(node, 0, "t", 0, [b"a"]))[0] is NONE
        for kind, key in ((0, "g"), (1, "x")):
            find = messages.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            while any(codes(await node.ask(0, find))):
                await trio.sleep(0.1)
        while node[0].groups.is_loading or node[0].transactions.is_loading:
            await trio.sleep(0.1)
        assert await Member(node, "g", 10).commit("t", {0: 1}) == {0: NONE}
        member = ConsumerMember(node, "c", 11, ("t",))
        assert await member.beat() is NONE
        assert member.partitions() == {0}
        await node.ask(0, messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000))
        yield node


def state(node):
    """What requests may change."""
    core = node[0]
    logs = {(one.topic_name, one.index): one.bounds() for one in core.partitions.opened()}
    return core.view.image.version, logs


async def asked(node, one, *rights):
    topic_id = node[0].view.topic("t").topic_id.bytes
    allow_only(node[0], *rights)
    answer = await node.ask(0, one.made(topic_id), one.version, connection=30)
    assert answer is not None, "it is answered"
    return codes(answer)


def name_of(one):
    return f"{one.key.name} {one.name}".strip().replace(" ", "-")


EACH = pytest.mark.parametrize("one", REQUESTS, ids=name_of)


@pytest.mark.parametrize("one", [*REQUESTS, *OF_ABSENT_TOPICS], ids=name_of)
async def test_who_has_no_right_is_refused_with_kafkas_code_and_nothing_changes(autojump_clock, one):
    async with node_with() as node:
        before = state(node)
        found = await asked(node, one)
        assert set(found) - {NONE} == {one.refused}, found
        await trio.sleep(5)
        assert state(node) == before


@EACH
async def test_who_has_just_the_rights_that_are_needed_is_not_refused(autojump_clock, one):
    for rights in (one.needs, one.instead):
        if rights:
            async with node_with() as node:
                assert REFUSALS.isdisjoint(await asked(node, one, *rights)), rights


@pytest.mark.parametrize("one", [one for one in REQUESTS if len(one.needs) > 1], ids=name_of)
async def test_each_of_several_rights_is_needed(autojump_clock, one):
    for left_out in one.needs:
        async with node_with() as node:
            found = await asked(node, one, *(right for right in one.needs if right != left_out))
            assert REFUSALS & set(found), left_out


def test_no_api_is_forgotten_and_each_need_of_a_row_is_asked_for():
    free = {key for key, row in ROWS.items() if row.free_because}
    assert {one.key for one in REQUESTS} | free | ANSWERED_IN_PART | OF_NOBODY == set(ROWS)
    for key in {one.key for one in REQUESTS}:
        of_row = {(need.operation, need.resource) for need in ROWS[key].needs}
        tried = {right[:2] for one in REQUESTS if one.key == key for right in (*one.needs, *one.instead)}
        only_told = {(DESCRIBE, Resource.TOPIC)} if key == ApiKey.DESCRIBE_TRANSACTIONS else set()
        assert of_row - only_told == tried, key.name


def test_a_row_whose_answer_is_refused_as_a_whole_needs_the_cluster_only():
    for key, row in ROWS.items():
        on_cluster_only = bool(row.needs) and all(need.resource is Resource.CLUSTER for need in row.needs)
        is_told_less = key == ApiKey.DESCRIBE_CLUSTER
        assert (row.refused is not None) == (on_cluster_only and not is_told_less), key.name
        if row.refused is not None:
            assert row.refused.__annotations__["message" if "message" in row.refused.__annotations__ else "_message"]
            assert row.refused.__annotations__["return"] == row.handler.__annotations__["return"]


async def test_the_data_plane_asks_who_asks_with_an_authorizer(autojump_clock):
    async with node_with() as node:
        access, plane = node[0].access, node[0].plane
        access.authorizer = OnlyThese()
        assert plane.generation == access.generation
        access.authorizer = None
        assert plane.generation is None


async def test_who_asks_is_whoever_the_connection_is_of_on_every_core(autojump_clock):
    async with running_node(cores=2) as node:
        for core in range(2):
            allow_only(node[core])
        kind = messages.CreateTopicsRequest
        topic = kind.CreatableTopic(name="new", num_partitions=1, replication_factor=1)
        answer = await node.ask(1, kind(topics=[topic], timeout_ms=1000), connection=77)
        assert codes(answer) == [OF_TOPIC, NONE]
        assert node[0].access.authorizer.subjects == {Subject(ANONYMOUS, "127.0.0.1")}
        assert not node[1].access.authorizer.subjects, "it is the controller that decides"


# -- what is left out --------------------------------------------------------------------------------------------------


async def test_who_asks_for_all_topics_gets_those_that_may_be_seen(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        everything = messages.MetadataRequest(topics=None)
        before = await node.ask(0, everything)
        assert {"t", "u"} <= {topic.name for topic in before.topics}
        allow_only(node[0], on_topic(DESCRIBE, "u"))
        answer = await node.ask(0, everything, connection=31)
        assert [(topic.name, topic.error_code) for topic in answer.topics] == [("u", NONE)]
        assert answer.brokers
        pages = messages.DescribeTopicPartitionsRequest(topics=[], response_partition_limit=100)
        assert [topic.name for topic in (await node.ask(0, pages)).topics] == ["u"]
        allow_only(node[0])
        assert (await node.ask(0, everything, connection=31)).topics == []
        assert (await node.ask(0, pages)).topics == []


async def test_an_answer_about_all_topics_is_kept_for_nobody_else(autojump_clock):
    async with node_with() as node:
        plane = node[0].plane
        allow_only(node[0], on_topic(DESCRIBE))
        plane.prepared.clear()
        await node.ask(0, messages.MetadataRequest(topics=None))
        assert not plane.prepared


async def test_a_topic_that_may_not_be_seen_is_told_by_what_it_was_asked_for(autojump_clock):
    async with node_with() as node:
        topic_id = node[0].view.topic("t").topic_id.bytes
        allow_only(node[0])
        by_name = await metadata(node, 0, "t")
        assert (by_name.error_code, by_name.name, by_name.topic_id) == (OF_TOPIC, "t", bytes(16))
        kind = messages.MetadataRequest

        async def by_id(asked):
            message = kind(
                topics=[kind.MetadataRequestTopic(name=None, topic_id=asked)], include_topic_authorized_operations=True
            )
            (found,) = (await node.ask(0, message)).topics
            return found.error_code, found.name, bytes(found.topic_id), found.topic_authorized_operations

        guessed = bytes(15) + b"\1"
        assert await by_id(topic_id) == (OF_TOPIC, None, topic_id, NOT_ASKED_FOR)
        assert await by_id(guessed) == (ErrorCode.UNKNOWN_TOPIC_ID, None, guessed, NOT_ASKED_FOR)


async def test_a_topic_is_made_on_first_use_by_who_may_make_it_only(autojump_clock):
    async with node_with() as node:
        describe = on_topic(DESCRIBE, "new")
        for rights, told in (((), OF_TOPIC), ((on_topic(CREATE, "new"),), OF_TOPIC), ((describe,), OF_TOPIC)):
            allow_only(node[0], *rights)
            assert (await metadata(node, 0, "new", creates=True)).error_code == told
            assert node[0].view.topic("new") is None
        allow_only(node[0], describe, on_topic(CREATE, "new"))
        assert (await metadata(node, 0, "new", creates=True)).error_code not in REFUSALS
        assert node[0].view.topic("new") is not None


async def test_groups_and_transactions_are_listed_that_may_be_seen(autojump_clock):
    async with node_with() as node:

        async def listed(*rights):
            allow_only(node[0], *rights)
            groups = (await node.ask(0, messages.ListGroupsRequest())).groups
            transactions = await node.ask(0, messages.ListTransactionsRequest(duration_filter=-1))
            return {one.group_id for one in groups}, [one.transactional_id for one in transactions.transaction_states]

        assert await listed() == (set(), [])
        assert await listed(on_group(DESCRIBE, "g")) == ({"g"}, [])
        assert await listed(on_cluster(DESCRIBE)) == ({"c", "g"}, [])
        assert await listed(on_transaction(DESCRIBE)) == (set(), ["x"])


async def test_all_offsets_of_a_group_are_those_of_topics_that_may_be_seen(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        assert await Member(node, "g", 10).commit("u", {0: 5}) == {0: NONE}
        kind = messages.OffsetFetchRequest
        allow_only(node[0], on_group(DESCRIBE), on_topic(DESCRIBE, "u"))
        several = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", member_epoch=-1, topics=None)])
        (group,) = (await node.ask(0, several, 9)).groups
        assert [topic.name for topic in group.topics] == ["u"]
        (group,) = (await node.ask(0, several, 10)).groups
        assert [bytes(topic.topic_id) for topic in group.topics] == [node[0].view.topic("u").topic_id.bytes]
        answer = await node.ask(0, kind(group_id="g", topics=None), 7)
        assert [topic.name for topic in answer.topics] == ["u"]


async def test_one_topic_of_several_is_refused_alone(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        of_u = on_topic(READ, "u"), on_topic(DESCRIBE, "u")
        allow_only(node[0], on_group(READ), on_group(DESCRIBE), *of_u)
        kind = messages.OffsetFetchRequest
        topics = [kind.OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in "tu"]
        asked_for = kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", member_epoch=-1, topics=topics)])
        (group,) = (await node.ask(0, asked_for, 9)).groups
        found = {topic.name: topic.partitions[0].error_code for topic in group.topics}
        assert (group.error_code, found) == (NONE, {"t": OF_TOPIC, "u": NONE})
        assert await Member(node, "g", 10).commit("t", {0: 9}) == {0: OF_TOPIC}
        assert await Member(node, "g", 10).commit("u", {0: 9}) == {0: NONE}


async def test_a_consumer_group_is_hidden_where_one_of_its_topics_is(autojump_clock):
    async with node_with() as node:
        kind = messages.ConsumerGroupDescribeRequest(group_ids=["c"], include_authorized_operations=True)
        allow_only(node[0], on_group(DESCRIBE, "c"))
        (group,) = (await node.ask(0, kind)).groups
        assert (group.error_code, group.members, group.group_state) == (OF_TOPIC, [], "")
        assert group.error_message == "The group has described topic(s) that the client is not authorized to describe."
        allow_only(node[0], on_group(DESCRIBE, "c"), on_topic(DESCRIBE))
        (group,) = (await node.ask(0, kind)).groups
        assert (group.error_code, len(group.members)) == (NONE, 1)
        assert group.authorized_operations == 1 << Operation.DESCRIBE


async def test_a_heartbeat_that_names_one_hidden_topic_is_refused_as_a_whole(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        allow_only(node[0], on_group(READ, "k"), on_topic(DESCRIBE, "u"))
        member = ConsumerMember(node, "k", 40, ("t", "u"))
        assert await member.beat() is OF_TOPIC
        node[0].access.authorizer = None
        assert "k" not in {one.group_id for one in (await node.ask(0, messages.ListGroupsRequest())).groups}


async def test_topics_of_a_transaction_are_told_that_may_be_seen(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        begun = await node.ask(
            0, messages.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        )
        kind = messages.AddPartitionsToTxnRequest
        message = kind(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=begun.producer_id,
            v3_and_below_producer_epoch=begun.producer_epoch,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in "tu"],
        )  # fmt: skip
        assert set(codes(await node.ask(0, message, 3))) == {NONE}
        describe = messages.DescribeTransactionsRequest(transactional_ids=["x"])
        allow_only(node[0], on_transaction(DESCRIBE), on_topic(DESCRIBE, "u"))
        (found,) = (await node.ask(0, describe)).transaction_states
        assert (found.error_code, [topic.topic for topic in found.topics]) == (NONE, ["u"])


async def test_of_partitions_that_are_added_one_that_may_not_be_written_spoils_all(autojump_clock):
    async with node_with() as node:
        await create_topic(node, 0, "u", 1)
        allow_only(node[0], on_transaction(WRITE), on_topic(WRITE, "u"))
        kind = messages.AddPartitionsToTxnRequest
        names = ("t", "u", "__consumer_offsets")
        message = kind(
            v3_and_below_transactional_id="x", v3_and_below_producer_id=1, v3_and_below_producer_epoch=0,
            v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name=name, partitions=[0]) for name in names],
        )  # fmt: skip
        answer = await node.ask(0, message, 3)
        found = {one.name: codes(one)[0] for one in answer.results_by_topic_v3_and_below}
        not_tried = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert found == {"t": OF_TOPIC, "u": not_tried, "__consumer_offsets": OF_TOPIC}


async def test_of_a_deleted_topic_by_id_the_name_is_told_to_who_may_see_it(autojump_clock):
    async with node_with() as node:
        topic_id = node[0].view.topic("t").topic_id.bytes
        kind = messages.DeleteTopicsRequest
        message = kind(topics=[kind.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=1000)
        for rights, name in (((), None), ((on_topic(DESCRIBE),), "t")):
            allow_only(node[0], *rights)
            (found,) = (await node.ask(0, message)).responses
            assert (found.error_code, found.name, bytes(found.topic_id)) == (OF_TOPIC, name, topic_id)
        assert node[0].view.topic("t") is not None


async def test_a_topic_that_is_made_keeps_its_settings_from_who_may_not_read_them(autojump_clock):
    async with node_with() as node:
        kind = messages.CreateTopicsRequest
        for name, rights, hidden in (("a", (), True), ("b", (on_topic(CONFIGS, "b"),), False)):
            allow_only(node[0], on_cluster(CREATE), *rights)
            topic = kind.CreatableTopic(name=name, num_partitions=3, replication_factor=1)
            (found,) = (await node.ask(0, kind(topics=[topic], timeout_ms=1000))).topics
            assert found.error_code == NONE
            told = (found.topic_config_error_code, found.num_partitions, bool(found.configs))
            assert told == ((OF_TOPIC, -1, False) if hidden else (NONE, 3, True))
            assert node[0].view.topic(name).partitions_count == 3


async def test_topics_that_are_made_together_are_refused_one_by_one(autojump_clock):
    async with node_with() as node:
        kind = messages.CreateTopicsRequest
        allow_only(node[0], on_topic(CREATE, "a"))
        topics = [kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "abcc"]
        answer = await node.ask(0, kind(topics=topics, timeout_ms=1000))
        found = {one.name: one.error_code for one in answer.topics}
        assert found == {"a": NONE, "b": OF_TOPIC, "c": ErrorCode.INVALID_REQUEST}
        assert (node[0].view.topic("a") is not None, node[0].view.topic("b")) == (True, None)


# -- what may be done --------------------------------------------------------------------------------------------------


async def test_what_may_be_done_is_told_as_kafka_does(autojump_clock):
    async with node_with() as node:
        kind = messages.MetadataRequest
        message = kind(
            topics=[kind.MetadataRequestTopic(name="t")], include_topic_authorized_operations=True,
            include_cluster_authorized_operations=True,
        )  # fmt: skip

        async def told(*rights):
            node[0].access.authorizer = None
            if rights:
                allow_only(node[0], *rights)
            answer = await node.ask(0, message, 10)
            cluster = await node.ask(0, messages.DescribeClusterRequest(include_cluster_authorized_operations=True), 0)
            assert cluster.cluster_authorized_operations == answer.cluster_authorized_operations
            return answer.topics[0].topic_authorized_operations, answer.cluster_authorized_operations

        assert await told() == (3576, 8096), "everything, as to a super user"
        assert await told(on_topic(DESCRIBE)) == (256, 0)
        assert await told(on_topic(DESCRIBE), on_cluster(CREATE)) == (256, 0), "who may not see the cluster"
        rights = (on_topic(DESCRIBE), on_topic(READ), on_cluster(DESCRIBE), on_cluster(ALTER))
        assert await told(*rights) == (1 << READ | 1 << DESCRIBE, 1 << DESCRIBE | 1 << ALTER)
        assert (await told(on_topic(READ)))[0] == NOT_ASKED_FOR, "a hidden topic"


async def test_what_our_own_tools_are_told_of_the_cluster_is_for_who_may_see_it(autojump_clock):
    async with node_with() as node:
        key, version = ApiKey.DESCRIBE_CLUSTER, 2
        encoded = encode_request(key, version, messages.DescribeClusterRequest())
        for tag in (LOADS_TAG, RELEASES_TAG, CLEANING_TAG):
            for rights, is_told in (((), False), ((on_cluster(DESCRIBE),), True)):
                allow_only(node[0], *rights)
                body = memoryview(encoded[:-1] + uvarint(1) + uvarint(tag) + uvarint(0))
                request = MemoryRequest(50, int(key), version, 1, body, 0)
                node.lives[0].connections.send(request)
                await request.done.wait()
                assert (b"{" in request.answer) == is_told


async def test_the_cleaning_of_a_hidden_topic_is_told_to_nobody(autojump_clock):
    async with node_with() as node:
        [partition] = [each for each in node[0].partitions.opened() if each.topic_name == "t"]
        book = node.lives[0].storage.cleaning
        book.measured(partition.key, "t-0", dirty_bytes=777_777, clean_bytes=1, first_dirty_offset=0)
        encoded = encode_request(ApiKey.DESCRIBE_CLUSTER, 2, messages.DescribeClusterRequest())

        async def told(topic, *rights):
            allow_only(node[0], on_cluster(DESCRIBE), *rights)
            body = memoryview(encoded[:-1] + uvarint(1) + uvarint(CLEANING_TAG) + uvarint(len(topic)) + topic)
            request = MemoryRequest(50, int(ApiKey.DESCRIBE_CLUSTER), 2, 1, body, 0)
            node.lives[0].connections.send(request)
            await request.done.wait()
            return request.answer

        assert b"777777" in await told(b"t", on_topic(DESCRIBE))
        assert await told(b"t") == await told(b"u"), "as of one that is not there"


def test_codes_are_those_of_kafka():
    assert [int(code) for code in (OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_TRANSACTION)] == [29, 30, 31, 53]
