"""Faults planted in C one after the other, and who finds them: ``python -m tests.simulator.c_mutants --judge nodes``.

Nothing of the build that is installed here is touched (`c_build.Build`). ``tests`` are those that the table names,
``nodes`` the first seeds of the simulator of whole nodes, or of another one by its name; ``cut-off`` those of three
nodes that can seldom talk to each other, or crash all the time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.simulator import c_mutants_journal, c_mutants_replication
from tests.simulator.c_build import Build, Verdict, judged_by, run_in
from tests.simulator.c_mutant import Mutant
from tests.support.waiting import PATIENCE_S

MUTANTS: Final = (*c_mutants_replication.MUTANTS, *c_mutants_journal.MUTANTS)
NONE: Final = Mutant("none", "", "", "", "")
"""For what has to pass."""

Judge = Callable[[Path, Mutant], Verdict]


def by_tests(tree: Path, mutant: Mutant) -> Verdict:
    """By the test that the table names; what finds any of them has to pass without a fault."""
    if mutant is NONE:
        return judged_by(tree, sorted({one.caught_by for one in MUTANTS}), PATIENCE_S)
    return judged_by(tree, [mutant.caught_by])


_SEEDS: Final = """
import sys
from tests.simulator import schedule
schedule.shrink = lambda steps, *_: list(steps)  # whether a seed fails is all that is asked
from tests.simulator.__main__ import main
simulator, seeds, steps = sys.argv[1:]
for seed in range(1, int(seeds) + 1):
    if code := main(["--only", simulator, "--steps", steps, "--seed", str(seed)]):
        sys.exit(code)
"""


_CUT_OFF: Final = """
import sys
from dataclasses import replace
from tests.simulator.nodes_mutants import CRASHING, CUT_OFF
from tests.simulator.nodes_run import execute, plan
from tests.simulator.schedule import failure_of
SHAPES = CUT_OFF, CRASHING
for seed in range(1, int(sys.argv[1]) + 1):
    for shape in (*SHAPES, *(replace(shape, is_large=True) for shape in SHAPES)):
        if failure := failure_of(execute, seed, *plan(seed, int(sys.argv[2]), shape)):
            print(f"nodes seed {seed}: FAILED\\n{failure}")
            sys.exit(1)
"""
"""Three nodes that are cut off from each other all the time, and three that crash; batches are small, or large."""


def by_seeds(simulator: str, seeds: int, steps: int) -> Judge:
    """By a simulator's first so many seeds, to the first that fails."""

    def judge(tree: Path, _mutant: Mutant) -> Verdict:
        if simulator == "cut-off":
            return run_in(tree, ["-c", _CUT_OFF, str(seeds), str(steps)])
        return run_in(tree, ["-c", _SEEDS, simulator, str(seeds), str(steps)])

    return judge


def main(arguments: list[str] | None = None) -> int:
    """Tells of each mutant what became of it; 1 when one was not found, or when something fails without any."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator.c_mutants", description=__doc__)
    parser.add_argument("--judge", default="tests", help="tests (default), cut-off, or a simulator: nodes, core, ...")
    parser.add_argument("--seeds", type=int, default=10, help="of a simulator, from the first one on")
    parser.add_argument("--steps", type=int, default=60, help="of each seed")
    parser.add_argument("--only", action="append", help="a mutant's name, or a part of some")
    options = parser.parse_args(arguments)
    judge = by_tests if options.judge == "tests" else by_seeds(options.judge, options.seeds, options.steps)
    chosen = [one for one in MUTANTS if not options.only or any(part in one.name for part in options.only)]
    folder = Path(tempfile.mkdtemp(prefix="c-mutants-"))
    missed = 0
    try:
        build = Build(folder)
        for mutant in [NONE, *chosen]:
            began_s = time.monotonic()
            tree = build.package(mutant.name, None if mutant is NONE else mutant)
            is_caught, how = judge(tree, mutant)
            shutil.rmtree(tree)
            missed += is_caught == (mutant is NONE)
            what = f"FOUND by {how}" if is_caught else "passes" if mutant is NONE else "NOT FOUND"
            print(f"{time.monotonic() - began_s:4.0f} s  {mutant.rule:4.4}  {mutant.name}: {what}", flush=True)
            if mutant is NONE and is_caught:
                break
    finally:
        shutil.rmtree(folder)
    print(f"{missed} not as they should be, of {len(chosen)} faults and none")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
