"""Rounds beside background work that never rests: what its share takes from requests.

A tail of one minute and one of the next are not of the same machine. So brokers with and without the work are started
in turn, and the ratio is that of the medians.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import ClassVar, Final

from tpc_broker.bench.load import run_load
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored
from tpc_broker.bench.peers.tpc import TpcPeer

SATURATE: Final = Path(__file__).parent / "saturate"
TASKS, STEP_US = 20, 100
"""Of the background; a step is what nobody can interrupt."""
_PAIRS: Final = 2


class _BusyPeer(TpcPeer):
    environment: ClassVar = {"PYTHONPATH": str(SATURATE), "TPC_SATURATE": f"{TASKS},{STEP_US}"}


def beside_background(workload: Workload, stage: Stage) -> Round:
    """The same load with and without a saturated queue `background`, at the default shares (1000 to 50)."""
    found: dict[str, list[dict[str, float]]] = {"alone": [], "beside": []}
    for pair in range(_PAIRS):
        for name, kind in (("alone", TpcPeer), ("beside", _BusyPeer)):
            peer = kind(stage.peer.folder / f"{name}-{pair}", "durable")
            try:
                peer.start()
                topic = f"load-{workload.key}"
                plan = peer.produce_plan(topic, workload.shape, (stage.extent.warm_up, stage.extent.measured))
                result = run_load(plan)
                check_stored(peer, topic, result.requests_all)
            finally:
                peer.kill()
            found[name].append(result.histogram.percentiles_us())
    extra = {}
    for name, percentiles in found.items():
        for percent in ("50", "99"):
            extra[f"p{percent} us {name}"] = round(median(one[percent] for one in percentiles), 1)
    extra["p99 beside / alone"] = round(extra["p99 us beside"] / extra["p99 us alone"], 2)
    return Round(extra=extra)
