"""The machine that a result belongs to, and its limits without any server."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from tpc_broker.bench.compiled import SOURCES, program
from tpc_broker.bench.histogram import Histogram
from tpc_broker.engine.backend import choose_backend, described


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def _line(path: str, key: str) -> str:
    for line in _text(path).splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return "unknown"


def git_commit() -> str:
    """The commit of the source tree, with `+changes` when the tree differs from it."""
    try:
        asked = ["git", "-C", str(SOURCES.parent), "describe", "--always", "--dirty=+changes", "--abbrev=12"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe(data: Path) -> dict[str, Any]:
    """What a reader must know to compare with another machine."""
    mount = subprocess.run(["df", "--output=fstype,size", data], capture_output=True, text=True, check=False).stdout
    return {
        "cpu": _line("/proc/cpuinfo", "model name"),
        "cpus": os.cpu_count(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "memory": _line("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "backend": described(choose_backend()),
        "python": platform.python_version(),
        "file_system": " ".join(mount.split()[-2:]),
        "load_average_at_start": os.getloadavg(),
        "commit": git_commit(),
    }


def _run(name: str, *arguments: object) -> tuple[dict[str, Any], Histogram]:
    """What one of the C programs found, and its histogram."""
    command = [str(program(name)), *map(str, arguments)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found, Histogram((bucket, count) for bucket, count in found["histogram"])


def limits(folder: Path, *, writes: int = 2000, mib: int = 512, round_trips: int = 5000) -> dict[str, Any]:
    """Durable writes of 4 KiB in turn, sequential ones of 1 MiB, one TCP stream over loopback, round trips of 100 B."""
    disk, durable = _run("disk_limit", folder / "disk-limit", writes, mib)
    loopback, trips = _run("loopback_limit", 4 * mib, round_trips)
    return {
        "durable_4k_write_us": durable.percentiles_us(),
        "sequential_mb_per_s": round(disk["sequential_bytes"] / disk["sequential_ns"] * 1000, 1),
        "loopback_stream_mb_per_s": round(loopback["stream_bytes"] / loopback["stream_ns"] * 1000, 1),
        "loopback_round_trip_us": trips.percentiles_us(),
    }
