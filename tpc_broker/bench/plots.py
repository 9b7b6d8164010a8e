"""Plots, where matplotlib is installed (extra `bench`): latency by percentile and against load, throughput and memory
over time.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tpc_broker.bench.results import Cell, Results

LOADS: Final = ("end-to-end-10", "end-to-end-50", "end-to-end-80")
"""Workloads that are points of one curve: latency against load."""
KILLED_AT: Final = "killed at s"
"""The figure of a round in which a node was killed; it stands in the plot over time."""
JOINED_AT: Final = "joined at s"
DRAINED_AT: Final = "drained at s"
"""Those of a round in which nodes came and went."""
MARKED: Final = (KILLED_AT, JOINED_AT, DRAINED_AT)
AGAINST_LOAD: Final = "latency-against-load"
_PERCENTILES: Final = (0, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


def _figures(results: Results) -> Iterator[tuple[str, Any]]:
    """A name and a figure for each; nothing without matplotlib. A figure lives until the next one is asked for."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (an optional extra)
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    for workload in dict.fromkeys(cell.workload for cell in results.cells):
        cells = [cell for cell in results.cells if cell.workload == workload and cell.rounds and cell.histogram().count]
        if not cells:
            continue
        parts: list[tuple[Callable[[Any, list[Cell]], None], list[Cell]]] = [(_percentiles, cells), (_over_time, cells)]
        parts.append((_series, [cell for cell in cells if cell.rounds[0].series]))
        parts.append((_silences, [cell for cell in cells if cell.rounds[0].silences_s]))
        parts = [part for part in parts if part[1]]
        figure, axes = plt.subplots(1, len(parts), figsize=(1 + 6 * len(parts), 5))
        for place, (draws, shown) in zip(axes, parts, strict=True):
            draws(place, shown)
        figure.suptitle(f"({workload})")
        yield workload, figure
        plt.close(figure)
    if any(results.cell(load, cell.peer) for load in LOADS for cell in results.cells):
        figure, axes = plt.subplots(figsize=(8, 5))
        _against_load(axes, results)
        yield AGAINST_LOAD, figure
        plt.close(figure)


def draw(results: Results, name: str, folder: Path) -> list[Path]:
    """PNG files."""
    made = []
    for key, figure in _figures(results):
        path = folder / f"{name}-{key}.png"
        figure.savefig(path, dpi=110, bbox_inches="tight")
        made.append(path)
    return made


def svgs(results: Results) -> dict[str, bytes]:
    """The same as pictures to embed."""
    made = {}
    for key, figure in _figures(results):
        target = io.BytesIO()
        figure.savefig(target, format="svg", bbox_inches="tight")
        made[key] = target.getvalue()
    return made


def _percentiles(axes: Any, cells: list[Cell]) -> None:
    for cell in cells:
        histogram = cell.histogram()
        places = [1 / (1 - percent / 100) for percent in _PERCENTILES]
        axes.plot(places, [histogram.percentile(percent) / 1000 for percent in _PERCENTILES], label=cell.peer)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1, 2, 10, 100, 1000, 10000], ["0", "50", "90", "99", "99.9", "99.99"])
    axes.set_xlabel("percentile")
    axes.set_ylabel("latency, µs")
    axes.legend(fontsize=8)


def _over_time(axes: Any, cells: list[Cell]) -> None:
    for cell in cells:
        counts = cell.rounds[0].per_100ms
        step = max(1, len(counts) // 600)
        shown = [sum(counts[at : at + step]) / step * 10 for at in range(0, len(counts) - step + 1, step)]
        (line,) = axes.plot([at * step / 10 for at in range(len(shown))], shown, label=cell.peer)
        for at_s in (cell.rounds[0].extra.get(mark) for mark in MARKED):
            if at_s is not None:
                axes.axvline(at_s, color=line.get_color(), linestyle=":")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s, first round")
    axes.set_ylabel("per second")


def _series(axes: Any, cells: list[Cell]) -> None:
    for cell in cells:
        for name, values in cell.rounds[0].series.items():
            axes.plot([at for at, _ in values], [value for _, value in values], label=f"{cell.peer}: {name}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("s, first round")
    axes.legend(fontsize=8)


def _silences(axes: Any, cells: list[Cell]) -> None:
    """Of all rounds, the shortest first; kinds of fault of which there are different numbers are equally wide."""
    for cell in cells:
        for fault in cell.rounds[0].silences_s:
            values = sorted(value for one in cell.rounds for value in one.silences_s.get(fault, []))
            places = [100 * (rank + 0.5) / len(values) for rank in range(len(values))]
            axes.plot(places, values, ".-", label=f"{cell.peer}: {fault} ({len(values)})")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("% of faults")
    axes.set_ylabel("s until all partitions are acknowledged again")
    axes.legend(fontsize=8)


def _against_load(axes: Any, results: Results) -> None:
    for index, peer in enumerate(dict.fromkeys(cell.peer for cell in results.cells)):
        cells = [cell for cell in (results.cell(load, peer) for load in LOADS) if cell is not None]
        if not cells:
            continue
        rates = [cell.spread(lambda one: one.requests_per_s).median for cell in cells]
        for percent, style in ((50, "o--"), (99, "s-"), (99.9, "^:")):
            latencies = [cell.histogram().percentile(percent) / 1000 for cell in cells]
            axes.plot(rates, latencies, style, color=f"C{index}", label=f"{peer}: p{percent}")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("records/s")
    axes.set_ylabel("from due to consumed, µs")
    axes.legend(fontsize=8)
