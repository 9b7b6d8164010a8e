"""What clients of the classic protocol say to each other inside JoinGroup and SyncGroup, in the consumers' encoding.

For the coordinator it is bytes, until such clients are in a group that it divides itself. Both structures begin with
their version; of one that is not known here, what the newest known one has is read.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.coordinator.consumer.validation import NAMES_MAX, OWNED_PARTITIONS_MAX
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.records import decoded, encoded, leading_number
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.coordinator.consumer.messages import Topics
    from tpc_broker.model import TopicId

NEWEST_VERSION: Final = 3
OWNED_VERSION: Final = 1
"""From which on a subscription says what its client still has."""
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_VERSION_BYTES: Final = _INT16.size


class ClientSubscription(NamedTuple):
    """What a client consumes. `topic_names` are sorted; `owned`, by topic name, is what it still has."""

    topic_names: tuple[str, ...]
    owned: Mapping[str, frozenset[int]]
    rack_id: str | None


class ClientAssignment(NamedTuple):
    """What a client was given by the leader, by topic name. `user_data` is between the two."""

    partitions: Mapping[str, frozenset[int]]
    user_data: bytes


def read_subscription(data: bytes) -> ClientSubscription:
    """A subscription; RecordDamagedError when it is none, or has more names than a client needs."""
    _check_counts(data, is_assignment=False)
    read = decoded("ConsumerProtocolSubscription", version_of(data), data)
    names = tuple(sorted(set(read.topics)))
    return ClientSubscription(names, _by_topic(read.owned_partitions), read.rack_id or None)


def read_assignment(data: bytes) -> ClientAssignment:
    """An assignment, where nothing at all is an empty one; RecordDamagedError when it is none."""
    if not data:
        return ClientAssignment({}, b"")
    _check_counts(data, is_assignment=True)
    read = decoded("ConsumerProtocolAssignment", version_of(data), data)
    return ClientAssignment(_by_topic(read.assigned_partitions), bytes(read.user_data or b""))


def written_assignment(partitions: Partitions, topics: Topics, version: int) -> bytes:
    """An assignment for a client that speaks this version. Topics that are gone are left out."""
    kind = messages.ConsumerProtocolAssignment
    known = ((topics.of_id(topic_id), indexes) for topic_id, indexes in partitions.items())
    named = sorted((topic.name, sorted(indexes)) for topic, indexes in known if topic is not None)
    assigned = [kind.TopicPartition(topic=name, partitions=indexes) for name, indexes in named]
    return encoded(version, "ConsumerProtocolAssignment", version, kind(assigned_partitions=assigned))


def version_of(data: bytes) -> int:
    """In which a client is to be answered; RecordDamagedError where there is none."""
    version = leading_number(data)
    if version < 0:
        raise RecordDamagedError(f"clients know no version {version}")
    return min(version, NEWEST_VERSION)


def by_id(partitions: Mapping[str, frozenset[int]], topics: Topics) -> dict[TopicId, frozenset[int]]:
    """Of the partitions that there are: clients may say anything."""
    found: dict[TopicId, frozenset[int]] = {}
    for name, indexes in partitions.items():
        topic = topics.named(name)
        if topic is None:
            continue
        there = frozenset(index for index in indexes if 0 <= index < topic.partitions_count)
        if there:
            found[topic.topic_id] = there
    return found


# Rule: How many topics and partitions a client names is counted before they are decoded: they have much fewer bytes
# than it takes to know them. Held by tests/coordinator/consumer/test_made_up.py.
def _check_counts(data: bytes, *, is_assignment: bool) -> None:
    """RecordDamagedError where there are more than a client can have; what is cut off is left to who decodes it."""
    try:
        position = _VERSION_BYTES
        if not is_assignment:
            [topics_count] = _INT32.unpack_from(data, position)
            if topics_count > NAMES_MAX:
                raise RecordDamagedError("too many topics")
            position += _INT32.size
            for _ in range(topics_count):
                position += _INT16.size + max(_INT16.unpack_from(data, position)[0], 0)
            position += _INT32.size + max(_INT32.unpack_from(data, position)[0], 0)  # data of the user
            if version_of(data) < OWNED_VERSION:
                return
        [topics_count] = _INT32.unpack_from(data, position)
        position += _INT32.size
        count = topics_count
        for _ in range(topics_count):
            if count > OWNED_PARTITIONS_MAX:
                raise RecordDamagedError("too many partitions")
            position += _INT16.size + max(_INT16.unpack_from(data, position)[0], 0)
            partitions_count = max(_INT32.unpack_from(data, position)[0], 0)
            position += _INT32.size * (1 + partitions_count)
            count += partitions_count
        if count > OWNED_PARTITIONS_MAX:
            raise RecordDamagedError("too many partitions")
    except struct.error:
        return


def _by_topic(topics: Iterable[messages.ConsumerProtocolAssignment.TopicPartition]) -> dict[str, frozenset[int]]:
    """A topic may be named more than once."""
    found: dict[str, set[int]] = {}
    for each in topics:
        found.setdefault(each.topic, set()).update(each.partitions)
    return {name: frozenset(partitions) for name, partitions in found.items()}
