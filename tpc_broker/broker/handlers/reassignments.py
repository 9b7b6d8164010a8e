"""AlterPartitionReassignments and ListPartitionReassignments, over `Reassignments`; decided on core 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.broker.reassignments import Outcome, WantedBrokers
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import BrokerId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request
    from tpc_broker.broker.reassignments import Ongoing


async def handle_alter_partition_reassignments(
    core: Core, request: Request, message: messages.AlterPartitionReassignmentsRequest
) -> messages.AlterPartitionReassignmentsResponse:
    wanted = [
        WantedBrokers(topic.name, asked.partition_index, _brokers(asked.replicas))
        for topic in message.topics
        for asked in topic.partitions
    ]
    if core.view.is_shared(request.listener):
        outcomes = [_refused_at_shared_listener(core, request, one) for one in wanted]
    else:
        outcomes = await core.reassignments.alter(
            wanted, allow_factor_change=bool(message.allow_replication_factor_change)
        )
    return _altered(message, iter(outcomes), allow_factor_change=message.allow_replication_factor_change)


def _brokers(replicas: list[int] | None) -> tuple[BrokerId, ...] | None:
    return None if replicas is None else tuple(map(BrokerId, replicas))


def _refused_at_shared_listener(core: Core, request: Request, one: WantedBrokers) -> Outcome:
    """There one broker stands for all cores of a node, so no id names one of them."""
    if core.view.topic(one.topic) is None:
        return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if one.brokers is None:
        return Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
    here = core.view.endpoints(request.listener)[0].broker_id
    if one.brokers == (here,):
        return Outcome()
    return Outcome(
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        f"At this listener broker {here} stands for all cores of the node; a listener with a broker id for each core "
        "can name one of them.",
    )


def _altered(
    message: messages.AlterPartitionReassignmentsRequest, outcomes: Iterator[Outcome], *, allow_factor_change: bool
) -> messages.AlterPartitionReassignmentsResponse:
    answer = messages.AlterPartitionReassignmentsResponse
    return answer(
        error_message=None,
        allow_replication_factor_change=allow_factor_change,
        responses=[
            answer.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    answer.ReassignablePartitionResponse(
                        partition_index=asked.partition_index,
                        error_code=int(outcome.error_code),
                        error_message=outcome.error_message,
                    )
                    for asked, outcome in zip(topic.partitions, outcomes, strict=False)
                ],
            )
            for topic in message.topics
        ],
    )


async def handle_list_partition_reassignments(
    core: Core, request: Request, message: messages.ListPartitionReassignmentsRequest
) -> messages.ListPartitionReassignmentsResponse:
    """Of the partitions asked for; null: all. Where one broker stands for all cores nothing is seen to move."""
    asked = None
    if message.topics is not None:
        asked = {(topic.name, index) for topic in message.topics for index in topic.partition_indexes}
    found: dict[str, list[Ongoing]] = {}
    for one in () if core.view.is_shared(request.listener) else core.reassignments.ongoing():
        if asked is None or (one.topic, one.partition) in asked:
            found.setdefault(one.topic, []).append(one)
    answer = messages.ListPartitionReassignmentsResponse
    return answer(
        error_message=None,
        topics=[
            answer.OngoingTopicReassignment(
                name=name,
                partitions=[
                    answer.OngoingPartitionReassignment(
                        partition_index=one.partition,
                        replicas=list(one.brokers),
                        adding_replicas=list(one.adding),
                        removing_replicas=list(one.removing),
                    )
                    for one in ongoing
                ],
            )
            for name, ongoing in found.items()
        ],
    )
