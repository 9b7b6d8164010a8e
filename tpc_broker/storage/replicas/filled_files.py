"""Files that a replica is filled with: written once, from the first byte on, past the page cache where that can be.

What is fetched is gigabytes that nobody reads soon. Through the page cache each byte would be copied once more, into
pages that something else has to make room for, and that copy takes longer than all the rest of a part's way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.log.seals import Seal
    from tpc_broker.storage.ports import Buffer, Disk
    from tpc_broker.storage.segments.files import FileCache


class FilledFile:
    """One that is being made."""

    def __init__(self, files: FileCache, path: Path, fd: int) -> None:
        self._files = files
        self._path = path
        self._fd = fd
        self._direct_fd = -1

    @classmethod
    async def make(cls, files: FileCache, path: Path) -> FilledFile:
        """A new one. OSError."""
        return cls(files, path, await files.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    async def write(self, data: Buffer, position: int, *, is_aligned: bool) -> None:
        """`is_aligned`: data and position begin with a block. OSError."""
        whole = len(data) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES if is_aligned else 0
        view = memoryview(data)
        if whole and await self._write_direct(view[:whole], position):
            view, position = view[whole:], position + whole
        if len(view):
            await self._files.disk.write_at(self._fd, view, position)

    async def _write_direct(self, blocks: memoryview, position: int) -> bool:
        if self._files.direct_refused:
            return False
        with self._files.noting_refusal(self._path):
            if self._direct_fd < 0:
                self._direct_fd = await self._files.disk.open(self._path, os.O_WRONLY | os.O_DIRECT)
            await self._files.disk.write_at(self._direct_fd, blocks, position)
            return True
        return False

    async def sync(self) -> None:
        """All of it is on the disk then. OSError."""
        await self._files.disk.fdatasync(self._fd)

    async def close(self) -> None:
        await self._files.disk.close_many([fd for fd in (self._fd, self._direct_fd) if fd >= 0])


async def write_seal(disk: Disk, path: Path, seal: Seal, first_dirty_offset: int) -> None:
    """Durably, but for its name: a cleaned segment's seal in a log in which keys are collected from an offset on that
    is not above this one. OSError.
    """
    seal = seal._replace(first_dirty_offset=min(seal.first_dirty_offset, first_dirty_offset))
    fd = await disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        await disk.write_at(fd, seal.encode(), 0)
        await disk.fdatasync(fd)
    finally:
        await disk.close(fd)
