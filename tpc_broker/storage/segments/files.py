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
import resource
from collections import OrderedDict
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.log.files import TEMPORARY_SUFFIX
from tpc_broker.storage.segments.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from pathlib import Path

    from tpc_broker.storage.ports import Disk

log = logging.getLogger(__name__)

OPEN_FILES_MAX: Final = 8192
"""Thousands of partitions that are written to in turn open and close a file each for each of their runs where fewer
may be open: the longest idle one goes first, and is the next to be written to."""
OPEN_FILES_SURE: Final = 2048
"""Where half of the descriptors are enough for them."""
DESCRIPTORS_SHARE: Final = 8
"""Other descriptors are connections."""
FILE_DESCRIPTORS_MAX: Final = 2
"""Of an open file: the second one is for direct writes."""
FEW_TO_CLOSE: Final = 8
"""So many cost less through the ring than by a helper thread."""
DIRECT_BLOCK_BYTES: Final = limits.BLOCK_BYTES
"""Address, length and position of a direct write are multiples of it: enough for every disk with blocks up to this."""
_CLEARED_AT_ONCE_BYTES: Final = 256 * 1024


# Rule: No file is mapped into memory: one that is cut or fails would end the core by SIGBUS. Held by
# tests/tidy/test_mapped_files.py.
def aligned_buffer(length: int, poll_ring: Callable[[], None]) -> memoryview:
    """Memory that direct writes can start from, at the beginning of a page. All of it is there: the first write into it
    would wait half a millisecond for the kernel to clear it, and does so here, with others let through in between.
    """
    memory = mmap.mmap(-1, length)
    memory.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(memory)
    for first in range(0, length, _CLEARED_AT_ONCE_BYTES):
        pages = view[first : first + _CLEARED_AT_ONCE_BYTES : mmap.PAGESIZE]
        pages[:] = bytes(len(pages))
        poll_ring()
    return view


async def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """Give a file a new content, durably; until this returns the old one counts."""
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    fd = await disk.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        await disk.write_at(fd, data, 0)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)
    await disk.rename(temporary, path)
    await disk.fsync_directory(path.parent)


def most_open_files(descriptors_max: int) -> int:
    """How many stay open of a core's segments where a process may have so many descriptors."""
    if descriptors_max == resource.RLIM_INFINITY:
        return OPEN_FILES_MAX
    sure = min(OPEN_FILES_SURE, descriptors_max // (2 * FILE_DESCRIPTORS_MAX))
    return min(OPEN_FILES_MAX, max(sure, descriptors_max // DESCRIPTORS_SHARE))


class OpenFile:
    """One open file. `dirty`: a write to it has ended since its last sync began."""

    __slots__ = ("direct_fd", "dirty", "fd", "forgotten", "name", "path", "users")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.name = path.name
        self.fd = fd
        self.direct_fd = -1
        self.users = 0
        self.dirty = False
        self.forgotten = False


@dataclass(slots=True, eq=False)
class _Opening:
    """A file that is being opened. `is_stale`: its name was given up meanwhile, it may be another file's by now."""

    path: Path
    is_stale: bool = False


class FileCache:
    """The open files of one core, by path.

    What is opened under a name that is given up before that is done (a folder is renamed, and made again under the
    same name) is nobody else's: who asked for it uses it, and it is closed.
    """

    def __init__(self, disk: Disk, open_files_max: int | None = None) -> None:
        self.disk = disk
        self._max = open_files_max or most_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._look_above = self._max
        self._files: OrderedDict[Path, OpenFile] = OrderedDict()
        self._in_folder: dict[Path, set[Path]] = {}
        self._openings: dict[Path, set[_Opening]] = {}
        """By folder."""
        self.read_ahead = ReadAhead()
        self.direct_refused = False
        self.direct_proven = False
        """Whether the file system has taken a direct write."""

    def __len__(self) -> int:
        return len(self._files)

    def paths_in(self, folder: Path) -> list[Path]:
        return sorted(self._in_folder.get(folder, ()))

    @asynccontextmanager
    async def use(self, path: Path, *, create: bool = False) -> AsyncIterator[OpenFile]:
        """The file, open for reading and writing while in the block; `create` makes it when it is not there."""
        file, surplus = self._files.get(path), -1
        if file is None:
            opening = self._begin_opening(path)
            try:
                fd = await self.disk.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
            finally:
                self._end_opening(opening)
            file = self._files.get(path)
            if opening.is_stale:
                file = OpenFile(path, fd)
                file.forgotten = True
            elif file is None:
                file = self._add(path, fd)
            else:  # another task opened it meanwhile
                surplus = fd
        if not file.forgotten:
            self._files.move_to_end(path)
        file.users += 1
        try:
            if surplus >= 0:
                await self.disk.close(surplus)
            yield file
        finally:
            file.users -= 1
            if file.forgotten and file.users == 0:
                await self._close(file)
        if len(self._files) > self._look_above:
            await self._close_idle()

    async def open_many(self, paths: Iterable[Path]) -> None:
        """Have files open that are about to be used, those that are not there made, in one job. What cannot be opened
        is left to its use, which says why.
        """
        missing = [path for path in paths if path not in self._files]
        if not missing:
            return
        openings = [self._begin_opening(path) for path in missing]
        try:
            opened = await self.disk.open_many(missing, os.O_RDWR | os.O_CREAT)
        finally:
            for opening in openings:
                self._end_opening(opening)
        surplus = []
        for opening, fd in zip(openings, opened, strict=True):
            if isinstance(fd, OSError):
                continue
            if opening.is_stale or opening.path in self._files:  # another task opened it meanwhile
                surplus.append(fd)
            else:
                self._add(opening.path, fd)
        if surplus:
            await self.disk.close_many(surplus)

    def _begin_opening(self, path: Path) -> _Opening:
        opening = _Opening(path)
        self._openings.setdefault(path.parent, set()).add(opening)
        return opening

    def _end_opening(self, opening: _Opening) -> None:
        of_folder = self._openings[opening.path.parent]
        of_folder.discard(opening)
        if not of_folder:
            del self._openings[opening.path.parent]

    def _add(self, path: Path, fd: int) -> OpenFile:
        file = self._files[path] = OpenFile(path, fd)
        self._in_folder.setdefault(path.parent, set()).add(path)
        return file

    def begin_use_nowait(self, path: Path) -> OpenFile | None:
        """The file if it is open, kept so until `end_use_nowait`. Nobody may forget it meanwhile."""
        file = self._files.get(path)
        if file is not None:
            self._files.move_to_end(path)
            file.users += 1
        return file

    def use_again_nowait(self, file: OpenFile) -> None:
        """The same with one that was not forgotten meanwhile."""
        self._files.move_to_end(file.path)
        file.users += 1

    def end_use_nowait(self, file: OpenFile) -> None:
        assert not file.forgotten, file.path
        file.users -= 1

    async def direct_descriptor(self, file: OpenFile) -> int | None:
        """Of a file in use, for direct reads and writes; None where the file system refuses them, or when the file was
        forgotten and has none: its name may be another's by now.
        """
        if file.direct_fd < 0 and not self.direct_refused:
            if file.forgotten:
                return None
            with self.noting_refusal(file.path):
                try:
                    fd = await self.disk.open(file.path, os.O_RDWR | os.O_DIRECT)
                except FileNotFoundError:
                    if not file.forgotten:
                        raise
                    return None
                if file.direct_fd >= 0 or file.forgotten:  # another task opened it meanwhile, or its name was given up
                    await self.disk.close(fd)
                else:
                    file.direct_fd = fd
        return None if self.direct_refused or file.direct_fd < 0 else file.direct_fd

    @contextmanager
    def noting_refusal(self, path: Path) -> Iterator[None]:
        """Around what goes past the page cache. Where the file system refuses it, the block ends there, and everything
        goes through the page cache from now on. Other errors go on. The operator has been told at the start
        (`process.fallbacks`).
        """
        try:
            yield
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            if not self.direct_refused:
                log.info("%s: the file system refuses direct writes; segments are written through the page cache", path)
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
            self.note_synced(file)

    def note_synced(self, file: OpenFile) -> None:
        """The same of one that was not forgotten."""
        file.dirty = False
        self._look_above = self._max

    def mark_dirty(self, path: Path) -> None:
        """That sync failed."""
        file = self._files.get(path)
        if file is not None:
            file.dirty = True

    async def forget(self, path: Path) -> None:
        """The file is going away under this name: closed when its last user is done."""
        for opening in self._openings.get(path.parent, ()):
            opening.is_stale |= opening.path == path
        file = self._files.get(path)
        if file is None:
            return
        self._drop(file)
        if file.users == 0:
            await self._close(file)

    async def forget_folder(self, folder: Path) -> None:
        """The same for all files of a folder."""
        for opening in self._openings.get(folder, ()):
            opening.is_stale = True
        files = [self._files[path] for path in self.paths_in(folder)]
        for file in files:
            self._drop(file)
        for file in [file for file in files if file.users == 0]:  # others are closed by their last users, meanwhile
            await self._close(file)

    def _drop(self, file: OpenFile) -> None:
        del self._files[file.path]
        of_folder = self._in_folder[file.path.parent]
        of_folder.discard(file.path)
        if not of_folder:
            del self._in_folder[file.path.parent]
        file.forgotten = True

    async def _close(self, file: OpenFile) -> None:
        await self.disk.close(file.fd)
        if file.direct_fd >= 0:
            await self.disk.close(file.direct_fd)

    async def close(self) -> None:
        """Close everything. Whoever wants durability has synced before."""
        files = list(self._files.values())
        self._files.clear()
        self._in_folder.clear()
        for file in files:
            file.forgotten = True
        idle = [file for file in files if file.users == 0]
        await self.disk.close_many([fd for file in idle for fd in (file.fd, file.direct_fd) if fd >= 0])

    async def _close_idle(self) -> None:
        """Close what has been idle longest, down to the limit.

        Dirty files stay open, and there may be thousands of them: the next look is made when an eighth of the limit has
        been opened since, not at each use, which would go through all of them each time.
        """
        idle = [file for file in self._files.values() if file.users == 0 and not file.dirty]
        going = idle[: max(len(self._files) - self._max, 0)]
        for file in going:
            self._drop(file)
        self._look_above = max(self._max, len(self._files)) + self._max // 8
        if len(going) < FEW_TO_CLOSE:
            for file in going:
                await self._close(file)
        else:  # after a syncfs, thousands
            await self.disk.close_many([fd for file in going for fd in (file.fd, file.direct_fd) if fd >= 0])
