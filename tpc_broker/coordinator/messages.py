"""Requests and responses of the group coordinator, as plain data and free of protocol versions.

Differences between versions become fields (`requires_member_id`, `supports_skipping_assignment`) or are the caller's to
fold in: JoinGroup 0 has no rebalance time-out (-1 here); LeaveGroup below 3 has one member, whose error is the
response's; DescribeGroups below 6 shows an unknown group as Dead without an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import NO_LEADER_EPOCH, NO_TOPIC_ID, GenerationId, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from tpc_broker.coordinator.effects import Producer

NO_GENERATION = GenerationId(-1)
NO_OFFSET = Offset(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup. `protocols` are (name, metadata) in order of preference."""

    group_id: str
    member_id: str = ""
    group_instance_id: str | None = None
    protocol_type: str = "consumer"
    protocols: tuple[tuple[str, bytes], ...] = ()
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Version 4 and up: a new member is first told its id and joins with it."""
    supports_skipping_assignment: bool = True
    """Version 9 and up."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """Answer to JoinGroup; `members` only for the leader."""

    error_code: ErrorCode = ErrorCode.NONE
    generation_id: GenerationId = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    member_id: str = ""
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup. `assignments` are (member id, assignment), from the leader only."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """Answer to SyncGroup."""

    error_code: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """Heartbeat; answered with an error code."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    """Who leaves: by member id, or a static member by its instance id alone."""

    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeftMember:
    """Result for one member of LeaveGroup."""

    member_id: str
    group_instance_id: str | None
    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveResponse:
    """Answer to LeaveGroup."""

    error_code: ErrorCode
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetToCommit:
    """One partition of OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """OffsetCommit; `retention_time_ms` of versions 2 to 4, -1 for the broker's."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    retention_time_ms: int = -1
    knows_member_epochs: bool = True
    """Version 9 and up: `generation_id` may be a member's epoch in a consumer group. Older clients are told
    UNSUPPORTED_VERSION there, and ILLEGAL_GENERATION for an unknown group.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommitRequest:
    """TxnOffsetCommit, of a transaction that is known to be open. Who commits may be a member, or say nothing of it."""

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    producer: Producer
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    knows_member_epochs: bool = True
    """Version 6 and up: a stale epoch of a consumer group's member is told as such, before as ILLEGAL_GENERATION."""


@dataclass(frozen=True, slots=True)
class MarkerResponse:
    """A marker is in the log, or why not."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """Result for one partition of OffsetCommit, TxnOffsetCommit or OffsetDelete."""

    topic: str
    partition: int
    error_code: ErrorCode
    topic_id: TopicId = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class OffsetCommitResponse:
    """Answer to OffsetCommit and TxnOffsetCommit: errors stand at the partitions."""

    partitions: tuple[PartitionResult, ...]


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition of OffsetFetch; offset -1 where nothing is committed."""

    topic: str
    partition: int
    offset: Offset = NO_OFFSET
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class OffsetFetchResponse:
    """Answer to OffsetFetch for one group."""

    group_id: str
    offsets: tuple[FetchedOffset, ...]
    error_code: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class OffsetDeleteResponse:
    """Answer to OffsetDelete."""

    error_code: ErrorCode
    partitions: tuple[PartitionResult, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenResponse:
    """All that had been decided when it was asked is durable, or will never be."""

    error_code: ErrorCode


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """One group of ListGroups."""

    group_id: str
    protocol_type: str
    group_state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """One member of DescribeGroups."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """One group of DescribeGroups; an unknown one is Dead with GROUP_ID_NOT_FOUND."""

    group_id: str
    group_state: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[DescribedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteGroupsResponse:
    """Answer to DeleteGroups: group id and error code, in the order asked for."""

    results: tuple[tuple[str, ErrorCode], ...]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Counts of a coordinator at one moment."""

    groups_by_state: tuple[tuple[str, int], ...]
    consumer_groups_by_state: tuple[tuple[str, int], ...]
    """The same of those of KIP-848, which are not among the others."""
    members_count: int
    offsets_count: int
    writes_pending: int
    next_deadline_ms: int | None
