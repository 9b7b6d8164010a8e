"""Rounds that read: catch-up, followers, and the time from producing to having consumed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.load import KAFKA_FETCH, Plan, RunningLoad, run_load
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload, check_stored, make_round
from tpc_broker.bench.page_cache import cached_share, drop_cached
from tpc_broker.bench.peers import Shape

if TYPE_CHECKING:
    from tpc_broker.bench.load import LoadResult
    from tpc_broker.bench.measured import Runner

STORED: Final = "stored"
"""The topic that is filled once per stage."""
STORED_PARTITIONS: Final = 8
_FILLING: Final = Shape(16, 16, 15, 1024, STORED_PARTITIONS)
"""Batches of almost 16 KiB, which is what producers make unless told otherwise."""
_FIRST_LAP_GB_MAX: Final = 6.0
"""What "just written" means, where there is memory for it."""
_FILL_S_MAX: Final = 600.0
_READ_S_MAX: Final = 300.0
_DEPTH_OPEN_LOOP: Final = 2048
"""Requests under way per connection in open loop: more than ever wait, so that the intended times hold."""


def fill(stage: Stage) -> dict[int, int]:
    """End offsets of the topic that holds the stage's gigabytes; filled when it is first asked for."""
    if not stage.ends:
        stage.ends.update(_write(stage, STORED, _FILLING, stage.extent.gigabytes))
    return stage.ends


def _write(stage: Stage, topic: str, shape: Shape, gigabytes: float) -> dict[int, int]:
    """So many of values; the end offsets then."""
    plan = stage.kafka_like.produce_plan(topic, shape, (0.0, _FILL_S_MAX))
    request_bytes = shape.records_per_request * shape.value_bytes
    found = run_load(replace(plan, requests_max=max(1, round(gigabytes * 1e9 / request_bytes))))
    check_stored(stage.peer, topic, found.requests_all * shape.records_per_request)
    return stage.kafka_like.end_offsets(topic, shape.partitions)


def read_all(  # noqa: PLR0913 - what is read, and how
    stage: Stage, topic: str, ends: dict[int, int], readers: int, fetch_bytes: int, *, is_committed_only: bool = False
) -> Round:
    """Every partition from its start to its end, and that all of it came."""
    fetches = stage.kafka_like.fetches(
        topic, len(ends), readers, bytes_max=fetch_bytes, ends=ends, is_committed_only=is_committed_only
    )
    before_s = stage.server.cpu_s()
    found = run_load(Plan(KAFKA_FETCH, fetches=fetches, warm_up_s=0.0, measure_s=_READ_S_MAX))
    used_s = stage.server.cpu_s() - before_s
    wanted = sum(ends[index % len(ends)] for index in range(readers))
    if found.records_all != wanted:
        raise CountsDiffer(f"{stage.peer.label}: {found.records_all} records were read, {wanted} are there")
    fetches_all = max(1, found.requests_all)
    return make_round(
        found,
        stage,
        records=found.records_all / fetches_all,
        value_bytes=found.data_bytes_all / fetches_all,
        used_cpu_s=used_s,
    )


def catch_up_warm(workload: Workload, stage: Stage) -> Round:
    """Every partition is read from its start by a connection of its own, out of the page cache.

    A pass before puts it there, where there is memory for it.
    """
    if "is_warm" not in stage.facts:
        _read_stored(workload, stage)
        stage.facts["is_warm"] = 1.0
    cached = cached_share(stage.peer.folder, ".log")
    made = _read_stored(workload, stage)
    made.extra = {"cached_before_percent": 100 * cached, "stored_gb": stage.extent.gigabytes}
    return made


def catch_up_cold(workload: Workload, stage: Stage) -> Round:
    """The same from the disk: what the page cache has of the server's files is dropped before."""
    fill(stage)
    stage.facts.pop("is_warm", None)
    drop_cached(stage.peer.folder)
    cached = cached_share(stage.peer.folder, ".log")
    made = _read_stored(workload, stage)
    made.extra = {"cached_before_percent": 100 * cached, "stored_gb": stage.extent.gigabytes}
    return made


def _read_stored(workload: Workload, stage: Stage) -> Round:
    return read_all(stage, STORED, fill(stage), workload.count, workload.shape.value_bytes)


def first_lap(fetch_bytes: int) -> Runner:
    """What was just written is read from its beginning, each partition by a connection, by nobody before."""

    def run(workload: Workload, stage: Stage) -> Round:
        gigabytes = min(stage.extent.gigabytes, _FIRST_LAP_GB_MAX)
        ends = _write(stage, "first-lap", workload.shape, gigabytes)
        cached = cached_share(stage.peer.folder, ".log")
        made = read_all(stage, "first-lap", ends, workload.count, fetch_bytes)
        made.extra = {"cached_before_percent": 100 * cached, "stored_gb": gigabytes}
        return made

    return run


def tail(workload: Workload, stage: Stage) -> Round:
    """`count` connections follow one partition while an open-loop producer writes to it."""
    peer, shape, topic = stage.kafka_like, workload.shape, f"tail-{workload.count}"
    time_s = stage.extent.warm_up + stage.extent.measured
    producing = peer.produce_plan(topic, shape, (0.0, time_s))
    fetches = peer.fetches(topic, 1, workload.count, bytes_max=1 << 20)
    before_s = stage.server.cpu_s()
    with RunningLoad(Plan(KAFKA_FETCH, fetches=fetches, warm_up_s=0.0, measure_s=time_s + 2.0)) as readers:
        time.sleep(0.3)
        written = run_load(producing)
        read = readers.result()
    used_s = stage.server.cpu_s() - before_s
    records = written.requests_all * shape.records_per_request
    check_stored(peer, topic, records)
    _check_read(stage, read, records * workload.count)
    made = make_round(
        written,
        stage,
        records=shape.records_per_request,
        value_bytes=shape.records_per_request * shape.value_bytes,
        used_cpu_s=used_s,
    )
    made.extra = {"server_cpu_s": round(used_s, 3), "records_read": read.records_all}
    return made


def _check_read(stage: Stage, read: LoadResult, wanted: int) -> None:
    if read.records_all != wanted:
        raise CountsDiffer(f"{stage.peer.label}: of {wanted} records readers got {read.records_all}")


def produce_and_consume(workload: Workload, stage: Stage, topic: str, rate: float) -> tuple[LoadResult, float]:
    """A sender and a follower per partition; `rate` 0: as fast as it goes. With it, the CPU seconds of the server."""
    peer, shape = stage.kafka_like, workload.shape
    times = (stage.extent.warm_up, stage.extent.measured)
    plan = peer.produce_plan(topic, shape, times)
    followers = peer.fetches(topic, shape.partitions, shape.partitions, bytes_max=1 << 20, is_paired=True)
    depth = _DEPTH_OPEN_LOOP if rate else shape.depth
    before_s = stage.server.cpu_s()
    found = run_load(replace(plan, fetches=followers, depth=depth, rate=rate))
    used_s = stage.server.cpu_s() - before_s
    records = found.requests_all * shape.records_per_request
    check_stored(peer, topic, records)
    _check_read(stage, found, records)
    return found, used_s


def maximum(workload: Workload, stage: Stage) -> Round:
    """As many requests as are answered, and their records read, in the measured time.

    In closed loop, for every server: what is under way is bounded, so the figure is a rate that the server can hold. In
    open loop it would depend on how long a queue the generator lets grow.
    """
    found, used_s = produce_and_consume(workload, stage, "maximum", 0.0)
    made = make_round(found, stage, records=1, value_bytes=workload.shape.value_bytes, used_cpu_s=used_s)
    read_per_s = found.records / stage.extent.measured
    stage.facts["maximum"] = min(found.requests_per_s, read_per_s)
    made.extra = {"records_read_per_s": read_per_s}
    return made


def end_to_end(workload: Workload, stage: Stage) -> Round:
    """Latency from the moment a record was due to its arrival at a consumer, at a share of the maximum."""
    if "maximum" not in stage.facts:
        maximum(workload, stage)
    rate = max(1.0, stage.facts["maximum"] * workload.share)
    found, used_s = produce_and_consume(workload, stage, f"load-{workload.key}", rate)
    if found.end_to_end.count == 0:
        raise CountsDiffer(f"{stage.peer.label}: no record that was due in the measured time arrived")
    made = make_round(found, stage, records=1, value_bytes=workload.shape.value_bytes, used_cpu_s=used_s)
    made.extra = {
        "acknowledged_p50_us": made.latency_us["50"],
        "acknowledged_p99_us": made.latency_us["99"],
        "sent_late_p50_us": found.lateness.percentiles_us()["50"],
        "sent_late_p99_us": found.lateness.percentiles_us()["99"],
    }
    made.latency_us = found.end_to_end.percentiles_us()
    made.buckets = found.end_to_end.buckets()
    return made
