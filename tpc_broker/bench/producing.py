"""Rounds of produce requests, with the raw generator and with librdkafka, and the memory of partitions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpc_broker.bench.librdkafka_load import run_librdkafka
from tpc_broker.bench.load import run_load
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored, figures_round, make_round

if TYPE_CHECKING:
    from tpc_broker.bench.load import Plan
    from tpc_broker.bench.peers import Shape

_TOUCH_FROM_PARTITIONS = 100
_TOUCH_S_MAX = 300.0
_SETTLED_BY_S = 30.0
_STEADY_LOOKS_MIN = 6
_STEADY_LOOKS = 3
_STEADY_LOOKS_MAX = 60
_STEADY_SHARE = 0.7
FIRST_WRITES_MEASURED = 3
"""Times as long as other loads: several checkpoints."""


def touch(stage: Stage, plan: Plan) -> int:
    """Write to every partition twice, and let the server settle; how many requests that were.

    Servers make a partition's files when its first record comes. That happens once in its life.
    """
    twice = replace(plan, depth=1, rate=0.0, warm_up_s=0.0, measure_s=_TOUCH_S_MAX, passes_max=2)
    made = run_load(twice).requests_all
    stage.server.settle(_SETTLED_BY_S)
    return made


def until_steady(plan: Plan) -> int:
    """Load until the rate has stopped rising; how many requests that were.

    For seconds after the first records of a thousand partitions Kafka answers a hundredth of what it answers
    afterwards.
    """
    second = replace(plan, warm_up_s=0.0, measure_s=1.0)
    rates: list[float] = []
    made = 0
    while len(rates) < _STEADY_LOOKS_MIN or min(rates[-_STEADY_LOOKS:]) < _STEADY_SHARE * max(rates):
        if len(rates) >= _STEADY_LOOKS_MAX:
            break
        found = run_load(second)
        rates.append(found.requests_per_s)
        made += found.requests_all
    return made


def produce(workload: Workload, stage: Stage) -> Round:
    shape, peer, topic = workload.shape, stage.peer, f"load-{workload.key}"
    plan = peer.produce_plan(topic, shape, (stage.extent.warm_up, stage.extent.measured))
    touched = 0
    if shape.partitions >= _TOUCH_FROM_PARTITIONS:
        touched = touch(stage, plan) + until_steady(plan)
    before_s = stage.server.cpu_s()
    found = run_load(plan)
    used_s = stage.server.cpu_s() - before_s
    check_stored(peer, topic, (touched + found.requests_all) * shape.records_per_request)
    return make_round(
        found,
        stage,
        records=shape.records_per_request,
        value_bytes=shape.records_per_request * shape.value_bytes,
        used_cpu_s=used_s,
    )


def first_writes(workload: Workload, stage: Stage) -> Round:
    """Partitions that nobody has written to are written in turn; beside one partition of the same server, before and
    after. What follows the first writes counts, too: checkpoints make files of thousands of partitions durable.
    """
    shape, peer, extent = workload.shape, stage.peer, stage.extent
    one, seconds = replace(shape, partitions=1), (extent.warm_up, extent.measured)
    rates = [run_load(peer.produce_plan(f"before-{workload.key}", one, seconds)).requests_per_s]
    topic = f"load-{workload.key}"
    plan = peer.produce_plan(topic, shape, (0.0, FIRST_WRITES_MEASURED * extent.measured))
    stage.server.settle(_SETTLED_BY_S)
    before_s = stage.server.cpu_s()
    found = run_load(plan)
    used_s = stage.server.cpu_s() - before_s
    check_stored(peer, topic, found.requests_all)
    rates.append(run_load(peer.produce_plan(f"after-{workload.key}", one, seconds)).requests_per_s)
    made = make_round(found, stage, records=1, value_bytes=shape.value_bytes, used_cpu_s=used_s)
    of_one = sum(rates) / len(rates)
    made.extra = {
        "longest_silence_ms": round(found.silence_longest_s * 1000, 1),
        "of_one_partitions_rate": round(found.requests_per_s / of_one, 3) if of_one else 0.0,
        "partitions": shape.partitions,
    }
    return made


def librdkafka(workload: Workload, stage: Stage) -> Round:
    """The same with the client that users have; here a request is one record."""
    shape, peer, topic = workload.shape, stage.kafka_like, f"load-{workload.key}"
    peer.create_topic(topic, shape.partitions)
    before_s = stage.server.cpu_s()
    found = run_librdkafka(
        peer.bootstrap, topic, producers=shape.connections, value_bytes=shape.value_bytes, keys=10 * shape.partitions,
        linger_ms=5.0 if shape.records_per_request > 1 else 0.0,
        seconds=(stage.extent.warm_up, stage.extent.measured), waiting_max=shape.depth,
    )  # fmt: skip
    used_s = stage.server.cpu_s() - before_s
    check_stored(peer, topic, found.requests_all)
    return make_round(found, stage, records=1, value_bytes=shape.value_bytes, used_cpu_s=used_s)


def idle_partitions(workload: Workload, stage: Stage) -> Round:
    """Memory of each process per partition that nobody uses: never written, and written twice.

    Of several processes the one counts that grew most.
    """
    peer = stage.kafka_like
    shape: Shape = workload.shape
    before = stage.server.resident_by_pid()
    plan = peer.produce_plan("idle", shape, (0.0, 0.0))
    stage.server.settle()
    made = stage.server.resident_by_pid()
    written = touch(stage, plan)
    check_stored(peer, "idle", written)
    stage.server.settle()
    after = stage.server.resident_by_pid()
    return figures_round(
        stage,
        {
            "kib_per_partition": _growth_kib(before, made) / shape.partitions,
            "kib_per_partition_written": _growth_kib(before, after) / shape.partitions,
            "partitions": shape.partitions,
        },
    )


def _growth_kib(before: dict[int, int], after: dict[int, int]) -> float:
    return max((after[pid] - before.get(pid, 0)) / 1024 for pid in after)
