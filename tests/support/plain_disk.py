"""`Disk` by plain system calls, for tests that want real files without a ring."""
# ruff: noqa: PTH102, PTH104, PTH106, PTH108, PTH208

import os

from tests.support.disk_operations import ManyOneByOne, Operations, counted
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.disk import PARTS_MAX, make_folders, open_many, read_folders, replace_many, truncate_many
from tpc_broker.storage.ports import FileStatus, FileSystemStatus


@counted
class PlainDisk(Operations, ManyOneByOne):
    """It is written for no loss of power: names are not synced."""

    async def open(self, path, flags, mode=0o644):
        return os.open(path, flags | os.O_CLOEXEC, mode)

    async def open_many(self, paths, flags):
        return open_many(paths, flags)

    async def close(self, fd):
        os.close(fd)

    async def read(self, fd, length, position):
        return os.pread(fd, length, position)

    read_view = read

    async def read_into(self, fd, data, position):
        return os.preadv(fd, [data], position)

    async def write_at(self, fd, data, position):
        os.pwrite(fd, data, position)

    durable_write = write_at

    async def write_zeros(self, fd, position, length):
        os.pwrite(fd, bytes(length), position)

    async def writev(self, fd, buffers, position):
        for first in range(0, len(buffers), PARTS_MAX):
            position += os.pwritev(fd, buffers[first : first + PARTS_MAX], position)

    async def fdatasync(self, fd):
        os.fdatasync(fd)

    async def syncfs(self, fd):
        os.fsync(fd)

    async def read_ahead(self, fd, length, position):
        os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)

    async def fallocate(self, fd, position, length, *, keep_size):
        if not keep_size:
            os.posix_fallocate(fd, position, length)
            return
        space = ffi.new("tpc_file_space[]", [(position, length, fd, 0)])
        lib.tpc_reserve_many(space, 1)
        if space[0].result < 0:
            raise OSError(-space[0].result, os.strerror(-space[0].result))

    async def truncate(self, fd, length):
        os.ftruncate(fd, length)

    async def truncate_many(self, ends):
        return truncate_many(ends)

    async def replace_many(self, files):
        replace_many(files)

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
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    async def listdir(self, path):
        return os.listdir(path)

    async def read_folders(self, paths, small_names):
        return read_folders(paths, small_names)

    async def stat(self, path):
        found = path.stat()
        return FileStatus(found.st_size, found.st_mtime_ns // 1_000_000, path.is_dir(), found.st_ino)

    async def statvfs(self, path):
        found = os.statvfs(path)
        return FileSystemStatus(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
