"""The log of a cleaned segment, written beside the work that makes it.

By way of the page cache a quarter of an uncompressed job was copies, pages, their writing and their dropping, and as
much stood there in front of others' durable writes as the kernel likes. So pieces go to the disk as they are (O_DIRECT,
open(2)), one at a time, by a thread that does nothing but wait for them: nobody waits behind more than one. A file that
has no whole piece needs neither.

Where a file system has no O_DIRECT, or not for these pieces, they go through the page cache: the kernel is told to
begin with each, to drop the one before, and is waited for from time to time, so that they do not pile up.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from tpc_broker.cleaner.memory import map_memory

if TYPE_CHECKING:
    from pathlib import Path

PIECE_BYTES: Final = 1024 * 1024
"""Written at a time. A multiple of what any disk writes."""
PIECES: Final = 4
"""One is filled while others are written, or wait for it."""
DURABLE_BYTES: Final = 128 * 1024 * 1024
"""So much goes into the page cache before it is waited for, where it has to."""


class LogWriter:
    """Of one new file. OSError of a piece comes with one of the calls behind it. `close` in any case."""

    def __init__(self, path: Path) -> None:
        self._fd = create(path)
        self._is_direct: bool | None = None
        self._pieces: list[memoryview] = []
        self._filled = self._handed = self._durable = 0
        self._under_way: deque[Future[None]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def write(self, data: memoryview) -> None:
        """Behind what is there. `data` is copied."""
        if not self._pieces:
            memory = memoryview(map_memory(PIECES * PIECE_BYTES))
            self._pieces = [memory[at : at + PIECE_BYTES] for at in range(0, len(memory), PIECE_BYTES)]
        while data.nbytes:
            count = min(data.nbytes, PIECE_BYTES - self._filled)
            self._piece[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == PIECE_BYTES:
                self._hand_over()

    def finish(self, modified_ns: int) -> None:
        """All of it is durable, was written at that time, and is not in the page cache."""
        self._wait(0)
        self._set_direct(is_wanted=False)
        if self._filled:
            write_at(self._fd, self._piece[: self._filled], self._handed)
        os.utime(self._fd, ns=(modified_ns, modified_ns))
        os.fsync(self._fd)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """When no write is under way any more."""
        if self._thread is not None:
            self._thread.shutdown()
        self._pieces = []
        os.close(self._fd)

    @property
    def _piece(self) -> memoryview:
        return self._pieces[self._handed // PIECE_BYTES % PIECES]

    def _hand_over(self) -> None:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1)
        self._under_way.append(self._thread.submit(self._put, self._piece, self._handed))
        self._handed += PIECE_BYTES
        self._filled = 0
        self._wait(PIECES - 1)

    def _wait(self, left: int) -> None:
        """Until no more than so many pieces are under way."""
        while len(self._under_way) > left:
            self._under_way.popleft().result()

    # In the thread

    def _put(self, piece: memoryview, position: int) -> None:
        if self._is_direct is None:
            self._is_direct = self._set_direct(is_wanted=True)
        if self._is_direct:
            try:
                write_at(self._fd, piece, position)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._set_direct(is_wanted=False)
                self._is_direct = False
            else:
                return
        write_at(self._fd, piece, position)
        end = position + len(piece)
        if end - self._durable >= DURABLE_BYTES:
            os.fdatasync(self._fd)
            self._durable = end
        begin = max(0, position - PIECE_BYTES)
        os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_DONTNEED)

    def _set_direct(self, *, is_wanted: bool) -> bool:
        """Whether it is so now; some file systems have no O_DIRECT, some hosts refuse it."""
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if is_wanted else flags & ~os.O_DIRECT
        if wanted != flags:
            try:
                fcntl.fcntl(self._fd, fcntl.F_SETFL, wanted)
            except OSError:
                return False
        return is_wanted


def create(path: Path) -> int:
    """A file that was not there, to be written."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)


def write_at(fd: int, data: memoryview, position: int) -> None:
    """All of it."""
    while data.nbytes:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written
