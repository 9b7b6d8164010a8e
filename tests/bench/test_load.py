"""The generator against servers that run: what it counts is what they hold."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tpc_broker.bench.kafka_requests import produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, Connection, LoadFailed, Plan, run_load
from tpc_broker.bench.peers import Shape
from tpc_broker.bench.peers.bare import BarePeer
from tpc_broker.bench.peers.kafka_like import spread
from tpc_broker.bench.peers.nats import NatsPeer
from tpc_broker.bench.peers.peer import Peer
from tpc_broker.bench.peers.redis import RedisPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.server import PeerUnavailable
from tpc_broker.bench.workloads import WORKLOADS, CountsDiffer, Seconds, Workload, check_stored

TINY = Seconds(0.05, 0.3)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcPeer]:
    peer = TpcPeer(tmp_path / "tpc", "durable")
    peer.start()
    try:
        yield peer
    finally:
        peer.kill()


def workload(key: str) -> Workload:
    return next(one for one in WORKLOADS if one.key == key)


def test_produced_records_are_those_that_the_broker_has(broker: TpcPeer) -> None:
    shape = Shape(connections=4, depth=3, records_per_request=5, value_bytes=100, partitions=7)
    found = run_load(broker.produce_plan("t", shape, (0.0, 0.3)))
    assert found.requests_all >= found.requests > 0
    assert found.histogram.count == found.requests
    ends = broker.end_offsets("t", 7)
    assert sum(ends.values()) == found.requests_all * 5
    assert all(ends.values()), "every partition has its share"
    with pytest.raises(CountsDiffer):
        check_stored(broker, "t", found.requests_all * 5 + 1)


@pytest.mark.parametrize("key", ["1-librdkafka", "3-librdkafka"])
def test_librdkafka_counts_what_it_gets_acknowledged(broker: TpcPeer, key: str) -> None:
    made = workload(key).run(workload(key), broker, "t", TINY)
    assert made.records_per_s > 0
    assert made.latency_us["50"] > 0


def test_a_number_of_requests_is_kept_to(broker: TpcPeer) -> None:
    plan = broker.produce_plan("t", Shape(connections=3, depth=2), (0.0, 30.0))
    found = run_load(Plan(KAFKA_PRODUCE, plan.connections, depth=2, warm_up_s=0, measure_s=30, requests_max=50))
    assert found.requests_all == 50 == broker.stored_count("t")


def test_an_open_loop_keeps_its_rate(tmp_path: Path) -> None:
    peer = BarePeer(tmp_path / "bare", "echo")
    peer.start()
    try:
        found = run_load(peer.produce_plan("t", Shape(connections=4, depth=100, rate=400.0), (0.0, 1.0)))
        assert 0 < found.requests_all <= 400, "a closed loop would have answered tens of thousands"
    finally:
        peer.kill()


def test_a_refused_request_ends_the_run_with_its_error(broker: TpcPeer) -> None:
    broker.create_topic("t", 1)
    request = produce_request("t", 5, record_batch(1, 10))
    with pytest.raises(LoadFailed, match="error 3"):
        run_load(Plan(KAFKA_PRODUCE, [Connection("127.0.0.1", broker.port, [request])], measure_s=5))


@pytest.mark.parametrize("key", ["6-tail-1", "6-tail-10"])
def test_followers_get_every_record_once(broker: TpcPeer, key: str) -> None:
    made = workload(key).run(workload(key), broker, "t", TINY)
    assert made.extra["records_read"] == broker.stored_count("t") * workload(key).consumers  # type: ignore[operator]


def test_a_catch_up_reads_all_records(broker: TpcPeer) -> None:
    small = Workload(
        "6-catch-up", "", workload("6-catch-up").run, Shape(partitions=3, value_bytes=1 << 16),
        needs_kafka=True, consumers=3, records_total=20_000,
    )  # fmt: skip
    made = small.run(small, broker, "t", TINY)
    assert made.records_per_s > 0
    assert broker.stored_count("t") == 20_000


def test_recovery_counts_after_kill(broker: TpcPeer) -> None:
    small = Workload("9", "", workload("9").run, Shape(partitions=2), needs_kafka=True, records_total=5_000)
    made = small.run(small, broker, "t", TINY)
    assert 0 < made.extra["listening_s"] <= made.extra["serving_s"]


@pytest.mark.parametrize(("kind", "mode"), [(RedisPeer, "durable"), (NatsPeer, "default"), (BarePeer, "twice")])
def test_other_peers_hold_what_they_acknowledged(tmp_path: Path, kind: type[Peer], mode: str) -> None:
    peer = kind(tmp_path / "peer", mode)
    try:
        peer.start()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    try:
        shape = Shape(connections=4, depth=2, records_per_request=3, value_bytes=100, partitions=2)
        tiny = Workload("t", "", workload("1").run, shape)
        assert tiny.run(tiny, peer, "t", TINY).requests_per_s > 0
        assert peer.stored_count("t") != 0
    finally:
        peer.kill()


def test_every_partition_has_a_connection_to_its_leader() -> None:
    leaders = {partition: ("127.0.0.1", 9000 + partition % 3) for partition in range(100)}
    for connections in (3, 8, 50, 100, 130):
        placed = spread(leaders, connections)
        assert len(placed) == connections
        assert {one for _, partitions in placed for one in partitions} == set(leaders)
        assert all(leaders[one] == address for address, partitions in placed for one in partitions)
