"""Files that are read past the page cache by whoever looks at all of a data directory, beside a broker or without."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import TYPE_CHECKING, Final

from tpc_broker.log.journal import BLOCK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tpc_broker.native_bytes import Buffer

READ_BYTES: Final = 1024 * 1024


class SegmentFile:
    """A file that is read in whole blocks past the page cache, or through it where the file system has no other way."""

    def __init__(self, path: Path) -> None:
        self._memory = mmap.mmap(-1, READ_BYTES + 2 * BLOCK_BYTES)  # first: nothing is left open when it is refused
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, length: int) -> memoryview:
        """As much of it as there is; the bytes are valid until the next call. OSError: the disk cannot."""
        first = position // BLOCK_BYTES * BLOCK_BYTES
        wanted = -(-(position + length - first) // BLOCK_BYTES) * BLOCK_BYTES
        if len(self._memory) < wanted:
            self._memory = mmap.mmap(-1, wanted)
        done = 0
        while done < wanted:
            got = self._read_into(memoryview(self._memory)[done:wanted], first + done)
            done += got
            if got == 0 or done % BLOCK_BYTES:
                break
        return memoryview(self._memory)[position - first : max(min(done, position + length - first), position - first)]

    def _read_into(self, view: memoryview, position: int) -> int:
        try:
            return os.preadv(self._fd, [view], position)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            return os.preadv(self._fd, [view], position)

    def close(self) -> None:
        os.close(self._fd)


def pieces(path: Path, spend: Callable[[int], None] = lambda _count: None) -> Iterator[Buffer]:
    """All of a file, one behind the other. OSError."""
    file = SegmentFile(path)
    try:
        position = 0
        while len(data := file.read(position, READ_BYTES)):
            yield data
            position += len(data)
            spend(len(data))
    finally:
        file.close()
