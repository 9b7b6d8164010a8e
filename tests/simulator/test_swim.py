"""Membership in the simulator: scenarios, seeds, and planted mutants that must be caught."""

from __future__ import annotations

import pytest

from tests.simulator import swim_scenarios
from tests.simulator.schedule import SimulationFailedError, Step
from tests.simulator.swim_cluster import InvariantError
from tests.simulator.swim_mutants import MUTANTS, Mutant
from tests.simulator.swim_run import SwimRun, plan_of, run


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scenario", swim_scenarios.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_scenarios_keep_their_promise(scenario, seed):
    scenario(seed)


@pytest.mark.parametrize("seed", range(1, 51))
def test_seeds_hold_all_invariants(seed):
    assert "agreed" in run(seed, 25)


def test_news_that_wait_for_their_turn_are_no_change_though_nothing_happened():
    """A member told of its load twice, paused: the second news are due when all else has long been agreed on."""
    assert "agreed" in run(175130086136949, 60)


def test_a_seed_repeats_itself_exactly():
    told = []
    for _time in range(2):
        plan = plan_of(6, 25)
        one = SwimRun(6, plan, plan.schedule)
        told.append((one.run(), [(seen.at_us, seen.observer, seen.event) for seen in one.cluster.seen]))
    assert told[0] == told[1]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_mutants_are_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    mutant.plant(monkeypatch)
    with pytest.raises(InvariantError, match=mutant.said):
        mutant.caught_by()


def test_a_failure_says_how_to_repeat_it_and_what_was_needed(monkeypatch: pytest.MonkeyPatch, capsys):
    next(mutant for mutant in MUTANTS if mutant.name == "suspicion without a time-out").plant(monkeypatch)
    with pytest.raises(SimulationFailedError, match="make sim ONLY=swim SEED=3 STEPS=12") as failed:
        run(3, 12)
    assert len(failed.value.schedule) < 12
    assert all(isinstance(step, Step) for step in failed.value.schedule)
    assert "looking for a shorter schedule" in capsys.readouterr().out
