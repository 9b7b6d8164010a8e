"""Results for readers: one table per workload, and the bars with the ratios that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.workloads import WORKLOADS, Round

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.bench.results import Cell, Results


def _p50(one: Round) -> float:
    return one.latency_us.get("50", 0.0)


def _p99(one: Round) -> float:
    return one.latency_us.get("99", 0.0)


def _requests(one: Round) -> float:
    return one.requests_per_s


def _megabytes(one: Round) -> float:
    return one.mb_per_s


def _cpu_per_gb(one: Round) -> float:
    return one.cpu_s_per_gb


@dataclass(frozen=True)
class Bar:
    """A ratio of medians: `peer`'s figure to that of `other`, under `workload` (and `other_workload`)."""

    workload: str
    what: str
    value: Callable[[Round], float]
    peer: str
    other: str
    limit: float
    at_least: bool
    other_workload: str = ""

    def ratio(self, results: Results) -> float | None:
        ours = results.cell(self.workload, self.peer)
        theirs = results.cell(self.other_workload or self.workload, self.other)
        if ours is None or theirs is None:
            return None
        below = theirs.spread(self.value).median
        return ours.spread(self.value).median / below if below else None

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio <= self.limit


def _server_cpu(one: Round) -> float:
    return one.extra.get("server_cpu_s", 0.0)


_OURS: Final = "tpc durable"
_BARE: Final = "bare durable"
_OTHERS: Final = ("kafka", "nats", "redis")
BARS: Final = (
    Bar("1", "p50", _p50, _OURS, _BARE, 1.4, at_least=False),
    Bar("1", "p99", _p99, _OURS, _BARE, 1.4, at_least=False),
    *(
        Bar("1", name, value, _OURS, peer, 1.0, at_least=False)
        for peer in ("redis durable", "nats durable", "kafka durable")
        for name, value in (("p50", _p50), ("p99", _p99))
    ),
    Bar("2", "requests/s", _requests, _OURS, _BARE, 0.65, at_least=True),
    *(Bar("2", "requests/s", _requests, _OURS, f"{peer} default", 1.0, at_least=True) for peer in _OTHERS),
    *(Bar("2", "p99", _p99, _OURS, f"{peer} default", 1.0, at_least=False) for peer in _OTHERS),
    Bar("small", "requests/s", _requests, _OURS, _BARE, 0.75, at_least=True),
    Bar("small", "requests/s", _requests, "tpc relaxed", "bare echo", 0.6, at_least=True),
    Bar("3", "MB/s", _megabytes, _OURS, "kafka default", 1.5, at_least=True),
    Bar("3", "MB/s", _megabytes, _OURS, _BARE, 0.5, at_least=True),
    Bar("3", "CPU s/GB", _cpu_per_gb, _OURS, "kafka default", 0.4, at_least=False),
    Bar("4", "requests/s", _requests, _OURS, "kafka default", 2.0, at_least=True),
    Bar("4", "p99", _p99, _OURS, "kafka default", 0.5, at_least=False),
    Bar("5-1000", "requests/s", _requests, _OURS, _OURS, 0.8, at_least=True, other_workload="5-1"),
    Bar("6-catch-up", "MB/s", _megabytes, _OURS, "kafka default", 1.0, at_least=True),
    Bar("6-catch-up", "CPU s/GB", _cpu_per_gb, _OURS, "kafka default", 1.0, at_least=False),
    Bar("6-tail-10", "server CPU", _server_cpu, _OURS, _OURS, 3.0, at_least=False, other_workload="6-tail-1"),
)  # fmt: skip

_COLUMNS: Final[tuple[tuple[str, Callable[[Round], float]], ...]] = (
    ("requests/s", _requests),
    ("MB/s", _megabytes),
    ("p50 µs", _p50),
    ("p99 µs", _p99),
    ("p99.9 µs", lambda one: one.latency_us.get("99.9", 0.0)),
    ("p99.99 µs", lambda one: one.latency_us.get("99.99", 0.0)),
    ("CPU s/GB", _cpu_per_gb),
    ("CPU µs/request", lambda one: one.cpu_us_per_request),
    ("RSS MiB", lambda one: one.resident_mib),
)


def number(value: float) -> str:
    """Three digits that count, thousands with commas."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _row(cell: Cell) -> list[str]:
    rates = cell.spread(_requests)
    spread = f" ({number(rates.low)}-{number(rates.high)})" if len(cell.rounds) > 1 else ""
    words = [number(cell.spread(value).median) for _, value in _COLUMNS]
    words[0] += spread
    marks = []
    if any(one.generator_was_limit for one in cell.rounds):
        marks.append("generator at its limit")
    extra = cell.rounds[-1].extra
    marks += [f"{name} {number(cell.spread(lambda one, name=name: one.extra[name]).median)}" for name in extra]  # type: ignore[misc]
    return [cell.peer, "yes" if cell.is_durable else "no", *words, "; ".join(marks)]


def _markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(words)} |" for words in (head, ["---"] * len(head), *rows)]


def bar_rows(results: Results) -> list[list[str]]:
    """Bars for which there are figures: workload, what, ratio, bar, met or missed."""
    rows = []
    for bar in BARS:
        ratio = bar.ratio(results)
        if ratio is None:
            continue
        against = f"{bar.other} ({bar.other_workload})" if bar.other_workload else bar.other
        limit = f"{'≥' if bar.at_least else '≤'} {bar.limit:g} x {against}"
        rows.append(
            [bar.workload, f"{bar.peer}: {bar.what}", f"{ratio:.2f}", limit, "met" if bar.is_met(ratio) else "MISSED"]
        )
    return rows


def render(results: Results) -> str:
    """The whole report in Markdown."""
    machine = results.machine
    lines = [f"# Benchmark of {machine.get('commit', 'unknown')}", ""]
    if note := results.settings.get("note"):
        lines += [f"**{note}**", ""]
    for part in (machine, results.settings, results.versions):
        lines += [f"- {name}: {value}" for name, value in part.items() if name != "note"]
    for name, reason in results.skipped.items():
        lines.append(f"- not measured: {name}: {reason}")
    if results.limits:
        lines += ["", "## Limits of the disk", ""]
        lines += [f"- {name}: {value}" for name, value in results.limits.items()]
    if rows := bar_rows(results):
        lines += ["", "## Bars", "", *_markdown(["workload", "what", "ratio", "bar", ""], rows)]
    head = ["server", "durable", *(name for name, _ in _COLUMNS), ""]
    for workload in WORKLOADS:
        cells = [cell for cell in results.cells if cell.workload == workload.key and cell.rounds]
        if cells:
            lines += ["", f"## ({workload.key}) {workload.title}", "", *_markdown(head, [_row(cell) for cell in cells])]
    return "\n".join(lines) + "\n"
