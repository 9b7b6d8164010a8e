"""What clients of the classic protocol say to each other inside JoinGroup and SyncGroup (the consumers' encoding).

For the coordinator it is bytes. Both structures begin with their version; of one that is newer than those known here,
what the newest known one has is read, as every client does.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception's name
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import messages
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

NEWEST_VERSION: Final = 3
GENERATION_VERSION: Final = 2
NO_GENERATION: Final = -1
_VERSION: Final = Struct(">h")
_GENERATION: Final = Struct(">i")


class Said(NamedTuple):
    """A member's subscription. ``owned`` is what it still has, since ``generation`` (-1: not known)."""

    topics: tuple[str, ...]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = NO_GENERATION
    rack: str = ""


def written_subscription(said: Said, *, is_sticky: bool) -> bytes:
    """In the newest version. ``is_sticky``: with the generation in the user's data too, where older clients look."""
    kind = messages.ConsumerProtocolSubscription
    owned = [kind.TopicPartition(topic=name, partitions=indexes) for name, indexes in by_topic(said.owned)]
    message = kind(
        topics=sorted(said.topics),
        user_data=_GENERATION.pack(said.generation) if is_sticky else None,
        owned_partitions=owned,
        generation_id=said.generation,
        rack_id=said.rack or None,
    )
    return _written("ConsumerProtocolSubscription", message)


def read_subscription(data: bytes) -> Said:
    """`DamagedDataError` when it is none."""
    version, read = _read("ConsumerProtocolSubscription", data)
    generation = read.generation_id
    if version < GENERATION_VERSION and read.user_data is not None and len(read.user_data) == _GENERATION.size:
        (generation,) = _GENERATION.unpack(bytes(read.user_data))
    return Said(tuple(read.topics), _places(read.owned_partitions), generation, read.rack_id or "")


def written_assignment(partitions: Collection[TopicPartition]) -> bytes:
    kind = messages.ConsumerProtocolAssignment
    assigned = [kind.TopicPartition(topic=name, partitions=indexes) for name, indexes in by_topic(partitions)]
    return _written("ConsumerProtocolAssignment", kind(assigned_partitions=assigned))


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Nothing at all is an empty one. `DamagedDataError` when it is none."""
    return _places(_read("ConsumerProtocolAssignment", data)[1].assigned_partitions) if data else frozenset()


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """In order."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return list(found.items())


def _written(name: str, message: Any) -> bytes:
    return b"".join([_VERSION.pack(NEWEST_VERSION), *codec(name, NEWEST_VERSION).encode_parts(message)])


def _read(name: str, data: bytes) -> tuple[int, Any]:
    try:
        version = min(_VERSION.unpack_from(data)[0], NEWEST_VERSION)
        if version < 0:
            raise DamagedDataError(f"version {version} of what a member of the group says")
        return version, codec(name, version).decode_prefix(data, _VERSION.size)[0]
    except (StructError, DecodeError) as error:
        raise DamagedDataError(f"what a member of the group says cannot be read: {error}") from error


def _places(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(row.topic, partition) for row in topics for partition in row.partitions)
