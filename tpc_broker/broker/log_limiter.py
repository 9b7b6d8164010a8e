"""A limit on log lines about what others cause, so that a noisy client neither fills the disk nor hides what matters.

One line for a cause and who is behind it in a minute. What comes in that minute is counted, and the count is told when
it is over, also where nothing comes any more. Of one cause so many are told apart; the others share a line. So there is
a bound on lines over any time, and one on memory, whatever addresses, names and client ids are sent.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable

OTHERS: Final = "*"
"""Whoever is behind a cause beside those that are told apart."""


@dataclass(slots=True)
class _Line:
    """The last one of a cause and who is behind it; `swallowed`: so many are not told."""

    log: logging.Logger
    level: int
    text: str
    period_s: float
    until_s: float
    swallowed: int = 0


# Rule: Log lines that a client or a peer can cause are limited in number for each cause over time, and so is what is
# remembered of them; what was swallowed is counted and told. See also tpc_broker/storage/upkeep/refusals.py. Held by
# tests/broker/test_log_limiter.py, tests/storage/test_refusals.py.
class LogLimiter:
    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lines: dict[tuple[str, str], _Line] = {}
        self._told_apart: Counter[str] = Counter()
        self._due_s = float("inf")

    def say(  # noqa: PLR0913 (a line with all that it is)
        self,
        log: logging.Logger,
        cause: str,
        who: str,
        text: str,
        *,
        level: int = logging.WARNING,
        period_s: float = limits.LOG_LINE_PERIOD_S,
        error: BaseException | None = None,
    ) -> None:
        """`cause`: one of few, not of a client's choice. `error`: its traceback is logged with the line."""
        self.tell()
        now_s = self._now_s()
        cause, who = self._place(cause, who)
        text = _harmless(text)
        line = self._lines.get((cause, who))
        if line is not None:  # its time is not over: `tell` would have told it
            line.text, line.swallowed = text, line.swallowed + 1
            return
        self._lines[cause, who] = _Line(log, level, text, period_s, now_s + period_s)
        self._told_apart[cause] += 1
        self._due_s = min(self._due_s, now_s + period_s)
        log.log(level, "%s", text, exc_info=error)

    def tell(self) -> None:
        """The counts of those lines whose time is over; to be called now and then."""
        now_s = self._now_s()
        if now_s < self._due_s:
            return
        for (cause, who), line in list(self._lines.items()):
            if now_s < line.until_s:
                continue
            if not line.swallowed:
                del self._lines[cause, who]
                self._told_apart[cause] -= 1
                continue
            behind = ", not only this one's" if who == OTHERS else ""
            line.log.log(line.level, "%s (%d times since this was last logged%s)", line.text, line.swallowed, behind)
            line.swallowed, line.until_s = 0, now_s + line.period_s
        self._told_apart = +self._told_apart
        self._due_s = min((line.until_s for line in self._lines.values()), default=float("inf"))

    def _place(self, cause: str, who: str) -> tuple[str, str]:
        if cause not in self._told_apart and len(self._told_apart) >= limits.LOG_CAUSES_MAX:
            cause = OTHERS
        if (cause, who) not in self._lines and self._told_apart[cause] >= limits.LOG_LINES_OF_CAUSE_MAX:
            who = OTHERS
        return cause, who


def _harmless(text: str) -> str:
    """What clients send is one line, of a bounded length."""
    if len(text) > limits.LOG_LINE_LENGTH_MAX:
        text = text[: limits.LOG_LINE_LENGTH_MAX] + "…"
    return text if text.isprintable() else "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
