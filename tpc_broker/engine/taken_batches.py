"""Durable batches between the data plane's memory and the segments (`tpc_broker.storage.ports.Taken`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from tpc_broker import limits
from tpc_broker._ring import ffi, lib

if TYPE_CHECKING:
    from tpc_broker._ring import tpc_plane, tpc_tail_batch

COPIED_BATCH_BYTES_MAX: Final = 32 * 1024
"""On average; larger batches are written from where they lie."""
_new_uncleared = ffi.new_allocator(should_clear_after_alloc=False)


class TakenBatches:
    """Durable batches on their way to the segments. A context: it gives the references back."""

    def __init__(self, plane: tpc_plane, arrays: list[tpc_tail_batch], batches: tpc_tail_batch, count: int) -> None:
        self._plane = plane
        self._arrays = arrays
        self._batches = batches
        self._count = count
        self.size = int(lib.tpc_tail_batches_bytes(batches, count))
        self.base_offset: int = batches[0].base_offset
        self.end_offset: int = batches[count - 1].next_offset

    @property
    def buffers(self) -> list[Any]:
        """Where the batches lie. Small ones are copied into one buffer: a buffer for each would cost Python and the
        kernel more than the copy.
        """
        batches, count = self._batches, self._count
        if count > 1 and self.size < count * COPIED_BATCH_BYTES_MAX:
            buffer = _new_uncleared("uint8_t[]", self.size)
            lib.tpc_tail_batches_copy(self._plane, batches, count, buffer)
            return [ffi.buffer(buffer)]
        return [ffi.buffer(batches[n].slice.data, batches[n].slice.length) for n in range(count)]

    @property
    def in_place(self) -> list[tuple[int, int]]:
        """Of the segment's file: what was written in place of these batches, as ranges that do not touch."""
        ranges: list[tuple[int, int]] = []
        number = self._next_in_place(0)
        while number < self._count:
            batch = self._batches[number]
            begin = batch.in_place_block * limits.BLOCK_BYTES
            end = begin + batch.in_place_blocks * limits.BLOCK_BYTES
            if ranges and ranges[-1][1] == begin:
                ranges[-1] = (ranges[-1][0], end)
            else:
                ranges.append((begin, end))
            number = self._next_in_place(number + 1)
        return ranges

    def _next_in_place(self, number: int) -> int:
        """Small batches, of which there are many, never are: C looks over them."""
        return int(lib.tpc_tail_batches_next_in_place(self._batches, self._count, number))

    def copy_to(self, target: memoryview) -> None:
        """All of them in a row."""
        assert len(target) >= self.size, (len(target), self.size)
        lib.tpc_tail_batches_copy(self._plane, self._batches, self._count, ffi.from_buffer("uint8_t[]", target))

    def whole_bytes(self, bytes_max: int) -> int:
        """Of the leading batches that lie wholly in the first so many bytes."""
        return int(lib.tpc_tail_batches_within(self._batches, self._count, bytes_max))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Give the references back: what the context does at its end."""
        lib.tpc_tail_batches_release(self._batches, self._count)
        self._arrays.append(self._batches)
