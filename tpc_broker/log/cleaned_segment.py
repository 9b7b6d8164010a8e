"""What a cleaner writes of one segment, while it is written: its indexes, its checksums, and its seal at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.batch import BatchDamageError
from tpc_broker.log.indexes import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from tpc_broker.log.seals import Seal, SealedFile
from tpc_broker.log.segment import SegmentIndexes, WalkStop
from tpc_broker.native_bytes import crc32c, ffi, lib, pinned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.log.cleaning_job import CleaningSource
    from tpc_broker.log.indexes import AbortedTransaction

LOG_BYTES_MAX: Final = 2**31 - 1
"""Positions in indexes are i32."""
_ENTRIES_PER_STEP: Final = 1024
_OFFSET_ENTRIES: Final = ffi.new("uint8_t[]", _ENTRIES_PER_STEP * OFFSET_ENTRY_BYTES)
_TIME_ENTRIES: Final = ffi.new("uint8_t[]", _ENTRIES_PER_STEP * TIME_ENTRY_BYTES)
_LIFTED: Final = 2**63 - 1


class SegmentFullError(ValueError):
    """What is to stay does not fit into one segment."""


class CleanedIndexes(NamedTuple):
    """As files hold them, in the order of `files.CLEANED_SUFFIXES`."""

    offsets: bytes
    times: bytes
    transactions: bytes


class CleanedSegment:
    """Takes the place of `sources`. `index_bytes_max`: of each index, None for what comes."""

    def __init__(
        self, sources: Sequence[CleaningSource], *, index_interval_bytes: int, index_bytes_max: int | None
    ) -> None:
        self.sources = tuple(sources)
        self.size_bytes = 0
        self.crc = 0
        self._indexes = SegmentIndexes(self.base_offset, index_interval_bytes)
        state = self._state = ffi.new("tpc_segment_state *")
        state.base_offset = state.next_offset = self.base_offset
        state.segment_bytes, state.segment_ms = LOG_BYTES_MAX, _LIFTED
        state.index_interval_bytes = index_interval_bytes
        state.largest_timestamp = state.largest_timestamp_offset = -1
        state.first_timestamp = state.last_entry_timestamp = -1
        state.offset_entries_max = _LIFTED if index_bytes_max is None else index_bytes_max // OFFSET_ENTRY_BYTES
        state.time_entries_max = _LIFTED if index_bytes_max is None else index_bytes_max // TIME_ENTRY_BYTES - 1

    @property
    def base_offset(self) -> int:
        return self.sources[0].base_offset

    def add(self, data: memoryview) -> None:
        """Batches that were written behind the others. SegmentFullError: they may not be."""
        pointer, size, _held = pinned(data)
        state, indexes = self._state, self._indexes
        state.place = 0
        stop = WalkStop.ROOM
        while stop is WalkStop.ROOM:
            result = lib.tpc_segment_index(pointer, size, state, _OFFSET_ENTRIES, _TIME_ENTRIES, _ENTRIES_PER_STEP)
            assert result == 0, result
            stop = WalkStop(state.stop)
            indexes.offsets.data += ffi.buffer(_OFFSET_ENTRIES, state.offset_entries_made * OFFSET_ENTRY_BYTES)
            indexes.times.data += ffi.buffer(_TIME_ENTRIES, state.time_entries_made * TIME_ENTRY_BYTES)
        if stop is WalkStop.ROLL:
            raise SegmentFullError(f"{state.position} bytes, {state.offset_entries} index entries")
        if stop is not WalkStop.END:  # it was made of sound ones
            raise BatchDamageError(f"a cleaned batch at {state.position} is none: {state.reason}")
        self.size_bytes += size
        self.crc = crc32c(data, self.crc)

    def finish(self, aborted: Sequence[AbortedTransaction]) -> CleanedIndexes:
        """Nothing will be added any more."""
        indexes, state = self._indexes, self._state
        indexes.largest_timestamp, indexes.largest_timestamp_offset = (
            state.largest_timestamp,
            state.largest_timestamp_offset,
        )
        indexes.seal()
        for one in aborted:
            indexes.transactions.append(one)
        return CleanedIndexes(bytes(indexes.offsets.data), bytes(indexes.times.data), indexes.transactions.encode())

    def seal(
        self,
        generation: str,
        indexes: CleanedIndexes,
        *,
        first_dirty_offset: int,
        removed_upto: int,
        batches_count: int,
    ) -> Seal:
        """Of all of it. `removed_upto`: by this cleaning."""
        return Seal(
            generation=generation,
            base_offset=self.base_offset,
            end_offset=self.sources[-1].end_offset,
            replaced=tuple(source.base_offset for source in self.sources),
            first_dirty_offset=first_dirty_offset,
            removed_upto=max(removed_upto, *(source.removed_upto for source in self.sources)),
            batches_count=batches_count,
            modified_ms=self.modified_ms,
            log=SealedFile(self.size_bytes, self.crc),
            offset_index=_sealed(indexes.offsets),
            time_index=_sealed(indexes.times),
            transaction_index=_sealed(indexes.transactions),
        )

    @property
    def modified_ms(self) -> int:
        return max(source.modified_ms for source in self.sources)


def _sealed(data: bytes) -> SealedFile:
    return SealedFile(len(data), crc32c(data))
