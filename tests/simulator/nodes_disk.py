"""The disk of a simulated node, and as one process has it: its operations are noted, and end with that process."""

from __future__ import annotations

import errno
import os

import trio

from tests.support.disk_operations import OPERATIONS, error_of
from tests.support.fake_disk import Change, PowerLoss
from tests.support.simulated_disk import OWNER, SimulatedDisk
from tpc_broker.log.files import journal_file_name
from tpc_broker.storage.disk_watch import DiskWatch

SHORT = frozenset({
    "open", "open_many", "write_at", "writev", "write_many", "fallocate", "reserve_many", "truncate", "rename", "link",
    "mkdir", "make_folders", "statvfs",
})  # fmt: skip
LONG = frozenset({
    "close", "durable_write", "fdatasync", "truncate_many", "replace_many", "close_many", "unlink", "rmdir",
    "fsync_directory", "syncfs",
})  # fmt: skip
"""As `engine.disk.RingDisk` notes them."""
REFUSED_S = 1.0
"""What was refused may be told later."""
FOLDERS = ("journals", "topics", "cluster")


class NodeDisk(SimulatedDisk):
    """Of a node, for all of its lives. It begins with the folders of a data directory."""

    def __init__(self, cluster, folder, chance):
        super().__init__(cluster.system, cluster.wire.after, chance, total_bytes=1 << 40, available_bytes=1 << 39)
        self._journals = folder / "journals"
        self._failing: set[object] = set()
        """Inodes of journals."""
        self._fails_in_place = False
        self._refused_s = float("-inf")
        for path in (*folder.parents, folder, *(folder / name for name in FOLDERS)):
            self.put_folder(path)

    @property
    def is_unwell(self):
        """It refuses something, or keeps it waiting, or has a moment ago."""
        waits, refuses = self.is_stuck or self.is_hung, self._failing or self._fails_in_place
        return waits or refuses or self.is_full or self.is_failing or trio.current_time() - self._refused_s < REFUSED_S

    def effect(self, change):
        try:
            super().effect(change)
        except OSError:
            self._refused_s = trio.current_time()
            raise

    def fail_journal(self, core):
        """Nothing is written to it any more."""
        inode = self.names.get(self._journals / journal_file_name(core))
        if inode is not None:
            self._failing.add(inode)

    def mend_journals(self):
        self._failing.clear()
        self._fails_in_place = False

    def fail_in_place(self):
        """Nothing is written to segments that is to be durable at once."""
        self._fails_in_place = True

    def _refuses(self, inode, *, durably):
        return inode in self._failing or (durably and self._fails_in_place and self._is_segment(inode))

    def _is_segment(self, inode):
        return any(one is inode and path.suffix == ".log" for path, one in self.names.items())

    def written(self, inode, position, data, *, durably=False):
        change = super().written(inode, position, data, durably=durably)

        def happens():
            if self._refuses(inode, durably=durably):
                change.lost()
                raise error_of(errno.EIO)
            change.happens()

        return change._replace(happens=happens)

    async def sync(self):
        """As long as one takes."""
        await self.carry_out(Change("fdatasync", lambda: None))


class LifeDisk:
    """`Disk` of `owner`, a process. Nothing is done behind `end`, and what is under way then ends with `PowerLoss`."""

    def __init__(self, disk, owner):
        self.whole, self.watch = disk, DiskWatch()
        self.direct_block_bytes = disk.direct_block_bytes
        self._owner, self._is_over = owner, False

    def begin(self):
        """In the task of which all others of the process come."""
        OWNER.set(self._owner)

    def end(self):
        """The process is gone: what it has open is closed."""
        self._is_over = True
        self.whole.kill(self._owner)

    def poll_ring(self):
        self._check()

    def _check(self):
        if self._is_over:
            raise PowerLoss("this process is gone")

    async def wait_landed(self):
        await self.whole.wait_landed()

    async def sync(self):
        await self.whole.sync()
        self._check()

    async def _carry_out(self, name, arguments, named):
        self._check()
        number = self.watch.begin(name, arguments[0], is_long=name in LONG) if name in SHORT | LONG else 0
        try:
            found = await getattr(self.whole, name)(*arguments, **named)
        finally:
            if number:
                self.watch.end(number)
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
