"""The checkpoint file of a core: per partition, what is certainly in its segment files.

Everything that segment files cannot tell (rule of the journal: it may be trimmed only when this is written): the
durable position in the active segment, both ends of the log, leader epochs, term and vote, producers. A checkpoint is
written to a temporary name, synced and renamed, so there is always a whole one; its generation is named by the
journal's superblock.

Layout, little-endian: magic "TPCC", version u16, reserved u16, generation u64, partitions u32, the partitions, CRC-32C
u32 over everything before it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tpc_broker.log.batch import NO_TIMESTAMP
from tpc_broker.log.files import EpochStart
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.model import NO_LEADER_EPOCH, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

_HEADER: Final = struct.Struct("<4sHHQI")
_MAGIC: Final = b"TPCC"
_VERSION: Final = 1
_PARTITION: Final = struct.Struct("<16siqqqqiiqqqIIIHI")
_EPOCH: Final = struct.Struct("<iq")
_CRC: Final = struct.Struct("<I")

NO_VOTE: Final = -1
_ZERO: Final = Offset(0)


class CheckpointError(ValueError):
    """A checkpoint file that cannot be believed."""


@dataclass(frozen=True, slots=True)
class PartitionCheckpoint:
    """One partition as its segment files certainly hold it.

    Records [log_start_offset, log_end_offset) are in the segments: all of those below `segment_base`, and the first
    `segment_position` bytes of that one. The index fields say how much of the active segment's index files belongs to
    that, and what index upkeep has to go on with.
    """

    topic_id: TopicId
    partition: PartitionIndex
    topic: str
    segment_base: Offset = _ZERO
    segment_position: int = 0
    log_start_offset: Offset = _ZERO
    log_end_offset: Offset = _ZERO
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    voted_for: int = NO_VOTE
    largest_timestamp: int = NO_TIMESTAMP
    largest_timestamp_offset: int = -1
    first_timestamp: int = NO_TIMESTAMP
    index_bytes: int = 0
    time_index_bytes: int = 0
    transaction_index_bytes: int = 0
    epochs: tuple[EpochStart, ...] = ()
    producers: ProducerState = field(default_factory=ProducerState)

    def __post_init__(self) -> None:
        assert 0 <= self.log_start_offset <= self.log_end_offset, self
        assert 0 <= self.segment_base <= self.log_end_offset, self
        assert self.segment_position == 0 or self.segment_base < self.log_end_offset, self

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)

    def encode(self) -> bytes:
        name = self.topic.encode()
        fixed = _PARTITION.pack(
            self.topic_id.bytes,
            self.partition,
            self.segment_base,
            self.segment_position,
            self.log_start_offset,
            self.log_end_offset,
            self.leader_epoch,
            self.voted_for,
            self.largest_timestamp,
            self.largest_timestamp_offset,
            self.first_timestamp,
            self.index_bytes,
            self.time_index_bytes,
            self.transaction_index_bytes,
            len(name),
            len(self.epochs),
        )
        epochs = b"".join(_EPOCH.pack(*entry) for entry in self.epochs)
        return fixed + name + epochs + self.producers.encode_full()


def _decode_partition(data: bytes, place: int) -> tuple[PartitionCheckpoint, int]:
    topic_id, partition, *numbers, name_bytes, epochs_count = _PARTITION.unpack_from(data, place)
    place += _PARTITION.size
    name = data[place : place + name_bytes].decode()
    place += name_bytes
    epochs = []
    for _number in range(epochs_count):
        epoch, start_offset = _EPOCH.unpack_from(data, place)
        epochs.append(EpochStart(LeaderEpoch(epoch), Offset(start_offset)))
        place += _EPOCH.size
    producers, place = ProducerState.decode_full(data, place)
    entry = PartitionCheckpoint(  # type: ignore[call-arg]
        TopicId(UUID(bytes=topic_id)), PartitionIndex(partition), name, *numbers, tuple(epochs), producers
    )
    return entry, place


def encode_checkpoint(generation: int, partitions: Iterable[PartitionCheckpoint]) -> bytes:
    """The whole file."""
    parts = [partition.encode() for partition in partitions]
    data = b"".join([_HEADER.pack(_MAGIC, _VERSION, 0, generation, len(parts)), *parts])
    return data + _CRC.pack(crc32c(data))


def decode_checkpoint(data: bytes) -> tuple[int, dict[TopicPartition, PartitionCheckpoint]]:
    """Generation and partitions. Raises CheckpointError for anything but a whole, right file of this version."""
    if len(data) < _HEADER.size + _CRC.size or data[:4] != _MAGIC:
        raise CheckpointError("no checkpoint file")
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != crc32c(data[: -_CRC.size]):
        raise CheckpointError("the CRC does not fit")
    _magic, version, _reserved, generation, count = _HEADER.unpack_from(data)
    if version != _VERSION:
        raise CheckpointError(f"version {version}, known is {_VERSION}")
    place, partitions = _HEADER.size, {}
    for _number in range(count):
        entry, place = _decode_partition(data, place)
        partitions[entry.key] = entry
    if place != len(data) - _CRC.size:
        raise CheckpointError(f"{count} partitions end at byte {place} of {len(data)}")
    return generation, partitions
