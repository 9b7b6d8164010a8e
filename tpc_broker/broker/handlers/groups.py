"""The classic group APIs: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and questions about groups.

Each goes to the coordinator of its group, when that is on this core; the differences between versions are folded in
here, so that the coordinator knows none.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.authorized_operations import NOT_ASKED_FOR, ON_GROUP
from tpc_broker.broker.group_service import LoadedCoordinator
from tpc_broker.broker.handlers.forward import peer_of
from tpc_broker.coordinator.messages import (
    DeleteGroupsResponse,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    ListedGroup,
    SyncRequest,
    SyncResponse,
    WrittenResponse,
)
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

REQUIRES_MEMBER_ID_VERSION = 4
PROTOCOL_TYPE_VERSION = 7
SKIPS_ASSIGNMENT_VERSION = 9
MEMBERS_LEAVE_VERSION = 3
SYNC_PROTOCOL_VERSION = 5
GROUP_NOT_FOUND_VERSION = 6


async def handle_join_group(
    core: Core, request: Request, message: messages.JoinGroupRequest
) -> messages.JoinGroupResponse:
    found = _coordinator(core, request, message.group_id)
    if not isinstance(found, LoadedCoordinator):
        member_id = "" if found is ErrorCode.GROUP_AUTHORIZATION_FAILED else message.member_id
        return _join_error(found, member_id, request.api_version)
    join = JoinRequest(
        group_id=message.group_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in message.protocols),
        session_timeout_ms=message.session_timeout_ms,
        rebalance_timeout_ms=message.rebalance_timeout_ms,
        client_id=request.client_id or "",
        client_host=host_of(core, request),
        requires_member_id=request.api_version >= REQUIRES_MEMBER_ID_VERSION,
        supports_skipping_assignment=request.api_version >= SKIPS_ASSIGNMENT_VERSION,
    )
    unique = str(core.chance.uuid())
    answer = await found.call(
        JoinResponse, lambda token, now_ms: found.machine.join_group(join, token, now_ms, unique)
    )
    if answer.error_code:
        return _join_error(answer.error_code, answer.member_id, request.api_version)
    member = messages.JoinGroupResponse.JoinGroupResponseMember
    return messages.JoinGroupResponse(
        error_code=int(answer.error_code),
        generation_id=answer.generation_id,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name if answer.protocol_name is not None else _no_name(request.api_version),
        leader=answer.leader,
        skip_assignment=answer.skip_assignment,
        member_id=answer.member_id,
        members=[
            member(member_id=m.member_id, group_instance_id=m.group_instance_id, metadata=m.metadata)
            for m in answer.members
        ],
    )


def _no_name(version: int) -> str | None:
    return None if version >= PROTOCOL_TYPE_VERSION else ""


def _join_error(error: ErrorCode, member_id: str, version: int) -> messages.JoinGroupResponse:
    return messages.JoinGroupResponse(
        error_code=int(error),
        generation_id=-1,
        protocol_name=_no_name(version),
        leader="",
        member_id=member_id,
        members=[],
    )


def host_of(core: Core, request: Request) -> str:
    """A client's address, as Kafka tells it of members."""
    return "/" + peer_of(core, request).rpartition(":")[0].strip("[]")


def _coordinator(core: Core, request: Request, group_id: str) -> LoadedCoordinator | ErrorCode:
    """For who is a member of the group, or wants to be."""
    if not core.access.allows_group(request, Operation.READ, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    return core.groups.coordinator_of(group_id)


async def handle_sync_group(
    core: Core, request: Request, message: messages.SyncGroupRequest
) -> messages.SyncGroupResponse:
    if request.api_version >= SYNC_PROTOCOL_VERSION and (
        message.protocol_type is None or message.protocol_name is None
    ):
        return messages.SyncGroupResponse(error_code=int(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    found = _coordinator(core, request, message.group_id)
    if not isinstance(found, LoadedCoordinator):
        return messages.SyncGroupResponse(error_code=int(found))
    sync = SyncRequest(
        group_id=message.group_id,
        generation_id=message.generation_id,
        member_id=message.member_id,
        group_instance_id=message.group_instance_id,
        protocol_type=message.protocol_type,
        protocol_name=message.protocol_name,
        assignments=tuple((item.member_id, bytes(item.assignment)) for item in message.assignments),
    )
    answer = await found.call(SyncResponse, lambda token, now_ms: found.machine.sync_group(sync, token, now_ms))
    return messages.SyncGroupResponse(
        error_code=int(answer.error_code),
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol_name,
        assignment=answer.assignment,
    )


def handle_heartbeat(core: Core, request: Request, message: messages.HeartbeatRequest) -> messages.HeartbeatResponse:
    found = _coordinator(core, request, message.group_id)
    if isinstance(found, LoadedCoordinator):
        beat = HeartbeatRequest(
            group_id=message.group_id,
            generation_id=message.generation_id,
            member_id=message.member_id,
            group_instance_id=message.group_instance_id,
        )
        error = found.at_once(partial(found.machine.heartbeat, beat))
    elif found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        error = ErrorCode.NONE  # its session begins when the coordinator is loaded
    else:
        error = found
    return messages.HeartbeatResponse(error_code=int(error))


async def handle_leave_group(
    core: Core, request: Request, message: messages.LeaveGroupRequest
) -> messages.LeaveGroupResponse:
    by_member = request.api_version >= MEMBERS_LEAVE_VERSION
    found = _coordinator(core, request, message.group_id)
    if not isinstance(found, LoadedCoordinator):
        return messages.LeaveGroupResponse(error_code=int(found))
    leaving = (
        [LeavingMember(member.member_id, member.group_instance_id) for member in message.members]
        if by_member
        else [LeavingMember(message.member_id)]
    )
    answer = await found.call(
        LeaveResponse, lambda token, now_ms: found.machine.leave_group(message.group_id, leaving, token, now_ms)
    )
    if not by_member:
        error = answer.error_code or (answer.members[0].error_code if answer.members else ErrorCode.NONE)
        return messages.LeaveGroupResponse(error_code=int(error))
    return messages.LeaveGroupResponse(
        error_code=int(answer.error_code),
        members=[
            messages.LeaveGroupResponse.MemberResponse(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                error_code=int(member.error_code),
            )
            for member in answer.members
        ],
    )


async def handle_list_groups(
    core: Core, request: Request, message: messages.ListGroupsRequest
) -> messages.ListGroupsResponse:
    groups: list[ListedGroup] = []
    if not core.groups.is_loading:
        for coordinator in core.groups.loaded():
            groups += await _listed(coordinator, message)
    if core.groups.is_loading:  # also since it was asked: one whose decisions could not be written is loaded again
        return messages.ListGroupsResponse(error_code=int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    may_see_all = core.access.allows_on_cluster(request, Operation.DESCRIBE, is_told=False)
    listed = messages.ListGroupsResponse.ListedGroup
    return messages.ListGroupsResponse(
        groups=[
            listed(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.group_state,
                group_type=group.group_type,
            )
            for group in groups
            if may_see_all or core.access.allows_group(request, Operation.DESCRIBE, group.group_id, is_told=False)
        ]
    )


async def _listed(coordinator: LoadedCoordinator, message: messages.ListGroupsRequest) -> list[ListedGroup]:
    """When that is durable; nothing where it will not be, as of a coordinator that is not here."""
    machine = coordinator.machine
    if coordinator.is_unloaded:
        return []
    groups = machine.list_groups(message.states_filter, message.types_filter)
    answer = await coordinator.call(WrittenResponse, lambda token, now_ms: machine.when_written(None, token, now_ms))
    return [] if answer.error_code else groups


def handle_describe_groups(
    core: Core, request: Request, message: messages.DescribeGroupsRequest
) -> messages.DescribeGroupsResponse:
    return messages.DescribeGroupsResponse(
        groups=[_described(core, request, message, group_id) for group_id in message.groups]
    )


def _described(
    core: Core, request: Request, message: messages.DescribeGroupsRequest, group_id: str
) -> messages.DescribeGroupsResponse.DescribedGroup:
    result = messages.DescribeGroupsResponse.DescribedGroup(group_id=group_id, authorized_operations=NOT_ASKED_FOR)
    if not core.access.allows_group(request, Operation.DESCRIBE, group_id):
        result.error_code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return result
    found = core.groups.coordinator_of(group_id)
    if not isinstance(found, LoadedCoordinator):
        result.error_code = int(found)
        return result
    group = found.machine.describe_group(group_id)
    if message.include_authorized_operations:
        result.authorized_operations = core.access.bits(request, Resource.GROUP, group_id, ON_GROUP)
    result.group_state = group.group_state
    result.protocol_type = group.protocol_type
    result.protocol_data = group.protocol_data
    if group.error_code and request.api_version >= GROUP_NOT_FOUND_VERSION:
        result.error_code = int(group.error_code)
        result.error_message = group.error_message
    result.members = [
        messages.DescribeGroupsResponse.DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in group.members
    ]
    return result


async def handle_delete_groups(
    core: Core, request: Request, message: messages.DeleteGroupsRequest
) -> messages.DeleteGroupsResponse:
    results = []
    for group_id in dict.fromkeys(message.groups_names):
        found = core.groups.coordinator_of(group_id)
        if not core.access.allows_group(request, Operation.DELETE, group_id):
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif isinstance(found, LoadedCoordinator):
            error = await _delete_group(found, group_id)
        else:
            error = found
        results.append(messages.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=int(error)))
    return messages.DeleteGroupsResponse(results=results)


async def _delete_group(coordinator: LoadedCoordinator, group_id: str) -> ErrorCode:
    answer = await coordinator.call(
        DeleteGroupsResponse, lambda token, now_ms: coordinator.machine.delete_groups([group_id], token, now_ms)
    )
    error: ErrorCode = answer.results[0][1]
    return error
