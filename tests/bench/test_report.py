"""The report: medians, ratios beside the bars, and a file that can be read back."""

from pathlib import Path

import pytest

from tpc_broker.bench.bars import BARS, MET, NOT_MEASURED, UNEVEN, Extra
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.machine import describe
from tpc_broker.bench.measured import Round, Workload
from tpc_broker.bench.page import render_page
from tpc_broker.bench.peers import kinds
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.plots import draw
from tpc_broker.bench.results import Cell, Results, Spread
from tpc_broker.bench.soak import growth_mib, is_growth
from tpc_broker.bench.table import number, render
from tpc_broker.bench.workloads import WORKLOADS
from tpc_broker.engine.backend import choose_backend, described
from tpc_broker.engine.ring import BACKEND_VARIABLE


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
    ours = Cell("connections", "tpc durable", is_durable=True, rounds=[a_round(x, 100) for x in (70.0, 60.0, 90.0)])
    bare = Cell("connections", "bare durable", is_durable=True, rounds=[a_round(x, 80) for x in (100.0, 90.0, 110.0)])
    return Results({"commit": "abc"}, {"rounds": 3, "note": "Busy."}, cells=[ours, bare], skipped={"nats": "no Go"})


def test_a_spread_is_the_median_between_the_extremes() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_the_report_shows_medians_ratios_and_what_is_missing() -> None:
    report = render(some_results())
    assert "| tpc durable | yes | 70.0 (60.0-90.0) |" in report
    assert "| connections | tpc durable: requests/s | 0.70 | ≥ 0.65 x bare durable | met |" in report
    assert f"## Bars: 1 met, 0 MISSED, {len(BARS) - 1} not measured" in report
    assert "not measured: nats: no Go" in report
    assert "**Busy.**" in report


def test_a_missed_bar_is_called_so() -> None:
    results = some_results()
    results.cells[0].rounds = [a_round(10.0, 100)]
    assert "| 0.10 | ≥ 0.65 x bare durable | MISSED |" in render(results)


@pytest.mark.parametrize(
    ("workload", "peer", "name"),
    [
        ("forwards", "tpc durable", "forwards per request, a port a core"),
        ("cluster-rebalance", "tpc-cluster durable", f"{UNEVEN}, 5 nodes"),
    ],
)
def test_a_figure_of_zero_was_measured(workload: str, peer: str, name: str) -> None:
    [bar] = [bar for bar in BARS if bar.workload == workload and bar.value == Extra(name)]
    one = a_round(10.0, 100)
    results = Results({"commit": "abc"}, {"rounds": 1}, cells=[Cell(workload, peer, is_durable=True, rounds=[one])])
    assert (bar.measured(results), bar.verdict(results)) == (None, NOT_MEASURED)
    one.extra[name] = 0.0
    assert (bar.measured(results), bar.verdict(results)) == (0.0, MET)


def test_the_backend_is_named_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, "plain")
    report = render(Results(describe(tmp_path), {"rounds": 1}))
    assert "- backend: plain, without io_uring: it was asked for" in report


def test_a_start_is_noted_with_its_backend_and_its_journal(tmp_path: Path) -> None:
    said = f"core 0: journal mode DIRECT_DSYNC (medians)\nthe backend is {described(choose_backend('plain'))}\n"
    (tmp_path / "tpc.log").write_text(said)
    assert TpcPeer(tmp_path, "plain").remark() == "backend plain, journal DIRECT_DSYNC"


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


def test_an_absolute_bar_needs_no_peer() -> None:
    results = some_results()
    recovered = a_round(0.0, 1)
    recovered.extra = {"serving_s": 1.2}
    results.cells.append(Cell("recovery", "tpc durable", is_durable=True, rounds=[recovered]))
    assert "| recovery | tpc durable: seconds until it serves | 1.20 | ≤ 1.5 | met |" in render(results)
    recovered.extra = {"serving_s": 1.6}
    assert "| 1.60 | ≤ 1.5 | MISSED |" in render(results)


def test_the_page_needs_nothing_beside_it() -> None:
    page = render_page(some_results())
    assert "not measured: nats: no Go" in page
    assert "class='met'" in page
    assert "http" not in page.replace("http://www.w3.org", ""), "no style, script or picture from elsewhere"


def test_memory_that_grows_is_told_from_noise() -> None:
    steady = [(float(at), 100.0 + at % 3) for at in range(400)]
    growing = [(float(at), 100.0 + at / 4) for at in range(400)]
    assert not is_growth(growth_mib(steady), 102.0)
    assert is_growth(growth_mib(growing), 200.0)
    assert growth_mib(steady[:7]) == 0


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: one.key)
def test_every_workload_names_peers_that_there_are(workload: Workload) -> None:
    known = {name for kind in kinds().values() for mode in kind.modes for name in (kind.name, f"{kind.name} {mode}")}
    assert set(workload.peers) | set(workload.brief) <= known
    labels = [f"{kind.name} {mode}" for kind in kinds().values() for mode in kind.modes]
    brief = {label for label in labels if workload.suits(label, only_brief=True)}
    assert brief <= {label for label in labels if workload.suits(label, only_brief=False)}


def test_every_bar_can_be_measured_and_the_brief_selection_has_it() -> None:
    by_key = {workload.key: workload for workload in WORKLOADS}
    for bar in BARS:
        for key, peer in ((bar.workload, bar.peer), (bar.other_workload or bar.workload, bar.other)):
            assert not peer or by_key[key].suits(peer, only_brief=True), f"{key}: {peer}: {bar.what}"
