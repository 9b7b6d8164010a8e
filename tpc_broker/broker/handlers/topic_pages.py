"""DescribeTopicPartitions: topics by their names, so many partitions a page, and where the next page begins."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR, ON_TOPIC
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import INTERNAL_TOPICS

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import TopicImage

    _Told = messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


def handle_describe_topic_partitions(
    core: Core, request: Request, message: messages.DescribeTopicPartitionsRequest
) -> messages.DescribeTopicPartitionsResponse:
    """Of all topics where none is named; then what a cursor names need not be there any more."""
    names = sorted({topic.name for topic in message.topics} if message.topics else core.view.image.ids)
    cursor, first = message.cursor, 0
    if cursor is not None:
        names = names[bisect_left(names, cursor.topic_name) :]
        if cursor.partition_index < 0 or (message.topics and names[:1] != [cursor.topic_name]):
            return _refused(message)
        first = cursor.partition_index if names[:1] == [cursor.topic_name] else 0
    response = messages.DescribeTopicPartitionsResponse()
    hidden: list[_Told] = []
    left = max(1, min(message.response_partition_limit, limits.PARTITIONS_A_PAGE_MAX))
    for name in names:
        if not core.access.allows_topic(request, Operation.DESCRIBE, name, is_told=bool(message.topics)):
            hidden += [_hidden(name)] if message.topics else []
            first = 0
            continue
        if not left:
            return _with_cursor(response, hidden, name, 0)
        topic = core.view.topic(name)
        if topic is not None:
            told = _told(core, request, topic, first, left)
            response.topics.append(told)
            left -= len(told.partitions)
            if first + len(told.partitions) < topic.partitions_count:
                return _with_cursor(response, hidden, name, first + len(told.partitions))
        else:
            response.topics.append(_missing(core, request, name))
        first = 0
    response.topics += hidden
    return response


def _refused(message: messages.DescribeTopicPartitionsRequest) -> messages.DescribeTopicPartitionsResponse:
    """The cursor is of no topic that was asked for, or of no partition."""
    kind = messages.DescribeTopicPartitionsResponse
    error = int(ErrorCode.INVALID_REQUEST)
    topics = [kind.DescribeTopicPartitionsResponseTopic(name=one.name, error_code=error) for one in message.topics]
    return kind(topics=topics)


def _with_cursor(
    response: messages.DescribeTopicPartitionsResponse, hidden: list[_Told], name: str, index: int
) -> messages.DescribeTopicPartitionsResponse:
    response.topics += hidden
    response.next_cursor = messages.DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=index)
    return response


def _hidden(name: str) -> _Told:
    """Whether there is one is not said."""
    return messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=name, error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), topic_authorized_operations=NOT_ASKED_FOR
    )


def _missing(core: Core, request: Request, name: str) -> _Told:
    return messages.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=name,
        error_code=int(core.check_topic_name(name) or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=core.access.bits(request, Resource.TOPIC, name, ON_TOPIC),
    )


def _told(core: Core, request: Request, topic: TopicImage, first: int, count: int) -> _Told:
    kind = messages.DescribeTopicPartitionsResponse
    return kind.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id.bytes,
        is_internal=topic.is_internal,
        topic_authorized_operations=core.access.bits(request, Resource.TOPIC, topic.name, ON_TOPIC),
        partitions=[
            kind.DescribeTopicPartitionsResponsePartition(
                error_code=row.error_code,
                partition_index=row.partition_index,
                leader_id=row.leader_id,
                leader_epoch=row.leader_epoch,
                replica_nodes=row.replica_nodes,
                isr_nodes=row.isr_nodes,
                offline_replicas=row.offline_replicas,
                eligible_leader_replicas=[],  # Java's client takes no null
                last_known_elr=[],
            )
            for row in core.told.of_topic(request.listener, topic)[first : first + count]
        ],
    )
