"""LeaveGroup for members of consumer groups, whichever protocol they speak: an administrator takes them out by it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.step import Step
from tpc_broker.coordinator.messages import LeaveResponse, LeftMember
from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.heartbeats import ConsumerMembership
    from tpc_broker.coordinator.effects import Effects
    from tpc_broker.coordinator.messages import LeavingMember


def leave_consumers(
    membership: ConsumerMembership,
    ahead: Ahead,
    group: ConsumerGroup,
    members: Sequence[LeavingMember],
    effects: Effects,
) -> LeaveResponse:
    """Each member by itself, one new epoch for all. The answer is to be told when the group's last write is durable."""
    if not ahead.has_room():
        return LeaveResponse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    results: list[LeftMember] = []
    gone: dict[str, None] = {}
    for leaving in members:
        member_id, fault = _leaving_id(group, leaving)
        if fault is ErrorCode.NONE and member_id in gone:
            fault = ErrorCode.UNKNOWN_MEMBER_ID
        if fault is ErrorCode.NONE:
            gone[member_id] = None
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, fault))
    if gone:
        step = Step(group)
        membership.remove(step, gone)
        ahead.write(group.group_id, step.records, effects)
    return LeaveResponse(ErrorCode.NONE, tuple(results))


def _leaving_id(group: ConsumerGroup, leaving: LeavingMember) -> tuple[str, ErrorCode]:
    member_id = leaving.member_id
    if leaving.group_instance_id is not None:
        holder = group.static_members.get(leaving.group_instance_id)
        if holder is None:
            return member_id, ErrorCode.UNKNOWN_MEMBER_ID
        if member_id not in {"", holder}:
            return member_id, ErrorCode.FENCED_INSTANCE_ID
        member_id = holder
    return member_id, ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID
