"""Time stamps of records that a running broker takes and keeps."""

from __future__ import annotations

import time


def now_ms() -> int:
    """A broker refuses records of the future (`message.timestamp.after.max.ms`), and its retention deletes those that
    are a week old, both by the machine's clock: to a test with processes no constant would be recent for ever.
    """
    return time.time_ns() // 1_000_000


BASE_MS = now_ms() // 1000 * 1000 - 600_000
"""For a test's first record: ten minutes ago, in whole seconds. Tests compare with it, and with nothing later."""
