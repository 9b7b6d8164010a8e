"""Rings whose entries a test carries out, on a clock, a disk and a network of its own.

C (native/io/cdef/22_simulated.h) does not know: journal, logs, replication and connections run as in production.
`SimulatedSystem` has what a kernel has for them: descriptors, each of which stands for a `Device`, the time, and
chance. An entry of a ring becomes an `Operation`, which the device of its descriptor begins, now, and completes
whenever it wants; `SimulatedRing.turn` is the wait that production has at the end of each turn.
"""

from __future__ import annotations

import errno
import itertools
import struct
from dataclasses import dataclass, field

from tests.support.waiting import PATIENCE_S
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.ring import Backend, Ring

DESCRIPTOR_FIRST = 1 << 24
"""No descriptor of the process is as high, so a system call that finds its way past the simulation fails."""
TAKEN_AT_ONCE = 64
_ENTRY = struct.Struct("=QQQQIiIHBB")
assert _ENTRY.size == ffi.sizeof("tpc_simulated_entry")

NOP, READV, WRITEV, FSYNC, POLL_ADD, SENDMSG, ACCEPT, ASYNC_CANCEL = 0, 1, 2, 3, 6, 9, 13, 14
READ, WRITE, SEND, RECV = 22, 23, 26, 27
"""IORING_OP_…"""
IO_LINK = 1 << 2
"""IOSQE_IO_LINK: what follows begins when this one has succeeded."""


@dataclass
class Operation:
    """An entry that was submitted. `chained`: what is linked behind it."""

    ring: SimulatedRing
    number: int
    user_data: int
    address: int
    offset: int
    length: int
    descriptor: int
    operation_flags: int
    poll_events: int
    opcode: int
    flags: int
    chained: list[Operation] = field(default_factory=list)
    is_done: bool = False

    def complete(self, result):
        """With what the entry gives: >= 0, or -errno. Once; after the end of its ring it is nobody's."""
        assert not self.is_done, self
        self.is_done = True
        self.ring.completed(self, result)

    @property
    def is_under_way(self):
        """Its ring is there, and with it what it reads from or writes to."""
        return self.number in self.ring._under_way

    def memory(self):
        """What it reads from or writes to, while it is under way."""
        assert self.is_under_way, "whose memory this was is gone"
        return memoryview(ffi.buffer(ffi.cast("uint8_t *", self.address), self.length))

    def vector(self):
        """The same of a vectored one (`length` counts its parts) or of a message."""
        if self.opcode == SENDMSG:
            return _of_message(ffi.cast("void *", self.address))
        return [_part(self.address, number) for number in range(self.length)]


def _part(address, number):
    start, size = ffi.unpack(ffi.cast("uint64_t *", address) + 2 * number, 2)
    return memoryview(ffi.buffer(ffi.cast("uint8_t *", start), size))


def _of_message(message):
    """`struct msghdr`: name, its length, the vector, its length."""
    _name, _name_bytes, vector, count = ffi.unpack(ffi.cast("uint64_t *", message), 4)
    return [_part(vector, number) for number in range(count)]


class Device:
    """What a descriptor stands for: of a file, or of a socket. A call that is not its kind's gives EINVAL."""

    def begin(self, operation):
        operation.complete(-errno.EINVAL)

    def cancel(self, operation):
        """It was begun and is not done. True: it will be, as cancelled, by who asks."""
        return False

    def duplicate(self):
        return self

    def close(self):
        """Its last descriptor is closed."""

    def shut(self):
        return -errno.ENOTSOCK

    def abandon(self):
        return -errno.ENOTSOCK

    def peer(self):
        """A struct sockaddr as bytes; or -errno."""
        return -errno.ENOTSOCK

    def receive(self, bytes_max):
        """Bytes; or -errno."""
        return -errno.ENOTSOCK

    def send(self, data, *, more):
        return -errno.ENOTSOCK

    def read_cached(self, bytes_max, position):
        return -errno.EINVAL


class SimulatedSystem:
    """One at a time in a process, as a context. `now_ns()`, `wall_ms()` and `chance` (`random.Random`) are a test's."""

    def __init__(self, now_ns, wall_ms, chance):
        self._numbers = itertools.count(DESCRIPTOR_FIRST)
        self._devices: dict[int, Device] = {}
        self._monotonic_ns, self._wall_ms, self._chance = now_ns, wall_ms, chance
        self.failures: list[BaseException] = []
        """Of the simulation itself, within a call of C, which knows of no exception."""
        self._calls = ffi.new("tpc_io_calls *")
        self._kept = []
        for name, member in ffi.typeof("tpc_io_calls").fields:
            call = ffi.callback(member.type, getattr(self, f"_{name}"), error=-errno.EIO, onerror=self._failed)
            setattr(self._calls, name, call)
            self._kept.append(call)

    def _failed(self, _kind, error, _trace):
        self.failures.append(error)

    def __enter__(self):
        lib.tpc_io_replace(self._calls)
        return self

    def __exit__(self, *_):
        lib.tpc_io_replace(ffi.NULL)

    # -- descriptors ---------------------------------------------------------------------------------------------------

    def open(self, device):
        """A descriptor for it."""
        number = next(self._numbers)
        self._devices[number] = device
        return number

    def descriptors(self):
        """Those that are open."""
        return list(self._devices)

    def device(self, descriptor):
        return self._devices.get(descriptor)

    def close(self, descriptor):
        device = self._devices.pop(descriptor, None)
        if device is None:
            return -errno.EBADF
        if device not in self._devices.values():
            device.close()
        return 0

    def drop(self, is_gone):
        """Descriptors of those devices, whose process is gone; they, by their numbers."""
        dropped = {number: device for number, device in self._devices.items() if is_gone(device)}
        for number in dropped:
            del self._devices[number]
        return dropped

    def forget(self, device):
        """Whoever had it is gone, and with it all its descriptors; what becomes of the device is known already."""
        self._devices = {number: one for number, one in self._devices.items() if one is not device}

    # -- what C asks beside the entries of a ring ----------------------------------------------------------------------

    def _busy_ns(self):
        return -1

    def _draw(self, into, size):
        ffi.buffer(into, size)[:] = self._chance.randbytes(size)
        return size

    def _duplicate(self, descriptor):
        device = self._devices.get(descriptor)
        return -errno.EBADF if device is None else self.open(device.duplicate())

    def _close(self, descriptor):
        return self.close(descriptor)

    def _shut(self, descriptor):
        device = self._devices.get(descriptor)
        return -errno.EBADF if device is None else device.shut()

    def _abandon(self, descriptor):
        device = self._devices.get(descriptor)
        return -errno.EBADF if device is None else device.abandon()

    def _peer(self, descriptor, into, _size):
        device = self._devices.get(descriptor)
        return self._given(into, -errno.EBADF if device is None else device.peer())

    def _receive(self, descriptor, into, size):
        device = self._devices.get(descriptor)
        return self._given(into, -errno.EBADF if device is None else device.receive(size))

    def _send(self, descriptor, message, more):
        device = self._devices.get(descriptor)
        return -errno.EBADF if device is None else device.send(b"".join(_of_message(message)), more=more)

    def _read_cached(self, descriptor, into, size, position):
        device = self._devices.get(descriptor)
        return self._given(into, -errno.EBADF if device is None else device.read_cached(size, position))

    @staticmethod
    def _given(into, found):
        if isinstance(found, int):
            return found
        ffi.buffer(into, len(found))[:] = found
        return len(found)


class SimulatedRing(Ring):
    """Of one core. Turned by who runs the simulation, whenever something may have changed."""

    def __init__(self, system, entries=256):
        super().__init__(entries, hidden=(), backend=Backend.SIMULATED)
        self._system = system
        self._taken = ffi.new("tpc_simulated_entry[]", TAKEN_AT_ONCE)
        self._taken_view = memoryview(ffi.buffer(self._taken))
        self._under_way: dict[int, Operation] = {}
        self._chain: list[Operation] = []

    def turn(self):
        """What there is to do, until there is nothing left at this instant. When it wants the next turn, in ns; None:
        when something has come.
        """
        while True:
            count = self.wait(0)
            if count > 0:
                self.dispatch(count)
            if not self._begin_submitted() and count < 0:
                break
        if self._system.failures:
            raise self._system.failures[0]
        until_ns = lib.tpc_simulated_until(self.pointer)
        return None if until_ns == 2**63 - 1 else until_ns

    def _begin_submitted(self):
        count = lib.tpc_simulated_take(self.pointer, self._taken, TAKEN_AT_ONCE)
        for fields in _ENTRY.iter_unpack(self._taken_view[: count * _ENTRY.size]):
            operation = Operation(self, *fields)
            self._under_way[operation.number] = operation
            self._chain.append(operation)
            if not operation.flags & IO_LINK:
                first, *others = self._chain
                self._chain, first.chained = [], others
                self._begin(first)
        return count

    def _begin(self, operation):
        if operation.opcode == ASYNC_CANCEL:
            operation.complete(self._cancel(operation.address))
        elif operation.opcode == NOP:
            operation.complete(0)
        else:
            device = self._system.device(operation.descriptor)
            if device is None:
                operation.complete(-errno.EBADF)
            else:
                device.begin(operation)

    def _cancel(self, user_data):
        others = (each for each in self._under_way.values() if each.opcode != ASYNC_CANCEL)
        found = next((each for each in others if each.user_data == user_data), None)
        if found is None:
            return -errno.ENOENT
        device = self._system.device(found.descriptor)
        if device is None or not device.cancel(found):
            return -errno.EALREADY
        found.complete(-errno.ECANCELED)
        return 0

    def completed(self, operation, result):
        if self._under_way.pop(operation.number, None) is None:
            return  # its ring is closed
        lib.tpc_simulated_complete(self.pointer, operation.number, result)
        if not operation.chained:
            return
        follower, *others = operation.chained
        follower.chained = others
        is_short = operation.opcode in {READ, WRITE} and result != operation.length
        if result < 0 or is_short:
            follower.complete(-errno.ECANCELED)
        else:
            self._begin(follower)

    def abandon(self):
        """Its process is gone: to C everything ends, as cancelled, and nothing more is begun."""
        while self.wait(0) > 0 or self._under_way:
            for number in self._under_way:
                lib.tpc_simulated_complete(self.pointer, number, -errno.ECANCELED)
            self._under_way.clear()

    def close(self, timeout_s=PATIENCE_S):
        """What is under way is nobody's any more: the simulation may complete it, and nobody hears of that."""
        self._under_way.clear()
        super().close(timeout_s)
