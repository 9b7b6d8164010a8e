"""States in which clients are refused, told to whoever operates the broker: when they begin, and when they are over.

One line for each of the two, whatever the number of requests in between; the second says how many they were.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

import trio

log = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""Without a refusal for so long it may be over: at the edge of a state some requests succeed and some do not."""

REASONS_TOLD_MAX: Final = 3
"""Of one state; more of them would be the noise that this is against."""


# Rule: A state in which clients are refused, and what fails and is tried again, is logged when it begins and when it is
# over. See also tpc_broker/runtime/refusal_watch.py. Held by tests/runtime/test_trouble.py,
# tests/runtime/test_refusal_watch.py.
class Refusals:
    """One such state; `what` is refused. `patience_s`: it counts as begun only when there were refusals for so long."""

    def __init__(self, state: str, *, patience_s: float = 0.0, what: str = "requests") -> None:
        self._state = state
        self._what = what
        self._patience_s = patience_s
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._told = False

    @property
    def is_on(self) -> bool:
        """Requests were refused, and it is not known to be over."""
        return self._count > 0

    def refused(self, reason: object, count: int = 1) -> None:
        """So many requests were refused."""
        now_s = trio.current_time()
        if not self._count:
            self._first_s = now_s
        self._count += count
        self._last_s = now_s
        if not self._told and now_s - self._first_s >= self._patience_s:
            self._told = True
            log.warning("%s: %s are refused until this is over (%s)", self._state, self._what, reason)

    def succeeded(self) -> None:
        """A request was not refused, or would not be: perhaps it is over."""
        if not self._count or (self._told and trio.current_time() - self._last_s < QUIET_S):
            return
        if self._told:
            lasted_s = self._last_s - self._first_s
            refused = f"{self._count} {self._what} were refused"
            log.warning("%s: over after %.1f s, in which %s", self._state, lasted_s, refused)
        self._count, self._told = 0, False


class Failures:
    """What fails and is tried again: told when it begins, when the reason is another one, and when it is over."""

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {}
        self._since_s: dict[str, float] = {}
        self._attempts: Counter[str] = Counter()

    def failed(self, what: str, reason: object, level: int = logging.ERROR) -> bool:
        """`what` names the state: "the journal still fails". Whether it began with this."""
        is_new = what not in self._since_s
        self._since_s.setdefault(what, trio.current_time())
        self._attempts[what] += 1
        told = self._told.setdefault(what, set())
        if str(reason) not in told and len(told) < REASONS_TOLD_MAX:
            told.add(str(reason))
            log.log(level, "%s: %s", what, reason)
        return is_new

    def over(self, what: str, then: str = "") -> None:
        """It succeeded, or is not tried any more. `then`, when it took several attempts, is told."""
        attempts = self._attempts.pop(what, 0)
        if not attempts:
            return
        del self._told[what]
        lasted_s = trio.current_time() - self._since_s.pop(what)
        if then and attempts > 1:
            log.warning("%s, after %.1f s and %d attempts", then, lasted_s, attempts)
