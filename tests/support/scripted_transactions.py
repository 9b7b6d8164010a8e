"""A script that keeps transactions as Kafka's coordinator does, of both versions, on one broker in memory.

Answers can be lost: ``model.lose[ApiKey.END_TXN, 1] = Lost.AFTER`` closes the line instead of the answer to the second
EndTxn, which was carried out; `Lost.BEFORE` before it was. `model.shown("t", 0)` are the values that readers of
committed records see, `model.offsets("g")` what a group has committed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from tests.support.scripted_broker import CLOSE, Asked, ScriptedBrokers, scripted_client
from tpc_broker.client.handle import Client
from tpc_broker.kafka import ApiKey, ErrorCode, messages
from tpc_broker.kafka.records import read_batches

PRODUCER_ID: Final = 4000
OPEN, COMMITTED, ABORTED, EMPTY = "Ongoing", "CompleteCommit", "CompleteAbort", "Empty"


class Lost(Enum):
    BEFORE = "before"
    AFTER = "after"


@dataclass
class _Id:
    producer_id: int
    epoch: int = -1
    state: str = EMPTY
    is_timed_out: bool = False
    offsets: dict[str, dict[tuple[str, int], int]] = field(default_factory=dict)
    rows: list[tuple[tuple[str, int], bytes | None]] = field(default_factory=list)
    announced: set[Any] = field(default_factory=set)
    last_sequences: dict[tuple[tuple[str, int], int], int] = field(default_factory=dict)


class ModelOfTransactions:
    """``level`` of `transaction.version`. ``busy``: how many requests come while the transaction before ends still."""

    def __init__(self, level: int) -> None:
        self.level = level
        self.busy = 0
        self.ids: dict[str, _Id] = {}
        self.lose: dict[tuple[ApiKey, int], Lost] = {}
        self.refuse: dict[tuple[ApiKey, int], int] = {}
        self.brokers: ScriptedBrokers | None = None
        self._shown: list[tuple[tuple[str, int], bytes | None]] = []
        self._offsets: dict[str, dict[tuple[str, int], int]] = {}

    def shown(self, topic: str, partition: int) -> list[bytes | None]:
        return [value for where, value in self._shown if where == (topic, partition)]

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        return self._offsets.get(group, {})

    def time_out(self, name: str) -> None:
        """The coordinator aborts what is open."""
        one = self.ids[name]
        self._end(one, commits=False)
        one.epoch += self.level < 2  # level 2 has raised it with the end
        one.is_timed_out = True

    def take_over(self, name: str) -> None:
        """Another client owns the id from now on."""
        one = self.ids[name]
        if one.state == OPEN:
            self._end(one, commits=False)
        one.epoch += 2
        one.state = EMPTY

    async def script(self, asked: Asked) -> Any:
        lost = self.lose.get((asked.key, asked.number))
        if lost is Lost.BEFORE:
            return CLOSE
        answer = self._answer(asked)
        return CLOSE if lost is Lost.AFTER else answer

    def _answer(self, asked: Asked) -> Any:
        message, code = asked.message, self.refuse.get((asked.key, asked.number), ErrorCode.NONE)
        if asked.key == ApiKey.API_VERSIONS:
            assert self.brokers is not None
            answer = self.brokers.usual(asked)
            kind = messages.ApiVersionsResponse
            row = kind.FinalizedFeatureKey(
                name="transaction.version", max_version_level=self.level, min_version_level=self.level
            )
            answer.finalized_features = [row]
            return answer
        if asked.key == ApiKey.INIT_PRODUCER_ID:
            return self._init(message, code)
        if asked.key == ApiKey.DESCRIBE_TRANSACTIONS:
            return self._describe(message)
        if asked.key == ApiKey.END_TXN:
            return self._end_txn(asked, code)
        if asked.key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return self._add_partitions(message, code)
        if asked.key == ApiKey.ADD_OFFSETS_TO_TXN:
            code = code or self._joins(message, ("group", message.group_id))
            return messages.AddOffsetsToTxnResponse(error_code=code)
        if asked.key == ApiKey.TXN_OFFSET_COMMIT:
            return self._commit_offsets(asked, code)
        if asked.key == ApiKey.PRODUCE:
            return self._produce(asked, code)
        return None

    def _init(self, message: Any, code: int) -> Any:
        kind = messages.InitProducerIdResponse
        if message.transactional_id is None:
            return kind(producer_id=1, producer_epoch=0)
        one = self.ids.setdefault(message.transactional_id, _Id(PRODUCER_ID + len(self.ids)))
        if not code and message.producer_id >= 0 and message.producer_id != one.producer_id:
            code = ErrorCode.PRODUCER_FENCED
        if not code and message.producer_id >= 0 and message.producer_epoch not in {one.epoch, one.epoch - 1}:
            code = ErrorCode.PRODUCER_FENCED
        if one.is_timed_out and self.level < 2 and message.producer_id >= 0 and message.producer_epoch != one.epoch:
            code = ErrorCode.PRODUCER_FENCED
        if code:
            return kind(error_code=code, producer_id=-1, producer_epoch=-1)
        is_repeated = message.producer_id >= 0 and message.producer_epoch == one.epoch - 1
        if one.state == OPEN:
            self._end(one, commits=False)
            one.epoch += self.level < 2
        if not is_repeated:
            one.epoch += 1
            one.state = EMPTY
        one.is_timed_out = False
        return kind(producer_id=one.producer_id, producer_epoch=one.epoch)

    def _describe(self, message: Any) -> Any:
        kind = messages.DescribeTransactionsResponse
        rows = []
        for name in message.transactional_ids:
            one = self.ids[name]
            row = kind.TransactionState(transactional_id=name, transaction_state=one.state)
            row.producer_id, row.producer_epoch = one.producer_id, one.epoch
            rows.append(row)
        return kind(transaction_states=rows)

    def _known(self, message: Any, name: str) -> tuple[_Id | None, int]:
        one = self.ids.get(name)
        if one is None or one.producer_id != message.producer_id:
            return None, ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return one, ErrorCode.NONE if one.epoch == message.producer_epoch else ErrorCode.PRODUCER_FENCED

    def _joins(self, message: Any, what: Any, name: str | None = None) -> int:
        one, code = self._known(message, name or message.transactional_id)
        if code or one is None:
            return code
        if self.busy:
            self.busy -= 1
            return ErrorCode.CONCURRENT_TRANSACTIONS
        one.state = OPEN
        one.announced.add(what)
        return ErrorCode.NONE

    def _end_txn(self, asked: Asked, code: int) -> Any:
        message = asked.message
        one, found = self._known(message, message.transactional_id)
        goal = COMMITTED if message.committed else ABORTED
        if not code and one is not None:
            is_new = asked.version >= 5
            is_late = message.producer_epoch == one.epoch - 1 and not one.is_timed_out
            if is_new and found and is_late and one.state in {COMMITTED, ABORTED}:
                found = ErrorCode.NONE if one.state == goal else ErrorCode.INVALID_TXN_STATE
            elif not found and one.state == OPEN:
                self._end(one, commits=message.committed)
            elif not found and not is_new:
                found = ErrorCode.NONE if one.state == goal else ErrorCode.INVALID_TXN_STATE
            elif not found:
                found = ErrorCode.INVALID_TXN_STATE if message.committed else ErrorCode.NONE
                one.epoch += not message.committed
        code = code or found
        if code or one is None or asked.version < 5:
            return messages.EndTxnResponse(error_code=code, producer_id=-1, producer_epoch=-1)
        return messages.EndTxnResponse(producer_id=one.producer_id, producer_epoch=one.epoch)

    def _end(self, one: _Id, *, commits: bool) -> None:
        if commits:
            self._shown += one.rows
            for group, offsets in one.offsets.items():
                self._offsets.setdefault(group, {}).update(offsets)
        one.rows, one.offsets = [], {}
        one.announced.clear()
        one.state = COMMITTED if commits else ABORTED
        one.epoch += self.level >= 2

    def _add_partitions(self, message: Any, code: int) -> Any:
        kind = messages.AddPartitionsToTxnResponse
        topics = []
        for topic in message.v3_and_below_topics:
            rows = []
            for partition in topic.partitions:
                names = message.v3_and_below_producer_id, message.v3_and_below_producer_epoch
                who = messages.EndTxnRequest(producer_id=names[0], producer_epoch=names[1])
                found = code or self._joins(who, (topic.name, partition), message.v3_and_below_transactional_id)
                row = kind.AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=found)
                rows.append(row)
            topics.append(kind.AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=rows))
        return kind(results_by_topic_v3_and_below=topics)

    def _commit_offsets(self, asked: Asked, code: int) -> Any:
        message, kind = asked.message, messages.TxnOffsetCommitResponse
        one = self.ids.get(message.transactional_id)
        if not code:
            if asked.version >= 5:
                code = self._joins(message, ("group", message.group_id))
            elif one is None or ("group", message.group_id) not in one.announced:
                code = ErrorCode.INVALID_TXN_STATE
        topics = []
        for topic in message.topics:
            rows = []
            for row in topic.partitions:
                if not code and one is not None:
                    place = topic.name, row.partition_index
                    one.offsets.setdefault(message.group_id, {})[place] = row.committed_offset
                rows.append(kind.TxnOffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code))
            topics.append(kind.TxnOffsetCommitResponseTopic(name=topic.name, partitions=rows))
        return kind(topics=topics)

    def _produce(self, asked: Asked, code: int) -> Any:
        kind = messages.ProduceResponse
        topics = []
        for topic in asked.message.topic_data:
            rows = []
            for row in topic.partition_data:
                found = code or self._append(asked, (topic.name, row.index), bytes(row.records))
                base_offset = -1 if found else 0
                rows.append(kind.PartitionProduceResponse(index=row.index, error_code=found, base_offset=base_offset))
            topics.append(kind.TopicProduceResponse(name=topic.name, partition_responses=rows))
        return kind(responses=topics)

    def _append(self, asked: Asked, where: tuple[str, int], data: bytes) -> int:
        name = asked.message.transactional_id
        (batch,) = read_batches(data)
        if name is None:
            self._shown += [(where, record.value) for record in batch.records()]
            return ErrorCode.NONE
        assert batch.is_transactional, "a plain batch in a transaction"
        one = self.ids[name]
        if batch.producer_epoch != one.epoch or batch.producer_id != one.producer_id:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if asked.version >= 12:
            if code := self._joins(batch, where, name):
                return code
        elif where not in one.announced:
            return ErrorCode.INVALID_TXN_STATE
        last = one.last_sequences.get((where, batch.producer_epoch), -1)
        if batch.base_sequence <= last:
            return ErrorCode.NONE  # it was appended before
        if batch.base_sequence != last + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        one.rows += [(where, record.value) for record in batch.records()]
        one.last_sequences[where, batch.producer_epoch] = last + batch.records_count
        return ErrorCode.NONE


@asynccontextmanager
async def modelled_client(
    level: int = 2, topics: dict[str, int] | None = None, **settings: Any
) -> AsyncIterator[tuple[Client, ModelOfTransactions]]:
    model = ModelOfTransactions(level)
    async with scripted_client(model.script, topics=topics or {"t": 2}, **settings) as (client, brokers):
        model.brokers = brokers
        yield client, model
