"""Producers with a transactional id on cores in memory (`memory_node`)."""

from __future__ import annotations

from contextlib import asynccontextmanager

import trio

from tests.support.memory_clients import create_topic, produce_request
from tests.support.memory_node import running_node
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.records import read_batches, read_control
from tpc_broker.model import TRANSACTION_STATE_TOPIC, PartitionIndex, TopicPartition, coordinator_partition
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE
SETTINGS = ("offsets.topic.num.partitions=4", "transaction.state.log.num.partitions=4")


@asynccontextmanager
async def node_with_transactions(topic="data", partitions=4, settings=(), **how):
    async with running_node(settings=(*SETTINGS, *settings), **how) as node:
        assert await create_topic(node, 0, topic, partitions) is NONE
        while (await find_coordinator(node, 0, "t"))[0] is not NONE or is_loading(node):
            await trio.sleep(0.1)
        yield node


def is_loading(node):
    return any(life.core.transactions.is_loading for life in node.lives.values())


async def find_coordinator(node, core, *names):
    kind = messages.FindCoordinatorRequest
    (found, *_others) = (await node.ask(core, kind(key_type=1, coordinator_keys=list(names)), 4)).coordinators
    return ErrorCode(found.error_code), found.node_id


def coordinator_core(node, name):
    topic = next(iter(node.lives.values())).core.view.topic(TRANSACTION_STATE_TOPIC)
    return topic.assignment.owner_of(coordinator_partition(name, topic.partitions_count))


def markers_in(node, topic, index):
    """(producer id, epoch, commits) of each marker of a partition, in their order, wherever it is, if it is durable."""
    image = next(iter(node.lives.values())).core.view.topic(topic)
    key = TopicPartition(image.topic_id, PartitionIndex(index))
    (log,) = [files[key].log for files in node.files.values() if key in files]
    found = []
    for data in log.batches:
        for batch in read_batches(data):
            if batch.is_control and batch.base_offset < log.high_watermark:
                (record,) = batch.records()
                found.append((batch.producer_id, batch.producer_epoch, bool(read_control(record)[0])))
    return found


class Producer:
    """As a client library is one; asks its coordinator's core, whatever that answers."""

    def __init__(self, node, name="t", connection=50, version=2, timeout_ms=60_000):
        self.node, self.name, self.connection, self.version, self.timeout_ms = (
            node, name, connection, version, timeout_ms,
        )  # fmt: skip
        self.producer_id = self.epoch = -1
        self.sequences = {}
        """The next one, by partition."""

    async def ask(self, message, version):
        core = coordinator_core(self.node, self.name)
        return await self.node.ask(core, message, version, connection=self.connection)

    async def init(self, **named):
        """Error."""
        asked = messages.InitProducerIdRequest(
            transactional_id=self.name, transaction_timeout_ms=self.timeout_ms,
            producer_id=named.get("producer_id", -1), producer_epoch=named.get("epoch", -1),
        )  # fmt: skip
        answer = await self.ask(asked, 5)
        if not answer.error_code:
            self._begin(answer)
        return ErrorCode(answer.error_code)

    def _begin(self, answer):
        """With another epoch."""
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()

    async def add(self, topic, *indexes, verify_only=False):
        """Errors by partition, or the one of all."""
        kind = messages.AddPartitionsToTxnRequest
        topics = [kind.AddPartitionsToTxnTopic(name=topic, partitions=list(indexes))]
        if self.version < 2:
            asked = kind(
                v3_and_below_transactional_id=self.name, v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch, v3_and_below_topics=topics,
            )  # fmt: skip
            (found,) = (await self.ask(asked, 3)).results_by_topic_v3_and_below
        else:
            one = kind.AddPartitionsToTxnTransaction(
                transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch,
                verify_only=verify_only, topics=topics,
            )  # fmt: skip
            (result,) = (await self.ask(kind(transactions=[one]), 5)).results_by_transaction
            (found,) = result.topic_results
        errors = {one.partition_index: ErrorCode(one.partition_error_code) for one in found.results_by_partition}
        return next(iter(errors.values())) if len(set(errors.values())) == 1 else errors

    async def add_offsets(self, group):
        asked = messages.AddOffsetsToTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, group_id=group
        )
        return ErrorCode((await self.ask(asked, 4)).error_code)

    async def end(self, *, commit=True):
        asked = messages.EndTxnRequest(
            transactional_id=self.name, producer_id=self.producer_id, producer_epoch=self.epoch, committed=commit
        )
        answer = await self.ask(asked, 5 if self.version >= 2 else 3)
        if not answer.error_code and self.version >= 2:
            self._begin(answer)
        return ErrorCode(answer.error_code)

    async def until(self, ask, *wanted):
        """Again while the transaction before is not over, or the coordinator not there."""
        again = {
            ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }  # fmt: skip
        while (error := await ask()) in again:
            await trio.sleep(0.05)
        assert error in (wanted or (NONE,)), error
        return error

    def send(self, topic, index, values=(b"v",), *, sequence=None, epoch=None, timeout_ms=5000, **how):
        """Of a batch, which need not be answered: `produced` says what became of it. `api`: version of Produce, by any
        `connection`.
        """
        following = self.sequences.get((topic, index), 0)
        if sequence is None:
            sequence, self.sequences[topic, index] = following, following + len(values)
        producer = self.producer_id, self.epoch if epoch is None else epoch, sequence
        message = produce_request(topic, index, values, producer=producer, transactional=True)
        message.transactional_id, message.timeout_ms = self.name, timeout_ms
        version, connection = how.get("api", 12 if self.version >= 2 else 11), how.get("connection", self.connection)
        return self.node.send(owner(self.node, topic, index), message, version, connection=connection)

    async def produce(self, topic, index, values=(b"v",), **how):
        """Error, and the first offset."""
        return await produced(self.send(topic, index, values, **how))

    async def describe(self):
        answer = await self.ask(messages.DescribeTransactionsRequest(transactional_ids=[self.name]), 0)
        return answer.transaction_states[0]

    async def state(self):
        return (await self.describe()).transaction_state

    async def until_complete(self):
        while not (await self.state()).startswith("Complete"):
            await trio.sleep(0.1)
        return await self.state()


async def produced(request):
    """Of a Produce with one batch; None: without an answer."""
    await request.done.wait()
    answer = answer_of(request)
    if answer is None:
        return None
    found = answer.responses[0].partition_responses[0]
    return ErrorCode(found.error_code), found.base_offset


def owner(node, topic, index):
    return next(iter(node.lives.values())).core.view.topic(topic).assignment.owner_of(index)


async def move(node, topic, index, core):
    """A partition to another core, from the decision to the end of it."""
    kind = messages.AlterPartitionReassignmentsRequest
    part = kind.ReassignablePartition(partition_index=index, replicas=[core])
    answer = await node.ask(0, kind(topics=[kind.ReassignableTopic(name=topic, partitions=[part])]))
    assert answer.responses[0].partitions[0].error_code == 0
    while any(life.core.view.image.moving or owner(node, topic, index) != core for life in node.lives.values()):
        await trio.sleep(0.05)
