"""Runs of simulators in processes of their own, of which one aborts."""

from __future__ import annotations

import sys

import pytest

from tests.simulator.children import Child
from tests.simulator.schedule import SimulationFailedError

ABORTS_AT_13 = """
import json, os, sys
for line in sys.stdin:
    name, seed, steps = json.loads(line)
    if seed == 13:
        os.write(2, b"invariant: one line of C's")
        os.abort()
    print(json.dumps(["ended", f"{name} {seed} {steps}", ""]), flush=True)
"""


def test_a_run_that_aborts_is_told_with_its_seed_and_what_it_said_and_others_go_on():
    with Child([sys.executable, "-c", ABORTS_AT_13]) as child:
        (run,) = child.runs(["nodes"]).values()
        assert run(12, 60) == "nodes 12 60"
        with pytest.raises(SimulationFailedError, match="ended with -6: invariant: one line of C's") as failed:
            run(13, 60)
        assert failed.value.command == "make sim ONLY=nodes SEED=13 STEPS=60"
        assert run(14, 60) == "nodes 14 60"


def test_an_exception_in_a_child_is_told():
    with Child() as child, pytest.raises(SimulationFailedError, match="KeyError"):
        child.run("no such simulator", 1, 1)
