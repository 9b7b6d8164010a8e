"""Reading a core's journal back by the C scanner alone, and making commits: tests hold `log/journal.py` against it.

The bytes are described in ``native/bytes/journal_format.h``. Positions count from the first byte of the data region
(block 2 of the file). :class:`JournalReader` does no I/O: it says which bytes of the region it wants, and is fed them::

    reader = JournalReader(region_bytes=..., journal_id=..., position=..., next_sequence=..., previous_crc=...)
    while reader.wanted is not None:
        position, size = reader.wanted
        for entry in reader.feed(position, read(position, size)):
            ...                      # in the order of the journal
    if reader.damage is not None:
        ...                          # durable commits are missing: report, never skip

It first follows the chain of commits to its end, then looks at every block of the region for a later commit that knows
the missing one to have been durable (otherwise the end is a torn tail).
"""

import enum
import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from tpc_broker._bytes import ffi, lib
from tpc_broker.native_bytes import Buffer

BLOCK_BYTES: Final = 4096
WINDOW_BYTES: Final = 4 * 1024 * 1024
ENTRIES_PER_CALL: Final = 512
FORMAT_VERSION: Final = 1
NO_TOPIC: Final = bytes(16)
_MAGIC: Final = 0x4A435054
_COMMIT_HEADER: Final = struct.Struct("<IHH16sQQQQIIII24x")
_ENTRY_HEADER: Final = struct.Struct("<IBBH16siIqq")


class EntryKind(enum.IntEnum):
    """What an entry says; ``offset`` and ``argument`` mean what the comments say."""

    APPEND = 1  # base offset; next offset; payload: whole record batches
    CUT = 2  # everything at or above offset is void
    EPOCH = 3  # where it starts; the leader epoch; payload: nothing, or i32 voted_for
    LOG_START = 4  # the new log start offset
    PARTITION_DELETED = 5
    NOTE = 6  # opaque payload


class JournalEntry(NamedTuple):
    """One entry. ``payload`` is a view of the bytes that were fed, ``payload_position`` its place in the region."""

    sequence: int
    kind: int
    topic_id: bytes
    partition: int
    offset: int
    argument: int
    payload: memoryview
    payload_position: int


class JournalDamage(NamedTuple):
    """Proof that the journal lost what had been durable. ``position`` is where the proof lies.

    ``sequence`` and ``durable_sequence`` are those of the commit that proves it; both are the missing sequence itself
    when a commit has the right checksum but impossible entries.
    """

    missing_sequence: int
    position: int
    sequence: int
    durable_sequence: int


class JournalReader:
    """A machine that reads the journal from a known place on. See the module for how to drive it.

    ``previous_crc`` None takes the first commit whatever it says about its predecessor. After the end, ``position``,
    ``next_sequence`` and ``previous_crc`` are what the writer goes on with, and ``run_id``, ``durable_sequence`` and
    ``submitted_ms`` are those of the last commit (0 if there was none).
    """

    def __init__(
        self, *, region_bytes: int, journal_id: bytes, position: int, next_sequence: int, previous_crc: int | None
    ) -> None:
        if region_bytes % BLOCK_BYTES or position % BLOCK_BYTES or not 0 <= position <= region_bytes:
            raise ValueError(f"position {position} or region of {region_bytes} bytes is no multiple of {BLOCK_BYTES}")
        self._state = ffi.new("tpc_journal_scan_state *")
        self._state.region_bytes = region_bytes
        self._state.position = position
        self._state.next_sequence = next_sequence
        self._state.journal_id = journal_id
        self._state.previous_crc = previous_crc or 0
        self._state.any_previous_crc = previous_crc is None
        self._search = ffi.new("tpc_journal_damage *")
        self._entries = ffi.new("tpc_journal_entry[]", ENTRIES_PER_CALL)
        self._in_chain = True
        self.wanted: tuple[int, int] | None = self._window(position if position < region_bytes else 0, BLOCK_BYTES)
        self.damage: JournalDamage | None = None

    @property
    def position(self) -> int:
        return int(self._state.position)

    @property
    def next_sequence(self) -> int:
        return int(self._state.next_sequence)

    @property
    def previous_crc(self) -> int:
        return int(self._state.previous_crc)

    @property
    def durable_sequence(self) -> int:
        return int(self._state.durable_sequence)

    @property
    def run_id(self) -> int:
        return int(self._state.run_id)

    @property
    def submitted_ms(self) -> int:
        return int(self._state.submitted_ms)

    @property
    def commits_count(self) -> int:
        return int(self._state.commits_count)

    def feed(self, position: int, data: Buffer) -> list[JournalEntry]:
        """Takes the region's bytes from ``position`` on and gives the entries in them. Changes ``wanted``.

        Less than what was wanted is an answer too only at the region's end; anywhere else it is a ``ValueError``, so
        that a short read can never pass for a torn tail.
        """
        if self.wanted is None:
            raise ValueError("the journal has been read to its end")
        if position != self.wanted[0] or len(data) < self.wanted[1]:
            raise ValueError(f"wanted {self.wanted}, got {len(data)} bytes at {position}")
        if self._in_chain:
            return self._follow_chain(position, data)
        self._look_for_damage(position, data)
        return []

    def _window(self, position: int, size_min: int) -> tuple[int, int]:
        return position, min(max(size_min, WINDOW_BYTES), int(self._state.region_bytes) - position)

    def _follow_chain(self, position: int, data: Buffer) -> list[JournalEntry]:
        state, view, payloads = self._state, ffi.from_buffer(data), memoryview(data).cast("B")
        found: list[JournalEntry] = []
        while True:
            taken = lib.tpc_journal_scan(view, len(view), position, state, self._entries, ENTRIES_PER_CALL)
            if taken < 0:
                raise ValueError("the journal's region and positions are multiples of its blocks")
            for entry in self._entries[0:taken]:
                begin = entry.payload_position - position
                payload = payloads[begin : begin + entry.payload_bytes]
                place = (bytes(entry.topic_id), entry.partition, entry.offset, entry.argument)
                found.append(JournalEntry(entry.sequence, entry.kind, *place, payload, entry.payload_position))
            if state.stop != lib.TPC_JOURNAL_MORE_ROOM:
                break
        if state.stop == lib.TPC_JOURNAL_MORE_BYTES:
            self.wanted = self._window(state.wanted_position, state.wanted_bytes)
        elif state.stop == lib.TPC_JOURNAL_BAD_ENTRIES:
            self._end(JournalDamage(self.next_sequence, self.position, self.next_sequence, self.next_sequence))
        else:
            self._begin_search()
        return found

    def _begin_search(self) -> None:
        self._in_chain = False
        self._search.region_bytes = self._state.region_bytes
        self._search.journal_id = self._state.journal_id
        self._search.first_missing_sequence = self._state.next_sequence
        self.wanted = self._window(0, BLOCK_BYTES) if self._state.region_bytes else None

    def _look_for_damage(self, position: int, data: Buffer) -> None:
        search, view = self._search, ffi.from_buffer(data)
        if lib.tpc_journal_find_damage(view, len(view), position, search) == 1:
            found = (search.position, search.found_sequence, search.found_durable_sequence)
            self._end(JournalDamage(self.next_sequence, *found))
        elif search.position >= search.region_bytes:
            self._end(None)
        else:
            self.wanted = self._window(search.position, search.wanted_bytes)

    def _end(self, damage: JournalDamage | None) -> None:
        self.damage = damage
        self.wanted = None


class EntryToWrite(NamedTuple):
    """What :func:`make_commit` puts into a commit."""

    kind: EntryKind
    topic_id: bytes = NO_TOPIC
    partition: int = -1
    offset: int = 0
    argument: int = 0
    payload: bytes = b""


def make_commit(
    *,
    journal_id: bytes,
    sequence: int,
    previous_crc: int,
    entries: Iterable[EntryToWrite],
    run_id: int = 1,
    durable_sequence: int = 0,
    submitted_ms: int = 0,
) -> tuple[bytes, int]:
    """A sealed commit, padded to whole blocks, and its checksum (the next one's ``previous_crc``)."""
    body, count = bytearray(), 0
    for count, entry in enumerate(entries, 1):  # noqa: B007 (the count is used behind the loop)
        body += bytes(-len(body) % 8)
        size = _ENTRY_HEADER.size + len(entry.payload)
        place = (entry.topic_id, entry.partition, 0, entry.offset, entry.argument)
        body += _ENTRY_HEADER.pack(size, entry.kind, 0, 0, *place) + entry.payload
    identity = (_MAGIC, FORMAT_VERSION, 0, journal_id, run_id, sequence, durable_sequence, submitted_ms)
    size = _COMMIT_HEADER.size + len(body)
    commit = bytearray(_COMMIT_HEADER.pack(*identity, previous_crc, size, count, 0) + body)
    commit += bytes(-len(commit) % BLOCK_BYTES)
    if lib.tpc_journal_commit_seal(ffi.from_buffer("uint8_t[]", commit, require_writable=True), len(commit)):
        raise ValueError("the commit's length is impossible")
    return bytes(commit), int(_COMMIT_HEADER.unpack_from(commit)[11])
