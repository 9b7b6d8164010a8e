"""A whole run: peers in turn, each under all workloads, round after round, so that a slow minute meets everybody.

Each peer is started anew for each round of each workload (on an empty folder), which keeps what one leaves behind away
from the next.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tpc_broker.bench import machine
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.peers import Peer, kinds
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.results import Cell, Results
from tpc_broker.bench.server import PeerUnavailable, ServerFailed
from tpc_broker.bench.workloads import WORKLOADS, CountsDiffer, Seconds, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Settings:
    workloads: tuple[str, ...] = ()
    """Keys; none: the selection of at most ten minutes."""
    peers: tuple[str, ...] = ()
    """`peer` or `peer mode`; none: all."""
    rounds: int = 3
    warm_up_s: float = 1.0
    measured_s: float = 4.0
    minutes_max: float = 0.0
    """No round is begun that would end later, as the one before took; 0: no such limit. One round is always made."""
    cores: int = 1
    folder: Path | None = None
    """Where the servers keep their data: it must lie on the disk to be measured."""
    note: str = ""


def chosen_workloads(settings: Settings) -> list[Workload]:
    if not settings.workloads:
        return [workload for workload in WORKLOADS if workload.is_brief]
    found = [
        workload
        for workload in WORKLOADS
        if any(workload.key == key or workload.key.startswith(f"{key}-") or key == "all" for key in settings.workloads)
    ]
    if not found:
        raise ValueError(f"no such workload; there are {', '.join(one.key for one in WORKLOADS)}")
    return found


def chosen_peers(settings: Settings) -> list[tuple[type[Peer], str]]:
    everything = [(kind, mode) for kind in kinds().values() for mode in kind.modes]
    if not settings.peers:
        return everything
    found = [(kind, mode) for kind, mode in everything if {kind.name, f"{kind.name} {mode}"} & set(settings.peers)]
    if not found:
        raise ValueError(f"no such peer; there are {', '.join(f'{kind.name} {mode}' for kind, mode in everything)}")
    return found


class Run:
    """Fills a `Results`; what fails is left out with its reason, and the rest goes on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._began = time.monotonic()
        self.base = Path(tempfile.mkdtemp(prefix="tpc-bench-", dir=settings.folder))
        seconds = f"{settings.warm_up_s:g} s warm-up, {settings.measured_s:g} s measured"
        told = {"rounds": settings.rounds, "round": seconds, "tpc_cores": settings.cores, "load": "raw generator in C"}
        if settings.note:
            told["note"] = settings.note
        self.results = Results(machine.describe(self.base), told)

    def one_round(self, cell: Cell, kind: type[Peer], mode: str, workload: Workload) -> None:
        folder = self.base / "peer"
        peer = kind(folder, mode)
        try:
            peer.start()
            if peer.server is not None:
                peer.server.settle()
            self.results.versions.setdefault(kind.name, peer.version())
            seconds = Seconds(max(self.settings.warm_up_s, kind.warm_up_s_min), self.settings.measured_s)
            cell.rounds.append(workload.run(workload, peer, "load", seconds))
        finally:
            peer.kill()
            shutil.rmtree(folder, ignore_errors=True)

    def steps(self) -> list[tuple[Cell, type[Peer], str, Workload]]:
        found = []
        for workload in chosen_workloads(self.settings):
            for kind, mode in chosen_peers(self.settings):
                if workload.needs_kafka and not kind.speaks_kafka:
                    continue
                cell = Cell(workload.key, f"{kind.name} {mode}", kind.modes[mode])
                self.results.cells.append(cell)
                found.append((cell, kind, mode, workload))
        return found

    def run(self) -> Results:
        TpcPeer.cores_count = self.settings.cores
        steps = self.steps()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
                bar = progress.add_task("limits of the disk", total=len(steps) * self.settings.rounds)
                self.results.limits = machine.disk_limits(self.base)
                for number in range(self.settings.rounds):
                    if not self._has_time(number):
                        break
                    self.results.settings["rounds"] = number + 1
                    for cell, kind, mode, workload in steps:
                        progress.update(bar, description=f"round {number + 1}: ({workload.key}) {cell.peer}")
                        self._try(cell, kind, mode, workload)
                        progress.advance(bar)
        finally:
            shutil.rmtree(self.base, ignore_errors=True)
        return self.results

    def _has_time(self, rounds_made: int) -> bool:
        if rounds_made == 0 or self.settings.minutes_max == 0:
            return True
        used_s = time.monotonic() - self._began
        return used_s + used_s / rounds_made <= self.settings.minutes_max * 60

    def _try(self, cell: Cell, kind: type[Peer], mode: str, workload: Workload) -> None:
        if kind.name in self.results.skipped:
            return
        try:
            self.one_round(cell, kind, mode, workload)
        except PeerUnavailable as reason:
            self.results.skipped[kind.name] = str(reason)
        except (ServerFailed, LoadFailed, CountsDiffer) as reason:
            self.results.skipped[f"{cell.peer} / ({workload.key})"] = str(reason)


def write_report(results: Results, name: str, folder: Path, lines: Sequence[str] = ()) -> list[Path]:
    """NAME.json, NAME.md and, where matplotlib is installed, NAME-*.png."""
    from tpc_broker.bench.plots import draw  # noqa: PLC0415 (an optional extra)
    from tpc_broker.bench.table import render  # noqa: PLC0415

    results.save(folder / f"{name}.json")
    report = folder / f"{name}.md"
    report.write_text(render(results) + "".join(lines))
    return [folder / f"{name}.json", report, *draw(results, name, folder)]
