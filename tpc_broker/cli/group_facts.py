"""What there is to know of a consumer group: its members, what they read, and how far behind they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports it without saying so
    AdminClient,
    OffsetSpec,
)

from tpc_broker.cli.admin import Place, list_offsets, only_result
from tpc_broker.cli.connection import REQUEST_TIMEOUT_S
from tpc_broker.client import groups

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

STATES = (
    "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Stable", "Assigning", "Reconciling",
)  # fmt: skip
"""Of groups of both kinds, as Kafka's tools show them."""
KINDS = (groups.CLASSIC, groups.CONSUMER)
WITHOUT_MEMBERS = ("Empty", "Dead")


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: list[str]
    epoch: int | None
    target: list[str] | None
    protocol: str
    """That it speaks: "classic" or "consumer"."""


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
    """Epochs and targets are of groups of type "consumer" alone (KIP-848)."""

    group: str
    type: str
    state: str
    assignor: str
    coordinator: str
    group_epoch: int | None
    assignment_epoch: int | None
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


def describe_group(client: Cluster, admin: AdminClient, group: str, bootstrap: str) -> Group | None:
    """None: there is no such group. `admin`: for its offsets."""
    told = groups.describe_group(client, group)
    committed = committed_offsets(admin, group, bootstrap)
    if told.state == "Dead" and not committed:
        return None
    owners: dict[Place, groups.GroupMember] = {}
    for member in told.members:
        owners |= dict.fromkeys(member.assigned, member)
    places = sorted(committed.keys() | owners.keys())
    ends = list_offsets(admin, places, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    return Group(
        group=group,
        type=told.kind,
        state=told.state,
        assignor=told.assignor,
        coordinator=told.coordinator,
        group_epoch=told.group_epoch,
        assignment_epoch=told.assignment_epoch,
        members=[
            Member(
                one.member_id,
                one.client_id,
                one.host,
                one.instance_id,
                _names(one.assigned),
                one.epoch,
                None if one.target is None else _names(one.target),
                groups.CLASSIC if one.is_classic else told.kind,
            )
            for one in told.members
        ],
        partitions=[_partition(place, committed.get(place), ends.get(place), owners.get(place)) for place in places],
    )


def _names(places: tuple[Place, ...]) -> list[str]:
    return [f"{topic}-{index}" for topic, index in places]


def _partition(
    place: Place, committed: int | None, end: int | None, owner: groups.GroupMember | None
) -> GroupPartition:
    lag = None if committed is None or end is None else max(0, end - committed)
    who = (owner.member_id, owner.client_id, owner.host) if owner is not None else (None, None, None)
    return GroupPartition(*place, committed, end, lag, *who)
