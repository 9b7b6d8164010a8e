"""CPU shares of task queues: the choice as a machine, and on the real loop, measured in CPU time."""

import contextvars
import time

import pytest
import trio

from tests.support.waiting import PATIENCE_S
from tpc_broker import limits
from tpc_broker.engine import trio_ring
from tpc_broker.engine.task_queues import TaskQueues
from tpc_broker.engine.trio_ring import RingOptions, current_task_queues
from tpc_broker.task_queue import SHARES_MAX, TaskQueue, in_queue, task_queue

MS = 1_000_000


def run(function, *arguments):
    return trio_ring.run(function, *arguments, options=RingOptions(stall_ms=0))


# -- as a machine: time and C's work are numbers -----------------------------------------------------------------------


class FakeTask:
    """What the queues look at; `cost_ns`: CPU time of a step."""

    def __init__(self, queue, cost_ns=MS):
        self.context = contextvars.copy_context()
        if queue is not None:
            self.context.run(task_queue.set, queue)
        self.queue, self.cost_ns = queue or TaskQueue.CLIENTS, cost_ns
        self.rests = False


class FakeLoop:
    """Turns as trio makes them."""

    def __init__(self):
        self.now_ns = self.c_ns = self.completions = self.longest_ns = 0
        self.queues = TaskQueues(self, self.take_longest, lambda: self.now_ns)
        self.c_turn_ns = 0
        """What C works in each wait from now on."""
        self.used = dict.fromkeys(TaskQueue, 0)

    def take_longest(self):
        longest, self.longest_ns = self.longest_ns, 0
        return longest

    def spent_ns(self):
        return self.c_ns

    def handled(self):
        return self.completions

    def c_works(self, ns):
        self.now_ns += ns
        self.c_ns += ns
        self.completions += 1

    def turn(self, *, rests=False):
        self.queues.turn_ends()
        if self.c_turn_ns:
            self.c_works(self.c_turn_ns)
            self.used[TaskQueue.CLIENTS] += self.c_turn_ns
        batch = list(self.queues)
        self.queues.clear()
        for task in batch:
            self.now_ns += task.cost_ns
            self.used[task.queue] += task.cost_ns
            if not rests and not task.rests:
                self.queues.append(task)
        return batch

    def turns(self, number):
        for _ in range(number):
            self.turn()


def test_only_clients_run_as_trio_would_have_it():
    loop = FakeLoop()
    tasks = [FakeTask(None) for _ in range(50)]
    loop.queues.extend(tasks)
    assert loop.turn(rests=True) == tasks
    assert not loop.queues
    loop.longest_ns = 7 * MS
    found = loop.queues.statistics()[TaskQueue.CLIENTS]
    assert (found.runtime_ns, found.selections, found.slice_ns_max) == (50 * MS, 1, 7 * MS)


@pytest.mark.parametrize("tasks_each", [(1, 1, 1), (1, 7, 2)])
def test_queues_that_never_rest_get_their_shares(tasks_each):
    loop = FakeLoop()
    wanted = {TaskQueue.CLIENTS: 100, TaskQueue.MAINTENANCE: 200, TaskQueue.BACKGROUND: 400}
    loop.queues.set_shares(wanted)
    for queue, number in zip(wanted, tasks_each, strict=True):
        loop.queues.extend(FakeTask(queue, cost_ns=number * MS // 3) for _ in range(number))
    loop.turns(2000)
    unit = loop.used[TaskQueue.CLIENTS]
    assert loop.used[TaskQueue.MAINTENANCE] == pytest.approx(2 * unit, rel=0.05)
    assert loop.used[TaskQueue.BACKGROUND] == pytest.approx(4 * unit, rel=0.05)
    found = loop.queues.statistics()
    assert {queue: found[queue].runtime_ns for queue in wanted} == {queue: loop.used[queue] for queue in wanted}


def test_what_c_does_is_charged_to_clients():
    """C never rests and no client's task is in Python: background gets its 1 in 5 all the same, and no more."""
    loop = FakeLoop()
    loop.queues.set_shares({TaskQueue.CLIENTS: 400, TaskQueue.BACKGROUND: 100})
    loop.queues.append(FakeTask(TaskQueue.BACKGROUND))
    loop.c_turn_ns = MS // 5
    loop.turns(5000)
    assert loop.used[TaskQueue.BACKGROUND] == pytest.approx(loop.used[TaskQueue.CLIENTS] / 4, rel=0.05)


def test_what_c_does_between_steps_is_not_charged_to_whose_steps_they_are():
    loop = FakeLoop()
    loop.queues.append(FakeTask(TaskQueue.BACKGROUND, 3 * MS))
    loop.turn(rests=True)
    loop.c_works(2 * MS)
    loop.queues.turn_ends()
    found = loop.queues.statistics()
    assert found[TaskQueue.BACKGROUND].runtime_ns == 3 * MS
    assert found[TaskQueue.CLIENTS].runtime_ns == 2 * MS
    assert found[TaskQueue.BACKGROUND].slice_ns_max == 3 * MS


def test_nothing_is_idle_while_something_can_run():
    """A share of 1 in a thousand, and all of the time when nobody else wants it."""
    loop = FakeLoop()
    loop.queues.set_shares({TaskQueue.BACKGROUND: 1})
    loop.queues.append(FakeTask(TaskQueue.BACKGROUND))
    for _ in range(100):
        assert len(loop.turn()) == 1


@pytest.mark.parametrize("other", [TaskQueue.CLIENTS, TaskQueue.MAINTENANCE])
def test_a_queue_that_slept_has_no_claim_on_the_past(other):
    loop = FakeLoop()
    loop.queues.set_shares({other: 100, TaskQueue.BACKGROUND: 100})
    loop.queues.append(FakeTask(other))
    loop.turns(1000)
    loop.queues.append(FakeTask(TaskQueue.BACKGROUND))
    before = dict(loop.used)
    loop.turns(200)
    assert loop.used[TaskQueue.BACKGROUND] - before[TaskQueue.BACKGROUND] <= 105 * MS
    assert loop.used[other] - before[other] >= 95 * MS


def test_nor_a_debt_from_when_nobody_else_was_there():
    loop = FakeLoop()
    loop.queues.set_shares({TaskQueue.BACKGROUND: 100, TaskQueue.CLIENTS: 100})
    background = FakeTask(TaskQueue.BACKGROUND)
    loop.queues.append(background)
    loop.turns(1000)
    loop.turn(rests=True)
    loop.queues.append(FakeTask(None))
    loop.turns(10)
    loop.queues.append(background)
    before = dict(loop.used)
    loop.turns(200)
    assert loop.used[TaskQueue.BACKGROUND] - before[TaskQueue.BACKGROUND] >= 95 * MS


def test_one_that_rests_often_goes_before_one_that_never_does():
    loop = FakeLoop()
    loop.queues.set_shares({TaskQueue.COORDINATORS: 1000, TaskQueue.BACKGROUND: 50})
    loop.queues.extend(FakeTask(TaskQueue.BACKGROUND) for _ in range(500))
    loop.turns(50)
    for _ in range(100):
        prompt = FakeTask(TaskQueue.COORDINATORS, cost_ns=MS // 20)
        prompt.rests = True
        loop.queues.append(prompt)
        assert prompt in loop.turn()
        loop.turn()


def test_a_slice_has_as_many_steps_as_fit():
    loop = FakeLoop()
    loop.queues.extend(FakeTask(TaskQueue.BACKGROUND, limits.TASK_SLICE_NS // 10) for _ in range(100))
    loop.turns(50)
    assert len(loop.turn()) == pytest.approx(10, abs=1)


def test_shares_have_bounds():
    with pytest.raises(ValueError, match=r"shares of background: 0 is not in 1 to 1000"):
        FakeLoop().queues.set_shares({TaskQueue.BACKGROUND: 0})


# -- on the real loop -----------------------------------------------------------------------------------------------


def burn(ns):
    until_ns = time.thread_time_ns() + ns
    while time.thread_time_ns() < until_ns:
        pass


class Burners:
    """Tasks that never rest, and the CPU time that those of each queue had, as they measured it."""

    def __init__(self, nursery):
        self.nursery = nursery
        self.used = dict.fromkeys(TaskQueue, 0)
        self.steps = dict.fromkeys(TaskQueue, 0)

    def start(self, queue, tasks, step_ns):
        with in_queue(queue):
            for _ in range(tasks):
                self.nursery.start_soon(self.work, queue, step_ns)

    async def work(self, queue, step_ns):
        while True:
            before_ns = time.thread_time_ns()
            burn(step_ns)
            self.steps[queue] += 1
            self.used[queue] += time.thread_time_ns() - before_ns
            await trio.lowlevel.checkpoint()

    async def wait_used(self, ns):
        """Until all together have used so much more."""
        until_ns = sum(self.used.values()) + ns
        while sum(self.used.values()) < until_ns:
            await trio.sleep(0.001)


@pytest.mark.machine
def test_busy_queues_divide_the_core_as_their_shares_are():
    async def main():
        queues = current_task_queues()
        queues.set_shares({TaskQueue.REPLICATION: 100, TaskQueue.MAINTENANCE: 200, TaskQueue.BACKGROUND: 400})
        async with trio.open_nursery() as nursery:
            burners = Burners(nursery)
            burners.start(TaskQueue.REPLICATION, 5, MS // 20)
            burners.start(TaskQueue.MAINTENANCE, 1, MS // 5)
            burners.start(TaskQueue.BACKGROUND, 2, MS // 10)
            with trio.fail_after(PATIENCE_S):
                await burners.wait_used(700 * MS)
            nursery.cancel_scope.cancel()
        return burners.used, queues.statistics()

    used, statistics = run(main)
    unit = sum(used.values()) / 7
    for queue, part in ((TaskQueue.REPLICATION, 1), (TaskQueue.MAINTENANCE, 2), (TaskQueue.BACKGROUND, 4)):
        assert used[queue] == pytest.approx(part * unit, rel=0.1)
        assert statistics[queue].runtime_ns == pytest.approx(used[queue], rel=0.2)  # trio's part and switching too
        assert statistics[queue].selections > 10


@pytest.mark.machine
def test_shares_can_be_changed_while_they_run():
    async def main():
        queues = current_task_queues()
        async with trio.open_nursery() as nursery:
            burners = Burners(nursery)
            queues.set_shares({TaskQueue.MAINTENANCE: 100, TaskQueue.BACKGROUND: 100})
            burners.start(TaskQueue.MAINTENANCE, 1, MS // 10)
            burners.start(TaskQueue.BACKGROUND, 1, MS // 10)
            with trio.fail_after(PATIENCE_S):
                await burners.wait_used(100 * MS)
                queues.set_shares({TaskQueue.MAINTENANCE: SHARES_MAX})
                before = dict(burners.used)
                await burners.wait_used(550 * MS)
            nursery.cancel_scope.cancel()
        return {queue: burners.used[queue] - before[queue] for queue in before}

    used = run(main)
    assert used[TaskQueue.MAINTENANCE] == pytest.approx(10 * used[TaskQueue.BACKGROUND], rel=0.2)


def test_deadlines_hold_while_background_is_saturated():
    """Counted in steps of the background after the deadline had passed, so it is the same on a loaded machine: a slice
    that was under way, and one more. Without queues all 300 tasks had a step in each turn.
    """

    async def main():
        late_steps = []
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                burners = Burners(nursery)
                burners.start(TaskQueue.BACKGROUND, 300, MS // 4)
                await burners.wait_used(50 * MS)
                with in_queue(TaskQueue.COORDINATORS):
                    nursery.start_soon(keep_deadlines, burners, late_steps, nursery)
        return late_steps

    async def keep_deadlines(burners, late_steps, nursery):
        for _ in range(50):
            steps_at = [burners.steps[TaskQueue.BACKGROUND]]
            deadline_s = trio.current_time() + 0.003

            async def watch(deadline_s, steps_at):
                """In the queue that is late: how far it was when the deadline passed."""
                while trio.current_time() < deadline_s:
                    steps_at[:] = [burners.steps[TaskQueue.BACKGROUND]]
                    await trio.lowlevel.checkpoint()

            with in_queue(TaskQueue.CLIENTS):
                nursery.start_soon(watch, deadline_s, steps_at)
            await trio.sleep_until(deadline_s)
            late_steps.append(burners.steps[TaskQueue.BACKGROUND] - steps_at[0])
        nursery.cancel_scope.cancel()

    late_steps = run(main)
    assert len(late_steps) == 50
    assert max(late_steps) <= 20, late_steps


def test_a_task_s_children_are_in_its_queue():
    async def main():
        seen = {}

        async def child(name):
            seen[name] = task_queue.get(TaskQueue.CLIENTS)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(child, "none")
            with in_queue(TaskQueue.MAINTENANCE):
                nursery.start_soon(child, "started")
                async with trio.open_nursery() as inner:
                    inner.start_soon(child, "within")
            nursery.start_soon(child, "after")
        return seen

    found = run(main)
    assert found == {
        "none": TaskQueue.CLIENTS, "started": TaskQueue.MAINTENANCE,
        "within": TaskQueue.MAINTENANCE, "after": TaskQueue.CLIENTS,
    }  # fmt: skip
