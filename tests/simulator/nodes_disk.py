"""A simulated node's disk, as one life of a core has it: its operations are noted, and end with that life."""

from __future__ import annotations

import os

from tests.support.disk_operations import OPERATIONS
from tests.support.fake_disk import PowerLoss
from tpc_broker.storage.disk_watch import DiskWatch

SHORT = frozenset({
    "open", "open_many", "write_at", "writev", "write_many", "fallocate", "reserve_many", "truncate", "rename", "link",
    "mkdir", "make_folders", "statvfs",
})  # fmt: skip
LONG = frozenset({
    "close", "durable_write", "fdatasync", "truncate_many", "replace_many", "close_many", "unlink", "rmdir",
    "fsync_directory", "syncfs",
})  # fmt: skip
"""As `runtime.disk.RingDisk` notes them."""


class LifeDisk:
    """`Disk`. Nothing is done behind `end`, and what is under way then ends with `PowerLoss`."""

    def __init__(self, disk):
        self.whole, self.watch = disk, DiskWatch()
        self.direct_block_bytes = disk.direct_block_bytes
        self._open, self._is_over = set(), False

    def end(self):
        """The process is gone: what it has open is closed."""
        self._is_over = True
        for descriptor in sorted(self._open):
            self.whole.close_now(descriptor)

    def poll_ring(self):
        self._check()

    def _check(self):
        if self._is_over:
            raise PowerLoss("this process is gone")

    def opened(self, descriptors):
        for descriptor in descriptors:
            if self._is_over:
                self.whole.close_now(descriptor)
            else:
                self._open.add(descriptor)

    async def open(self, *arguments):
        return await self._carry_out("open", arguments)

    async def open_many(self, *arguments):
        return await self._carry_out("open_many", arguments)

    async def close(self, descriptor):
        self._open.discard(descriptor)
        await self._carry_out("close", (descriptor,))

    async def close_many(self, descriptors):
        self._open.difference_update(descriptors)
        await self._carry_out("close_many", (descriptors,))

    async def sync(self):
        """As long as one takes, on such a disk."""
        await self.whole.sync()
        self._check()

    async def _carry_out(self, name, arguments, named=None):
        self._check()
        number = self.watch.begin(name, arguments[0], is_long=name in LONG) if name in SHORT | LONG else 0
        try:
            found = await getattr(self.whole, name)(*arguments, **(named or {}))
        finally:
            if number:
                self.watch.end(number)
        if name in ("open", "open_many"):
            self.opened([found] if name == "open" else [each for each in found if isinstance(each, int)])
        self._check()
        return found


def _operation(name):
    async def operation(self, *arguments, **named):
        return await self._carry_out(name, arguments, named)

    return operation


for _name in OPERATIONS - vars(LifeDisk).keys():
    setattr(LifeDisk, _name, _operation(_name))


class ReadFiles:
    """Files in a node's folder that are read by their paths, without a wait. One is replaced when it is synced."""

    def __init__(self, sync):
        self._sync = sync

    async def open(self, path, flags, mode=0o644):
        return os.open(path, flags, mode)

    async def write_at(self, descriptor, data, position):
        os.pwrite(descriptor, data, position)

    async def fdatasync(self, _descriptor):
        await self._sync()

    async def close(self, descriptor):
        os.close(descriptor)

    async def rename(self, source, target):
        source.rename(target)

    async def fsync_directory(self, _path):
        await self._sync()
