"""What the kernel keeps of a folder's files in memory, and making it forget them."""

from __future__ import annotations

import ctypes
import os
import platform
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CACHESTAT: Final = 451  # the same number on every architecture (Linux 6.5)
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Pages(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently"))


def _files(folder: Path, ending: str) -> Iterator[int]:
    """A descriptor of each file, closed when the next one is asked for."""
    for path in sorted(folder.rglob(f"*{ending}")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                yield descriptor
            finally:
                os.close(descriptor)


def cached_share(folder: Path, ending: str = "") -> float:
    """The share of the bytes of all files with that ending that is in memory; NaN where the kernel does not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    cached_bytes = total_bytes = 0
    for descriptor in _files(folder, ending):
        asked, found = _Range(0, 0), _Pages()
        if platform.system() != "Linux" or libc.syscall(
            _CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(found), 0
        ):
            return float("nan")
        cached_bytes += found.cached * _PAGE_BYTES
        total_bytes += os.fstat(descriptor).st_size
    return min(1.0, cached_bytes / total_bytes) if total_bytes else 0.0


def drop_cached(folder: Path) -> None:
    """Make the kernel forget the pages of all files, of those that are open elsewhere too; dirty ones are written."""
    for descriptor in _files(folder, ""):
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
