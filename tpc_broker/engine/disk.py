"""The disk port on the ring: `tpc_broker.broker.ports.Disk` by operations that tasks await.

Reads, writes, syncs, opening, reserving, truncating and unlinking are entries of the ring. What has none on 5.8 and
is rare and may block (rename, mkdir, listdir, stat, statvfs, syncfs) runs in a helper thread of trio.

Transfers are cut into chunks, and short ones are continued, so a result is whole or an `OSError` with errno and path.
A write that makes no progress is an error (EIO), not a loop.

Whatever changes the disk is noted in `RingDisk.watch` for as long as it is under way.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import trio

from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import SERVE_AFTER_NS, name_of
from tpc_broker.log.files import TEMPORARY_SUFFIX
from tpc_broker.native_bytes import pinned
from tpc_broker.storage.disk_watch import DiskWatch
from tpc_broker.storage.ports import FileStatus, FileSystemStatus, FolderContents

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence
    from pathlib import Path

    from tpc_broker.engine.ring import Ring
    from tpc_broker.storage.ports import Buffer, FileSpace, FileWrite

CHUNK_BYTES_MAX: Final = 8 * 1024 * 1024
"""One entry's share: well under what one read(2) can move, and other work gets its turn between chunks."""
IN_PARTS_BYTES_MAX: Final = 3 * 1024 * 1024
PART_BYTES: Final = 256 * 1024
"""Writes up to that size go to the disk in parts of this one, one after the other: a commit of the journal, for which
clients wait, has one part before it then. Where more is to be written at once, it is the rate that counts."""
TOGETHER_MAX: Final = 128
"""Files for which one job asks the disk, of as many as there are: a disk that gets on with them does not hang."""
_ZEROS: Final = mmap.mmap(-1, CHUNK_BYTES_MAX, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
"""Never written to, so all of it is the kernel's one page of zeros: it takes no memory, and nothing is cleared."""
PARTS_MAX: Final = 1024
"""Buffers per vectored entry (UIO_MAXIOV)."""
FALLOC_FL_KEEP_SIZE: Final = 1
READS_MAX: Final = 100
"""Looks at one folder that changes under them, before a file that is named and is not there counts as an error."""
SMALL_FILE_BYTES_MAX: Final = 65536
LOST_BY_THE_DISK: Final = frozenset({errno.EIO, errno.ENODATA, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG})
"""What reading a file fails with when its blocks, or what the file system says of them, cannot be read. Other errors
(no descriptor, no memory, no right to read) say nothing of the file.
"""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_uncleared: Final = ffi.new_allocator(should_clear_after_alloc=False)


def _no_progress(fd: int) -> OSError:
    return OSError(errno.EIO, f"a write to descriptor {fd} made no progress", name_of(fd))


def _failed(result: int, fd: int) -> OSError | None:
    """What a job of C says of one file; None: all is well."""
    return OSError(-result, os.strerror(-result), name_of(fd)) if result < 0 else None


def _watched(
    function: Callable[Concatenate[RingDisk, P], Awaitable[T]], *, is_long: bool
) -> Callable[Concatenate[RingDisk, P], Coroutine[Any, Any, T]]:
    @functools.wraps(function)
    async def watched(disk: RingDisk, /, *arguments: P.args, **named: P.kwargs) -> T:
        watch = disk.watch
        number = watch.begin(function.__name__, arguments[0], is_long=is_long)
        try:
            return await function(disk, *arguments, **named)
        finally:
            watch.end(number)

    return watched


def _short_for_many(
    function: Callable[Concatenate[RingDisk, Sequence[T], P], Awaitable[list[R]]],
) -> Callable[Concatenate[RingDisk, Sequence[T], P], Coroutine[Any, Any, list[R]]]:
    """A short operation for each `TOGETHER_MAX` of what it is given; from the first on it is not cancelled."""
    watched = _watched(function, is_long=False)

    @functools.wraps(function)
    async def for_many(disk: RingDisk, items: Sequence[T], /, *arguments: P.args, **named: P.kwargs) -> list[R]:
        results = await watched(disk, items[:TOGETHER_MAX], *arguments, **named)
        with trio.CancelScope(shield=True):
            for first in range(TOGETHER_MAX, len(items), TOGETHER_MAX):
                results += await watched(disk, items[first : first + TOGETHER_MAX], *arguments, **named)
        return results

    return for_many


_short: Final = functools.partial(_watched, is_long=False)
_long: Final = functools.partial(_watched, is_long=True)


class RingDisk:
    """`Disk` for the tasks of one core. All methods are checkpoints; a cancelled operation may still have happened."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.watch = DiskWatch()

    async def _in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await trio.to_thread.run_sync(function, *arguments)

    @_short
    async def open(self, path: Path, flags: int, mode: int = 0o644) -> int:
        return await self._ring.open(str(path), flags, mode)

    @_short_for_many
    async def open_many(self, paths: Sequence[Path], flags: int) -> list[int | OSError]:
        """By a helper thread: the ring hands each to a worker of its own, which costs several times what the kernel
        needs.
        """
        return await self._in_thread(open_many, paths, flags)

    def poll_ring(self) -> None:
        self._ring.serve(SERVE_AFTER_NS)

    @_long
    async def close(self, fd: int) -> None:
        """Close, also when the task is cancelled: a descriptor is never left open."""
        with trio.CancelScope(shield=True):
            await self._ring.close_fd(fd)

    async def read(self, fd: int, length: int, position: int) -> bytes:
        """Bytes [position, position + length), fewer only at the end of the file."""
        data = bytearray(length)
        done = await self.read_into(fd, data, position)
        return bytes(data) if done == length else bytes(memoryview(data)[:done])

    async def read_view(self, fd: int, length: int, position: int) -> memoryview:
        """The same without a copy: memory that is not cleared before and belongs to the view."""
        view = memoryview(ffi.buffer(_uncleared("uint8_t[]", length)))
        done = await self.read_into(fd, view, position)
        return view[:done]

    async def read_into(self, fd: int, data: bytearray | memoryview, position: int) -> int:
        """Fill a buffer from a position on; the number of bytes, fewer than its length only at the end of the file."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            count = await self._ring.read(fd, view[done : done + CHUNK_BYTES_MAX], position + done)
            if count == 0:
                break
            done += count
        return done

    async def read_ahead(self, fd: int, length: int, position: int) -> None:
        await self._ring.read_ahead(fd, position, length)

    @_short
    async def write_at(self, fd: int, data: Buffer, position: int) -> None:
        await self._write(fd, data, position, durable=False)

    @_long
    async def write_zeros(self, fd: int, position: int, length: int) -> None:
        end, zeros = position + length, memoryview(_ZEROS)
        while position < end:
            count = await self._ring.write_in_parts(fd, zeros[: end - position], position, PART_BYTES)
            if count == 0:
                raise _no_progress(fd)
            position += count

    @_long
    async def durable_write(self, fd: int, data: Buffer, position: int) -> None:
        """Write, and return when it is on the disk (RWF_DSYNC)."""
        await self._write(fd, data, position, durable=True)

    async def _write(self, fd: int, data: Buffer, position: int, *, durable: bool) -> None:
        view = memoryview(data).cast("B")
        done = 0
        while done < len(view):
            chunk = view[done : done + CHUNK_BYTES_MAX]
            if not durable and PART_BYTES < len(chunk) <= IN_PARTS_BYTES_MAX:
                count = await self._ring.write_in_parts(fd, chunk, position + done, PART_BYTES)
            else:
                count = await self._ring.write(fd, chunk, position + done, durable=durable)
            if count == 0:
                raise _no_progress(fd)
            done += count

    @_short
    async def writev(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write buffers one after the other, from a position on."""
        views = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if len(view)]
        first = 0
        while first < len(views):
            count = await self._ring.writev(fd, views[first : first + PARTS_MAX], position)
            if count == 0:
                raise _no_progress(fd)
            position += count
            while first < len(views) and count >= len(views[first]):
                count -= len(views[first])
                first += 1
            if count:
                views[first] = views[first][count:]

    @_short_for_many
    async def write_many(self, writes: Sequence[FileWrite]) -> list[OSError | None]:
        """By a helper thread: the ring hands each write to a worker of its own, which costs several times what the
        kernel needs for a short one.
        """
        entries, held = ffi.new("tpc_file_write[]", len(writes)), []
        for entry, (fd, data, position) in zip(entries, writes, strict=True):
            entry.data, entry.data_bytes, view = pinned(data)
            entry.fd, entry.position = fd, position
            held.append(view)
        await self._in_thread(lib.tpc_write_many, entries, len(writes))
        return [_failed(one.result, one.fd) for one in entries]

    @_long
    async def write_fdatasync(self, fd: int, data: Buffer, position: int) -> None:
        """Write and fdatasync, linked: for file systems on which RWF_DSYNC is slow."""
        view = memoryview(data).cast("B")
        written = await self._ring.write_fdatasync(fd, view, position)
        if written < len(view):
            await self._write(fd, view[written:], position + written, durable=False)
            await self._ring.fdatasync(fd)

    @_long
    async def fdatasync(self, fd: int) -> None:
        await self._ring.fdatasync(fd)

    @_short
    async def fallocate(self, fd: int, position: int, length: int, *, keep_size: bool) -> None:
        await self._ring.fallocate(fd, FALLOC_FL_KEEP_SIZE if keep_size else 0, position, length)

    @_short_for_many
    async def reserve_many(self, spaces: Sequence[FileSpace]) -> list[OSError | None]:
        """By a helper thread, as `write_many`."""
        entries = ffi.new("tpc_file_space[]", [(position, length, fd, 0) for fd, position, length in spaces])
        await self._in_thread(lib.tpc_reserve_many, entries, len(spaces))
        return [_failed(one.result, one.fd) for one in entries]

    @_short
    async def truncate(self, fd: int, length: int) -> None:
        await self._ring.ftruncate(fd, length)

    @_long
    async def truncate_many(self, ends: Sequence[tuple[Path, int]]) -> list[OSError | None]:
        return await self._in_thread(truncate_many, ends)

    @_long
    async def replace_many(self, files: Sequence[tuple[Path, bytes]]) -> None:
        await self._in_thread(replace_many, files)

    @_long
    async def close_many(self, descriptors: Sequence[int]) -> None:
        with trio.CancelScope(shield=True):
            await self._in_thread(close_many, descriptors)

    @_long
    async def unlink(self, path: Path) -> None:
        await self._ring.unlink(str(path))

    @_long
    async def rmdir(self, path: Path) -> None:
        await self._ring.unlink(str(path), folder=True)

    @_short
    async def rename(self, source: Path, target: Path) -> None:
        await self._in_thread(os.rename, source, target)
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_RENAME, os.fsencode(source), os.fsencode(target))

    @_short
    async def link(self, source: Path, target: Path) -> None:
        await self._in_thread(os.link, source, target)

    @_short
    async def mkdir(self, path: Path) -> None:
        await self._in_thread(os.mkdir, path)
        lib.tpc_disk_record_name(lib.TPC_DISK_RECORD_CREATE, os.fsencode(path), ffi.NULL)

    @_short_for_many
    async def make_folders(self, paths: Sequence[Path], name: str, content: bytes) -> list[bool]:
        return await self._in_thread(make_folders, paths, name, content)

    @_long
    async def fsync_directory(self, path: Path) -> None:
        """Make the names in a folder durable."""
        fd = await self._ring.open(str(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            await self._ring.fsync(fd)
        finally:
            await self.close(fd)

    async def listdir(self, path: Path) -> list[str]:
        return await self._in_thread(os.listdir, path)

    async def read_folders(self, paths: Sequence[Path], small_names: Sequence[str]) -> list[FolderContents | None]:
        return await self._in_thread(read_folders, paths, small_names)

    async def stat(self, path: Path) -> FileStatus:
        return await self._in_thread(_stat, path)

    @_short
    async def statvfs(self, path: Path) -> FileSystemStatus:
        return await self._in_thread(_statvfs, path)

    @_long
    async def syncfs(self, fd: int) -> None:
        error = _failed(await self._in_thread(lib.tpc_syncfs, fd), fd)
        if error is not None:
            raise error


def read_folders(paths: Sequence[Path], small_names: Sequence[str]) -> list[FolderContents | None]:
    """`Disk.read_folders`, with blocking calls: a turn of the ring for each of them costs more than they do."""
    return [_read_folder(str(path), small_names) for path in paths]


def truncate_many(ends: Sequence[tuple[Path, int]]) -> list[OSError | None]:
    """`Disk.truncate_many`, with blocking calls."""
    errors: list[OSError | None] = []
    for path, length in ends:
        try:
            os.truncate(path, length)
        except OSError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


def replace_many(files: Sequence[tuple[Path, bytes]]) -> None:
    """`Disk.replace_many`, with blocking calls."""
    for path, content in files:
        beside = f"{path}{TEMPORARY_SUFFIX}"
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            if os.write(fd, content) != len(content):
                raise _no_progress(fd)
        finally:
            os.close(fd)
        os.rename(beside, path)  # noqa: PTH104 (text is what is at hand, a thousand times)


def open_many(paths: Sequence[Path], flags: int) -> list[int | OSError]:
    """`Disk.open_many`, with blocking calls."""
    found: list[int | OSError] = []
    for path in paths:
        try:
            found.append(os.open(path, flags | os.O_CLOEXEC, 0o644))
        except OSError as error:
            found.append(error)
    return found


def close_many(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def make_folders(paths: Sequence[Path], name: str, content: bytes) -> list[bool]:
    """`Disk.make_folders`, with blocking calls."""
    made = []
    for path in map(str, paths):
        try:
            os.mkdir(path)  # noqa: PTH102 (text is what is at hand, a thousand times)
        except FileExistsError:
            made.append(False)
            continue
        fd = os.open(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.write(fd, content) != len(content):
                raise _no_progress(fd)
        finally:
            os.close(fd)
        made.append(True)
    return made


def _read_folder(path: str, small_names: Sequence[str]) -> FolderContents | None:
    for attempt in range(READS_MAX):
        try:
            with os.scandir(path) as entries:
                sizes = {entry.name: entry.stat().st_size for entry in entries}
            small, unreadable = _read_files(path, [name for name in small_names if name in sizes])
        except FileNotFoundError:
            if not os.path.isdir(path):  # noqa: PTH112 (text is what is at hand, a thousand times)
                return None
            if attempt == READS_MAX - 1:
                raise
        else:
            return FolderContents(sizes, small, unreadable)
    raise AssertionError


def _read_files(folder: str, names: Sequence[str]) -> tuple[dict[str, bytes], dict[str, OSError]]:
    contents, unreadable = {}, {}
    for name in names:
        try:
            contents[name] = _read_file(f"{folder}/{name}")
        except OSError as error:
            if error.errno not in LOST_BY_THE_DISK:
                raise
            unreadable[name] = error
    return contents, unreadable


def _read_file(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, SMALL_FILE_BYTES_MAX)
    finally:
        os.close(fd)


def _stat(path: Path) -> FileStatus:
    found = path.stat()
    return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000, path.is_dir(), found.st_ino)


def _statvfs(path: Path) -> FileSystemStatus:
    found = os.statvfs(path)
    return FileSystemStatus(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
