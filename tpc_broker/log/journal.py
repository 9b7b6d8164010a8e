"""A core's journal as bytes: superblocks, commits and entries, and the scan that finds out what the journal holds.

Theory of operation
-------------------
`native/bytes/journal_format.h` describes the file; C alone writes and reads commits and entries. Blocks 0 and 1 are
superblocks; the one with the higher generation that passes its CRC counts, and the next is written over the other one,
so a torn superblock leaves its predecessor. A superblock says where replay begins: the block, the sequence number
expected there, and the CRC of the commit before it. From there commits form a chain.

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
small part of its region, and the file has no more; when that is used it grows piece by piece, filled with zeros, and
`initialised_blocks` follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from tpc_broker import limits
from tpc_broker.log.batch import BatchDamageError
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.native_bytes import crc32c, ffi, lib, pinned

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from tpc_broker.log.batch import Buffer

BLOCK_BYTES: Final = limits.BLOCK_BYTES
REGION_BLOCK_FIRST: Final = limits.JOURNAL_REGION_BLOCK_FIRST
JOURNAL_BYTES_MIN: Final = 4 * 1024 * 1024
FILE_SYSTEM_SHARE_MAX: Final = 0.05
SCAN_WINDOW_BYTES: Final = 4 * 1024 * 1024
REPLAY_WINDOW_BYTES: Final = 32 * 1024 * 1024
ENTRIES_PER_CALL: Final = 4096
PAYLOAD_KEPT_BYTES: Final = 32

_VOTE: Final = struct.Struct("<i")
_NOTE: Final = b"note:"

_SUPERBLOCK: Final = struct.Struct("<4sHHI16sQQQQQIQ")
_FEATURES: Final = struct.Struct("<QQ")
_VERSION_1: Final = 1
_VERSION: Final = 2
FEATURES_REQUIRED_KNOWN: Final[dict[int, str]] = {0: "batches written in place into their segments"}
"""By bit. Who does not know one cannot read the journal, and leaves everything as it is (docs/formats.md)."""
FEATURES_REQUIRED: Final = 0b1
FEATURES_OPTIONAL: Final = 0b1
"""Bit 0: cuts that name the last leader epoch that stays. Who does not know a bit goes on; only the writer uses it."""
ENTRY_MAY_SKIP: Final = 0x01
"""`TPC_JOURNAL_MAY_SKIP`, in an entry's flags."""
_SUPERBLOCK_MAGIC: Final = b"TPCS"
_CRC: Final = struct.Struct("<I")
_CLEAN: Final = 0x100


class EntryKind(IntEnum):
    """`enum tpc_journal_kind`."""

    APPEND = 1
    CUT = 2
    EPOCH = 3
    LOG_START = 4
    PARTITION_DELETED = 5
    NOTE = 6
    IN_PLACE = 7
    """One batch that is in its segment already; see `log.in_place`."""
    RELEASED = 8
    """The last thing that this core's journal says of a partition; see `log.lives`."""
    ADOPTED = 9
    """The first one."""


_KINDS: Final = frozenset(map(int, EntryKind))


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


class JournalTooNewError(JournalUnreadableError):
    """A later release has written what this one does not know and must not pass over; the message names it."""


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
    features_required: int = FEATURES_REQUIRED
    features_optional: int = FEATURES_OPTIONAL
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
    def is_of_version_1(self) -> bool:
        return not self.features_required

    @property
    def slot(self) -> int:
        """The block that this superblock is written to."""
        return self.generation % 2

    def next(self, **changes: object) -> Superblock:
        """The successor with some fields changed. What this release writes from here on is a feature of it."""
        features = {
            "features_required": self.features_required | FEATURES_REQUIRED,
            "features_optional": self.features_optional | FEATURES_OPTIONAL,
        }
        return replace(self, generation=self.generation + 1, **{**features, **changes})  # type: ignore[arg-type]

    def encode(self) -> bytes:
        """One block."""
        flags = self.mode | (_CLEAN if self.clean else 0)
        fields = _SUPERBLOCK.pack(
            _SUPERBLOCK_MAGIC,
            _VERSION,
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
        fields += _FEATURES.pack(self.features_required, self.features_optional)
        block = fields.ljust(BLOCK_BYTES - _CRC.size, b"\0")
        return block + _CRC.pack(crc32c(block))


def decode_superblock(data: Buffer) -> Superblock:
    """Raises JournalUnreadableError for anything but a whole superblock; JournalTooNewError for a later release's.

    Version 1 has its CRC behind its fields; from version 2 on it is in the block's last four bytes, whatever follows.
    """
    if len(data) < BLOCK_BYTES:
        raise JournalUnreadableError("the file is too short")
    magic, version, flags, block_bytes, *fields = _SUPERBLOCK.unpack_from(data)
    if magic != _SUPERBLOCK_MAGIC:
        raise JournalUnreadableError("no superblock")
    crc_position = _SUPERBLOCK.size if version == _VERSION_1 else BLOCK_BYTES - _CRC.size
    if _CRC.unpack_from(data, crc_position)[0] != crc32c(bytes(data[:crc_position])):
        raise JournalUnreadableError("the CRC does not fit")
    if version not in (_VERSION_1, _VERSION) or block_bytes != BLOCK_BYTES:
        known = f"known are versions up to {_VERSION} with {BLOCK_BYTES}"
        raise JournalTooNewError(f"version {version} with blocks of {block_bytes} bytes; {known}")
    required, optional = (0, 0) if version == _VERSION_1 else _FEATURES.unpack_from(data, _SUPERBLOCK.size)
    unknown = [bit for bit in range(64) if required >> bit & 1 and bit not in FEATURES_REQUIRED_KNOWN]
    if unknown:
        bits = ", ".join(map(str, unknown))
        raise JournalTooNewError(f"a later release wrote it, and requires features not known here: bit {bits}")
    try:
        return Superblock(  # type: ignore[misc]
            *fields, mode=JournalMode(flags & 0xFF), clean=bool(flags & _CLEAN),
            features_required=required, features_optional=optional,
        )  # fmt: skip
    except (AssertionError, ValueError) as error:
        raise JournalUnreadableError(f"fields that contradict each other: {error}") from error


def choose_superblock(data: Buffer) -> Superblock:
    """The one that counts, of the two in the first two blocks."""
    found, problems = [], []
    for slot in range(REGION_BLOCK_FIRST):
        try:
            found.append(decode_superblock(data[slot * BLOCK_BYTES : (slot + 1) * BLOCK_BYTES]))
        except JournalTooNewError as error:  # never the other one instead: it may be older
            raise JournalTooNewError(f"superblock {slot}: {error}") from error
        except JournalUnreadableError as error:
            problems.append(f"superblock {slot}: {error}")
    if not found:
        raise JournalUnreadableError("; ".join(problems))
    return max(found, key=lambda superblock: superblock.generation)


def journal_region_blocks(bytes_max: int, file_system_bytes: int, journals_count: int = 1) -> int:
    """Blocks that a new journal's region may come to have: the limit, but all journals together at most 5 % of the file
    system, and none below 4 MiB.
    """
    share = int(file_system_bytes * FILE_SYSTEM_SHARE_MAX) // journals_count
    size = max(min(bytes_max, share), JOURNAL_BYTES_MIN)
    return size // BLOCK_BYTES - REGION_BLOCK_FIRST


class JournalEntry(NamedTuple):
    """One entry of the chain, or a run of appends: those of one partition that follow each other count as one, from the
    first one's `offset` to the last one's `argument`. Their payloads stay in the file (`JournalPayloads`, by `number`);
    the first 32 bytes of other entries' payloads come along.
    """

    kind: int
    sequence: int
    partition: TopicPartition
    offset: int
    argument: int
    number: int
    payload_bytes: int
    payload: bytes = b""
    payload_position: int = 0
    """In the file; of the first one."""

    @property
    def voted_for(self) -> int | None:
        """Of an EPOCH entry: the node voted for, when it says so."""
        return int(_VOTE.unpack(self.payload)[0]) if len(self.payload) == _VOTE.size else None

    @property
    def note(self) -> bytes | None:
        """Of an EPOCH entry of a replicated partition: what its replica has to know of the term."""
        return self.payload[len(_NOTE) :] if self.payload.startswith(_NOTE) else None


def encode_note(note: bytes) -> bytes:
    """Payload of an EPOCH entry that carries a note."""
    return _NOTE + note


class CommitCursor(NamedTuple):
    """What the next commit of a chain continues: its place and number, and the CRC it names as its predecessor's."""

    block: int
    sequence: int
    previous_crc: int


class ReadRequest(NamedTuple):
    """The scan wants these bytes of the file, all of them (zeros where the file ends early)."""

    position: int
    length: int


class WantedRun(NamedTuple):
    """Of a run of appends: the batches that begin in [from_offset, upto_offset), to be put to those of a target."""

    from_offset: int
    upto_offset: int
    target: int


class JournalPayloads:
    """Where a journal's appends lie; the list itself is C's, because there are many."""

    def __init__(self) -> None:
        self.runs = ffi.new("tpc_journal_runs *")
        self._keeper = ffi.gc(self.runs, lib.tpc_journal_runs_clear)

    def reader(self, wanted: Mapping[int, WantedRun], targets_count: int) -> PayloadReader:
        """Brings together what is wanted of the runs, by their numbers."""
        return PayloadReader(self, wanted, targets_count)


class PayloadReader:
    """A machine that takes payloads out of the journal, in its order. While `request` is not None: read it, `take`."""

    def __init__(self, payloads: JournalPayloads, wanted: Mapping[int, WantedRun], targets_count: int) -> None:
        self._payloads = payloads
        self._runs = payloads.runs
        self._targets_count = targets_count
        self._wanted = ffi.new("tpc_journal_wanted[]", max(self._runs.runs_count, 1))
        for number, one in wanted.items():
            self._wanted[number] = one
        self._ends = ffi.new("uint64_t[]", max(targets_count, 1))
        self._piece = ffi.new("uint32_t *")
        self._buffer = bytearray()
        self._advance()

    def _advance(self) -> None:
        self._piece[0] = lib.tpc_journal_next_wanted(self._runs, self._wanted, self._piece[0])
        self.request: ReadRequest | None = None
        if self._piece[0] < self._runs.pieces_count:
            piece, last = self._runs.pieces[self._piece[0]], self._runs.pieces[self._runs.pieces_count - 1]
            left = last.position + last.bytes - piece.position
            length = min(left, REPLAY_WINDOW_BYTES) if left > 0 else REPLAY_WINDOW_BYTES  # the chain went round the end
            self.request = ReadRequest(_file_position(piece.position), max(piece.bytes, length))

    def take(self, data: Buffer) -> list[tuple[int, memoryview]]:
        """What was read for `request`, possibly shortened by the end of the file: the wanted bytes of each target that
        has any. They are valid until the next call.
        """
        assert self.request is not None
        if len(self._buffer) < len(data):
            self._buffer = bytearray(len(data))
        before = self._piece[0]
        position = self.request.position - REGION_BLOCK_FIRST * BLOCK_BYTES
        size = lib.tpc_journal_gather(
            self._runs, self._wanted, self._piece, ffi.from_buffer("uint8_t[]", data), len(data), position,
            ffi.from_buffer("uint8_t[]", self._buffer), len(data), self._ends, self._targets_count,
        )  # fmt: skip
        if size < 0 or self._piece[0] == before:
            raise BatchDamageError(f"the journal's payload at {self.request.position} holds no batches")
        view, found, start = memoryview(self._buffer), [], 0
        for target, end in enumerate(self._ends[0 : self._targets_count]):
            if end > start:
                found.append((target, view[start:end]))
            start = end
        self._advance()
        return found


@dataclass(frozen=True, slots=True)
class JournalScan:
    """What a journal holds behind its replay position."""

    entries: tuple[JournalEntry, ...]
    """In the journal's order as far as one partition is concerned; partitions may overtake each other."""
    entries_count: int
    """As they were written, each append by itself."""
    commits_count: int
    next: CommitCursor
    """Where a new run continues the chain."""
    last_run_id: int
    torn_commits_count: int
    """Commits found whole behind the end of the chain that had not been durable: trimmed."""
    damage: str | None
    """Acknowledged commits are missing; says which."""
    too_new: str | None
    """An entry that is not known here and may not be passed over."""
    payloads: JournalPayloads = field(repr=False, compare=False)


def _file_position(region_position: int) -> int:
    return int(region_position) + REGION_BLOCK_FIRST * BLOCK_BYTES


def scan_journal(superblock: Superblock) -> Generator[ReadRequest, Buffer, JournalScan]:
    """Follow the chain from the replay position, then look behind its end for signs of damage.

    A generator: yields what it wants to read, is sent the bytes, returns the result. The bytes may be overwritten when
    it asks for the next ones.
    """
    state, payloads = _scan_state(superblock), JournalPayloads()
    start = int(state.position)
    yield from _follow_chain(state, payloads)
    place = CommitCursor(
        REGION_BLOCK_FIRST + state.position // BLOCK_BYTES, int(state.next_sequence), int(state.previous_crc)
    )
    torn, damage = 0, None
    if state.stop == lib.TPC_JOURNAL_BAD_ENTRIES:
        damage = f"commit {place.sequence} at block {place.block} is whole, and its entries are impossible"
    elif not superblock.clean:
        torn, damage = yield from _look_behind(state, start, place)
    entries, too_new = [], None
    for entry, flags in _entries(payloads):
        if entry.kind in _KINDS:
            entries.append(entry)
        elif not flags & ENTRY_MAY_SKIP:
            too_new = f"commit {entry.sequence} has an entry of kind {entry.kind}, which a later release wrote"
    counts = (int(payloads.runs.entries_count), int(state.commits_count))
    return JournalScan(tuple(entries), *counts, place, int(state.run_id), torn, damage, too_new, payloads)


def journal_entries(superblock: Superblock) -> Generator[ReadRequest, Buffer, tuple[JournalEntry, ...]]:
    """What the chain holds, for a reader beside the broker that goes on writing: where it ends says nothing then."""
    payloads = JournalPayloads()
    yield from _follow_chain(_scan_state(superblock), payloads)
    return tuple(entry for entry, _flags in _entries(payloads) if entry.kind in _KINDS)


def _scan_state(superblock: Superblock) -> Any:
    state = ffi.new("tpc_journal_scan_state *")
    state.region_bytes = superblock.initialised_blocks * BLOCK_BYTES
    state.position = (superblock.replay_block - REGION_BLOCK_FIRST) * BLOCK_BYTES
    state.next_sequence = superblock.replay_sequence
    state.journal_id, state.previous_crc = superblock.journal_id, superblock.replay_previous_crc
    return state


def _follow_chain(state: Any, payloads: JournalPayloads) -> Generator[ReadRequest, Buffer]:
    entries = ffi.new("tpc_journal_entry[]", ENTRIES_PER_CALL)
    position = int(state.position) if state.position < state.region_bytes else 0
    wanted_bytes = BLOCK_BYTES
    while True:
        length = min(max(wanted_bytes, SCAN_WINDOW_BYTES), int(state.region_bytes) - position)
        data = yield ReadRequest(_file_position(position), length)
        assert len(data) >= length, (position, length, len(data))
        source, _size, _held = pinned(data)
        while True:
            count = lib.tpc_journal_scan(source, length, position, state, entries, ENTRIES_PER_CALL)
            assert count >= 0, state.position
            if lib.tpc_journal_runs_add(payloads.runs, entries, count, source, position):
                raise MemoryError
            if state.stop != lib.TPC_JOURNAL_MORE_ROOM:
                break
        if state.stop != lib.TPC_JOURNAL_MORE_BYTES:
            return
        position, wanted_bytes = int(state.wanted_position), int(state.wanted_bytes)


def _entries(payloads: JournalPayloads) -> Generator[tuple[JournalEntry, int]]:
    """Entries and their flags. Equal partition ids share one object: a journal names few partitions many times."""
    keys: dict[int, TopicPartition] = {}
    runs = payloads.runs
    for number in range(runs.runs_count):
        run = runs.runs[number]
        key = keys.get(run.partition_number)
        if key is None:
            key = TopicPartition(TopicId(UUID(bytes=bytes(run.topic_id))), PartitionIndex(run.partition))
            keys[run.partition_number] = key
        size = run.payload_bytes
        payload = b"" if run.kind == EntryKind.APPEND else bytes(run.payload)[: min(size, PAYLOAD_KEPT_BYTES)]
        position = _file_position(run.payload_position)
        entry = JournalEntry(run.kind, run.sequence, key, run.offset, run.argument, number, size, payload, position)
        yield entry, int(run.flags)


def _look_behind(state: Any, start: int, place: CommitCursor) -> Generator[ReadRequest, Buffer, tuple[int, str | None]]:
    """Whole commits outside the chain: how many were torn off, and whether one of them proves damage."""
    search = ffi.new("tpc_journal_damage *")
    search.region_bytes, search.journal_id = state.region_bytes, state.journal_id
    search.first_missing_sequence = state.next_sequence
    end, region = int(state.position), int(state.region_bytes)
    wrapped = int(state.wrapped_position)
    for first, limit in ((wrapped, region), (end, start)) if wrapped else ((end, region), (0, start)):
        search.position, wanted_bytes = first, BLOCK_BYTES
        while search.position < limit:
            position = int(search.position)
            length = min(max(wanted_bytes, min(SCAN_WINDOW_BYTES, limit - position)), region - position)
            data = yield ReadRequest(_file_position(position), length)
            if lib.tpc_journal_find_damage(ffi.from_buffer("uint8_t[]", data), length, position, search) == 1:
                block = REGION_BLOCK_FIRST + search.position // BLOCK_BYTES
                return int(search.torn_count), (
                    f"commits {place.sequence} to {search.found_durable_sequence} were durable and cannot be read "
                    f"(expected at block {place.block}; commit {search.found_sequence} at block {block} says so)"
                )
            wanted_bytes = int(search.wanted_bytes)
    return int(search.torn_count), None
