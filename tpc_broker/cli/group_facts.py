"""What there is to know of a consumer group: its members, what they read, and how far behind they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports it without saying so
    AdminClient,
    OffsetSpec,
)

from tpc_broker.cli.admin import Place, list_offsets, only_result
from tpc_broker.cli.connection import REQUEST_TIMEOUT_S, Exit, fail

WITHOUT_MEMBERS = ("Empty", "Dead")
_STATES = {
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.EMPTY: "Empty",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
}


def state_name(state: ConsumerGroupState) -> str:
    """As Kafka's tools show it."""
    return _STATES.get(state, state.name.capitalize())


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: list[str]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition that has a committed offset, or is assigned to a member, or both; None is what there is not."""

    topic: str
    partition: int
    committed_offset: int | None
    log_end_offset: int | None
    lag: int | None
    member_id: str | None
    client_id: str | None
    host: str | None


@dataclass(frozen=True, slots=True)
class Group:
    group: str
    state: str
    assignor: str
    coordinator: str
    members: list[Member]
    partitions: list[GroupPartition]

    @property
    def total_lag(self) -> int:
        return sum(one.lag or 0 for one in self.partitions)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "total_lag": self.total_lag}


def committed_offsets(admin: AdminClient, group: str, bootstrap: str) -> dict[Place, int]:
    """Empty for a group that is not there."""
    asked = [ConsumerGroupTopicPartitions(group)]
    answer = only_result(
        admin.list_consumer_group_offsets(asked, request_timeout=REQUEST_TIMEOUT_S), bootstrap, f"group {group}"
    )
    return {(one.topic, one.partition): one.offset for one in answer.topic_partitions or () if one.offset >= 0}


def describe_group(admin: AdminClient, group: str, bootstrap: str) -> Group:
    """Ends the command where there is no such group."""
    told = only_result(
        admin.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S), bootstrap, f"group {group}"
    )
    committed = committed_offsets(admin, group, bootstrap)
    if state_name(told.state) == "Dead" and not committed:
        fail(f"there is no group {group!r}; `tpc group list` shows those that are", Exit.NOT_FOUND)
    owners: dict[Place, Any] = {}
    for member in told.members:
        owners |= {(one.topic, one.partition): member for one in member.assignment.topic_partitions}
    places = sorted(committed.keys() | owners.keys())
    ends = list_offsets(admin, places, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    node = told.coordinator
    return Group(
        group=group,
        state=state_name(told.state),
        assignor=told.partition_assignor,
        coordinator=f"{node.id} ({node.host}:{node.port})" if node else "",
        members=[
            Member(one.member_id, one.client_id, one.host, one.group_instance_id, _names(one.assignment))
            for one in told.members
        ],
        partitions=[_partition(place, committed.get(place), ends.get(place), owners.get(place)) for place in places],
    )


def _names(assignment: Any) -> list[str]:
    return [f"{topic}-{index}" for topic, index in sorted((p.topic, p.partition) for p in assignment.topic_partitions)]


def _partition(place: Place, committed: int | None, end: int | None, owner: Any) -> GroupPartition:
    lag = None if committed is None or end is None else max(0, end - committed)
    who = (owner.member_id, owner.client_id, owner.host) if owner is not None else (None, None, None)
    return GroupPartition(*place, committed, end, lag, *who)
