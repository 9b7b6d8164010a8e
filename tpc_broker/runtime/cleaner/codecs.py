"""Kafka's codecs for the cleaner, which unpacks and packs one batch after the other for as long as it lives."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import TYPE_CHECKING, Final

from tpc_broker.kafka.compression import Compression, compress, decompress_into
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.log.cleaning import Codec

if TYPE_CHECKING:
    from tpc_broker.native_bytes import Buffer

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of an unpacked batch: the memory of a larger one is given back behind it."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_ALLOCATOR_KEEPS_BYTES: Final = 32 * 1024 * 1024


@cache
def keep_freed_memory() -> None:
    """From here on this process's allocator keeps what is freed, up to 32 MiB.

    A compressor of zstd takes some MiB for each batch. Given back and taken anew they are zeroed page by page, which
    costs thrice what compressing a batch of 8 KiB does (mallopt(3); nothing is done where the C library has none).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _ALLOCATOR_KEEPS_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _ALLOCATOR_KEEPS_BYTES)


class _Unpacker:
    """Unpacks into memory that is used again; pages of it exist where something was written."""

    def __init__(self) -> None:
        self._output = mmap.mmap(-1, KEPT_BYTES)

    def unpack(self, compression: int, data: memoryview, bytes_max: int) -> Buffer | None:
        """See `Codec.unpack`."""
        if len(self._output) != max(1, bytes_max):
            self._output = mmap.mmap(-1, max(1, bytes_max))
        output = self._output
        view = memoryview(output)
        try:
            size = decompress_into(compression, data, view)
        except DecodeError:
            return None
        if size > KEPT_BYTES:
            self._output = mmap.mmap(-1, max(1, bytes_max))
        return view[:size]


def _pack(compression: int, data: memoryview) -> bytes:
    return compress(Compression(compression), data)


def make_codec() -> Codec:
    """For one job."""
    keep_freed_memory()
    return Codec(_Unpacker().unpack, _pack)
