"""The generator against servers that run: what it counts is what they hold."""

import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.failing_over import Acknowledged
from tpc_broker.bench.kafka_requests import produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, Connection, LoadFailed, Plan, RunningLoad, run_load
from tpc_broker.bench.measured import CountsDiffer, Extent, Round, Stage, Workload, check_stored
from tpc_broker.bench.peers import Shape
from tpc_broker.bench.peers.bare import BareClusterPeer, BarePeer
from tpc_broker.bench.peers.clusters import NatsClusterPeer
from tpc_broker.bench.peers.kafka_like import spread
from tpc_broker.bench.peers.nats import NatsPeer
from tpc_broker.bench.peers.peer import Peer
from tpc_broker.bench.peers.redis import RedisPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.server import PeerUnavailable, Servers
from tpc_broker.bench.workloads import WORKLOADS

pytestmark = pytest.mark.machine

SILENT_S = 0.3
"""For so long there is no answer; it comes when the third goes on."""
TINY = Extent(warm_up=0.05, measured=0.3, gigabytes=0.02, soak_minutes=0.02)
LONGER = replace(TINY, measured=2.0)
"""Where something has to be answered in that time: a shared disk may stand still for longer than TINY's."""


@pytest.fixture(scope="module")
def broker(module_tmp_path: Path) -> Iterator[TpcPeer]:
    """One for all tests: each has topics of its own."""
    peer = TpcPeer(module_tmp_path / "bench" / "tpc", "durable")
    peer.start()
    try:
        yield peer
    finally:
        peer.kill()


@pytest.fixture
def stage(broker: TpcPeer) -> Iterator[Stage]:
    made = Stage(broker, TINY)
    yield made
    for one in made.idle:
        one.close()
    broker.topic_extras = {}


def workload(key: str) -> Workload:
    return next(one for one in WORKLOADS if one.key == key)


def run(stage: Stage, key: str) -> Round:
    return workload(key).run(workload(key), stage)


def test_produced_records_are_those_that_the_broker_has(broker: TpcPeer) -> None:
    shape = Shape(connections=4, depth=3, records_per_request=5, value_bytes=100, partitions=7)
    found = run_load(broker.produce_plan("t1", shape, (0.0, 2.0)))
    assert found.requests_all >= found.requests > 0
    assert found.histogram.count == found.requests
    ends = broker.end_offsets("t1", 7)
    assert sum(ends.values()) == found.requests_all * 5
    assert all(ends.values()), "every partition has its share"
    with pytest.raises(CountsDiffer):
        check_stored(broker, "t1", found.requests_all * 5 + 1, within_s=0.1)


@pytest.mark.parametrize("key", ["librdkafka-latency", "librdkafka-batches", "librdkafka-keyed"])
def test_librdkafka_counts_what_it_gets_acknowledged(stage: Stage, key: str) -> None:
    stage.extent = LONGER
    made = run(stage, key)
    assert made.records_per_s > 0
    assert made.latency_us["50"] > 0


def test_a_number_of_requests_is_kept_to(broker: TpcPeer) -> None:
    plan = broker.produce_plan("t3", Shape(connections=3, depth=2), (0.0, 30.0))
    found = run_load(Plan(KAFKA_PRODUCE, plan.connections, depth=2, warm_up_s=0, measure_s=30, requests_max=50))
    assert found.requests_all == 50 == broker.stored_count("t3")


def test_the_longest_silence_is_that_of_a_server_that_was_stopped(tmp_path: Path) -> None:
    peer = BarePeer(tmp_path / "bare", "echo")
    peer.start()
    assert peer.server is not None
    pid = peer.server.pids()[0]
    try:
        with RunningLoad(peer.produce_plan("t", Shape(connections=4), (0.0, 2.0))) as running:
            time.sleep(0.5)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.4)
            os.kill(pid, signal.SIGCONT)
            found = running.result()
        assert 0.3 < found.silence_longest_s < 2.0
    finally:
        peer.kill()


def test_an_open_loop_keeps_its_rate(tmp_path: Path) -> None:
    peer = BarePeer(tmp_path / "bare", "echo")
    peer.start()
    try:
        found = run_load(peer.produce_plan("t", Shape(connections=4, depth=100, rate=400.0), (0.0, 1.0)))
        assert 0 < found.requests_all <= 400, "a closed loop would have answered tens of thousands"
        assert found.lateness.count == found.histogram.count == found.requests_all
        closed = run_load(peer.produce_plan("t", Shape(connections=4), (0.0, 0.1)))
        assert closed.requests_all > 0
        assert closed.lateness.count == 0, "nothing is due at a time of its own"
    finally:
        peer.kill()


def journal_of(peer: BareClusterPeer, member: int, size: int) -> bytes:
    with (peer.folder / f"journal-{peer._port + member}").open("rb") as file:
        return file.read(size)


def test_the_bare_leader_answers_when_one_follower_has_what_it_has(tmp_path: Path) -> None:
    """Both followers are stopped, then one of them goes on."""
    batch = record_batch(3, 100)
    peer = BareClusterPeer(tmp_path / "bare", "durable")
    peer.start()
    assert isinstance(peer.server, Servers)
    try:
        second, third = (member.pids()[0] for member in peer.server.members[1:])
        os.kill(second, signal.SIGSTOP)
        os.kill(third, signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", peer._port)) as client:
            client.sendall(produce_request("t", 7, batch))
            eventually(lambda: journal_of(peer, 0, len(batch)) == batch, "it is in the journal of one")
            client.settimeout(SILENT_S)
            with pytest.raises(TimeoutError):
                client.recv(1)
            os.kill(third, signal.SIGCONT)
            client.settimeout(PATIENCE_S)
            assert client.recv(4)
        assert [journal_of(peer, member, len(batch)) for member in range(3)] == [batch, bytes(len(batch)), batch]
    finally:
        peer.kill()


def test_three_nats_servers_hold_what_they_acknowledge(tmp_path: Path) -> None:
    peer = NatsClusterPeer(tmp_path / "nats", "default")
    try:
        peer.start()
        made = run(Stage(peer, LONGER), "cluster-latency")
        assert made.requests_per_s > 0
        replicas = peer._ask("STREAM.INFO.load-cluster-latency", {})["cluster"]["replicas"]
        assert len(replicas) == 2, "beside the leader"
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    finally:
        peer.kill()


def test_after_a_kill_only_what_was_handed_over_afterwards_shows_that_a_partition_is_back() -> None:
    found = Acknowledged()
    second = 10**9
    found.times_ns = {
        0: [(0, second), (1 * second, 5 * second), (5 * second, 9 * second), (6 * second, 7 * second)],
        1: [(6 * second, 8 * second)],
        2: [(3 * second, 4 * second)],
    }
    assert found.again_after_s(4 * second) == {0: 3.0, 1: 4.0}
    slots = found.slots(second, 70)
    assert {place: count for place, count in enumerate(slots) if count} == {0: 1, 30: 1, 40: 1, 60: 1}
    found.seen(None, 3, 0)
    assert 3 in found.times_ns
    assert not found.failed


def test_what_waits_for_room_in_open_loop_is_late_and_its_lateness_is_part_of_its_latency(tmp_path: Path) -> None:
    """One request under way and far more due than the server answers: almost all of a latency is the wait before."""
    peer = BarePeer(tmp_path / "bare", "echo")
    peer.start()
    try:
        plan = peer.produce_plan("t", Shape(connections=1, depth=1, rate=100_000.0), (0.0, 0.1))
        found = run_load(plan)
    finally:
        peer.kill()
    late_us, latency_us = found.lateness.percentiles_us()["50"], found.histogram.percentiles_us()["50"]
    assert found.requests_all == 10_000, "all that was due in the time is sent, however late"
    assert 0.5 * latency_us < late_us <= latency_us


def test_a_refused_request_ends_the_run_with_its_error(broker: TpcPeer) -> None:
    broker.create_topic("t5", 1)
    request = produce_request("t5", 5, record_batch(1, 10))
    with pytest.raises(LoadFailed, match="error 3"):
        run_load(Plan(KAFKA_PRODUCE, [Connection("127.0.0.1", broker.port, [request])], measure_s=5))


def test_followers_get_every_record_once(stage: Stage) -> None:
    for consumers in (1, 10):
        made = run(stage, f"tail-{consumers}")
        stored = stage.peer.stored_count(f"tail-{consumers}")
        assert stored
        assert made.extra["records_read"] == stored * consumers


def test_stored_records_are_read_warm_and_cold_and_after_kill(stage: Stage) -> None:
    """One stage, filled once."""
    warm, small, cold = (run(stage, f"catch-up-{name}") for name in ("warm", "warm-64k", "cold"))
    assert min(warm.mb_per_s, small.mb_per_s, cold.mb_per_s) > 0
    assert warm.requests_per_s / warm.mb_per_s < small.requests_per_s / small.mb_per_s, "smaller answers"
    assert cold.extra["cached_before_percent"] < 5
    recovered = run(stage, "recovery")
    assert 0 < recovered.extra["listening_s"] <= recovered.extra["serving_s"]
    assert sum(stage.ends.values()) == stage.peer.stored_count("stored")


def test_what_was_just_written_is_read_once_by_nobody_before(stage: Stage) -> None:
    made = run(stage, "first-lap-100k-64k")
    assert made.mb_per_s > 0
    assert 0 < made.extra["stored_gb"] == TINY.gigabytes
    stored = stage.peer.stored_count("first-lap")
    assert stored == max(1, round(TINY.gigabytes * 1e9 / 102_400)) * 100


def test_partitions_that_were_just_written_are_there_after_kill(tmp_path: Path) -> None:
    peer = TpcPeer(tmp_path / "bench" / "tpc", "durable")
    peer.start()
    try:
        few = Workload("few", "", workload("recovery-partitions").run, Shape(4, 1, 1, 100, 80))
        made = few.run(few, Stage(peer, TINY))
        assert 0 < made.extra["serving_least_s"] <= made.extra["serving_s"] <= made.extra["serving_most_s"]
        assert peer.stored_count("load-few") == 80
    finally:
        peer.kill()


def test_first_writes_are_measured_from_the_first_record_on(stage: Stage) -> None:
    few = Workload("first", "", workload("first-writes-5000").run, Shape(4, 1, 1, 100, 60))
    made = few.run(few, stage)
    assert made.extra["longest_silence_ms"] > 0
    assert made.extra["of_one_partitions_rate"] > 0
    assert stage.peer.stored_count("load-first")


def test_end_to_end_latency_is_that_of_every_record(stage: Stage) -> None:
    made = run(stage, "end-to-end-50")
    rate = stage.facts["maximum"] * 0.5
    counted = sum(count for _, count in made.buckets)
    assert counted == pytest.approx(rate * TINY.measured, rel=0.05, abs=8), "what was due in the measured time"
    assert made.latency_us["50"] >= made.extra["acknowledged_p50_us"] / 2 > 0
    assert 0 < made.extra["sent_late_p99_us"] <= made.extra["acknowledged_p99_us"]


def test_idle_connections_are_there_while_the_load_runs(stage: Stage) -> None:
    stage.extent = LONGER
    shape = Shape(2, 8, 1, 100, 2, 200.0)
    some = Workload("idle-connections-50", "", workload("idle-connections-1000").run, shape, count=50)
    made = some.run(some, stage)
    assert made.extra["idle_connections"] == len(stage.idle) == 50
    assert made.requests_per_s > 0
    assert made.extra["p99_ratio"] * made.extra["p99_us_of_runs_without"] == pytest.approx(made.extra["p99_us_of_runs"])
    again = run(stage, "idle-connections-0")
    assert not stage.idle, "nobody is beside the load that is measured without them"
    assert not again.extra


def test_memory_of_idle_partitions_is_taken_per_process(stage: Stage) -> None:
    some = Workload("idle-partitions", "", workload("idle-partitions").run, Shape(4, 1, 1, 100, 100))
    made = some.run(some, stage)
    assert made.extra["kib_per_partition_written"] > 0
    assert stage.peer.stored_count("idle") == 200


def test_a_soak_reads_all_that_it_writes(stage: Stage) -> None:
    made = run(stage, "soak")
    assert stage.peer.stored_count("soak")
    assert made.series["resident MiB"]
    assert not made.extra["memory_grows"]


def test_records_that_are_missing_end_a_read(broker: TpcPeer) -> None:
    """The broker's log starts later than the reader was told: the generator must not pass over that."""
    run_load(broker.produce_plan("t12", Shape(records_per_request=10), (0.0, 0.1)))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition("t12", 0, 10)]).values():
        future.result()
    plan = Plan(KAFKA_PRODUCE, fetches=broker.fetches("t12", 1, 1, bytes_max=1000, ends={0: 20}), measure_s=5)
    with pytest.raises(LoadFailed, match="error 1"):
        run_load(plan)


@pytest.mark.parametrize(
    ("kind", "mode"), [(RedisPeer, "durable"), (NatsPeer, "default"), (BarePeer, "direct"), (BarePeer, "in_place")]
)
def test_other_peers_hold_what_they_acknowledged(tmp_path: Path, kind: type[Peer], mode: str) -> None:
    peer = kind(tmp_path / "peer", mode)
    try:
        peer.start()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    try:
        shape = Shape(connections=4, depth=2, records_per_request=3, value_bytes=100, partitions=2)
        tiny = Workload("t", "", workload("latency").run, shape)
        assert tiny.run(tiny, Stage(peer, LONGER)).requests_per_s > 0
        assert peer.stored_count("load-t") != 0
    finally:
        peer.kill()


def test_every_partition_has_a_connection_to_its_leader() -> None:
    leaders = {partition: ("127.0.0.1", 9000 + partition % 3) for partition in range(100)}
    for connections in (3, 8, 50, 100, 130):
        placed = spread(leaders, connections)
        assert len(placed) == connections
        assert {one for _, partitions in placed for one in partitions} == set(leaders)
        assert all(leaders[one] == address for address, partitions in placed for one in partitions)
