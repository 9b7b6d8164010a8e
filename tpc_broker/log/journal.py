"""A core's journal as bytes: superblocks, commits and entries, and the scan that finds out what the journal holds.

Theory of operation
-------------------
`native/bytes/journal_format.h` describes the file. Blocks 0 and 1 are superblocks; the one with the higher generation
that passes its CRC counts, and the next is written over the other one, so a torn superblock leaves its predecessor. A
superblock says where replay begins: the block, the sequence number expected there, and the CRC of the commit before it.
From there commits form a chain.

*Where the chain ends.* A commit belongs to it when it stands at the next block (or, if not there, at the first block of
the region), has the expected sequence number, names its predecessor's CRC and passes its own. Blocks of commits that
were never acknowledged reach the disk in any order, so behind the end of the chain anything may lie: nothing, half a
commit, a whole one whose predecessor is missing. That is a **torn tail** and is trimmed.

*Damage.* Every commit carries `durable_sequence`: up to there everything was on the disk when it was submitted. If a
whole commit of this journal lies somewhere behind the end of the chain and says that the missing one had been durable,
then acknowledged bytes were lost. That is **damage**: reported, never skipped. A commit left over from an earlier lap
or run cannot raise a false alarm: what it calls durable was found when that run's successor opened the journal, so it
lies inside the chain (after damage was accepted by an operator the journal gets a new id).

*Growth.* A block is cheap to write durably only after it was written once. A new journal is used from the start with a
small part of its region; the rest is filled with zeros piece by piece, and `initialised_blocks` follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from tpc_broker.log.batch import Buffer

BLOCK_BYTES: Final = 4096
REGION_BLOCK_FIRST: Final = 2
JOURNAL_BYTES_MIN: Final = 4 * 1024 * 1024
FILE_SYSTEM_SHARE_MAX: Final = 0.05
READ_WINDOW_BLOCKS: Final = 1024

_COMMIT: Final = struct.Struct("<IHH16sQQQQIIII24s")
_ENTRY: Final = struct.Struct("<IBBH16siIqq")
_COMMIT_MAGIC: Final = b"TPCJ"
_COMMIT_CRC_AT: Final = 68
_FORMAT_VERSION: Final = 1
COMMIT_HEADER_BYTES: Final = _COMMIT.size
ENTRY_HEADER_BYTES: Final = _ENTRY.size
_ENTRY_ALIGNMENT: Final = 8
_VOTE: Final = struct.Struct("<i")

_SUPERBLOCK: Final = struct.Struct("<4sHHI16sQQQQQIQ")
_SUPERBLOCK_MAGIC: Final = b"TPCS"
_CRC: Final = struct.Struct("<I")
_CLEAN: Final = 0x100

assert _COMMIT.size == 96
assert _ENTRY.size == 48


class EntryKind(IntEnum):
    """`enum tpc_journal_kind`."""

    APPEND = 1
    CUT = 2
    EPOCH = 3
    LOG_START = 4
    PARTITION_DELETED = 5
    NOTE = 6


class JournalMode(IntEnum):
    """`enum tpc_journal_mode`: how commits are made durable; found by a probe on the real file, kept in the
    superblock.
    """

    DIRECT_DSYNC = 0
    BUFFERED_DSYNC = 1
    BUFFERED_FDATASYNC = 2
    UNKNOWN = 255


class JournalUnreadableError(ValueError):
    """Neither superblock can be believed; the message says why."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """Where replay begins, and what the file is. Block numbers count from the beginning of the file."""

    journal_id: bytes
    generation: int
    region_blocks: int
    """Blocks the region may have in the end."""
    initialised_blocks: int
    """Blocks of the region that were written once: only these hold commits."""
    replay_block: int
    replay_sequence: int
    """Sequence of the first commit that is not in the checkpoint."""
    replay_previous_crc: int
    checkpoint_generation: int
    mode: JournalMode = JournalMode.UNKNOWN
    clean: bool = False
    """Closed in order, with nothing behind the replay position; the next opening clears it before it appends."""

    def __post_init__(self) -> None:
        assert len(self.journal_id) == 16, self
        assert 0 < self.initialised_blocks <= self.region_blocks, self
        assert REGION_BLOCK_FIRST <= self.replay_block <= self.end_block, self

    @property
    def end_block(self) -> int:
        """The block behind the part of the region that is in use."""
        return REGION_BLOCK_FIRST + self.initialised_blocks

    @property
    def slot(self) -> int:
        """The block that this superblock is written to."""
        return self.generation % 2

    def next(self, **changes: object) -> Superblock:
        """The successor with some fields changed."""
        return replace(self, generation=self.generation + 1, **changes)  # type: ignore[arg-type]

    def encode(self) -> bytes:
        """One block."""
        flags = self.mode | (_CLEAN if self.clean else 0)
        fields = _SUPERBLOCK.pack(
            _SUPERBLOCK_MAGIC,
            _FORMAT_VERSION,
            flags,
            BLOCK_BYTES,
            self.journal_id,
            self.generation,
            self.region_blocks,
            self.initialised_blocks,
            self.replay_block,
            self.replay_sequence,
            self.replay_previous_crc,
            self.checkpoint_generation,
        )
        return (fields + _CRC.pack(crc32c(fields))).ljust(BLOCK_BYTES, b"\0")


def decode_superblock(data: Buffer) -> Superblock:
    """Raises JournalUnreadableError for anything but a whole superblock of this version."""
    if len(data) < _SUPERBLOCK.size + _CRC.size:
        raise JournalUnreadableError("the file is too short")
    magic, version, flags, block_bytes, *fields = _SUPERBLOCK.unpack_from(data)
    if magic != _SUPERBLOCK_MAGIC:
        raise JournalUnreadableError("no superblock")
    if _CRC.unpack_from(data, _SUPERBLOCK.size)[0] != crc32c(bytes(data[: _SUPERBLOCK.size])):
        raise JournalUnreadableError("the CRC does not fit")
    if version != _FORMAT_VERSION or block_bytes != BLOCK_BYTES:
        raise JournalUnreadableError(f"version {version} with blocks of {block_bytes} bytes is not known")
    try:
        return Superblock(*fields, mode=JournalMode(flags & 0xFF), clean=bool(flags & _CLEAN))  # type: ignore[misc]
    except (AssertionError, ValueError) as error:
        raise JournalUnreadableError(f"fields that contradict each other: {error}") from error


def choose_superblock(data: Buffer) -> Superblock:
    """The one that counts, of the two in the first two blocks."""
    found, problems = [], []
    for slot in range(REGION_BLOCK_FIRST):
        try:
            found.append(decode_superblock(data[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES]))
        except JournalUnreadableError as error:
            problems.append(f"superblock {slot}: {error}")
    if not found:
        raise JournalUnreadableError("; ".join(problems))
    return max(found, key=lambda superblock: superblock.generation)


def journal_region_blocks(bytes_max: int, file_system_bytes: int) -> int:
    """Blocks of a new journal's region: the limit, but at most 5 % of the file system, and never below 4 MiB."""
    size = max(min(bytes_max, int(file_system_bytes * FILE_SYSTEM_SHARE_MAX)), JOURNAL_BYTES_MIN)
    return size // BLOCK_BYTES - REGION_BLOCK_FIRST


class JournalEntry(NamedTuple):
    """One entry of the chain. The payload of an APPEND stays in the file: its place there; others carry it."""

    kind: int
    sequence: int
    partition: TopicPartition
    offset: int
    argument: int
    payload_position: int
    payload_bytes: int
    payload: bytes = b""

    @property
    def voted_for(self) -> int | None:
        """Of an EPOCH entry: the node voted for, when it says so."""
        return int(_VOTE.unpack(self.payload)[0]) if len(self.payload) == _VOTE.size else None


def encode_entry(
    kind: EntryKind, partition: TopicPartition, offset: int = 0, argument: int = 0, payload: bytes = b""
) -> bytes:
    """One entry, without the zeros that align the next one."""
    header = _ENTRY.pack(
        _ENTRY.size + len(payload), kind, 0, 0, partition.topic_id.bytes, partition.partition, 0, offset, argument
    )
    return header + payload


def encode_vote(node: int) -> bytes:
    """Payload of an EPOCH entry that carries a vote."""
    return _VOTE.pack(node)


class CommitPlace(NamedTuple):
    """What the next commit of a chain continues: its place and number, and the CRC it names as its predecessor's."""

    block: int
    sequence: int
    previous_crc: int


def encode_commit(
    place: CommitPlace,
    entries: Sequence[bytes],
    *,
    journal_id: bytes,
    run_id: int,
    durable_sequence: int,
    submitted_ms: int = 0,
) -> tuple[bytes, int]:
    """A commit padded to whole blocks, and its CRC. The C journal writes the same bytes."""
    body = bytearray()
    for entry in entries:
        body += bytes(-len(body) % _ENTRY_ALIGNMENT) + entry
    fields = (
        int.from_bytes(_COMMIT_MAGIC, "little"),
        _FORMAT_VERSION,
        0,
        journal_id,
        run_id,
        place.sequence,
        durable_sequence,
        submitted_ms,
        place.previous_crc,
        _COMMIT.size + len(body),
        len(entries),
    )
    crc = crc32c(_COMMIT.pack(*fields, 0, b"") + bytes(body))
    data = _COMMIT.pack(*fields, crc, b"") + bytes(body)
    return data + bytes(-len(data) % BLOCK_BYTES), crc


class ReadRequest(NamedTuple):
    """The scan wants these bytes of the file, all of them (zeros where the file ends early)."""

    position: int
    length: int


@dataclass(frozen=True, slots=True)
class JournalScan:
    """What a journal holds behind its replay position."""

    entries: tuple[JournalEntry, ...]
    commits_count: int
    next: CommitPlace
    """Where a new run continues the chain."""
    last_run_id: int
    torn_commits_count: int
    """Commits found whole behind the end of the chain that had not been durable: trimmed."""
    damage: str | None
    """Acknowledged commits are missing; says which."""


class _Commit(NamedTuple):
    run_id: int
    sequence: int
    durable_sequence: int
    previous_crc: int
    commit_bytes: int
    entries_count: int
    crc: int


def _decode_commit_header(data: Buffer, at: int, journal_id: bytes, bytes_max: int) -> _Commit | None:
    """The header at a place when it can be one of this journal's; its CRC is not checked here."""
    if len(data) - at < _COMMIT.size or data[at : at + 4] != _COMMIT_MAGIC:
        return None
    (
        _magic,
        version,
        _flags,
        found_id,
        run_id,
        sequence,
        durable_sequence,
        _submitted_ms,
        previous_crc,
        commit_bytes,
        entries_count,
        crc,
        _padding,
    ) = _COMMIT.unpack_from(data, at)
    if version != _FORMAT_VERSION or found_id != journal_id or not _COMMIT.size <= commit_bytes <= bytes_max:
        return None
    return _Commit(run_id, sequence, durable_sequence, previous_crc, commit_bytes, entries_count, crc)


def _commit_crc(data: Buffer, at: int, commit_bytes: int) -> int:
    view = memoryview(data)[at : at + commit_bytes]
    crc = crc32c(view[:_COMMIT_CRC_AT])
    crc = crc32c(bytes(4), crc)
    return crc32c(view[_COMMIT_CRC_AT + 4 :], crc)


class _EntryReader:
    """Takes commits apart. Equal partition ids share one object: a journal names few partitions many times."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[bytes, int], TopicPartition] = {}
        self.entries: list[JournalEntry] = []

    def read(self, data: Buffer, at: int, commit: _Commit, file_position: int) -> None:
        """Append the entries of a commit; its CRC was right, so an impossible length is a writer's bug."""
        place, end = at + _COMMIT.size, at + commit.commit_bytes
        for _number in range(commit.entries_count):
            size, kind, _flags, _reserved, topic, partition, _reserved2, offset, argument = _ENTRY.unpack_from(
                data, place
            )
            assert _ENTRY.size <= size <= end - place, (commit, place, size)
            key = self._partitions.get((topic, partition))
            if key is None:
                key = TopicPartition(TopicId(UUID(bytes=topic)), PartitionIndex(partition))
                self._partitions[topic, partition] = key
            payload_at = place + _ENTRY.size
            payload = b"" if kind == EntryKind.APPEND else bytes(data[payload_at : place + size])
            self.entries.append(
                JournalEntry(
                    kind,
                    commit.sequence,
                    key,
                    offset,
                    argument,
                    file_position + payload_at - at,
                    size - _ENTRY.size,
                    payload,
                )
            )
            place += size + -size % _ENTRY_ALIGNMENT


class _Window:
    """The part of the file that was read last; asks for another when something else is wanted."""

    def __init__(self, end_block: int) -> None:
        self._end_block = end_block
        self._first_block = 0
        self.data: bytes = b""

    def fetch(self, block: int, length: int) -> Generator[ReadRequest, bytes, int]:
        """Make bytes from the beginning of a block on available; the place of the block in `data`."""
        at = (block - self._first_block) * BLOCK_BYTES
        if not (self._first_block <= block and at + length <= len(self.data)):
            wanted = max(-(-length // BLOCK_BYTES), min(READ_WINDOW_BLOCKS, self._end_block - block))
            self.data = yield ReadRequest(block * BLOCK_BYTES, wanted * BLOCK_BYTES)
            assert len(self.data) == wanted * BLOCK_BYTES, (block, wanted, len(self.data))
            self._first_block, at = block, 0
        return at


def scan_journal(superblock: Superblock) -> Generator[ReadRequest, bytes, JournalScan]:
    """Follow the chain from the replay position, then look behind its end for signs of damage.

    A generator: yields what it wants to read, is sent the bytes, returns the result.
    """
    window, reader = _Window(superblock.end_block), _EntryReader()
    place = CommitPlace(superblock.replay_block, superblock.replay_sequence, superblock.replay_previous_crc)
    commits_count = run_id = 0
    chain: list[tuple[int, int]] = []
    while (found := (yield from _find_next(window, superblock, place))) is not None:
        block, commit = found
        at = yield from window.fetch(block, commit.commit_bytes)
        reader.read(window.data, at, commit, block * BLOCK_BYTES)
        end = block + -(-commit.commit_bytes // BLOCK_BYTES)
        chain.append((block, end))
        place = CommitPlace(end, commit.sequence + 1, commit.crc)
        commits_count, run_id = commits_count + 1, commit.run_id
    torn, damage = 0, None
    if not superblock.clean:
        torn, damage = yield from _look_behind(window, superblock, place, chain)
    return JournalScan(tuple(reader.entries), commits_count, place, run_id, torn, damage)


def _find_next(
    window: _Window, superblock: Superblock, place: CommitPlace
) -> Generator[ReadRequest, bytes, tuple[int, _Commit] | None]:
    """The commit that continues the chain, and its block."""
    for block in dict.fromkeys((place.block, REGION_BLOCK_FIRST)):
        room = (superblock.end_block - block) * BLOCK_BYTES
        if room <= 0:
            continue
        at = yield from window.fetch(block, BLOCK_BYTES)
        commit = _decode_commit_header(window.data, at, superblock.journal_id, room)
        if commit is None or commit.sequence != place.sequence or commit.previous_crc != place.previous_crc:
            continue
        at = yield from window.fetch(block, commit.commit_bytes)
        if _commit_crc(window.data, at, commit.commit_bytes) == commit.crc:
            return block, commit
    return None


def _look_behind(
    window: _Window, superblock: Superblock, place: CommitPlace, chain: list[tuple[int, int]]
) -> Generator[ReadRequest, bytes, tuple[int, str | None]]:
    """Whole commits outside the chain: how many were torn off, and whether one of them proves damage."""
    torn = 0
    block = REGION_BLOCK_FIRST
    inside = dict(chain)
    while block < superblock.end_block:
        if block in inside:
            block = inside[block]
            continue
        at = yield from window.fetch(block, BLOCK_BYTES)
        room = (superblock.end_block - block) * BLOCK_BYTES
        commit = _decode_commit_header(window.data, at, superblock.journal_id, room)
        if commit is not None and commit.sequence >= place.sequence:
            at = yield from window.fetch(block, commit.commit_bytes)
            if _commit_crc(window.data, at, commit.commit_bytes) == commit.crc:
                if commit.durable_sequence >= place.sequence:
                    return torn, (
                        f"commits {place.sequence} to {commit.durable_sequence} were durable and cannot be read "
                        f"(expected at block {place.block}; commit {commit.sequence} at block {block} says so)"
                    )
                torn += 1
        block += 1
    return torn, None
