"""Runs every simulator: ``python -m tests.simulator --seed 7 --steps 2000``, or fresh seeds until a time is over.

A simulator is a module ``tests/simulator/*_run.py`` with ``run(seed, steps) -> str``: it raises `SimulationFailedError`
when an invariant does not hold, and says in a few words what it did when all do. One whose runs take long has `EVERY`:
it is run with every so many seeds, and with fresh ones only where failures are passed over, or where nothing else runs.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from random import Random, SystemRandom
from types import MappingProxyType

from tests.simulator.schedule import SimulationFailedError

Run = Callable[[int, int], str]
FIXED_SEEDS = range(1, 11)
STEPS = 60


def simulators(only: str | None = None) -> dict[str, Run]:
    """Name and entry of every simulator there is, or of one."""
    names = sorted(path.stem.removesuffix("_run") for path in Path(__file__).parent.glob("*_run.py"))
    return {name: importlib.import_module(f"tests.simulator.{name}_run").run for name in names if only in (None, name)}


def spacing() -> dict[str, int]:
    """Of simulators that are not run with each seed: with every which."""
    modules = {name: importlib.import_module(f"tests.simulator.{name}_run") for name in simulators()}
    return {name: module.EVERY for name, module in modules.items() if hasattr(module, "EVERY")}


def fresh_seeds(text: str | None = None) -> Iterator[int]:
    """Seeds that nobody has tried; with a text always the same ones for it: a commit's name makes its own."""
    random = Random(text) if text else SystemRandom()
    while True:
        yield random.randrange(2**48)


def _broken(error: Exception, name: str, seed: int, steps: int) -> SimulationFailedError:
    """An exception that is no verdict: a bug, in a machine or in the simulator, that the same seed shows again."""
    what = "".join(traceback.format_exception(error))
    return SimulationFailedError(what, f"make sim ONLY={name} SEED={seed} STEPS={steps}")


def run_seeds(
    runs: dict[str, Run],
    seeds: Iterable[int],
    steps: int,
    deadline_s: float,
    *,
    go_on: bool = False,
    every: Mapping[str, int] = MappingProxyType({}),
) -> tuple[int, list[SimulationFailedError]]:
    """Runs each simulator with each seed until the deadline; how many runs there were, and the failures (`go_on`).

    Those in `every` are run with every so many seeds, and with fresh ones in long runs only (`go_on`).
    """
    count, failures = 0, []
    for number, seed in enumerate(seeds):
        for name, run in runs.items():
            if number % every.get(name, 1) or (name in every and seed not in FIXED_SEEDS and not go_on):
                continue
            if time.monotonic() > deadline_s:
                return count, failures
            try:
                told = run(seed, steps)
            except Exception as error:
                failure = error if isinstance(error, SimulationFailedError) else _broken(error, name, seed, steps)
                print(f"{name} seed {seed}: FAILED\n{failure}", flush=True)
                failures.append(failure)
                if not go_on:
                    return count + 1, failures
            else:
                if seed in FIXED_SEEDS or not go_on:
                    print(f"{name} seed {seed}: {told}", flush=True)
            count += 1
            if go_on and count % 500 == 0:
                print(f"{count} runs, {len(failures)} failed", flush=True)
    return count, failures


def main(arguments: list[str] | None = None) -> int:
    """Parses, runs, tells; 1 when something failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults and requests in one run")
    parser.add_argument("--only", help="only this simulator")
    parser.add_argument("--seconds", type=float, default=0.0, help="then fresh seeds for so long")
    parser.add_argument("--fresh-from", help="a text that the fresh seeds are made from, such as a commit's name")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure")
    options = parser.parse_args(arguments)
    runs = simulators(options.only)
    if not runs:
        wanted = repr(options.only) if options.only else "at all"
        print(f"there is no simulator {wanted}; there are: {', '.join(simulators()) or 'none'}")
        return 2
    if options.seed is not None:
        _count, failures = run_seeds(runs, [options.seed], options.steps, float("inf"))
        return 1 if failures else 0
    began_s = time.monotonic()
    seeds: Iterable[int] = chain(FIXED_SEEDS, fresh_seeds(options.fresh_from)) if options.seconds else FIXED_SEEDS
    deadline_s = began_s + options.seconds if options.seconds else float("inf")
    every = {} if options.only else spacing()
    count, failures = run_seeds(runs, seeds, options.steps, deadline_s, go_on=options.go_on, every=every)
    print(f"{count} runs in {time.monotonic() - began_s:.0f} s, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
