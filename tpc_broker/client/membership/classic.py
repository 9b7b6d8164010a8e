"""A member of a classic group, as a machine without I/O (KIP-62, 345, 394, 429, 559, 814).

Rounds: a member joins (JoinGroup, which the coordinator holds until all members did), the leader divides, all learn
their part (SyncGroup), and beat until the coordinator says that there is another round. Where all that a member offers
is cooperative, it keeps what it reads through the round, and gives back only what its new part lacks; then it joins
once more, so that the leader can give that to others. Otherwise it gives back everything before it joins.

    UNJOINED --join--> JOINING --(leader) DIVIDING--> SYNCING --> SETTLING --> STABLE --another round--> JOINING
    any --the coordinator has forgotten it--> JOINING, and what it had is lost
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.consumer.ports import GroupIdentity
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.membership.assignors import ASSIGNORS, COOPERATIVE_STICKY, GroupMember
from tpc_broker.client.membership.encoding import (
    NO_GENERATION,
    Said,
    read_assignment,
    read_subscription,
    written_assignment,
    written_subscription,
)
from tpc_broker.client.membership.settings import OLDER_ASSIGNORS
from tpc_broker.client.membership.steps import Ask, Assign, Beat, Divide, Lose, Resolve, Revoke, Step
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.membership.settings import GroupSettings
    from tpc_broker.client.requests import TopicPartition

PROTOCOL_TYPE: Final = "consumer"
_MEMBERS_VERSION: Final = 3
"""Of LeaveGroup: from it on, several at once, and static ones."""
_REASON_VERSION: Final = 8
"""Of JoinGroup, and 5 of LeaveGroup: from it on with a reason."""


class State(Enum):
    JOINING = auto()
    DIVIDING = auto()
    SYNCING = auto()
    SETTLING = auto()
    STABLE = auto()
    AWAY = auto()
    """Left on purpose, until `resume`."""


class ClassicMember:
    """``names`` is what is subscribed to."""

    def __init__(self, settings: GroupSettings, names: Collection[str]) -> None:
        self.life = 0
        self.interval_seconds = settings.heartbeat_seconds
        self.member_id = ""
        self.generation_id = NO_GENERATION
        self.state = State.JOINING
        self.is_leader = False
        self._settings = settings
        self._assignors = settings.wished_assignors
        self._names = tuple(sorted(names))
        self._owned: set[TopicPartition] = set()
        self._owned_since = NO_GENERATION
        self._lost: set[TopicPartition] = set()
        self._target: frozenset[TopicPartition] = frozenset()
        self._joins_again = False
        self._is_asking = False
        self._assignor = ""
        self._members: list[GroupMember] = []
        self._assignments: dict[str, bytes] = {}
        self._reason = "the member is new"

    @property
    def identity(self) -> GroupIdentity:
        return GroupIdentity(self._settings.group, self.generation_id, self.member_id, self._settings.instance_id)

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self._owned)

    @property
    def is_settled(self) -> bool:
        return self.state in {State.SETTLING, State.STABLE}

    @property
    def is_hurried(self) -> bool:
        return False

    @property
    def is_cooperative(self) -> bool:
        """What is read goes on through a round: only when nothing else could be agreed on in it."""
        return self._assignors == (COOPERATIVE_STICKY,)

    # Steps

    def step(self) -> Step | None:
        if self._lost:
            return Lose(frozenset(self._lost))
        if self.state is State.JOINING:
            if self._owned and not self.is_cooperative:
                return Revoke(frozenset(self._owned))
            self._is_asking = True
            return Ask(ApiKey.JOIN_GROUP, self._join_request, self._joined)
        if self.state is State.DIVIDING:
            return Divide(frozenset(topic for member in self._members for topic in member.said.topics))
        if self.state is State.SYNCING:
            self._is_asking = True
            return Ask(ApiKey.SYNC_GROUP, self._sync_request, self._synced)
        return self._settle() if self.state is State.SETTLING else None

    def _settle(self) -> Step | None:
        surplus, missing = self._owned - self._target, self._target - self._owned
        if surplus:
            return Revoke(frozenset(surplus))
        if missing:
            return Assign(frozenset(missing))
        self._owned_since = self.generation_id
        self.state = State.STABLE
        if self._joins_again:
            self._join_again(self._reason)
            return self.step()
        return None

    def done(self, step: Step) -> None:
        if isinstance(step, Ask):
            self._is_asking = False
        elif isinstance(step, Lose):
            self._lost -= step.partitions
        elif isinstance(step, Revoke):
            self._owned -= step.partitions
            self._lost -= step.partitions
            if self.state is State.SETTLING:
                self._joins_again, self._reason = True, "partitions were given back"
        elif isinstance(step, Assign):
            self._owned |= step.partitions

    def abandoned(self, step: Step) -> None:
        if isinstance(step, Ask):
            self._is_asking = False
        elif isinstance(step, Assign):
            self._lost |= step.partitions

    def divided(self, counts: Mapping[str, int]) -> None:
        """How many partitions the topics of `Divide` have; those that are not there are left out."""
        if self.state is not State.DIVIDING:
            return
        given = ASSIGNORS[self._assignor](self._members, counts)
        self._assignments = {member_id: written_assignment(partitions) for member_id, partitions in given.items()}
        self.state = State.SYNCING

    def resolved(self, step: Resolve, names: Mapping[bytes, str]) -> None:
        raise AssertionError("classic groups know topics by name", step, names)

    # Joining

    def _join_request(self, version: int) -> Any:
        said = Said(self._names, self.owned, self._owned_since, self._settings.rack)
        request = messages.JoinGroupRequest(
            group_id=self._settings.group,
            session_timeout_ms=round(self._settings.session_seconds * 1000),
            rebalance_timeout_ms=round(self._settings.max_work_seconds * 1000),
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[
                messages.JoinGroupRequest.JoinGroupRequestProtocol(
                    name=name, metadata=written_subscription(said, is_sticky=name == COOPERATIVE_STICKY)
                )
                for name in self._assignors
            ],
        )
        if version >= _REASON_VERSION:
            request.reason = self._reason
        return request

    def _joined(self, answer: Any) -> None:
        code = answer.error_code
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._forgotten(keeps_id=False, why="the coordinator did not know the member")
        elif code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and self._falls_back():
            self._assignors = OLDER_ASSIGNORS
        elif code:
            raise RefusedError(code, "")
        else:
            self._begin_round(answer)

    def _falls_back(self) -> bool:
        return self._settings.assignors is None and self._assignors != OLDER_ASSIGNORS and not self._owned

    def _begin_round(self, answer: Any) -> None:
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        self._assignor = answer.protocol_name or ""
        if self._assignor not in self._assignors:
            raise ClientError(f"the coordinator chose the assignor {self._assignor!r} of {', '.join(self._assignors)}")
        self.is_leader = answer.leader == answer.member_id
        self._joins_again = False
        self._assignments = {}
        self._members = []
        if self.is_leader and not answer.skip_assignment:
            self._members = [
                GroupMember(row.member_id, row.group_instance_id, read_subscription(bytes(row.metadata)))
                for row in answer.members
            ]
            self.state = State.DIVIDING
        else:
            self.state = State.SYNCING

    def _sync_request(self, _version: int) -> Any:
        request = messages.SyncGroupRequest
        return request(
            group_id=self._settings.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=self._assignor,
            assignments=[
                request.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
                for member_id, data in self._assignments.items()
            ],
        )

    def _synced(self, answer: Any) -> None:
        code = answer.error_code
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._join_again("another round began")
        elif code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            self._forgotten(keeps_id=code == ErrorCode.ILLEGAL_GENERATION, why="the round was over")
        elif code:
            raise RefusedError(code, "")
        else:
            self._target = read_assignment(bytes(answer.assignment))
            self.state = State.SETTLING

    def _join_again(self, reason: str) -> None:
        self._joins_again = False
        self._reason = reason
        self.state = State.JOINING

    def _forgotten(self, *, keeps_id: bool, why: str) -> None:
        """No member any more."""
        self.life += 1
        self._lost |= self._owned
        self._owned.clear()
        self._target = frozenset()
        self.generation_id = self._owned_since = NO_GENERATION
        if not keeps_id:
            self.member_id = ""
        self._is_asking = False
        if self.state is not State.AWAY:
            self._join_again(why)

    # Heartbeats

    def beat(self) -> Beat | None:
        if self.generation_id < 0 or self._is_asking or self._lost or self.state is State.AWAY:
            return None
        return Beat(ApiKey.HEARTBEAT, self._heartbeat_request, self.life, self.generation_id)

    def _heartbeat_request(self, _version: int) -> Any:
        return messages.HeartbeatRequest(
            group_id=self._settings.group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self._settings.instance_id,
        )

    def beaten(self, beat: Beat, answer: Any) -> None:
        code = answer.error_code
        if (beat.life, beat.generation_or_epoch) != (self.life, self.generation_id) or not code:
            return
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self._round_wanted("the coordinator asked for it")
        elif code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            self._forgotten(keeps_id=code == ErrorCode.ILLEGAL_GENERATION, why="the coordinator has forgotten it")
        else:
            raise RefusedError(code, "")

    def beat_lost(self) -> None:
        pass

    def _round_wanted(self, reason: str) -> None:
        if self.state is State.STABLE:
            self._join_again(reason)
        elif self.state in {State.SETTLING, State.DIVIDING, State.SYNCING}:
            self._joins_again, self._reason = True, reason

    # What changes from outside

    def subscribe(self, names: Collection[str]) -> None:
        wanted = tuple(sorted(names))
        if wanted != self._names:
            self._names = wanted
            self._round_wanted("other topics")

    def topics_grew(self) -> None:
        """The leader alone divides."""
        if self.is_leader:
            self._round_wanted("topics changed")

    def refused(self, identity: GroupIdentity) -> None:
        if identity == self.identity and self.is_settled:
            self._forgotten(keeps_id=False, why="a commit was refused")

    def stop(self) -> None:
        self.state = State.AWAY
        self._forgotten(keeps_id=self._settings.instance_id is not None, why="")

    def resume(self) -> None:
        if self.state is State.AWAY:
            self._join_again("what took too long is over")

    def leave_request(self) -> tuple[ApiKey, Callable[[int], Any]] | None:
        """A static member stays until its session is over: it may be back before."""
        if not self.member_id or self._settings.instance_id is not None:
            return None
        group, member_id = self._settings.group, self.member_id

        def make(version: int) -> Any:
            request = messages.LeaveGroupRequest
            if version < _MEMBERS_VERSION:
                return request(group_id=group, member_id=member_id)
            identity = request.MemberIdentity(member_id=member_id)
            if version > _MEMBERS_VERSION + 1:
                identity.reason = "the member is closing"
            return request(group_id=group, members=[identity])

        return ApiKey.LEAVE_GROUP, make
