"""Runs every simulator: ``python -m tests.simulator --seed 7 --steps 99``, or fixed seeds and ``--runs 20`` fresh ones.

A simulator is a module ``tests/simulator/*_run.py`` with ``run(seed, steps) -> str``: it raises `SimulationFailedError`
when an invariant does not hold, and says in a few words what it did when all do. One whose runs take long has `EVERY`:
it is run with every so many seeds of the fixed ones, and of the fresh ones.

How much is proven is a number of runs and never a time: whoever asks for runs and gets fewer is told so, and fails.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random, SystemRandom
from types import MappingProxyType
from typing import NamedTuple

from tests.simulator.children import Child, command_of
from tests.simulator.schedule import SimulationFailedError

Run = Callable[[int, int], str]
FIXED_SEEDS = range(1, 11)
STEPS = 60
SILENT_S_MAX = 10.0


class Planned(NamedTuple):
    """A run that was asked for."""

    name: str
    seed: int


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


def planned(
    names: Iterable[str], seeds: Iterable[int], every: Mapping[str, int] = MappingProxyType({})
) -> list[Planned]:
    """Each simulator with each seed; those in `every` with every so many, from the first one on."""
    names = list(names)
    return [
        Planned(name, seed) for number, seed in enumerate(seeds) for name in names if number % every.get(name, 1) == 0
    ]


def broken(error: Exception, name: str, seed: int, steps: int) -> SimulationFailedError:
    """An exception that is no verdict: a bug, in a machine or in the simulator, that the same seed shows again."""
    what = "".join(traceback.format_exception(error))
    return SimulationFailedError(what, command_of(name, seed, steps))


class Progress:
    """What is told while runs are under way: each of them when it is over, or now and then how far they are."""

    def __init__(self, wanted: int, *, each: bool = True) -> None:
        self.count, self.failures = 0, list[SimulationFailedError]()
        self._wanted, self._each, self._now = wanted, each, ""
        self._told_s = time.monotonic()

    def begins(self, run: Planned) -> None:
        self._now = f"{run.name} seed {run.seed}"

    def ended(self, what: str) -> None:
        self.count += 1
        if self._each:
            self.tell(f"{self._now}: {what}")

    def failed(self, failure: SimulationFailedError) -> None:
        self.count += 1
        self.failures.append(failure)
        self.tell(f"{self._now}: FAILED\n{failure}")

    def tell(self, text: str) -> None:
        self._told_s = time.monotonic()
        print(text, flush=True)

    @contextmanager
    def not_silent(self, for_s: float = SILENT_S_MAX) -> Iterator[None]:
        """A line whenever nothing was said for so long, by a thread: a run may take longer."""
        is_over = threading.Event()

        def tell_now_and_then() -> None:
            while not is_over.wait(max(0.01, self._told_s + for_s - time.monotonic())):
                if time.monotonic() >= self._told_s + for_s:
                    so_far = f"{self.count} of {self._wanted} runs, {len(self.failures)} failed"
                    self.tell(f"{so_far}; {self._now} is under way")

        thread = threading.Thread(target=tell_now_and_then, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()


def run_all(
    runs: Mapping[str, Run], wanted: Sequence[Planned], steps: int, *, go_on: bool = False, hours: float = 0.0
) -> Progress:
    """What is planned, one after the other, to the first failure (or, with `go_on`, to the end); what became of it.

    With `hours` nothing is begun when they are over: then fewer runs than wanted are counted.
    """
    progress = Progress(len(wanted), each=not go_on)
    until_s = time.monotonic() + hours * 3600 if hours else float("inf")
    with progress.not_silent():
        for one in wanted:
            if time.monotonic() > until_s or (progress.failures and not go_on):
                break
            progress.begins(one)
            try:
                told = runs[one.name](one.seed, steps)
            except Exception as error:
                is_verdict = isinstance(error, SimulationFailedError)
                progress.failed(error if is_verdict else broken(error, *one, steps))
            else:
                progress.ended(told)
    return progress


def main(arguments: list[str] | None = None) -> int:
    """Parses, runs, tells; 1 when something failed, or when fewer runs than wanted were made."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="only this seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults and requests in one run")
    parser.add_argument("--only", help="only this simulator, with every seed")
    parser.add_argument("--runs", type=int, default=0, help="fresh seeds besides the fixed ones")
    parser.add_argument("--fresh-from", help="a text that the fresh seeds are made from, such as a commit's name")
    parser.add_argument("--go-on", action="store_true", help="do not stop at the first failure, tell only now and then")
    parser.add_argument("--children", action="store_true", help="in processes of their own, which may abort")
    parser.add_argument("--share", default="1/1", help="2/3: of three commands like this one it is the second")
    parser.add_argument("--hours", type=float, default=0.0, help="nothing is begun after so many; what is left fails")
    options = parser.parse_args(arguments)
    runs = simulators(options.only)
    if not runs:
        named = repr(options.only) if options.only else "at all"
        print(f"there is no simulator {named}; there are: {', '.join(simulators()) or 'none'}")
        return 2
    if options.seed is not None:
        wanted = planned(runs, [options.seed])
    else:
        every = {} if options.only else spacing()
        fresh = islice(fresh_seeds(options.fresh_from), options.runs)
        wanted = [*planned(runs, FIXED_SEEDS, every), *planned(runs, fresh, every)]
    number, shares = map(int, options.share.split("/"))
    wanted, began_s = wanted[number - 1 :: shares], time.monotonic()
    with Child() as child:
        runs = child.runs(runs) if options.children else runs
        done = run_all(runs, wanted, options.steps, go_on=options.go_on, hours=options.hours)
    print(f"{done.count} of {len(wanted)} runs in {time.monotonic() - began_s:.0f} s, {len(done.failures)} failed")
    return 1 if done.failures or done.count < len(wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
