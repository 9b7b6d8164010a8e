"""Simulated rings in a run of trio on a clock that jumps: each has its turn before the run would wait.

So whatever a task has asked C for, or a device has completed, is seen at the same instant. The next turn that C wants
is planned, for the clock not to jump over it.
"""

import trio

EPOCH_NS = 10**12
"""The monotonic clock is never zero."""
AFTER_S = 1e-6
"""A float that is a little too small would not be the instant that C waits for."""


def now_ns():
    return EPOCH_NS + round(trio.current_time() * 1e9)


TURNS_AT_ONCE_MAX = 10_000
"""At one instant. More: tasks go round and round without a rest, which in production takes all of a core."""


class RingTurns(trio.abc.Instrument):
    """`plan(when_s, action)` has something happen; an error of a ring's turn is raised by an action."""

    def __init__(self, plan):
        self._plan = plan
        self._wanted = {}
        self._instant_s, self._turns_at_once = -1.0, 0

    def add(self, ring):
        self._wanted[ring] = None

    def remove(self, ring):
        self._wanted.pop(ring, None)

    def before_io_wait(self, _timeout):
        now_s = trio.current_time()
        self._turns_at_once = self._turns_at_once + 1 if now_s == self._instant_s else 0
        self._instant_s = now_s
        if self._turns_at_once == TURNS_AT_ONCE_MAX:
            self._plan(now_s, _raising(AssertionError("time does not pass: tasks wait for each other without a rest")))
        for ring, wanted_ns in list(self._wanted.items()):
            try:
                until_ns = ring.turn()
            except BaseException as error:
                self._wanted.clear()
                self._plan(trio.current_time(), _raising(error))
                return
            if until_ns is not None and until_ns != wanted_ns:
                self._plan(max(trio.current_time(), (until_ns - EPOCH_NS) / 1e9) + AFTER_S, _nothing)
            self._wanted[ring] = until_ns


def _nothing():
    pass


def _raising(error):
    def action():
        raise error

    return action
