"""The real machine, explored without gaps within small bounds; and the explorer itself, which must find what is broken.

The larger bounds are `make sim-long`'s. `states` is what docs/decisions publishes: other numbers mean that the machine
has other states than it had, which is to be understood before they are written here.
"""

from __future__ import annotations

import pytest

from tests.raft.explore import Explorer, ViolationError, main
from tests.raft.explore_mutants import MUTANTS
from tests.raft.explore_replica import Bounds
from tests.simulator.raft_mutants import MUTANTS as SIMULATED

MOVE = Bounds(terms=4, batches=0, crashes=0, changes=2, old=(0,), new=(1,))
SLOW = pytest.mark.sim


@pytest.mark.parametrize(
    ("bounds", "states"),
    [
        (Bounds(terms=1, batches=1, crashes=1), 3_884),
        (Bounds(terms=1, batches=1, crashes=1, failures=1), 29_628),
        (Bounds(terms=1, batches=1, crashes=1, checkpoints=1, snapshots=1), 16_606),
        (Bounds(terms=1, batches=1, crashes=0, failures=1, snapshots=1), 8_513),
        (MOVE._replace(snapshots=1), 2_590),
        pytest.param(MOVE._replace(crashes=1), 29_370, marks=SLOW),
        pytest.param(Bounds(terms=2, batches=1, crashes=1), 291_853, marks=SLOW),
    ],
    ids=str,
)
def test_every_state_is_sound(bounds: Bounds, states: int) -> None:
    explorer = Explorer(bounds)
    explorer.run()
    assert explorer.states == states


def test_the_first_states_with_a_crash_and_a_failing_journal_are_sound() -> None:
    explorer = Explorer(Bounds(terms=2, batches=1, crashes=1, failures=1))
    explorer.run(states_max=20_000)
    assert explorer.states >= 20_000


@pytest.mark.parametrize("name", MUTANTS)
def test_the_explorer_finds_a_mutant(name: str) -> None:
    machine, bounds = MUTANTS[name]
    with pytest.raises(ViolationError, match=r"after .* steps"):
        Explorer(bounds, machine).run()


def test_the_command_says_how_far_it_came_and_fails_when_something_does_not_hold(capsys: pytest.CaptureFixture[str]):
    bounds = ["--terms", "1", "--batches", "1", "--crashes", "0"]
    assert main([*bounds, "--voters", "1"]) == 0
    assert ": all of " in capsys.readouterr().out
    assert main([*bounds, "--states", "20"]) == 0
    assert ": stopped at " in capsys.readouterr().out
    assert main([*bounds, "--mutant", "cut-what-follows"]) == 1
    said = capsys.readouterr().out
    assert "steps:\n" in said
    assert ": wrong after " in said


def test_a_late_ack_that_counts_is_found_although_late_acks_are_not_kept() -> None:
    """raft-rules 10: looked for as the loss of a record, it takes four terms and a crash."""
    (mutant,) = [mutant for mutant in SIMULATED if mutant.name == "ack of another term counts"]
    with mutant.planted(), pytest.raises(ViolationError, match="changes the leader of term 2"):
        Explorer(Bounds(terms=2, batches=0, crashes=0)).run()
