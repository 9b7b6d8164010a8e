"""What clients say to cores in memory (`memory_node`): requests by name, and what matters of their answers."""

from __future__ import annotations

from tests.log.log_batches import batch
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.log.batch import walk_headers
from tpc_broker.model import coordinator_partition

NO_ID = bytes(16)


async def create_topic(node, core, name, partitions=4, **configs):
    kind = messages.CreateTopicsRequest
    settings = [kind.CreatableTopicConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
    topic = kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
    answer = await node.ask(core, kind(topics=[topic], timeout_ms=1000))
    return ErrorCode(answer.topics[0].error_code)


async def delete_topic(node, core, name):
    kind = messages.DeleteTopicsRequest
    answer = await node.ask(core, kind(topics=[kind.DeleteTopicState(name=name)], timeout_ms=1000))
    return ErrorCode(answer.responses[0].error_code)


async def metadata(node, core, name, *, creates=False):
    kind = messages.MetadataRequest
    asked = kind(topics=[kind.MetadataRequestTopic(name=name)], allow_auto_topic_creation=creates)
    return (await node.ask(core, asked, 12)).topics[0]


async def leaders(node, core, name):
    """Broker, epoch by partition; None: it has no leader."""
    partitions = (await metadata(node, core, name)).partitions
    return {one.partition_index: None if one.error_code else (one.leader_id, one.leader_epoch) for one in partitions}


def owner_of(node, name, index):
    return next(iter(node.lives.values())).core.view.topic(name).assignment.owner_of(index)


def produce_request(name, index, values, acks=-1, topic_id=NO_ID, **header):
    """By name; from version 13 on by `topic_id`."""
    return produce_request_of(name, {index: batch(0, values, **header)}, topic_id, acks=acks)


def produce_request_of(name, batches, topic_id=NO_ID, **how):
    """`batches`: by partition."""
    kind = messages.ProduceRequest
    parts = [kind.PartitionProduceData(index=index, records=records) for index, records in batches.items()]
    topic = kind.TopicProduceData(name=name, topic_id=topic_id, partition_data=parts)
    return kind(topic_data=[topic], **{"acks": -1, "timeout_ms": 1000, **how})


async def produce(node, core, name, index, values, **how):
    answer = await node.ask(core, produce_request(name, index, values, **how), 12)
    found = answer.responses[0].partition_responses[0]
    return ErrorCode(found.error_code), found.base_offset


def fetch_request(name, index, offset, *, min_bytes=1, wait_ms=500):
    return fetch_of_several(name, {index: offset}, min_bytes=min_bytes, wait_ms=wait_ms)


def fetch_of_several(name, offsets, *, min_bytes=1, wait_ms=500):
    """`offsets`: by partition."""
    kind = messages.FetchRequest
    parts = [
        kind.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in offsets.items()
    ]
    topics = [kind.FetchTopic(topic=name, partitions=parts)]
    return kind(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, topics=topics)


def fetched(answer):
    """Error, high watermark, base offsets."""
    (part,) = answer.responses[0].partitions
    return ErrorCode(part.error_code), part.high_watermark, [one.base_offset for one, _at in walk_headers(part.records)]


class Member:
    """A member of a group, as a client library is one: one connection, to its coordinator."""

    def __init__(self, node, group, connection):
        self.node, self.group, self.connection = node, group, connection
        self.member_id, self.generation_id, self.assignment = "", -1, b""
        self.session_timeout_ms, self.metadata = 10_000, b"m"

    def coordinator(self):
        """Which core it is; the first that is up says so, before there is a topic for groups as after."""
        view = next(iter(self.node.lives.values())).core.view
        topic = view.topic("__consumer_offsets")
        return topic.assignment.owner_of(coordinator_partition(self.group, topic.partitions_count))

    async def ask(self, message, version):
        return await self.node.ask(self.coordinator(), message, version, connection=self.connection)

    async def join(self):
        """Error. Takes the member id that is given on the way."""
        kind = messages.JoinGroupRequest
        protocols = [kind.JoinGroupRequestProtocol(name="range", metadata=self.metadata)]
        while True:
            asked = kind(
                group_id=self.group, session_timeout_ms=self.session_timeout_ms, rebalance_timeout_ms=5_000,
                member_id=self.member_id, protocol_type="consumer", protocols=protocols,
            )  # fmt: skip
            answer = await self.ask(asked, 7)
            if answer.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                break
            self.member_id = answer.member_id
        if not answer.error_code:
            self.member_id, self.generation_id = answer.member_id, answer.generation_id
            self.others = [one.member_id for one in answer.members]
        return ErrorCode(answer.error_code)

    async def sync(self, assignments=None):
        """Error; the leader says who gets what."""
        kind = messages.SyncGroupRequest
        given = [
            kind.SyncGroupRequestAssignment(member_id=one, assignment=got) for one, got in (assignments or {}).items()
        ]
        asked = kind(
            group_id=self.group, generation_id=self.generation_id, member_id=self.member_id,
            protocol_type="consumer", protocol_name="range", assignments=given,
        )  # fmt: skip
        answer = await self.ask(asked, 5)
        self.assignment = bytes(answer.assignment or b"")
        return ErrorCode(answer.error_code)

    async def begin(self, assignment=b"all"):
        """Alone in its group: joined, and told what it has."""
        assert await self.join() is ErrorCode.NONE
        assert await self.sync({self.member_id: assignment}) is ErrorCode.NONE

    async def heartbeat(self):
        asked = messages.HeartbeatRequest(
            group_id=self.group, generation_id=self.generation_id, member_id=self.member_id
        )
        return ErrorCode((await self.ask(asked, 4)).error_code)

    async def commit(self, topic, offsets):
        """Errors by partition."""
        kind = messages.OffsetCommitRequest
        partitions = [
            kind.OffsetCommitRequestPartition(partition_index=index, committed_offset=offset)
            for index, offset in offsets.items()
        ]
        asked = kind(
            group_id=self.group, generation_id_or_member_epoch=self.generation_id, member_id=self.member_id,
            topics=[kind.OffsetCommitRequestTopic(name=topic, partitions=partitions)],
        )  # fmt: skip
        answer = await self.ask(asked, 8)
        return {one.partition_index: ErrorCode(one.error_code) for one in answer.topics[0].partitions}

    async def committed(self, topic, indexes):
        """Error of the group, offsets by partition."""
        kind = messages.OffsetFetchRequest
        topics = [kind.OffsetFetchRequestTopics(name=topic, partition_indexes=list(indexes))]
        asked = kind(groups=[kind.OffsetFetchRequestGroup(group_id=self.group, topics=topics)])
        (group,) = (await self.ask(asked, 8)).groups
        found = {one.partition_index: one.committed_offset for each in group.topics for one in each.partitions}
        return ErrorCode(group.error_code), found
