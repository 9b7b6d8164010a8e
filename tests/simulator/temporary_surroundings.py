"""Until the disk and the sockets are there."""

import errno
import os
from functools import partial
import select

import trio

from tests.support.fake_disk import FakeDisk
from tests.support.simulated_ring import FSYNC, POLL_ADD, READ, READV, SEND, SENDMSG, WRITE, WRITEV, Device


class _File(Device):
    def __init__(self, disk, number):
        self.disk, self.number = disk, number

    def begin(self, operation):
        disk = self.disk
        opened = disk.descriptors.get(self.number)
        if opened is None:
            operation.complete(-errno.EBADF)
            return
        disk.cluster.wire.after(disk.delay(), partial(self.carry_out, operation, opened.inode))

    def carry_out(self, operation, inode):
        if operation.is_done or operation.ring.is_dead:
            return
        if operation.opcode in (WRITE, WRITEV):
            parts = [operation.memory()] if operation.opcode == WRITE else operation.vector()
            data = b"".join(parts)
            inode.change(("write", operation.offset, data))
            if operation.operation_flags:
                inode.sync_size()
                inode.apply(inode.durable, inode.pending.pop())
            operation.complete(len(data))
        elif operation.opcode == FSYNC:
            inode.sync()
            operation.complete(0)
        elif operation.opcode == READ:
            found = inode.content[operation.offset : operation.offset + operation.length]
            operation.memory()[: len(found)] = found
            operation.complete(len(found))
        else:
            raise AssertionError(operation)

    def read_cached(self, bytes_max, position):
        opened = self.disk.descriptors.get(self.number)
        return bytes(opened.inode.content[position : position + bytes_max])

    def duplicate(self):
        return self


class TemporaryDisk(FakeDisk):
    def __init__(self, cluster, chance):
        super().__init__(1 << 40, available_bytes=1 << 39)
        self.cluster, self.chance = cluster, chance
        self.sync_s_max = 0.005
        self.is_stuck = self.is_hung = self.is_full = False

    def delay(self):
        return self.chance.uniform(0.0002, self.sync_s_max)

    async def open(self, path, flags, mode=0o644):
        number = await super().open(path, flags, mode)
        opened = self.descriptors.pop(number)
        device = _File(self, 0)
        device.number = self.cluster.system.open(device)
        self.descriptors[device.number] = opened
        return device.number

    async def close(self, fd):
        await super().close(fd)
        self.cluster.system.close(fd)


class Socket(Device):
    """On an `_End`."""

    def __init__(self, end):
        self.end = end
        self.waiting = []
        end.on_news = self.news

    def begin(self, operation):
        if operation.opcode == POLL_ADD:
            self.waiting.append(operation)
            self.news()
        elif operation.opcode in (SEND, SENDMSG):
            data = bytes(operation.memory()) if operation.opcode == SEND else b"".join(operation.vector())
            operation.complete(self.send(data, more=False))
        else:
            raise AssertionError(operation)

    def cancel(self, operation):
        self.waiting.remove(operation)
        return True

    def news(self):
        end = self.end
        if end._inbox or end.is_ended or end.is_broken:
            waiting, self.waiting = self.waiting, []
            for one in waiting:
                one.complete(one.poll_events & select.POLLIN)

    def receive(self, bytes_max):
        end = self.end
        if end._inbox:
            data = end._inbox.popleft()
            if len(data) > bytes_max:
                end._inbox.appendleft(data[bytes_max:])
            return data[:bytes_max]
        if end.is_broken:
            return -errno.ECONNRESET
        return b"" if end.is_ended else -errno.EAGAIN

    def send(self, data, *, more):
        if self.end.is_broken or self.end.is_gone:
            return -errno.EPIPE
        self.end._put(data)
        return len(data)

    def shut(self):
        self.close()
        self.news()
        return 0

    def close(self):
        end = self.end
        if not end.is_gone and not end.is_broken:
            end._put(None)
        end.is_broken = True
        end.here.ends.discard(end)


async def _sync(self):
    await trio.sleep(self.delay())


def _close_now(self, fd):
    self.descriptors.pop(fd, None)
    self.cluster.system.close(fd)


TemporaryDisk.sync = _sync
TemporaryDisk.close_now = _close_now

TemporaryDisk.fail_journal = lambda self, core: None
TemporaryDisk.mend_journal = lambda self, core: None
