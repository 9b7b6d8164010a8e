"""The bars: what this broker has to reach, as ratios to other servers in the same run or as absolute figures.

`BARS` has every bar of the project. One that was not measured in a run is listed as such, so that a report never looks
better than it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.bench.measured import Round
    from tpc_broker.bench.results import Results

MET: Final = "met"
MISSED: Final = "MISSED"
NOT_MEASURED: Final = "not measured"


def p50_us(one: Round) -> float:
    return one.latency_us.get("50", 0.0)


def p99_us(one: Round) -> float:
    return one.latency_us.get("99", 0.0)


def requests_per_s(one: Round) -> float:
    return one.requests_per_s


def records_per_s(one: Round) -> float:
    return one.records_per_s


def mb_per_s(one: Round) -> float:
    return one.mb_per_s


def cpu_s_per_gb(one: Round) -> float:
    return one.cpu_s_per_gb


def requests_per_cpu_s(one: Round) -> float:
    return 1e6 / one.cpu_us_per_request if one.cpu_us_per_request else 0.0


@dataclass(frozen=True)
class Extra:
    """A figure that only some workloads have; 0 where there is none."""

    name: str

    def __call__(self, one: Round) -> float:
        return one.extra.get(self.name, 0.0)

    def is_in(self, one: Round) -> bool:
        return self.name in one.extra


@dataclass(frozen=True)
class Bar:
    """`peer`'s median under `workload`, or its ratio to that of `other` (under `other_workload`) if there is any."""

    workload: str
    what: str
    value: Callable[[Round], float]
    limit: float
    at_least: bool
    other: str = ""
    other_workload: str = ""
    peer: str = "tpc durable"
    is_worst: bool = False
    """The highest of all rounds counts instead of the median."""

    def measured(self, results: Results) -> float | None:
        """The ratio or figure; None when something that it needs was not measured."""
        ours = results.cell(self.workload, self.peer)
        if ours is None:
            return None
        spread = ours.spread(self.value)
        mine = spread.high if self.is_worst else spread.median
        if not self.other:
            is_zero = isinstance(self.value, Extra) and all(map(self.value.is_in, ours.rounds))
            return mine if mine or is_zero else None
        theirs = results.cell(self.other_workload or self.workload, self.other)
        below = theirs.spread(self.value).median if theirs is not None else 0.0
        return mine / below if below else None

    def is_met(self, measured: float) -> bool:
        return measured >= self.limit if self.at_least else measured <= self.limit

    def verdict(self, results: Results) -> str:
        measured = self.measured(results)
        if measured is None:
            return NOT_MEASURED
        return MET if self.is_met(measured) else MISSED

    @property
    def wanted(self) -> str:
        """Such as `≥ 0.65 x bare durable`."""
        against = f" x {self.other}" if self.other else ""
        under = f" ({self.other_workload})" if self.other_workload else ""
        return f"{'≥' if self.at_least else '≤'} {self.limit:,g}{against}{under}"


def at_least(
    workload: str, what: str, value: Callable[[Round], float], limit: float, other: str = "", **more: Any
) -> Bar:
    return Bar(workload, what, value, limit, True, other, **more)  # noqa: FBT003


def at_most(
    workload: str, what: str, value: Callable[[Round], float], limit: float, other: str = "", **more: Any
) -> Bar:
    return Bar(workload, what, value, limit, False, other, **more)  # noqa: FBT003


_US: Final = "tpc durable"
_PLAIN: Final = "tpc plain"
_BARE: Final = "bare durable"
_DEFAULT: Final = "kafka default"
_DURABLES: Final = ("redis durable", "nats durable", "kafka durable")
_DEFAULTS: Final = ("kafka default", "nats default", "redis default")
_KAFKAS: Final = (_DEFAULT, "kafka durable")
_US_3: Final = "tpc-cluster durable"
_HOSTS: Final = "tpc-hosts durable"
_BARE_3: Final = "bare-cluster durable"
_NATS_3: Final = "nats-cluster default"
_OTHERS_3: Final = (_NATS_3, "kafka-cluster default")
FIRST_LAPS: Final = ("16k-1024k", "100k-1024k", "500k-1024k")
"""Of readers behind writers, with fetches of 1 MiB: with small ones they are nearer to Kafka's."""
AGAIN: Final = "s until all partitions are acknowledged again"
"""The figure of a failover: from the kill to the last partition's first acknowledgement of a record sent afterwards."""
FAULTS: Final = ("kill", "pause", "isolation")
"""What becomes of nodes in `cluster-failovers`."""
_AGAIN_S: Final = {"kill": (1.0, 3.0), "pause": (2.5, 5.0), "isolation": (2.5, 5.0)}
"""Median and worst of a fault: until all partitions are acknowledged again."""
JOIN_RATIO: Final = "p99 while nodes join / before"
LEAVE_RATIO: Final = "p99 while nodes leave / before"
UNEVEN: Final = "replicas of the fullest node above those of the emptiest"
CPU_AT_REST: Final = "% of a core at rest, busiest node"
KIB_A_REPLICA: Final = "KiB a replica"
GROUP_STABLE_S: Final = "s from the first heartbeat until the group is stable"
GROUP_CPU: Final = "% of a core"
TRANSACTIONS_PER_S: Final = "transactions/s"
COMMITTED_RATIO: Final = "MB/s / read_uncommitted's, in turn"
TLS_RATIO: Final = "TLS / plain"
TLS_CPU: Final = "CPU s/GB more with TLS"
RIGHTS_RATIO: Final = "CPU with / without"
LOGINS_OF_CPU: Final = "logins a second of CPU"
OF_QUOTA: Final = "% of the quota"
CLEANING_P99: Final = "p99 beside a cleaner / without, in turn"
FAILED_READS: Final = "failed reads"
SWAP_LOCK_MS: Final = "ms that a swap locked, longest"
CLIENT_PER_CPU_S: Final = "records a CPU second of the client / {}'s"
CLIENT_CPU_PER_MB: Final = "client's CPU a MB / {}'s"
CLIENT_OVER_RAW_US: Final = "p50 µs above the raw generator's"
_AIO_CONSUMER: Final = CLIENT_PER_CPU_S.format("confluent-aio")
_AIOKAFKA: Final = CLIENT_PER_CPU_S.format("aiokafka")
_LIBRDKAFKA: Final = CLIENT_CPU_PER_MB.format("confluent")
CLEANED: Final = ("none", "lz4", "zstd")
"""Codecs of logs that are cleaned."""
BYSTANDER_RATIO: Final = "bystander's p99 beside / alone"
STORM_TLS_P99: Final = "bystander's p99 in storms of TLS, ms"
STORM_LOGINS_P99: Final = "bystander's p99 in storms of logins, ms"
LED_AFTER_ANSWER_S: Final = "s from the last topic's answer until all have a leader"


def after_fault(fault: str, which: str) -> str:
    """The name of a figure of `cluster-failovers`; `which`: median, p90 or worst."""
    return f"{fault}, {which} s"


def _of_fault(fault: str) -> tuple[Bar, Bar]:
    median_s, worst_s = _AGAIN_S[fault]
    median, worst = after_fault(fault, "median"), after_fault(fault, "worst")
    return (
        at_most("cluster-failovers", median, Extra(median), median_s, peer=_HOSTS),
        at_most("cluster-failovers", worst, Extra(worst), worst_s, peer=_HOSTS, is_worst=True),
    )


BARS: Final[tuple[Bar, ...]] = (
    at_most("latency", "p50", p50_us, 1.4, _BARE),
    at_most("latency", "p99", p99_us, 1.4, _BARE),
    *(at_most("latency", "p50", p50_us, 1.0, peer) for peer in _DURABLES),
    *(at_most("latency", "p99", p99_us, 1.0, peer) for peer in _DURABLES),
    at_least("connections", "requests/s", requests_per_s, 0.65, _BARE),
    *(at_least("connections", "requests/s", requests_per_s, 1.0, peer) for peer in _DEFAULTS),
    *(at_most("connections", "p99", p99_us, 1.0, peer) for peer in _DEFAULTS),
    at_most("latency", "p50", p50_us, 1.5, _US, peer=_PLAIN),
    at_least("connections", "requests/s", requests_per_s, 0.6, _US, peer=_PLAIN),
    at_least("connections", "requests/s", requests_per_s, 1.5, "kafka durable", peer=_PLAIN),
    at_least("small", "requests/s", requests_per_s, 0.75, _BARE),
    at_least("small", "requests/s", requests_per_s, 0.6, "bare echo", peer="tpc relaxed"),
    at_least("small", "requests per CPU second", requests_per_cpu_s, 0.6, "bare echo", peer="tpc relaxed"),
    at_least("batches", "MB/s", mb_per_s, 1.5, _DEFAULT),
    at_least("batches", "MB/s", mb_per_s, 0.5, _BARE),
    at_most("batches", "p99", p99_us, 2.0, _BARE),
    at_most("batches", "CPU s/GB", cpu_s_per_gb, 0.4, _DEFAULT),
    at_least("partitions", "requests/s", requests_per_s, 2.0, _DEFAULT),
    at_most("partitions", "p99", p99_us, 0.5, _DEFAULT),
    at_least("spread-1000", "requests/s", requests_per_s, 0.8, _US, other_workload="spread-1"),
    at_most("first-writes-5000", "longest silence, ms", Extra("longest_silence_ms"), 100.0),
    at_least("first-writes-5000", "requests/s / those of one partition", Extra("of_one_partitions_rate"), 0.8),
    at_most("idle-partitions", "KiB per partition, never written", Extra("kib_per_partition"), 20.0),
    at_most("idle-partitions", "KiB per partition, written twice", Extra("kib_per_partition_written"), 20.0),
    at_least("catch-up-warm", "MB/s", mb_per_s, 1.0, _DEFAULT),
    at_most("catch-up-warm", "CPU s/GB", cpu_s_per_gb, 1.0, _DEFAULT),
    at_least("catch-up-warm-64k", "MB/s", mb_per_s, 1.0, _DEFAULT),
    at_most("catch-up-warm-64k", "CPU s/GB", cpu_s_per_gb, 1.0, _DEFAULT),
    *(at_least(f"first-lap-{lap}", "MB/s", mb_per_s, 1.0, _DEFAULT) for lap in FIRST_LAPS),
    at_most("tail-10", "server's CPU s", Extra("server_cpu_s"), 3.0, _US, other_workload="tail-1"),
    at_most("end-to-end-50", "p99 µs", p99_us, 2000.0),
    at_most("end-to-end-50", "p99", p99_us, 0.5, "kafka durable"),
    at_most("forwards", "forwards per request to a port a core", Extra("forwards per request, a port a core"), 0.0),
    at_most("steering", "connections of a core, largest / smallest", Extra("largest / smallest"), 1.3),
    at_most("idle-connections-10000", "KiB per idle connection", Extra("kib_per_connection"), 16.0),
    at_most("idle-connections-10000", "p99 / p99 without them, in turn", Extra("p99_ratio"), 1.2),
    at_most("recovery", "seconds until it serves", Extra("serving_s"), 1.5),
    at_most("recovery-partitions", "seconds until it serves", Extra("serving_s"), 1.5),
    at_least("storage", "append 1,120 B, krecords/s", Extra("append_1120_krecords_per_s"), 738.0),
    at_least("storage", "read-stream 1,120 B, krecords/s", Extra("read_1120_krecords_per_s"), 1736.0),
    at_most("cluster-latency", "p50", p50_us, 1.2, _BARE_3, peer=_US_3),
    at_most("cluster-latency", "p99", p99_us, 1.5, _BARE_3, peer=_US_3),
    *(at_most("cluster-latency", "p50", p50_us, 1.0, other, peer=_US_3) for other in _OTHERS_3),
    *(at_most("cluster-latency", "p99", p99_us, 1.0, other, peer=_US_3) for other in _OTHERS_3),
    at_least("cluster-connections", "requests/s", requests_per_s, 0.5, _BARE_3, peer=_US_3),
    at_least("cluster-connections", "requests/s", requests_per_s, 2.0, _NATS_3, peer=_US_3),
    at_least("cluster-batches", "MB/s", mb_per_s, 0.7, _BARE_3, peer=_US_3),
    at_most("cluster-batches", "p99", p99_us, 3.0, _BARE_3, peer=_US_3),
    *(at_least("cluster-batches", "MB/s", mb_per_s, 2.0, other, peer=_US_3) for other in _OTHERS_3),
    at_least("cluster-partitions", "requests/s", requests_per_s, 0.5, _BARE_3, peer=_US_3),
    at_least("cluster-partitions", "requests/s", requests_per_s, 1.0, _NATS_3, peer=_US_3),
    at_most("cluster-partitions", "p99", p99_us, 1.0, _NATS_3, peer=_US_3),
    at_most("cluster-failover", AGAIN, Extra(AGAIN), 1.0, peer=_US_3),
    *(bar for fault in FAULTS for bar in _of_fault(fault)),
    at_most("cluster-rebalance", JOIN_RATIO, Extra(JOIN_RATIO), 3.0, peer=_US_3),
    at_most("cluster-rebalance", LEAVE_RATIO, Extra(LEAVE_RATIO), 3.0, peer=_US_3),
    *(
        at_most("cluster-rebalance", f"{UNEVEN}, {nodes} nodes", Extra(f"{UNEVEN}, {nodes} nodes"), 1.0, peer=_US_3)
        for nodes in (5, 3)
    ),
    at_least("cluster-catch-up", "MB/s", mb_per_s, 300.0, peer=_US_3),
    at_most("cluster-idle", CPU_AT_REST, Extra(CPU_AT_REST), 2.0, peer=_US_3),
    at_most("cluster-idle", KIB_A_REPLICA, Extra(KIB_A_REPLICA), 24.0, peer=_US_3),
    at_least("tls-batches", TLS_RATIO, Extra(TLS_RATIO), 0.6),
    at_least("tls-batches", "MB/s", mb_per_s, 1.5, _DEFAULT),
    at_most("tls-batches", TLS_CPU, Extra(TLS_CPU), 1.0),
    at_least("tls-connections", TLS_RATIO, Extra(TLS_RATIO), 0.75),
    at_most("rights", RIGHTS_RATIO, Extra(RIGHTS_RATIO), 1.01),
    at_least("logins", LOGINS_OF_CPU, Extra(LOGINS_OF_CPU), 1_000.0),
    at_least("quota", OF_QUOTA, Extra(OF_QUOTA), 95.0),
    at_most("quota", OF_QUOTA, Extra(OF_QUOTA), 105.0),
    at_most("quota", BYSTANDER_RATIO, Extra(BYSTANDER_RATIO), 1.2),
    at_most("connect-storm", STORM_TLS_P99, Extra(STORM_TLS_P99), 20.0),
    at_most("connect-storm", STORM_LOGINS_P99, Extra(STORM_LOGINS_P99), 20.0),
    at_most("group-50", GROUP_STABLE_S, Extra(GROUP_STABLE_S), 2.0),
    at_most("group-500", GROUP_STABLE_S, Extra(GROUP_STABLE_S), 0.5, _DEFAULT),
    at_most("group-heartbeats", GROUP_CPU, Extra(GROUP_CPU), 50.0),
    at_least("transactions-100ms", "MB/s", mb_per_s, 0.9, _US, other_workload="transactions-plain"),
    at_least("transactions-100ms", "MB/s", mb_per_s, 2.0, _DEFAULT),
    at_least("transactions-10ms", "MB/s", mb_per_s, 0.6, _US, other_workload="transactions-plain"),
    at_least("transactions-single", TRANSACTIONS_PER_S, Extra(TRANSACTIONS_PER_S), 5_000.0),
    *(at_most(f"commit-latency-{count}", "p99", p99_us, 0.5, peer) for count in (1, 10) for peer in _KAFKAS),
    at_least("read-committed", COMMITTED_RATIO, Extra(COMMITTED_RATIO), 0.95),
    *(at_least(f"cleaning-{codec}", "MB/s of log", mb_per_s, 2.0, _DEFAULT) for codec in CLEANED),
    at_most("produce-while-cleaning", CLEANING_P99, Extra(CLEANING_P99), 1.1),
    at_most("produce-while-cleaning", FAILED_READS, Extra(FAILED_READS), 0.0, is_worst=True),
    at_most("produce-while-cleaning", SWAP_LOCK_MS, Extra(SWAP_LOCK_MS), 5.0, is_worst=True),
    at_least("client-consume", _AIO_CONSUMER, Extra(_AIO_CONSUMER), 7.0),
    at_least("client-consume", _AIOKAFKA, Extra(_AIOKAFKA), 5.0),
    at_least("client-batches", "records/s", records_per_s, 500_000.0),
    at_least("client-post", "records/s", records_per_s, 200_000.0),
    at_most("client-send-all", _LIBRDKAFKA, Extra(_LIBRDKAFKA), 1.3),
    at_most("client-one", CLIENT_OVER_RAW_US, Extra(CLIENT_OVER_RAW_US), 60.0),
    at_most("cluster-idle", LED_AFTER_ANSWER_S, Extra(LED_AFTER_ANSWER_S), 10.0, peer=_US_3),
)
