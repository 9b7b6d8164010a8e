"""Open files of one core's partitions: shared between readers and the writer, bounded in number, closed when idle.

A file is opened when it is first wanted and stays open as long as there is room. Least recently used ones are closed
first, except those in use and those that are *dirty*: a file with writes that no sync has covered is never closed,
because an error of the kernel's own write-back would be reported to nobody.

A file may have a second descriptor for writes past the page cache (O_DIRECT). Both see the same bytes: the kernel
writes back and drops the pages that a direct write covers.
"""

from __future__ import annotations

import errno
import logging
import mmap
import os
from collections import OrderedDict
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from tpc_broker.broker.ports import Disk

log = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 2048
DIRECT_BLOCK_BYTES: Final = 4096
"""Address, length and position of a direct write are multiples of it: enough for every disk with blocks up to this."""
_CLEARED_AT_ONCE_BYTES: Final = 256 * 1024


def aligned_buffer(length: int, let_through: Callable[[], None]) -> memoryview:
    """Memory that direct writes can start from, at the beginning of a page. All of it is there: the first write into it
    would wait half a millisecond for the kernel to clear it, and does so here, with others let through in between.
    """
    memory = mmap.mmap(-1, length)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    for first in range(0, length, _CLEARED_AT_ONCE_BYTES):
        pages = view[first : first + _CLEARED_AT_ONCE_BYTES : mmap.PAGESIZE]
        pages[:] = bytes(len(pages))
        let_through()
    return view


class OpenFile:
    """One open file. `dirty`: written since its last sync began."""

    __slots__ = ("direct_fd", "dirty", "fd", "forgotten", "path", "users")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.direct_fd = -1
        self.users = 0
        self.dirty = False
        self.forgotten = False


class FileCache:
    """The open files of one core, by path."""

    def __init__(self, disk: Disk, open_files_max: int = OPEN_FILES_MAX) -> None:
        self.disk = disk
        self._max = open_files_max
        self._look_above = open_files_max
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self.direct_refused = False
        self.direct_proven = False
        """Whether the file system has taken a direct write."""

    def __len__(self) -> int:
        return len(self._files)

    def paths(self) -> list[Path]:
        return list(self._files)

    @asynccontextmanager
    async def use(self, path: Path, *, create: bool = False) -> AsyncIterator[OpenFile]:
        """The file, open for reading and writing while in the block; `create` makes it when it is not there."""
        file = self._files.get(path)
        if file is None:
            fd = await self.disk.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = OpenFile(path, fd)
            else:  # another task opened it meanwhile
                await self.disk.close(fd)
        self._files.move_to_end(path)
        file.users += 1
        try:
            yield file
        finally:
            file.users -= 1
            if file.forgotten and file.users == 0:
                await self._close(file)
        if len(self._files) > self._look_above:
            await self._close_idle()

    def begin_use_nowait(self, path: Path) -> OpenFile | None:
        """The file if it is open, kept so until `end_use_nowait`. Nobody may forget it meanwhile."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            file.users += 1
        return file

    def end_use_nowait(self, file: OpenFile) -> None:
        assert not file.forgotten, file.path
        file.users -= 1

    async def direct_descriptor(self, file: OpenFile) -> int | None:
        """Of a file in use, for direct writes; None where the file system refuses them."""
        if file.direct_fd < 0 and not self.direct_refused:
            try:
                file.direct_fd = await self.disk.open(file.path, os.O_WRONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.refuse_direct(file.path)
        return None if self.direct_refused else file.direct_fd

    def refuse_direct(self, path: Path) -> None:
        """The file system does not take direct writes: everything goes through the page cache from now on."""
        if not self.direct_refused:
            log.warning("%s: the file system refuses direct writes; segments are written through the page cache", path)
        self.direct_refused = True

    async def sync(self, path: Path) -> None:
        """Make what was written to a file durable. OSError: its pages may be marked clean all the same; never retry."""
        file = self._files.get(path)
        if file is None or not file.dirty:
            return
        file.users += 1
        file.dirty = False
        try:
            await self.disk.fdatasync(file.fd)
        except BaseException:
            file.dirty = True
            raise
        finally:
            file.users -= 1
            if file.forgotten and file.users == 0:
                await self._close(file)

    def mark_synced(self, path: Path) -> None:
        """A sync of the whole file system covers what was written to the file up to now."""
        file = self._files.get(path)
        if file is not None:
            file.dirty = False
            self._look_above = self._max

    def mark_dirty(self, path: Path) -> None:
        """That sync failed."""
        file = self._files.get(path)
        if file is not None:
            file.dirty = True

    async def forget(self, path: Path) -> None:
        """The file is going away under this name: closed when its last user is done."""
        file = self._files.pop(path, None)
        if file is None:
            return
        file.forgotten = True
        if file.users == 0:
            await self._close(file)

    async def _close(self, file: OpenFile) -> None:
        await self.disk.close(file.fd)
        if file.direct_fd >= 0:
            await self.disk.close(file.direct_fd)

    async def close(self) -> None:
        """Close everything. Whoever wants durability has synced before."""
        for path in list(self._files):
            await self.forget(path)

    async def _close_idle(self) -> None:
        """Close what has been idle longest, down to the limit.

        Dirty files stay open, and there may be thousands of them: the next look is made when an eighth of the limit has
        been opened since, not at each use, which would go through all of them each time.
        """
        idle = [path for path, file in self._files.items() if file.users == 0 and not file.dirty]
        for path in idle[: len(self._files) - self._max]:
            file = self._files.get(path)
            if file is not None and file.users == 0 and not file.dirty:
                await self.forget(path)
        self._look_above = max(self._max, len(self._files)) + self._max // 8
