"""Groups as their coordinators tell them: who is in them, and what each member has. Both kinds, classic and consumer
(KIP-848).
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.coordinators import CoordinatorKind, find_coordinators
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.exchange import Exchange
from tpc_broker.client.requests import in_any_version
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.client.cluster import Cluster

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
_STATES_VERSION: Final = 4
_KINDS_VERSION: Final = 5
"""Of ListGroups: from which on the broker chooses by state, and by kind."""
_VERSION: Final = Struct(">h")

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group: str
    kind: str
    state: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    """`epoch` and `target` are of consumer groups alone: where the member is, and what it is to have. `is_classic`: a
    member of a consumer group that speaks the classic protocol.
    """

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: tuple[Place, ...]
    epoch: int | None = None
    target: tuple[Place, ...] | None = None
    is_classic: bool = False


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    """A group that is not there is "Dead". Epochs are of consumer groups alone."""

    group: str
    kind: str
    state: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]
    group_epoch: int | None = None
    assignment_epoch: int | None = None


def to_list(states: Sequence[str] = (), kinds: Sequence[str] = ()) -> Exchange[list[ListedGroup]]:
    """Those that the broker coordinates. Empty conditions are none."""
    def make(version: int) -> Any:
        return messages.ListGroupsRequest(
            states_filter=states if version >= _STATES_VERSION else (),
            types_filter=kinds if version >= _KINDS_VERSION else (),
        )

    def read(answer: messages.ListGroupsResponse) -> list[ListedGroup]:
        if answer.error_code:
            raise RefusedError(answer.error_code, "the list of groups")
        found = [ListedGroup(one.group_id, one.group_type.lower() or CLASSIC, one.group_state) for one in answer.groups]
        # An old broker does not choose, and tells no states: what it does not tell is not left out.
        wanted = {state.lower() for state in states}, {kind.lower() for kind in kinds}
        return [
            one
            for one in found
            if (not states or not one.state or one.state.lower() in wanted[0]) and (not kinds or one.kind in wanted[1])
        ]

    return Exchange(ApiKey.LIST_GROUPS, make, read)


def list_groups(cluster: Cluster) -> list[ListedGroup]:
    """Of all brokers, by name."""
    return cluster.answered(lambda: _list_once(cluster))


def _list_once(cluster: Cluster) -> list[ListedGroup]:
    found: dict[str, ListedGroup] = {}
    for broker_id in cluster.broker_ids():
        connection = cluster.connection_to_broker(broker_id)
        if connection is None:
            continue
        found |= {one.group: one for one in to_list().over(connection)}
    return [found[name] for name in sorted(found)]


def describe_group(cluster: Cluster, group: str) -> DescribedGroup:
    """As its coordinator tells it."""
    return cluster.answered(lambda: _describe_once(cluster, group))


def _describe_once(cluster: Cluster, group: str) -> DescribedGroup:
    place = find_coordinators(cluster, CoordinatorKind.GROUP, [group])[group]
    connection = cluster.connection_to_broker(place.broker_id)
    if connection is None:
        text = f"group {group}: broker {place.broker_id} is not in the cluster"
        raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
    name = f"{place.broker_id} ({place.host}:{place.port})"
    if connection.has(ApiKey.CONSUMER_GROUP_DESCRIBE):
        found = to_describe_consumer(group, name).over(connection)
        if found is not None:
            return found
    return to_describe_classic(group, name).over(connection)


def to_describe_consumer(group: str, coordinator: str) -> Exchange[DescribedGroup | None]:
    """None: it is no consumer group."""
    request = messages.ConsumerGroupDescribeRequest(group_ids=[group])

    def read(answer: messages.ConsumerGroupDescribeResponse) -> DescribedGroup | None:
        return _consumer_group(answer, group, coordinator)

    return Exchange(ApiKey.CONSUMER_GROUP_DESCRIBE, in_any_version(request), read)


def _consumer_group(
    answer: messages.ConsumerGroupDescribeResponse, group: str, coordinator: str
) -> DescribedGroup | None:
    told = answer.groups[0]
    if told.error_code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION}:
        return None
    if told.error_code:
        raise RefusedError(told.error_code, f"group {group}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            member.instance_id,
            _places((topic.topic_name, topic.partitions) for topic in member.assignment.topic_partitions),
            member.member_epoch,
            _places((topic.topic_name, topic.partitions) for topic in member.target_assignment.topic_partitions),
            member.member_type == 0,
        )
        for member in told.members
    )
    return DescribedGroup(
        group, CONSUMER, told.group_state, told.assignor_name, coordinator, members, told.group_epoch,
        told.assignment_epoch,
    )  # fmt: skip


def to_describe_classic(group: str, coordinator: str) -> Exchange[DescribedGroup]:
    request = messages.DescribeGroupsRequest(groups=[group])

    def read(answer: messages.DescribeGroupsResponse) -> DescribedGroup:
        return _classic_group(answer, group, coordinator)

    return Exchange(ApiKey.DESCRIBE_GROUPS, in_any_version(request), read)


def _classic_group(answer: messages.DescribeGroupsResponse, group: str, coordinator: str) -> DescribedGroup:
    told = answer.groups[0]
    if told.error_code and told.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
        raise RefusedError(told.error_code, f"group {group}")
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            member.group_instance_id,
            _assigned(bytes(member.member_assignment)) if told.protocol_type == CONSUMER else (),
        )
        for member in told.members
    )
    return DescribedGroup(group, CLASSIC, told.group_state, told.protocol_data, coordinator, members)


def _assigned(data: bytes) -> tuple[Place, ...]:
    """What a client's assignor gave a member; nothing where that is not the format of consumers."""
    try:
        read: Any = codec("ConsumerProtocolAssignment", 0).decode_prefix(data, _VERSION.size)[0]
    except DecodeError:
        return ()
    return _places((topic.topic, topic.partitions) for topic in read.assigned_partitions)


def _places(topics: Iterable[tuple[str, Iterable[int]]]) -> tuple[Place, ...]:
    return tuple(sorted((name, partition) for name, partitions in topics for partition in partitions))
