"""A disk in memory that can lose its power: what no sync has covered vanishes, tears at 512 bytes, and changes order.

Every mutation is an *effect* with a number. `lose_power_at` stops the world at one of them (the effect itself may have
happened in part); `fail_at` lets one of them fail with an error instead. After a failed sync the pages count as clean,
as on Linux: they are readable, and no later sync writes them.

What a test wants of it besides is a hook (`Operations.during`). It holds direct writes and reads to the kernel's rules;
one that breaks them is our bug, an assertion: the error, which the kernel gives, would make storage go another way.
What else it promises, as the real one does, is in tests/storage/disk_contract.py.
"""

import errno
import itertools
import mmap
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.support.disk_operations import ManyOneByOne, Operations, counted, error_of, make_folders_one_by_one
from tpc_broker._bytes import ffi
from tpc_broker.storage.ports import FileStatus, FileSystemStatus, FolderContents

SECTOR_BYTES = 512
ZEROS = memoryview(mmap.mmap(-1, 4 << 20))
_NUMBERS = itertools.count(1)


async def at_every_effect(run):
    """Run `run(effect)` for 1, 2, 3, … until it says false: there are no more effects. The number of the last one."""
    effect = 1
    while await run(effect):
        effect += 1
    return effect


class PowerLoss(BaseException):
    """The machine is off. Not an Exception, so that nothing catches it."""


class Inode:
    def __init__(self, now_ms=lambda: 0):
        self._now_ms = now_ms
        self.content = bytearray()
        self.durable = bytearray()
        self.pending = []
        self.modified_ms = self._now_ms()
        self.number = next(_NUMBERS)
        self.space_end = 0
        """Bytes below have their place on the disk."""

    def apply(self, target, operation):
        kind, position, data = operation
        if kind == "truncate":
            del target[position:]
            target.extend(bytes(position - len(target)))
        else:
            target.extend(bytes(max(position + len(data) - len(target), 0)))
            target[position : position + len(data)] = data

    def change(self, operation):
        self._see(operation)
        self.pending.append(operation)

    def _see(self, operation):
        self.apply(self.content, operation)
        kind, position, data = operation
        end = position + len(data)
        self.space_end = min(self.space_end, end) if kind == "truncate" else max(self.space_end, end)
        self.modified_ms = self._now_ms()

    def sync(self):
        for operation in self.pending:
            self.apply(self.durable, operation)
        self.pending.clear()

    def write_durably(self, position, data):
        """Whoever makes a write durable has its file cut before, where it was; what was pending there is void."""
        self._see(("write", position, data))
        kept = []
        for operation in self.pending:
            if operation[0] == "truncate":
                self.apply(self.durable, operation)
            else:
                kept += _outside(operation, position, position + len(data))
        self.pending[:] = kept
        self.apply(self.durable, ("write", position, data))

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
        self.take_durable()
        self.pending.clear()

    def take_durable(self):
        self.content = bytearray(self.durable)


def _outside(operation, begin, end):
    """What of a write is not in a range."""
    kind, position, data = operation
    if position + len(data) <= begin or end <= position:
        return [operation]
    parts = [(position, data[: max(0, begin - position)]), (end, data[max(0, end - position) :])]
    return [(kind, at, part) for at, part in parts if part]


class Change(NamedTuple):
    """What an operation does to a disk; `lost` is what a failing one does instead, `torn` one that the power left."""

    label: str
    happens: Callable[[], object]
    lost: Callable[[], object] = lambda: None
    torn: Callable[[], object] | None = None


@dataclass(frozen=True)
class Opened:
    """What a descriptor stands for; `inode` is None for a folder's."""

    inode: Inode | None
    path: Path
    flags: int

    @property
    def is_direct(self):
        return bool(self.flags & os.O_DIRECT)


@counted
class FakeDisk(Operations, ManyOneByOne):
    """Satisfies `Disk`. `refuses`: what of O_DIRECT its file system does not have, of "open", "write" and "read"."""

    direct_block_bytes = 4096
    inode_type = Inode

    def __init__(
        self, total_bytes=10**12, *, available_bytes=None, refuses=None, misaligned_is_bug=True, now_ms=lambda: 0
    ):
        super().__init__()
        self.available_bytes = total_bytes if available_bytes is None else available_bytes
        self._now_ms = now_ms
        self.total_bytes, self.refuses, self._misaligned_is_bug = total_bytes, refuses, misaligned_is_bug
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
        self.direct_reads = []
        """How long they were."""
        self.log = []
        self._ways = {}

    def put_folder(self, path):
        """It is there, and has been for long."""
        self.names[path] = self.durable_names[path] = None

    def ways(self):
        """How often blocks were written in which ways."""
        found = [tuple(sorted(ways)) for ways in self._ways.values()]
        return {ways: found.count(ways) for ways in set(found)}

    # -- trouble

    def effect(self, change):
        """One mutation."""
        self.effects += 1
        self.log.append(change.label)
        if self.effects == self.lose_power_at:
            if change.torn is not None:
                change.torn()
            elif self.effects % 2:
                change.happens()
            raise PowerLoss(change.label)
        if self.fail_at is not None and self.effects == self.fail_at:
            change.lost()
            raise OSError(self.fail_with, f"injected at effect {self.effects}: {change.label}")
        change.happens()

    async def carry_out(self, change, _opened=None, _what=None, _data=()):
        """What takes its time on a disk: here, none. `_data`: the caller's buffers."""
        self.effect(change)

    def written(self, inode, position, data, *, durably=False):
        """A write of bytes."""
        if durably:
            whole_sectors = SECTOR_BYTES * (len(data) // SECTOR_BYTES // 2)
            return Change(
                "durable write",
                lambda: inode.write_durably(position, data),
                lambda: inode.change(("write", position, data[:whole_sectors])),
                lambda: inode.change(("write", position, data)),
            )
        return Change(
            "write",
            lambda: inode.change(("write", position, data)),
            lambda: inode.change(("write", position, data[: len(data) // 2])),
        )

    def synced(self, inode):
        return Change("fdatasync", inode.sync, inode.pending.clear)

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
        elif names.get(path) is not None:
            names[other] = names.pop(path)
        else:
            moved = {name: inode for name, inode in names.items() if name == path or path in name.parents}
            for name in moved:
                del names[name]
            for name, inode in moved.items():
                names[other / name.relative_to(path) if name != path else other] = inode

    def _name(self, label, operation):
        def happens():
            self._apply_name(self.names, operation)
            if operation[0] == "rename":
                self._pending_move(*operation[1:])
            self.pending_names.setdefault(operation[1].parent, []).append(operation)

        self.effect(Change(label, happens))

    # -- names and descriptors

    def _pending_move(self, source, target):
        """What is not durable yet inside of a folder stays that folder's, and is not the next one's of its old name."""

        if self.names[target] is not None:
            return

        def moved(path):
            inside = isinstance(path, Path) and (path == source or source in path.parents)
            return target / path.relative_to(source) if inside else path

        for folder in [each for each in self.pending_names if each == source or source in each.parents]:
            operations = self.pending_names.pop(folder)
            self.pending_names[moved(folder)] = [(kind, moved(path), moved(other)) for kind, path, other in operations]

    def _found(self, path):
        """Its inode, None for a folder's."""
        if path in self.names:
            return self.names[path]
        there = next(parent for parent in path.parents if parent in self.names)
        raise error_of(errno.ENOENT if self.names[there] is None else errno.ENOTDIR, path)

    def _check_folder(self, path):
        if self._found(path) is not None:
            raise error_of(errno.ENOTDIR, path)

    def _inside(self, folder):
        return [path for path in self.names if path.parent == folder and path != folder]

    def _opened(self, fd, closed_to=None):
        """`closed_to`: the access mode with which this cannot be done."""
        opened = self.found_descriptor(fd)
        if opened is None or opened.flags & os.O_ACCMODE == closed_to:
            raise error_of(errno.EBADF)
        return opened

    def is_left(self, _fd):
        """It was closed with its process, whose tasks are closing it now."""
        return False

    def found_descriptor(self, fd):
        return self.descriptors.get(fd)

    def check_direct(self, what, data, position):
        address = int(ffi.cast("uintptr_t", ffi.from_buffer(data))) if len(data) else 0
        if any(number % self.direct_block_bytes for number in (address, position, len(data))):
            assert not self._misaligned_is_bug, (address, position, len(data))
            raise error_of(errno.EINVAL)
        if self.refuses == what:
            raise OSError(errno.EINVAL, f"direct {what}")

    def _writable(self, fd, buffers, position):
        """The inode, for this to be written in it."""
        opened = self._opened(fd, os.O_RDONLY)
        if opened.is_direct:
            for data in buffers:
                self.check_direct("write", data, position)
                position += len(data)
        return opened.inode

    def _written(self, fd, position, length):
        opened = self._opened(fd)
        for block in range(position // 4096, -(-(position + length) // 4096)):
            self._ways.setdefault((opened.inode, block), set()).add("direct" if opened.is_direct else "cached")

    # -- the port

    async def open(self, path, flags, mode=0o644):
        if flags & os.O_DIRECT and self.refuses == "open":
            raise error_of(errno.EINVAL, path)
        if flags & os.O_CREAT and path not in self.names:
            self._check_folder(path.parent)
            self._name(f"create {path}", ("add", path, self.inode_type(self._now_ms)))
        elif flags & os.O_CREAT and flags & os.O_EXCL:
            raise error_of(errno.EEXIST, path)
        inode = self._found(path)
        if inode is None and flags & (os.O_ACCMODE | os.O_CREAT):
            raise error_of(errno.EISDIR, path)
        if inode is not None and flags & os.O_DIRECTORY:
            raise error_of(errno.ENOTDIR, path)
        if flags & os.O_TRUNC:
            inode.change(("truncate", 0, b""))
        return self.new_descriptor(inode, path, flags)

    def new_descriptor(self, inode, path, flags):
        self.next_descriptor += 1
        self.descriptors[self.next_descriptor] = Opened(inode, path, flags)
        return self.next_descriptor

    async def close(self, fd):
        if self.is_left(fd):
            return
        self._opened(fd)
        self.drop_descriptor(fd)

    def drop_descriptor(self, fd):
        del self.descriptors[fd]

    async def read(self, fd, length, position):
        opened = self._opened(fd, os.O_WRONLY)
        if opened.inode is None:
            raise error_of(errno.EISDIR)
        return bytes(opened.inode.content[position : position + length])

    read_view = read

    async def read_into(self, fd, data, position):
        if self._opened(fd, os.O_WRONLY).is_direct:
            self.check_direct("read", data, position)
            self.direct_reads.append(len(data))
        found = await self.read(fd, len(data), position)
        data[: len(found)] = found
        return len(found)

    async def read_ahead(self, fd, length, position):
        self._opened(fd)
        self.read_ahead_of.append((position, length))

    async def write_at(self, fd, data, position):
        await self.writev(fd, [data], position)

    async def write_zeros(self, fd, position, length):
        for first in range(position, position + length, len(ZEROS)):
            await self.write_at(fd, ZEROS[: position + length - first], first)

    async def writev(self, fd, buffers, position):
        inode = self._writable(fd, buffers, position)
        data = b"".join(bytes(buffer) for buffer in buffers)
        if not data:
            return
        self._written(fd, position, len(data))
        await self.carry_out(self.written(inode, position, data), self._opened(fd), fd, buffers)

    async def durable_write(self, fd, data, position):
        inode = self._writable(fd, [data], position)
        change = self.written(inode, position, bytes(data), durably=True)
        await self.carry_out(change, self._opened(fd), fd, [data])

    async def fdatasync(self, fd):
        opened = self._opened(fd)
        await self.carry_out(self.synced(opened.inode), opened, fd)

    async def fallocate(self, fd, position, length, *, keep_size):
        inode = self._opened(fd, os.O_RDONLY).inode
        if length <= 0:
            raise error_of(errno.EINVAL)
        await self.wait_space(fd)
        if position + length > self.available_bytes:
            raise error_of(errno.ENOSPC)
        if self.allocatable_bytes is not None:
            if length > self.allocatable_bytes:
                raise error_of(errno.ENOSPC)
            self.allocatable_bytes -= length
        if not keep_size:
            inode.change(("truncate", max(position + length, len(inode.content)), b""))
        inode.space_end = max(inode.space_end, position + length)

    async def wait_space(self, _fd):
        """Until the disk gets to a reservation."""

    async def truncate(self, fd, length):
        opened = self._opened(fd)
        if opened.flags & os.O_ACCMODE == os.O_RDONLY:
            raise error_of(errno.EINVAL)
        if length != len(opened.inode.content):
            self.effect(Change("truncate", lambda: opened.inode.change(("truncate", length, b""))))

    async def unlink(self, path):
        if self._found(path) is None:
            raise error_of(errno.EISDIR, path)
        self._name(f"unlink {path}", ("remove", path, None))

    async def rename(self, source, target):
        inode = self._found(source)
        self._check_folder(target.parent)
        if target == source:
            return
        if inode is None and source in target.parents:
            raise error_of(errno.EINVAL, source)
        if target in self.names:
            replaced = self.names[target]
            if (inode is None) != (replaced is None):
                raise error_of(errno.EISDIR if replaced is None else errno.ENOTDIR, target)
            if replaced is None and self._inside(target):
                raise error_of(errno.ENOTEMPTY, target)
            if replaced is inode and inode is not None:
                return
        self._name(f"rename {source}", ("rename", source, target))

    async def link(self, source, target):
        inode = self._found(source)
        self._check_folder(target.parent)
        if target in self.names:
            raise error_of(errno.EEXIST, target)
        if inode is None:
            raise error_of(errno.EPERM, source)
        self._name(f"link {target}", ("add", target, inode))

    async def mkdir(self, path):
        self._check_folder(path.parent)
        if path in self.names:
            raise error_of(errno.EEXIST, path)
        self._name(f"mkdir {path}", ("add", path, None))

    async def rmdir(self, path):
        self._check_folder(path)
        if self._inside(path):
            raise error_of(errno.ENOTEMPTY, path)
        self._name(f"rmdir {path}", ("remove", path, None))

    async def make_folders(self, paths, name, content):
        return await make_folders_one_by_one(self, paths, name, content)

    async def fsync_directory(self, path):
        self._check_folder(path)
        await self.carry_out(Change(f"fsync {path}", lambda: self._sync_names(path)), None, path)

    def _sync_names(self, path):
        for operation in self.pending_names.pop(path, []):
            self._apply_name(self.durable_names, operation)

    async def listdir(self, path):
        self._check_folder(path)
        return [name.name for name in self._inside(path)]

    async def read_folders(self, paths, small_names):
        return [self._folder_contents(path, small_names) if path in self.names else None for path in paths]

    def _folder_contents(self, folder, small_names):
        self._check_folder(folder)
        inside = {path.name: self.names[path] for path in self._inside(folder)}
        sizes = {name: len(inode.content) if inode else 0 for name, inode in inside.items()}
        unreadable = {name: OSError(errno.EIO, name) for name in small_names if folder / name in self.unreadable}
        small = {name: bytes(inside[name].content) for name in small_names if name in inside and name not in unreadable}
        return FolderContents(sizes, small, unreadable)

    async def stat(self, path):
        inode = self._found(path)
        if inode is None:
            return FileStatus(0, self._now_ms(), is_directory=True)
        return FileStatus(len(inode.content), inode.modified_ms, is_directory=False, inode=inode.number)

    async def statvfs(self, path):
        self._found(path)
        return FileSystemStatus(self.total_bytes, self.left_bytes())

    def left_bytes(self):
        return self.available_bytes

    async def syncfs(self, fd):
        self._opened(fd)

        def happens():
            for path in list(self.pending_names):
                self._sync_names(path)
            for inode in self.names.values():
                if inode:
                    inode.sync()

        await self.carry_out(Change("syncfs", happens), None, fd)
