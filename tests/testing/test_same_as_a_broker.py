"""The same dialogue with a broker in memory and with one of processes, on both loops: what is answered is the same."""

from __future__ import annotations

from itertools import count

import anyio

from tests.log.log_batches import batch, record
from tests.support.both_loops import on_both_loops
from tests.support.dialogue import FULL, NO_SESSION, NOW_MS, Dialogue
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import connect
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.testing import MemoryBroker

READ_COMMITTED = 1
_runs = count(1)


async def topics_and_records(dialogue):
    kind = messages.CreateTopicsRequest
    configs = [kind.CreatableTopicConfig(name="max.message.bytes", value="1000")]
    topic = kind.CreatableTopic(name=dialogue.topic, num_partitions=1, replication_factor=1, configs=configs)
    for _twice in range(2):
        await dialogue.ask(kind(topics=[topic], timeout_ms=10_000))
    kind = messages.MetadataRequest
    for name in (dialogue.topic, f"{dialogue.topic}-missing", "no/name"):
        asked = kind(topics=[kind.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        await dialogue.ask(asked, 12)
    good = batch(0, [b"a", b"b", b"c"], timestamp=NOW_MS)
    for records in (good, good[:-1] + b"?", batch(0, [b"x" * 1000]), good[:-1], b"", good + good):
        await dialogue.produce(records)
    await dialogue.produce(good, partition=7)
    await dialogue.produce(good, acks=1)
    await dialogue.produce(good, acks=5)
    await dialogue.produce(batch(0, [b"late"], timestamp=NOW_MS + 5))
    for timestamp in (-2, -1, -3, NOW_MS + 1, NOW_MS + 9):
        await dialogue.list_offset(timestamp)


async def other_topics(dialogue):
    kind = messages.CreateTopicsRequest
    settings = {"compacted": {"cleanup.policy": "compact"}, "stamped": {"message.timestamp.type": "LogAppendTime"},
                "dated": {"message.timestamp.before.max.ms": "1000"}}  # fmt: skip
    for what, configs in settings.items():
        name = f"{dialogue.topic}-{what}"
        rows = [kind.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
        topic = kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=rows)
        await dialogue.ask(kind(topics=[topic], timeout_ms=10_000))
        await dialogue.produce(batch(0, [b"a", b"b"], timestamp=NOW_MS), topic=name)
        await dialogue.produce(batch(0, records=[record(0, b"a", b"k"), record(1, b"b")], timestamp=NOW_MS), topic=name)
        kind_of_deletion = messages.DeleteTopicsRequest
        gone = kind_of_deletion(topics=[kind_of_deletion.DeleteTopicState(name=name)], timeout_ms=10_000)
        await dialogue.ask(gone)


async def idempotence(dialogue):
    answer = await dialogue.ask(messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
    producer = answer.producer_id
    for sequence, epoch in ((0, 0), (0, 0), (1, 0), (7, 0), (0, 0), (0, 1), (2, 0)):
        await dialogue.produce(batch(0, [b"i"], producer=(producer, epoch, sequence)))


async def fetching(dialogue):
    await dialogue.fetch(0)
    await dialogue.fetch(4)
    await dialogue.fetch(1000)
    await dialogue.fetch(0, topic=f"{dialogue.topic}-missing")
    first = await dialogue.fetch(2, session=(0, FULL))
    assert first.session_id
    await dialogue.fetch(None, session=(first.session_id, 1))
    end = first.responses[0].partitions[0].high_watermark
    await dialogue.fetch(end, session=(first.session_id, 2))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dialogue.other.produce, batch(0, [b"news"]))
        await dialogue.fetch(None, session=(first.session_id, 3), wait_ms=60_000)
    await dialogue.fetch(None, session=(first.session_id, 3))
    await dialogue.fetch(None, session=(first.session_id, NO_SESSION))
    await dialogue.fetch(None, session=(first.session_id, 4))
    kind = messages.DeleteRecordsRequest
    for offset in (2, 10_000):
        part = kind.DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [kind.DeleteRecordsTopic(name=dialogue.topic, partitions=[part])]
        await dialogue.ask(kind(topics=topics, timeout_ms=10_000), on=await dialogue.leader())
    await dialogue.fetch(0)
    await dialogue.list_offset(-2)


async def classic_group(dialogue):
    coordinator, kind = await dialogue.coordinator(dialogue.group), messages.JoinGroupRequest
    member = ""
    for _twice in range(2):
        answer = await dialogue.ask(kind(
            group_id=dialogue.group, session_timeout_ms=1000 * PATIENCE_S, rebalance_timeout_ms=5_000, member_id=member,
            protocol_type="consumer", protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"m")],
        ), 9, on=coordinator)  # fmt: skip
        member = answer.member_id
    who = {"group_id": dialogue.group, "generation_id": answer.generation_id, "member_id": member}
    kind = messages.SyncGroupRequest
    given = [kind.SyncGroupRequestAssignment(member_id=member, assignment=b"all")]
    await dialogue.ask(
        kind(**who, protocol_type="consumer", protocol_name="range", assignments=given), 5, on=coordinator
    )
    await dialogue.ask(messages.HeartbeatRequest(**who), on=coordinator)
    await dialogue.ask(messages.HeartbeatRequest(**{**who, "generation_id": 9}), on=coordinator)
    await commits(dialogue, coordinator, answer.generation_id, member)
    kind = messages.LeaveGroupRequest
    leaving = kind(group_id=dialogue.group, members=[kind.MemberIdentity(member_id=member)])
    await dialogue.ask(leaving, on=coordinator)
    await dialogue.ask(messages.DescribeGroupsRequest(groups=[dialogue.group]), 6, on=coordinator)


async def commits(dialogue, coordinator, generation, member, group=None):
    kind, group = messages.OffsetCommitRequest, group or dialogue.group
    for epoch in (generation, generation + 5):
        part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=3, committed_metadata="meta")
        await dialogue.ask(kind(
            group_id=group, generation_id_or_member_epoch=epoch, member_id=member,
            topics=[kind.OffsetCommitRequestTopic(name=dialogue.topic, partitions=[part])],
        ), 9, on=coordinator)  # fmt: skip
    await committed(dialogue, coordinator, group)


async def committed(dialogue, coordinator, group):
    kind = messages.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name=dialogue.topic, partition_indexes=[0, 5])]
    asked = kind(groups=[kind.OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True)
    await dialogue.ask(asked, 9, on=coordinator)


async def new_group(dialogue):
    """KIP-848."""
    group = f"{dialogue.group}-848"
    coordinator = await dialogue.coordinator(group)
    kind = messages.ConsumerGroupHeartbeatRequest
    member, epoch, answer = "AAAAAAAAAAAAAAAAAAAAAQ", 0, None
    while answer is None or answer.assignment is None:
        joins = {"rebalance_timeout_ms": 5_000, "subscribed_topic_names": [dialogue.topic], "topic_partitions": []}
        message = kind(group_id=group, member_id=member, member_epoch=epoch, **({} if epoch else joins))
        answer = await dialogue.ask(message, 1, on=coordinator)
        assert not answer.error_code
        epoch = answer.member_epoch
    await commits(dialogue, coordinator, epoch, member, group)
    await dialogue.ask(kind(group_id=group, member_id=member, member_epoch=epoch + 7), 1, on=coordinator)
    await dialogue.ask(kind(group_id=group, member_id=member, member_epoch=-1), 1, on=coordinator)
    await dialogue.ask(messages.ConsumerGroupDescribeRequest(group_ids=[group]), on=coordinator)


async def transactions(dialogue):
    name = dialogue.group
    coordinator = await dialogue.coordinator(name, CoordinatorKind.TRANSACTION)
    await dialogue.produce(batch(0, [b"t"], producer=(1 << 40, 0, 0), transactional=True), transactional_id=name)
    sequence = 0
    asked = messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = await dialogue.ask(asked, 5, on=coordinator)
    producer, epoch = answer.producer_id, answer.producer_epoch
    for commits_it in (False, True):
        records = batch(0, [b"t", b"u"], producer=(producer, epoch, sequence), transactional=True)
        await dialogue.produce(records, transactional_id=name)
        answer = await dialogue.ask(messages.EndTxnRequest(
            transactional_id=name, producer_id=producer, producer_epoch=epoch, committed=commits_it,
        ), 5, on=coordinator)  # fmt: skip
        epoch, sequence = answer.producer_epoch, 0
    offset = 0
    with anyio.fail_after(PATIENCE_S):
        while True:
            found = await dialogue.fetch(offset, isolation=READ_COMMITTED, wait_ms=1000, is_kept=False)
            part = found.responses[0].partitions[0]
            if part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = 2
            elif part.last_stable_offset == part.high_watermark and bytes(part.records or b"").count(b"u") >= 2:
                break
    await dialogue.fetch(offset, isolation=READ_COMMITTED)
    await dialogue.fetch(offset)
    await dialogue.ask(messages.DescribeTransactionsRequest(transactional_ids=[name]), on=coordinator, is_kept=False)


async def offsets_in_a_transaction(dialogue):
    name, group = f"{dialogue.group}-2", f"{dialogue.group}-tx"
    coordinator = await dialogue.coordinator(name, CoordinatorKind.TRANSACTION)
    of_group = await dialogue.coordinator(group)
    asked = messages.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    answer = await dialogue.ask(asked, 5, on=coordinator)
    kind = messages.TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=4)
    await dialogue.ask(kind(
        transactional_id=name, group_id=group, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch,
        topics=[kind.TxnOffsetCommitRequestTopic(name=dialogue.topic, partitions=[part])],
    ), 5, on=of_group)  # fmt: skip
    await dialogue.ask(messages.EndTxnRequest(
        transactional_id=name, producer_id=answer.producer_id, producer_epoch=answer.producer_epoch, committed=True,
    ), 5, on=coordinator)  # fmt: skip
    with anyio.fail_after(PATIENCE_S):
        asked = messages.OffsetFetchRequest
        topics = [asked.OffsetFetchRequestTopics(name=dialogue.topic, partition_indexes=[0])]
        message = asked(groups=[asked.OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=True)
        while (
            (await dialogue.ask(message, 9, on=of_group, is_kept=False)).groups[0].topics[0].partitions[0].error_code
            == ErrorCode.UNSTABLE_OFFSET_COMMIT
        ):
            pass
    await committed(dialogue, of_group, group)


async def configs_and_the_end(dialogue):
    kind = messages.IncrementalAlterConfigsRequest
    for name, value in (("retention.ms", "5000"), ("no.such", "1"), ("retention.ms", "x")):
        one = kind.AlterableConfig(name=name, config_operation=0, value=value)
        resource = kind.AlterConfigsResource(resource_type=2, resource_name=dialogue.topic, configs=[one])
        await dialogue.ask(kind(resources=[resource]))
    kind = messages.DescribeConfigsRequest
    keys = ["retention.ms", "max.message.bytes", "cleanup.policy"]
    resource = kind.DescribeConfigsResource(resource_type=2, resource_name=dialogue.topic, configuration_keys=keys)
    await dialogue.ask(kind(resources=[resource]))
    await dialogue.ask(messages.DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    ))
    kind = messages.CreatePartitionsRequest
    topic = kind.CreatePartitionsTopic(name=dialogue.topic, count=3, assignments=None)
    await dialogue.ask(kind(topics=[topic], timeout_ms=10_000))
    kind = messages.DeleteTopicsRequest
    for _twice in range(2):
        await dialogue.ask(kind(topics=[kind.DeleteTopicState(name=dialogue.topic)], timeout_ms=10_000))


async def said_by(broker, topic):
    async with connect(broker) as client, connect(broker) as other:
        dialogue = Dialogue(client, topic)
        dialogue.other = Dialogue(other, topic)
        for part in (
            topics_and_records, other_topics, idempotence, fetching, classic_group, new_group, transactions,
            offsets_in_a_transaction, configs_and_the_end,
        ):  # fmt: skip
            await part(dialogue)
        return dialogue.said


@on_both_loops
async def test_a_broker_in_memory_says_what_a_broker_says(shared_broker):
    topic = f"same-in-memory-{next(_runs)}"
    async with MemoryBroker() as broker:
        in_memory = await said_by(broker, topic)
    of_processes = await said_by(shared_broker.bootstrap, topic)
    for one, other in zip(in_memory, of_processes, strict=True):
        assert one == other, f"{one}, not {other}"
