"""The round that drives one core's storage without a network (`storage_shapes`), in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import Round, Stage, Workload

_SHAPES_S_MAX: Final = 300


def storage_shapes(workload: Workload, stage: Stage) -> Round:
    """Thousands of records per second for each size of a record: appended, durable at the end, and read and counted."""
    del workload
    command = [sys.executable, "-m", "tpc_broker.bench.storage_shapes", str(stage.peer.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SHAPES_S_MAX)
    if done.returncode:
        raise LoadFailed(done.stderr[-2000:])
    extra: dict[str, float] = {}
    for shape in json.loads(done.stdout):
        extra[f"append_{shape['value_bytes']}_krecords_per_s"] = shape["append_krecords_per_s"]
        extra[f"read_{shape['value_bytes']}_krecords_per_s"] = shape["read_krecords_per_s"]
    return Round(extra=extra)
