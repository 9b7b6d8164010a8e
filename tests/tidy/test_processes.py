"""Which tests `.ci/run` keeps in one process: those that share what is costly to start."""

from __future__ import annotations

from tests.conftest import one_process_for


def test_a_module_and_all_of_spark_stay_in_one_process():
    assert one_process_for("tests/log/test_walk.py::test_a[1-::]") == one_process_for("tests/log/test_walk.py::test_b")
    assert one_process_for("tests/log/test_walk.py::test_a") != one_process_for("tests/log/test_other.py::test_a")
    assert one_process_for("tests/spark/test_source.py::test_a") == one_process_for("tests/spark/test_sink.py::test_b")
