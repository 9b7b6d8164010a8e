"""How long the supervisor waits before it starts a core again, and what it says of the one that ended."""

from __future__ import annotations

import pytest

from tpc_broker import limits
from tpc_broker.process.started_process import describe_exit
from tpc_broker.process.supervisor import restart_delay_ms


def delays(lives_ms: list[float]) -> list[int]:
    """The delays behind lives that were ready for so long."""
    delay_ms, found = 0, []
    for served_ms in lives_ms:
        delay_ms = restart_delay_ms(delay_ms, served_ms)
        found.append(delay_ms)
    return found


def test_a_core_that_crashes_at_once_waits_longer_each_time() -> None:
    assert delays([0, 3, 0, 500, 0, 0, 0, 0]) == [100, 200, 400, 800, 1600, 3200, 5000, 5000]


@pytest.mark.parametrize("served_ms", [limits.CORE_HEALTHY_MS, 60_000, 1e9])
def test_a_crash_now_and_then_costs_the_least_delay_each_time(served_ms: float) -> None:
    assert delays([served_ms] * 5) == [100] * 5
    assert delays([0, 0, 0, served_ms, 0]) == [100, 200, 400, 100, 200]


@pytest.mark.parametrize(
    ("code", "said"),
    [(1, "exit code 1"), (-9, "killed by SIGKILL"), (-35, "killed by signal 35")],
)
def test_every_end_of_a_core_has_a_description(code: int, said: str) -> None:
    """Most of the real-time signals have no name."""
    assert describe_exit(code) == said
