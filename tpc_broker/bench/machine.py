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
        "python": platform.python_version(),
        "file_system": " ".join(mount.split()[-2:]),
        "load_average_at_start": os.getloadavg(),
        "commit": git_commit(),
    }


def disk_limits(folder: Path, *, writes: int = 2000, sequential_mib: int = 512) -> dict[str, Any]:
    """Durable 4 KiB writes one after the other, and sequential durable writes of 1 MiB."""
    command = [str(program("disk_limit")), str(folder / "disk-limit"), str(writes), str(sequential_mib)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    histogram = Histogram((bucket, count) for bucket, count in found["histogram"])
    return {
        "durable_4k_write_us": histogram.percentiles_us(),
        "sequential_mb_per_s": round(found["sequential_bytes"] / found["sequential_ns"] * 1000, 1),
    }
