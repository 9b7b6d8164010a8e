"""Clients of simulated nodes: they ask again until they are answered, as client libraries do.

Each notes what it was promised in `Promises`, which the end of a run is checked against; what can be seen to be wrong
at once fails the run at once: an offset that shows two values, a sequence that is refused, a committed offset that went
back.
"""

from __future__ import annotations

from collections import defaultdict, deque

import trio

from tests.log.log_batches import batch
from tests.simulator.nodes_dialogues import Dialogues
from tpc_broker.broker.handlers.reassignments import IDS_ARE_CORES_TAG
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.records import read_batches
from tpc_broker.log.producer_state import BATCHES_PER_PRODUCER_MAX
from tpc_broker.model import broker_id_of
from tpc_broker.testing.node import api_name

ANSWER_S = 6.0
AGAIN_S = 0.3
NONE = ErrorCode.NONE
BROKER, SET, DELETED = 4, 0, 1
"""Of alterations of settings."""
EVERY_BROKER = ""
LATEST = -1


class Promises:
    """What clients were told, by (topic, partition)."""

    def __init__(self):
        self.sent = defaultdict(list)
        """Values, in the order in which their producer sent them."""
        self.acknowledged: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        """By offset."""
        self.seen: dict[tuple[str, int], dict[int, bytes]] = defaultdict(dict)
        self.committed: dict[tuple[str, str, int], int] = {}
        """By group, topic and partition: the newest offset that was acknowledged."""
        self.topics: dict[str, int] = {}
        """Partitions, of those that were acknowledged."""

    def end_of(self, key):
        """Behind all that was acknowledged or shown."""
        return max((offset + 1 for told in (self.acknowledged, self.seen) for offset in told[key]), default=0)


class Client:
    """One connection to each broker; one thing at a time. None in place of an answer: there was none."""

    def __init__(self, cluster, name):
        self.cluster, self.chance = cluster, cluster.stream(f"client {name}")
        self._dialogues = Dialogues(cluster.network, name)

    async def ask(self, broker, message, version=None, answer_s=ANSWER_S, tag=None):
        key = ApiKey[api_name(message)]
        version = api(key).last_version if version is None else version
        answer = None
        if broker is not None and broker.is_ready:
            answer = await self._dialogues.ask(broker.place, int(key), version, message, answer_s, tag)
        if answer is None:
            await trio.sleep(AGAIN_S)
        return answer

    def any_broker(self):
        node = self.cluster.nodes[self.chance.choice(sorted(self.cluster.nodes))]
        return self.cluster.broker(broker_id_of(node.number, self.chance.randrange(node.cores)))

    async def again(self):
        await trio.sleep(self.chance.uniform(0.5, 1.5) * AGAIN_S)

    async def leader(self, topic, index):
        """The broker that another one believes to lead it."""
        kind = messages.MetadataRequest
        asked = kind(topics=[kind.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        answer = await self.ask(self.any_broker(), asked, 12)
        for one in answer.topics[0].partitions if answer is not None else ():
            if one.partition_index == index and one.leader_id >= 0:
                return self.cluster.broker(one.leader_id)
        return None


class Admin(Client):
    async def create_topic(self, name, partitions, factor=3):
        """Until it is there."""
        kind = messages.CreateTopicsRequest
        topic = kind.CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor)
        while True:
            answer = await self.ask(self.any_broker(), kind(topics=[topic], timeout_ms=3000))
            code = None if answer is None else ErrorCode(answer.topics[0].error_code)
            if code in (NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                self.cluster.promises.topics[name] = partitions
                return
            await self.again()

    async def reassign(self, name, index, brokers, *, allows_factor_change=True, **how):
        """Once; whether it was begun. None in place of brokers' ids: what is under way is cancelled."""
        kind = messages.AlterPartitionReassignmentsRequest
        part = kind.ReassignablePartition(partition_index=index, replicas=brokers)
        topic = kind.ReassignableTopic(name=name, partitions=[part])
        asked = kind(topics=[topic], timeout_ms=3000, allow_replication_factor_change=allows_factor_change)
        answer = await self.ask(self.any_broker(), asked, **how)
        return answer is not None and not answer.error_code and not answer.responses[0].partitions[0].error_code

    async def move(self, name, index, broker):
        """As `tpc partition move`: the replica of that node to that core; whether it was begun."""
        return await self.reassign(name, index, [broker], allows_factor_change=False, tag=IDS_ARE_CORES_TAG)

    async def drain(self, number, *, ends=False):
        """Until it is known that a node drains, or does no more."""
        await self.configure(str(number * 1024), "node.draining", None if ends else "true")

    async def configure(self, broker, name, value):
        """Until a setting of a broker, or of `EVERY_BROKER`, is another one; None: it is as if it were not set."""
        kind = messages.IncrementalAlterConfigsRequest
        change = kind.AlterableConfig(name=name, config_operation=DELETED if value is None else SET, value=value)
        resource = kind.AlterConfigsResource(resource_type=BROKER, resource_name=broker, configs=[change])
        while True:
            answer = await self.ask(self.any_broker(), kind(resources=[resource]))
            if answer is not None and answer.responses[0].error_code == NONE:
                return
            await self.again()

    async def remove(self, number):
        """Until the cluster has no such node."""
        while True:
            answer = await self.ask(self.any_broker(), messages.UnregisterBrokerRequest(broker_id=number * 1024))
            if answer is not None and answer.error_code in (NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
                return
            await self.again()


class Producer(Client):
    """Idempotent, of one partition, one batch under way."""

    def __init__(self, cluster, name, topic, index):
        super().__init__(cluster, name)
        self.topic, self.index, self.key = topic, index, (topic, index)
        self._name, self._sequence = name, 0
        self._producer: tuple[int, int] | None = None
        self._broker = None
        self._last: deque[tuple[bytes, int]] = deque(maxlen=BATCHES_PER_PRODUCER_MAX)
        """Batches that were acknowledged, and where."""

    async def begin(self):
        while self._producer is None:
            asked = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
            answer = await self.ask(self.any_broker(), asked)
            if answer is not None and not answer.error_code:
                self._producer = answer.producer_id, answer.producer_epoch
            else:
                await self.again()

    async def send(self, count_=1, padding_bytes=0):
        """Until it is acknowledged. Each record is longer by so many bytes than it would be, which are its own."""
        if self._producer is None:
            await self.begin()
        promises = self.cluster.promises
        values = [self._value(self._sequence + number, padding_bytes) for number in range(count_)]
        promises.sent[self.key] += values
        data = batch(0, values, producer=(*self._producer, self._sequence))
        while (offset := await self._try(data)) is None:
            await self.again()
        self._sequence += count_
        self._last.append((data, offset))
        for place, value in enumerate(values):
            before = promises.acknowledged[self.key].setdefault(offset + place, value)
            if before != value:
                self.cluster.fails(f"{self.key}: offset {offset + place} was acknowledged for {before} and for {value}")

    def _value(self, number, padding_bytes):
        value = f"{self._name} {number}".encode()
        return b"%b|%b" % (value, self.chance.randbytes(padding_bytes)) if padding_bytes else value

    async def repeat(self):
        """One of the last batches, once, as who has not heard of its answer: to be told the same, or nothing."""
        if not self._last:
            return
        data, offset = self.chance.choice(self._last)
        told = await self._try(data)
        if told not in (None, offset):
            self.cluster.fails(f"{self.key}: what was acknowledged at {offset} is said to be at {told}, when repeated")

    async def _try(self, data):
        """The offset; None: not known, or refused."""
        if self._broker is None:
            self._broker = await self.leader(self.topic, self.index)
        kind = messages.ProduceRequest
        part = kind.PartitionProduceData(index=self.index, records=data)
        topic = kind.TopicProduceData(name=self.topic, partition_data=[part])
        answer = await self.ask(self._broker, kind(acks=-1, timeout_ms=5000, topic_data=[topic]), 12)
        if answer is None:
            self._broker = None
            return None
        found = answer.responses[0].partition_responses[0]
        code = ErrorCode(found.error_code)
        if code is NONE:
            if found.base_offset < 0:
                self.cluster.fails(f"{self.key}: {found.base_offset} is told as the offset of what was acknowledged")
            return found.base_offset
        if code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH):
            self.cluster.fails(f"{self.key}: a producer with one batch under way was told {code.name}")
        self._broker = None
        return None


class Consumer(Client):
    """Reads a partition from its beginning on, again and again."""

    def __init__(self, cluster, name, topic, index):
        super().__init__(cluster, name)
        self.topic, self.index, self.key, self.offset = topic, index, (topic, index), 0
        self._broker = None

    async def read(self):
        """One fetch; how many records. None: not answered, or refused."""
        self._broker = self._broker or await self.leader(self.topic, self.index)
        kind = messages.FetchRequest
        part = kind.FetchPartition(
            partition=self.index, fetch_offset=self.offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
        )
        topics = [kind.FetchTopic(topic=self.topic, partitions=[part])]
        asked = kind(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics)
        answer = await self.ask(self._broker, asked, 12)
        if answer is None or answer.error_code or not answer.responses:
            self._broker = None
            return None
        (found,) = answer.responses[0].partitions
        if found.error_code:
            if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.cluster.fails(f"{self.key}: offset {self.offset}, up to which all was read, is nowhere")
            self._broker = None
            return None
        return self._take(found)

    async def look_at_end(self):
        """Once: the log ends behind what was shown, or acknowledged, before anybody was asked where."""
        self._broker = self._broker or await self.leader(self.topic, self.index)
        known = self.cluster.promises.end_of(self.key)
        kind = messages.ListOffsetsRequest
        part = kind.ListOffsetsPartition(partition_index=self.index, timestamp=LATEST, current_leader_epoch=-1)
        asked = kind(
            replica_id=-1, isolation_level=0, topics=[kind.ListOffsetsTopic(name=self.topic, partitions=[part])]
        )
        answer = await self.ask(self._broker, asked, 5)
        found = None if answer is None else answer.topics[0].partitions[0]
        if found is None or found.error_code:
            self._broker = None
        elif found.offset < known:
            self.cluster.fails(f"{self.key}: the log ends at {found.offset}, it is said, and had {known} before")

    def _take(self, found):
        seen, began = self.cluster.promises.seen[self.key], self.offset
        for one in read_batches(bytes(found.records or b"")):
            for record in one.records():
                offset = record.offset
                if offset < self.offset:
                    continue
                if offset != self.offset:
                    self.cluster.fails(f"{self.key}: offset {offset} comes behind {self.offset - 1}")
                before = seen.setdefault(offset, record.value)
                if before != record.value:
                    self.cluster.fails(f"{self.key}: offset {offset} showed {before} and {record.value}")
                self.offset = offset + 1
        if self.offset > found.high_watermark:
            self.cluster.fails(
                f"{self.key}: records up to {self.offset}, and a high watermark of {found.high_watermark}"
            )
        return self.offset - began
