"""A limit on log lines per key, so that a noisy peer does not fill the disk."""

from __future__ import annotations

from tpc_broker import limits


class RateLimiter:
    """Says whether a line of this key may be logged now, and how many of its kind were swallowed before it."""

    def __init__(self, burst: int = limits.LOG_LINES_BURST, period_s: float = limits.LOG_LINES_PERIOD_S) -> None:
        self._burst = burst
        self._period_s = period_s
        self._windows: dict[str, tuple[float, int]] = {}

    def admit(self, key: str, now_s: float) -> int | None:
        """Number of lines swallowed since the last admitted one, or None: swallow this one too."""
        started, count = self._windows.get(key, (now_s, 0))
        swallowed = 0
        if now_s - started >= self._period_s:
            swallowed = max(0, count - self._burst)
            started, count = now_s, 0
        if key not in self._windows and len(self._windows) >= limits.LOG_KEYS_MAX:
            self._windows.clear()
        self._windows[key] = (started, count + 1)
        return swallowed if count < self._burst else None
