"""A node of a cluster was away while much was written: how fast its replicas are in the quorum again."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.load import run_load, until
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored, figures_round
from tpc_broker.bench.peers.clusters import NODES, KafkaLikeCluster

if TYPE_CHECKING:
    from tpc_broker.bench.peers.kafka_like import Address

_DEADLINE_S: Final = 300.0
_LOOK_S: Final = 0.05
_until = partial(until, within_s=_DEADLINE_S, look_s=_LOOK_S)
_FILL_S_MAX: Final = 600.0
_SHARE: Final = 0.5
"""Of the gigabytes that other workloads store: each byte is here three times."""


def catch_up_of_a_node(workload: Workload, stage: Stage) -> Round:
    """MB/s of values, from the start of the process until every partition has all of its replicas in sync."""
    peer, shape, topic = stage.peer, workload.shape, f"load-{workload.key}"
    assert isinstance(peer, KafkaLikeCluster)
    everywhere = NODES * shape.partitions
    peer.create_topic(topic, shape.partitions)
    _until(lambda: peer.in_sync(topic) == everywhere, f"{topic} has all replicas in sync")
    away = min(peer.nodes)
    peer.nodes[away].kill()
    _until(lambda: _is_led_by_others(peer.leaders(topic), shape.partitions, away), f"others lead {topic}")
    _until(lambda: peer.in_sync(topic) <= everywhere - shape.partitions, f"{topic} misses a replica")
    records = _write(peer, topic, stage, workload)
    before_s, began = stage.server.cpu_s(), time.monotonic()
    peer.nodes[away].launch()
    _until(lambda: peer.in_sync(topic) == everywhere, f"{topic} has all replicas in sync again")
    took_s = time.monotonic() - began
    check_stored(peer, topic, records)
    written = records * shape.value_bytes
    figures = {"s until in sync": round(took_s, 3), "GB": round(written / 1e9, 3)}
    made = figures_round(stage, figures)
    cpu_s = stage.server.cpu_s() - before_s
    return replace(made, mb_per_s=round(written / 1e6 / took_s, 3), cpu_s_per_gb=round(cpu_s / (written / 1e9), 3))


def _write(peer: KafkaLikeCluster, topic: str, stage: Stage, workload: Workload) -> int:
    """How many records."""
    shape = workload.shape
    request_bytes = shape.records_per_request * shape.value_bytes
    wanted = max(1, round(stage.extent.gigabytes * _SHARE * 1e9 / request_bytes))
    plan = peer.plan_to(peer.leaders(topic), topic, shape, (0.0, _FILL_S_MAX))
    found = run_load(replace(plan, requests_max=wanted))
    records = found.requests_all * shape.records_per_request
    check_stored(peer, topic, records)
    return records


def _is_led_by_others(leaders: dict[int, Address], partitions: int, away: int) -> bool:
    return len(leaders) == partitions and all(port != away for _host, port in leaders.values())
