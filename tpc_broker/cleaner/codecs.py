"""Kafka's codecs for the cleaner, which unpacks and packs one batch after the other for as long as it lives."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.cleaner.memory import map_memory
from tpc_broker.kafka.compression import Compression, compress, compress_small, decompress_into
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.log.cleaning import Codec, NativeCodecs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.native_bytes import Buffer

KEPT_BYTES: Final = 16 * 1024 * 1024
"""Of an unpacked batch: the memory of a larger one is given back before the next."""
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_ALLOCATOR_KEEPS_BYTES: Final = 32 * 1024 * 1024
_LEVEL, _HASH_LOG, _CHAIN_LOG, _MIN_MATCH, _STRATEGY = 100, 102, 103, 105, 107  # ZSTD_cParameter
_FAST, _DOUBLE_FAST = 1, 2  # ZSTD_strategy
_AS_KAFKA: Final = {_LEVEL: 3, _HASH_LOG: 17, _CHAIN_LOG: 16, _MIN_MATCH: 5, _STRATEGY: _DOUBLE_FAST}
"""What zstd takes at its default level for a stream of unknown length, which is what Kafka packs. Told the length it
would take others for a small one, and make it larger.
"""
_SMALL: Final = {_LEVEL: 1, _HASH_LOG: 17, _MIN_MATCH: 5, _STRATEGY: _FAST}
SMALL_BYTES: Final = 12 * 1024
"""Of records: with one table for matches so few take half of the time, and as much room but for a fraction of a
percent.
"""


@cache
def keep_freed_memory() -> None:
    """From here on this process's allocator keeps what is freed, up to 32 MiB.

    A compressor of zstd takes some MiB for each batch. Given back and taken anew they are zeroed page by page, which
    costs thrice what compressing a batch of 8 KiB does (mallopt(3); nothing is done where the C library has none). No
    thread gets a heap of its own: each takes 64 MiB of the address space that a job may have.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _ALLOCATOR_KEEPS_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _ALLOCATOR_KEEPS_BYTES)
        mallopt(_M_ARENA_MAX, 1)


class _Unpacker:
    """Unpacks into memory that is used again; pages of it exist where something was written."""

    def __init__(self) -> None:
        self._output = map_memory(mmap.PAGESIZE)
        self._used_bytes = 0

    def unpack(self, compression: int, data: memoryview, bytes_max: int) -> Buffer | None:
        """See `Codec.unpack`."""
        if len(self._output) != max(1, bytes_max):
            self._output = map_memory(max(1, bytes_max))
        if self._used_bytes > KEPT_BYTES:
            self._output.madvise(mmap.MADV_DONTNEED)
        view = memoryview(self._output)
        self._used_bytes = bytes_max
        try:
            size = self._used_bytes = decompress_into(compression, data, view)
        except DecodeError:
            return None
        return view[:size]


def _pack(compression: int, data: memoryview) -> bytes:
    return compress(Compression(compression), data)


def _pack_smallest(compression: int, data: memoryview) -> bytes:
    return compress_small(Compression(compression), data)


class _Libraries:
    """liblz4 and libzstd of the system, as far as they are there: nearly every Linux has them, nothing asks for them.

    With a context that is used again zstd takes two thirds of the time (a batch of 16 KiB), and without a detour over
    Python lz4 half of it. What they cannot do, or are not there for, cramjam does.
    """

    def __init__(self) -> None:
        self.native = NativeCodecs()
        for name, take in (("liblz4.so.1", self._take_lz4), ("libzstd.so.1", self._take_zstd)):
            library = _library(name)
            if library is not None:
                with suppress(AttributeError):  # another library of this name
                    take(library)

    def _take_lz4(self, lz4: ctypes.CDLL) -> None:
        self.native = self.native._replace(
            lz4_unpack=_address(lz4.LZ4_decompress_safe), lz4_pack=_address(lz4.LZ4_compress_default)
        )

    def _take_zstd(self, zstd: ctypes.CDLL) -> None:
        unpacks = self._context(zstd, "D")
        packs, packs_small = self._context(zstd, "C"), self._context(zstd, "C")
        is_set = _set_all(zstd, packs, _AS_KAFKA) and _set_all(zstd, packs_small, _SMALL)
        if unpacks and packs and packs_small and is_set:
            self.native = self.native._replace(
                zstd_unpack=_address(zstd.ZSTD_decompressDCtx),
                zstd_pack=_address(zstd.ZSTD_compress2),
                zstd_is_error=_address(zstd.ZSTD_isError),
                zstd_unpack_context=unpacks,
                zstd_pack_context=packs,
                zstd_pack_small_context=packs_small,
                small_bytes=SMALL_BYTES,
            )

    def _context(self, zstd: ctypes.CDLL, kind: str) -> int:
        """To be used again, until this object goes; 0: there is no memory."""
        make, free = zstd[f"ZSTD_create{kind}Ctx"], zstd[f"ZSTD_free{kind}Ctx"]
        make.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        context = make()
        weakref.finalize(self, free, context)
        return context or 0


def _set_all(zstd: ctypes.CDLL, context: int, parameters: dict[int, int]) -> bool:
    """Parameters stay set from one batch to the next."""
    put, is_error = zstd.ZSTD_CCtx_setParameter, zstd.ZSTD_isError
    put.argtypes, put.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int], ctypes.c_size_t
    is_error.argtypes = [ctypes.c_size_t]
    return bool(context) and not any(is_error(put(context, *each)) for each in parameters.items())


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@contextmanager
def codec_of_a_job() -> Iterator[Codec]:
    """What it needs is given back behind it."""
    keep_freed_memory()
    libraries = _Libraries()
    yield Codec(_Unpacker().unpack, _pack, _pack_smallest, libraries.native)
    del libraries
