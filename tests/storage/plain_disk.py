"""`Disk` by plain system calls, for tests that want real files without a ring."""
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH208, ASYNC240

import os
from pathlib import Path

from tpc_broker.runtime.disk import make_folders, read_folders
from tpc_broker.storage.ports import FileStatus, FileSystemStatus


async def outcome(write):
    """The error that a write ended with, or None."""
    try:
        await write
    except OSError as error:
        return error
    return None


async def make_folders_one_by_one(disk, paths, name, content):
    """`Disk.make_folders` of a disk that counts, or records, each step."""
    made = []
    for path in paths:
        try:
            await disk.mkdir(path)
        except FileExistsError:
            made.append(False)
            continue
        fd = await disk.open(path / name, os.O_RDWR | os.O_CREAT)
        await disk.writev(fd, [content], 0)
        await disk.close(fd)
        made.append(True)
    return made


class ManyOneByOne:
    """What a disk does to many files in one job, done to one after the other."""

    async def truncate_many(self, ends):
        return [await outcome(self._truncate_named(path, length)) for path, length in ends]

    async def _truncate_named(self, path, length):
        fd = await self.open(path, os.O_RDWR)
        try:
            await self.truncate(fd, length)
        finally:
            await self.close(fd)

    async def replace_many(self, files):
        for path, content in files:
            beside = path.with_name(path.name + ".tmp")
            fd = await self.open(beside, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            try:
                await self.write_at(fd, content, 0)
            finally:
                await self.close(fd)
            await self.rename(beside, path)

    async def open_many(self, paths, flags):
        found = []
        for path in paths:
            try:
                found.append(await self.open(path, flags))
            except OSError as error:
                found.append(error)
        return found

    async def reserve_many(self, spaces):
        return [await outcome(self.fallocate(fd, at, length, keep_size=True)) for fd, at, length in spaces]

    async def close_many(self, descriptors):
        for fd in descriptors:
            await self.close(fd)


class PlainDisk(ManyOneByOne):
    def poll_ring(self):
        pass

    async def open(self, path, flags, mode=0o644):
        return os.open(path, flags | os.O_CLOEXEC, mode)

    async def close(self, fd):
        os.close(fd)

    async def read(self, fd, length, position):
        return os.pread(fd, length, position)

    read_view = read

    async def read_into(self, fd, data, position):
        found = await self.read(fd, len(data), position)
        data[: len(found)] = found
        return len(found)

    async def write_at(self, fd, data, position):
        os.pwrite(fd, data, position)

    durable_write = write_at

    async def writev(self, fd, buffers, position):
        os.pwritev(fd, buffers, position)

    async def write_many(self, writes):
        return [await outcome(self.writev(fd, [data], position)) for fd, data, position in writes]

    async def fdatasync(self, fd):
        os.fdatasync(fd)

    async def syncfs(self, fd):
        os.fsync(fd)

    async def read_ahead(self, fd, length, position):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)

    async def fallocate(self, fd, position, length, *, keep_size):
        if not keep_size:
            os.posix_fallocate(fd, position, length)

    async def truncate(self, fd, length):
        os.ftruncate(fd, length)

    async def unlink(self, path):
        os.unlink(path)

    async def rmdir(self, path):
        os.rmdir(path)

    async def rename(self, source, target):
        os.rename(source, target)

    async def link(self, source, target):
        os.link(source, target)

    async def mkdir(self, path):
        os.mkdir(path)

    async def make_folders(self, paths, name, content):
        return make_folders(paths, name, content)

    async def fsync_directory(self, path):
        return None

    async def listdir(self, path):
        return os.listdir(path)

    async def read_folders(self, paths, small_names):
        return read_folders(paths, small_names)

    async def stat(self, path):
        found = Path(path).stat()
        return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000, Path(path).is_dir())

    async def statvfs(self, path):
        return FileSystemStatus(10**12, 10**12)
