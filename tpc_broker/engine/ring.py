"""The ring of one core: operations that tasks await, and events of the C parts handed to callbacks.

Theory of operation. :meth:`Ring.wait` is one turn: C submits, waits, handles completions, and returns what Python has
to know as an array of events. :meth:`Ring.dispatch` calls, for each event, the callback of its kind; the kind OPERATION
belongs to this class and completes operations by their token. Nothing else runs Python: no thread, no signal handler.

Lifetime of buffers. The kernel may write to a buffer until the last completion of its
operation, whatever the task does meanwhile. So the table of pending operations holds the buffers, not the task's
frame, and a cancelled task waits for the completion of the operation it asked the kernel to cancel. When the
operation was faster than the cancel, its result is delivered as if there had been none, so an accepted or opened
descriptor is never lost.

Errors: `OSError` with the kernel's errno (and the path, where there is one); :exc:`RingUnavailable` when there is no
io_uring.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections import deque
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import outcome
import trio

from tpc_broker._ring import ffi, lib
from tpc_broker.native_bytes import pinned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpc_broker.storage.ports import Buffer

RING_ABI: Final = 1
ENTRIES_DEFAULT: Final = 1024
"""Submission entries; a turn that queues more costs one more system call."""
EVENTS_MAX: Final = 1024
"""Events handed over per turn; more wait in C for the next turn."""
HOT_WORK_MAX: Final = 8192
"""Completions handled in C before Python gets its turn."""
SERVE_AFTER_NS: Final = 50_000
"""Python's share before what C answers alone gets its turn in between (`Ring.serve`)."""
EVENTS_IN_A_ROW: Final = 8

_EVENT = struct.Struct("=I4xQqqQ")
assert _EVENT.size == ffi.sizeof("tpc_event")


class RingUnavailable(Exception):  # noqa: N818 (a state of the host, like trio's Cancelled)
    """There is no io_uring here. The text is one sentence for the operator, who gets exit code 2."""

    errno: int = 0
    """As io_uring_setup(2) gave it."""


class Feature(IntEnum):
    """What kernels differ in; the value is the bit in C."""

    SINGLE_ISSUER = lib.TPC_FEATURE_SINGLE_ISSUER
    DEFER_TASKRUN = lib.TPC_FEATURE_DEFER_TASKRUN
    COOP_TASKRUN = lib.TPC_FEATURE_COOP_TASKRUN
    EXT_ARG = lib.TPC_FEATURE_EXT_ARG
    MULTISHOT_ACCEPT = lib.TPC_FEATURE_MULTISHOT_ACCEPT
    MULTISHOT_RECEIVE = lib.TPC_FEATURE_MULTISHOT_RECEIVE
    BUFFER_RING = lib.TPC_FEATURE_BUFFER_RING
    SEND_ZC = lib.TPC_FEATURE_SEND_ZC
    UNLINKAT = lib.TPC_FEATURE_UNLINKAT
    FTRUNCATE = lib.TPC_FEATURE_FTRUNCATE
    SENDMSG_ZC = lib.TPC_FEATURE_SENDMSG_ZC
    CANCEL_ANY = lib.TPC_FEATURE_CANCEL_ANY
    CACHESTAT = lib.TPC_FEATURE_CACHESTAT


FEATURE_KERNELS: Final = {
    Feature.SINGLE_ISSUER: (6, 0),
    Feature.DEFER_TASKRUN: (6, 1),
    Feature.COOP_TASKRUN: (5, 19),
    Feature.EXT_ARG: (5, 11),
    Feature.MULTISHOT_ACCEPT: (5, 19),
    Feature.MULTISHOT_RECEIVE: (6, 0),
    Feature.BUFFER_RING: (5, 19),
    Feature.SEND_ZC: (6, 0),
    Feature.UNLINKAT: (5, 11),
    Feature.FTRUNCATE: (6, 9),
    Feature.SENDMSG_ZC: (6, 1),
    Feature.CANCEL_ANY: (5, 19),
    Feature.CACHESTAT: (6, 5),
}
"""The kernel release that brought each feature."""
assert len(FEATURE_KERNELS) == lib.TPC_FEATURES_COUNT

HIDE_VARIABLE: Final = "TPC_HIDE_FEATURES"


class Backend(StrEnum):
    """How operations are carried out; nothing above the ring depends on it."""

    IO_URING = "io_uring"
    PLAIN = "plain"
    """Where io_uring is refused: epoll, non-blocking calls and a few threads (native/io/plain.c)."""
    SIMULATED = "simulated"
    """Of tests alone, which carry the entries out themselves (native/io/cdef/22_simulated.h)."""


BACKEND_VARIABLE: Final = "TPC_BACKEND"
_BACKENDS: Final = {
    Backend.IO_URING: lib.TPC_BACKEND_IO_URING,
    Backend.PLAIN: lib.TPC_BACKEND_PLAIN,
    Backend.SIMULATED: lib.TPC_BACKEND_SIMULATED,
}


def hidden_features(text: str) -> frozenset[Feature]:
    """Read the feature switch: names (`buffer_ring,send_zc`) or a kernel release (`5.8`) whose later features are
    hidden.

    Raises `ValueError` that names what is allowed.
    """
    hidden: set[Feature] = set()
    for word in filter(None, (part.strip() for part in text.split(","))):
        major, dot, minor = word.partition(".")
        if dot and major.isdigit() and minor.isdigit():
            release = (int(major), int(minor))
            hidden |= {feature for feature, since in FEATURE_KERNELS.items() if since > release}
        elif word.upper() in Feature.__members__:
            hidden.add(Feature[word.upper()])
        else:
            names = ", ".join(feature.name.lower() for feature in Feature)
            raise ValueError(f"{HIDE_VARIABLE}: {word!r} is neither a kernel release such as 5.8 nor one of: {names}")
    return frozenset(hidden)


@dataclass(frozen=True, slots=True)
class RingStatistics:
    """Counters since the ring was made; times in ns. The fields are those of `tpc_ring_statistics` in C."""

    turns: int
    enters: int
    submissions: int
    completions: int
    events: int
    wakes: int
    timeouts: int
    hot_limits: int
    outstanding: int
    operations: int
    overflows: int
    wait_ns: int
    work_ns: int
    python_ns: int
    stalls: int
    stall_ns_max: int
    turns_with_events: int
    serves: int
    python_spans: tuple[int, ...]
    """By power of two of their length: at place i those of less than 2**i us."""


def _mask(features: Iterable[Feature]) -> int:
    return sum(1 << feature for feature in features)


SECCOMP_NEEDED: Final = "a seccomp filter that allows io_uring_setup, io_uring_enter and io_uring_register"
KERNEL_NEEDED: Final = "Linux 5.8 or newer, built with CONFIG_IO_URING, is needed"


def is_filtered() -> bool:
    """Whether a seccomp filter judges this process's system calls (proc(5))."""
    try:
        return "Seccomp:\t2\n" in Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False


def unavailable(error: int) -> RingUnavailable:
    """That a ring was refused with this errno."""
    refused = RingUnavailable(_sentence(error))
    refused.errno = error
    return refused


def _sentence(error: int) -> str:
    """What it means that a ring was refused with this errno.

    Docker's filter answers EPERM, Podman's ENOSYS, which is also what a kernel without io_uring says.
    """
    if error == errno.ENOSYS and is_filtered():
        return (
            f"there is no io_uring here: a container or a service needs {SECCOMP_NEEDED}; "
            f"or else it is the kernel: {KERNEL_NEEDED}"
        )
    if error == errno.ENOSYS:
        return f"this kernel has no io_uring: {KERNEL_NEEDED}"
    if error in {errno.EPERM, errno.EACCES}:
        return (
            "io_uring is forbidden here: set the sysctl kernel.io_uring_disabled to 0, or, "
            f"in a container or a service, run with {SECCOMP_NEEDED}"
        )
    if error == errno.ENOMEM:
        return (
            "not even a small io_uring fits into the locked-memory limit: raise memlock (ulimit -l, LimitMEMLOCK=)"
        )
    return f"io_uring cannot be set up: {os.strerror(error)} (errno {error})"


class _Waiter:
    """A task that awaits one operation."""

    __slots__ = ("cancelled", "flags", "operation", "ring", "task")

    def __init__(self, ring: Ring, operation: int) -> None:
        self.ring = ring
        self.operation = operation
        self.task = trio.lowlevel.current_task()
        self.cancelled: Callable[[], NoReturn] | None = None
        self.flags = 0

    def complete(self, result: int, flags: int) -> None:
        self.flags = flags
        trio.lowlevel.reschedule(self.task, outcome.Value(result))

    def abort(self, raise_cancel: Callable[[], NoReturn]) -> trio.lowlevel.Abort:
        self.cancelled = raise_cancel
        self.ring.cancel(self.operation)
        return trio.lowlevel.Abort.FAILED


class Ring:
    """One ring, made, used and closed by one thread. See the module for how it works.

    The asynchronous methods are for trio tasks of that thread and are all cancellable; they complete as described in
    the module.
    :meth:`start` is their callback form: `callback(result, flags)` is called from :meth:`dispatch`.
    """

    def __init__(
        self,
        entries: int = ENTRIES_DEFAULT,
        *,
        hidden: Iterable[Feature] | None = None,
        backend: Backend | None = None,
        events_max: int = EVENTS_MAX,
    ) -> None:
        """Make a ring. `hidden` are features not to be used; `None`: what the environment's TPC_HIDE_FEATURES says.
        `backend`: `None` is io_uring, unless the environment's TPC_BACKEND says `plain`.
        """
        if lib.tpc_ring_abi() != RING_ABI:
            raise RuntimeError("tpc_broker._ring was built from other sources: build the extensions again")
        if hidden is None:
            hidden = hidden_features(os.environ.get(HIDE_VARIABLE, ""))
        if backend is None:
            is_plain = os.environ.get(BACKEND_VARIABLE) == Backend.PLAIN
            backend = Backend.PLAIN if is_plain else Backend.IO_URING
        out = ffi.new("tpc_ring **")
        error = lib.tpc_ring_new(entries, _mask(hidden), _BACKENDS[backend], out)
        if error < 0:
            raise unavailable(-error)
        self.pointer = out[0]
        """`tpc_ring *`, for the Python faces of the other C parts; valid until the ring is closed."""
        self.features = frozenset(feature for feature in Feature if lib.tpc_ring_features(self.pointer) >> feature & 1)
        self.backend = backend
        self.closed = False
        self._thread = threading.get_ident()
        self._left_behind: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._events = ffi.new("tpc_event[]", events_max)
        self._events_max = events_max
        self._events_view = memoryview(ffi.buffer(self._events))
        self._callbacks: list[Callable[[int, int, int, int], None] | None] = [None] * 24
        self._callbacks[lib.TPC_EVENT_OPERATION] = self._on_operation
        self._token = 0
        self._pending: dict[int, tuple[Callable[[int, int], None], object]] = {}

    # ------------------------------------------------------------------------------------------ the turn

    def wait(self, timeout_ns: int, work_max: int = HOT_WORK_MAX) -> int:
        """One turn: the number of events for :meth:`dispatch`; 0: woken; -ETIME: the time-out passed; -EINTR: a signal.

        `timeout_ns` < 0 waits without end.
        """
        if self._left_behind:
            self._do_left_behind()
        count: int = lib.tpc_ring_wait(self.pointer, timeout_ns, work_max, self._events, self._events_max)
        if count < 0 and count not in {-errno.ETIME, -errno.EINTR}:
            raise OSError(-count, f"io_uring_enter: {os.strerror(-count)}")
        return count

    def dispatch(self, count: int) -> None:
        """Call the callbacks of the `count` events that the last :meth:`wait` gave."""
        callbacks = self._callbacks
        for first in range(0, count, EVENTS_IN_A_ROW):
            if first:
                lib.tpc_ring_serve(self.pointer, SERVE_AFTER_NS)
            events = self._events_view[first * _EVENT.size : min(first + EVENTS_IN_A_ROW, count) * _EVENT.size]
            for kind, token, a, b, pointer in _EVENT.iter_unpack(events):
                callback = callbacks[kind]
                if callback is not None:
                    callback(token, a, b, pointer)

    def serve(self, after_ns: int = 0) -> None:
        """In the midst of long work without an await: what C answers alone is answered, when nobody was for `after_ns`.

        Events stay for the next wait, so no Python runs in here.
        """
        lib.tpc_ring_serve(self.pointer, after_ns)

    def beat_on(self, fd: int, interval_ns: int) -> None:
        """From now on, add 1 to this eventfd at waits and serves, at most once per interval, for who watches."""
        lib.tpc_ring_beat_on(self.pointer, fd, interval_ns)

    def on_event(self, kind: int, callback: Callable[[int, int, int, int], None] | None) -> None:
        """Have events of a kind (`lib.TPC_EVENT_…`) call `callback(token, a, b, pointer)`; `None`: they are dropped.

        The callback is synchronous and short; the pointer is an integer (`ffi.cast` makes a pointer of it).
        """
        if kind == lib.TPC_EVENT_OPERATION:
            raise ValueError("operations are the ring's own events")
        self._callbacks[kind] = callback

    def in_own_thread(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function of C now, or before the next turn when this is not the ring's thread, where C may be at work
        meanwhile. For finalizers: the collector runs in whatever thread makes objects.
        """
        if threading.get_ident() == self._thread:
            function(*arguments)
        else:
            self._left_behind.append((function, arguments))

    def _do_left_behind(self) -> None:
        while self._left_behind:
            function, arguments = self._left_behind.popleft()
            function(*arguments)

    def wake(self) -> None:
        """End the current or the next wait. Any thread and a signal handler may call this, until :meth:`close` is
        called.
        """
        if not self.closed:
            lib.tpc_ring_wake(self.pointer)

    def statistics(self) -> RingStatistics:
        values = ffi.new("tpc_ring_statistics *")
        lib.tpc_ring_get_statistics(self.pointer, values)
        found = {name: getattr(values, name) for name in RingStatistics.__slots__}
        return RingStatistics(**{**found, "python_spans": tuple(values.python_spans)})

    def live_statistics(self) -> Any:
        """`const tpc_ring_statistics *`, read field by field as it counts; until the ring is closed."""
        return lib.tpc_ring_live_statistics(self.pointer)

    def take_longest_turn_ns(self) -> int:
        """The longest that Python had the core between two waits since this was called before."""
        return int(lib.tpc_ring_take_longest_turn(self.pointer))

    def close(self, timeout_s: float = 5.0) -> None:
        """Cancel what is under way, wait until the kernel holds nothing any more, free the ring. Twice is allowed.

        `TimeoutError` when something did not end in time: its memory stays allocated, because the kernel may still
        use it.
        """
        if self.closed:
            return
        self._do_left_behind()
        self.closed = True
        error = lib.tpc_ring_close(self.pointer, int(timeout_s * 1e9))
        if error < 0:
            _LEFT_TO_THE_KERNEL.append(self._pending)
            raise TimeoutError(-error, f"operations on the ring did not end within {timeout_s} s")
        self._pending.clear()

    # ------------------------------------------------------------------------------------------ operations

    def _on_operation(self, token: int, result: int, flags: int, _pointer: int) -> None:
        callback, _held = self._pending.pop(token)
        callback(result, flags)

    def start(
        self,
        submit: Callable[..., int],
        *arguments: Any,
        callback: Callable[[int, int], None],
        held: object = None,
    ) -> int:
        """Submit one operation of C (`lib.tpc_operation_…`, called with ring, token and `arguments`).

        What has to stay while C uses its memory is `held` until the completion. Returns the operation's id for
        :meth:`cancel`.
        """
        self._token = token = self._token + 1
        operation: int = submit(self.pointer, token, *arguments)
        if operation < 0:
            raise OSError(-operation, os.strerror(-operation))
        self._pending[token] = (callback, held)
        return operation

    def cancel(self, operation: int) -> None:
        """Ask the kernel to cancel; the operation's own completion still comes. Nothing happens when it has come
        already.
        """
        lib.tpc_operation_cancel(self.pointer, operation)

    async def perform(self, submit: Callable[..., int], *arguments: Any, held: object = None) -> tuple[int, int]:
        """Submit one operation and await it: its result (>= 0 or -errno) and flags. A checkpoint, cancellable."""
        await trio.lowlevel.checkpoint_if_cancelled()
        waiter = _Waiter(self, 0)
        waiter.operation = self.start(submit, *arguments, callback=waiter.complete, held=held)
        result: int = await trio.lowlevel.wait_task_rescheduled(waiter.abort)
        if waiter.cancelled is not None and result in {-errno.ECANCELED, -errno.EINTR}:
            waiter.cancelled()
        return result, waiter.flags

    async def _checked(
        self, submit: Callable[..., int], *arguments: Any, held: object = None, path: str | None = None
    ) -> int:
        result, _ = await self.perform(submit, *arguments, held=held)
        if result < 0:
            raise OSError(-result, os.strerror(-result), path)
        return result

    async def _on_file(self, submit: Callable[..., int], fd: int, *arguments: Any, held: object = None) -> int:
        """The same of an open file, which the error names."""
        result, _ = await self.perform(submit, fd, *arguments, held=held)
        if result < 0:
            raise OSError(-result, os.strerror(-result), name_of(fd))
        return result

    # ------------------------------------------------------------------------------------------ files

    async def read(self, fd: int, into: Buffer, position: int) -> int:
        """Read at most `len(into)` bytes; the number read, 0 at the end of the file."""
        pointer, size, held = pinned(into, writable=True)
        return await self._on_file(lib.tpc_operation_read, fd, pointer, size, position, held=held)

    async def write(self, fd: int, data: Buffer, position: int, *, durable: bool = False) -> int:
        """Write; the number of bytes written, which may be fewer. `durable`: they are on the disk then (RWF_DSYNC)."""
        pointer, size, held = pinned(data)
        flags = os.RWF_DSYNC if durable else 0
        return await self._on_file(lib.tpc_operation_write, fd, pointer, size, position, flags, held=held)

    async def write_in_parts(self, fd: int, data: Buffer, position: int, part_bytes: int) -> int:
        """Write part by part, so that other writes to the disk get through between them; the bytes written."""
        pointer, size, held = pinned(data)
        return await self._on_file(lib.tpc_operation_write_in_parts, fd, pointer, size, position, part_bytes, held=held)

    async def writev(self, fd: int, data: Sequence[Buffer], position: int, *, durable: bool = False) -> int:
        """Write several buffers, at most 1024, in order; the number of bytes written, which may be fewer."""
        parts, lengths, held = _vector(data)
        flags = os.RWF_DSYNC if durable else 0
        return await self._on_file(
            lib.tpc_operation_writev, fd, parts, lengths, len(data), position, flags, held=held
        )

    async def write_fdatasync(self, fd: int, data: Buffer, position: int) -> int:
        """Write and fdatasync as two linked entries. A short write is returned, and is not durable."""
        pointer, size, held = pinned(data)
        written, synced = await self.perform(
            lib.tpc_operation_write_fdatasync, fd, pointer, size, position, held=held
        )
        error = written if written < 0 else synced if written == size else 0
        if error < 0:
            raise OSError(-error, os.strerror(-error), name_of(fd))
        return written

    async def fsync(self, fd: int) -> None:
        await self._on_file(lib.tpc_operation_fsync, fd, False)  # noqa: FBT003 (cffi has no keyword arguments)

    async def fdatasync(self, fd: int) -> None:
        await self._on_file(lib.tpc_operation_fsync, fd, True)  # noqa: FBT003

    async def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        """Open a file, always close-on-exec; the descriptor."""
        return await self._checked(lib.tpc_operation_openat, AT_FDCWD, os.fsencode(path), flags, mode, path=path)

    async def close_fd(self, fd: int) -> None:
        await self._checked(lib.tpc_operation_close, fd)

    async def fallocate(self, fd: int, mode: int, position: int, length: int) -> None:
        """Reserve space for a range; `mode` 1 keeps the file's size."""
        await self._on_file(lib.tpc_operation_fallocate, fd, mode, position, length)

    async def read_ahead(self, fd: int, position: int, length: int) -> None:
        """Have the page cache read a range; returns when that is asked for."""
        await self._on_file(lib.tpc_operation_read_ahead, fd, position, length)

    async def ftruncate(self, fd: int, length: int) -> None:
        await self._on_file(lib.tpc_operation_ftruncate, fd, length)

    async def unlink(self, path: str, *, folder: bool = False) -> None:
        """Remove a file, or with `folder` an empty directory."""
        await self._checked(
            lib.tpc_operation_unlinkat, AT_FDCWD, os.fsencode(path), AT_REMOVEDIR if folder else 0, path=path
        )


def name_of(fd: int) -> str | None:
    """The path of an open file, for messages; None: it has none, or cannot be told."""
    try:
        path = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115 (text is what is wanted)
    except OSError:
        return None
    return path if path.startswith("/") else None


AT_FDCWD: Final = -100
AT_REMOVEDIR: Final = 0x200

_LEFT_TO_THE_KERNEL: list[object] = []
"""Buffers of rings that could not be drained: never freed."""


def _vector(buffers: Sequence[Buffer]) -> tuple[Any, Any, object]:
    all_pinned = [pinned(buffer) for buffer in buffers]
    parts = ffi.new("void *[]", [pointer for pointer, _size, _held in all_pinned])
    lengths = ffi.new("size_t[]", [size for _pointer, size, _held in all_pinned])
    return parts, lengths, all_pinned
