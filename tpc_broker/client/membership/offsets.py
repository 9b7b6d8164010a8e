"""OffsetCommit and OffsetFetch as plain values. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.membership.encoding import by_topic
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.consumer.ports import GroupIdentity

GROUPS_VERSION: Final = 8
"""Of OffsetFetch: from it on, several groups at once."""
MEMBER_VERSION: Final = 9
"""Of OffsetFetch: from it on it says who asks, and is refused when that is a member no more."""


class Committed(NamedTuple):
    """``error_code`` of the whole answer; ``positions`` of partitions without an error, None where nothing is."""

    error_code: int
    positions: dict[TopicPartition, Position | None]
    errors: dict[TopicPartition, int]


def commit_request(identity: GroupIdentity, positions: Mapping[TopicPartition, Position]) -> Callable[[int], Any]:
    """As a member of that generation or epoch; -1 and no member id: as nobody, which an empty group takes."""
    request = messages.OffsetCommitRequest
    topics = [
        request.OffsetCommitRequestTopic(
            name=topic,
            partitions=[
                request.OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=positions[TopicPartition(topic, partition)].offset,
                    committed_leader_epoch=positions[TopicPartition(topic, partition)].leader_epoch,
                    committed_metadata=positions[TopicPartition(topic, partition)].metadata,
                )
                for partition in partitions
            ],
        )
        for topic, partitions in by_topic(positions)
    ]
    message = request(
        group_id=identity.group,
        generation_id_or_member_epoch=identity.generation_or_epoch,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        retention_time_ms=-1,
        topics=topics,
    )
    return lambda _version: message


def commit_answer(answer: Any) -> dict[TopicPartition, int]:
    """The error code of each partition; 0: it is kept."""
    return {
        TopicPartition(topic.name, row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }


def committed_request(identity: GroupIdentity, partitions: Collection[TopicPartition]) -> Callable[[int], Any]:
    """Positions that no transaction is about to change."""
    request = messages.OffsetFetchRequest
    topics = by_topic(partitions)

    def make(version: int) -> Any:
        if version < GROUPS_VERSION:
            rows = [request.OffsetFetchRequestTopic(name=topic, partition_indexes=found) for topic, found in topics]
            return request(group_id=identity.group, topics=rows, require_stable=True)
        asked = request.OffsetFetchRequestGroup(
            group_id=identity.group,
            topics=[request.OffsetFetchRequestTopics(name=topic, partition_indexes=found) for topic, found in topics],
            member_id=identity.member_id or None,
            member_epoch=identity.generation_or_epoch if identity.member_id else -1,
        )
        return request(groups=[asked], require_stable=True)

    return make


def committed_answer(answer: Any) -> Committed:
    told = answer.groups[0] if answer.groups else answer
    positions: dict[TopicPartition, Position | None] = {}
    errors: dict[TopicPartition, int] = {}
    for topic in told.topics:
        for row in topic.partitions:
            where = TopicPartition(topic.name, row.partition_index)
            if row.error_code:
                errors[where] = row.error_code
            elif row.committed_offset < 0:
                positions[where] = None
            else:
                positions[where] = Position(row.committed_offset, row.committed_leader_epoch, row.metadata or "")
    return Committed(told.error_code, positions, errors)
