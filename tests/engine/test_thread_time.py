"""How busy a thread was, as the kernel tells it: work counts, sleep does not."""

import time
from pathlib import Path

import pytest

from tpc_broker.engine.steady_plane import thread_busy_ms

pytestmark = pytest.mark.machine


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel has no schedstat")
def test_a_thread_is_busy_while_it_works_and_not_while_it_sleeps() -> None:
    before_ms, until_s = thread_busy_ms(), time.thread_time() + 0.3
    assert before_ms is not None
    while time.thread_time() < until_s:
        pass
    worked_ms = (thread_busy_ms() or 0) - before_ms
    assert worked_ms >= 290
    slept_s, busy_ms = 0.0, 0
    while busy_ms >= slept_s * 500:  # where others leave no CPU for long, it waits for one behind its sleep
        assert slept_s < 60
        before_ms = thread_busy_ms() or 0
        time.sleep(1)
        slept_s, busy_ms = slept_s + 1, (thread_busy_ms() or 0) - before_ms
