"""A disk in memory that can lose its power: what no sync has covered vanishes, tears at 512 bytes, and changes order.

Every mutation is an *effect* with a number. `lose_power_at` stops the world at one of them (the effect itself may have
happened in part); `fail_at` lets one of them fail with an error instead. After a failed sync the pages count as clean,
as on Linux: they are readable, and no later sync writes them.
"""

import errno
import os
import random
from pathlib import Path

import trio

from tests.storage.plain_disk import ManyOneByOne, make_folders_one_by_one, outcome
from tpc_broker.storage.ports import FileStatus, FileSystemStatus, FolderContents

SECTOR_BYTES = 512


async def at_every_effect(run):
    """Run `run(effect)` for 1, 2, 3, … until it says false: there are no more effects. The number of the last one."""
    effect = 1
    while await run(effect):
        effect += 1
    return effect


class PowerLoss(BaseException):
    """The machine is off. Not an Exception, so that nothing catches it."""


class Inode:
    def __init__(self):
        self.content = bytearray()
        self.durable = bytearray()
        self.pending = []

    def apply(self, target, operation):
        kind, position, data = operation
        if kind == "truncate":
            del target[position:]
            target.extend(bytes(position - len(target)))
        else:
            target.extend(bytes(max(position + len(data) - len(target), 0)))
            target[position : position + len(data)] = data

    def change(self, operation):
        self.apply(self.content, operation)
        self.pending.append(operation)

    def sync(self):
        for operation in self.pending:
            self.apply(self.durable, operation)
        self.pending.clear()

    def crash(self, rng):
        style = rng.choice(["nothing", "everything", "some"])
        for kind, position, data in self.pending:
            if kind == "truncate":
                if style == "everything" or (style == "some" and rng.random() < 0.5):
                    self.apply(self.durable, (kind, position, data))
                continue
            for at in range(0, len(data), SECTOR_BYTES):
                if style == "everything" or (style == "some" and rng.random() < 0.5):
                    self.apply(self.durable, (kind, position + at, data[at : at + SECTOR_BYTES]))
        self.content = bytearray(self.durable)
        self.pending.clear()


class FakeDisk(ManyOneByOne):
    """Satisfies `Disk`."""

    sync_directories = True

    def __init__(self, total_bytes=10**12):
        self.total_bytes = total_bytes
        self.names = {Path("/"): None}
        self.durable_names = {Path("/"): None}
        self.pending_names = {}
        self.descriptors = {}
        self.next_descriptor = 100
        self.effects = 0
        self.lose_power_at = self.fail_at = None
        self.fail_with = errno.EIO
        self.unreadable = set()
        self.allocatable_bytes = None
        self.read_ahead_of = []
        self.log = []

    # -- trouble

    def effect(self, label, happens, lost=lambda: None):
        """One mutation: `happens` does it; `lost` is what a failing one does instead."""
        self.effects += 1
        self.log.append(label)
        if self.effects == self.lose_power_at:
            if self.effects % 2:
                happens()
            raise PowerLoss(label)
        if self.fail_at is not None and self.effects == self.fail_at:
            lost()
            raise OSError(self.fail_with, f"injected at effect {self.effects}: {label}")
        happens()

    def crash(self, rng: random.Random):
        """What the next boot finds."""
        for operations in self.pending_names.values():
            for operation in operations[: rng.randint(0, len(operations))]:
                self._apply_name(self.durable_names, operation)
        self.pending_names.clear()
        for inode in {
            id(inode): inode for inode in [*self.names.values(), *self.durable_names.values()] if inode
        }.values():
            inode.crash(rng)
        gone = [path for path in self.durable_names if not all(parent in self.durable_names for parent in path.parents)]
        for path in gone:
            del self.durable_names[path]
        self.names = dict(self.durable_names)
        self.descriptors.clear()
        self.lose_power_at = self.fail_at = None
        self.effects = 0

    def kill(self):
        """The process is gone, the kernel is not."""
        self.descriptors.clear()
        self.lose_power_at = self.fail_at = None
        self.effects = 0

    def _apply_name(self, names, operation):
        kind, path, other = operation
        if kind == "add":
            names[path] = other
        elif kind == "remove":
            names.pop(path, None)
        else:
            moved = {name: inode for name, inode in names.items() if name == path or path in name.parents}
            for name in moved:
                del names[name]
            for name, inode in moved.items():
                names[other / name.relative_to(path) if name != path else other] = inode

    def _name(self, label, operation):
        def happens():
            self._apply_name(self.names, operation)
            self.pending_names.setdefault(operation[1].parent, []).append(operation)

        self.effect(label, happens)

    # -- the port

    def poll_ring(self):
        pass

    async def open(self, path, flags, mode=0o644):
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            if not flags & os.O_CREAT or path.parent not in self.names:
                raise FileNotFoundError(errno.ENOENT, str(path))
            self._name(f"create {path}", ("add", path, Inode()))
        inode = self.names[path]
        if inode is None:
            raise IsADirectoryError(errno.EISDIR, str(path))
        if flags & os.O_TRUNC:
            inode.change(("truncate", 0, b""))
        self.next_descriptor += 1
        self.descriptors[self.next_descriptor] = inode
        return self.next_descriptor

    async def close(self, fd):
        del self.descriptors[fd]

    async def read(self, fd, length, position):
        await trio.lowlevel.checkpoint()
        return bytes(self.descriptors[fd].content[position : position + length])

    read_view = read

    async def read_into(self, fd, data, position):
        found = await self.read(fd, len(data), position)
        data[: len(found)] = found
        return len(found)

    async def read_ahead(self, fd, length, position):
        await trio.lowlevel.checkpoint()
        self.read_ahead_of.append((position, length))

    async def write_at(self, fd, data, position):
        await self.writev(fd, [data], position)

    async def writev(self, fd, buffers, position):
        await trio.lowlevel.checkpoint()
        data = b"".join(bytes(buffer) for buffer in buffers)
        inode = self.descriptors[fd]
        self.effect(
            "write",
            lambda: inode.change(("write", position, data)),
            lambda: inode.change(("write", position, data[: len(data) // 2])),
        )

    async def write_many(self, writes):
        return [await outcome(self.writev(fd, [data], position)) for fd, data, position in writes]

    async def durable_write(self, fd, data, position):
        await trio.lowlevel.checkpoint()
        inode = self.descriptors[fd]

        def happens():
            inode.change(("write", position, bytes(data)))
            inode.apply(inode.durable, inode.pending.pop())

        def lost():
            inode.change(("write", position, bytes(data)[: SECTOR_BYTES * (len(data) // SECTOR_BYTES // 2)]))

        if self.effects + 1 == self.lose_power_at:  # torn: some sectors may get there
            inode.change(("write", position, bytes(data)))
            raise PowerLoss("durable write")
        self.effect("durable write", happens, lost)

    async def fdatasync(self, fd):
        await trio.lowlevel.checkpoint()
        inode = self.descriptors[fd]
        self.effect("fdatasync", inode.sync, inode.pending.clear)

    async def fallocate(self, fd, position, length, *, keep_size):
        await trio.lowlevel.checkpoint()
        if self.allocatable_bytes is not None:
            if length > self.allocatable_bytes:
                raise OSError(errno.ENOSPC, "no space")
            self.allocatable_bytes -= length
        if not keep_size:
            inode = self.descriptors[fd]
            inode.change(("truncate", max(position + length, len(inode.content)), b""))

    async def truncate(self, fd, length):
        await trio.lowlevel.checkpoint()
        inode = self.descriptors[fd]
        if length != len(inode.content):
            self.effect("truncate", lambda: inode.change(("truncate", length, b"")))

    async def unlink(self, path):
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, str(path))
        self._name(f"unlink {path}", ("remove", path, None))

    async def rename(self, source, target):
        await trio.lowlevel.checkpoint()
        if source not in self.names:
            raise FileNotFoundError(errno.ENOENT, str(source))
        self._name(f"rename {source}", ("rename", source, target))

    async def mkdir(self, path):
        await trio.lowlevel.checkpoint()
        if path in self.names:
            raise FileExistsError(errno.EEXIST, str(path))
        self._name(f"mkdir {path}", ("add", path, None))

    async def rmdir(self, path):
        await self.unlink(path)

    async def make_folders(self, paths, name, content):
        return await make_folders_one_by_one(self, paths, name, content)

    async def fsync_directory(self, path):
        await trio.lowlevel.checkpoint()
        if self.sync_directories:
            self.effect(f"fsync {path}", lambda: self._sync_names(path))

    def _sync_names(self, path):
        for operation in self.pending_names.pop(path, []):
            self._apply_name(self.durable_names, operation)

    async def listdir(self, path):
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, str(path))
        return [name.name for name in self.names if name.parent == path and name != path]

    async def read_folders(self, paths, small_names):
        await trio.lowlevel.checkpoint()
        return [self._folder_contents(path, small_names) if path in self.names else None for path in paths]

    def _folder_contents(self, folder, small_names):
        inside = {path.name: inode for path, inode in self.names.items() if path.parent == folder and path != folder}
        sizes = {name: len(inode.content) if inode else 0 for name, inode in inside.items()}
        unreadable = {name: OSError(errno.EIO, name) for name in small_names if folder / name in self.unreadable}
        small = {name: bytes(inside[name].content) for name in small_names if name in inside and name not in unreadable}
        return FolderContents(sizes, small, unreadable)

    async def stat(self, path):
        await trio.lowlevel.checkpoint()
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, str(path))
        inode = self.names[path]
        return FileStatus(len(inode.content) if inode else 0, 0, inode is None)

    async def statvfs(self, path):
        return FileSystemStatus(self.total_bytes, self.total_bytes)

    async def syncfs(self, fd):
        await trio.lowlevel.checkpoint()

        def happens():
            for path in list(self.pending_names):
                self._sync_names(path)
            for inode in self.names.values():
                if inode:
                    inode.sync()

        self.effect("syncfs", happens)
