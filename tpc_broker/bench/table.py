"""Results for readers: one table per workload, and the bars with the ratios that were measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.bench.bars import (
    BARS,
    MET,
    MISSED,
    NOT_MEASURED,
    Extra,
    cpu_s_per_gb,
    mb_per_s,
    p50_us,
    p99_us,
    requests_per_s,
)
from tpc_broker.bench.others import NOTED_FROM_CPUS
from tpc_broker.bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.bench.measured import Round
    from tpc_broker.bench.results import Cell, Results

BAR_HEAD: Final = ("workload", "what", "measured", "bar", "")
COLUMNS: Final[tuple[tuple[str, Callable[[Round], float]], ...]] = (
    ("requests/s", requests_per_s),
    ("MB/s", mb_per_s),
    ("p50 µs", p50_us),
    ("p99 µs", p99_us),
    ("p99.9 µs", lambda one: one.latency_us.get("99.9", 0.0)),
    ("p99.99 µs", lambda one: one.latency_us.get("99.99", 0.0)),
    ("CPU s/GB", cpu_s_per_gb),
    ("CPU µs/request", lambda one: one.cpu_us_per_request),
    ("RSS MiB", lambda one: one.resident_mib),
)


def number(value: float) -> str:
    """Three digits that count, thousands with commas."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def words_of(cell: Cell) -> list[str]:
    """A cell as a row of its workload's table: medians, with the spread of the rate."""
    rates = cell.spread(requests_per_s)
    spread = f" ({number(rates.low)}-{number(rates.high)})" if len(cell.rounds) > 1 and rates.median else ""
    medians = [cell.spread(value).median for _, value in COLUMNS]
    words = [number(median) if median else "" for median in medians]
    words[0] += spread
    marks = ["generator at its limit"] if any(one.generator_was_limit for one in cell.rounds) else []
    others = max(one.others_cpus for one in cell.rounds)
    if others >= NOTED_FROM_CPUS:
        marks.append(f"not alone: others used up to {others:.2f} CPUs")
    for name in cell.rounds[-1].extra:
        values = cell.spread(Extra(name))
        around = f" ({number(values.low)}-{number(values.high)})" if values.high > values.low else ""
        marks.append(f"{name} {number(values.median)}{around}")
    return [cell.peer, "yes" if cell.is_durable else "no", *words, "; ".join(marks)]


def markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(words)} |" for words in (head, ["---"] * len(head), *rows)]


def bar_rows(results: Results) -> list[list[str]]:
    """Every bar there is, in the order of `BAR_HEAD`; those without figures say so."""
    rows = []
    for bar in BARS:
        measured = bar.measured(results)
        shown = "" if measured is None else number(measured)
        rows.append([bar.workload, f"{bar.peer}: {bar.what}", shown, bar.wanted, bar.verdict(results)])
    return rows


def counts(rows: list[list[str]]) -> str:
    """Such as `12 met, 3 MISSED, 20 not measured`."""
    verdicts = [row[-1] for row in rows]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in (MET, MISSED, NOT_MEASURED))


def head_lines(results: Results) -> list[str]:
    """Machine, settings, versions, and what was left out, one line each."""
    parts = (results.machine, results.settings, results.versions)
    lines = [f"{name}: {value}" for part in parts for name, value in part.items() if name != "note"]
    return lines + [f"not measured: {name}: {reason.splitlines()[0]}" for name, reason in results.skipped.items()]


def render(results: Results) -> str:
    """The whole report in Markdown; the bars stand at the end, where a terminal shows them."""
    lines = [f"# Benchmark of {results.machine.get('commit', 'unknown')}", ""]
    if note := results.settings.get("note"):
        lines += [f"**{note}**", ""]
    lines += [f"- {line}" for line in head_lines(results)]
    if results.limits:
        lines += ["", "## Limits of the disk and of loopback", ""]
        lines += [f"- {name}: {value}" for name, value in results.limits.items()]
    head = ["server", "durable", *(name for name, _ in COLUMNS), ""]
    for workload in WORKLOADS:
        cells = [cell for cell in results.cells if cell.workload == workload.key and cell.rounds]
        if cells:
            rows = [words_of(cell) for cell in cells]
            lines += ["", f"## {workload.key}: {workload.title}", "", *markdown(head, rows)]
    rows = bar_rows(results)
    lines += ["", f"## Bars: {counts(rows)}", "", *markdown([*BAR_HEAD], rows)]
    return "\n".join(lines) + "\n"
