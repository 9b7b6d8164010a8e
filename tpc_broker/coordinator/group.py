"""One classic group in memory: its members, its state, and the table of what may follow what.

Theory of operation
-------------------
A group gathers members, lets one of them (the leader) divide the partitions, and hands out the result; then it waits
for somebody to come or go. Each round is a *rebalance* and gets the next generation:

* `Empty`: no members; offsets may be kept, and may be committed without a member.
* `PreparingRebalance`: members join (JoinGroup waits) until all known ones are there or the time is over.
* `CompletingRebalance`: all were answered, the leader's assignment is awaited (SyncGroup waits).
* `Stable`: the assignment is stored and handed out.
* `Dead`: removed.

What is here is transient, but for what `metadata()` stores at the end of a round. The machine that moves the group is
`membership`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from tpc_broker.coordinator.messages import DescribedGroup, DescribedMember, JoinedMember
from tpc_broker.coordinator.records import GroupMetadata, MemberMetadata, subscribed_topics
from tpc_broker.error_codes import ErrorCode
from tpc_broker.limits import GROUP_MEMBER_BYTES
from tpc_broker.model import GenerationId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.coordinator.effects import Token

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_PROTOCOL_BYTES: Final = 128
"""Counted of each protocol of a member beside its bytes."""
_NO_ROUND_YET: Final = GenerationId(0)


class GroupState(Enum):
    """States, with the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


TRANSITIONS: Final[Mapping[GroupState, Mapping[GroupState, str]]] = {
    GroupState.EMPTY: {
        GroupState.PREPARING_REBALANCE: "a member joins",
        GroupState.DEAD: "deleted, or its last offset expired",
    },
    GroupState.PREPARING_REBALANCE: {
        GroupState.COMPLETING_REBALANCE: "all members joined, or time is over",
        GroupState.EMPTY: "nobody joined",
        GroupState.DEAD: "removed",
    },
    GroupState.COMPLETING_REBALANCE: {
        GroupState.STABLE: "the leader's assignment is durable",
        GroupState.PREPARING_REBALANCE: "a member joins, leaves or fails",
        GroupState.DEAD: "removed",
    },
    GroupState.STABLE: {
        GroupState.PREPARING_REBALANCE: "a member joins, leaves or fails",
        GroupState.DEAD: "removed",
    },
    GroupState.DEAD: {},
}
"""From each state to those that may follow, with the reason."""


def state_diagram() -> str:
    """The table as a Mermaid diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> Empty"]
    for state, followers in TRANSITIONS.items():
        lines.extend(f"    {state.value} --> {follower.value}: {why}" for follower, why in followers.items())
    return "\n".join([*lines, "    Dead --> [*]"])


def size_of_said(*texts: str | None, protocols: tuple[tuple[str, bytes], ...]) -> int:
    """What it takes to remember what a member has said of itself, about: its ids, its client, and what it supports."""
    of_protocols = sum(len(name) + len(metadata) + _PROTOCOL_BYTES for name, metadata in protocols)
    return GROUP_MEMBER_BYTES + sum(len(text or "") for text in texts) + of_protocols


@dataclass(slots=True)
class Held:
    """Bytes that all groups of a coordinator hold for their members."""

    size_bytes: int = 0


@dataclass(slots=True)
class Member:
    """A member of a group. `joining` and `syncing` are the requests of it that wait."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    joining: Token | None = None
    syncing: Token | None = None
    is_new: bool = False
    """It has not been answered yet, so it cannot send heartbeats."""

    @property
    def size_bytes(self) -> int:
        """What it takes to remember it, about."""
        texts = self.member_id, self.group_instance_id, self.client_id, self.client_host
        return size_of_said(*texts, protocols=self.protocols) + len(self.assignment)

    def metadata_for(self, protocol: str | None) -> bytes:
        """What it said with this protocol."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


@dataclass(slots=True)
class Group:
    """A group; `transition` is the only way to change its state."""

    group_id: str
    state: GroupState = GroupState.EMPTY
    previous_state: GroupState = GroupState.EMPTY
    state_timestamp_ms: int | None = None
    generation_id: GenerationId = _NO_ROUND_YET
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    static_members: dict[str, str] = field(default_factory=dict)
    pending_members: set[str] = field(default_factory=set)
    """Ids given out with MEMBER_ID_REQUIRED that have not joined yet."""
    pending_sync: set[str] = field(default_factory=set)
    """Members of this generation that have not sent SyncGroup yet."""
    assigned_generation_id: GenerationId | None = None
    """Of which the leader's assignment is being written."""
    new_member_added: bool = False
    initial_remaining_ms: int = 0
    """How much longer the first rebalance may be drawn out when more members come."""
    held: Held = field(default_factory=Held)
    size_bytes: int = 0
    """Of `held`, what is of this group."""

    def transition(self, state: GroupState, now_ms: int) -> None:
        """Changes the state along the table."""
        assert state in TRANSITIONS[self.state], f"{self.group_id}: {self.state.value} → {state.value}"
        self.previous_state, self.state = self.state, state
        self.state_timestamp_ms = now_ms

    def _hold(self, size_bytes: int) -> None:
        self.size_bytes += size_bytes
        self.held.size_bytes += size_bytes
        assert self.size_bytes >= 0, self.group_id
        assert self.held.size_bytes >= self.size_bytes, self.group_id

    def let_go(self) -> None:
        """It is no group any more."""
        self._hold(-self.size_bytes)

    def expect(self, member_id: str) -> None:
        """An id was given out."""
        self.pending_members.add(member_id)
        self._hold(_size_of_pending(member_id))

    def expect_no_more(self, member_id: str) -> None:
        """It has come, or it does not."""
        if member_id in self.pending_members:
            self.pending_members.remove(member_id)
            self._hold(-_size_of_pending(member_id))

    def update(
        self, member: Member, protocols: tuple[tuple[str, bytes], ...], client_id: str, client_host: str
    ) -> None:
        """It has said something else."""
        self._hold(-member.size_bytes)
        member.protocols, member.client_id, member.client_host = protocols, client_id, client_host
        self._hold(member.size_bytes)

    def assign(self, member: Member, assignment: bytes) -> None:
        """What it has from now on."""
        self._hold(len(assignment) - len(member.assignment))
        member.assignment = assignment

    def is_in(self, *states: GroupState) -> bool:
        """Whether the state is one of these."""
        return self.state in states

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that any member asked for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def joining_count(self) -> int:
        """Members whose JoinGroup waits."""
        return sum(member.joining is not None for member in self.members.values())

    @property
    def all_joined(self) -> bool:
        """Whether nobody known is missing."""
        return not self.pending_members and self.joining_count == len(self.members)

    def add(self, member: Member) -> None:
        """A member joins; the first one leads."""
        assert member.member_id not in self.members, member.member_id
        self.members[member.member_id] = member
        self._hold(member.size_bytes)
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, member.group_instance_id
            self.static_members[member.group_instance_id] = member.member_id
        self.leader = self.leader or member.member_id
        self.expect_no_more(member.member_id)

    def remove(self, member_id: str) -> Member:
        """A member is gone; somebody else leads if it did."""
        member = self.members.pop(member_id)
        self._hold(-member.size_bytes)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        self.pending_sync.discard(member_id)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace_static(self, old_member_id: str, new_member_id: str) -> Member:
        """A static member came back under a new id: it keeps its place, its assignment and its leadership."""
        member = self.members[old_member_id]
        assert member.group_instance_id is not None
        self.members = {
            (new_member_id if member_id == old_member_id else member_id): each
            for member_id, each in self.members.items()
        }
        self._hold(len(new_member_id) - len(old_member_id))
        member.member_id = new_member_id
        self.static_members[member.group_instance_id] = new_member_id
        if old_member_id in self.pending_sync:
            self.pending_sync = {*self.pending_sync - {old_member_id}, new_member_id}
        if self.leader == old_member_id:
            self.leader = new_member_id
        return member

    def fault_of_member(self, member_id: str, instance: str | None) -> ErrorCode:
        """Whether this member id is, or is not any more, that of a member."""
        if instance is not None:
            known = self.static_members.get(instance)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, protocols: Iterable[str]) -> bool:
        """Whether a member with these protocols fits in: the same type, and one protocol that all others have too."""
        names = set(protocols)
        if not protocol_type or not names:
            return False
        if self.state is GroupState.EMPTY or not self.members:
            return True
        return protocol_type == self.protocol_type and bool(names & self._common_protocols())

    def elect_joined_leader(self) -> bool:
        """Makes sure that the leader is one who has joined; False when nobody has."""
        joined = [member.member_id for member in self.members.values() if member.joining is not None]
        if joined and self.leader not in joined:
            self.leader = joined[0]
        return bool(joined)

    def next_generation(self, now_ms: int) -> None:
        """Ends the joining: chooses the protocol and goes on to the assignment, or to Empty without members."""
        self.generation_id = GenerationId(self.generation_id + 1 & 0x7FFFFFFF)
        self.pending_sync.clear()
        if self.members:
            self.protocol = self.select_protocol()
            self.transition(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol = None
            self.transition(GroupState.EMPTY, now_ms)

    def select_protocol(self) -> str:
        """The protocol that most members like best of those that all have; the leader's order decides a tie."""
        common = self._common_protocols()
        votes = [next(n for n, _ in member.protocols if n in common) for member in self.members.values()]
        return max(dict.fromkeys(votes), key=votes.count)

    def joined_members(self) -> tuple[JoinedMember, ...]:
        """What the leader needs to divide the partitions."""
        return tuple(
            JoinedMember(m.member_id, m.group_instance_id, m.metadata_for(self.protocol)) for m in self.members.values()
        )

    def described(self) -> DescribedGroup:
        """For DescribeGroups."""
        stable = self.state is GroupState.STABLE
        members = tuple(
            DescribedMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.metadata_for(self.protocol) if stable else b"",
                m.assignment,
            )
            for m in self.members.values()
        )
        return DescribedGroup(
            self.group_id,
            self.state.value,
            protocol_type=self.protocol_type or "",
            protocol_data=self.protocol or "" if stable else "",
            members=members,
        )

    def subscribed_topics(self) -> frozenset[str] | None:
        """Topics the members consume; None when that cannot be known."""
        if self.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return None
        topics: frozenset[str] = frozenset()
        for member in self.members.values():
            names = subscribed_topics(member.metadata_for(self.protocol))
            if names is None:
                return None
            topics |= names
        return topics

    def metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadata:
        """What is stored of the group with these assignments."""
        members = tuple(
            MemberMetadata(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.rebalance_timeout_ms,
                m.session_timeout_ms,
                m.metadata_for(self.protocol),
                assignments.get(m.member_id, b""),
            )
            for m in self.members.values()
        )
        timestamp_ms = -1 if self.state_timestamp_ms is None else self.state_timestamp_ms
        return GroupMetadata(
            self.protocol_type or "", self.generation_id, self.protocol, self.leader, timestamp_ms, members
        )

    def _common_protocols(self) -> set[str]:
        each = [{name for name, _metadata in member.protocols} for member in self.members.values()]
        return set.intersection(*each) if each else set()


def _size_of_pending(member_id: str) -> int:
    return GROUP_MEMBER_BYTES + len(member_id)


def group_of(group_id: str, metadata: GroupMetadata, held: Held) -> Group:
    """The group that was stored: Stable with the members it had, or Empty."""
    protocol = metadata.protocol or ""
    group = Group(
        group_id,
        state=GroupState.STABLE if metadata.members else GroupState.EMPTY,
        state_timestamp_ms=None if metadata.current_state_timestamp_ms < 0 else metadata.current_state_timestamp_ms,
        generation_id=metadata.generation_id,
        protocol_type=metadata.protocol_type or None,
        protocol=metadata.protocol,
        held=held,
    )
    for stored in metadata.members:
        group.add(
            Member(
                stored.member_id,
                stored.group_instance_id,
                stored.client_id,
                stored.client_host,
                stored.rebalance_timeout_ms,
                stored.session_timeout_ms,
                ((protocol, stored.subscription),),
                stored.assignment,
            )
        )
    group.leader = metadata.leader
    return group
