"""The Python face of the byte helpers in C (``native/bytes``): checksums, and where sound batches end.

Everything here is synchronous, takes bytes-like objects, and is safe with hostile input: what is malformed is an
answer, never a crash. Nothing keeps a reference to its arguments beyond the call.

``ffi`` and ``lib`` are the raw extension, for callers that keep C structures.
"""

from typing import TypeAlias

from tpc_broker._bytes import ffi as ffi  # noqa: PLC0414 (both are offered to callers, see above)
from tpc_broker._bytes import lib as lib  # noqa: PLC0414

Buffer: TypeAlias = bytes | bytearray | memoryview


def crc32c(data: Buffer, crc: int = 0) -> int:
    """CRC-32C of ``data``, continuing from ``crc``."""
    view = ffi.from_buffer(data)
    return int(lib.tpc_crc32c(crc, view, len(view)))


def find_batches_end(data: Buffer, next_offset: int) -> tuple[int, int]:
    """How many bytes of ``data`` are whole batches with right checksums and rising offsets (not below ``next_offset``,
    -1: any), and the offset behind the last one.
    """
    state = ffi.new("tpc_scan_state *")
    state.next_offset = next_offset
    view = ffi.from_buffer("uint8_t[]", data)
    flags = lib.TPC_SCAN_CHECK_CRC | lib.TPC_SCAN_ALLOW_GAPS
    lib.tpc_batch_scan(view, len(view), flags, state, ffi.NULL, 0)
    return int(state.position), int(state.next_offset)
