"""Rounds of client libraries: ours on both loops beside aiokafka, confluent-kafka and its AIO classes.

Every library meets the same server in turn, `TURNS` times, in a process of its own (`client_libraries`); figures are
medians. The round's rates, CPU and latencies are those of our client on trio; CPU is the client's, not the server's.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.bars import CLIENT_CPU_PER_MB, CLIENT_OVER_RAW_US, CLIENT_PER_CPU_S
from tpc_broker.bench.client_libraries import LARGE, PARTITIONS, READS, SMALL
from tpc_broker.bench.load import LoadFailed, run_load
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored
from tpc_broker.bench.peers import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.bench.measured import Runner

TURNS: Final = 3
OURS: Final = "trio"
_OTHERS: Final = ("asyncio", "aiokafka", "confluent", "confluent-aio")
_LIMIT_S: Final = 300.0


def _run(library: str, load: str, bootstrap: str, topic: str, count: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "tpc_broker.bench.client_libraries", library, load, bootstrap, topic, str(count)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise LoadFailed(f"{library}: not done within {_LIMIT_S:g} s") from None
    if done.returncode:
        raise LoadFailed(f"{library}: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _in_turn(stage: Stage, workload: Workload, load: str, counts: dict[str, int]) -> dict[str, list[dict[str, Any]]]:
    """What each library told, turn by turn. Writers have a topic each time, readers one that was filled before."""
    reads = load in READS
    found: dict[str, list[dict[str, Any]]] = {library: [] for library in counts}
    bootstrap, topic = stage.kafka_like.bootstrap, f"load-{workload.key}"
    if reads:
        stage.kafka_like.create_topic(topic, PARTITIONS)
        _run("confluent", "post", bootstrap, topic, max(counts.values()))
    for turn in range(TURNS):
        for library, count in counts.items():
            place = topic if reads else f"{topic}-{library}-{turn}"
            if not reads:
                stage.kafka_like.create_topic(place, PARTITIONS)
            found[library].append(_run(library, load, bootstrap, place, count))
            if not reads:
                check_stored(stage.peer, place, count + count // 2 if load == "one" else count + _first_ones(library))
    return found


def _first_ones(library: str) -> int:
    """Records before the measured ones."""
    return 0 if library == "confluent-aio" else 1


def _made(stage: Stage, turns: Sequence[dict[str, Any]], value_bytes: int) -> Round:
    rate = median(one["records"] / one["seconds"] for one in turns)
    cpu_s = median(one["cpu_s"] / one["records"] for one in turns)
    middle = sorted(turns, key=lambda one: float(one["seconds"]))[len(turns) // 2]
    return Round(
        requests_per_s=round(rate, 1),
        records_per_s=round(rate, 1),
        mb_per_s=round(rate * value_bytes / 1e6, 3),
        latency_us=middle["latency_us"],
        cpu_s_per_gb=round(cpu_s * 1e9 / value_bytes, 3),
        cpu_us_per_request=round(cpu_s * 1e6, 3),
        resident_mib=round(stage.server.resident_bytes() / 2**20, 1),
        buckets=[(bucket, count) for bucket, count in middle["buckets"]],
    )


def libraries(load: str, count: int, slower: dict[str, int]) -> Runner:
    """``slower``: fewer records for libraries that would take minutes."""

    def run(workload: Workload, stage: Stage) -> Round:
        counts = {library: slower.get(library, count) for library in (OURS, *_OTHERS)}
        found = _in_turn(stage, workload, load, counts)
        value_bytes = len(SMALL if load in ("post", *READS) else LARGE)
        made = _made(stage, found[OURS], value_bytes)
        cpu_s = {library: median(one["cpu_s"] / one["records"] for one in turns) for library, turns in found.items()}
        for library in _OTHERS:
            others = found[library]
            made.extra[f"records/s of {library}"] = round(median(one["records"] / one["seconds"] for one in others), 1)
            made.extra[f"CPU µs a record of {library}"] = round(cpu_s[library] * 1e6, 3)
            made.extra[CLIENT_PER_CPU_S.format(library)] = cpu_s[library] / cpu_s[OURS]
            made.extra[CLIENT_CPU_PER_MB.format(library)] = cpu_s[OURS] / cpu_s[library]
            if others[0]["latency_us"]:
                made.extra[f"p50 µs of {library}"] = median(one["latency_us"]["50"] for one in others)
        if load == "one":
            made.extra[CLIENT_OVER_RAW_US] = made.latency_us["50"] - _raw_p50_us(workload, stage)
        return made

    return run


def _raw_p50_us(workload: Workload, stage: Stage) -> float:
    """Of the generator in C with one request in flight."""
    seconds = (stage.extent.warm_up, stage.extent.measured)
    plan = stage.kafka_like.produce_plan(f"load-{workload.key}-raw", Shape(value_bytes=len(LARGE)), seconds)
    return run_load(plan).histogram.percentiles_us()["50"]
