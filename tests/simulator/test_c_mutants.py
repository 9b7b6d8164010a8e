"""Faults planted in C (`c_mutants_replication.py`, `c_mutants_journal.py`): the test that each names finds it.

Without it that test passes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.simulator.c_build import Build, judged_by
from tests.simulator.c_mutant import Mutant
from tests.simulator.c_mutants import MUTANTS, NONE, by_tests

pytestmark = pytest.mark.sim


@pytest.fixture(scope="module")
def build(module_tmp_path: Path) -> Build:
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    return Build(module_tmp_path)


def test_what_finds_them_passes_without_them(build: Build) -> None:
    assert by_tests(build.package("none"), NONE) == (False, "")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_in_c_is_found(build: Build, mutant: Mutant) -> None:
    tree = build.package(mutant.name, mutant)
    verdict = judged_by(tree, [mutant.caught_by])
    shutil.rmtree(tree)
    assert verdict.is_caught, f"{mutant.name} (rule {mutant.rule})"
