"""What a run found: rounds, their medians with spread, and the JSON file."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.measured import Round

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

SUMMED_UP = ("requests_per_s", "records_per_s", "mb_per_s", "cpu_s_per_gb", "cpu_us_per_request", "resident_mib")
"""Fields of a round whose medians and spreads stand in the file."""


@dataclass(frozen=True)
class Spread:
    """The median of some rounds with the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass
class Cell:
    """One peer under one workload."""

    workload: str
    peer: str
    is_durable: bool
    rounds: list[Round] = field(default_factory=list)

    def spread(self, value: Callable[[Round], float]) -> Spread:
        return Spread.of([value(one) for one in self.rounds])

    def histogram(self) -> Histogram:
        """All rounds together."""
        whole = Histogram()
        for one in self.rounds:
            whole.merge(Histogram(one.buckets))
        return whole


@dataclass
class Results:
    machine: dict[str, Any]
    settings: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    """Reasons, by `peer` or `peer / workload`."""
    cells: list[Cell] = field(default_factory=list)

    def cell(self, workload: str, peer: str) -> Cell | None:
        found = (cell for cell in self.cells if (cell.workload, cell.peer) == (workload, peer) and cell.rounds)
        return next(found, None)

    def to_json(self) -> str:
        whole = asdict(self)
        for cell, row in zip(self.cells, whole["cells"], strict=True):
            if not cell.rounds:
                continue
            row["latency_us_of_all_rounds"] = cell.histogram().percentiles_us()
            row["medians"] = {name: asdict(cell.spread(attrgetter(name))) for name in SUMMED_UP}
        return json.dumps(whole, separators=(",", ":"))

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> Results:
        whole = json.loads(path.read_text())
        cells = []
        for row in whole.pop("cells"):
            rounds = [Round(**one) for one in row["rounds"]]
            cells.append(Cell(row["workload"], row["peer"], row["is_durable"], rounds))
        return cls(**whole, cells=cells)
