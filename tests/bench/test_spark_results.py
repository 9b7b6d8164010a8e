"""The Spark benchmark's bars and report from given figures."""

import pytest

from tpc_broker.bench.spark import cause_of
from tpc_broker.bench.spark_load import RECORDS_PER_BATCH, rows_that_fit
from tpc_broker.bench.spark_results import Cell, Round, SparkResults, bar_rows, render, write_report


def cell(key, part, rates, rows=1_000_000):
    rounds = [Round(rows / rate, 1.0, 0.5) for rate in rates]
    return Cell(key, f"job {key}", part, rows, rows * 200, rounds)


@pytest.fixture
def results():
    cells = [
        cell("ready", "read", [3e6]),
        cell("broker", "read", [1e6, 2.4e6, 2e6]),
        cell("files", "read", [2.5e6]),
        cell("connector-tpc", "read", [1e6]),
        cell("parquet-ready", "archive", [1.2e6]),
        cell("archive", "archive", [0.9e6]),
        cell("sink", "sink", []),
    ]
    return SparkResults({"commit": "abc"}, {"cores": 2}, {}, {"kafka": "no Java"}, cells, ["job sink: no answer"])


def test_bars_are_ratios_of_medians(results):
    rows = bar_rows(results)
    assert rows[0] == ["job broker", "2.00", "≥ 1.5 x job connector-tpc", "3.00", "met"]
    assert [row[1] for row in rows if row[0] == "job files"] == ["2.50", "0.83"]
    assert ["job archive", "0.75", "≥ 0.8 x job parquet-ready", "1.00", "MISSED"] in rows
    assert ["job archive", "90", "or ≥ 100 MB/s of log per core", "120", "MISSED"] in rows
    assert not any("sink" in row[0] or "kafka" in row[2] for row in rows), "what was not measured has no bar"


def test_the_report_has_every_figure_and_can_be_loaded_again(results, tmp_path):
    text = render(results)
    assert "| job broker | 2.00 (1.00-2.40) | 400 | 200 | 67% | 1.00 | 0.50 |" in text
    assert "not measured: kafka: no Java" in text
    assert "failed once: job sink: no answer" in text
    written = write_report(results, "name", tmp_path)
    assert SparkResults.load(written[0]) == results
    assert written[1].read_text().startswith(text)


def test_rows_are_whole_batches_in_every_partition():
    assert rows_that_fit(1, 4) == 4 * RECORDS_PER_BATCH
    assert rows_that_fit(8 * RECORDS_PER_BATCH, 4) == 8 * RECORDS_PER_BATCH


def test_the_cause_of_a_failed_job_is_its_innermost_exception():
    told = "An error occurred.\n: SparkException: aborted\n\tat A\nCaused by: B: late\n\tat C\nCaused by: D: gone\n"
    assert cause_of(told) == "D: gone"
    assert cause_of("[CODE] plain\nmore") == "[CODE] plain"
    assert cause_of("") == "no reason given"
