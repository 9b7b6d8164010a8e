"""Raft in the simulator: seeds that once found something, planted bugs that must be found, and determinism."""

from __future__ import annotations

import importlib

import pytest

from tests.simulator.raft_mutants import MUTANTS, Mutant
from tests.simulator.raft_run import execute, plan, run
from tests.simulator.schedule import failure_of

STEPS = 80
SEEDS = range(1, 51)
SEEDS_MAX = 120
"""A mutant is looked for in so many runs of about 0.1 s; as the code is now each is found in the first eight."""

FOUND_BY_CHANCE = [mutant for mutant in MUTANTS if not mutant.killed_by]
SCRIPTED = [mutant for mutant in MUTANTS if mutant.killed_by]


ONCE_FAILED = (
    2, 14, 43629995298012, 58864216294603, 73119424812668, 151922970726807, 152707832241247, 211974858245856,
    213450662368041, 243829833847243,
)  # fmt: skip
ONCE_FAILED_IN_60_STEPS = (84305926443776, 235084098488068)
ONCE_FAILED_WITH_REFUSALS = (52342635198080,)


@pytest.mark.parametrize(
    ("seed", "steps", "refuses"),
    [
        *((seed, STEPS, False) for seed in ONCE_FAILED),
        *((seed, 60, False) for seed in ONCE_FAILED_IN_60_STEPS),
        *((seed, 60, True) for seed in ONCE_FAILED_WITH_REFUSALS),
    ],
)
def test_schedules_that_once_failed(seed, steps, refuses):
    assert "leaderships" in run(seed, steps, refuses=refuses, cleans=False)  # as it was when they failed


@pytest.mark.parametrize("seed", SEEDS)
def test_seeds_hold_all_invariants(seed):
    assert "leaderships" in run(seed, STEPS)


def test_a_seed_repeats_itself():
    def told(seed):
        shape, schedule = plan(seed, STEPS)
        cluster = execute(seed, shape, schedule)
        oracle = cluster.oracle
        return cluster.world.events_count, oracle.elections, oracle.acks, oracle.commits, cluster.world.now_us

    assert told(5) == told(5)
    assert told(5) != told(6)


@pytest.mark.parametrize("mutant", FOUND_BY_CHANCE, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant):
    with mutant.planted():
        for seed in range(mutant.from_seed, mutant.from_seed + SEEDS_MAX):
            shape, schedule = plan(seed, STEPS, mutant.shape)
            if failure_of(execute, seed, shape, schedule) is not None:
                return
    pytest.fail(f"{mutant.name} (rules {mutant.rule}) was not found in {SEEDS_MAX} runs")


@pytest.mark.parametrize("mutant", SCRIPTED, ids=lambda mutant: mutant.name)
def test_a_planted_bug_that_chance_finds_too_seldom_is_found_by_its_script(mutant: Mutant):
    module, _, name = mutant.killed_by.partition(".")
    script = getattr(importlib.import_module(f"tests.raft.{module}"), name)
    script()
    with mutant.planted(), pytest.raises(AssertionError):
        script()


def test_there_are_at_least_twenty_planted_bugs_and_all_have_names_of_their_own():
    assert len(FOUND_BY_CHANCE) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
