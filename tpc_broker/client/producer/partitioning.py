"""Which partition a record goes to: the given one, a choice of a function or by key as in Java, or where one sticks."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.errors import UnknownTopicError
from tpc_broker.client.requests import NO_TOPIC_ID
from tpc_broker.native_bytes import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.client.producer.lane import Lane
    from tpc_broker.client.producer.settings import Partitioner

STICKY_BYTES: Final = 32 * 1024
"""Records without a key go to one partition until it has had so many bytes (KIP-794)."""


def key_partition(key: bytes, partitions_count: int) -> int:
    """Kafka's default choice: murmur2, also for an empty key."""
    return int(lib.tpc_key_partition(key, len(key), partitions_count))


def key_partitions(keys: Sequence[bytes], partitions_count: int) -> Any:
    """`key_partition` of many."""
    chosen = array("i", bytes(4 * len(keys)))
    lengths = array("i", map(len, keys))
    lib.tpc_keys_partitions(
        b"".join(keys), ffi.from_buffer("int32_t[]", lengths), len(keys), partitions_count,
        ffi.from_buffer("int32_t[]", chosen),
    )  # fmt: skip
    return chosen


class TopicLanes:
    """A topic's lanes by partition. ``choose`` gives a number below another one, by chance."""

    def __init__(
        self, topic: str, lanes: Sequence[Lane], partitioner: Partitioner | None, choose: Callable[[int], int]
    ) -> None:
        self.topic = topic
        self.topic_id = NO_TOPIC_ID
        self.lanes = list(lanes)
        self._partitioner = partitioner
        self._choose = choose
        self.sticky = self._less_loaded()
        self._sticky_bytes = 0

    @property
    def has_own_partitioner(self) -> bool:
        return self._partitioner is not None

    def cut_off(self, count: int, topic_id: bytes) -> list[Lane]:
        """The lanes of partitions that a topic of this id, which was created again, has no more. By its count alone
        nothing is cut off: a broker may not have heard yet of partitions that were added.
        """
        before, self.topic_id = self.topic_id, topic_id
        if before == topic_id or NO_TOPIC_ID in {before, topic_id} or not 0 < count < len(self.lanes):
            return []
        gone = self.lanes[count:]
        del self.lanes[count:]
        if self.sticky in gone:
            self.move_on(0)
        return gone

    def given(self, partition: int) -> Lane:
        """`UnknownTopicError` when there is no such partition."""
        if not 0 <= partition < len(self.lanes):
            raise UnknownTopicError(f"{self.topic} has no partition {partition}; it has {len(self.lanes)}")
        return self.lanes[partition]

    def of(self, key: bytes | None, size: int) -> Lane:
        """For a record of that size whose partition is not given."""
        if self._partitioner is not None:
            chosen = self._partitioner(self.topic, key, len(self.lanes))
            if chosen is not None:
                return self.given(chosen)
        if key is not None:
            return self.lanes[lib.tpc_key_partition(key, len(key), len(self.lanes))]
        self._sticky_bytes += size
        if self._sticky_bytes > STICKY_BYTES:
            self.move_on(size)
        return self.sticky

    def move_on(self, size: int) -> Lane:
        """Stick to another partition: of two by chance the one with less under way, so that slow ones get less."""
        self._sticky_bytes = size
        self.sticky = self._less_loaded()
        return self.sticky

    def _less_loaded(self) -> Lane:
        count = len(self.lanes)
        first, second = self.lanes[self._choose(count)], self.lanes[self._choose(count)]
        return first if first.bytes_held <= second.bytes_held else second
