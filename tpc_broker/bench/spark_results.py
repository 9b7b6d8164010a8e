"""What a run of `tpc bench spark` found, its bars, and the report."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.results import Spread
from tpc_broker.bench.table import markdown, number

if TYPE_CHECKING:
    from pathlib import Path

PARTS: Final = {
    "read": "Reading to `noop`",
    "archive": "To Parquet",
    "sink": "Writing to a topic",
}


@dataclass(frozen=True)
class Round:
    """One job. `spark_cpu_s`: the JVM and its Python workers; `server_cpu_s`: the broker that it talks to."""

    seconds: float
    spark_cpu_s: float
    server_cpu_s: float


@dataclass
class Cell:
    """One kind of job; its warm rounds only."""

    key: str
    title: str
    part: str
    rows: int
    log_bytes: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def rows_per_s(self) -> Spread:
        return Spread.of([self.rows / one.seconds for one in self.rounds])

    @property
    def mb_per_s(self) -> float:
        """Of the log, at the median."""
        return self.log_bytes / 1e6 / self.rows * self.rows_per_s.median

    def cpu_us_per_row(self, name: str) -> float:
        return Spread.of([getattr(one, name) for one in self.rounds]).median / self.rows * 1e6


@dataclass(frozen=True)
class Bar:
    """`ours` in rows/s is at least `limit` times `other`."""

    ours: str
    limit: float
    other: str


BARS: Final = (
    Bar("broker", 1.5, "connector-tpc"),
    Bar("broker", 1.5, "connector-kafka"),
    Bar("files", 2.0, "connector-tpc"),
    Bar("files", 2.0, "connector-kafka"),
    Bar("files", 0.7, "ready"),
    Bar("archive", 0.8, "parquet-ready"),
    Bar("sink", 1.0, "sink-connector-tpc"),
    Bar("sink", 1.0, "sink-connector-kafka"),
)
ARCHIVE_MB_PER_CORE: Final = 100.0
"""Of log; an archive that is so fast needs no comparison."""
LIMITS: Final = {"read": "ready", "archive": "parquet-ready", "sink": "sink-discarded"}
"""What bounds the others of a part: the same without the work that is ours."""


@dataclass
class SparkResults:
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    cells: list[Cell] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Jobs that Spark gave up, one line each time; their other rounds count."""

    def cell(self, key: str) -> Cell | None:
        return next((cell for cell in self.cells if cell.key == key and cell.rounds), None)

    @property
    def cores(self) -> int:
        return int(self.settings["cores"])

    def to_json(self) -> str:
        whole = asdict(self)
        for cell, row in zip(self.cells, whole["cells"], strict=True):
            if cell.rounds:
                row["rows_per_s"] = asdict(cell.rows_per_s)
                row["mb_per_s_per_core"] = round(cell.mb_per_s / self.cores, 1)
        whole["bars"] = bar_rows(self)
        return json.dumps(whole, indent=1)

    @classmethod
    def load(cls, path: Path) -> SparkResults:
        whole = json.loads(path.read_text())
        del whole["bars"]
        cells = []
        for row in whole.pop("cells"):
            rounds = [Round(**one) for one in row.pop("rounds")]
            cells.append(Cell(row["key"], row["title"], row["part"], row["rows"], row["log_bytes"], rounds))
        return cls(**whole, cells=cells)


def bar_rows(results: SparkResults) -> list[list[str]]:
    """Bars for which there are figures: what, ratio, bar, the limit's own ratio, met or missed."""
    rows = []
    for bar in BARS:
        ours, other = results.cell(bar.ours), results.cell(bar.other)
        if ours is None or other is None:
            continue
        ratio = ours.rows_per_s.median / other.rows_per_s.median
        top = results.cell(LIMITS[ours.part])
        possible = f"{top.rows_per_s.median / other.rows_per_s.median:.2f}" if top else ""
        verdict = "met" if ratio >= bar.limit else "MISSED"
        rows.append([ours.title, f"{ratio:.2f}", f"≥ {bar.limit:g} x {other.title}", possible, verdict])
    archive = results.cell("archive")
    if archive is not None:
        figure, top = archive.mb_per_s / results.cores, results.cell("parquet-ready")
        possible = f"{top.mb_per_s / results.cores:.0f}" if top else ""
        verdict = "met" if figure >= ARCHIVE_MB_PER_CORE else "MISSED"
        wanted = f"or ≥ {ARCHIVE_MB_PER_CORE:g} MB/s of log per core"
        rows.append([archive.title, f"{figure:.0f}", wanted, possible, verdict])
    return rows


def _row(cell: Cell, results: SparkResults) -> list[str]:
    rates = cell.rows_per_s
    top = results.cell(LIMITS[cell.part])
    return [
        cell.title,
        f"{rates.median / 1e6:.2f} ({rates.low / 1e6:.2f}-{rates.high / 1e6:.2f})",
        number(cell.mb_per_s),
        number(cell.mb_per_s / results.cores),
        f"{rates.median / top.rows_per_s.median:.0%}" if top else "",
        number(cell.cpu_us_per_row("spark_cpu_s")),
        number(cell.cpu_us_per_row("server_cpu_s")),
    ]


def render(results: SparkResults) -> str:
    """The whole report in Markdown."""
    lines = [f"# Spark benchmark of {results.machine.get('commit', 'unknown')}", ""]
    if note := results.settings.get("note"):
        lines += [f"**{note}**", ""]
    for told in (results.machine, results.settings, results.versions):
        lines += [f"- {name}: {value}" for name, value in told.items() if name != "note"]
    lines += [f"- not measured: {name}: {reason}" for name, reason in results.skipped.items()]
    lines += [f"- failed once: {job}" for job in results.failed]
    if rows := bar_rows(results):
        head = ["what", "figure", "bar", "what the limit would have", ""]
        lines += ["", "## Bars", "", *markdown(head, rows)]
    head = ["job", "M rows/s", "MB/s of log", "MB/s per core", "of the limit", "Spark CPU µs/row", "server CPU µs/row"]
    for part, title in PARTS.items():
        cells = [cell for cell in results.cells if cell.part == part and cell.rounds]
        if cells:
            lines += ["", f"## {title}", "", *markdown(head, [_row(cell, results) for cell in cells])]
    return "\n".join(lines) + "\n"


def draw(results: SparkResults, path: Path) -> list[Path]:
    """One picture with a bar per job, the spread on it, and each part's limit as a line; none without matplotlib."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (an optional extra)
    except ImportError:
        return []
    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    parts = [part for part in PARTS if any(cell.part == part and cell.rounds for cell in results.cells)]
    if not parts:
        return []
    figure, all_axes = plt.subplots(1, len(parts), figsize=(5 * len(parts), 4.5), squeeze=False)
    for axes, part in zip(all_axes[0], parts, strict=True):
        cells = [cell for cell in results.cells if cell.part == part and cell.rounds]
        rates = [cell.rows_per_s for cell in cells]
        places = list(range(len(cells)))
        axes.bar(places, [rate.median / 1e6 for rate in rates])
        low = [(rate.median - rate.low) / 1e6 for rate in rates]
        high = [(rate.high - rate.median) / 1e6 for rate in rates]
        axes.errorbar(places, [rate.median / 1e6 for rate in rates], yerr=[low, high], fmt="none", ecolor="black")
        if top := results.cell(LIMITS[part]):
            axes.axhline(top.rows_per_s.median / 1e6, linestyle="--", color="grey")
        axes.set_xticks(places, [cell.key for cell in cells], rotation=30, ha="right")
        axes.set_title(PARTS[part].replace("`", ""))
        axes.set_ylabel("million rows/s")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)
    return [path]


def write_report(results: SparkResults, name: str, folder: Path) -> list[Path]:
    """NAME.json, NAME.md and, where matplotlib is installed, NAME.png."""
    folder.mkdir(parents=True, exist_ok=True)
    data, report = folder / f"{name}.json", folder / f"{name}.md"
    data.write_text(results.to_json() + "\n")
    picture = draw(results, folder / f"{name}.png")
    report.write_text(render(results) + "".join(f"\n![{name}]({one.name})\n" for one in picture))
    return [data, report, *picture]
