"""Records of consumer groups (KIP-848) in `__consumer_offsets`, byte for byte as Kafka 4.3 writes them.

A group is stored as many small records, so that a member that comes writes what it changes and no more:

* 3, the group's epoch; 16, a regular expression that members subscribe with, and the topics it matches;
* 5, a member: what it asked for;
* 6, the epoch of the target assignment; 7, a member's part of it;
* 8, a member's current assignment: what it has, what it has yet to give back, and in which epoch it is.

4 (metadata of partitions) was written by Kafka before 4.1; it is not read. Values are of version 0 and grow by tagged
fields.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import Record
from tpc_broker.coordinator.records import decoded, encoded, leading_number
from tpc_broker.kafka import messages
from tpc_broker.model import TopicId

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.kafka.message import Message

GROUP_EPOCH_KEY: Final = 3
PARTITION_METADATA_KEY: Final = 4
MEMBER_KEY: Final = 5
TARGET_EPOCH_KEY: Final = 6
TARGET_KEY: Final = 7
CURRENT_KEY: Final = 8
REGEX_KEY: Final = 16
VALUE_VERSION: Final = 0

EpochPartitions = dict[TopicId, dict[int, int]]
"""Partitions of topics, each with the member epoch in which it was given."""


class ConsumerKey(NamedTuple):
    """What a record is of: its type, the group, and the member or the expression where there is one."""

    key_type: int
    group_id: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """3. `metadata_hash`: of the topics that members subscribe to, as they were when the epoch was last raised."""

    epoch: int
    metadata_hash: int = 0


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """Of a member that speaks the classic protocol: its session, and what it supports in order of preference."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    """5: what a member asked for. `topic_names` are sorted; `topic_regex` is None or "" where there is none."""

    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic: ClassicPart | None = None


@dataclass(frozen=True, slots=True)
class TargetEpoch:
    """6: the group epoch that the target assignment was made for, and when."""

    epoch: int
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """8. `state`: a number of `group.MemberState`."""

    epoch: int
    previous_epoch: int
    state: int
    assigned: EpochPartitions
    pending_revocation: EpochPartitions


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """16: the topics that an expression matches, sorted, by the metadata of that version and at that time."""

    topics: tuple[str, ...]
    version: int
    timestamp_ms: int


ConsumerValue = (
    GroupEpoch | Subscription | TargetEpoch | CurrentAssignment | ResolvedRegex | dict[TopicId, frozenset[int]]
)


def read_consumer_key(key: bytes) -> ConsumerKey | None:
    """What a key names; None for a type that is not of consumer groups."""
    key_type = leading_number(key)
    name = _KEYS.get(key_type)
    if name is None:
        return None
    read = decoded(name, 0, key)
    if key_type == REGEX_KEY:
        return ConsumerKey(key_type, read.group_id, read.regular_expression)
    is_of_member = key_type in {MEMBER_KEY, TARGET_KEY, CURRENT_KEY}
    return ConsumerKey(key_type, read.group_id, read.member_id if is_of_member else "")


def consumer_record(key: ConsumerKey, value: ConsumerValue | None) -> Record:
    """The record that stores this, or with None removes it."""
    key_bytes = encoded(key.key_type, _KEYS[key.key_type], 0, _KEY_MAKERS[key.key_type](key))
    if value is None:
        return Record(key_bytes, None)
    name = _KEYS[key.key_type].removesuffix("Key") + "Value"
    return Record(key_bytes, encoded(VALUE_VERSION, name, VALUE_VERSION, _message_of(value)))


def is_of_later_release(value: bytes) -> bool:
    """Whether a value has a version that came after the one that is read here."""
    return leading_number(value) > VALUE_VERSION


def read_consumer_value(key_type: int, value: bytes) -> ConsumerValue:
    """The value of a key of this type, which is not `PARTITION_METADATA_KEY`; RecordDamagedError otherwise."""
    if leading_number(value) != VALUE_VERSION:
        raise RecordDamagedError(f"value of version {leading_number(value)} for a key of type {key_type}")
    name = _KEYS[key_type].removesuffix("Key") + "Value"
    read: ConsumerValue = _READERS[key_type](decoded(name, VALUE_VERSION, value))
    return read


_KEYS: Final = {
    GROUP_EPOCH_KEY: "ConsumerGroupMetadataKey",
    PARTITION_METADATA_KEY: "ConsumerGroupPartitionMetadataKey",
    MEMBER_KEY: "ConsumerGroupMemberMetadataKey",
    TARGET_EPOCH_KEY: "ConsumerGroupTargetAssignmentMetadataKey",
    TARGET_KEY: "ConsumerGroupTargetAssignmentMemberKey",
    CURRENT_KEY: "ConsumerGroupCurrentMemberAssignmentKey",
    REGEX_KEY: "ConsumerGroupRegularExpressionKey",
}

_KEY_MAKERS: Final[dict[int, Any]] = {
    GROUP_EPOCH_KEY: lambda key: messages.ConsumerGroupMetadataKey(group_id=key.group_id),
    PARTITION_METADATA_KEY: lambda key: messages.ConsumerGroupPartitionMetadataKey(group_id=key.group_id),
    MEMBER_KEY: lambda key: messages.ConsumerGroupMemberMetadataKey(group_id=key.group_id, member_id=key.name),
    TARGET_EPOCH_KEY: lambda key: messages.ConsumerGroupTargetAssignmentMetadataKey(group_id=key.group_id),
    TARGET_KEY: lambda key: messages.ConsumerGroupTargetAssignmentMemberKey(group_id=key.group_id, member_id=key.name),
    CURRENT_KEY: lambda key: messages.ConsumerGroupCurrentMemberAssignmentKey(
        group_id=key.group_id, member_id=key.name
    ),
    REGEX_KEY: lambda key: messages.ConsumerGroupRegularExpressionKey(
        group_id=key.group_id, regular_expression=key.name
    ),
}


def _message_of(value: ConsumerValue) -> Message:
    if isinstance(value, GroupEpoch):
        return messages.ConsumerGroupMetadataValue(epoch=value.epoch, metadata_hash=value.metadata_hash)
    if isinstance(value, TargetEpoch):
        return messages.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=value.epoch, assignment_timestamp=value.timestamp_ms
        )
    if isinstance(value, Subscription):
        return _message_of_subscription(value)
    if isinstance(value, CurrentAssignment):
        return messages.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=value.epoch,
            previous_member_epoch=value.previous_epoch,
            state=value.state,
            assigned_partitions=_messages_of_partitions(value.assigned),
            partitions_pending_revocation=_messages_of_partitions(value.pending_revocation),
        )
    if isinstance(value, ResolvedRegex):
        return messages.ConsumerGroupRegularExpressionValue(
            topics=list(value.topics), version=value.version, timestamp=value.timestamp_ms
        )
    of_topic = messages.ConsumerGroupTargetAssignmentMemberValue.TopicPartition
    return messages.ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            of_topic(topic_id=topic_id.bytes, partitions=sorted(partitions))
            for topic_id, partitions in _by_id(value)
            if partitions
        ]
    )


def _message_of_subscription(value: Subscription) -> Message:
    kind = messages.ConsumerGroupMemberMetadataValue
    classic = None
    if value.classic is not None:
        protocol = kind.ClassicProtocol
        classic = kind.ClassicMemberMetadata(
            session_timeout_ms=value.classic.session_timeout_ms,
            supported_protocols=[protocol(name=name, metadata=metadata) for name, metadata in value.classic.protocols],
        )
    return kind(
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client_id=value.client_id,
        client_host=value.client_host,
        subscribed_topic_names=list(value.topic_names),
        subscribed_topic_regex=value.topic_regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.assignor,
        classic_member_metadata=classic,
    )


def _messages_of_partitions(held: EpochPartitions) -> list[Any]:
    of_topic = messages.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions
    answer = []
    for topic_id, partitions in _by_id(held):
        if partitions:
            indexes = sorted(partitions)
            epochs = [partitions[index] for index in indexes]
            answer.append(of_topic(topic_id=topic_id.bytes, partitions=indexes, assignment_epochs=epochs))
    return answer


def _by_id(partitions: Mapping[TopicId, Any]) -> list[tuple[TopicId, Any]]:
    return sorted(partitions.items(), key=lambda item: item[0].bytes)


def _read_subscription(read: Any) -> Subscription:
    stored = read.classic_member_metadata
    classic = None
    if stored is not None:
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in stored.supported_protocols)
        classic = ClassicPart(stored.session_timeout_ms, protocols)
    return Subscription(
        read.instance_id,
        read.rack_id,
        read.client_id,
        read.client_host,
        tuple(read.subscribed_topic_names),
        read.subscribed_topic_regex,
        read.rebalance_timeout_ms,
        read.server_assignor,
        classic,
    )


def _read_current(read: Any) -> CurrentAssignment:
    def partitions_of(topics: Iterable[Any]) -> EpochPartitions:
        held: EpochPartitions = {}
        for topic in topics:
            epochs = topic.assignment_epochs
            if epochs is None:  # written before there were epochs of partitions
                epochs = [read.member_epoch] * len(topic.partitions)
            if len(epochs) != len(topic.partitions):
                raise RecordDamagedError(f"{len(topic.partitions)} partitions with {len(epochs)} epochs")
            held[_topic_id(topic)] = dict(zip(topic.partitions, epochs, strict=True))
        return held

    return CurrentAssignment(
        read.member_epoch,
        read.previous_member_epoch,
        read.state,
        partitions_of(read.assigned_partitions),
        partitions_of(read.partitions_pending_revocation),
    )


def _read_target(read: Any) -> Partitions:
    return {_topic_id(topic): frozenset(topic.partitions) for topic in read.topic_partitions}


def _topic_id(topic: Any) -> TopicId:
    return TopicId(uuid.UUID(bytes=bytes(topic.topic_id)))


_READERS: Final[dict[int, Any]] = {
    GROUP_EPOCH_KEY: lambda read: GroupEpoch(read.epoch, read.metadata_hash),
    MEMBER_KEY: _read_subscription,
    TARGET_EPOCH_KEY: lambda read: TargetEpoch(read.assignment_epoch, read.assignment_timestamp),
    TARGET_KEY: _read_target,
    CURRENT_KEY: _read_current,
    REGEX_KEY: lambda read: ResolvedRegex(tuple(read.topics), read.version, read.timestamp),
}
