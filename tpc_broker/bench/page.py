"""The report as one HTML file that needs nothing beside it: tables, and the plots as embedded pictures."""

from __future__ import annotations

import base64
from html import escape
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.bars import MET, MISSED
from tpc_broker.bench.plots import AGAINST_LOAD, svgs
from tpc_broker.bench.table import BAR_HEAD, COLUMNS, bar_rows, counts, head_lines, words_of
from tpc_broker.bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.bench.results import Results

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; color: #222; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap; }
th:first-child, td:first-child, td:last-child, .bars td { text-align: left; }
tr.ours { background: #eef6ff; } .met { color: #16702f; } .MISSED { color: #b3261e; font-weight: 600; }
img { max-width: 100%; } .note { font-weight: 600; } ul { color: #555; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; } th, td { border-color: #3a3d44; } tr.ours { background: #1d2a3a; }
  .met { color: #7bd88f; } .MISSED { color: #ff8a80; } img { background: #fff; } ul { color: #aaa; }
}
"""


def _cells(tag: str, words: Sequence[str]) -> str:
    return "".join(f"<{tag}>{escape(word)}</{tag}>" for word in words)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(f"<tr{' class=ours' if row[0].startswith('tpc') else ''}>{_cells('td', row)}</tr>\n" for row in rows)
    return f"<table><tr>{_cells('th', head)}</tr>\n{body}</table>\n"


def _bars(results: Results) -> str:
    rows = bar_rows(results)
    lines = [f"<h2>Bars: {escape(counts(rows))}</h2>\n<table class=bars><tr>{_cells('th', BAR_HEAD)}</tr>\n"]
    for row in rows:
        mark = row[-1] if row[-1] in (MET, MISSED) else ""
        lines.append(f"<tr>{_cells('td', row[:-1])}<td class='{mark}'>{escape(row[-1])}</td></tr>\n")
    return "".join([*lines, "</table>\n"])


def _picture(svg: bytes | None, name: str) -> str:
    if svg is None:
        return ""
    return f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">\n'


def render_page(results: Results) -> str:
    """The whole report; without matplotlib it has no plots and says so."""
    pictures = svgs(results)
    title = f"Benchmark of {escape(str(results.machine.get('commit', 'unknown')))}"
    parts = [f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>\n<h1>{title}</h1>\n"]
    if note := results.settings.get("note"):
        parts.append(f"<p class=note>{escape(str(note))}</p>\n")
    if not pictures:
        parts.append("<p>No plots: matplotlib is not installed.</p>\n")
    limits = [f"{name}: {value}" for name, value in results.limits.items()]
    parts.append(f"<ul>{''.join(f'<li>{escape(line)}' for line in [*head_lines(results), *limits])}</ul>\n")
    parts.append(_bars(results))
    if AGAINST_LOAD in pictures:
        parts.append(f"<h2>Latency against load</h2>\n{_picture(pictures[AGAINST_LOAD], 'latency against load')}")
    head = ["server", "durable", *(name for name, _ in COLUMNS), ""]
    for workload in WORKLOADS:
        cells = [cell for cell in results.cells if cell.workload == workload.key and cell.rounds]
        if cells:
            parts.append(f"<h2>{escape(workload.key)}: {escape(workload.title)}</h2>\n")
            parts.append(_table(head, [words_of(cell) for cell in cells]))
            parts.append(_picture(pictures.get(workload.key), f"latency and throughput of {workload.key}"))
    return "".join(parts)
