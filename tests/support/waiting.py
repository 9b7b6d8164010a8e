"""Waiting for what another process, the kernel or C does: for the thing, never for a time.

No other module of the tests reads the real clock in the gate (`tests/tidy/test_gate.py`): here it is read to give up on
what hangs, and for claims that a slow machine cannot make untrue.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import trio

T = TypeVar("T")
PATIENCE_S: Final = int(os.environ.get("TPC_TEST_PATIENCE_S", "120"))
"""After which something counts as hanging. It says nothing of how fast a thing is: a loaded machine makes a test slow
and not red. Less for tests that are to fail (`tests.simulator.c_build`)."""
LOOK_S: Final = 5.0
"""Of one attempt at a call that is made again when it came to nothing: who was asked may be gone, and the next attempt
finds another one."""
_PAUSE_S: Final = 0.02


class NotYetError(AssertionError):
    """What was waited for did not come."""


def eventually(
    look: Callable[[], T],
    what: str,
    *,
    not_yet: tuple[type[Exception], ...] = (AssertionError,),
    pause_s: float = _PAUSE_S,
    patience_s: float | None = None,
) -> T:
    """What `look` gives as soon as that is true. Exceptions in `not_yet` count as not yet. `patience_s` for what is
    much work also on a quiet machine.
    """
    patience_s = patience_s or PATIENCE_S
    give_up_at = time.monotonic() + patience_s
    last: object = None
    while time.monotonic() < give_up_at:
        try:
            found = look()
        except not_yet as error:
            last = error
        else:
            if found:
                return found
            last = found
        time.sleep(pause_s)
    raise NotYetError(f"{what}: not within {patience_s:g} s; last: {last!r}")


async def eventually_in_loop(look: Callable[[], T], what: str) -> T:
    """The same beside other tasks of a loop, on the loop's clock."""
    with trio.move_on_after(PATIENCE_S):
        while True:
            found = look()
            if found:
                return found
            await trio.sleep(0.001)
    raise NotYetError(f"{what}: not within {PATIENCE_S:g} s")


def patiently(what: Callable[[], object] | str, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Turns of a loop that pauses in itself, as one that polls a client does, until it is left.

    `what` may be a function, of which the failure tells what it gives then.
    """
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        yield
    raise NotYetError(f"{what if isinstance(what, str) else what()}: not within {patience_s:g} s")


def let_pass(seconds: float) -> None:
    """So that something is so old. Only for claims that stay true when it is older: never "by now"."""
    time.sleep(seconds)


def stopwatch() -> Callable[[], float]:
    """Seconds since now, for bounds from below: one from above a loaded machine would break."""
    begun_s = time.monotonic()
    return lambda: time.monotonic() - begun_s


@contextmanager
def takes_at_least(seconds: float) -> Iterator[None]:
    """What waits by itself has waited, and not for ever."""
    passed_s = stopwatch()
    yield
    assert seconds <= passed_s() < PATIENCE_S, f"{passed_s():g} s, and at least {seconds:g} were wanted"


class ShiftedClock:
    """Stands for `time` in a module that bounds what it does by `time.monotonic`: real time, and what a test has let
    pass. So a bound may be hours, which no pause of a loaded machine reaches, and be over all the same.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def passes(self, seconds: float) -> None:
        self._ahead_s += seconds

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead_s

    def time(self) -> float:
        return time.time() + self._ahead_s


def monotonic_ns() -> int:
    """The clock that C reads by itself: for claims about hours of it."""
    return time.monotonic_ns()


def in_one_go(act: Callable[[], T], within_s: float, what: str, prepare: Callable[[], object] = lambda: None) -> T:
    """What `act` gives when it took no longer than that. The product's own clock runs meanwhile, so on a machine that
    stands still in the midst of it both are done again.
    """
    for _ in patiently(f"{what} in {within_s:g} s"):
        prepare()
        begun_s = time.monotonic()
        found = act()
        if time.monotonic() - begun_s < within_s:
            return found
    raise AssertionError(what)  # patiently has raised
