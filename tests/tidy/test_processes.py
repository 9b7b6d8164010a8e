"""Which tests `.ci/run` keeps in one process: those that share what is costly to start."""

from __future__ import annotations

from pathlib import Path

from tests.support.workers import SHARED_BUILD, one_process_for

ROOT = Path(__file__).parents[2]


def test_a_module_and_all_of_spark_stay_in_one_process():
    assert one_process_for("tests/log/test_walk.py::test_a[1-::]") == one_process_for("tests/log/test_walk.py::test_b")
    assert one_process_for("tests/log/test_walk.py::test_a") != one_process_for("tests/log/test_other.py::test_a")
    assert one_process_for("tests/spark/test_source.py::test_a") == one_process_for("tests/spark/test_sink.py::test_b")


def test_all_that_wants_the_build_with_faults_stays_in_one_process():
    modules = (path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py"))
    wanting = {module for module in modules if "built_with_mutants" in (ROOT / module).read_text()}
    assert wanting - {"tests/tidy/test_processes.py"} == set(SHARED_BUILD)
    assert len({one_process_for(f"{module}::test_a") for module in SHARED_BUILD}) == 1
