"""One core, with the storage and the C that ship, on a disk that loses power, fails, hangs, and is full.

Partitions are appended to, read and trimmed all the time (`core_load`); the schedule has what happens to the disk and
to the process. After each recovery nothing that was acknowledged, or shown to a reader, is lost; nothing else is there
but what was appended, whole, each at its offset, in a row; producers and their transactions are known as the log has
them (`core_truth`). At the end all is well again, the core stops in order, and has everything once more.
"""

from __future__ import annotations

import logging
import os
import traceback
from contextlib import ExitStack
from random import Random
from unittest import mock

import trio
from trio.testing import MockClock

from tests.simulator.core_life import DATA, REFUSALS, CoreLife, WorldClock
from tests.simulator.core_load import Load
from tests.simulator.nodes_network import Wire
from tests.simulator.schedule import Schedule, SimulationFailedError, Step, failure_of, shrink
from tests.support.ring_turns import RingTurns, now_ns
from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_ring import SimulatedSystem
from tpc_broker.log import journal
from tpc_broker.log.journal import JournalMode
from tpc_broker.storage import journalled_storage
from tpc_broker.storage.recovery import checkpoint
from tpc_broker.storage.segments import segment_appender, segments
from tpc_broker.storage.upkeep import in_place_windows, mending, write_behind

MODES = (JournalMode.DIRECT_DSYNC, JournalMode.BUFFERED_DSYNC, JournalMode.BUFFERED_FDATASYNC)
MODE_WEIGHTS = (4, 1, 1)
JOURNAL_BYTES = 512 * 1024
PARTITIONS = 3
ACTORS = 2
"""Of each partition."""
EVENTS = (
    (4, "lose_power"), (3, "kill"), (3, "fail"), (1, "fail_for"), (2, "hang"), (1, "stick"), (2, "fill"),
    (2, "checkpoint"),
)  # fmt: skip
SHRINK_RUNS_MAX = 60
START_AGAIN_S = 0.05
AT_LAST_S = 0.1
"""With a disk that is well."""
LASTS_S_MAX = 60
"""Of the run's time."""
SMALLER = (
    (journal, "JOURNAL_BYTES_MIN", JOURNAL_BYTES), (checkpoint, "BALLAST_BYTES", 4096),
    (in_place_windows, "IN_PLACE_BATCH_BYTES_MIN", 8192), (in_place_windows, "IN_PLACE_BYTES_MIN_OPEN", 1),
    (write_behind, "INTERVAL_S", 0.01), (write_behind, "BYTES_MIN", 4096), (write_behind, "FEW_PARTITIONS", 0),
    (journalled_storage, "NEW_FOLDERS_FEW", 0), (segments, "INDEX_LAG_ENTRIES", 2), (segments, "INDEX_LAG_SPREAD", 6),
    (segment_appender, "DIRECT_BYTES_MIN", 4096), (mending, "RETRY_S", 0.05),
)  # fmt: skip
"""What a short run has to come to."""


DOWN_MS, A_WHILE_MS = (0, 0, 5, 50), (3, 10, 10, 30, 100, 700)
ARGUMENTS = {
    "lose_power": DOWN_MS, "kill": DOWN_MS, "fail": range(1, 20), "fail_for": (1, 5, 30, 100), "hang": A_WHILE_MS,
    "stick": A_WHILE_MS, "fill": A_WHILE_MS,
}  # fmt: skip
PAUSES_US = ((1, (1_000, 15_000)), (3, (20_000, 100_000)))


def plan(seed, steps) -> Schedule:
    random, at_us, schedule = Random(f"{seed} plan"), 0, []
    for _ in range(steps):
        at_us += random.randrange(*_one_of(random, PAUSES_US))
        name = _one_of(random, EVENTS)
        arguments = [random.choice(ARGUMENTS[name])] if name in ARGUMENTS else []
        schedule.append(Step(at_us, name, tuple(arguments)))
    return schedule


def _one_of(random, weighted):
    return random.choices([one for _weight, one in weighted], [weight for weight, _one in weighted])[0]


class Story:
    """One run."""

    def __init__(self, seed, mutants=0):
        self._seed, self._mutants = seed, mutants
        self.wire, self.chance = Wire(), self.stream("world")
        self.turns = RingTurns(self.wire.at)
        self.system = SimulatedSystem(now_ns, WorldClock().wall_ms, self.stream("system"))
        self.disk = SimulatedDisk(self.system, self.wire.after, self.stream("disk"), total_bytes=1 << 40)
        self.disk.put_folder(DATA)
        self.mode = self.chance.choices(MODES, MODE_WEIGHTS)[0]
        self.journal_bytes = JOURNAL_BYTES
        self.load = Load(self, PARTITIONS)
        self.lives = 0
        self.life = None
        self._scope, self._tasks = trio.CancelScope(), None
        self._down_s = 0.0
        self._is_stopped = False

    def stream(self, name):
        return Random(f"{self._seed} {name}")

    async def run(self, schedule):
        with self.system:
            trio.lowlevel.add_instrument(self.turns)
            try:
                with trio.move_on_after(LASTS_S_MAX) as scope:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self.wire.run)
                        nursery.start_soon(self._disturb, schedule)
                        await self._lives()
                        nursery.cancel_scope.cancel()
                assert not scope.cancelled_caught, "it does not come to its end"
            finally:
                trio.lowlevel.remove_instrument(self.turns)
                if self.life is not None and not self.life.is_over:
                    self.life.end()

    async def _lives(self):
        while not self._is_stopped:
            self.lives += 1
            self.life = CoreLife(self)
            try:
                async with trio.open_nursery() as nursery:
                    self._scope = nursery.cancel_scope
                    nursery.start_soon(self._live, self.life)
            except* REFUSALS:  # it could not start: it is started again
                self.disk.kill()
                self._down_s = START_AGAIN_S
            self._tasks = None
            self.life.end()
            await trio.sleep(self._down_s)
        await self._look_once_more()

    async def _live(self, life):
        await life.open(self._mutants)
        await self.load.check(life)
        async with trio.open_nursery() as nursery:
            self._tasks = nursery
            nursery.start_soon(life.storage.run_maintenance)
            await self.load.open(life)
            async with trio.open_nursery() as actors:
                for number in range(ACTORS):
                    for truth in self.load.truths[:-1]:
                        actors.start_soon(self.load.act, life, number, truth)
                actors.start_soon(self.load.replace, life)
            self._tasks = None
            assert await life.stop(), "an orderly stop has not come to its end"
            nursery.cancel_scope.cancel()
        self._is_stopped = True

    async def _look_once_more(self):
        self.life = life = CoreLife(self)
        await life.open()
        await self.load.check(life)
        life.end()

    async def _disturb(self, schedule):
        for step in schedule:
            await trio.sleep_until(step.at_us / 1e6)
            getattr(self, step.name)(*step.arguments)
        await trio.sleep(0.02)
        self._heal()
        await trio.sleep(AT_LAST_S)
        self.load.is_stopping = True

    def _heal(self):
        disk = self.disk
        disk.is_hung = disk.is_stuck = disk.is_full = disk.is_failing = False
        disk.fails_in = None

    # -- what happens --------------------------------------------------------------------------------------------------

    def lose_power(self, down_ms):
        self.disk.crash()
        self._end_life(down_ms)

    def kill(self, down_ms):
        self.disk.kill()
        self._end_life(down_ms)

    def _end_life(self, down_ms):
        self._down_s, self._tasks = down_ms / 1000, None
        self._scope.cancel()

    def fail(self, number):
        self.disk.fails_in = number

    def _for_a_while(self, name, for_ms):
        setattr(self.disk, name, True)
        self.wire.after(for_ms / 1000, lambda: setattr(self.disk, name, False))

    def fail_for(self, for_ms):
        self._for_a_while("is_failing", for_ms)

    def hang(self, for_ms):
        self._for_a_while("is_hung", for_ms)

    def stick(self, for_ms):
        self._for_a_while("is_stuck", for_ms)

    def fill(self, for_ms):
        self._for_a_while("is_full", for_ms)

    def checkpoint(self):
        """Whenever the core asks for none itself."""
        if self._tasks is not None:
            self._tasks.start_soon(self.life.storage.checkpoint)


def _first_of(error):
    """What was found, or what nobody expected."""
    while isinstance(error, BaseExceptionGroup):
        error = next((one for one in error.exceptions if isinstance(one, AssertionError)), error.exceptions[0])
    if isinstance(error, AssertionError) or not isinstance(error, Exception):
        return error
    return AssertionError("".join(traceback.format_exception(error)))


def execute(seed, schedule, mutants=0) -> Story:
    """One run. AssertionError: what does not hold."""
    stories = []

    async def main():
        stories.append(Story(seed, mutants))
        await stories[0].run(schedule)

    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    with ExitStack() as stack:
        for owner, name, value in SMALLER:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mock.patch.object(os, "urandom", Random(f"{seed} names").randbytes))
        stack.enter_context(mock.patch.object(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True))
        stack.enter_context(mock.patch.object(trio._core._run, "_r", Random(f"{seed} tasks")))
        try:
            trio.run(main, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            raise _first_of(group) from group
        finally:
            logging.disable(before)
    return stories[0]


def run(seed: int, steps: int) -> str:
    """One run; SimulationFailedError with a shorter schedule, where there is one."""
    schedule = plan(seed, steps)
    try:
        story = execute(seed, schedule)
    except AssertionError as error:
        shortest = shrink(schedule, lambda some: failure_of(execute, seed, some) is not None, SHRINK_RUNS_MAX)
        what = failure_of(execute, seed, shortest) or str(error)
        raise SimulationFailedError(what, f"make sim ONLY=core SEED={seed} STEPS={steps}", shortest) from error
    counts = ", ".join(f"{number} {name}" for name, number in story.load.counts.items())
    return f"{story.mode.name}, {story.lives} lives, {counts}"
