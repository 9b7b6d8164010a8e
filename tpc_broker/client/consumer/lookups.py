"""Questions to leaders about offsets: where to begin, and whether a log was cut off since. Plain values, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.isolation import Isolation


class Found(NamedTuple):
    """``offset`` -1: no record is so late. ``leader_epoch`` -1: the broker did not say."""

    error_code: int
    offset: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Where the records of an epoch, or the last one before it, end in the leader's log. -1, -1: it knows none."""

    error_code: int
    leader_epoch: int
    end_offset: int


def offsets_request(wanted: Mapping[TopicPartition, tuple[int, int]], isolation: Isolation) -> Any:
    """``wanted``: a time in ms, `EARLIEST` or `LATEST`, and the leader epoch that the leader is to have (-1: any)."""
    request = messages.ListOffsetsRequest
    topics: dict[str, Any] = {}
    for (topic, partition), (time_ms, leader_epoch) in wanted.items():
        row = topics.setdefault(topic, request.ListOffsetsTopic(name=topic))
        asked = request.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=leader_epoch, timestamp=time_ms
        )
        row.partitions.append(asked)
    return request(replica_id=-1, isolation_level=int(isolation), topics=list(topics.values()))


def offsets_answer(response: Any) -> dict[TopicPartition, Found]:
    return {
        TopicPartition(topic.name, row.partition_index): Found(row.error_code, row.offset, row.leader_epoch)
        for topic in response.topics
        for row in topic.partitions
    }


def epochs_request(wanted: Mapping[TopicPartition, tuple[int, int]]) -> Any:
    """``wanted``: the epoch of the last record read, and the one that the leader is to have (-1: any)."""
    request = messages.OffsetForLeaderEpochRequest
    topics: dict[str, Any] = {}
    for (topic, partition), (epoch, leader_epoch) in wanted.items():
        row = topics.setdefault(topic, request.OffsetForLeaderTopic(topic=topic))
        asked = request.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader_epoch, leader_epoch=epoch
        )
        row.partitions.append(asked)
    return request(replica_id=-1, topics=list(topics.values()))


def epochs_answer(response: Any) -> dict[TopicPartition, EpochEnd]:
    return {
        TopicPartition(topic.topic, row.partition): EpochEnd(row.error_code, row.leader_epoch, row.end_offset)
        for topic in response.topics
        for row in topic.partitions
    }
