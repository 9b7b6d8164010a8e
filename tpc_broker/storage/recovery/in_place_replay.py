"""Bringing back batches that were written in place: found in their segment, checked, and counted as appended.

Recovery cuts a segment behind the last of them, not at the checkpointed position, and goes through the journal's
entries in their order: what was journalled whole is appended, what was written in place is checked where it lies and
only what its entry carries is written. An entry is written after its batch is on the disk; so a batch that is not there
is damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header
from tpc_broker.log.in_place import IN_PLACE_HEADER_BYTES, check_batch, decode_extent
from tpc_broker.storage.segments.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.journal import JournalEntry
    from tpc_broker.storage.recovery.checkpoint import JournalFile
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.segments.segments import SegmentFolder


def kept_position(state: PartitionCheckpoint, entries: Sequence[JournalEntry]) -> int:
    """How far the checkpointed segment's file has to be kept. BatchDamageError: an entry is about another segment."""
    end = 0
    for entry in entries:
        extent = decode_extent(entry.payload)
        if extent.segment_base_offset != state.segment_base or extent.position < state.segment_position:
            where = f"segment {extent.segment_base_offset} at {extent.position}, not behind the checkpoint's place"
            raise BatchDamageError(f"the batch at offset {entry.offset} was written in place, to {where}")
        end = max(end, extent.in_place[1])
    return end


async def read_batch(
    folder: SegmentFolder, journal_file: JournalFile, entry: JournalEntry, log_name: str
) -> memoryview:
    """The batch that an entry stands for. BatchDamageError: the segment does not hold it."""
    extent = decode_extent(entry.payload)
    rest_bytes = entry.payload_bytes - IN_PLACE_HEADER_BYTES
    if rest_bytes != extent.head_bytes + extent.tail_bytes:
        raise BatchDamageError(f"the entry of offset {entry.offset} has {rest_bytes} bytes behind its header")
    batch, (begin, end), head = memoryview(bytearray(extent.batch_bytes)), extent.in_place, extent.head_bytes
    if rest_bytes:
        rest = await folder.disk.read(journal_file.fd, rest_bytes, entry.payload_position + IN_PLACE_HEADER_BYTES)
        batch[:head], batch[head + end - begin :] = rest[:head], rest[head:]
    try:
        async with folder.use(log_name) as file:
            await folder.disk.read_into(file.fd, batch[head : head + end - begin], begin)
    except FileNotFoundError as error:
        problem = f"the batch at offset {entry.offset} was written in place to a missing segment"
        raise BatchDamageError(problem) from error
    check_batch(entry, extent, batch)
    return batch


async def whole_batch(folder: SegmentFolder, journal_file: JournalFile, entry: JournalEntry) -> memoryview | None:
    """The batch that an entry of kind IN_PLACE stands for, from whichever segment it names; None: it is not there."""
    try:
        log_name = Segment(decode_extent(entry.payload).segment_base_offset).log_name
        return await read_batch(folder, journal_file, entry, log_name)
    except BatchDamageError:
        return None


class InPlaceReplay:
    """One partition's batches that were written in place, brought in between those that the journal holds whole."""

    def __init__(self, storage: PartitionStorage, journal_file: JournalFile, entries: Sequence[JournalEntry]) -> None:
        self._storage = storage
        self._journal_file = journal_file
        self._left = list(reversed(entries))
        if entries:
            storage.rolls.hold_until(entries[-1].argument)

    async def append(self, batches: memoryview) -> int:
        """Append what the journal holds whole, and what belongs in between; how many bytes of the latter."""
        place = read_bytes = 0
        while self._left and place < len(batches):
            read_bytes += await self.bring_in()
            cut = _first_at(batches, place, self._left[-1].offset) if self._left else len(batches)
            if cut == place:
                raise BatchDamageError(f"the journal has no batch at offset {self._storage.written_end_offset}")
            await self._storage.append([batches[place:cut]])
            place = cut
        if place < len(batches):
            await self._storage.append([batches[place:]])
        return read_bytes

    async def bring_in(self) -> int:
        """What follows the log's end as it is now."""
        storage, read_bytes = self._storage, 0
        while self._left and self._left[-1].offset == storage.written_end_offset:
            entry = self._left.pop()
            extent, active = decode_extent(entry.payload), storage.active
            if (extent.segment_base_offset, extent.position) != (active.base_offset, active.size_bytes):
                raise BatchDamageError(
                    f"the batch at offset {entry.offset} was written in place at {extent.position} of segment "
                    f"{extent.segment_base_offset}; the log ends at {active.size_bytes} of {active.base_offset}"
                )
            batch = await read_batch(storage.folder, self._journal_file, entry, active.log_name)
            await storage.append([batch], [extent.in_place])
            read_bytes += len(batch)
        return read_bytes


def in_order(batches: memoryview, in_place_writes: list[memoryview]) -> Iterator[Buffer]:
    """Runs of batches with those written in place (taken from the list) in between, by their offsets."""
    place = 0
    while in_place_writes and place < len(batches):
        offset = decode_header(in_place_writes[0]).base_offset
        cut = _first_at(batches, place, offset)
        if cut > place:
            yield batches[place:cut]
        place = cut
        if place < len(batches):
            yield in_place_writes.pop(0)
    if place < len(batches):
        yield batches[place:]


def _first_at(batches: Buffer, place: int, offset: int) -> int:
    """Where the first batch from a place on lies that begins at or behind an offset; the end when there is none."""
    while place + BATCH_HEADER_BYTES <= len(batches):
        header = decode_header(batches, place)
        if header.base_offset >= offset:
            return place
        place += header.size_bytes
    return len(batches)
