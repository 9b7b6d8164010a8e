"""Bringing back batches that were written once: found in their segment, checked, and counted as appended.

Recovery cuts a segment behind the last of them, not at the checkpointed position, and goes through the journal's
entries in their order: what was journalled whole is appended, what was written once is checked where it lies and only
what its entry carries is written. An entry is written after its batch is on the disk; so a batch that is not there is
damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tpc_broker.log.batch import BATCH_HEADER_BYTES, BatchDamageError, decode_header
from tpc_broker.log.straight import STRAIGHT_HEADER_BYTES, check_batch, decode_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpc_broker.broker.storage import PartitionStorage
    from tpc_broker.broker.storage_checkpoint import JournalFile
    from tpc_broker.broker.storage_segments import SegmentFolder
    from tpc_broker.log.batch import Buffer
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.log.journal import JournalEntry


class Placement(Protocol):
    """The data plane's hold on the active segment."""

    def close(self) -> None:
        """Nothing more is written straight."""
        ...

    def end_offset(self) -> int:
        """Behind the last batch written straight that has not come here; -1: there is none."""
        ...


def kept_position(state: PartitionCheckpoint, entries: Sequence[JournalEntry]) -> int:
    """How far the checkpointed segment's file has to be kept. BatchDamageError: an entry is about another segment."""
    end = 0
    for entry in entries:
        place = decode_place(entry.payload)
        if place.segment_base_offset != state.segment_base or place.position < state.segment_position:
            where = f"segment {place.segment_base_offset} at {place.position}, not behind the checkpoint's place"
            raise BatchDamageError(f"the batch at offset {entry.offset} was written once, to {where}")
        end = max(end, place.straight[1])
    return end


async def read_batch(
    folder: SegmentFolder, journal_file: JournalFile, entry: JournalEntry, log_name: str
) -> memoryview:
    """The batch that an entry stands for. BatchDamageError: the segment does not hold it."""
    place = decode_place(entry.payload)
    rest_bytes = entry.payload_bytes - STRAIGHT_HEADER_BYTES
    if rest_bytes != place.head_bytes + place.tail_bytes:
        raise BatchDamageError(f"the entry of offset {entry.offset} has {rest_bytes} bytes behind its header")
    batch, (begin, end), head = memoryview(bytearray(place.batch_bytes)), place.straight, place.head_bytes
    if rest_bytes:
        rest = await folder.disk.read(journal_file.fd, rest_bytes, entry.payload_position + STRAIGHT_HEADER_BYTES)
        batch[:head], batch[head + end - begin :] = rest[:head], rest[head:]
    try:
        async with folder.use(log_name) as file:
            await folder.disk.read_into(file.fd, batch[head : head + end - begin], begin)
    except FileNotFoundError as error:
        raise BatchDamageError(f"the batch at offset {entry.offset} was written once to a missing segment") from error
    check_batch(entry, place, batch)
    return batch


class StraightReplay:
    """The batches of one partition that were written once, brought in between those that the journal holds whole."""

    def __init__(self, storage: PartitionStorage, journal_file: JournalFile, entries: Sequence[JournalEntry]) -> None:
        self._storage = storage
        self._journal_file = journal_file
        self._left = list(reversed(entries))
        if entries:
            storage.unrolled_offset = entries[-1].argument

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
            place, active = decode_place(entry.payload), storage.active
            if (place.segment_base_offset, place.position) != (active.base_offset, active.size_bytes):
                raise BatchDamageError(
                    f"the batch at offset {entry.offset} was written once at {place.position} of segment "
                    f"{place.segment_base_offset}; the log ends at {active.size_bytes} of {active.base_offset}"
                )
            batch = await read_batch(storage.folder, self._journal_file, entry, active.log_name)
            await storage.append([batch], [place.straight])
            read_bytes += len(batch)
        return read_bytes


def in_order(batches: memoryview, straights: list[memoryview]) -> Iterator[Buffer]:
    """Runs of batches with those written once (taken from the list) in between, by their offsets."""
    place = 0
    while straights and place < len(batches):
        offset = decode_header(straights[0]).base_offset
        cut = _first_at(batches, place, offset)
        if cut > place:
            yield batches[place:cut]
        place = cut
        if place < len(batches):
            yield straights.pop(0)
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
