"""The workloads, by the names that bars (`tpc_broker.bench.bars`), tables and plots have for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tpc_broker.bench.bars import CLEANED
from tpc_broker.bench.beside_cleaning import beside_cleaning
from tpc_broker.bench.catching_up import catch_up_of_a_node
from tpc_broker.bench.cleaning import cleaning
from tpc_broker.bench.clients import libraries
from tpc_broker.bench.consuming import catch_up_cold, catch_up_warm, end_to_end, first_lap, maximum, tail
from tpc_broker.bench.failing_often import failovers
from tpc_broker.bench.failing_over import failover
from tpc_broker.bench.grouping import STEADY_MEMBERS, STEADY_PER_S, group_from_nothing, steady_heartbeats
from tpc_broker.bench.idling import idle_connections
from tpc_broker.bench.measured import Workload
from tpc_broker.bench.moving import moves
from tpc_broker.bench.peers import Shape
from tpc_broker.bench.producing import first_writes, idle_partitions, librdkafka, produce
from tpc_broker.bench.rebalancing import rebalance
from tpc_broker.bench.recovering import recovery, recovery_of_partitions
from tpc_broker.bench.resting import cluster_at_rest
from tpc_broker.bench.securing import LOGINS_AT_ONCE, QUOTA, held_by_a_quota, logins, over_tls, with_rights
from tpc_broker.bench.shares import beside_background
from tpc_broker.bench.soak import soak
from tpc_broker.bench.steering import CONNECTIONS, datagrams, forwards, placed_connections
from tpc_broker.bench.storing import storage_shapes
from tpc_broker.bench.storming import CROWD, connect_storm
from tpc_broker.bench.transacting import commit_latency, read_committed, transactions
from tpc_broker.bench.transaction_load import Transactions
from tpc_broker.kafka.compression import Compression

_KAFKA_LIKE: Final = ("tpc", "kafka")
_ALL: Final = ("bare durable", "bare echo", "tpc", "kafka", "redis", "nats")
_BARE_BEHIND: Final = (*_ALL, "bare twice", "bare direct", "bare in_place")
_OURS_AND_DEFAULT: Final = ("tpc durable", "kafka default")
_OURS_AND_DURABLE: Final = ("tpc durable", "kafka durable")
_OURS: Final = ("tpc durable",)
_CLUSTERS: Final = ("bare-cluster", "tpc-cluster", "kafka-cluster", "nats-cluster")
_TAIL: Final = Shape(4, 8, 1, 1024, 1, 2000.0)
_PAIRED: Final = Shape(8, 16, 1, 1024, 8)
_BATCHED: Final = Transactions(producers=4, depth=5, records=15, partitions=10)
_SINGLE: Final = Transactions(producers=64, requests=1)
_BESIDE_IDLE: Final = Shape(64, 64, 1, 1024, 8, 5_000.0)


def _spread_over(partitions: int, title: str, brief: tuple[str, ...] = ()) -> Workload:
    return Workload(
        f"spread-{partitions}", f"64 connections, 1 KiB, {title}", produce, Shape(64, 1, 1, 1024, partitions),
        peers=_KAFKA_LIKE, brief=brief,
    )  # fmt: skip


def _catch_up(name: str, title: str, fetch_bytes: int, *, is_cold: bool = False) -> Workload:
    return Workload(
        f"catch-up-{name}", f"8 connections read all that is stored, {title}",
        catch_up_cold if is_cold else catch_up_warm,
        Shape(partitions=8, value_bytes=fetch_bytes), group="stored", peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT,
        count=8,
    )  # fmt: skip


def _first_lap(batch: str, shape: Shape, fetch_kib: int) -> Workload:
    return Workload(
        f"first-lap-{batch}-{fetch_kib}k",
        f"8 connections read what was just written in batches of {batch}, by fetches of {fetch_kib:,} KiB",
        first_lap(fetch_kib << 10), shape, peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT if fetch_kib == 1024 else (),
        count=8,
    )  # fmt: skip


def _tail(consumers: int) -> Workload:
    return Workload(
        f"tail-{consumers}", f"{consumers} consumers follow 2,000 records/s of 1 KiB", tail, _TAIL, group="tail",
        peers=_KAFKA_LIKE, brief=_OURS, count=consumers,
    )  # fmt: skip


def _end_to_end(percent: int, brief: tuple[str, ...] = ()) -> Workload:
    return Workload(
        f"end-to-end-{percent}", f"from due to consumed, open loop at {percent} % of the maximum", end_to_end, _PAIRED,
        group="end-to-end", peers=_KAFKA_LIKE, brief=brief, share=percent / 100,
    )  # fmt: skip


def _idle(connections: int, brief: tuple[str, ...] = ()) -> Workload:
    return Workload(
        f"idle-connections-{connections}",
        f"5,000 requests/s of 1 KiB in open loop beside {connections:,} idle connections",
        idle_connections, _BESIDE_IDLE, group="idle", peers=("tpc", "kafka default"), brief=brief, count=connections,
    )  # fmt: skip


def _group(members: int, partitions: int, brief: tuple[str, ...]) -> Workload:
    return Workload(
        f"group-{members}", f"{members} members of a consumer group come at once to {partitions:,} partitions",
        group_from_nothing, Shape(members, 1, 1, 1024, partitions), peers=_KAFKA_LIKE, brief=brief,
    )  # fmt: skip


def _cluster(name: str, title: str, shape: Shape) -> Workload:
    return Workload(
        f"cluster-{name}", f"three nodes: {title}", produce, shape, group="cluster", peers=_CLUSTERS,
        brief=("bare-cluster", "tpc-cluster durable", "kafka-cluster default", "nats-cluster default"),
    )  # fmt: skip


def _transactions(name: str, title: str, every_ms: float) -> Workload:
    return Workload(
        f"transactions-{name}", f"4 idempotent producers, batches of 16 KiB to 10 partitions, {title}",
        transactions(replace(_BATCHED, every_ms=every_ms)), group="transactions", peers=_KAFKA_LIKE,
        brief=_OURS_AND_DEFAULT,
    )  # fmt: skip


def _commit_latency(partitions: int) -> Workload:
    return Workload(
        f"commit-latency-{partitions}",
        f"transactions of one record of 1 KiB in each of {partitions}, one at a time: from EndTxn until it was read",
        commit_latency(Transactions(partitions=partitions, requests=1, is_followed=True)), group="commit-latency",
        peers=_KAFKA_LIKE, brief=("tpc durable", "kafka"),
    )  # fmt: skip


def _client(load: str, title: str, count: int, **slower: int) -> Workload:
    by_library = {name.replace("_", "-"): fewer for name, fewer in slower.items()}
    return Workload(
        f"client-{load}", f"our client in Python beside others: {title}", libraries(load, count, by_library),
        group="client", peers=("tpc durable", "kafka default"), brief=_OURS,
    )  # fmt: skip


WORKLOADS: Final[tuple[Workload, ...]] = (
    Workload(
        "latency", "one producer, 1 KiB, one in flight", produce, Shape(), peers=_ALL,
        brief=("bare durable", "bare echo", "tpc durable", "tpc plain", "kafka", "redis", "nats"),
    ),
    Workload(
        "connections", "64 connections, 1 KiB, one in flight each", produce, Shape(connections=64, partitions=8),
        peers=_BARE_BEHIND,
        brief=("bare durable", "bare echo", "tpc durable", "tpc plain", "kafka", "redis default", "nats default"),
    ),
    Workload(
        "small", "32 connections x 8 x 100 B", produce, Shape(32, 8, 1, 100, 8), peers=_ALL,
        brief=("bare durable", "bare echo", "tpc", "kafka default", "redis default", "nats default"),
    ),
    Workload(
        "batches", "8 connections x 4 x 500 x 1 KiB", produce, Shape(8, 4, 500, 1024, 8), peers=_BARE_BEHIND,
        brief=("bare durable", "bare twice", "bare direct", "bare in_place", "tpc durable", "kafka"),
    ),
    Workload(
        "partitions", "50 connections x 5 x 100 B over 100 partitions", produce, Shape(50, 5, 1, 100, 100),
        peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT,
    ),
    Workload(
        "librdkafka-latency", "librdkafka: one producer, 1 KiB, one in flight", librdkafka, Shape(), peers=_KAFKA_LIKE
    ),
    Workload(
        "librdkafka-batches", "librdkafka: 2 producers, 1 KiB, batches of 5 ms", librdkafka,
        Shape(2, 20_000, 500, 1024, 8), peers=_KAFKA_LIKE,
    ),
    Workload(
        "librdkafka-keyed", "librdkafka: 50 producers x 100 x 100 B keyed over 100 partitions, linger 0", librdkafka,
        Shape(50, 100, 1, 100, 100), peers=_KAFKA_LIKE,
    ),
    _spread_over(1, "1 partition", _OURS),
    _spread_over(100, "100 partitions"),
    _spread_over(1000, "1,000 partitions", _OURS),
    _spread_over(5000, "5,000 partitions"),
    Workload(
        "first-writes-5000", "64 connections, 1 KiB, over 5,000 partitions from their first records on", first_writes,
        Shape(64, 1, 1, 1024, 5000), peers=("tpc",), brief=_OURS,
    ),
    Workload(
        "idle-partitions", "memory of 5,000 partitions that nobody uses", idle_partitions, Shape(64, 1, 1, 100, 5000),
        peers=_OURS_AND_DEFAULT, brief=_OURS,
    ),
    _catch_up("warm", "1 MiB fetches, from the page cache", 1 << 20),
    _catch_up("warm-64k", "64 KiB fetches, from the page cache", 1 << 16),
    _catch_up("cold", "1 MiB fetches, from the disk", 1 << 20, is_cold=True),
    *(_first_lap("16k", Shape(16, 16, 15, 1024, 8), fetch_kib) for fetch_kib in (1024, 64)),
    *(_first_lap("100k", Shape(8, 8, 100, 1024, 8), fetch_kib) for fetch_kib in (1024, 64)),
    _first_lap("500k", Shape(8, 4, 500, 1024, 8), 1024),
    Workload(
        "recovery", "serving again after kill -9", recovery, group="stored", peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT
    ),
    Workload(
        "recovery-partitions", "serving again after kill -9 behind the first writes of 2,000 partitions",
        recovery_of_partitions, Shape(64, 1, 1, 1024, 2000), peers=("tpc",), brief=_OURS,
    ),
    _tail(1),
    _tail(10),
    Workload(
        "end-to-end-maximum", "8 producers and 8 consumers, 1 KiB, 16 in flight each", maximum, _PAIRED,
        group="end-to-end", peers=_KAFKA_LIKE, brief=_OURS_AND_DURABLE,
    ),
    _end_to_end(10, _OURS_AND_DURABLE),
    _end_to_end(50, _OURS_AND_DURABLE),
    _end_to_end(80, _OURS_AND_DURABLE),
    _idle(0),
    _idle(1_000),
    _idle(10_000, _OURS),
    Workload(
        "storage", "storage without a network: 10,000 records at a time", storage_shapes, peers=_OURS, brief=_OURS,
        needs_server=False,
    ),
    Workload(
        "forwards", "2 cores: 32 connections, 1 KiB, to a port a core and to one for all", forwards,
        Shape(32, 1, 1, 1024, 8), peers=_OURS, brief=_OURS, needs_server=False,
    ),
    Workload(
        "steering", "2 cores: 64 connections at once, placed by the kernel's program", placed_connections,
        Shape(connections=CONNECTIONS), peers=_OURS, brief=_OURS, needs_server=False,
    ),
    Workload(
        "datagrams", "2 cores: datagrams of 100 B, 16 senders with 64 under way each", datagrams,
        Shape(16, 64, 1, 100, 8), peers=_OURS, needs_server=False,
    ),
    Workload(
        "move", "2 cores: 100 MB/s of librdkafka to a partition that goes back and forth between them", moves,
        peers=_OURS, needs_server=False,
    ),
    Workload(
        "shares", "8 connections, 2,000 requests/s of 1 KiB in open loop, beside a saturated background queue",
        beside_background, Shape(8, 16, 1, 1024, 8, 2000.0), peers=_OURS, needs_server=False,
    ),
    Workload(
        "tls-batches", "8 connections x 4 x 500 x 1 KiB, over TLS and without it, in turn", over_tls,
        Shape(8, 4, 500, 1024, 8), peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT, needs_server=False,
    ),
    Workload(
        "tls-connections", "64 connections, 1 KiB, one in flight each, over TLS and without it, in turn", over_tls,
        Shape(64, 1, 1, 1024, 8), peers=_KAFKA_LIKE, brief=_OURS, needs_server=False,
    ),
    Workload(
        "rights", "64 connections, 1 KiB, one in flight each, with an authorizer and without one, in turn", with_rights,
        Shape(64, 1, 1, 1024, 8), peers=_OURS, brief=_OURS, needs_server=False,
    ),
    Workload(
        "logins", f"{LOGINS_AT_ONCE} clients that log in by SCRAM-SHA-256 and go, again and again", logins,
        peers=_OURS, brief=_OURS, count=LOGINS_AT_ONCE, needs_server=False,
    ),
    Workload(
        "quota", f"a client that sends as much as it is let at a quota of {QUOTA / 1e6:g} MB/s, and a bystander",
        held_by_a_quota, Shape(), peers=_KAFKA_LIKE, brief=_OURS,
    ),
    Workload(
        "connect-storm", f"{CROWD:,} clients that connect at once, by TLS or with a login, and a bystander",
        connect_storm, Shape(1, 1, 1, 1024, 8), peers=_OURS, brief=_OURS, count=CROWD, needs_server=False,
    ),
    _group(50, 50, _OURS),
    _group(500, 1_000, _OURS_AND_DEFAULT),
    Workload(
        "group-heartbeats", f"{STEADY_MEMBERS} members of a stable group, {STEADY_PER_S:,} heartbeats/s in all",
        steady_heartbeats, Shape(STEADY_MEMBERS, 1, 1, 1024, STEADY_MEMBERS, float(STEADY_PER_S)), peers=_KAFKA_LIKE,
        brief=_OURS_AND_DEFAULT,
    ),
    _transactions("plain", "without transactions", 0.0),
    _transactions("100ms", "a commit every 100 ms", 100.0),
    _transactions("10ms", "a commit every 10 ms", 10.0),
    _commit_latency(1),
    _commit_latency(10),
    Workload(
        "transactions-single", "64 producers, transactions of one record of 1 KiB", transactions(_SINGLE),
        peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT,
    ),
    Workload(
        "read-committed", "8 connections read what transactions wrote, 1 % of them aborted, 1 MiB fetches",
        read_committed, Shape(partitions=8, value_bytes=1 << 20), peers=_KAFKA_LIKE, brief=_OURS_AND_DEFAULT, count=8,
    ),
    *(
        Workload(
            f"cleaning-{codec}", f"one thread cleans a log ({codec}), half of which is dead",
            cleaning(Compression[codec.upper()]), peers=_OURS_AND_DEFAULT, brief=_OURS_AND_DEFAULT, needs_server=False,
        )
        for codec in CLEANED
    ),
    Workload(
        "produce-while-cleaning", "1,000 requests/s of 1 and 16 KiB in open loop, beside a cleaner and without one",
        beside_cleaning, Shape(4, 64, 1, 1024, 4, 1000.0), peers=_OURS, brief=_OURS, needs_server=False,
    ),
    _client("one", "1 KiB, one in flight", 4_000),
    _client("post", "100 B, as fast as it takes them", 1_000_000, aiokafka=200_000, confluent_aio=200_000),
    _client("send-all", "1 KiB, many at once", 300_000, aiokafka=100_000, confluent_aio=100_000),
    _client("consume", "100 B, one record an await", 1_000_000, aiokafka=200_000, confluent_aio=50_000),
    _client("batches", "100 B in the batches that it gives", 2_000_000, aiokafka=500_000),
    _cluster("latency", "one producer, 1 KiB, one in flight", Shape()),
    _cluster("connections", "64 connections, 1 KiB, one in flight each", Shape(64, 1, 1, 1024, 8)),
    _cluster("batches", "8 connections x 4 x 500 x 1 KiB", Shape(8, 4, 500, 1024, 8)),
    _cluster("partitions", "50 connections x 5 x 100 B over 100 partitions", Shape(50, 5, 1, 100, 100)),
    Workload(
        "cluster-failover", "three nodes: 1,000 records/s of 1 KiB over 12 partitions, kill -9 of a leader", failover,
        Shape(1, 1, 1, 1024, 12, 1000.0), group="cluster", peers=("tpc-cluster", "kafka-cluster"),
        brief=("tpc-cluster durable", "kafka-cluster default"),
    ),
    Workload(
        "cluster-failovers", "three nodes: 500 records/s of 100 B over 100 partitions; kills, pauses and isolations",
        failovers, Shape(1, 1, 1, 100, 100, 500.0), peers=("tpc-hosts durable",), brief=("tpc-hosts durable",),
    ),
    Workload(
        "cluster-rebalance",
        "three nodes: 1,000 records/s of 1 KiB over 2,000 partitions while two more join, and leave again", rebalance,
        Shape(1, 1, 1, 1024, 2000, 1000.0), peers=("tpc-cluster",), brief=("tpc-cluster durable",),
    ),
    Workload(
        "cluster-catch-up", "three nodes: one was away while half of what is stored elsewhere was written",
        catch_up_of_a_node, Shape(16, 16, 15, 1024, 8), peers=("tpc-cluster", "kafka-cluster"),
        brief=("tpc-cluster durable",),
    ),
    Workload(
        "cluster-idle", "three nodes: 10,000 partitions that nobody uses", cluster_at_rest, count=10_000,
        peers=("tpc-cluster durable",), brief=("tpc-cluster durable",),
    ),
    Workload(
        "soak", "10,000 requests/s of 1 KiB, each read as it is written, for long", soak,
        Shape(8, 2048, 1, 1024, 8, 10_000.0), peers=_KAFKA_LIKE, is_asked_for=True,
    ),
)  # fmt: skip
