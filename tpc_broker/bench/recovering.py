"""Rounds that kill a server with its data on the disk and wait until it serves again."""

from __future__ import annotations

import time
from typing import Final

from tpc_broker.bench.consuming import STORED, fill
from tpc_broker.bench.kafka_requests import list_end_offset
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload, check_stored, figures_round

_DEADLINE_S: Final = 120.0
_PAUSE_S: Final = 0.005


def recovery(workload: Workload, stage: Stage) -> Round:
    """`kill -9`, then seconds from the start of the process until every partition's leader tells its right end.

    A record is written afterwards, so that what serves takes writes as well.
    """
    del workload
    ends, peer = dict(fill(stage)), stage.kafka_like
    leaders = peer.leaders(STORED)
    peer.kill()
    began = time.monotonic()
    peer.start()
    listening_s = time.monotonic() - began
    for partition, end in ends.items():
        while (found := list_end_offset(leaders[partition], STORED, partition)) != end:
            if found is not None and found > end:
                raise CountsDiffer(f"{peer.label}: {STORED}-{partition} ended at {end}, now at {found}")
            if time.monotonic() - began > _DEADLINE_S:
                raise LoadFailed(f"{peer.label}: {STORED}-{partition} ends at {found} and not at {end}")
            time.sleep(_PAUSE_S)
    serving_s = time.monotonic() - began
    check_stored(peer, STORED, sum(ends.values()))
    return figures_round(
        stage,
        {
            "listening_s": round(listening_s, 3),
            "serving_s": round(serving_s, 3),
            "stored_gb": stage.extent.gigabytes,
            "cpu_s": stage.server.cpu_s(),
        },
    )
