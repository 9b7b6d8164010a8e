"""Members of the classic protocol in a consumer group: `ClassicMembers`.

They come by JoinGroup and go by LeaveGroup (`leaving`), say that they live by Heartbeat, and are given what they have
by SyncGroup; the coordinator divides the partitions for them as for all others. Their generation is their member epoch,
and no round is common to all: REBALANCE_IN_PROGRESS tells one of them that it is to join again, which is its way of
giving back what it is to lose, and of coming to what it is to get. None of their requests waits for another member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.client_protocol import by_id, read_subscription, version_of, written_assignment
from tpc_broker.coordinator.consumer.group import MemberState, partitions_of
from tpc_broker.coordinator.consumer.heartbeats import CLASSIC_JOIN, CLASSIC_SYNC, REBALANCE, SESSION, Refusal
from tpc_broker.coordinator.consumer.records import ClassicPart, Subscription
from tpc_broker.coordinator.consumer.step import Step
from tpc_broker.coordinator.consumer.validation import ID_CHARACTERS_MAX
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.group import CONSUMER_PROTOCOL_TYPE
from tpc_broker.coordinator.messages import JoinResponse, SyncResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import GenerationId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.coordinator.consumer.ahead import Ahead
    from tpc_broker.coordinator.consumer.client_protocol import ClientSubscription
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.heartbeats import ConsumerMembership
    from tpc_broker.coordinator.consumer.messages import ConsumerSettings, Topics
    from tpc_broker.coordinator.consumer.records import CurrentAssignment
    from tpc_broker.coordinator.effects import Effects, Timers, Token
    from tpc_broker.coordinator.messages import HeartbeatRequest, JoinRequest, SyncRequest
    from tpc_broker.coordinator.migration import Migration


class ClassicMembers:
    """Of all groups of a coordinator; `groups` are its consumer groups."""

    def __init__(
        self,
        groups: Mapping[str, ConsumerGroup],
        timers: Timers,
        ahead: Ahead,
        settings_of: Callable[[str], ConsumerSettings],
        topics: Topics,
        membership: ConsumerMembership,
        migration: Migration,
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._ahead = ahead
        self._settings_of = settings_of
        self._topics = topics
        self._membership = membership
        self._migration = migration

    # JoinGroup

    def join(
        self, group: ConsumerGroup, request: JoinRequest, token: Token, now_ms: int, unique: str, effects: Effects
    ) -> None:
        """JoinGroup to a group that has members, of which the form has been looked at. `unique` is a fresh id for a
        member that has none.
        """
        member_id = request.member_id or unique
        try:
            response = self._join(group, request, member_id, now_ms, effects)
        except Refusal as refusal:
            is_new = refusal.code is ErrorCode.MEMBER_ID_REQUIRED
            response = JoinResponse(error_code=refusal.code, member_id=member_id if is_new else "")
        self._ahead.answer(
            group.group_id,
            effects,
            now_ms,
            lambda later, _now_ms: later.reply(token, response),
            lambda later, error, _now_ms: later.reply(token, JoinResponse(error_code=error)),
        )

    def _join(
        self, group: ConsumerGroup, request: JoinRequest, member_id: str, now_ms: int, effects: Effects
    ) -> JoinResponse:
        if not self._ahead.has_room():
            raise Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The disk of the coordinator is far behind.")
        instance_id = request.group_instance_id
        holder = None if instance_id is None else group.static_members.get(instance_id)
        before = group.members.get(request.member_id or holder or "")
        self._check(group, request, holder, is_new=before is None)
        try:
            said = read_subscription(request.protocols[0][1])
        except RecordDamagedError:
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "Its subscription cannot be read.") from None
        subscription = _subscription(request, said, before)
        self._membership.check_bytes(group, member_id, before, subscription)

        becomes_classic = holder is not None and self._migration.may_downgrade_for(group, holder)
        step = Step(group)
        if holder is not None and not request.member_id:
            self._membership.replace(step, holder, member_id)
        epoch = group.epoch
        self._membership.subscribed.change(step, member_id, subscription, now_ms)
        is_changed = group.epoch > epoch
        owned = by_id(said.owned, self._topics)
        protocol = request.protocols[0][0]
        if becomes_classic:
            # Where it is to be divided anew, all of them are to join again.
            has = group.current_of(member_id)
            if not is_changed:
                has = self._membership.reconcile(step, member_id, owned, now_ms, is_changed=False)
            is_divided = not is_changed and all(map(group.is_settled, group.members))
            classic = self._migration.downgrade_for(step, now_ms, effects, is_divided=is_divided)
            if classic is not None:
                return _joined(member_id, has, classic.protocol or protocol)
        self._membership.assigning.begin_if_due(step, now_ms)
        has = self._membership.reconcile(step, member_id, owned, now_ms, is_changed=is_changed)
        self._ahead.write(group.group_id, step.records, effects)
        self._expect_sync(group, member_id, subscription, now_ms)
        return _joined(member_id, has, protocol)

    def _check(self, group: ConsumerGroup, request: JoinRequest, holder: str | None, *, is_new: bool) -> None:
        """Whether a member may come in, or stay. `holder`: who has its instance id."""
        if max(len(request.member_id), len(request.group_instance_id or "")) > ID_CHARACTERS_MAX:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"An id is longer than {ID_CHARACTERS_MAX} characters.")
        if is_new and len(group.members) >= self._settings_of(group.group_id).size_max:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, "The group is full.")
        if not group.supports_classic(request.protocol_type, [name for name, _metadata in request.protocols]):
            raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "Its members have no protocol in common with this.")
        if request.group_instance_id is None:
            if not request.member_id and request.requires_member_id:
                raise Refusal(ErrorCode.MEMBER_ID_REQUIRED, "It is to join with the id that it is given.")
        elif request.member_id and holder is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, "The instance id is of no member of the group.")
        elif request.member_id and holder != request.member_id:
            raise Refusal(ErrorCode.FENCED_INSTANCE_ID, f"The instance id is that of member {holder}.")

    def _expect_sync(self, group: ConsumerGroup, member_id: str, subscription: Subscription, now_ms: int) -> None:
        assert subscription.classic is not None
        for kind in (CLASSIC_JOIN, REBALANCE):
            self._timers.cancel((kind, group.group_id, member_id))
        self._timers.set((SESSION, group.group_id, member_id), now_ms + subscription.classic.session_timeout_ms)
        self._timers.set((CLASSIC_SYNC, group.group_id, member_id), now_ms + subscription.rebalance_timeout_ms)

    # SyncGroup

    def sync(self, group: ConsumerGroup, request: SyncRequest, token: Token, now_ms: int, effects: Effects) -> None:
        """SyncGroup: what the member has, in the version of the embedded protocol that it speaks."""

        def refuse(later: Effects, error: ErrorCode, _now_ms: int = now_ms) -> None:
            later.reply(token, SyncResponse(error_code=error))

        def answer(later: Effects, _now_ms: int) -> None:
            # What has happened while it waited.
            if self._groups.get(group.group_id) is not group:
                refuse(later, ErrorCode.REBALANCE_IN_PROGRESS)
            elif request.member_id not in group.members:
                refuse(later, ErrorCode.UNKNOWN_MEMBER_ID)
            else:
                later.reply(token, response)

        fault = self._fault_of_sync(group, request, now_ms)
        if fault is not ErrorCode.NONE:
            refuse(effects, fault)
            return
        classic = group.members[request.member_id].classic
        assert classic is not None
        self._timers.cancel((CLASSIC_SYNC, group.group_id, request.member_id))
        self._timers.set((SESSION, group.group_id, request.member_id), now_ms + classic.session_timeout_ms)
        assigned = partitions_of(group.current_of(request.member_id).assigned)
        response = SyncResponse(
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=written_assignment(assigned, self._topics, version_of(classic.protocols[0][1])),
        )
        self._ahead.answer(group.group_id, effects, now_ms, answer, refuse)

    def _fault_of_sync(self, group: ConsumerGroup, request: SyncRequest, now_ms: int) -> ErrorCode:
        fault = _fault_of_generation(group, request)
        if fault is not ErrorCode.NONE:
            return fault
        member = group.members[request.member_id]
        assert member.classic is not None
        protocol = member.classic.protocols[0][0]
        if request.protocol_type not in {None, CONSUMER_PROTOCOL_TYPE} or request.protocol_name not in {None, protocol}:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        current = group.current_of(request.member_id)
        if current.epoch < _due_epoch(group) and current.state != MemberState.UNREVOKED_PARTITIONS:
            self._expect_join(group, request.member_id, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # Heartbeat

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat: a sign of life, and whether the member is to join again: when there is a new assignment, when it
        has something to give back, or when there is something for it that it waited for.
        """
        fault = _fault_of_generation(group, request)
        if fault is not ErrorCode.NONE:
            return fault
        classic = group.members[request.member_id].classic
        assert classic is not None
        self._timers.set((SESSION, group.group_id, request.member_id), now_ms + classic.session_timeout_ms)
        current = group.current_of(request.member_id)
        waited = current.state == MemberState.UNRELEASED_PARTITIONS
        if (
            current.epoch < _due_epoch(group)
            or current.state == MemberState.UNREVOKED_PARTITIONS
            or (waited and not group.waits_for_others(request.member_id))
        ):
            self._expect_join(group, request.member_id, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _expect_join(self, group: ConsumerGroup, member_id: str, now_ms: int) -> None:
        """It has its rebalance time-out from when it was told first."""
        deadline_ms = now_ms + group.members[member_id].rebalance_timeout_ms
        self._timers.set_if_none((CLASSIC_JOIN, group.group_id, member_id), deadline_ms)


def _subscription(request: JoinRequest, said: ClientSubscription, before: Subscription | None) -> Subscription:
    """What a member asks for from now on. It has no expression, whatever it had in the other protocol."""
    timeout_ms = request.rebalance_timeout_ms
    instance_id, rack_id, assignor = request.group_instance_id, said.rack_id, None
    if before is not None:
        instance_id, rack_id = instance_id or before.instance_id, rack_id or before.rack_id
        assignor = before.assignor
    return Subscription(
        instance_id,
        rack_id,
        request.client_id,
        request.client_host,
        said.topic_names,
        "",
        request.session_timeout_ms if timeout_ms < 0 else timeout_ms,
        assignor,
        ClassicPart(request.session_timeout_ms, request.protocols),
    )


def _due_epoch(group: ConsumerGroup) -> int:
    """That members are to join again for: the target's, for sooner they would only give up what they have to be told
    the same again. Where nobody speaks the newer protocol it is the group's, for only a JoinGroup has the target made.
    """
    return group.epoch if group.classic_count == len(group.members) else group.target_epoch


def _joined(member_id: str, has: CurrentAssignment, protocol: str) -> JoinResponse:
    return JoinResponse(
        generation_id=GenerationId(has.epoch),
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=protocol,
        member_id=member_id,
    )


def _fault_of_member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ErrorCode:
    if instance_id is not None:
        holder = group.static_members.get(instance_id)
        if holder is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if holder != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def _fault_of_generation(group: ConsumerGroup, request: SyncRequest | HeartbeatRequest) -> ErrorCode:
    """What is wrong with a request of a member of the classic protocol, in its epoch."""
    fault = _fault_of_member(group, request.member_id, request.group_instance_id)
    if fault is not ErrorCode.NONE:
        return fault
    if group.members[request.member_id].classic is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != group.current_of(request.member_id).epoch:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE
