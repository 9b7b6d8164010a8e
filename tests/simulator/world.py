"""Virtual time for simulations: events in a queue, clocks that run apart, processes that pause and crash.

Theory of operation
-------------------
A simulation is a function of one seed. It has one `World`: the present instant, a queue of events, and streams of
random numbers. Nothing else may be a source of chance or of time: no wall clock, no module `random`, no iteration over
a set of strings (their hashes differ between two interpreters).

* Time is a whole number of microseconds, so that no sum of fractions ever rounds differently. Events of one instant
  happen in the order in which they were planned.
* `World.stream(name)` gives each part of a simulation random numbers of its own. So a schedule of faults can be
  shortened without changing what the others draw: that is what makes `shrink` work.
* A machine under test has milliseconds of its *own* clock (`Clock`), which starts anywhere and runs a little fast or
  slow.
* What a node does goes through its `Process`. While it is paused (a stopped virtual machine, a long collection of
  garbage) everything waits, in order, and then comes at once; after a crash nothing of the former life happens any
  more.

`tests.simulator.network` carries messages between nodes, `tests.simulator.schedule` plans and shortens faults, and
`python -m tests.simulator` runs every simulator that there is.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable

MS = 1_000
SECOND = 1_000 * MS
"""Microseconds."""

Action = Callable[[], None]


class Event:
    """Something planned; `cancel` makes it not happen."""

    __slots__ = ("action", "cancelled")

    def __init__(self, action: Action) -> None:
        self.action = action
        self.cancelled = False

    def cancel(self) -> None:
        """It will not happen. Harmless when it has happened already."""
        self.cancelled = True


class World:
    """The present instant (`now_us`), and what will happen."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_us = 0
        self.events_count = 0
        self._planned: list[tuple[int, int, Event]] = []
        self._sequence = 0

    def stream(self, name: str) -> random.Random:
        """Random numbers that depend on the seed and on this name only."""
        return random.Random(f"{self.seed}/{name}")

    def call_at(self, when_us: int, action: Action) -> Event:
        """Plans `action`; an instant that has passed is now."""
        event = Event(action)
        self._sequence += 1
        heapq.heappush(self._planned, (max(when_us, self.now_us), self._sequence, event))
        return event

    def call_after(self, delay_us: int, action: Action) -> Event:
        """Plans `action` so much later than now."""
        return self.call_at(self.now_us + delay_us, action)

    def step(self, until_us: int | None = None) -> bool:
        """Carries out the next event. False when there is none (before `until_us`, which then is the present)."""
        while self._planned and (until_us is None or self._planned[0][0] < until_us):
            when_us, _sequence, event = heapq.heappop(self._planned)
            if event.cancelled:
                continue
            self.now_us = when_us
            self.events_count += 1
            event.action()
            return True
        if until_us is not None:
            self.now_us = max(self.now_us, until_us)
        return False

    def run_until(self, until_us: int, after_each: Action | None = None) -> None:
        """Carries out all events before `until_us`; `after_each` is where invariants are checked."""
        while self.step(until_us):
            if after_each is not None:
                after_each()

    def run_for(self, duration_us: int, after_each: Action | None = None) -> None:
        """As `run_until`, so much later than now."""
        self.run_until(self.now_us + duration_us, after_each)


class Clock:
    """A node's monotonic clock in milliseconds: it shows `start_ms` now and runs `drift_ppm` millionths too fast."""

    def __init__(self, world: World, start_ms: int = 0, drift_ppm: int = 0) -> None:
        assert drift_ppm > -1_000_000, "a monotonic clock does not run backwards"
        self._world = world
        self._origin_us = world.now_us
        self._start_ms = start_ms
        self._drift_ppm = drift_ppm

    def now_ms(self) -> int:
        """What it shows."""
        passed_us = self._world.now_us - self._origin_us
        return self._start_ms + passed_us * (1_000_000 + self._drift_ppm) // (1_000_000 * MS)

    def instant_us(self, shown_ms: int) -> int:
        """The first instant of the world at which it shows at least `shown_ms`."""
        scaled = (shown_ms - self._start_ms) * 1_000_000 * MS
        return self._origin_us + max(0, -(-scaled // (1_000_000 + self._drift_ppm)))


class Process:
    """One life after another of a node: what is given to it happens now, after its pause, or (it crashed) never."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: deque[tuple[int, Action]] = deque()
        self.generation = 0
        """Rises with each crash."""
        self.is_running = True
        self.is_paused = False

    def perform(self, action: Action) -> None:
        """Something happens to the node: a message has come, a deadline has passed, a write is done."""
        self._perform(self.generation, action)

    def call_at(self, when_us: int, action: Action) -> Event:
        """Plans something for this life of the node."""
        generation = self.generation
        return self._world.call_at(when_us, lambda: self._perform(generation, action))

    def _perform(self, generation: int, action: Action) -> None:
        if not self.is_running or generation != self.generation:
            return
        if self.is_paused:
            self._waiting.append((generation, action))
        else:
            action()

    def pause(self) -> None:
        """From now on everything waits."""
        self.is_paused = True

    def resume(self) -> None:
        """What waited happens now, in order, unless one of it pauses or crashes the node again."""
        self.is_paused = False
        while self._waiting and not self.is_paused:
            generation, action = self._waiting.popleft()
            self._perform(generation, action)

    def crash(self) -> None:
        """The present life ends; what it had planned never happens."""
        self.generation += 1
        self.is_running = False
        self.is_paused = False
        self._waiting.clear()

    def start(self) -> None:
        """A new life."""
        assert not self.is_running, "it runs already"
        self.is_running = True
