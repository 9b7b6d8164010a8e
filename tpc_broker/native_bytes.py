"""The Python face of the byte helpers in C (``native/bytes``): checksums, and where sound batches end.

Everything here is synchronous, takes bytes-like objects, and is safe with hostile input: what is malformed is an
answer, never a crash. Nothing but `pinned` keeps a reference to its arguments beyond the call.

``ffi`` and ``lib`` are the raw extension, for callers that keep C structures.
"""

import bisect
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

from tpc_broker._bytes import ffi as ffi  # noqa: PLC0414 (both are offered to callers, see above)
from tpc_broker._bytes import lib as lib  # noqa: PLC0414

Buffer: TypeAlias = bytes | bytearray | memoryview


_BYTES = ffi.typeof("uint8_t *")
_OFFSET_MAX = 2**63 - 1


def pinned(data: Any, *, writable: bool = False) -> tuple[Any, int, object]:
    """A pointer to the bytes of a buffer, how many they are, and what has to be held as long as C may look at them.

    What `ffi.from_buffer` makes is for the arguments of a call, and never kept: Python before 3.12.7 crashes when it
    collects a cycle with such an object and a memoryview that it was made of (gh-77894), and the traceback of an
    exception that was put by is such a cycle. `BufferError`: the bytes do not lie in a row, or cannot be written to.
    """
    view = memoryview(data)
    given = ffi.from_buffer(view, require_writable=writable)
    pointer = ffi.cast(_BYTES, given)
    ffi.release(given)
    return pointer, view.nbytes, view


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of ``data``, continuing from ``crc``."""
    return int(lib.tpc_crc32c(crc, ffi.from_buffer(data), memoryview(data).nbytes))


def find_batches_end(
    data: Buffer, next_offset: int, epochs: Sequence[tuple[int, int]] = (), *, allow_gaps: bool = True
) -> tuple[int, int]:
    """How many bytes of ``data`` are whole batches with right checksums, and the offset behind the last one.

    Their offsets rise from `next_offset` on (-1: from any), without gaps unless `allow_gaps`. `epochs`: leader epochs
    and the offsets that they begin at, in order; a batch from the first one on has the epoch of its place.
    """
    state = ffi.new("tpc_scan_state *")
    state.next_offset = next_offset
    flags = lib.TPC_SCAN_CHECK_CRC | (lib.TPC_SCAN_ALLOW_GAPS if allow_gaps else 0)
    source, size = ffi.from_buffer(data), memoryview(data).nbytes
    first = bisect.bisect_right(epochs, next_offset, key=operator.itemgetter(1))
    for number in range(first, len(epochs) + 1):
        state.leader_epoch = epochs[number - 1][0] if number else -1
        state.epoch_end = epochs[number][1] if number < len(epochs) else _OFFSET_MAX
        lib.tpc_batch_scan(source, size, flags | lib.TPC_SCAN_CHECK_EPOCH, state, ffi.NULL, 0)
        if state.reason or state.position == size:
            break
    return int(state.position), int(state.next_offset)


def keyless_records(records: Buffer, count: int) -> tuple[int, ...] | None:
    """Places of those of a batch's records, unpacked, that have no key. None: they are not so many, or malformed."""
    source, size = ffi.from_buffer(records), memoryview(records).nbytes
    found = lib.tpc_records_keyless(source, size, count, ffi.NULL, 0)
    if found <= 0:
        return None if found else ()
    places = ffi.new("int32_t[]", found)
    lib.tpc_records_keyless(source, size, count, places, found)
    return tuple(places)
