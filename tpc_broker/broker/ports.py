"""The small interfaces through which a core's broker sees the world: kernel, clock, data plane.

A port is a Protocol; `tpc_broker.runtime` has the real one, tests and the simulator have theirs. Errors of the
environment come as OSError with the kernel's number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    Buffer = bytes | bytearray | memoryview


class FileStatus(NamedTuple):
    """What `Disk.stat` tells of a file or folder."""

    size_bytes: int
    modified_ms: int
    is_directory: bool


class FileSystemStatus(NamedTuple):
    """Size of the file system that holds a path, and what is left of it for this process."""

    total_bytes: int
    available_bytes: int


class Disk(Protocol):
    """Asynchronous file operations. A write is whole or raises; a short one is finished or becomes an OSError.

    A cancelled operation may still have happened: its task ends only when the kernel is done with the buffers.
    """

    async def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        """A descriptor; `flags` as for `os.open` (O_CLOEXEC is added)."""
        ...

    async def close(self, fd: int) -> None: ...

    async def read(self, fd: int, length: int, position: int) -> bytes:
        """Bytes from a position on: fewer than asked for only at the end of the file."""
        ...

    async def write_at(self, fd: int, data: Buffer, position: int) -> None: ...

    async def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None: ...

    async def durable_write(self, fd: int, data: Buffer, position: int) -> None:
        """Written and on the disk (RWF_DSYNC, or write and fdatasync)."""
        ...

    async def fdatasync(self, fd: int) -> None: ...

    async def fallocate(self, fd: int, position: int, length: int, *, keep_size: bool) -> None:
        """Take disk space for a range. ENOSPC when there is none; EOPNOTSUPP where files cannot."""
        ...

    async def truncate(self, fd: int, length: int) -> None: ...

    async def unlink(self, path: Path) -> None: ...

    async def rename(self, source: Path, target: Path) -> None: ...

    async def mkdir(self, path: Path) -> None: ...

    async def rmdir(self, path: Path) -> None: ...

    async def fsync_directory(self, path: Path) -> None:
        """Names that were created, renamed or removed in a folder are on the disk."""
        ...

    async def listdir(self, path: Path) -> list[str]: ...

    async def stat(self, path: Path) -> FileStatus: ...

    async def statvfs(self, path: Path) -> FileSystemStatus: ...

    async def syncfs(self, fd: int) -> None:
        """Everything on the file system of an open file is on the disk; errors since it was opened are raised."""
        ...


class JournalPlace(NamedTuple):
    """A place in the chain of commits, `tpc_journal_place`."""

    sequence: int
    """The commit that is looked for here."""
    block: int
    """Block of the file to look at first, then the region's first."""
    position: int
    """The same as a count that never wraps; only for `recycle` in the same run."""
    previous_crc: int


class Journal(Protocol):
    """What a core's checkpointer needs of the journal writer."""

    def durable_place(self) -> JournalPlace:
        """The place behind the last durable commit."""
        ...

    def recycle(self, position: int) -> None:
        """Blocks in front of a position may be overwritten."""
        ...

    def extend(self, region_blocks: int) -> None:
        """The region has so many blocks from now on; the new ones were written once and the superblock says so."""
        ...
