"""The APIs of consumer groups by KIP-848: ConsumerGroupHeartbeat and ConsumerGroupDescribe.

As in `groups`, each goes to the coordinator of its group, which knows no versions: in version 0 the broker makes the id
of a member, and there are no regular expressions.
"""

from __future__ import annotations

import base64
import uuid
from collections import defaultdict
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR, ON_GROUP
from tpc_broker.broker.group_service import LoadedCoordinator
from tpc_broker.broker.handlers.groups import host_of
from tpc_broker.coordinator.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from tpc_broker.coordinator.consumer.validation import fault_of_heartbeat
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import TopicId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.coordinator.assignors.spec import Partitions

MEMBER_ID_VERSION = 1
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1


def handle_consumer_group_heartbeat(
    core: Core, request: Request, message: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse | Awaitable[messages.ConsumerGroupHeartbeatResponse]:
    """One that changes nothing, as most do, is answered at once."""
    if not core.groups.serves_consumer_groups:
        return _heartbeat_by_newest_metadata(core, request, message)
    refusal = _refusal(core, request, message)
    if refusal:
        return messages.ConsumerGroupHeartbeatResponse(error_code=int(refusal))
    beat = ConsumerHeartbeat(
        group_id=message.group_id,
        member_id=message.member_id,
        member_epoch=message.member_epoch,
        instance_id=message.instance_id,
        rack_id=message.rack_id,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        topic_names=None if message.subscribed_topic_names is None else tuple(message.subscribed_topic_names),
        topic_regex=message.subscribed_topic_regex,
        assignor=message.server_assignor,
        owned=None if message.topic_partitions is None else _owned(message.topic_partitions),
        client_id=request.client_id or "",
        client_host=host_of(core, request),
        requires_member_id=request.api_version >= MEMBER_ID_VERSION,
    )
    fault = fault_of_heartbeat(beat, core.settings.group_consumer_assignors)
    if fault is not None:
        return messages.ConsumerGroupHeartbeatResponse(error_code=int(fault[0]), error_message=fault[1])
    found = core.groups.coordinator_of(beat.group_id)
    if not isinstance(found, LoadedCoordinator):
        return messages.ConsumerGroupHeartbeatResponse(error_code=int(found))
    unique = "" if beat.member_id else _unique_id(core)
    with found.asked_by(core.access.subject_of(request)):
        answer = found.ask(
            ConsumerHeartbeatResponse,
            lambda token, now_ms: found.machine.consumer_heartbeat(beat, token, now_ms, unique),
        )
    return _response(answer) if isinstance(answer, ConsumerHeartbeatResponse) else _when_answered(answer)


def _refusal(core: Core, request: Request, message: messages.ConsumerGroupHeartbeatRequest) -> ErrorCode:
    """Of a heartbeat as a whole, also for one topic of many: what is left out silently would be missed."""
    if not core.access.allows_group(request, Operation.READ, message.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    names = set(message.subscribed_topic_names or ())
    if all(core.access.allows_topic(request, Operation.DESCRIBE, name) for name in names):
        return ErrorCode.NONE
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def _heartbeat_by_newest_metadata(
    core: Core, request: Request, message: messages.ConsumerGroupHeartbeatRequest
) -> messages.ConsumerGroupHeartbeatResponse:
    if not await core.groups.may_serve_consumer_groups():
        return messages.ConsumerGroupHeartbeatResponse(error_code=int(ErrorCode.UNSUPPORTED_VERSION))
    answer = handle_consumer_group_heartbeat(core, request, message)
    return answer if isinstance(answer, messages.ConsumerGroupHeartbeatResponse) else await answer


async def _when_answered(answer: Awaitable[ConsumerHeartbeatResponse]) -> messages.ConsumerGroupHeartbeatResponse:
    return _response(await answer)


def _response(answer: ConsumerHeartbeatResponse) -> messages.ConsumerGroupHeartbeatResponse:
    assignment = None
    if answer.assignment is not None:
        kind = messages.ConsumerGroupHeartbeatResponse
        parts = [
            kind.TopicPartitions(topic_id=topic_id.bytes, partitions=sorted(answer.assignment[topic_id]))
            for topic_id in sorted(answer.assignment)
        ]
        assignment = kind.Assignment(topic_partitions=parts)
    return messages.ConsumerGroupHeartbeatResponse(
        error_code=int(answer.error_code),
        error_message=answer.error_message,
        member_id=answer.member_id,
        member_epoch=answer.member_epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _owned(topics: Sequence[messages.ConsumerGroupHeartbeatRequest.TopicPartitions]) -> Partitions:
    owned: dict[TopicId, set[int]] = defaultdict(set)
    for topic in topics:
        owned[TopicId(uuid.UUID(bytes=bytes(topic.topic_id)))].update(topic.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _unique_id(core: Core) -> str:
    """As Kafka writes ids: 22 characters, of which the first is none that begins an option."""
    while (text := base64.urlsafe_b64encode(core.chance.uuid().bytes).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


async def handle_consumer_group_describe(
    core: Core, request: Request, message: messages.ConsumerGroupDescribeRequest
) -> messages.ConsumerGroupDescribeResponse:
    groups = []
    for group_id in message.group_ids:
        if not core.access.allows_group(request, Operation.DESCRIBE, group_id):
            error = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            groups.append(messages.ConsumerGroupDescribeResponse.DescribedGroup(group_id=group_id, error_code=error))
            continue
        described = await _describe(core, group_id)
        if message.include_authorized_operations and not described.error_code:
            described.authorized_operations = core.access.bits(request, Resource.GROUP, group_id, ON_GROUP)
        groups.append(described if _may_see_topics(core, request, described) else _hidden(group_id))
    return messages.ConsumerGroupDescribeResponse(groups=groups)


def _may_see_topics(
    core: Core, request: Request, group: messages.ConsumerGroupDescribeResponse.DescribedGroup
) -> bool:
    """Of what its members have and are to have. What they subscribe to they have told by themselves."""
    assignments = (each for member in group.members for each in (member.assignment, member.target_assignment))
    names = {topic.topic_name for each in assignments for topic in each.topic_partitions}
    return all(core.access.allows_topic(request, Operation.DESCRIBE, name) for name in names)


def _hidden(group_id: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
    """Nothing of it, and not some of it (KAFKA-18813)."""
    return messages.ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id, error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), error_message=HIDDEN_TOPICS
    )


async def _describe(core: Core, group_id: str) -> messages.ConsumerGroupDescribeResponse.DescribedGroup:
    kind = messages.ConsumerGroupDescribeResponse.DescribedGroup
    if not core.groups.serves_consumer_groups and not await core.groups.may_serve_consumer_groups():
        return kind(group_id=group_id, error_code=int(ErrorCode.UNSUPPORTED_VERSION))
    if not group_id:
        return kind(group_id="", error_code=int(ErrorCode.INVALID_GROUP_ID))
    await core.groups.until_confirmed(group_id)
    found = core.groups.coordinator_of(group_id)
    if not isinstance(found, LoadedCoordinator):
        return kind(group_id=group_id, error_code=int(found))
    group = await found.call(
        DescribedConsumerGroup,
        lambda token, now_ms: found.machine.describe_consumer_group(group_id, token, now_ms),
    )
    return kind(
        group_id=group_id,
        error_code=int(group.error_code),
        error_message=group.error_message,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(core, member) for member in group.members],
        authorized_operations=NOT_ASKED_FOR,
    )


def _member(core: Core, member: DescribedConsumer) -> messages.ConsumerGroupDescribeResponse.Member:
    return messages.ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex or "",
        assignment=_assignment(core, member.assignment),
        target_assignment=_assignment(core, member.target),
        member_type=CLASSIC_MEMBER if member.is_classic else CONSUMER_MEMBER,
    )


def _assignment(core: Core, partitions: Partitions) -> messages.ConsumerGroupDescribeResponse.Assignment:
    """Of topics that there are."""
    kind = messages.ConsumerGroupDescribeResponse
    parts = []
    for topic_id in sorted(partitions):
        topic = core.view.topic(topic_id)
        if topic is not None:
            parts.append(
                kind.TopicPartitions(
                    topic_id=topic_id.bytes, topic_name=topic.name, partitions=sorted(partitions[topic_id])
                )
            )
    return kind.Assignment(topic_partitions=parts)
