"""What others do beside a measurement is seen, and a report says so."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.bench.test_report import some_results
from tests.support.waiting import eventually
from tpc_broker.bench.others import NOTED_FROM_CPUS, Others, machine_cpu_s
from tpc_broker.bench.server import Server
from tpc_broker.bench.table import render

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BUSY = [sys.executable, "-c", "while True: pass"]


def used_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def wait_until_it_used(pid: int, ticks: int) -> None:
    eventually(lambda: used_ticks(pid) >= ticks, "it has worked")


def test_idle_time_and_waits_for_the_disk_are_no_work() -> None:
    ticks = "cpu 100 20 3 5000 600 7 8 9 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert machine_cpu_s(ticks) == (100 + 20 + 3 + 7 + 8) / TICKS_PER_S


def test_a_process_that_is_nobody_s_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("tpc_broker.bench.others.time", SimpleNamespace(monotonic=lambda: now_s))
    others = Others(None)
    now_s += 2
    with subprocess.Popen(BUSY) as stranger:
        wait_until_it_used(stranger.pid, 30)
        cpus = others.cpus()
        stranger.kill()
    assert cpus * 2 >= 25 / TICKS_PER_S


def test_the_server_s_work_does_not_count(tmp_path: Path) -> None:
    """The same process, once as a stranger and once as the server: the difference is its work."""
    server = Server(BUSY, tmp_path / "log")
    server.start(())
    try:
        (pid,) = server.pids()
        as_stranger, as_server = Others(None), Others(server)
        wait_until_it_used(pid, used_ticks(pid) + 50)
        seen, left = as_stranger.cpus(), as_server.cpus()
        assert left < seen
    finally:
        server.kill()
    assert as_server.cpus() == 0.0, "what a process used that has ended is not known"


def test_a_round_that_was_not_alone_says_so() -> None:
    results = some_results()
    assert "not alone" not in render(results)
    results.cells[0].rounds[1].others_cpus = 2 * NOTED_FROM_CPUS
    row = next(line for line in render(results).splitlines() if "not alone" in line)
    assert row.startswith("| tpc durable")
    assert "others used up to 0.50 CPUs" in row
