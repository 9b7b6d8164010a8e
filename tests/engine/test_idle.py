"""What a broker at rest does: next to nothing, so that it costs its neighbours nothing. Counted, not timed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S
from tpc_broker.engine import trio_ring
from tpc_broker.engine.trio_ring import RingOptions

pytestmark = pytest.mark.machine

REST_S = 5
TURNS_MAX = 26
"""Of a core in that time: 12 or 13 for the supervisor, which counts its turns, one a second for the rest."""
WATCHED_S = 3
SWITCHES_MAX = 6
"""Of the watcher in that time: one a second; every 20 ms while Python works."""


def ring_of(broker: TpcBroker) -> dict[str, Any]:
    ring: dict[str, Any] = broker.counters()[0]["ring"]
    return ring


def test_a_core_at_rest_hardly_turns(tmp_path) -> None:
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.start()
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:  # the first moments have work of their own
            before = ring_of(broker)["turns"]
            time.sleep(REST_S)
            turns = ring_of(broker)["turns"] - before
            if turns <= TURNS_MAX or time.monotonic() > deadline:
                break
    finally:
        broker.kill()
    assert turns <= TURNS_MAX


def switches_of(thread: threading.Thread) -> int:
    text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    return int(text.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_the_thread_that_looks_for_stalls_sleeps_while_python_does() -> None:
    """When it finds Python at work, which the kernel may have stopped in the midst of it, it looks soon again, and so
    has some more looks in the seconds after that: not in each stretch.
    """

    async def main() -> int:
        (watcher,) = (thread for thread in threading.enumerate() if thread.name == "stall-log")
        await trio.sleep(2)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            before = switches_of(watcher)
            await trio.sleep(WATCHED_S)
            switches = switches_of(watcher) - before
            if switches <= SWITCHES_MAX or time.monotonic() > deadline:
                return switches

    assert trio_ring.run(main, options=RingOptions(stall_ms=10)) <= SWITCHES_MAX
