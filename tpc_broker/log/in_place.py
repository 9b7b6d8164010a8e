"""Batches that were written in place: what their journal entries say, and whether a segment still holds them.

`native/journal/in_place.h` has the theory. An entry of kind IN_PLACE stands for one batch. It names the batch's place
in its segment and the CRC of its header, and carries the few bytes in front of and behind the whole blocks that lie in
the segment's file. The header has the CRC of the records, so every byte of the batch is checked.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.limits import BLOCK_BYTES
from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header
from tpc_broker.native_bytes import crc32c

if TYPE_CHECKING:
    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.journal import JournalEntry

_HEADER: Final = struct.Struct("<qqIIII")
IN_PLACE_HEADER_BYTES: Final = _HEADER.size
_CRC_COVERS_FROM: Final = 21

assert _HEADER.size == 32


class InPlaceExtent(NamedTuple):
    """`tpc_journal_in_place_header`."""

    segment_base_offset: int
    position: int
    batch_bytes: int
    head_bytes: int
    tail_bytes: int
    header_crc: int

    @property
    def in_place(self) -> tuple[int, int]:
        """What of the batch is in the segment's file."""
        return self.position + self.head_bytes, self.position + self.batch_bytes - self.tail_bytes

    @property
    def blocks(self) -> tuple[int, int]:
        """What was written in place with it: the end of the batch before, too, when both were in one commit."""
        begin, end = self.in_place
        return begin // BLOCK_BYTES * BLOCK_BYTES, end


def decode_extent(payload: Buffer) -> InPlaceExtent:
    """Of an entry's payload, or of its beginning. BatchDamageError: it contradicts itself."""
    if len(payload) < IN_PLACE_HEADER_BYTES:
        raise BatchDamageError(f"a in-place entry of {len(payload)} bytes")
    place = InPlaceExtent(*_HEADER.unpack_from(payload))
    if place.position < 0 or place.head_bytes + place.tail_bytes > place.batch_bytes:
        raise BatchDamageError(f"a in-place entry with {place}")
    return place


def check_batch(entry: JournalEntry, place: InPlaceExtent, batch: memoryview) -> None:
    """BatchDamageError: these bytes are not the batch that was acknowledged."""
    where = f"the batch at offset {entry.offset} (commit {entry.sequence}, segment {place.segment_base_offset})"
    if len(batch) != place.batch_bytes or crc32c(batch[:BATCH_HEADER_BYTES]) != place.header_crc:
        raise BatchDamageError(f"{where} was written in place, and is not in its segment")
    header = decode_header(batch)
    if (header.size_bytes, header.base_offset, header.next_offset) != (place.batch_bytes, entry.offset, entry.argument):
        raise BatchDamageError(f"{where} is another one than its entry says")
    if crc32c(batch[_CRC_COVERS_FROM:]) != header.crc:
        raise BatchDamageError(f"{where} was written in place, and its records are damaged in the segment")
