"""The host's clocks."""

from __future__ import annotations

import time


class SystemClock:
    """`broker.ports.Clock` says what each one is."""

    monotonic_ns = staticmethod(time.monotonic_ns)
    cpu_ns = staticmethod(time.thread_time_ns)

    @staticmethod
    def wall_ms() -> int:
        return time.time_ns() // 1_000_000

    @staticmethod
    def monotonic_ms() -> int:
        return time.monotonic_ns() // 1_000_000
