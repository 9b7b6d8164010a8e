"""Scripted brokers whose groups are the broker's own coordinator in memory, for drivers of members.

Its clock goes on by requests, and while a request waits for others; `passes` lets more time go by.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from tests.support.coordinated_members import Coordinator
from tests.support.scripted_broker import Asked, ScriptedBrokers, scripted_client
from tpc_broker.client.handle import Client
from tpc_broker.coordinator.messages import OffsetCommitRequest, OffsetToCommit
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.model import TopicId

REQUEST_MS = 20
BEAT_MS = 10
"""Between the heartbeats of members of KIP-848."""
PAUSE_S = 0.002
ANSWERS: dict[ApiKey, Any] = {
    ApiKey.JOIN_GROUP: messages.JoinGroupResponse, ApiKey.SYNC_GROUP: messages.SyncGroupResponse,
    ApiKey.HEARTBEAT: messages.HeartbeatResponse, ApiKey.LEAVE_GROUP: messages.LeaveGroupResponse,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: messages.ConsumerGroupHeartbeatResponse,
}  # fmt: skip


class Groups:
    """A script. ``refusals``: by API, error codes that the next requests are answered with."""

    def __init__(self, topics: dict[str, int]) -> None:
        self.coordinator = Coordinator(topics, initial_rebalance_delay_ms=0)
        self.coordinator.settings = replace(
            self.coordinator.settings, heartbeat_interval_ms=BEAT_MS, assignment_interval_ms=0
        )
        self.brokers: ScriptedBrokers
        self.refusals: dict[ApiKey, list[ErrorCode]] = {}
        self.silent: set[ApiKey] = set()
        """What is not answered."""

    def member_ids(self, group: str) -> set[str]:
        return self.coordinator.member_ids(group)

    def passes(self, ms: int) -> None:
        self.coordinator.wait(ms)

    def moves(self, group: str, broker_id: int) -> None:
        """To another broker, which has what was durable."""
        self.coordinator.reload()
        self.brokers.coordinators[group] = broker_id

    async def __call__(self, asked: Asked) -> Any:
        if asked.key == ApiKey.METADATA:
            return self._metadata(asked)
        if asked.key not in ANSWERS and asked.key not in {ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH}:
            return None
        if asked.key in self.silent:
            await anyio.sleep_forever()
        self.coordinator.wait(REQUEST_MS)
        code = self._refusal(asked)
        if asked.key == ApiKey.OFFSET_COMMIT:
            return self._commit(asked.message, code)
        if asked.key == ApiKey.OFFSET_FETCH:
            return self._committed(asked.message, code)
        if code:
            return ANSWERS[asked.key](error_code=int(code))
        token = self.coordinator.ask(asked.key, asked.message)
        while (answer := self.coordinator.answer(asked.key, token)) is None:
            await anyio.sleep(PAUSE_S)
            self.coordinator.wait(REQUEST_MS)
        return answer

    def _refusal(self, asked: Asked) -> ErrorCode:
        waiting = self.refusals.get(asked.key)
        if waiting:
            return waiting.pop(0)
        message = asked.message
        group = message.groups[0].group_id if asked.key == ApiKey.OFFSET_FETCH else message.group_id
        is_here = asked.broker_id == self.brokers.coordinators.get(group, 0)
        return ErrorCode.NONE if is_here else ErrorCode.NOT_COORDINATOR

    def _metadata(self, asked: Asked) -> Any:
        for row in asked.message.topics or ():
            if row.name is None:
                found = self.coordinator.topics.of_id(TopicId(uuid.UUID(bytes=bytes(row.topic_id))))
                row.name = "gone" if found is None else found.name
        answer = self.brokers.usual(asked)
        for row in answer.topics:
            known = self.coordinator.topics.named(row.name)
            if known is not None:
                row.topic_id = known.topic_id.bytes
        return answer

    def _commit(self, message: Any, refusal: ErrorCode) -> Any:
        offsets = tuple(
            OffsetToCommit(topic=topic.name, partition=row.partition_index, offset=row.committed_offset,
                           leader_epoch=row.committed_leader_epoch, metadata=row.committed_metadata)
            for topic in message.topics for row in topic.partitions
        )  # fmt: skip
        request = OffsetCommitRequest(
            group_id=message.group_id, offsets=offsets, generation_id=message.generation_id_or_member_epoch,
            member_id=message.member_id, group_instance_id=message.group_instance_id,
        )  # fmt: skip
        token = self.coordinator.token("commit")
        codes: dict[tuple[str, int], int] = {}
        if not refusal:
            self.coordinator.run(self.coordinator.machine.offset_commit(request, token, self.coordinator.now))
            told = self.coordinator.replies.pop(token)
            codes = {(row.topic, row.partition): int(row.error_code) for row in told.partitions}
        kind = messages.OffsetCommitResponse
        topics = []
        for topic in message.topics:
            rows = [
                kind.OffsetCommitResponsePartition(
                    partition_index=row.partition_index,
                    error_code=codes.get((topic.name, row.partition_index), int(refusal)),
                )
                for row in topic.partitions
            ]
            topics.append(kind.OffsetCommitResponseTopic(name=topic.name, partitions=rows))
        return kind(topics=topics)

    def _committed(self, message: Any, refusal: ErrorCode) -> Any:
        kind = messages.OffsetFetchResponse
        (asked,) = message.groups
        if refusal:
            return kind(groups=[kind.OffsetFetchResponseGroup(group_id=asked.group_id, error_code=int(refusal))])
        places = [(topic.name, index) for topic in asked.topics for index in topic.partition_indexes]
        told = self.coordinator.machine.offset_fetch(
            asked.group_id, places, asked.member_id, asked.member_epoch, require_stable=True
        )
        topics = [
            kind.OffsetFetchResponseTopics(
                name=row.topic,
                partitions=[
                    kind.OffsetFetchResponsePartitions(
                        partition_index=row.partition, committed_offset=row.offset, metadata=row.metadata,
                        committed_leader_epoch=row.leader_epoch, error_code=int(row.error_code),
                    )
                ],
            )
            for row in told.offsets
        ]  # fmt: skip
        group = kind.OffsetFetchResponseGroup(group_id=asked.group_id, error_code=int(told.error_code), topics=topics)
        return kind(groups=[group])


@asynccontextmanager
async def grouped_client(topics: dict[str, int], **details: Any) -> AsyncIterator[tuple[Client, Groups]]:
    groups = Groups(topics)
    async with scripted_client(groups, topics=topics, **details) as (client, brokers):
        groups.brokers = brokers
        yield client, groups
