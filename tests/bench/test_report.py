"""The report: medians, ratios beside the bars, and a file that can be read back."""

from pathlib import Path

from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.plots import draw
from tpc_broker.bench.results import Cell, Results, Spread
from tpc_broker.bench.table import number, render
from tpc_broker.bench.workloads import Round


def a_round(requests_per_s: float, p50_us: int) -> Round:
    histogram = Histogram()
    for step in range(100):
        histogram.add(p50_us * 1000 + step)
    return Round(
        requests_per_s=requests_per_s, records_per_s=requests_per_s, mb_per_s=requests_per_s / 1000,
        latency_us=histogram.percentiles_us(), cpu_s_per_gb=1.5, cpu_us_per_request=10.0, resident_mib=50.0,
        generator_was_limit=False, generator_cpu_share=0.3, per_100ms=[1, 2, 3], buckets=histogram.buckets(),
    )  # fmt: skip


def some_results() -> Results:
    ours = Cell("2", "tpc durable", is_durable=True, rounds=[a_round(rate, 100) for rate in (70.0, 60.0, 90.0)])
    bare = Cell("2", "bare durable", is_durable=True, rounds=[a_round(rate, 80) for rate in (100.0, 90.0, 110.0)])
    return Results({"commit": "abc"}, {"rounds": 3, "note": "Busy."}, cells=[ours, bare], skipped={"nats": "no Go"})


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_the_report_shows_medians_ratios_and_what_is_missing() -> None:
    report = render(some_results())
    assert "| tpc durable | yes | 70.0 (60.0-90.0) |" in report
    assert "| 2 | tpc durable: requests/s | 0.70 | ≥ 0.65 x bare durable | met |" in report
    assert "not measured: nats: no Go" in report
    assert "**Busy.**" in report


def test_a_missed_bar_is_called_so() -> None:
    results = some_results()
    results.cells[0].rounds = [a_round(10.0, 100)]
    assert "| 0.10 | ≥ 0.65 x bare durable | MISSED |" in render(results)


def test_results_survive_their_file(tmp_path: Path) -> None:
    results = some_results()
    results.save(tmp_path / "deep" / "r.json")
    again = Results.load(tmp_path / "deep" / "r.json")
    assert render(again) == render(results)
    assert again.cells[0].histogram().percentile(99) == results.cells[0].histogram().percentile(99)


def test_plots_are_files_or_nothing(tmp_path: Path) -> None:
    made = draw(some_results(), "r", tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)


def test_numbers_have_three_digits_that_count() -> None:
    assert [number(value) for value in (12345.6, 100.4, 12.34, 1.234)] == ["12,346", "100", "12.3", "1.23"]
