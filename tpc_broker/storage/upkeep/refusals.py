"""States in which clients are refused, told to whoever operates the broker: when they begin, and when they are over.

One line for each of the two, whatever the number of requests in between; the second says how many they were. A state
that comes and goes is told once a minute.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

import trio

log = logging.getLogger(__name__)

QUIET_S: Final = 1.0
"""Without a refusal for so long it may be over: at the edge of a state some requests succeed and some do not."""

TOLD_EVERY_S: Final = 60.0
"""At most, that the same state has begun."""

STATES_KEPT_MAX: Final = 1_000
"""Of which it is known when they were told."""

REASONS_TOLD_MAX: Final = 3
"""Of one state; more of them would be the noise that this is against."""


# Rule: A state in which clients are refused, and what fails and is tried again, is logged when it begins and when it is
# over. See also tpc_broker/engine/refusal_watch.py. Held by tests/engine/test_trouble.py,
# tests/engine/test_refusal_watch.py.
class Refusals:
    """One such state; `what` is refused. `patience_s`: it counts as begun only when there were refusals for so long."""

    def __init__(self, state: str, *, patience_s: float = 0.0, what: str = "requests") -> None:
        self._state = state
        self._what = what
        self._patience_s = patience_s
        self._count = 0
        self._first_s = self._last_s = 0.0
        self._told = False
        self._told_s = -TOLD_EVERY_S
        self._untold_times = self._untold_count = 0
        """Of states that have begun too soon after the one before to be told."""

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
        is_due = now_s - self._first_s >= self._patience_s and now_s - self._told_s >= TOLD_EVERY_S
        if not self._told and is_due:
            self._told, self._told_s = True, now_s
            before = self._told_before()
            log.warning("%s: %s are refused until this is over (%s)%s", self._state, self._what, reason, before)

    def succeeded(self) -> None:
        """A request was not refused, or would not be: perhaps it is over."""
        if not self._count or (self._told and trio.current_time() - self._last_s < QUIET_S):
            return
        if self._told:
            lasted_s = self._last_s - self._first_s
            refused = f"{self._count} {self._what} were refused"
            log.warning("%s: over after %.1f s, in which %s", self._state, lasted_s, refused)
        elif self._last_s - self._first_s >= self._patience_s:
            self._untold_times += 1
            self._untold_count += self._count
        self._count, self._told = 0, False

    def _told_before(self) -> str:
        times, count = self._untold_times, self._untold_count
        self._untold_times = self._untold_count = 0
        if not times:
            return ""
        return f"; it came and went {times} times since the last line, in which {count} {self._what} were refused"


class Failures:
    """What fails and is tried again: told when it begins, when the reason is another one, and when it is over. What
    begins again within a minute is told if it lasts so long.
    """

    def __init__(self) -> None:
        self._told: dict[str, set[str]] = {}
        self._since_s: dict[str, float] = {}
        self._attempts: Counter[str] = Counter()
        self._begun_s: dict[str, float] = {}
        """When it was told that it began; the latest is the last."""

    def failed(self, what: str, reason: object, level: int = logging.ERROR) -> bool:
        """`what` names the state: "the journal still fails". Whether it began with this."""
        is_new = what not in self._since_s
        self._since_s.setdefault(what, trio.current_time())
        self._attempts[what] += 1
        told = self._told.setdefault(what, set())
        if str(reason) not in told and len(told) < REASONS_TOLD_MAX and (told or self._may_begin(what)):
            told.add(str(reason))
            log.log(level, "%s: %s", what, reason)
        return is_new

    def over(self, what: str, then: str = "") -> None:
        """It succeeded, or is not tried any more. `then`, when it took several attempts, is told."""
        attempts = self._attempts.pop(what, 0)
        if not attempts:
            return
        was_told = self._told.pop(what)
        lasted_s = trio.current_time() - self._since_s.pop(what)
        if then and attempts > 1 and was_told:
            log.warning("%s, after %.1f s and %d attempts", then, lasted_s, attempts)

    def _may_begin(self, what: str) -> bool:
        now_s = trio.current_time()
        if now_s - self._begun_s.get(what, -TOLD_EVERY_S) < TOLD_EVERY_S:
            return False
        self._begun_s.pop(what, None)
        if len(self._begun_s) >= STATES_KEPT_MAX:
            del self._begun_s[next(iter(self._begun_s))]
        self._begun_s[what] = now_s
        return True
