"""A dialogue with a broker by requests and answers themselves, in words that are the same for any broker."""

from __future__ import annotations

import anyio

from tests.support.waiting import PATIENCE_S
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import ClientError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.api_keys import api
from tpc_broker.kafka.message import Message
from tpc_broker.kafka.records import read_batches, read_control
from tpc_broker.testing.node import api_name

OF_ONE_BROKER = {
    "throttle_time_ms", "topic_id", "leader_id", "node_id", "host", "port", "rack", "cluster_id", "controller_id",
    "brokers", "replica_nodes", "isr_nodes", "member_id", "leader", "members", "session_id", "producer_id",
    "leader_epoch", "preferred_read_replica", "current_leader", "node_endpoints", "timestamp",
    "member_epoch", "heartbeat_interval_ms",
}  # fmt: skip
"""Fields that say where, when and who it is."""
NOW_MS = 1_700_000_000_000
EARLY = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS,
}  # fmt: skip
NO_SESSION, FULL = -1, 0


def told(value):
    """An answer without what is of one broker; records are decoded."""
    if isinstance(value, Message):
        return {name: _field(name, getattr(value, name)) for name in value.__slots__ if name not in OF_ONE_BROKER}
    if isinstance(value, list | tuple):
        return [told(one) for one in value]
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _field(name, value):
    if name == "log_append_time_ms":
        return min(value, NOW_MS + 1)  # later is now
    if name == "error_code":
        return ErrorCode(value).name
    if name == "records" and not isinstance(value, list):
        return [
            (one.base_offset, [read_control(each)[0] if one.is_control else each.value for each in one.records()])
            for one in read_batches(bytes(value or b""))
        ]
    return told(value)


async def _answer(channel, key, version, message):
    answered, answers = anyio.Event(), []

    def take(answer):
        answers.append(answer)
        answered.set()

    channel.start(key, api(key).last_version if version is None else version, message, take)
    await answered.wait()
    if isinstance(answers[0], ClientError):
        raise answers[0]
    return answers[0]


def _is_early(answer):
    """Of a coordinator that has just begun, or of a transaction that is just ending: to be asked again."""
    rows = [answer, *getattr(answer, "groups", ())]
    rows += [part for topic in getattr(answer, "responses", ()) for part in getattr(topic, "partition_responses", ())]
    return any(getattr(row, "error_code", 0) in EARLY for row in rows)


class Dialogue:
    """Requests of one client, in words that are the same for any broker; `said` has what was answered."""

    def __init__(self, client, topic):
        self.fleet, self.topic, self.said = client.fleet, topic, []
        self.group = f"{topic}-group"

    async def ask(self, message, version=None, *, on=None, is_kept=True):
        key = ApiKey[api_name(message)]
        channel = await self.fleet.any_channel() if on is None else on
        with anyio.fail_after(PATIENCE_S):
            while (answer := await _answer(channel, key, version, message)) and _is_early(answer):
                await anyio.sleep(0.01)
        if is_kept:
            self.said.append((key.name, told(answer)))
        return answer

    async def leader(self, topic=None):
        where = TopicPartition(topic or self.topic, 0)
        return await self.fleet.answered(lambda: self.fleet.leader(where))

    async def coordinator(self, name, kind=CoordinatorKind.GROUP):
        return await self.fleet.answered(lambda: self.fleet.coordinator(kind, name))

    async def produce(self, records, *, acks=-1, partition=0, transactional_id=None, topic=None):
        kind = messages.ProduceRequest
        part = kind.PartitionProduceData(index=partition, records=records)
        message = kind(
            acks=acks, timeout_ms=10_000, transactional_id=transactional_id,
            topic_data=[kind.TopicProduceData(name=topic or self.topic, partition_data=[part])],
        )  # fmt: skip
        return await self.ask(message, 12, on=await self.leader(topic))

    async def fetch(self, offset, *, isolation=0, session=(0, NO_SESSION), wait_ms=0, topic=None, is_kept=True):
        kind = messages.FetchRequest
        parts = [] if offset is None else [
            kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        ]  # fmt: skip
        topics = [kind.FetchTopic(topic=topic or self.topic, partitions=parts)] if parts else []
        message = kind(
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, isolation_level=isolation, session_id=session[0],
            session_epoch=session[1], topics=topics,
        )  # fmt: skip
        return await self.ask(message, 12, on=await self.leader(), is_kept=is_kept)

    async def list_offset(self, timestamp):
        kind = messages.ListOffsetsRequest
        part = kind.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        asked = kind(topics=[kind.ListOffsetsTopic(name=self.topic, partitions=[part])])
        await self.ask(asked, 8, on=await self.leader())
