"""Kafka's hash of the topics that a group subscribes to: when it changes, so does what is to be divided.

As Kafka 4.1 and later compute it (XXH3 with 64 bits, seed 0), so that a group's stored hash means the same to both.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.coordinator.consumer.messages import KnownTopic

_INT: Final = Struct("<i")
_LONG: Final = Struct("<Q")
_VERSION: Final = b"\0"
_SIGN: Final = 1 << 63


def topic_hash(topic: KnownTopic) -> int:
    """Of its id, name, partitions, and the racks of their replicas; 64 bits without a sign."""
    id_bytes = topic.topic_id.bytes
    parts = [_VERSION, id_bytes[7::-1], id_bytes[:7:-1], *_text(topic.name), _INT.pack(topic.partitions_count)]
    for partition in range(topic.partitions_count):
        parts.append(_INT.pack(partition))
        for rack in sorted(topic.racks[partition]) if topic.racks else ():
            text = _text(rack)
            parts += [text[1], *text]
    return xxh3_64_intdigest(b"".join(parts))


def group_hash(hashes: Iterable[int]) -> int:
    """Of the topics that exist, by the order of their names; 64 bits with a sign, 0 for none."""
    joined = b"".join(map(_LONG.pack, hashes))
    if not joined:
        return 0
    unsigned = xxh3_64_intdigest(joined)
    return unsigned - 2 * _SIGN if unsigned & _SIGN else unsigned


def _text(text: str) -> tuple[bytes, bytes]:
    """Its UTF-16, and the count of its units."""
    units = text.encode("utf-16-le")
    return units, _INT.pack(len(units) // 2)
