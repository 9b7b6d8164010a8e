"""Reads and writes journal files as `native/bytes/journal_format.h` describes them: a second opinion to the C code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.record_batches import crc32c
from tpc_broker.log.journal import CommitCursor
from tpc_broker.model import TopicPartition

BLOCK_BYTES = 4096
REGION_BLOCK_FIRST = 2
APPEND, CUT, EPOCH, LOG_START, PARTITION_DELETED, NOTE = range(1, 7)

_COMMIT = struct.Struct("<IHH16sQQQQIIII24s")
_ENTRY = struct.Struct("<IBBH16siIqq")
COMMIT_MAGIC, FORMAT_VERSION, ENTRY_ALIGNMENT = b"TPCJ", 1, 8
COMMIT_HEADER_BYTES = _COMMIT.size
ENTRY_HEADER_BYTES = _ENTRY.size


@dataclass(frozen=True)
class Entry:
    kind: int
    topic_id: bytes
    partition: int
    offset: int
    argument: int
    payload: bytes


@dataclass(frozen=True)
class Commit:
    block: int
    blocks: int
    journal_id: bytes
    run_id: int
    sequence: int
    durable_sequence: int
    previous_crc: int
    crc: int
    entries: tuple[Entry, ...]


def commit_at(data: bytes, block: int) -> Commit | None:
    """The commit that starts at this block of the file, or None when none does or its CRC is wrong."""
    start = block * BLOCK_BYTES
    if start + COMMIT_HEADER_BYTES > len(data):
        return None
    fields = _COMMIT.unpack_from(data, start)
    magic, version, _flags, journal_id, run_id, sequence, durable, _ms, previous_crc, size, count, crc, _pad = fields
    if magic != 0x4A435054 or version != 1 or start + size > len(data):
        return None
    raw = bytearray(data[start : start + size])
    raw[68:72] = bytes(4)
    if crc32c(bytes(raw)) != crc:
        return None
    blocks = -(-size // BLOCK_BYTES)
    assert not any(data[start + size : (block + blocks) * BLOCK_BYTES]), "the padding is not zeros"
    entries, position = [], COMMIT_HEADER_BYTES
    for _ in range(count):
        position = -(-position // 8) * 8
        length, kind, _, _, topic_id, partition, _, offset, argument = _ENTRY.unpack_from(raw, position)
        payload = bytes(raw[position + ENTRY_HEADER_BYTES : position + length])
        entries.append(Entry(kind, topic_id, partition, offset, argument, payload))
        position += length
    assert position == size
    return Commit(block, blocks, journal_id, run_id, sequence, durable, previous_crc, crc, tuple(entries))


def read_chain(data: bytes, block: int, sequence: int, previous_crc: int, region_blocks: int) -> list[Commit]:
    """The unbroken chain from this place on."""
    commits: list[Commit] = []
    while True:
        found = None
        for candidate in (block, REGION_BLOCK_FIRST):
            commit = commit_at(data, candidate)
            if commit and commit.sequence == sequence and commit.previous_crc == previous_crc:
                found = commit
                break
        if found is None:
            return commits
        assert found.block + found.blocks <= REGION_BLOCK_FIRST + region_blocks
        commits.append(found)
        block = REGION_BLOCK_FIRST + (found.block - REGION_BLOCK_FIRST + found.blocks) % region_blocks
        sequence, previous_crc = sequence + 1, found.crc


def encode_entry(
    kind: int, partition: TopicPartition, offset: int = 0, argument: int = 0, payload: bytes = b"", *, flags: int = 0
) -> bytes:
    """One entry, without the zeros that align the next one."""
    header = _ENTRY.pack(
        _ENTRY.size + len(payload), kind, flags, 0, partition.topic_id.bytes, partition.partition, 0, offset, argument
    )
    return header + payload


def encode_vote(node: int) -> bytes:
    """Payload of an EPOCH entry that carries a vote."""
    return struct.pack("<i", node)


def encode_commit(
    place: CommitCursor,
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
        body += bytes(-len(body) % ENTRY_ALIGNMENT) + entry
    fields = (
        int.from_bytes(COMMIT_MAGIC, "little"),
        FORMAT_VERSION,
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
