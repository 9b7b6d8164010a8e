"""Logs for scripted brokers: Fetch with sessions, ListOffsets and OffsetForLeaderEpoch as brokers answer them.

    log = ScriptedLog()
    log.add(TopicPartition("t", 0), [Record(b"value")])
    async with scripted_client(log.script, topics={"t": 1}) as (client, brokers): …

`log.fault` is asked first, with each request: what it returns is the answer, None leaves it to the log. A fetch that
finds nothing waits for `add` or until its time is over. `log.only` names the brokers that have a partition (all, if
none).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio

from tests.support.fetch_sessions_model import FetchPartition, FetchSessions
from tests.support.scripted_broker import as_usual, topic_id_of
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.kafka import ApiKey, ErrorCode, messages
from tpc_broker.kafka.records import Record, build_batch, read_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.scripted_broker import Asked, Script


class ScriptedLog:
    def __init__(self, fault: Script = as_usual) -> None:
        self.fault = fault
        self.batches: dict[TopicPartition, list[bytes]] = {}
        self.first: dict[TopicPartition, int] = {}
        """Where a log begins, if not at 0."""
        self.only: dict[TopicPartition, set[int]] = {}
        self.epoch_ends: dict[TopicPartition, dict[int, tuple[int, int]]] = {}
        """By epoch: the epoch and end offset to answer, where it is not the last record."""
        self._sessions: dict[int, FetchSessions] = {}
        self._next_session_id = 1
        self._news = anyio.Event()

    def end(self, where: TopicPartition) -> int:
        batches = self.batches.get(where)
        return self.first.get(where, 0) if not batches else next(read_batches(batches[-1])).last_offset + 1

    def add(self, where: TopicPartition, records: Iterable[Record], **batch: Any) -> None:
        """One batch."""
        made = build_batch(list(records), base_offset=self.end(where), **{"partition_leader_epoch": 0, **batch})
        self.batches.setdefault(where, []).append(made)
        news, self._news = self._news, anyio.Event()
        news.set()

    async def script(self, asked: Asked) -> Any:
        found = await self.fault(asked)
        if found is not None:
            return found
        if asked.key == ApiKey.FETCH:
            return await self.fetched(asked)
        if asked.key == ApiKey.LIST_OFFSETS:
            return self._offsets(asked.message)
        if asked.key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            return self._epochs(asked.message)
        return None

    def sessions_count(self) -> int:
        """Of all brokers, those that no client has ended."""
        return sum(len(sessions) for sessions in self._sessions.values())

    async def fetched(self, asked: Asked) -> Any:
        """The answer to a Fetch."""
        message = asked.message
        by_id = asked.version >= 13
        rows = [
            FetchPartition(topic.topic_id if by_id else topic.topic, row.partition, row.fetch_offset,
                           row.partition_max_bytes)
            for topic in message.topics
            for row in topic.partitions
        ]  # fmt: skip
        gone = [
            (topic.topic_id if by_id else topic.topic, partition)
            for topic in message.forgotten_topics_data
            for partition in topic.partitions
        ]
        self._next_session_id += 1
        sessions = self._sessions.setdefault(asked.broker_id, FetchSessions(100, 0))
        context = sessions.context(
            message.session_id, message.session_epoch, uses_topic_ids=by_id, asked=rows, forgotten=gone, now_ms=0,
            new_session_id=self._next_session_id,
        )  # fmt: skip
        answer = messages.FetchResponse(error_code=context.error_code, session_id=context.session_id)
        with anyio.move_on_after(message.max_wait_ms / 1000):
            while not context.error_code and not self._fill(answer, context.partitions, asked.broker_id):
                await self._news.wait()
        return answer

    def _fill(self, answer: Any, rows: list[FetchPartition], broker_id: int) -> bool:
        """False: there is nothing to be said yet."""
        names = {topic_id_of(where.topic): where.topic for where in self.batches}
        answer.responses.clear()
        has_news = False
        for row in rows:
            where = TopicPartition(names.get(row.topic, row.topic), row.partition)  # type: ignore[arg-type]
            told = messages.FetchResponse.PartitionData(partition_index=row.partition)
            if broker_id not in self.only.get(where, {broker_id}):
                told.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif not self.first.get(where, 0) <= row.fetch_offset <= self.end(where):
                told.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            told.high_watermark = told.last_stable_offset = self.end(where)
            told.log_start_offset = self.first.get(where, 0)
            told.records = b"" if told.error_code else self._from(where, row.fetch_offset, row.max_bytes)
            if told.error_code or told.records:
                has_news = True
                kind = messages.FetchResponse.FetchableTopicResponse
                name = {"topic_id": row.topic} if isinstance(row.topic, bytes) else {"topic": row.topic}
                answer.responses.append(kind(partitions=[told], **name))
        return has_news

    def _from(self, where: TopicPartition, offset: int, bytes_max: int) -> bytes:
        data = b""
        for batch in self.batches.get(where, ()):
            if next(read_batches(batch)).last_offset >= offset:
                if data and len(data) + len(batch) > bytes_max:
                    break
                data += batch
        return data

    def _offsets(self, message: Any) -> Any:
        answer = messages.ListOffsetsResponse()
        kind = answer.ListOffsetsTopicResponse
        for topic in message.topics:
            told = kind(name=topic.name)
            for row in topic.partitions:
                where = TopicPartition(topic.name, row.partition_index)
                offset = {EARLIEST: self.first.get(where, 0), LATEST: self.end(where)}.get(row.timestamp, -1)
                told.partitions.append(
                    answer.ListOffsetsPartitionResponse(partition_index=row.partition_index, offset=offset)
                )
            answer.topics.append(told)
        return answer

    def _epochs(self, message: Any) -> Any:
        answer = messages.OffsetForLeaderEpochResponse()
        for topic in message.topics:
            told = answer.OffsetForLeaderTopicResult(topic=topic.topic)
            for row in topic.partitions:
                where = TopicPartition(topic.topic, row.partition)
                epoch, end = self.epoch_ends.get(where, {}).get(row.leader_epoch, (row.leader_epoch, self.end(where)))
                told.partitions.append(
                    answer.EpochEndOffset(partition=row.partition, leader_epoch=epoch, end_offset=end)
                )
            answer.topics.append(told)
        return answer
