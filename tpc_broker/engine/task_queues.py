"""A core's CPU time by shares: which tasks a turn of the loop runs.

Theory of operation. Each queue (`tpc_broker.task_queue`) has a virtual runtime: the CPU time that it used, times
`SHARES_MAX`, divided by its shares. A turn runs tasks of one queue, the one whose virtual runtime is least of those
that have something to run, and so many of them as are likely to fit into a slice, going by how long its steps took so
far. So queues that never rest get CPU time as their shares are; one that has nothing to do leaves its part to the
others (nothing is ever idle by design); and one that slept begins again where the least of the others is, with no claim
on the time that it did not use.

What C does (receiving, appending, answering, the system calls of the turn) is charged to `clients`, also what it does
between the steps of other queues' tasks. C is one of those that have something to run when the last wait handled
completions by itself: if `clients` comes first then and has no task in Python, the turn runs none, and the next wait
handles the next ones.

A step of a task cannot be interrupted. Long work without a wait belongs into a helper process, or has a
`trio.lowlevel.checkpoint()` now and then.

Cost. When only `clients` has tasks that can run, a turn looks at each task once and reads no clock: its CPU time is
what the thread used since. The clock of CPU time is a system call (0.2 to 1 us), read twice in a turn where queues
compete.

Way of it: trio takes the tasks of a turn out of `runner.runq` with `list(…)` and `.clear()`; :class:`TaskQueues` stands
in its place, gives out those that were chosen and has put the rest aside. That is private to trio, like its IOManager:
`trio_ring.run` puts it there and `check_trio` says when it has moved.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpc_broker import limits
from tpc_broker.task_queue import SHARES_DEFAULT, SHARES_MAX, SHARES_MIN, TaskQueue, task_queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import trio

    from tpc_broker.engine.ring import Ring

    Task = trio.lowlevel.Task

_CLIENTS = TaskQueue.CLIENTS
_HELD: Any = object()
"""Stands in trio's list of what can run for all that was held back, so that it is never empty then."""
_all: Callable[[deque[Task]], Iterator[Task]] = deque.__iter__


@dataclass(frozen=True, slots=True)
class TaskQueueStatistics:
    """Of one queue since the core started. Times are CPU time in ns; a slice of `clients` that ran while no other queue
    had anything to do is measured by elapsed time.
    """

    shares: int
    runtime_ns: int
    selections: int
    """Turns that ran its tasks."""
    slice_ns_max: int
    waiting_now: int
    """Tasks that could run and were not chosen."""


class _Queue:
    """One queue of the core."""

    __slots__ = (
        "ready", "runtime_ns", "selections", "shares", "slice_ns_max", "step_ns", "virtual_ns", "was_active",
    )  # fmt: skip

    def __init__(self, shares: int) -> None:
        self.ready: deque[Task] = deque()
        self.shares = shares
        self.runtime_ns = self.virtual_ns = 0
        self.selections = self.slice_ns_max = 0
        self.step_ns = limits.TASK_STEP_NS_ASSUMED
        self.was_active = False

    def charge(self, spent_ns: int) -> None:
        self.runtime_ns += spent_ns
        self.virtual_ns += spent_ns * SHARES_MAX // self.shares

    def ran(self, spent_ns: int, steps: int) -> None:
        """A slice is over. How long a step takes is learned at once when it is longer, and slowly forgotten."""
        self.charge(spent_ns)
        self.slice_ns_max = max(self.slice_ns_max, spent_ns)
        step_ns = max(1, spent_ns // steps)
        self.step_ns = step_ns if step_ns > self.step_ns else self.step_ns - (self.step_ns - step_ns) // 8

    def steps_in_slice(self) -> int:
        return max(1, limits.TASK_SLICE_NS // self.step_ns)


class CWork:
    """What the turn reads of the ring: how long C was at work, and whether it had anything to do."""

    __slots__ = ("_counters",)

    def __init__(self, ring: Ring) -> None:
        self._counters: Any = ring.live_statistics()

    def spent_ns(self) -> int:
        """Of time that C was in charge, waiting included."""
        return int(self._counters.work_ns + self._counters.wait_ns)

    def handled(self) -> int:
        """Completions that Python never hears of. Only how it changes means something."""
        return int(self._counters.completions - self._counters.events)


# Rule: Queues that are never idle get CPU time by their shares, C's work included. None is idle while it could run, and
# one that slept has no claim on the past. Held by tests/engine/test_task_queues.py.
class TaskQueues(deque["Task"]):
    """`runq` of trio's runner: what trio appends can run; iterating chooses what runs in this turn, and takes it
    out.
    """

    def __init__(
        self,
        c_work: CWork,
        longest_turn_ns: Callable[[], int],
        cpu_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`longest_turn_ns`: of Python's turns since the last call."""
        super().__init__()
        self._c_work = c_work
        self._longest_turn_ns = longest_turn_ns
        self._cpu_ns = cpu_ns
        self._queues = [_Queue(SHARES_DEFAULT[queue]) for queue in TaskQueue]
        self._clients = self._queues[_CLIENTS]
        self._held = 0
        self.competing = False
        """Whether another queue than `clients` had something to run in this turn."""
        self._running: _Queue | None = None
        self._steps = 0
        self._floor_ns = 0
        """Virtual runtime of the queue that was chosen last, never falling."""
        self._charged_until_ns = cpu_ns()
        self._c_spent_ns = self._c_handled = 0

    # -- as trio sees it --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Task]:
        if self._held:
            return iter(self._choose())
        for task in _all(self):
            if task.context.get(task_queue, _CLIENTS) is not _CLIENTS:
                return iter(self._choose())
        if self:
            self._clients.selections += 1
        if self.competing:
            self._end_competition()
        return _all(self)

    # -- choosing -----------------------------------------------------------------------------------------------------

    def _choose(self) -> list[Task]:
        if not self.competing:
            self._begin_competition()
        for task in _all(self):
            if task is not _HELD:
                self._queues[task.context.get(task_queue, _CLIENTS)].ready.append(task)
        return self._choose_among_queues()

    def _choose_among_queues(self) -> list[Task]:
        now_ns = self._cpu_ns()
        self._clients.charge(now_ns - self._charged_until_ns)  # C's wait, and what its events began
        self._charged_until_ns = now_ns
        handled = self._c_work.handled()
        chosen = self._least(is_c_busy=handled != self._c_handled)
        self._c_handled, self._c_spent_ns = handled, self._c_work.spent_ns()
        steps = min(len(chosen.ready), chosen.steps_in_slice())
        batch = [chosen.ready.popleft() for _ in range(steps)]
        if steps:
            chosen.selections += 1
            self._running, self._steps = chosen, steps
        self._held = sum(len(queue.ready) for queue in self._queues)
        return batch

    def _least(self, *, is_c_busy: bool) -> _Queue:
        """The queue to be run, of those that have something to do."""
        chosen: _Queue | None = None
        for queue in self._queues:
            is_active = bool(queue.ready) or (is_c_busy and queue is self._clients)
            if is_active:
                if not queue.was_active and queue.virtual_ns < self._floor_ns:
                    queue.virtual_ns = self._floor_ns
                if chosen is None or queue.virtual_ns < chosen.virtual_ns:
                    chosen = queue
            queue.was_active = is_active
        assert chosen is not None
        self._floor_ns = max(self._floor_ns, chosen.virtual_ns)
        return chosen

    def _begin_competition(self) -> None:
        """Another queue than `clients` has something to do; up to here all time was that of `clients`."""
        now_ns = self._cpu_ns()
        self._clients.charge(now_ns - self._charged_until_ns)
        self._charged_until_ns = now_ns
        self._clients.slice_ns_max = max(self._clients.slice_ns_max, self._longest_turn_ns())
        self._clients.virtual_ns = max(self._clients.virtual_ns, self._floor_ns)
        self._floor_ns = self._clients.virtual_ns
        self._c_handled = self._c_work.handled()
        self.competing = True

    def _end_competition(self) -> None:
        self._longest_turn_ns()  # of other queues, in part; what was of `clients` has been counted
        for queue in self._queues:
            queue.was_active = False
        self.competing = False

    def turn_ends(self) -> bool:
        """To be called before the wait when queues compete, after trio's `clear`: Python's part of the turn is over.
        Whether tasks are held, and the wait must not wait.

        The slice's time is charged; C's work in between was that of `clients`.
        """
        if self._running is not None:
            self._charge_slice(self._running)
        if self._held and not self:
            self.append(_HELD)
        return self._held > 0

    def _charge_slice(self, running: _Queue) -> None:
        self._running = None
        now_ns = self._cpu_ns()
        spent_ns = now_ns - self._charged_until_ns
        self._charged_until_ns = now_ns
        served_ns = min(spent_ns, self._c_work.spent_ns() - self._c_spent_ns)
        self._clients.charge(served_ns)
        running.ran(spent_ns - served_ns, self._steps)

    # -- for the core -------------------------------------------------------------------------------------------------

    def set_shares(self, shares: Mapping[TaskQueue, int]) -> None:
        """From now on; what was used before counts as it was charged then."""
        for queue, number in shares.items():
            if not SHARES_MIN <= number <= SHARES_MAX:
                raise ValueError(f"shares of {queue.name.lower()}: {number} is not in {SHARES_MIN} to {SHARES_MAX}")
            self._queues[queue].shares = number

    def statistics(self) -> dict[TaskQueue, TaskQueueStatistics]:
        now_ns = self._cpu_ns()
        (self._running or self._clients).charge(now_ns - self._charged_until_ns)
        self._charged_until_ns = now_ns
        if not self.competing:
            self._clients.slice_ns_max = max(self._clients.slice_ns_max, self._longest_turn_ns())
        return {
            queue: TaskQueueStatistics(
                found.shares, found.runtime_ns, found.selections, found.slice_ns_max, len(found.ready)
            )
            for queue, found in zip(TaskQueue, self._queues, strict=True)
        }
