"""The metrics of KIP-714 that are told on: a fixed list, whatever clients push."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

PREFIX: Final = b"org.apache.kafka."
MS: Final = 1e-3


class Over(Enum):
    """What is told of the instances that have pushed a metric, and of a client's nodes likewise."""

    SUM = "the sum"
    AVERAGE = "the average"
    MAX = "the largest"
    GROWTH = "what it grew by"
    """Of a counter: all that was ever pushed, of instances that are gone too."""


class Kind(Enum):
    """What a client is, by the names of what it pushes."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OTHER = "other"
    SILENT = "silent"
    """It has not pushed yet."""


class Standard(NamedTuple):
    told: bytes
    """Its name, without `PREFIX`."""
    over: Over
    metric: str
    """Ours, behind `tpc_client_`."""
    explanation: str
    scale: float = 1.0


_REQUESTS = "How long clients' requests took"
_QUEUED = "How long records waited in producers' queues"
_HELD = "How long brokers held producers back"
_FETCHES = "How long consumers' fetches took"
_COMMITS = "How long consumers' commits took"
_REBALANCES = "How long consumers' rebalances took"

STANDARD: Final = (
    Standard(b"producer.connection.creation.rate", Over.SUM, "producer_connections_per_second",
             "Connections that producers open in a second."),
    Standard(b"producer.connection.creation.total", Over.GROWTH, "producer_connections_opened_total",
             "Connections that producers have opened."),
    Standard(b"producer.node.request.latency.avg", Over.AVERAGE, "producer_node_request_avg_seconds",
             f"{_REQUESTS}: producers', by node, the average.", MS),
    Standard(b"producer.node.request.latency.max", Over.MAX, "producer_node_request_max_seconds",
             f"{_REQUESTS}: producers', by node, the longest.", MS),
    Standard(b"producer.request.latency.avg", Over.AVERAGE, "producer_request_avg_seconds",
             f"{_REQUESTS}: producers', the average.", MS),
    Standard(b"producer.request.latency.max", Over.MAX, "producer_request_max_seconds",
             f"{_REQUESTS}: producers', the longest.", MS),
    Standard(b"producer.produce.throttle.time.avg", Over.AVERAGE, "producer_throttle_avg_seconds",
             f"{_HELD}: the average.", MS),
    Standard(b"producer.produce.throttle.time.max", Over.MAX, "producer_throttle_max_seconds",
             f"{_HELD}: the longest.", MS),
    Standard(b"producer.record.queue.time.avg", Over.AVERAGE, "producer_record_queue_avg_seconds",
             f"{_QUEUED}: the average.", MS),
    Standard(b"producer.record.queue.time.max", Over.MAX, "producer_record_queue_max_seconds",
             f"{_QUEUED}: the longest.", MS),
    Standard(b"consumer.connection.creation.rate", Over.SUM, "consumer_connections_per_second",
             "Connections that consumers open in a second."),
    Standard(b"consumer.connection.creation.total", Over.GROWTH, "consumer_connections_opened_total",
             "Connections that consumers have opened."),
    Standard(b"consumer.node.request.latency.avg", Over.AVERAGE, "consumer_node_request_avg_seconds",
             f"{_REQUESTS}: consumers', by node, the average.", MS),
    Standard(b"consumer.node.request.latency.max", Over.MAX, "consumer_node_request_max_seconds",
             f"{_REQUESTS}: consumers', by node, the longest.", MS),
    Standard(b"consumer.poll.idle.ratio.avg", Over.AVERAGE, "consumer_poll_idle_ratio",
             "The part of their time that consumers spent within poll, the average."),
    Standard(b"consumer.coordinator.commit.latency.avg", Over.AVERAGE, "consumer_commit_avg_seconds",
             f"{_COMMITS}: the average.", MS),
    Standard(b"consumer.coordinator.commit.latency.max", Over.MAX, "consumer_commit_max_seconds",
             f"{_COMMITS}: the longest.", MS),
    Standard(b"consumer.coordinator.assigned.partitions", Over.SUM, "consumer_assigned_partitions",
             "Partitions that are assigned to consumers."),
    Standard(b"consumer.coordinator.rebalance.latency.avg", Over.AVERAGE, "consumer_rebalance_avg_seconds",
             f"{_REBALANCES}: the average.", MS),
    Standard(b"consumer.coordinator.rebalance.latency.max", Over.MAX, "consumer_rebalance_max_seconds",
             f"{_REBALANCES}: the longest.", MS),
    Standard(b"consumer.coordinator.rebalance.latency.total", Over.GROWTH, "consumer_rebalance_seconds_total",
             f"{_REBALANCES}: all together.", MS),
    Standard(b"consumer.fetch.manager.fetch.latency.avg", Over.AVERAGE, "consumer_fetch_avg_seconds",
             f"{_FETCHES}: the average.", MS),
    Standard(b"consumer.fetch.manager.fetch.latency.max", Over.MAX, "consumer_fetch_max_seconds",
             f"{_FETCHES}: the longest.", MS),
)  # fmt: skip
BY_NAME: Final = {PREFIX + one.told: place for place, one in enumerate(STANDARD)}
"""The place in `STANDARD` of what a client calls so."""
