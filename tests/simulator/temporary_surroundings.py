"""Until the disk and the sockets are there."""

import errno
import os
from functools import partial
import select

import trio

from tests.support.fake_disk import FakeDisk
from tests.support.simulated_ring import FSYNC, POLL_ADD, READ, READV, SEND, SENDMSG, WRITE, WRITEV, Device


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


