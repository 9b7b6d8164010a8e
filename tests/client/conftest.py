"""Pauses of the asynchronous client between attempts are short in the gate: no test waits for them, and what is tested
is what happens after them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.support.tiers import parts_of
from tests.support.waiting import ShiftedClock

PAUSES: Final[tuple[tuple[str, str, Any], ...]] = (
    ("net.fleet", "BACKOFF_SECONDS_FIRST", 0.002),
    ("net.fleet", "AGE_CHECK_SECONDS", 0.02),
    ("net.directory", "QUIET_SECONDS", 0.005),
    ("consumer.fetching", "BACKOFF_SECONDS_FIRST", 0.002),
    ("membership.line", "BACKOFF_SECONDS_FIRST", 0.002),
    ("producer.lane", "BACKOFF_SECONDS_FIRST", 0.002),
    ("producer.sender", "SWEEP_SECONDS", 0.02),
    ("transaction.front", "NEXT_GENERATION_PAUSE_SECONDS", 0.002),
    ("codecs.registry", "BACKOFF_SECONDS", (0.002, 1.0)),
)
"""Module of the client, name, and what it is in tests. The longest pauses stay as they are."""


@pytest.fixture
def clock_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ShiftedClock]:
    """``clock = clock_of("net.fleet")``: a deadline there is ended by the test, with ``clock.passes(seconds)``."""

    def made(*modules: str) -> ShiftedClock:
        clock = ShiftedClock()
        for module in modules:
            monkeypatch.setattr(f"tpc_broker.client.{module}.time", clock)
        return clock

    return made


@pytest.fixture(autouse=True)
def short_pauses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if parts_of(request.node):  # the long tier has the pauses that users have
        return
    for module, name, value in PAUSES:
        monkeypatch.setattr(f"tpc_broker.client.{module}.{name}", value)
