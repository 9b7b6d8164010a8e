"""Requests and responses of consumer groups, as plain data and free of protocol versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from tpc_broker.error_codes import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.model import TopicId

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
"""A static member leaves for a while: what it has is kept for whoever comes with its instance id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat. None: unchanged since the last one, where the protocol says so. `rebalance_timeout_ms` is
    -1 for unchanged. `member_id` is "" for a new member of version 0, whose id the broker makes.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    requires_member_id: bool = True
    """Version 1 and up: the client makes its member id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatResponse:
    """Answer to ConsumerGroupHeartbeat; `assignment` is None for unchanged."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumer:
    """A member in ConsumerGroupDescribe. `is_classic`: it speaks the classic protocol."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assignment: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConsumerGroup:
    """A group in ConsumerGroupDescribe."""

    group_id: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Of one group, times in milliseconds."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    assignment_interval_ms: int = 1_000
    size_max: int = 0x7FFFFFFF
    assignors: tuple[str, ...] = ("uniform", "range")
    """Those that may be asked for; the first is taken where no member asks for one."""
    regex_refresh_interval_ms: int = 600_000
    may_upgrade: bool = True
    """A classic group becomes one of these with the first member of the new protocol."""
    may_downgrade: bool = True
    """It becomes classic when the last member of the new protocol goes."""


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic as the metadata have it. `racks`: of each partition those of its replicas; () where none are known."""

    topic_id: TopicId
    name: str
    partitions_count: int
    racks: tuple[frozenset[str], ...] = ()


class Topics(Protocol):
    """The cluster's topics as they are now. What was read is true until the next call of the machine."""

    @property
    def version(self) -> int:
        """Rises with every change of the metadata."""
        ...

    def named(self, name: str) -> KnownTopic | None: ...

    def of_id(self, topic_id: TopicId) -> KnownTopic | None: ...

    def names(self) -> Iterable[str]: ...


class NoTopics:
    """For a coordinator without a cluster around it."""

    version = 0

    def named(self, _name: str) -> KnownTopic | None:
        return None

    def of_id(self, _topic_id: TopicId) -> KnownTopic | None:
        return None

    def names(self) -> Iterable[str]:
        return ()
