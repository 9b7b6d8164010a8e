"""The checkpoint file of a core: per partition, what is certainly in its segment files.

Everything that segment files cannot tell (rule of the journal: it may be trimmed only when this is written): the
durable position in the active segment, both ends of the log, leader epochs, term and vote, producers. A checkpoint is
written to a temporary name, synced and renamed, so there is always a whole one; its generation is named by the
journal's superblock.

Layout, little-endian: magic "TPCC", version u16, reserved u16, generation u64, partitions u32, the partitions, CRC-32C
u32 over everything before it. Version 2: a partition is its length u32 and fields, each a tag u16, a length u32 and a
value. A tag that is not known refuses the file, unless its highest bit is set: then it may be passed over. Version 1
had the same values without tags, and is read (docs/formats.md).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from tpc_broker.log.batch import NO_TIMESTAMP
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.state import EndedTransaction, LogState, decode_ended, decode_state, encode_ended, encode_epochs
from tpc_broker.model import NO_LEADER_EPOCH, CoreId, LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from tpc_broker.log.files import EpochStart

_HEADER: Final = struct.Struct("<4sHHQI")
_MAGIC: Final = b"TPCC"
_VERSION_1: Final = 1
_VERSION: Final = 2
_FIELD: Final = struct.Struct("<HI")
_LENGTH: Final = struct.Struct("<I")
_COMMIT_OFFSET: Final = struct.Struct("<q")
TAG_MAY_SKIP: Final = 0x8000
_PARTITION: Final = struct.Struct("<16siqqqqiiqqqIIIHI")
_NOTE: Final = struct.Struct("<iI")
_RELEASE: Final = struct.Struct("<iq")
_MOVES: Final = struct.Struct("<I")
_PRODUCER_ID: Final = struct.Struct("<q")
_CRC: Final = struct.Struct("<I")
_HANDED: Final = struct.Struct("<QI")


class Tag(IntEnum):
    """Fields of a partition."""

    STATE = 1
    """What version 1 has in front of the name, the lengths of name and epochs among it."""
    TOPIC = 2
    EPOCHS = 3
    PRODUCERS = 4
    COMMIT_OFFSET = 5
    """Absent: `log_end_offset`."""
    NOTES = 6
    """Absent: none."""
    RELEASED = 7
    """Absent: the partition is this core's."""
    MOVES = 0x8008
    """Absent: 0."""
    FILLED = 9
    """Absent: the partition's files are in its own folder."""
    LOST = 0x800A
    """Absent: no producer's latest batches may have been lost; beside RELEASED only."""
    ENDED = 11
    """Absent: no transaction has ended above `commit_offset`."""
    HANDED = 12
    """In a journal only: the file that has the producers, of which `PRODUCERS` then says that there are none."""


NO_VOTE: Final = -1
VOTE_NOTE: Final = -1
"""The key of the note about the last term that the replica has got to; others belong to a term's beginning."""
_ZERO: Final = Offset(0)
_LOG_END: Final = Offset(-1)


_TAGS: Final = frozenset(map(int, Tag))
_NEEDED: Final = {Tag.STATE, Tag.TOPIC, Tag.EPOCHS, Tag.PRODUCERS}


class Release(NamedTuple):
    """A partition's core has let it go."""

    target: CoreId
    """The core that may adopt it."""
    move_id: int
    """Of the metadata's record that began it."""


class Handed(NamedTuple):
    """A file beside the journal that has what `ProducerState.encode_full` says of the producers."""

    name: str
    bytes_count: int
    crc: int


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
    commit_offset: Offset = _LOG_END
    """Records below it were committed: readers of the files go no further. -1: up to `log_end_offset`, as with one
    replica, where what is durable is committed.
    """
    notes: tuple[tuple[int, bytes], ...] = ()
    """What the replica of a replicated partition has to know of its terms, by term."""
    moves: int = 0
    """How often it was handed from one core to another: of two that name it, the one that counts more is later."""
    released: Release | None = None
    """It is not this core's any more, and perhaps no other's yet; the rest is what goes over."""
    filled: str = ""
    """In a journal only: the name of the folder among those being filled whose files take the place of what the
    partition's own folder holds (`storage.replicas.installation`).
    """
    ended: tuple[EndedTransaction, ...] = ()
    """Transactions whose markers are in the segments, and above `commit_offset`."""

    @property
    def committed_end_offset(self) -> Offset:
        """Where committed records end."""
        return self.log_end_offset if self.commit_offset < 0 else self.commit_offset

    def __post_init__(self) -> None:
        assert self.commit_offset == _LOG_END or 0 <= self.commit_offset <= self.log_end_offset, self
        assert 0 <= self.log_start_offset <= self.log_end_offset, self
        assert 0 <= self.segment_base <= self.log_end_offset, self
        assert self.segment_position == 0 or self.segment_base < self.log_end_offset, self

    @property
    def key(self) -> TopicPartition:
        return TopicPartition(self.topic_id, self.partition)

    def log_state(self) -> LogState:
        """To go on from."""
        return LogState(self.epochs, self.producers.copy(), self.ended)

    def encode(self, handed: Handed | None = None, producers: bytes | None = None) -> bytes:
        """`handed`: where the producers are, which then are not in it. `producers`: themselves, encoded before."""
        name = self.topic.encode()
        if producers is None:
            producers = (self.producers if handed is None else ProducerState()).encode_full()
        epochs = encode_epochs(self.epochs)
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
        values = [
            (Tag.STATE, fixed),
            (Tag.TOPIC, name),
            (Tag.EPOCHS, epochs),
            (Tag.PRODUCERS, producers),
        ]
        if self.commit_offset >= 0:
            values.append((Tag.COMMIT_OFFSET, _COMMIT_OFFSET.pack(self.commit_offset)))
        if self.notes:
            values.append((Tag.NOTES, b"".join(_NOTE.pack(term, len(note)) + note for term, note in self.notes)))
        if self.released is not None:
            values.append((Tag.RELEASED, _RELEASE.pack(*self.released)))
            if lost := self.producers.lost:  # of the others a start says it of all that it finds
                values.append((Tag.LOST, b"".join(map(_PRODUCER_ID.pack, lost))))
        if self.moves:
            values.append((Tag.MOVES, _MOVES.pack(self.moves)))
        if self.filled:
            values.append((Tag.FILLED, self.filled.encode()))
        if self.ended:
            values.append((Tag.ENDED, encode_ended(self.ended)))
        if handed is not None:
            values.append((Tag.HANDED, _HANDED.pack(handed.bytes_count, handed.crc) + handed.name.encode()))
        return _encode_fields(values)


def _encode_fields(values: Iterable[tuple[int, bytes]]) -> bytes:
    body = b"".join(_FIELD.pack(tag, len(value)) + value for tag, value in values)
    return _LENGTH.pack(len(body)) + body


def _decode_fields(data: bytes, place: int) -> tuple[dict[int, bytes], int]:
    """Of version 2: a partition's, and the place behind it."""
    (length,) = _LENGTH.unpack_from(data, place)
    place, end = place + _LENGTH.size, place + _LENGTH.size + length
    values: dict[int, bytes] = {}
    while place < end:
        tag, size = _FIELD.unpack_from(data, place)
        place += _FIELD.size
        if tag not in _TAGS and not tag & TAG_MAY_SKIP:
            raise CheckpointError(f"a later release wrote it: field {tag} is not known here")
        values[tag] = data[place : place + size]
        place += size
    if place != end or not values.keys() >= _NEEDED:
        raise CheckpointError(f"a partition's fields end at byte {place}, not {end}")
    return values, end


def handed_by(data: bytes) -> Handed | None:
    """Which file an entry's producers are in; None: they are in it, or it cannot be read."""
    try:
        value = _decode_fields(data, 0)[0].get(Tag.HANDED)
        if value is None:
            return None
        return Handed(value[_HANDED.size :].decode(), *_HANDED.unpack_from(value))
    except (struct.error, ValueError):
        return None


def with_producers(data: bytes, producers: bytes) -> bytes:
    """The entry as if it had them itself."""
    values = _decode_fields(data, 0)[0]
    del values[Tag.HANDED]
    return _encode_fields((values | {Tag.PRODUCERS: producers}).items())


def _decode_partition(data: bytes, place: int) -> tuple[PartitionCheckpoint, int]:
    """Of version 2."""
    values, end = _decode_fields(data, place)
    if Tag.HANDED in values:
        raise CheckpointError("the file with its producers is not there, or not whole")
    whole = b"".join(values[tag] for tag in (Tag.STATE, Tag.TOPIC, Tag.EPOCHS, Tag.PRODUCERS))
    more: dict[str, Any] = {}
    if Tag.COMMIT_OFFSET in values:
        (more["commit_offset"],) = _COMMIT_OFFSET.unpack(values[Tag.COMMIT_OFFSET])
    if Tag.NOTES in values:
        more["notes"] = tuple(_decode_notes(values[Tag.NOTES]))
    if Tag.RELEASED in values:
        target, move_id = _RELEASE.unpack(values[Tag.RELEASED])
        more["released"] = Release(CoreId(target), move_id)
    if Tag.MOVES in values:
        (more["moves"],) = _MOVES.unpack(values[Tag.MOVES])
    if Tag.FILLED in values:
        more["filled"] = values[Tag.FILLED].decode()
    if Tag.ENDED in values:
        more["ended"] = tuple(decode_ended(values[Tag.ENDED]))
    entry, _place = _decode_partition_1(whole, 0, more)
    entry.producers.mark_lost(producer_id for (producer_id,) in _PRODUCER_ID.iter_unpack(values.get(Tag.LOST, b"")))
    return entry, end


def decode_entry(data: bytes) -> PartitionCheckpoint:
    """One partition by itself, as `PartitionCheckpoint.encode` gives it; CheckpointError when it is none."""
    try:
        entry, end = _decode_partition(data, 0)
    except (struct.error, AssertionError, UnicodeDecodeError, ValueError) as error:
        raise CheckpointError(f"no partition: {error}") from error
    if end != len(data):
        raise CheckpointError(f"a partition ends at byte {end} of {len(data)}")
    return entry


def decode_entry_in_parts(data: bytes, at_once: int) -> Generator[None, None, PartitionCheckpoint]:
    """The same, so many producers at a time: of hundreds of thousands it takes a second."""
    try:
        values, end = _decode_fields(data, 0)
        if end != len(data):
            raise CheckpointError(f"a partition ends at byte {end} of {len(data)}")
        producers = values[Tag.PRODUCERS]
        entry = decode_entry(_encode_fields((values | {Tag.PRODUCERS: ProducerState().encode_full()}).items()))
        state = yield from ProducerState.decode_in_parts(producers, at_once)
        state.mark_lost(producer_id for (producer_id,) in _PRODUCER_ID.iter_unpack(values.get(Tag.LOST, b"")))
    except (struct.error, ValueError) as error:
        raise CheckpointError(f"no partition: {error}") from error
    return replace(entry, producers=state)


def _decode_notes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place < len(data):
        term, size = _NOTE.unpack_from(data, place)
        place += _NOTE.size + size
        yield term, data[place - size : place]


def _decode_partition_1(
    data: bytes, place: int, more: Mapping[str, Any] = MappingProxyType({})
) -> tuple[PartitionCheckpoint, int]:
    """`more`: fields that version 1 has not."""
    topic_id, partition, *numbers, name_bytes, epochs_count = _PARTITION.unpack_from(data, place)
    place += _PARTITION.size
    name = data[place : place + name_bytes].decode()
    place += name_bytes
    epochs, producers, place = decode_state(data, place, epochs_count)
    entry = PartitionCheckpoint(  # type: ignore[call-arg]
        TopicId(UUID(bytes=topic_id)), PartitionIndex(partition), name, *numbers, epochs, producers, **more
    )
    return entry, place


def encode_checkpoint(generation: int, partitions: Iterable[PartitionCheckpoint]) -> bytes:
    """The whole file."""
    return checkpoint_of(generation, [partition.encode() for partition in partitions])


def checkpoint_of(generation: int, encoded: Sequence[bytes]) -> bytes:
    """The same of partitions that are encoded."""
    data = b"".join([_HEADER.pack(_MAGIC, _VERSION, 0, generation, len(encoded)), *encoded])
    return data + _CRC.pack(crc32c(data))


def decode_checkpoint(data: bytes) -> tuple[int, dict[TopicPartition, PartitionCheckpoint]]:
    """Generation and partitions. Raises CheckpointError for anything but a whole, right file of this version."""
    if len(data) < _HEADER.size + _CRC.size or data[:4] != _MAGIC:
        raise CheckpointError("no checkpoint file")
    if _CRC.unpack_from(data, len(data) - _CRC.size)[0] != crc32c(data[: -_CRC.size]):
        raise CheckpointError("the CRC does not fit")
    _magic, version, _reserved, generation, count = _HEADER.unpack_from(data)
    if version not in (_VERSION_1, _VERSION):
        raise CheckpointError(f"version {version}; known are versions up to {_VERSION}")
    decode = _decode_partition_1 if version == _VERSION_1 else _decode_partition
    place, partitions = _HEADER.size, {}
    for _number in range(count):
        entry, place = decode(data, place)
        partitions[entry.key] = entry
    if place != len(data) - _CRC.size:
        raise CheckpointError(f"{count} partitions end at byte {place} of {len(data)}")
    return generation, partitions
