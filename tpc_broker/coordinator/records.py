"""Keys and values of `__consumer_offsets`, byte for byte as Kafka 4.3 writes them.

A key begins with its type (int16): 0 and 1 are committed offsets, 2 is a classic group's metadata; those of consumer
groups are in `consumer.records`, and others are of coordinators that are not here (share groups, streams): they are
kept as they are. A null value removes. Values begin with their version: offsets are written as version 4 (1 when the
commit carries an expiry time of its own) and read from 0 to 4, groups are written as 3 and read from 0 to 4. What
follows those leading numbers is encoded and decoded by what is made from Kafka's schema.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import Record
from tpc_broker.kafka import messages
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.model import NO_LEADER_EPOCH, NO_TOPIC_ID, GenerationId, LeaderEpoch, Offset, TopicId

if TYPE_CHECKING:
    from tpc_broker.kafka.message import Message

OFFSET_KEY_TYPES: Final = (0, 1)
GROUP_KEY_TYPE: Final = 2

_LEADING: Final = Struct(">h")
OFFSET_KEY_PREFIXES: Final = tuple(map(_LEADING.pack, OFFSET_KEY_TYPES))
_OFFSET_KEY_TYPE: Final = 1
_OFFSET_VALUE_VERSION: Final = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_VALUE_VERSION: Final = 3
_NEWEST_READ: Final = 4
_PLAIN_OFFSET: Final = Struct(">hqiBqB")
"""A value of an offset without metadata, up to tagged fields: version, offset, leader epoch, metadata, time, tags."""
_EMPTY: Final = 1
"""How the length of an empty string is written."""
_TOPIC_ID_TAG: Final = b"\0\x10"
_TOPIC_ID_BEGIN: Final = _PLAIN_OFFSET.size + len(_TOPIC_ID_TAG)
_TOPIC_ID_END: Final = _TOPIC_ID_BEGIN + 16
_NO_TOPIC_ID: Final = NO_TOPIC_ID.bytes


class OffsetKey(NamedTuple):
    """Names a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """Names a group's metadata."""

    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group has committed for a partition; times in milliseconds, `expire_timestamp_ms` None for the usual."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: int = 0
    expire_timestamp_ms: int | None = None
    topic_id: TopicId = NO_TOPIC_ID


StoredOffset = tuple[int, int, str, int, "int | None", bytes]
"""The same fields as they are kept, the id of the topic as it is stored. Python's collector leaves out tuples of such
values, and of nothing else that is made of several: 100,000 of others are 70 ms of a full collection.
"""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as it is stored: what it asked for and what it was assigned."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group as it is stored, at the end of a rebalance."""

    protocol_type: str
    generation_id: GenerationId
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


def offset_record(key: OffsetKey, committed: CommittedOffset | None) -> Record:
    """The record that commits an offset, or with None forgets it."""
    named = messages.OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
    key_bytes = encoded(_OFFSET_KEY_TYPE, "OffsetCommitKey", 0, named)
    if committed is None:
        return Record(key_bytes, None)
    value = messages.OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        topic_id=committed.topic_id.bytes,
    )
    version = _OFFSET_VALUE_VERSION
    if committed.expire_timestamp_ms is not None:
        value.expire_timestamp, version = committed.expire_timestamp_ms, _OFFSET_VALUE_VERSION_WITH_EXPIRY
    return Record(key_bytes, encoded(version, "OffsetCommitValue", version, value))


def group_record(group_id: str, metadata: GroupMetadata | None) -> Record:
    """The record that stores a group, or with None removes it."""
    key_bytes = encoded(GROUP_KEY_TYPE, "GroupMetadataKey", 0, messages.GroupMetadataKey(group=group_id))
    if metadata is None:
        return Record(key_bytes, None)
    members = [
        messages.GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in metadata.members
    ]
    value = messages.GroupMetadataValue(
        protocol_type=metadata.protocol_type,
        generation=metadata.generation_id,
        protocol=metadata.protocol,
        leader=metadata.leader,
        current_state_timestamp=metadata.current_state_timestamp_ms,
        members=members,
    )
    return Record(key_bytes, encoded(_GROUP_VALUE_VERSION, "GroupMetadataValue", _GROUP_VALUE_VERSION, value))


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    """What a key names; None for a type that other coordinators own."""
    key_type = leading_number(key)
    if key_type in OFFSET_KEY_TYPES:
        offset = decoded("OffsetCommitKey", 0, key)
        return OffsetKey(offset.group, offset.topic, offset.partition)
    return GroupKey(decoded("GroupMetadataKey", 0, key).group) if key_type == GROUP_KEY_TYPE else None


def is_of_later_release(value: bytes) -> bool:
    """Whether a value of a known key type has a version that came after those that are read here."""
    return leading_number(value) > _NEWEST_READ


def read_offset(value: bytes) -> CommittedOffset:
    """A committed offset of any version; RecordDamagedError otherwise."""
    return offset_of(read_stored_offset(value))


def offset_of(stored: StoredOffset) -> CommittedOffset:
    """An offset that is kept."""
    offset, leader_epoch, metadata, commit_timestamp_ms, expire_timestamp_ms, topic_id = stored
    return CommittedOffset(
        Offset(offset), LeaderEpoch(leader_epoch), metadata, commit_timestamp_ms, expire_timestamp_ms,
        topic_id_of(topic_id),
    )  # fmt: skip


def read_stored_offset(value: bytes) -> StoredOffset:
    """As `read_offset`, in the form that is kept. What is written without metadata is at fixed places."""
    if len(value) >= _PLAIN_OFFSET.size:
        version, offset, epoch, metadata_bytes, timestamp_ms, tags = _PLAIN_OFFSET.unpack_from(value)
        if version == _OFFSET_VALUE_VERSION and metadata_bytes == _EMPTY:
            if tags == 0:
                return offset, epoch, "", timestamp_ms, None, _NO_TOPIC_ID
            if tags == 1 and len(value) >= _TOPIC_ID_END and value.startswith(_TOPIC_ID_TAG, _PLAIN_OFFSET.size):
                return offset, epoch, "", timestamp_ms, None, value[_TOPIC_ID_BEGIN:_TOPIC_ID_END]
    read = decoded("OffsetCommitValue", _version_of(value), value)
    return (
        read.offset, read.leader_epoch, read.metadata, read.commit_timestamp,
        None if read.expire_timestamp < 0 else read.expire_timestamp, bytes(read.topic_id),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def topic_id_of(data: bytes) -> TopicId:
    """A topic's id, as it is stored."""
    return NO_TOPIC_ID if data == _NO_TOPIC_ID else TopicId(uuid.UUID(bytes=data))


def read_group(value: bytes) -> GroupMetadata:
    """A group of any version; RecordDamagedError otherwise."""
    read = decoded("GroupMetadataValue", _version_of(value), value)
    members = tuple(
        MemberMetadata(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host,
            member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
            member.session_timeout,
            bytes(member.subscription),
            bytes(member.assignment),
        )
        for member in read.members
    )
    generation_id = GenerationId(read.generation)
    return GroupMetadata(
        read.protocol_type, generation_id, read.protocol, read.leader, read.current_state_timestamp, members
    )


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Topics named in a consumer's subscription (the embedded protocol of clients); None when it cannot be read. All
    versions begin with what the first one has.
    """
    try:
        return frozenset(decoded("ConsumerProtocolSubscription", 0, subscription).topics)
    except RecordDamagedError:
        return None


def encoded(leading: int, name: str, version: int, message: Message) -> bytes:
    """A key or a value: its leading number, and what is made from the schema of that name."""
    return b"".join([_LEADING.pack(leading), *codec(name, version).encode_parts(message)])


def decoded(name: str, version: int, data: bytes) -> Any:
    """What follows the leading number; more may come behind it. RecordDamagedError when it cannot be read."""
    try:
        return codec(name, version).decode_prefix(data, _LEADING.size)[0]
    except DecodeError as error:
        raise RecordDamagedError(str(error)) from error


def _version_of(value: bytes) -> int:
    version = leading_number(value)
    if not 0 <= version <= _NEWEST_READ:
        raise RecordDamagedError(f"value of unknown version {version}")
    return version


def leading_number(data: bytes) -> int:
    """The type of a key, the version of a value; RecordDamagedError where there is none."""
    if len(data) < _LEADING.size:
        raise RecordDamagedError(f"{len(data)} bytes are no key or value")
    number: int = _LEADING.unpack_from(data)[0]
    return number
