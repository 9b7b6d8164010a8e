"""What is done to a simulated cluster, as a list that can be printed, repeated and shortened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.simulator.world import MS


class Step(NamedTuple):
    """One thing done to the cluster, at an instant: the name of a method of the simulator, and its arguments."""

    at_us: int
    name: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_us / MS:12.3f} ms  {self.name}({', '.join(map(repr, self.arguments))})"


Schedule = list[Step]


class SimulationFailedError(AssertionError):
    """An invariant does not hold: what, with which seed, and how to see it again."""

    def __init__(self, what: str, command: str, schedule: Sequence[Step] = ()) -> None:
        self.what, self.command, self.schedule = what, command, tuple(schedule)
        lines = "\n".join(f"  {step}" for step in schedule)
        super().__init__(f"{what}\nrepeat: {command}" + (f"\nshortest schedule found:\n{lines}" if lines else ""))


def failure_of(execute: Callable[..., object], *arguments: object) -> str | None:
    """What goes wrong in a run; None when nothing does."""
    try:
        execute(*arguments)
    except AssertionError as error:
        return str(error) or type(error).__name__
    return None


def shrink(schedule: Sequence[Step], fails: Callable[[Schedule], bool], runs_max: int = 200) -> Schedule:
    """A shorter schedule for which `fails` still says yes: no single step of it can be left out.

    Delta debugging (Zeller and Hildebrandt 2002, `ddmin`): halves are left out first, then quarters, and so on. `fails`
    is asked at most `runs_max` times; then the shortest one so far is the answer.
    """
    steps, parts, runs = list(schedule), 2, 0
    while len(steps) >= 1 and runs < runs_max:
        size = -(-len(steps) // parts)
        for start in range(0, len(steps), size):
            shorter = steps[:start] + steps[start + size :]
            runs += 1
            if fails(shorter):
                steps, parts = shorter, max(parts - 1, 2)
                break
            if runs >= runs_max:
                return steps
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(steps))
    return steps
