"""Who is in a group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what happens when nobody says anything.

Moves the groups of `group` along their table. A JoinGroup waits (its token at the member) until the joining ends; a
SyncGroup waits until the leader's assignment is durable. Deadlines are of four kinds, by key:

* `member`: no sign of life for the session time-out. A member whose request waits with us is alive; a new one gets five
  minutes to see its first answer.
* `pending`: an id given out with MEMBER_ID_REQUIRED was not used.
* `join`: the end of joining. In an Empty group first the initial delay, drawn out while more members come.
* `sync`: members that never sent SyncGroup in this generation are removed.

Written are only the end of a round (the assignment, before anybody gets it), a group that became empty, and a static
member that came back under a new id. So a coordinator that starts again knows the last round that was handed out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.group import Group, GroupState, Held, Member, size_of_said
from tpc_broker.coordinator.messages import (
    JoinedMember,
    JoinRequest,
    JoinResponse,
    LeaveResponse,
    LeavingMember,
    LeftMember,
    SyncRequest,
    SyncResponse,
)
from tpc_broker.coordinator.records import group_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.coordinator.effects import Effects, Timers, Token, Writes
    from tpc_broker.coordinator.messages import HeartbeatRequest

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60 * 1000
"""A new member cannot send heartbeats while its join waits; a client that went away is noticed after this."""

_EMPTY, _PREPARING = GroupState.EMPTY, GroupState.PREPARING_REBALANCE
_COMPLETING, _STABLE, _DEAD = GroupState.COMPLETING_REBALANCE, GroupState.STABLE, GroupState.DEAD


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Settings of the coordinator, by the names of the broker settings they come from."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    group_size_max: int = 2**31 - 1
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000


class Membership:
    """The groups' rounds. Shares `groups` with the coordinator; `forget` drops a group of which nothing is stored."""

    def __init__(
        self,
        groups: dict[str, Group],
        timers: Timers,
        writes: Writes,
        limits: GroupLimits,
        forget: Callable[[Group], None],
        held: Held,
        bytes_left: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._timers = timers
        self._writes = writes
        self._limits = limits
        self._forget = forget
        self._held = held
        self._bytes_left = bytes_left

    # JoinGroup

    def join(self, request: JoinRequest, token: Token, now_ms: int, unique: str, effects: Effects) -> None:
        """JoinGroup; `unique` is a random text for the id of a new member."""
        fault = self.fault_of_form(request)
        if fault is not ErrorCode.NONE:
            return _refuse_join(effects, token, request, fault)
        group = self._groups.get(request.group_id)
        if group is None:
            if request.member_id:
                return _refuse_join(effects, token, request, ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._groups[request.group_id] = Group(request.group_id, held=self._held)
        lacking = self._lacking_bytes(group, request)
        if lacking is not ErrorCode.NONE:
            _refuse_join(effects, token, request, lacking)
        elif not self._has_room(group, request.member_id):
            effects.reply(token, JoinResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
            if request.member_id in group.members:
                self._remove(group, request.member_id, effects)
        elif not group.supports(request.protocol_type, [name for name, _metadata in request.protocols]):
            _refuse_join(effects, token, request, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id:
            self._join_known(group, request, token, now_ms, effects)
        else:
            self._join_new(group, request, token, now_ms, unique, effects)
        self._maybe_complete_join(group, now_ms, effects)
        self._forget(group)
        return None

    def fault_of_form(self, request: JoinRequest) -> ErrorCode:
        """What is wrong with a request whatever the group is."""
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        limits = self._limits
        if not limits.session_timeout_ms_min <= request.session_timeout_ms <= limits.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        return ErrorCode.NONE

    def _lacking_bytes(self, group: Group, request: JoinRequest) -> ErrorCode:
        """Whether there is room for what a member says, in the group and among all groups: there until others go."""
        growth = _growth(group, request)
        if growth <= 0:
            return ErrorCode.NONE
        if group.size_bytes + growth > GROUP_BYTES_MAX:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if growth > self._bytes_left() else ErrorCode.NONE

    def _has_room(self, group: Group, member_id: str) -> bool:
        member = group.members.get(member_id)
        if group.state is _PREPARING:
            waiting = member is not None and member.joining is not None
            return waiting or group.joining_count < self._limits.group_size_max
        if group.is_in(_COMPLETING, _STABLE):
            return member is not None or len(group.members) < self._limits.group_size_max
        return True

    def _join_new(
        self, group: Group, request: JoinRequest, token: Token, now_ms: int, unique: str, effects: Effects
    ) -> None:
        member_id = f"{request.group_instance_id or request.client_id}-{unique}"
        if request.group_instance_id is not None:
            old_member_id = group.static_members.get(request.group_instance_id)
            if old_member_id is not None:
                self._rejoin_static(group, old_member_id, member_id, request, token, now_ms, effects)
                return
        elif request.requires_member_id:
            group.expect(member_id)
            self._timers.set(("pending", group.group_id, member_id), now_ms + request.session_timeout_ms)
            response = JoinResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
            effects.reply(token, response)
            return
        self._add(group, member_id, request, token, now_ms, effects)

    def _join_known(self, group: Group, request: JoinRequest, token: Token, now_ms: int, effects: Effects) -> None:
        if request.member_id in group.pending_members:
            self._timers.cancel(("pending", group.group_id, request.member_id))
            self._add(group, request.member_id, request, token, now_ms, effects)
            return
        fault = group.fault_of_member(request.member_id, request.group_instance_id)
        if fault is not ErrorCode.NONE:
            _refuse_join(effects, token, request, fault)
            return
        member = group.members[request.member_id]
        is_leader = group.leader == member.member_id
        unchanged = member.protocols == request.protocols
        if unchanged and (group.state is _COMPLETING or (group.state is _STABLE and not is_leader)):
            # It did not see the answer to its last join: the same again.
            members = group.joined_members() if is_leader and group.state is _COMPLETING else ()
            effects.reply(token, _joined(group, member.member_id, members))
            return
        self._update(group, member, request, token, effects)
        self._maybe_prepare(group, now_ms, effects)

    def _add(
        self, group: Group, member_id: str, request: JoinRequest, token: Token, now_ms: int, effects: Effects
    ) -> None:
        member = Member(
            member_id,
            request.group_instance_id,
            request.client_id,
            request.client_host,
            _rebalance_timeout_ms(request),
            request.session_timeout_ms,
            request.protocols,
            joining=token,
            is_new=True,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is _PREPARING and group.previous_state is _EMPTY:
            group.new_member_added = True
        group.add(member)
        self._timers.set(_member_key(group, member_id), now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS)
        self._maybe_prepare(group, now_ms, effects)

    def _update(
        self, group: Group, member: Member, request: JoinRequest, token: Token | None, effects: Effects
    ) -> None:
        if member.joining is not None:
            # The client gave up the older request; nothing may wait for ever.
            effects.reply(member.joining, _join_error(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        group.update(member, request.protocols, request.client_id, request.client_host)
        member.rebalance_timeout_ms = _rebalance_timeout_ms(request)
        member.session_timeout_ms = request.session_timeout_ms
        member.joining = token

    def _rejoin_static(
        self,
        group: Group,
        old_member_id: str,
        member_id: str,
        request: JoinRequest,
        token: Token,
        now_ms: int,
        effects: Effects,
    ) -> None:
        """A static member restarted: the new id fences the old one; without need the group does not rebalance."""
        old_leader = group.leader
        member = group.replace_static(old_member_id, member_id)
        self._timers.cancel(("member", group.group_id, old_member_id))
        if member.joining is not None:
            effects.reply(member.joining, _join_error(ErrorCode.FENCED_INSTANCE_ID, old_member_id))
            member.joining = None
        if member.syncing is not None:
            effects.reply(member.syncing, SyncResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
            member.syncing = None
        self._refresh(group, member, now_ms)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self._update(group, member, request, None, effects)
        if group.state is not _STABLE or group.select_protocol() != group.protocol:
            member.joining = token
            self._maybe_prepare(group, now_ms, effects)
            return

        def written(later: Effects, _now_ms: int) -> None:
            if request.supports_skipping_assignment:
                is_leader = group.leader == member_id
                members = group.joined_members() if is_leader else ()
                later.reply(token, _joined(group, member_id, members, skip_assignment=is_leader))
            else:
                # Shown the old id as the leader, it does not divide the partitions again.
                later.reply(token, _joined(group, member_id, (), leader=old_leader))

        def failed(later: Effects, error: ErrorCode, _now_ms: int) -> None:
            if group.members.get(member_id) is member and old_member_id not in group.members:
                self._timers.cancel(_member_key(group, member_id))
                group.replace_static(member_id, old_member_id)
                protocols, member.rebalance_timeout_ms, member.session_timeout_ms = before
                group.update(member, protocols, member.client_id, member.client_host)
                self._refresh(group, member, _now_ms)
            later.reply(token, _join_error(error, member_id))

        metadata = group.metadata({m.member_id: m.assignment for m in group.members.values()})
        self._writes.begin(effects, [group_record(group.group_id, metadata)], written, failed)

    # Rounds

    def _maybe_prepare(self, group: Group, now_ms: int, effects: Effects) -> None:
        if group.state is _PREPARING:
            self._maybe_complete_join(group, now_ms, effects)
        elif group.state is not _DEAD:
            self.prepare_rebalance(group, now_ms, effects)

    def prepare_rebalance(self, group: Group, now_ms: int, effects: Effects) -> None:
        """A new round begins: everybody is to join again."""
        if group.state is _COMPLETING:
            self._fail_sync(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, effects)
        self._timers.cancel(("sync", group.group_id))
        first = group.state is _EMPTY
        group.transition(_PREPARING, now_ms)
        group.new_member_added = False
        if first:
            delay_ms = self._limits.initial_rebalance_delay_ms
            group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
            self._timers.set(("join", group.group_id), now_ms + delay_ms)
        else:
            self._timers.set(("join", group.group_id), now_ms + group.rebalance_timeout_ms)
            self._maybe_complete_join(group, now_ms, effects)

    def _maybe_complete_join(self, group: Group, now_ms: int, effects: Effects) -> None:
        if group.state is _PREPARING and group.previous_state is not _EMPTY and group.all_joined:
            self._complete_join(group, now_ms, effects)

    def _complete_join(self, group: Group, now_ms: int, effects: Effects) -> None:
        """Joining is over: who did not come is out, unless it is static; the rest gets the next generation."""
        self._timers.cancel(("join", group.group_id))
        absent = [m for m in group.members.values() if m.joining is None and m.group_instance_id is None]
        for member in absent:
            self._remove(group, member.member_id, effects)
        if not group.elect_joined_leader() and group.members:
            # Only static members are left and none has come: wait for one, or for their sessions to end.
            self._timers.set(("join", group.group_id), now_ms + group.rebalance_timeout_ms)
            return
        group.next_generation(now_ms)
        if group.state is _EMPTY:
            record = group_record(group.group_id, group.metadata({}))
            # A write that fails leaves the last round stored; its members' sessions end after a restart.
            self._writes.begin(effects, [record], lambda _effects, _now: None, lambda _effects, _error, _now: None)
            return
        self._timers.set(("sync", group.group_id), now_ms + group.rebalance_timeout_ms)
        group.pending_sync = set(group.members)
        for member in group.members.values():
            token, member.joining, member.is_new = member.joining, None, False
            self._refresh(group, member, now_ms)
            if token is not None:
                members = group.joined_members() if member.member_id == group.leader else ()
                effects.reply(token, _joined(group, member.member_id, members))

    # SyncGroup

    def sync(self, request: SyncRequest, token: Token, now_ms: int, effects: Effects) -> None:
        """SyncGroup."""
        group = self._groups.get(request.group_id)
        error = _sync_fault(group, request)
        if group is None or error is not ErrorCode.NONE:
            effects.reply(token, SyncResponse(error_code=error))
            return
        member = group.members[request.member_id]
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync:
            self._timers.cancel(("sync", group.group_id))
        if group.state is _STABLE:
            self._refresh(group, member, now_ms)
            effects.reply(token, _synced(group, member))
            return
        if member.syncing is not None:
            effects.reply(member.syncing, SyncResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        member.syncing = token
        if member.member_id == group.leader and group.assigned_generation_id != group.generation_id:
            self._store_assignment(group, dict(request.assignments), effects)

    # Rule: Of a generation one assignment is stored. A leader that sends another one while the first is being written
    # gets what that says: members have it, and the log would say something else. Held by
    # tests/coordinator/test_rounds.py, test_properties.py beside it.
    def _store_assignment(self, group: Group, assignments: dict[str, bytes], effects: Effects) -> None:
        generation_id = group.assigned_generation_id = group.generation_id

        def is_current() -> bool:
            if group.assigned_generation_id == generation_id:
                group.assigned_generation_id = None
            return group.state is _COMPLETING and group.generation_id == generation_id

        def written(later: Effects, now_ms: int) -> None:
            if not is_current():
                return
            group.transition(_STABLE, now_ms)
            for member in group.members.values():
                group.assign(member, assignments.get(member.member_id, b""))
                self._refresh(group, member, now_ms)
                if member.syncing is not None:
                    later.reply(member.syncing, _synced(group, member))
                    member.syncing = None

        def failed(later: Effects, error: ErrorCode, now_ms: int) -> None:
            if is_current():
                self._fail_sync(group, error, now_ms, later)
                self.prepare_rebalance(group, now_ms, later)

        record = group_record(group.group_id, group.metadata(assignments))
        self._writes.begin(effects, [record], written, failed)

    def _fail_sync(self, group: Group, error: ErrorCode, now_ms: int, effects: Effects) -> None:
        for member in group.members.values():
            group.assign(member, b"")
            if member.syncing is not None:
                effects.reply(member.syncing, SyncResponse(error_code=error))
                member.syncing = None
                self._refresh(group, member, now_ms)

    # Heartbeat and LeaveGroup

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Heartbeat: a sign of life, and the news of a rebalance."""
        group = self._groups.get(request.group_id)
        fault = _fault_of_generation(group, request)
        if fault is not ErrorCode.NONE:
            return fault
        assert group is not None
        self._refresh(group, group.members[request.member_id], now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else ErrorCode.NONE

    def leave(
        self, group_id: str, members: Sequence[LeavingMember], token: Token, now_ms: int, effects: Effects
    ) -> None:
        """LeaveGroup: each member by itself, one rebalance for all."""
        if not group_id:
            effects.reply(token, LeaveResponse(ErrorCode.INVALID_GROUP_ID))
            return
        group = self._groups.get(group_id)
        if group is None:
            unknown = (LeftMember(m.member_id, m.group_instance_id, ErrorCode.UNKNOWN_MEMBER_ID) for m in members)
            effects.reply(token, LeaveResponse(ErrorCode.NONE, tuple(unknown)))
            return
        results = []
        for leaving in members:
            error = self._leave_one(group, leaving, effects)
            results.append(LeftMember(leaving.member_id, leaving.group_instance_id, error))
        effects.reply(token, LeaveResponse(ErrorCode.NONE, tuple(results)))
        if any(result.error_code is ErrorCode.NONE for result in results) and group.state is not _EMPTY:
            self._maybe_prepare(group, now_ms, effects)
        self._forget(group)

    def _leave_one(self, group: Group, leaving: LeavingMember, effects: Effects) -> ErrorCode:
        member_id = leaving.member_id
        if not member_id and leaving.group_instance_id is not None:
            member_id = group.static_members.get(leaving.group_instance_id, "")
        elif member_id in group.pending_members:
            group.expect_no_more(member_id)
            self._timers.cancel(("pending", group.group_id, member_id))
            return ErrorCode.NONE
        fault = group.fault_of_member(member_id, leaving.group_instance_id)
        if fault is ErrorCode.NONE:
            self._remove(group, member_id, effects)
        return fault

    def _remove(self, group: Group, member_id: str, effects: Effects) -> None:
        """Takes a member out and answers what of it waits, so that a client that is alive begins anew."""
        member = group.remove(member_id)
        self._timers.cancel(_member_key(group, member_id))
        if member.joining is not None:
            effects.reply(member.joining, _join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))
        if member.syncing is not None:
            effects.reply(member.syncing, SyncResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))

    # Deadlines

    def refresh(self, group: Group, member_id: str, now_ms: int) -> None:
        """A sign of life that came another way."""
        self._refresh(group, group.members[member_id], now_ms)

    def _refresh(self, group: Group, member: Member, now_ms: int) -> None:
        self._timers.set(_member_key(group, member.member_id), now_ms + member.session_timeout_ms)

    def on_deadline(self, kind: str, group: Group, rest: Sequence[str], now_ms: int, effects: Effects) -> None:
        """`rest`: the id of the member that it is of."""
        if kind == "join":
            self._on_join_deadline(group, now_ms, effects)
        elif kind == "sync":
            self._on_sync_deadline(group, now_ms, effects)
        elif kind == "member":
            self._on_member_deadline(group, rest[0], now_ms, effects)
        else:
            self._on_pending_deadline(group, rest[0], now_ms, effects)

    def _on_join_deadline(self, group: Group, now_ms: int, effects: Effects) -> None:
        """The time for joining is over, unless it is the first round and members are still coming."""
        if group.state is not _PREPARING:
            return
        remaining_ms = group.initial_remaining_ms
        if group.previous_state is _EMPTY and group.new_member_added and remaining_ms > 0:
            delay_ms = min(self._limits.initial_rebalance_delay_ms, remaining_ms)
            group.new_member_added = False
            group.initial_remaining_ms = remaining_ms - delay_ms
            self._timers.set(("join", group.group_id), now_ms + delay_ms)
        else:
            self._complete_join(group, now_ms, effects)

    def _on_sync_deadline(self, group: Group, now_ms: int, effects: Effects) -> None:
        """Members that never asked for their assignment are out."""
        if not group.is_in(_COMPLETING, _STABLE) or not group.pending_sync:
            return
        for member_id in sorted(group.pending_sync):
            self._remove(group, member_id, effects)
        self.prepare_rebalance(group, now_ms, effects)

    def _on_member_deadline(self, group: Group, member_id: str, now_ms: int, effects: Effects) -> None:
        """A session is over, unless a request of the member waits with us."""
        member = group.members.get(member_id)
        if member is None:
            return
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            self._refresh(group, member, now_ms)
            return
        self._remove(group, member_id, effects)
        self._maybe_prepare(group, now_ms, effects)

    def _on_pending_deadline(self, group: Group, member_id: str, now_ms: int, effects: Effects) -> None:
        """An id that was given out was not used."""
        group.expect_no_more(member_id)
        self._maybe_complete_join(group, now_ms, effects)
        self._forget(group)

    def begin_sessions(self, group: Group, now_ms: int, effects: Effects) -> None:
        """After loading: every member has one session's time to show itself."""
        for member in group.members.values():
            self._refresh(group, member, now_ms)
        if len(group.members) > self._limits.group_size_max:
            self.prepare_rebalance(group, now_ms, effects)

    def dissolve(self, group: Group, error: ErrorCode, effects: Effects) -> None:
        """Answers everything that waits in a group and forgets its deadlines: it is no longer ours."""
        for kind in ("join", "sync"):
            self._timers.cancel((kind, group.group_id))
        for member_id in group.pending_members:
            self._timers.cancel(("pending", group.group_id, member_id))
        for member in group.members.values():
            self._timers.cancel(_member_key(group, member.member_id))
            if member.joining is not None:
                effects.reply(member.joining, _join_error(error, member.member_id))
            if member.syncing is not None:
                effects.reply(member.syncing, SyncResponse(error_code=error))
            member.joining = member.syncing = None


def _member_key(group: Group, member_id: str) -> tuple[str, str, str]:
    return "member", group.group_id, member_id


def _rebalance_timeout_ms(request: JoinRequest) -> int:
    return request.session_timeout_ms if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms


def _growth(group: Group, request: JoinRequest) -> int:
    """By how much the group is larger when this was taken."""
    member = group.members.get(request.member_id or group.static_members.get(request.group_instance_id or "", ""))
    member_id = request.member_id if member is None else member.member_id
    texts = member_id, request.group_instance_id, request.client_id, request.client_host
    said = size_of_said(*texts, protocols=request.protocols)
    return said if member is None else said - member.size_bytes + len(member.assignment)


def _join_error(error: ErrorCode, member_id: str) -> JoinResponse:
    return JoinResponse(error_code=error, member_id=member_id)


def _refuse_join(effects: Effects, token: Token, request: JoinRequest, error: ErrorCode) -> None:
    effects.reply(token, _join_error(error, request.member_id))


def _joined(
    group: Group,
    member_id: str,
    members: tuple[JoinedMember, ...],
    *,
    leader: str | None = None,
    skip_assignment: bool = False,
) -> JoinResponse:
    return JoinResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader or group.leader or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=members,
    )


def _synced(group: Group, member: Member) -> SyncResponse:
    return SyncResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment)


def _fault_of_generation(group: Group | None, request: SyncRequest | HeartbeatRequest) -> ErrorCode:
    """What is wrong with a request of a member of the present generation; with none, there is a group."""
    if not request.group_id:
        return ErrorCode.INVALID_GROUP_ID
    if group is None or group.state is _EMPTY:
        return ErrorCode.UNKNOWN_MEMBER_ID
    fault = group.fault_of_member(request.member_id, request.group_instance_id)
    if fault is not ErrorCode.NONE:
        return fault
    if request.generation_id != group.generation_id:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.NONE


def _sync_fault(group: Group | None, request: SyncRequest) -> ErrorCode:
    fault = _fault_of_generation(group, request)
    if fault is not ErrorCode.NONE:
        return fault
    assert group is not None
    if request.protocol_type not in {None, group.protocol_type} or request.protocol_name not in {None, group.protocol}:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    return ErrorCode.REBALANCE_IN_PROGRESS if group.state is _PREPARING else ErrorCode.NONE
