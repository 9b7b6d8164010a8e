"""Faults that an extension of its own has in C: the simulator of one core finds each."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulator.core_mutants import IN_C
from tests.simulator.test_core import STEPS
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", IN_C)
def test_a_fault_planted_into_the_journal_is_found(built_with_mutants, name):
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulator.core_mutants", name, str(STEPS)],
        cwd=built_with_mutants, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stdout.startswith("seed"), done.stderr
