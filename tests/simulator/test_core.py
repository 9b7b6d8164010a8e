"""One core on a disk that fails in all ways: fixed seeds."""

from __future__ import annotations

import pytest

from tests.simulator.core_run import run

STEPS = 12
SEEDS = range(1, 26)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_core_keeps_what_it_promised(seed):
    assert "acknowledged" in run(seed, STEPS)
