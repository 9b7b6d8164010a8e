"""A disk in memory for the real storage and the real C of cores: it takes its time, hangs, is full, fails, loses power.

Names and files are those of `FakeDisk`. A descriptor is the simulated system's, so what Python has opened is given to
C, whose entries change the same files by the same effects. Whatever was asked for is under way until it lands, after a
time from the chance: a write is seen and a sync counts when it lands, and not before. What lands after what is as
chance will have it; what is linked waits, which is the ring's business.

A process that is gone (`kill`) leaves what it had under way to the kernel, which carries it out: milliseconds later, in
the midst of the next life, if that does not wait (`wait_landed`, in place of `engine.journal_lock`). Power that is
gone (`crash`) leaves of what was under way whatever sectors had been written.

Memory that is written from must not change meanwhile: what lands would be a mixture. It is copied when the write
begins, and compared when it lands.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import outcome
import trio

from tests.support.disk_operations import error_of
from tests.support.fake_disk import Change, FakeDisk, Inode
from tests.support.simulated_ring import FSYNC, READ, WRITE, WRITEV, Device, Operation
from tests.support.sparse_bytes import SparseBytes
from tpc_broker.engine.journal_lock import LOCK_SECONDS_MAX, JournalLockedError

RWF_DSYNC = 2
IN_MEMORY_S = (0.00005, 0.0005)
SYNC_S_MIN = 0.0005
BRINGING = {"durable", "fdatasync", "fsync", "syncfs"}
"""Kinds of changes that bring something to the disk, by the first word of their labels."""
AFTER_DEATH_S_MAX = 0.045
"""A ring outlives its process by that."""
LABELS_KEPT = 200
LOCK_LOOKS_S = 0.01
OWNER: ContextVar[object] = ContextVar("owner", default=None)
"""Of which process tasks are, for those who begin it (before its tasks), and end it. Nothing that tasks of a process do
that has ended reaches the disk.
"""


class SparseInode(Inode):
    def __init__(self, now_ms=lambda: 0):
        super().__init__(now_ms)
        self.content, self.durable = SparseBytes(), SparseBytes()

    def apply(self, target, operation):
        kind, position, data = operation
        if kind == "truncate":
            target.resize(position)
        else:
            target.write(position, data)

    def take_durable(self):
        self.content = self.durable.copy()

    def sync_some(self, covered):
        """As a sync that began when no more than that was pending."""
        kept = []
        for operation in self.pending:
            if any(operation is each for each in covered):
                self.apply(self.durable, operation)
            else:
                kept.append(operation)
        self.pending[:] = kept


@dataclass(eq=False)
class UnderWay:
    """What the disk was asked for and has not answered. `memory`: where its bytes lie, in parts, and `copied` what they
    were when it began. `tell` gets an error, or None.
    """

    change: Change
    tell: Callable[[OSError | None], None]
    owner: object
    memory: list[memoryview]
    copied: list[bytes]
    entry: Operation | None = None
    is_over: bool = False
    is_late: bool = False

    @property
    def kind(self):
        return self.change.label.partition(" ")[0]


class OpenFile(Device):
    """An open file, whatever descriptors it has. `inode` is None for a folder's."""

    def __init__(self, disk, inode, path, flags):
        self.disk, self.inode, self.path, self.flags, self.owner = disk, inode, path, flags, OWNER.get()

    @property
    def is_direct(self):
        return bool(self.flags & os.O_DIRECT)

    def is_closed_to(self, mode):
        return self.inode is None or self.flags & os.O_ACCMODE == mode

    def begin(self, operation):
        self.disk.begin_entry(self, operation)

    def cancel(self, operation):
        return self.disk.cancel_entry(operation)

    def read_cached(self, bytes_max, position):
        return self.disk.read_cached(self, bytes_max, position)


def _nobody(_error):
    """Who asked is gone."""


class SimulatedDisk(FakeDisk):
    """See the module. `later(delay_s, action)` has something happen; `chance` is a `random.Random` of its own."""

    inode_type = SparseInode

    def __init__(self, system, later, chance, **options):
        super().__init__(**options)
        self.system, self._later, self._chance = system, later, chance
        self.log = deque(maxlen=LABELS_KEPT)
        self.sync_s_max = 0.005
        self.short_write_rate = 0.02
        """Of C's buffered writes."""
        self.uncached_rate = 0.05
        """Of C's looks at what is in memory."""
        self.is_full = False
        """There is no space for more; what has its place has it."""
        self.fails_in = None
        """At the how many-th write or sync from now on there is EIO."""
        self.is_failing = False
        """At each."""
        self._is_stuck = self._is_hung = False
        self._under_way: dict[UnderWay, None] = {}
        self._held: list[UnderWay] = []
        self._dead: set[UnderWay] = set()
        self._ended: set[object] = set()
        """Owners."""
        self._left: set[int] = set()
        """Descriptors that ended with their process."""

    # -- descriptors ---------------------------------------------------------------------------------------------------

    def new_descriptor(self, inode, path, flags):
        return self.system.open(OpenFile(self, inode, path, flags))

    def found_descriptor(self, fd):
        device = self.system.device(fd)
        return device if self._is_own(device) else None

    def drop_descriptor(self, fd):
        self.system.close(fd)

    def is_left(self, fd):
        return fd in self._left

    def _is_own(self, device):
        return isinstance(device, OpenFile) and device.disk is self

    def _written(self, fd, position, length):
        """Nobody asks."""

    # -- trouble -------------------------------------------------------------------------------------------------------

    @property
    def is_stuck(self):
        """Nothing becomes durable meanwhile."""
        return self._is_stuck

    @is_stuck.setter
    def is_stuck(self, value):
        self._is_stuck = value
        self._go_on()

    @property
    def is_hung(self):
        """No sync comes back, and no reservation of space; the rest does."""
        return self._is_hung

    @is_hung.setter
    def is_hung(self, value):
        self._is_hung = value
        self._go_on()

    def _go_on(self):
        held, self._held = self._held, []
        for one in held:
            self._plan(one)

    def _check_owner(self):
        if OWNER.get() in self._ended:
            raise error_of(errno.ESHUTDOWN)

    def effect(self, change):
        self._check_owner()
        kind = change.label.partition(" ")[0]
        if kind in BRINGING or kind == "write":
            if self.fails_in is not None:
                self.fails_in -= 1
            if self.is_failing or self.fails_in == 0:
                self.fails_in = None
                change.lost()
                raise error_of(errno.EIO)
        super().effect(change)

    def crash(self, rng=None):
        """The power goes at this instant, for all processes on this disk."""
        for one in self._under_way:
            one.is_over = True
            if one.change.torn is not None:
                one.change.torn()
        self._under_way.clear()
        self._held.clear()
        self._dead.clear()
        super().crash(rng or self._chance)
        self._drop(lambda _device: True)

    def kill(self, owner=None):
        """A process is gone; None: all are. What it has under way is the kernel's."""
        for one in [one for one in self._under_way if owner in (None, one.owner)]:
            if one.kind == "read":
                self._over(one)
            one.tell, one.memory = _nobody, []
        self._dead.update(one for one in self._under_way if owner in (None, one.owner))
        self._drop(lambda device: owner in (None, device.owner))

    def _drop(self, is_gone):
        dropped = self.system.drop(lambda device: self._is_own(device) and is_gone(device))
        self._left.update(dropped)
        self._ended.update(device.owner for device in dropped.values() if device.owner is not None)

    async def wait_landed(self, _fd=None):
        """As the journal's lock is waited for: nothing of a process that was killed is under way then.
        JournalLockedError.
        """
        with trio.move_on_after(LOCK_SECONDS_MAX):
            while self._dead:
                await trio.sleep(LOCK_LOOKS_S)
            return
        raise JournalLockedError(f"an earlier life has not ended for {LOCK_SECONDS_MAX:g} s")

    # -- what is under way ---------------------------------------------------------------------------------------------

    def _begin(self, one):
        self._under_way[one] = None
        self._plan(one)
        return one

    def _plan(self, one):
        least, most = (SYNC_S_MIN, self.sync_s_max) if one.kind in BRINGING else IN_MEMORY_S
        self._later(self._chance.uniform(least, most), partial(self._land, one))

    def _land(self, one):
        if one.is_over:
            return
        if one in self._dead and not one.is_late:
            one.is_late = True
            self._later(self._chance.uniform(0, AFTER_DEATH_S_MAX), partial(self._land, one))
            return
        waits_for_disk = one.kind in BRINGING and (self._is_stuck or self._is_hung)
        if waits_for_disk or (one.kind == "reserve" and self._is_hung):
            self._held.append(one)
            return
        self._over(one)
        for memory, copied in zip(one.memory, one.copied, strict=False):
            assert bytes(memory) == copied, f"memory has changed under a {one.change.label} from it"
        try:
            self.effect(one.change)
        except OSError as error:
            one.tell(error)
        else:
            one.tell(None)

    def _over(self, one):
        one.is_over = True
        self._under_way.pop(one, None)
        self._dead.discard(one)

    async def carry_out(self, change, opened=None, what=None, data=()):
        """As a task asks for it."""
        memory = [memoryview(buffer).cast("B") for buffer in data]
        number = self.watch.begin(change.label, what, is_long=change.label.partition(" ")[0] in BRINGING)
        try:
            await self._landed(change, memory)
        finally:
            self.watch.end(number)

    async def wait_space(self, fd):
        number = self.watch.begin("reserve_many", fd)
        try:
            await self._landed(Change("reserve", self._check_space), [])
        finally:
            self.watch.end(number)

    async def _landed(self, change, memory):
        self._check_owner()
        task = trio.lowlevel.current_task()

        def tell(error):
            trio.lowlevel.reschedule(task, outcome.Value(None) if error is None else outcome.Error(error))

        def abort(_raise_cancel):
            one.tell = _nobody
            if not one.is_over and one not in self._dead:
                self._cancel(one)
            return trio.lowlevel.Abort.SUCCEEDED

        one = self._begin(UnderWay(change, tell, OWNER.get(), memory, list(map(bytes, memory))))
        await trio.lowlevel.wait_task_rescheduled(abort)

    def _cancel(self, one):
        """It has happened, or has not; a killed process's would be the kernel's."""
        if one not in self._held and self._chance.random() < 0.5:
            self._land(one)
        if one in self._held:
            self._held.remove(one)
        self._over(one)

    # -- changes -------------------------------------------------------------------------------------------------------

    def written(self, inode, position, data, *, durably=False):
        change = super().written(inode, position, data, durably=durably)

        def happens():
            if self.is_full and position + len(data) > inode.space_end:
                raise error_of(errno.ENOSPC)
            change.happens()

        return change._replace(happens=happens, torn=lambda: inode.change(("write", position, data)))

    def synced(self, inode):
        """What is pending now; of what comes while it is under way nobody knows."""
        covered = list(inode.pending)

        def happens():
            if self._chance.random() < 0.5:
                inode.sync()
            else:
                inode.sync_some(covered)

        return Change("fdatasync", happens, inode.pending.clear)

    def _check_space(self):
        if self.is_full:
            raise error_of(errno.ENOSPC)

    def left_bytes(self):
        return 0 if self.is_full else super().left_bytes()

    # -- entries of a ring ---------------------------------------------------------------------------------------------

    def begin_entry(self, file, operation):
        try:
            change, memory, result = self._change_of(file, operation)
        except OSError as error:
            operation.complete(-error.errno)
            return

        def tell(error):
            operation.complete(result() if error is None else -error.errno)

        copied = [] if change.label == "read" else list(map(bytes, memory))
        self._begin(UnderWay(change, tell, file.owner, memory, copied, operation))

    def _change_of(self, file, operation):
        """With the memory that it takes or fills, and what it results in."""
        position = operation.offset
        if operation.opcode in (WRITE, WRITEV):
            memory = [operation.memory()] if operation.opcode == WRITE else operation.vector()
            data = self._taken(file, memory, position, is_durable=operation.operation_flags & RWF_DSYNC)
            change = self.written(file.inode, position, data, durably=bool(operation.operation_flags & RWF_DSYNC))
            return change, memory, lambda: len(data)
        if operation.opcode == READ:
            memory, found = operation.memory(), []
            if file.is_closed_to(os.O_WRONLY):
                raise error_of(errno.EBADF)
            if file.is_direct:
                self.check_direct("read", memory, position)
            return Change("read", lambda: found.append(_read(file.inode, memory, position))), [memory], lambda: found[0]
        if operation.opcode == FSYNC and file.inode is not None:
            return self.synced(file.inode), [], lambda: 0
        raise error_of(errno.EINVAL)

    def _taken(self, file, memory, position, *, is_durable):
        """What a write writes: at times less than it was asked for."""
        if file.is_closed_to(os.O_RDONLY):
            raise error_of(errno.EBADF)
        data = b"".join(memory)
        if file.is_direct:
            for part in memory:
                self.check_direct("write", part, position)
                position += len(part)
        elif not is_durable and len(data) > 1 and self._chance.random() < self.short_write_rate:
            data = data[: self._chance.randrange(1, len(data))]
        return data

    def cancel_entry(self, operation):
        """Only a read is ever given up, at times."""
        one = next((one for one in self._under_way if one.entry is operation), None)
        if one is None or one.kind != "read" or self._chance.random() < 0.5:
            return False
        self._over(one)
        return True

    def read_cached(self, file, bytes_max, position):
        if file.is_closed_to(os.O_WRONLY):
            return -errno.EBADF
        found = file.inode.content[position : position + bytes_max]
        return -errno.EAGAIN if found and self._chance.random() < self.uncached_rate else found


def _read(inode, memory, position):
    found = inode.content[position : position + len(memory)]
    memory[: len(found)] = found
    return len(found)
