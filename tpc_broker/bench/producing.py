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
_TOUCH_S_MAX = 120.0


def touch(plan: Plan, partitions: int) -> int:
    """Write to every partition about twice before anything is measured; how many requests that were.

    Servers make a partition's files when its first record comes. That happens once in its life.
    """
    once = replace(plan, depth=1, rate=0.0, warm_up_s=0.0, measure_s=_TOUCH_S_MAX, requests_max=2 * partitions)
    return run_load(once).requests_all


def produce(workload: Workload, stage: Stage) -> Round:
    shape, peer, topic = workload.shape, stage.peer, f"load-{workload.key}"
    plan = peer.produce_plan(topic, shape, (stage.extent.warm_up, stage.extent.measured))
    touched = touch(plan, shape.partitions) if shape.partitions >= _TOUCH_FROM_PARTITIONS else 0
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
    """Memory of each process per partition that nobody uses: never written, and written once.

    Of several processes the one counts that grew most.
    """
    peer = stage.kafka_like
    shape: Shape = workload.shape
    before = stage.server.resident_by_pid()
    plan = peer.produce_plan("idle", shape, (0.0, 0.0))
    stage.server.settle()
    made = stage.server.resident_by_pid()
    written = touch(plan, shape.partitions)
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
