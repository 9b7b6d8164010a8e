"""Three nodes with thousands of partitions that nobody uses: how soon all are led, and what they cost at rest."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tpc_broker.bench.bars import CPU_AT_REST, KIB_A_REPLICA, LED_AFTER_ANSWER_S
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import Round, Stage, Workload, figures_round
from tpc_broker.bench.peers.clusters import KafkaLikeCluster

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.bench.server import Server

REST_S_MIN: Final = 60.0
_A_TOPIC: Final = 2_500
"""Partitions."""
_LED_S: Final = 600.0
_MANY: Final = 1_000
_CHECKPOINT_S: Final = 70.0
"""By then a checkpoint has what elections wrote of all partitions: that is no rest."""
_SETTLED_BY_S: Final = 20.0


def cluster_at_rest(workload: Workload, stage: Stage) -> Round:
    """`count` partitions with a replica on each node. What they take of memory is what the node grows that grows most,
    for each of its replicas.
    """
    peer, count = stage.peer, workload.count
    assert isinstance(peer, KafkaLikeCluster)
    stage.server.settle(_SETTLED_BY_S)
    before = {port: node.resident_bytes() for port, node in peer.nodes.items()}
    began_s = time.monotonic()
    topics = {f"rest-{first}": min(_A_TOPIC, count - first) for first in range(0, count, _A_TOPIC)}
    for topic, partitions in topics.items():
        peer.ask_for_topic(topic, partitions)
    answered_s = time.monotonic() - began_s
    _wait_all_led(peer, topics)
    led_s = time.monotonic() - began_s
    if count > _MANY:
        time.sleep(_CHECKPOINT_S)
    stage.server.settle(_SETTLED_BY_S)
    percent = _cpu_percent(peer.nodes, max(stage.extent.measured, REST_S_MIN if count > _MANY else 0.0))
    grown = [node.resident_bytes() - before[port] for port, node in peer.nodes.items()]
    return figures_round(
        stage,
        {
            CPU_AT_REST: max(percent.values()),
            "% of a core at rest, mean of the nodes": sum(percent.values()) / len(percent),
            KIB_A_REPLICA: max(grown) / 1024 / count,
            "s until all have a leader": led_s,
            LED_AFTER_ANSWER_S: led_s - answered_s,
            "partitions": count,
        },
    )


def _wait_all_led(peer: KafkaLikeCluster, topics: Mapping[str, int]) -> None:
    give_up_at = time.monotonic() + _LED_S
    for topic, partitions in topics.items():
        while len(peer.leaders(topic)) < partitions:
            if time.monotonic() > give_up_at:
                raise LoadFailed(f"{len(peer.leaders(topic))} of {partitions} partitions of {topic} have a leader")
            time.sleep(1.0)


def _cpu_percent(nodes: Mapping[int, Server], seconds: float) -> dict[int, float]:
    """Of each node, over that time."""
    before_s, began_s = {port: node.cpu_s() for port, node in nodes.items()}, time.monotonic()
    time.sleep(seconds)
    passed_s = time.monotonic() - began_s
    return {port: (node.cpu_s() - before_s[port]) / passed_s * 100 for port, node in nodes.items()}
