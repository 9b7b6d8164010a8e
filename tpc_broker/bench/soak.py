"""The long round: a steady load that is read as it is written, with the server's memory once a second.

Topics keep a bounded number of bytes, so that retention works all the time and the disk does not fill.
"""

from __future__ import annotations

import statistics
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from tpc_broker.bench.load import run_load
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload, make_round

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK_EVERY_S: Final = 1.0
_GROWTH_SHARE: Final = 0.1
_GROWTH_BYTES: Final = 16 << 20
_WARM_UP_SHARE_MAX: Final = 0.1
_RETAINED: Final = {"segment.bytes": str(64 << 20), "retention.bytes": str(256 << 20)}
"""Per partition."""


class MemoryWatch:
    """Looks at the server's memory in a thread of its own. A context; `seen` holds (seconds, MiB)."""

    def __init__(self, stage: Stage) -> None:
        self.seen: list[tuple[float, float]] = []
        self._stage = stage
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(_LOOK_EVERY_S):
            resident_mib = self._stage.server.resident_bytes() / 2**20
            self.seen.append((round(time.monotonic() - began, 1), round(resident_mib, 2)))


def growth_mib(seen: Sequence[tuple[float, float]]) -> float:
    """The median of the last quarter above that of the second one; the first is warm-up. 0 with fewer than 8 looks."""
    quarter = len(seen) // 4
    if quarter < 2:
        return 0.0
    values = [value for _, value in seen]
    return statistics.median(values[-quarter:]) - statistics.median(values[quarter : 2 * quarter])


def is_growth(grown_mib: float, resident_mib: float) -> bool:
    """Whether so much is more than noise: over a tenth, and over 16 MiB."""
    return grown_mib * 2**20 > _GROWTH_BYTES and grown_mib > _GROWTH_SHARE * (resident_mib - grown_mib)


def soak(workload: Workload, stage: Stage) -> Round:
    """An open loop with a follower per partition for so many minutes; latencies are those from due to arrived."""
    shape, peer = workload.shape, stage.kafka_like
    peer.topic_extras = dict(_RETAINED)
    whole_s = stage.extent.soak_minutes * 60
    warm_up_s = min(stage.extent.warm_up, _WARM_UP_SHARE_MAX * whole_s)
    plan = peer.produce_plan("soak", shape, (warm_up_s, whole_s - warm_up_s))
    followers = peer.fetches("soak", shape.partitions, shape.partitions, bytes_max=1 << 20, is_paired=True)
    before_s = stage.server.cpu_s()
    with MemoryWatch(stage) as memory:
        found = run_load(replace(plan, fetches=followers))
    used_s = stage.server.cpu_s() - before_s
    records = found.requests_all * shape.records_per_request
    ends = sum(peer.end_offsets("soak", shape.partitions).values())
    if not records == ends == found.records_all:
        raise CountsDiffer(f"{peer.label}: {records} records acknowledged, {ends} there, {found.records_all} read")
    made = make_round(
        found,
        stage,
        records=shape.records_per_request,
        value_bytes=shape.records_per_request * shape.value_bytes,
        used_cpu_s=used_s,
    )
    made.latency_us = found.end_to_end.percentiles_us()
    made.buckets = found.end_to_end.buckets()
    grown_mib = growth_mib(memory.seen)
    made.series = {"resident MiB": memory.seen}
    made.extra = {
        "minutes": stage.extent.soak_minutes,
        "grown_mib": round(grown_mib, 1),
        "memory_grows": float(is_growth(grown_mib, made.resident_mib)),
    }
    return made
