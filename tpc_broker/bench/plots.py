"""Plots as PNG, where matplotlib is installed (extra `bench`): latency by percentile, throughput over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.bench.results import Cell, Results

_PERCENTILES = (0, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99)


def draw(results: Results, name: str, folder: Path) -> list[Path]:
    """One PNG per workload; nothing without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (an optional extra)
    except ImportError:
        return []
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    made = []
    for workload in dict.fromkeys(cell.workload for cell in results.cells):
        cells = [cell for cell in results.cells if cell.workload == workload and cell.rounds and cell.histogram().count]
        if not cells:
            continue
        figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5))
        _percentiles(left, cells)
        _over_time(right, cells)
        figure.suptitle(f"({workload})")
        path = folder / f"{name}-{workload}.png"
        figure.savefig(path, dpi=110, bbox_inches="tight")
        plt.close(figure)
        made.append(path)
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
        axes.plot([index / 10 for index in range(len(counts))], [count * 10 for count in counts], label=cell.peer)
    axes.set_xlabel("s, first round")
    axes.set_ylabel("answers/s")
