"""The workloads, by the numbers of their bars, and one round of each against a running peer.

A round makes a topic, loads it, and checks that the server holds exactly what it acknowledged; a difference is a
`CountsDiffer`, never a figure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.librdkafka_load import run_librdkafka
from tpc_broker.bench.load import LoadFailed, LoadResult, Plan, RunningLoad, run_load
from tpc_broker.bench.peers import Peer, Shape
from tpc_broker.bench.peers.kafka_like import KafkaLikePeer

if TYPE_CHECKING:
    from tpc_broker.bench.server import Server


class CountsDiffer(RuntimeError):  # noqa: N818 (it says what is)
    """The server does not hold what it acknowledged, or a reader did not get what was there."""


@dataclass(frozen=True)
class Seconds:
    """How long a round takes."""

    warm_up: float = 1.0
    measured: float = 4.0


@dataclass
class Round:
    """What one peer did in one round of one workload."""

    requests_per_s: float
    records_per_s: float
    mb_per_s: float
    """Millions of bytes of values (produce) or of batches (fetch)."""
    latency_us: dict[str, float]
    cpu_s_per_gb: float
    cpu_us_per_request: float
    resident_mib: float
    generator_was_limit: bool
    generator_cpu_share: float
    per_100ms: list[int] = field(default_factory=list)
    buckets: list[tuple[int, int]] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)


Runner = Callable[["Workload", Peer, str, Seconds], Round]


@dataclass(frozen=True)
class Workload:
    key: str
    title: str
    run: Runner
    shape: Shape = field(default_factory=Shape)
    needs_kafka: bool = False
    is_brief: bool = True
    """Part of the selection of at most ten minutes."""
    consumers: int = 0
    records_total: int = 0


def _server(peer: Peer) -> Server:
    assert peer.server is not None
    return peer.server


def make_round(found: LoadResult, *, records: int, value_bytes: float, used_cpu_s: float, peer: Peer) -> Round:
    """`records` and `value_bytes` are those of one request."""
    requests_all = max(1, found.requests_all)
    gigabytes = requests_all * value_bytes / 1e9
    return Round(
        requests_per_s=round(found.requests_per_s, 1),
        records_per_s=round(found.requests_per_s * records, 1),
        mb_per_s=round(found.requests_per_s * value_bytes / 1e6, 3),
        latency_us=found.histogram.percentiles_us(),
        cpu_s_per_gb=round(used_cpu_s / gigabytes, 3) if gigabytes else 0.0,
        cpu_us_per_request=round(used_cpu_s / requests_all * 1e6, 2),
        resident_mib=round(_server(peer).resident_bytes() / 2**20, 1),
        generator_was_limit=found.generator_was_limit,
        generator_cpu_share=found.generator_cpu_share,
        per_100ms=found.slots,
        buckets=found.histogram.buckets(),
    )


def check_stored(peer: Peer, topic: str, records: int) -> None:
    stored = peer.stored_count(topic)
    if stored is not None and stored != records:
        raise CountsDiffer(f"{peer.label}: {records} records were acknowledged, {topic} holds {stored}")


def produce(workload: Workload, peer: Peer, topic: str, seconds: Seconds) -> Round:
    shape = workload.shape
    plan = peer.produce_plan(topic, shape, (seconds.warm_up, seconds.measured))
    before_s = _server(peer).cpu_s()
    found = run_load(plan)
    used_s = _server(peer).cpu_s() - before_s
    check_stored(peer, topic, found.requests_all * shape.records_per_request)
    return make_round(
        found,
        records=shape.records_per_request,
        value_bytes=shape.records_per_request * shape.value_bytes,
        used_cpu_s=used_s,
        peer=peer,
    )


def librdkafka(workload: Workload, peer: Peer, topic: str, seconds: Seconds) -> Round:
    """The same with the client that users have; here a request is one record."""
    assert isinstance(peer, KafkaLikePeer)
    shape = workload.shape
    peer.create_topic(topic, shape.partitions)
    before_s = _server(peer).cpu_s()
    found = run_librdkafka(
        peer.bootstrap, topic, producers=shape.connections, value_bytes=shape.value_bytes, keys=10 * shape.partitions,
        linger_ms=5.0 if shape.records_per_request > 1 else 0.0, seconds=(seconds.warm_up, seconds.measured),
        one_in_flight=shape.connections == shape.depth == shape.records_per_request == 1,
    )  # fmt: skip
    used_s = _server(peer).cpu_s() - before_s
    check_stored(peer, topic, found.requests_all)
    return make_round(found, records=1, value_bytes=shape.value_bytes, used_cpu_s=used_s, peer=peer)


def _fill(peer: KafkaLikePeer, topic: str, partitions: int, records_total: int) -> dict[int, int]:
    """Put about `records_total` records of 1 KiB into a new topic; its end offsets."""
    shape = Shape(connections=8, depth=4, records_per_request=500, partitions=partitions)
    plan = peer.produce_plan(topic, shape, (0.0, 600.0))
    found = run_load(
        Plan(
            plan.protocol, plan.connections, depth=plan.depth, warm_up_s=0.0, measure_s=600.0,
            requests_max=records_total // 500,
        )
    )  # fmt: skip
    check_stored(peer, topic, found.requests_all * 500)
    return peer.end_offsets(topic, partitions)


def catch_up(workload: Workload, peer: Peer, topic: str, seconds: Seconds) -> Round:
    """Every partition is read from its start by a connection of its own, while it is still in the page cache.

    It is read twice; the first pass is the warm-up.
    """
    del seconds
    assert isinstance(peer, KafkaLikePeer)
    ends = _fill(peer, topic, workload.shape.partitions, workload.records_total)
    plan = peer.fetch_plan(
        topic, workload.shape.partitions, workload.consumers, bytes_max=workload.shape.value_bytes, ends=ends,
        seconds=120,
    )  # fmt: skip
    run_load(plan)
    before_s = _server(peer).cpu_s()
    found = run_load(plan)
    used_s = _server(peer).cpu_s() - before_s
    wanted = sum(ends[index % workload.shape.partitions] for index in range(workload.consumers))
    if found.records_all != wanted:
        raise CountsDiffer(f"{peer.label}: {found.records_all} records were read, {topic} holds {wanted}")
    made = make_round(
        found,
        records=found.records_all // max(1, found.requests_all),
        value_bytes=found.data_bytes_all / max(1, found.requests_all),
        used_cpu_s=used_s,
        peer=peer,
    )
    made.records_per_s = round(found.records / found.elapsed_s, 1)
    return made


def tail(workload: Workload, peer: Peer, topic: str, seconds: Seconds) -> Round:
    """`consumers` connections follow one partition while an open-loop producer writes to it."""
    assert isinstance(peer, KafkaLikePeer)
    producing = peer.produce_plan(topic, workload.shape, (0.0, seconds.warm_up + seconds.measured))
    time_s = seconds.warm_up + seconds.measured + 2.0
    before_s = _server(peer).cpu_s()
    fetching = peer.fetch_plan(topic, 1, workload.consumers, bytes_max=1 << 20, ends=None, seconds=time_s)
    with RunningLoad(fetching) as readers:
        time.sleep(0.3)
        written = run_load(producing)
        read = readers.result()
    used_s = _server(peer).cpu_s() - before_s
    records = written.requests_all * workload.shape.records_per_request
    check_stored(peer, topic, records)
    if read.records_all != records * workload.consumers:
        raise CountsDiffer(f"{peer.label}: {workload.consumers} readers of {records} records got {read.records_all}")
    made = make_round(
        written,
        records=workload.shape.records_per_request,
        value_bytes=workload.shape.records_per_request * workload.shape.value_bytes,
        used_cpu_s=used_s,
        peer=peer,
    )
    made.extra = {"server_cpu_s": round(used_s, 3), "records_read": read.records_all}
    return made


def recovery(workload: Workload, peer: Peer, topic: str, seconds: Seconds) -> Round:
    """`kill -9` with data on the disk; the time from the start of the process until every count is right again."""
    del seconds
    assert isinstance(peer, KafkaLikePeer)
    ends = _fill(peer, topic, workload.shape.partitions, workload.records_total)
    peer.kill()
    before = time.monotonic()
    peer.start()
    listening_s = time.monotonic() - before
    while True:
        if len(peer.leaders(topic)) == len(ends):
            break
        if time.monotonic() - before > 120:
            raise LoadFailed(f"{peer.label} did not recover within two minutes")
    serving_s = time.monotonic() - before
    check_stored(peer, topic, sum(ends.values()))
    empty = LoadResult(0, 0, 1.0, 0.0, histogram=Histogram())
    made = make_round(empty, records=0, value_bytes=0, used_cpu_s=_server(peer).cpu_s(), peer=peer)
    made.extra = {"listening_s": round(listening_s, 3), "serving_s": round(serving_s, 3)}
    made.extra["stored_gb"] = round(sum(ends.values()) * 1024 / 1e9, 2)
    return made


WORKLOADS: tuple[Workload, ...] = (
    Workload("1", "one producer, 1 KiB, one in flight", produce, Shape()),
    Workload("2", "64 connections, 1 KiB, one in flight each", produce, Shape(connections=64, partitions=8)),
    Workload("small", "32 connections x 8 x 100 B", produce, Shape(32, 8, 1, 100, 8)),
    Workload("3", "8 connections x 4 x 500 x 1 KiB", produce, Shape(8, 4, 500, 1024, 8)),
    Workload("4", "50 connections x 5 x 100 B over 100 partitions", produce, Shape(50, 5, 1, 100, 100)),
    Workload(
        "1-librdkafka", "librdkafka: one producer, 1 KiB, one in flight", librdkafka, Shape(), needs_kafka=True,
        is_brief=False,
    ),
    Workload(
        "3-librdkafka", "librdkafka: 2 producers, 1 KiB, batches of 5 ms", librdkafka, Shape(2, 1, 500, 1024, 8),
        needs_kafka=True, is_brief=False,
    ),
    Workload(
        "4-librdkafka", "librdkafka: 50 producers, 100 B keyed over 100 partitions, linger 0", librdkafka,
        Shape(50, 1, 1, 100, 100), needs_kafka=True, is_brief=False,
    ),
    Workload("5-1", "64 connections, 1 KiB, 1 partition", produce, Shape(64, 1, 1, 1024, 1), is_brief=False),
    Workload("5-100", "64 connections, 1 KiB, 100 partitions", produce, Shape(64, 1, 1, 1024, 100), is_brief=False),
    Workload(
        "5-1000", "64 connections, 1 KiB, 1,000 partitions", produce, Shape(64, 1, 1, 1024, 1000), is_brief=False,
        needs_kafka=True,
    ),
    Workload(
        "6-catch-up", "8 connections read 2 GB, 1 MiB fetches, warm", catch_up,
        Shape(partitions=8, value_bytes=1 << 20), needs_kafka=True, consumers=8, records_total=2_000_000,
        is_brief=False,
    ),
    Workload(
        "6-tail-1", "1 consumer follows 2,000 records/s", tail, Shape(4, 8, 1, 1024, 1, 2000.0), needs_kafka=True,
        consumers=1, is_brief=False,
    ),
    Workload(
        "6-tail-10", "10 consumers follow 2,000 records/s", tail, Shape(4, 8, 1, 1024, 1, 2000.0), needs_kafka=True,
        consumers=10, is_brief=False,
    ),
    Workload(
        "9", "serving again after kill -9 with 10 GB", recovery, Shape(partitions=8), needs_kafka=True, is_brief=False,
        records_total=10_000_000,
    ),
)  # fmt: skip
