"""What a core counts, as one structure of plain numbers: for `tpc-broker status` and whoever else asks.

The counters live in C, beside what they count, and cost nothing but their increments; they are read when somebody asks.
They start at 0 with the core's process. Names with ``_now`` at their end, and those that the C headers call "now", are
what is; all others only grow. Bytes and ns as the names say.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

from tpc_broker.engine.links import link_statistics
from tpc_broker.engine.quotas import quota_statistics
from tpc_broker.engine.trio_ring import current_task_queues
from tpc_broker.kafka.api_keys import ApiKey, api

if TYPE_CHECKING:
    from tpc_broker.broker.client_telemetry import ClientTelemetry
    from tpc_broker.broker.core import Core
    from tpc_broker.engine.connections import Connections, Latency, SlowRequest
    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.engine.ring import Ring
    from tpc_broker.node.counters import ClusterCounters
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.telemetry.pushed.aggregates import Gauge

Numbers = dict[str, int]
UNCLEANABLE_TOLD_MAX: Final = 100
"""Partitions, by name; all are counted."""


class TelemetryCounters(TypedDict):
    """What clients push. `counts`: of `TelemetryStatistics`; `instances`: by kind; `refused`: by reason. `gauges`,
    `growths`: what instances say together, by names of `telemetry.pushed.standard`.
    """

    counts: Numbers
    instances: Numbers
    refused: Numbers
    gauges: dict[str, Gauge]
    growths: dict[str, float]


class CoreCounters(TypedDict):
    """`broker`: of `BrokerStatistics`. `replicas`: of `replica_counters`; empty without a cluster. `readiness`: of
    `ReplicaFindings`, likewise. `storage`: of
    `JournalledStorage.counters`. `cleaning`: of `CleaningBook.counters`; `no_cleaner`: why none comes up, "" where one
    does; `uncleanable`: why, by partition, of a hundred at most; `cleanings_under_way`: bytes read and written so far,
    by partition.
    `queues`: of `TaskQueueStatistics`, by queue. `datagrams`: of
    `tpc_datagram_statistics`. `links`, `forwards`: fields of the C structures `tpc_link_statistics` and
    `tpc_forward_statistics`. `quotas`: of `quota_statistics`.
    `plane`, `journal`, `ring`: fields of the C structures `tpc_plane_statistics`,
    `tpc_journal_statistics`, `tpc_ring_statistics`. `fetches`: of `FetchStatistics`; `fetch_fallbacks`: to Python, by
    reason. `transactions`: of `TransactionStatistics`. `authentication`: of `AuthenticationStatistics`. `connections`:
    of `ConnectionStatistics`; `listeners`: of `tpc_listener_statistics`, in the order of the listeners; `closed`: by
    reason. `python_spans`: how often Python took how long between two visits of C, [i] less than 2^i us, the last one
    all longer times too; `commit_spans`: the same of the journal's commits. `latencies`: of requests, by API,
    `unknown` for keys that have no name; `slowest`: requests of the last two minutes.
    """

    broker: Numbers
    replicas: Numbers
    readiness: dict[str, list[str]]
    storage: Numbers
    cleaning: Numbers
    no_cleaner: str
    uncleanable: dict[str, str]
    cleanings_under_way: Numbers
    queues: dict[str, Numbers]
    links: Numbers
    quotas: Numbers
    forwards: Numbers
    datagrams: Numbers
    plane: Numbers
    journal: Numbers
    fetches: Numbers
    fetch_fallbacks: Numbers
    transactions: Numbers
    authentication: Numbers
    connections: Numbers
    listeners: list[Numbers]
    closed: Numbers
    ring: Numbers
    python_spans: list[int]
    commit_spans: list[int]
    latencies: dict[str, Latency]
    slowest: list[dict[str, Any]]
    telemetry: TelemetryCounters


class CoreStatus(TypedDict):
    """One core as the supervisor sees it. Without `counters` it is starting, or gave no answer in time. `cluster`: what
    core 0 of a node among others tells, also while it starts.
    """

    core: int
    pid: int | None
    ready: bool
    restarts: int
    up_ms: int
    counters: NotRequired[CoreCounters]
    cluster: NotRequired[ClusterCounters]


def core_counters(
    ring: Ring, connections: Connections, plane: RingDataPlane, storage: JournalledStorage, core: Core
) -> CoreCounters:
    fetches: dict[str, Any] = asdict(plane.fetch_statistics())
    left = fetches.pop("left")
    counted: dict[str, Any] = asdict(connections.statistics())
    closed = counted.pop("closed_by_reason")
    looped: dict[str, Any] = asdict(ring.statistics())
    python_spans = list(looped.pop("python_spans"))
    return CoreCounters(
        broker=asdict(core.statistics()),
        replicas={},
        readiness={},
        storage=storage.counters(),
        cleaning=storage.cleaning.counters(),
        no_cleaner=storage.cleaning.no_cleaner or "",
        uncleanable=dict(list(storage.cleaning.uncleanable().items())[:UNCLEANABLE_TOLD_MAX]),
        cleanings_under_way={},
        queues={queue.name.lower(): asdict(found) for queue, found in current_task_queues().statistics().items()},
        links=link_statistics(connections),
        quotas=quota_statistics(connections),
        forwards=plane.forward_statistics(),
        datagrams=plane.datagram_statistics(),
        plane=plane.plane_statistics(),
        journal=plane.journal_statistics(),
        fetches=fetches,
        fetch_fallbacks=left,
        transactions=asdict(core.transactions.statistics()),
        authentication=asdict(core.authentication.statistics()),
        connections=counted,
        listeners=connections.listener_statistics(),
        closed={reason.name.lower(): count for reason, count in closed.items()},
        ring=looped,
        python_spans=python_spans,
        commit_spans=plane.commit_spans(),
        latencies=latencies_by_name(connections.latencies()),
        slowest=[_slow(one) for one in connections.slowest_requests()],
        telemetry=telemetry_counters(core.client_telemetry),
    )


def telemetry_counters(telemetry: ClientTelemetry) -> TelemetryCounters:
    counts: dict[str, Any] = asdict(telemetry.statistics())
    return TelemetryCounters(
        instances=counts.pop("instances"),
        refused=counts.pop("refused"),
        counts=counts,
        gauges=telemetry.gauges(),
        growths=telemetry.growths(),
    )


def latencies_by_name(by_key: dict[int, Latency]) -> dict[str, Latency]:
    """All API keys that are none of Kafka's for clients are `unknown` together: no client makes series of its own."""
    named: dict[str, Latency] = {}
    for key, latency in by_key.items():
        name = api(key).name if key in _API_KEYS else "unknown"
        before = named.get(name, {"sum_ns": 0, "spans": [0] * len(latency["spans"])})
        named[name] = {
            "sum_ns": before["sum_ns"] + latency["sum_ns"],
            "spans": [one + other for one, other in zip(before["spans"], latency["spans"], strict=True)],
        }
    return named


def api_name(key: int) -> str:
    return api(key).name if key in _API_KEYS else f"API {key}"


_API_KEYS = frozenset(int(key) for key in ApiKey)


def _slow(one: SlowRequest) -> dict[str, Any]:
    return {
        "api": api_name(one.api_key),
        "version": one.api_version,
        "took_ms": round(one.took_ns / 1e6, 3),
        "ago_s": round(max(0, time.monotonic_ns() - one.answered_ns) / 1e9, 1),
        "request_bytes": one.request_bytes,
        "answer_bytes": one.answer_bytes,
        "connection": one.connection,
    }
