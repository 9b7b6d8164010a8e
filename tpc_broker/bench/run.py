"""A whole run: peers in turn, each under all workloads, round after round, so that a slow minute meets everybody.

Each peer is started anew for each round of each workload (on an empty folder), which keeps what one leaves behind away
from the next; workloads of one group share a start.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tpc_broker.bench import machine
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import CountsDiffer, Extent, Stage, Workload
from tpc_broker.bench.others import Others
from tpc_broker.bench.peers import Peer, kinds
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.results import Cell, Results
from tpc_broker.bench.server import PeerUnavailable, ServerFailed
from tpc_broker.bench.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FAULTS: Final = (50, 50, 50)
_FAULTS_BRIEF: Final = (2, 2, 2)


@dataclass(frozen=True)
class Settings:
    workloads: tuple[str, ...] = ()
    """Keys; none: the selection of about a quarter of an hour."""
    peers: tuple[str, ...] = ()
    """`peer` or `peer mode`; none: all."""
    rounds: int = 3
    warm_up_s: float = 1.0
    measured_s: float = 4.0
    gigabytes: float = 10.0
    """Stored before a catch-up or a recovery."""
    soak_minutes: float = 0.0
    """Above 0: the soak, for so long, beside what else is chosen."""
    faults: tuple[int, int, int] | None = None
    """Kills, pauses and isolations of nodes; None: 50 each, 2 each in the selection of about a quarter of an hour."""
    minutes_max: float = 0.0
    """No round is begun that would end later, as the one before took; 0: no such limit. One round is always made."""
    cores: int = 1
    folder: Path | None = None
    """Where the servers keep their data: it must lie on the disk to be measured."""
    note: str = ""


def chosen_workloads(settings: Settings) -> list[Workload]:
    """Those that are named, or whose names begin so; none named: the brief selection. The soak when it has minutes."""
    soaks = [one for one in WORKLOADS if one.is_asked_for and settings.soak_minutes > 0]
    if not settings.workloads:
        return soaks or [workload for workload in WORKLOADS if workload.brief]
    found = [workload for workload in WORKLOADS if _is_named(workload, settings.workloads)]
    if not found:
        raise ValueError(f"no such workload; there are {', '.join(one.key for one in WORKLOADS)}")
    return found + [one for one in soaks if one not in found]


def _is_named(workload: Workload, names: Sequence[str]) -> bool:
    by_all = "all" in names and not workload.is_asked_for
    return by_all or any(workload.key == name or workload.key.startswith(f"{name}-") for name in names)


def chosen_peers(settings: Settings) -> list[tuple[type[Peer], str]]:
    everything = [(kind, mode) for kind in kinds().values() for mode in kind.modes]
    if not settings.peers:
        return everything
    found = [(kind, mode) for kind, mode in everything if {kind.name, f"{kind.name} {mode}"} & set(settings.peers)]
    if not found:
        raise ValueError(f"no such peer; there are {', '.join(f'{kind.name} {mode}' for kind, mode in everything)}")
    return found


@dataclass(frozen=True)
class Step:
    """One peer and the workloads that share a start of it, each with its cell."""

    kind: type[Peer]
    mode: str
    workloads: tuple[tuple[Workload, Cell], ...]


class Run:
    """Fills a `Results`; what fails is left out with its reason, and the rest goes on."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._began = time.monotonic()
        self.base = Path(tempfile.mkdtemp(prefix="tpc-bench-", dir=settings.folder))
        seconds = f"{settings.warm_up_s:g} s warm-up, {settings.measured_s:g} s measured"
        told: dict[str, object] = {"rounds": settings.rounds, "round": seconds, "tpc_cores": settings.cores}
        told |= {"stored_gb": settings.gigabytes, "load": "raw generator in C, librdkafka where it is named"}
        if settings.note:
            told["note"] = settings.note
        self.results = Results(machine.describe(self.base), told)

    def one_round(self, step: Step, told: Callable[[Workload], None] = lambda _: None) -> None:
        """All workloads of a step; `told` hears of each before it begins. What fails ends the step."""
        folder = self.base / "peer"
        stage = Stage(step.kind(folder, step.mode), self._extent(step.kind))
        try:
            if step.workloads[0][0].needs_server:
                stage.peer.start()
                stage.server.settle()
                self._note_remark(step, stage.peer.remark())
            self.results.versions.setdefault(step.kind.name, stage.peer.version())
            for workload, cell in step.workloads:
                told(workload)
                try:
                    others = Others(stage.peer.server)
                    made = workload.run(workload, stage)
                    made.others_cpus = round(others.cpus(), 2)
                    cell.rounds.append(made)
                except (ServerFailed, LoadFailed, CountsDiffer) as reason:
                    self.results.skipped[f"{cell.peer} / {workload.key}"] = str(reason)
                    return
        finally:
            stage.close()
            shutil.rmtree(folder, ignore_errors=True)

    def _note_remark(self, step: Step, remark: str) -> None:
        if remark:
            label = f"starts of {step.kind.name} {step.mode} with {remark}"
            self.results.settings[label] = self.results.settings.get(label, 0) + 1

    def _extent(self, kind: type[Peer]) -> Extent:
        settings = self.settings
        warm_up_s = max(settings.warm_up_s, kind.warm_up_s_min)
        faults = settings.faults or (_FAULTS if settings.workloads else _FAULTS_BRIEF)
        return Extent(warm_up_s, settings.measured_s, settings.gigabytes, settings.soak_minutes, faults)

    def steps(self) -> list[Step]:
        """In the order of the workloads; a group stands where its first one does."""
        only_brief = not self.settings.workloads and not self.settings.soak_minutes
        found: dict[tuple[str, str], Step] = {}
        for workload in chosen_workloads(self.settings):
            for kind, mode in chosen_peers(self.settings):
                label = f"{kind.name} {mode}"
                if not workload.suits(label, only_brief=only_brief):
                    continue
                cell = Cell(workload.key, label, kind.modes[mode])
                self.results.cells.append(cell)
                place = (workload.group or workload.key, label)
                before = found[place].workloads if place in found else ()
                found[place] = Step(kind, mode, (*before, (workload, cell)))
        return list(found.values())

    def run(self) -> Results:
        TpcPeer.cores_count = self.settings.cores
        steps = self.steps()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        try:
            with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
                total = sum(len(step.workloads) for step in steps) * self.settings.rounds
                bar = progress.add_task("limits of the disk and of loopback", total=total)
                self.results.limits = machine.limits(self.base)
                for number in range(self.settings.rounds):
                    if not self._has_time(number):
                        break
                    self.results.settings["rounds"] = number + 1
                    for step in steps:
                        self._try(step, partial(_tell, progress, bar, number + 1, step))
                        progress.update(bar, completed=self._made(steps, step, number))
        except KeyboardInterrupt:
            self.results.settings["interrupted"] = "by the user: what was measured until then"
        finally:
            shutil.rmtree(self.base, ignore_errors=True)
        return self.results

    @staticmethod
    def _made(steps: list[Step], last: Step, rounds_made: int) -> int:
        whole = sum(len(step.workloads) for step in steps) * rounds_made
        return whole + sum(len(step.workloads) for step in steps[: steps.index(last) + 1])

    def _has_time(self, rounds_made: int) -> bool:
        if rounds_made == 0 or self.settings.minutes_max == 0:
            return True
        used_s = time.monotonic() - self._began
        return used_s + used_s / rounds_made <= self.settings.minutes_max * 60

    def _try(self, step: Step, told: Callable[[Workload], None]) -> None:
        if step.kind.name in self.results.skipped:
            return
        try:
            self.one_round(step, told)
        except PeerUnavailable as reason:
            self.results.skipped[step.kind.name] = str(reason)
        except ServerFailed as reason:
            keys = ", ".join(workload.key for workload, _ in step.workloads)
            self.results.skipped[f"{step.kind.name} {step.mode} / ({keys})"] = str(reason)


def _tell(progress: Progress, bar: TaskID, number: int, step: Step, workload: Workload) -> None:
    what = f"round {number}: {workload.key}, {step.kind.name} {step.mode}"
    progress.update(bar, description=what)
    if progress.disable:  # no terminal: a line for each instead of a bar
        print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def write_report(results: Results, name: str, folder: Path, lines: Sequence[str] = ()) -> list[Path]:
    """NAME.json, NAME.md, NAME.html and, where matplotlib is installed, NAME-*.png."""
    from tpc_broker.bench.page import render_page  # noqa: PLC0415 (plots need an optional extra)
    from tpc_broker.bench.plots import draw  # noqa: PLC0415
    from tpc_broker.bench.table import render  # noqa: PLC0415

    results.save(folder / f"{name}.json")
    report = folder / f"{name}.md"
    report.write_text(render(results) + "".join(lines))
    page = folder / f"{name}.html"
    page.write_text(render_page(results))
    return [folder / f"{name}.json", report, page, *draw(results, name, folder)]
