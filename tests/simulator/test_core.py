"""One core on a disk that fails in all ways: fixed seeds, that they repeat, and planted faults that must be found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulator.core_mutants import MUTANTS, SEEDS_MAX, Mutant, find
from tests.simulator.core_run import execute, plan, run
from tests.support.waiting import PATIENCE_S

STEPS = 12
SEEDS = range(1, 26)
FOUND = ((303, 16), (313, 16))
"""Seeds, with their steps, that have found what is mended: names that a start had made, and nobody had synced."""
IN_THE_GATE = {"no fdatasync", "an earlier life is not waited for", "a checkpoint before its data"}
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("seed", "steps"), [*((seed, STEPS) for seed in SEEDS), *FOUND])
def test_a_core_keeps_what_it_promised(seed, steps):
    assert "acknowledged" in run(seed, steps)


def told(seed):
    story = execute(seed, plan(seed, STEPS))
    return story.load.counts, [(truth.topic, sorted(truth.promised)) for truth in story.load.truths]


def test_a_seed_repeats_itself_in_another_interpreter():
    code = "from tests.simulator.test_core import told; print(repr(told(4)))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
        check=True,
    )  # fmt: skip
    assert other.stdout.strip() == repr(told(4))


def test_the_runs_come_to_what_they_are_for():
    """Somewhere in the gate's seeds."""
    counts = Counter()
    for seed in SEEDS:
        counts.update(execute(seed, plan(seed, STEPS)).load.counts)
        if all(counts.values()):
            return
    raise AssertionError(counts)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=() if mutant.name in IN_THE_GATE else pytest.mark.sim)
        for mutant in MUTANTS
    ],
)
def test_a_planted_fault_is_found(mutant: Mutant):
    with mutant.planted():
        assert find(range(mutant.first_seed, mutant.first_seed + SEEDS_MAX), STEPS)
