"""trio on the ring: trio's own wait is the ring's wait, one system call per turn of the scheduler.

Way of it: trio asks an IOManager to wait (`get_events`), to act on what came (`process_events`), and for readiness
(`wait_readable`, `wait_writable`, `notify_closing`: poll entries here). :class:`RingIOManager` takes the place of
trio's epoll one while a run is being set up. The class is found under a name that trio keeps private, so :func:`run`
checks what it relies on and says so when it has moved; pyproject.toml pins the range of trio. The decision, with the
public alternative and figures, is docs/decisions/2026-11-21-trio-on-the-ring.md. trio's guest mode would wait in
another thread than the ring's, and is refused.

Everything of trio works as usual: sockets, processes, signals, threads, timeouts. :func:`current_ring` gives tasks
their ring.

Between the steps of a turn, and in the midst of long ones, C answers what it answers alone (`Ring.serve`).

When Python takes longer than `stall_ms` is counted (`RingStatistics.stalls`): routine, at a start and under load. When
it takes `stall_log_ms`, which clients notice, a thread that otherwise sleeps in C logs where the core was at that
moment, at most once per second.
"""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import logging
import os
import select
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import outcome
import trio

from tpc_broker import limits
from tpc_broker._ring import lib
from tpc_broker.engine.ring import ENTRIES_DEFAULT, HOT_WORK_MAX, SERVE_AFTER_NS, Ring
from tpc_broker.engine.task_queues import CWork, TaskQueues

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from tpc_broker.engine.ring import Backend, Feature

T = TypeVar("T")

trio_run: Any = importlib.import_module("trio._core._run")
"""The module in which trio looks its IOManager up. Private: see :func:`check_trio`."""

STALL_FRAMES_MAX: Final = 6
STALL_LOG_INTERVAL_S: Final = 1.0
TIMEOUT_NS_MAX: Final = 24 * 3600 * 10**9
IO_MANAGER_METHODS: Final = frozenset(
    {
        "statistics",
        "close",
        "force_wakeup",
        "get_events",
        "process_events",
        "wait_readable",
        "wait_writable",
        "notify_closing",
    }
)

_logger = logging.getLogger(__name__)
_POLL_READ: Final = select.POLLIN | select.POLLRDHUP
_POLL_WRITE: Final = select.POLLOUT


@dataclass(frozen=True, slots=True)
class RingOptions:
    """How to make the ring of a run. `hidden`: `None` reads TPC_HIDE_FEATURES, `backend`: TPC_BACKEND. Python's parts
    of turns that take longer than `stall_ms` are counted, those of `stall_log_ms` are logged; `stall_ms` 0 switches
    both off.
    """

    entries: int = ENTRIES_DEFAULT
    hidden: frozenset[Feature] | None = None
    backend: Backend | None = None
    work_max: int = HOT_WORK_MAX
    stall_ms: int = limits.STALL_MS
    stall_log_ms: int = limits.STALL_LOG_MS


@dataclass(frozen=True, slots=True)
class RingIOStatistics:
    """What `trio.lowlevel.current_statistics().io_statistics` shows."""

    tasks_waiting_read: int
    tasks_waiting_write: int
    backend: str


class _StallLog:
    """The thread that says where a stalled turn was. It touches nothing of the ring but the two calls made for it."""

    def __init__(self, ring: Ring, after_ms: int) -> None:
        self._ring = ring
        self._after_ms = after_ms
        self._core_thread = threading.get_ident()
        self._quiet_until_s = 0.0
        self._unlogged = 0
        self._thread = threading.Thread(target=self._watch, name="stall-log", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while lib.tpc_ring_wait_stalled(self._ring.pointer, self._after_ms * 1_000_000) == 1:
            now_s = time.monotonic()
            text = self._where() if now_s >= self._quiet_until_s else ""
            if not text:
                self._unlogged += 1
                continue
            _logger.warning(
                "Python has held up the core's loop for %d ms, at: %s; %d more since the last such line",
                self._after_ms, text, self._unlogged,
            )  # fmt: skip
            self._unlogged = 0
            self._quiet_until_s = now_s + STALL_LOG_INTERVAL_S

    def _where(self) -> str:
        """Where the core is; "": nowhere. Its frames, with all that they refer to, are kept for no longer than this."""
        frame = sys._current_frames().get(self._core_thread)  # noqa: SLF001 (the documented way to see another thread)
        where = traceback.extract_stack(frame)[-STALL_FRAMES_MAX:] if frame is not None else []
        return " < ".join(f"{entry.name} ({Path(entry.filename).name}:{entry.lineno})" for entry in reversed(where))

    def stop(self) -> None:
        lib.tpc_ring_stall_stop(self._ring.pointer)
        self._thread.join()


class _PollWait:
    """A task that waits for readiness.

    Poll entries hold no buffers, so a cancelled wait ends at once and its completion is ignored when it comes.
    """

    __slots__ = ("operation", "task")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task: trio.lowlevel.Task | None = task
        self.operation = 0


class _Instrument(trio.abc.Instrument):
    """Puts the task queues in place, and serves between the steps of a turn: who is answered in C waits for one step at
    most, not for all that are due.

    What C changes there it might have changed in a wait as well: a task relies on nothing across an await.
    """

    def __init__(self, ring: Ring) -> None:
        self._pointer = ring.pointer

    def before_run(self) -> None:
        runner = trio_run.GLOBAL_RUN_CONTEXT.runner
        runner.runq = runner.io_manager.task_queues

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 (trio's signature)
        lib.tpc_ring_serve(self._pointer, SERVE_AFTER_NS)


# Rule: Python's turns hold up nobody for long: there are few of them, and C is served in between. See also
# native/io/wait.c, tpc_broker/storage/upkeep/write_behind.py. Held by tests/broker/test_turns.py,
# tests/engine/test_ring_wait.py.
class RingIOManager:
    """trio's IOManager on a ring. Its interface is trio's, see `trio._core._io_epoll`."""

    def __init__(self, ring: Ring, options: RingOptions) -> None:
        self.ring = ring
        self.task_queues = TaskQueues(CWork(ring), ring.take_longest_turn_ns)
        self._work_max = options.work_max
        self._thread = threading.get_ident()
        self._waiting: dict[tuple[int, int], _PollWait] = {}
        self._stall_log: _StallLog | None = None
        if options.stall_ms:
            lib.tpc_ring_stall_threshold(ring.pointer, options.stall_ms * 1_000_000)
            self._stall_log = _StallLog(ring, options.stall_log_ms)

    def statistics(self) -> RingIOStatistics:
        readers = sum(1 for _, events in self._waiting if events == _POLL_READ)
        return RingIOStatistics(readers, len(self._waiting) - readers, self.ring.backend.value)

    def close(self) -> None:
        if self._stall_log is not None:
            self._stall_log.stop()
        self.ring.close()

    def force_wakeup(self) -> None:
        self.ring.wake()

    def get_events(self, timeout: float) -> int:
        """One turn of the ring. False if and only if the time-out passed, as trio wants it; -1: woken without
        events.
        """
        if threading.get_ident() != self._thread:
            raise RuntimeError("trio's guest mode waits in another thread and cannot run on a ring")
        if self.task_queues.competing and self.task_queues.turn_ends():
            timeout = 0
        count = self.ring.wait(min(int(timeout * 1e9), TIMEOUT_NS_MAX), self._work_max)
        if count > 0:
            return count
        return 0 if count == -errno.ETIME else -1

    def process_events(self, events: int) -> None:
        if events > 0:
            self.ring.dispatch(events)

    async def _wait_ready(self, fd: int | Any, events: int) -> None:
        if not isinstance(fd, int):
            fd = fd.fileno()
        key = (fd, events)
        if key in self._waiting:
            raise trio.BusyResourceError("another task is already reading / writing this fd")
        wait = _PollWait(trio.lowlevel.current_task())

        def complete(result: int, _flags: int) -> None:
            if wait.task is None:
                return
            del self._waiting[key]
            task, wait.task = wait.task, None
            if result < 0:
                trio.lowlevel.reschedule(task, outcome.Error(OSError(-result, os.strerror(-result))))
            else:
                trio.lowlevel.reschedule(task)

        def abort(_: Any) -> trio.lowlevel.Abort:
            wait.task = None
            del self._waiting[key]
            self.ring.cancel(wait.operation)
            return trio.lowlevel.Abort.SUCCEEDED

        wait.operation = self.ring.start(lib.tpc_operation_poll, fd, events, callback=complete)
        self._waiting[key] = wait
        await trio.lowlevel.wait_task_rescheduled(abort)

    async def wait_readable(self, fd: int | Any) -> None:
        await self._wait_ready(fd, _POLL_READ)

    async def wait_writable(self, fd: int | Any) -> None:
        await self._wait_ready(fd, _POLL_WRITE)

    def notify_closing(self, fd: int | Any) -> None:
        if not isinstance(fd, int):
            fd = fd.fileno()
        for events in (_POLL_READ, _POLL_WRITE):
            wait = self._waiting.pop((fd, events), None)
            if wait is None or wait.task is None:
                continue
            self.ring.cancel(wait.operation)
            task, wait.task = wait.task, None
            trio.lowlevel.reschedule(task, outcome.Error(trio.ClosedResourceError("another task closed this fd")))


def check_trio() -> None:
    """Whether this trio has what :func:`run` relies on; `RuntimeError` that says what is missing."""
    manager = getattr(trio_run, "TheIOManager", None)
    missing = [name for name in sorted(IO_MANAGER_METHODS) if not hasattr(manager, name)]
    runner = getattr(trio_run, "Runner", None)
    missing += [name for name in ("io_manager", "runq") if name not in getattr(runner, "__annotations__", ())]
    if manager is None or missing or not hasattr(trio_run, "GLOBAL_RUN_CONTEXT"):
        version = importlib.metadata.version("trio")
        raise RuntimeError(
            f"trio {version} keeps its parts elsewhere (missing: {', '.join(missing) or 'GLOBAL_RUN_CONTEXT'}): "
            "install a trio of the range in pyproject.toml"
        )


def run(  # noqa: PLR0913 (trio.run's own parameters)
    async_fn: Callable[..., Awaitable[T]],
    *args: Any,
    options: RingOptions | None = None,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
    restrict_keyboard_interrupt_to_checkpoints: bool = False,
    on_ring: Iterable[Callable[[Ring], None]] = (),
) -> T:
    """Like `trio.run`, on a ring of this thread, which is made before and closed after the run.

    `on_ring` functions get the ring before the first task runs. Raises :exc:`tpc_broker.engine.ring.RingUnavailable`
    where there is no io_uring, and `RuntimeError` when trio is not one that this works with.
    """
    check_trio()
    options = options or RingOptions()
    ring = Ring(options.entries, hidden=options.hidden, backend=options.backend)
    original = trio_run.TheIOManager
    thread = threading.get_ident()

    def make_manager() -> Any:
        if threading.get_ident() != thread:
            return original()
        trio_run.TheIOManager = original
        return RingIOManager(ring, options)

    try:
        for function in on_ring:
            function(ring)
        trio_run.TheIOManager = make_manager
        return trio.run(
            async_fn,
            *args,
            clock=clock,
            instruments=[*instruments, _Instrument(ring)],
            restrict_keyboard_interrupt_to_checkpoints=restrict_keyboard_interrupt_to_checkpoints,
            strict_exception_groups=True,
        )
    finally:
        trio_run.TheIOManager = original
        ring.close()


def current_ring() -> Ring:
    """The ring under the running trio. `RuntimeError` outside of :func:`run`."""
    return _current_manager().ring


def current_task_queues() -> TaskQueues:
    """The queues whose tasks the running trio runs. `RuntimeError` outside of :func:`run`."""
    return _current_manager().task_queues


def _current_manager() -> RingIOManager:
    try:
        manager = trio_run.GLOBAL_RUN_CONTEXT.runner.io_manager
    except AttributeError:
        raise RuntimeError("must be called from a task") from None
    if not isinstance(manager, RingIOManager):
        raise RuntimeError("this trio does not run on a ring: start it with tpc_broker.engine.trio_ring.run")  # noqa: TRY004
    return manager
