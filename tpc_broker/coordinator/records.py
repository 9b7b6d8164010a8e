"""Keys and values of `__consumer_offsets`, byte for byte as Kafka 4.3 writes them.

A key begins with its type (int16): 0 and 1 are committed offsets, 2 is a group's metadata; others are of coordinators
that are not here (KIP-848, share groups, streams) and are kept by nobody. A null value removes. Values begin with their
version: offsets are written as version 4 (1 when the commit carries an expiry time of its own) and read from 0 to 4,
groups are written as 3 and read from 0 to 4. Version 4 of both is flexible: compact lengths, tagged fields.
"""

from __future__ import annotations

import struct
import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.effects import Record
from tpc_broker.model import NO_LEADER_EPOCH, NO_TOPIC_ID, GenerationId, LeaderEpoch, Offset, TopicId

OFFSET_KEY_TYPES: Final = (0, 1)
GROUP_KEY_TYPE: Final = 2

_OFFSET_VALUE_VERSION: Final = 4
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_VALUE_VERSION: Final = 3
_FLEXIBLE_FROM: Final = 4
_NEWEST_READ: Final = 4


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
    group, topic = _string(key.group_id), _string(key.topic)
    key_bytes = struct.pack(">h", 1) + group + topic + struct.pack(">i", key.partition)
    if committed is None:
        return Record(key_bytes, None)
    if committed.expire_timestamp_ms is not None:
        head = struct.pack(">hq", _OFFSET_VALUE_VERSION_WITH_EXPIRY, committed.offset)
        times = struct.pack(">qq", committed.commit_timestamp_ms, committed.expire_timestamp_ms)
        return Record(key_bytes, head + _string(committed.metadata) + times)
    value = bytearray(struct.pack(">hqi", _OFFSET_VALUE_VERSION, committed.offset, committed.leader_epoch))
    metadata = committed.metadata.encode()
    value += _unsigned_varint(len(metadata) + 1) + metadata + struct.pack(">q", committed.commit_timestamp_ms)
    value += b"\0" if committed.topic_id == NO_TOPIC_ID else b"\x01\x00\x10" + committed.topic_id.bytes
    return Record(key_bytes, bytes(value))


def group_record(group_id: str, metadata: GroupMetadata | None) -> Record:
    """The record that stores a group, or with None removes it."""
    key_bytes = struct.pack(">h", GROUP_KEY_TYPE) + _string(group_id)
    if metadata is None:
        return Record(key_bytes, None)
    value = bytearray(struct.pack(">h", _GROUP_VALUE_VERSION))
    value += _string(metadata.protocol_type) + struct.pack(">i", metadata.generation_id)
    value += _nullable_string(metadata.protocol) + _nullable_string(metadata.leader)
    value += struct.pack(">qi", metadata.current_state_timestamp_ms, len(metadata.members))
    for member in metadata.members:
        value += _string(member.member_id) + _nullable_string(member.group_instance_id)
        value += _string(member.client_id) + _string(member.client_host)
        value += struct.pack(">ii", member.rebalance_timeout_ms, member.session_timeout_ms)
        value += _bytes(member.subscription) + _bytes(member.assignment)
    return Record(key_bytes, bytes(value))


def read_key(key: bytes) -> OffsetKey | GroupKey | None:
    """What a key names; None for a type that other coordinators own."""
    reader = _Reader(key)
    key_type = reader.int16()
    if key_type in OFFSET_KEY_TYPES:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    return GroupKey(reader.string()) if key_type == GROUP_KEY_TYPE else None


def is_of_later_release(value: bytes) -> bool:
    """Whether a value of a known key type has a version that came after those that are read here."""
    return _Reader(value).int16() > _NEWEST_READ


def read_offset(value: bytes) -> CommittedOffset:
    """A committed offset of any version; RecordDamagedError otherwise."""
    reader = _Reader(value)
    version = reader.version()
    offset = Offset(reader.int64())
    leader_epoch = LeaderEpoch(reader.int32()) if version >= 3 else NO_LEADER_EPOCH
    metadata = reader.string()
    commit_timestamp_ms = reader.int64()
    expire_timestamp_ms = reader.int64() if version == 1 else -1
    topic_id = NO_TOPIC_ID
    for tag, content in reader.tagged_fields().items():
        if tag == 0 and len(content) == 16:
            topic_id = TopicId(uuid.UUID(bytes=content))
    expiry = None if expire_timestamp_ms < 0 else expire_timestamp_ms
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp_ms, expiry, topic_id)


def read_group(value: bytes) -> GroupMetadata:
    """A group of any version; RecordDamagedError otherwise."""
    reader = _Reader(value)
    version = reader.version()
    protocol_type, generation_id = reader.string(), GenerationId(reader.int32())
    protocol, leader = reader.nullable_string(), reader.nullable_string()
    timestamp_ms = reader.int64() if version >= 2 else -1
    members = tuple(_read_member(reader, version) for _ in range(reader.count()))
    reader.tagged_fields()
    return GroupMetadata(protocol_type, generation_id, protocol, leader, timestamp_ms, members)


def _read_member(reader: _Reader, version: int) -> MemberMetadata:
    member_id = reader.string()
    instance = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else -1
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.data(), reader.data()
    reader.tagged_fields()
    if rebalance_timeout_ms < 0:
        rebalance_timeout_ms = session_timeout_ms
    return MemberMetadata(
        member_id, instance, client_id, client_host, rebalance_timeout_ms, session_timeout_ms, subscription, assignment
    )


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Topics named in a consumer's subscription (the embedded protocol of clients); None when it cannot be read."""
    reader = _Reader(subscription)
    try:
        reader.int16()
        return frozenset(reader.string() for _ in range(reader.count()))
    except RecordDamagedError:
        return None


class _Reader:
    """Reads one record. Every length is checked against what is left before anything is taken."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._flexible = False

    def version(self) -> int:
        """The leading version of a value; from then on lengths are read as that version has them."""
        version = self.int16()
        if not 0 <= version <= _NEWEST_READ:
            raise RecordDamagedError(f"value of unknown version {version}")
        self._flexible = version >= _FLEXIBLE_FROM
        return version

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def count(self) -> int:
        """Number of elements that follow; none is smaller than a byte."""
        count = self._unsigned_varint() - 1 if self._flexible else self.int32()
        if not 0 <= count <= len(self._data) - self._position:
            raise RecordDamagedError(f"{count} elements where {len(self._data) - self._position} bytes are left")
        return count

    def data(self) -> bytes:
        return self._take(self._unsigned_varint() - 1 if self._flexible else self.int32())

    def string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise RecordDamagedError("null where a string is needed")
        return text

    def nullable_string(self) -> str | None:
        length = self._unsigned_varint() - 1 if self._flexible else self.int16()
        if length == -1:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise RecordDamagedError(f"text is not UTF-8: {error}") from error

    def tagged_fields(self) -> dict[int, bytes]:
        """The tagged fields at the end of a structure, none where the version has none."""
        if not self._flexible:
            return {}
        tagged: dict[int, bytes] = {}
        for _ in range(self._unsigned_varint()):
            tag = self._unsigned_varint()
            tagged[tag] = self._take(self._unsigned_varint())
        return tagged

    def _unsigned_varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise RecordDamagedError("a variable-length number does not end")

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._data):
            raise RecordDamagedError(f"{length} bytes wanted, {len(self._data) - self._position} left")
        taken = self._data[self._position : end]
        self._position = end
        return taken


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _nullable_string(text: str | None) -> bytes:
    return b"\xff\xff" if text is None else _string(text)


def _bytes(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
