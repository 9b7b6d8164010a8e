"""The admin endpoint of a running broker: metrics by the official parsers, health that tells the truth, counters."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.support.broker_process import run_command, run_here
from tests.support.ports import free_port_range
from tests.support.raw_client import RawConnection
from tests.support.shared_servers import SharedBroker, once
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.options import LOOPBACK, AdminAddress, StartError, parse_admin
from tpc_broker.telemetry.cluster_metrics import cluster_metrics, replica_metrics
from tpc_broker.telemetry.counters import CoreStatus
from tpc_broker.telemetry.health import Disk, health_of
from tpc_broker.telemetry.metrics import COUNTED, CoreMetrics
from tpc_broker.telemetry.pushed.standard import Kind

RECORDS = 30
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
API_NAMES = {api(key).name for key in ApiKey}


class Watched:
    """A broker with an admin endpoint, to which some records are written."""

    def __init__(self, broker: SharedBroker) -> None:
        self.broker = broker
        self.port = broker.admin_port
        self.other = broker.other_port  # and the next one: of a second listener

    def get(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Status, content type and body."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        finally:
            connection.close()

    def cores(self) -> list[dict[str, Any]]:
        """What `/debug` tells of each; asked again until all have answered in time."""

        def all_have_answered() -> list[dict[str, Any]] | None:
            found: list[dict[str, Any]] = json.loads(self.get("/debug")[2])["cores"]
            return found if all("counters" in core for core in found) else None

        return eventually(all_have_answered, "all cores' counters") or []

    def metrics(self) -> dict[str, Metric]:
        """By name; asked again until all cores have answered in time."""

        def of_all_cores() -> dict[str, Metric] | None:
            _status, _type, text = self.get("/metrics", headers=OPENMETRICS)
            found = {family.name: family for family in parse_openmetrics(text)}
            return found if all(samples(found["tpc_core_up"], "tpc_core_up")) else None

        return eventually(of_all_cores, "the metrics of all cores") or {}


@pytest.fixture
def watched(shared_broker: SharedBroker) -> Watched:
    found = Watched(shared_broker)
    once(shared_broker, write, found)
    return found


def write(watched: Watched) -> None:
    admin = AdminClient({"bootstrap.servers": watched.broker.bootstrap})
    if "test-admin" not in admin.list_topics(timeout=PATIENCE_S).topics:
        admin.create_topics([NewTopic("test-admin", 2, 1)])["test-admin"].result()
    patience = {"request.timeout.ms": 1000 * PATIENCE_S, "message.timeout.ms": 2000 * PATIENCE_S}  # none is sent twice
    producer = Producer({"bootstrap.servers": watched.broker.bootstrap, "linger.ms": 0, "acks": "all", **patience})
    for number in range(RECORDS):
        producer.produce("test-admin", b"value", partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0


def samples(family: Metric, name: str, **labels: str) -> list[float]:
    return [
        sample.value for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]  # fmt: skip


def test_every_metric_is_there_in_both_formats(watched: Watched) -> None:
    status, kind, text = watched.get("/metrics", headers=OPENMETRICS)
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")
    families = {family.name: family for family in parse_openmetrics(text)}
    assert {row.name.removesuffix("_total") for row in COUNTED} <= families.keys()
    assert all(name.startswith("tpc_") and family.documentation for name, family in families.items())
    status, kind, text = watched.get("/metrics")
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    # The older format names a counter with its `_total`, and knows no info.
    assert {family.name for family in parse_text(text)} >= families.keys() - {"tpc_build", "tpc_backend", "tpc_cluster"}


def test_without_a_cluster_its_metrics_have_no_samples(watched: Watched) -> None:
    expected = [family.name for family in (*cluster_metrics(None), *replica_metrics([]))]
    found = watched.metrics()
    assert found.keys() >= set(expected)
    assert not [name for name in expected if found[name].samples]
    assert "cluster" not in json.loads(watched.get("/debug")[2])["cores"][0]


def test_nothing_that_clients_choose_is_a_label(watched: Watched) -> None:
    for key in (4, 7):  # LeaderAndIsr and ControlledShutdown of old Kafka brokers
        with RawConnection(LOOPBACK, int(watched.broker.bootstrap.rpartition(":")[2]), PATIENCE_S) as connection:
            connection.send_frame(struct.pack(">hhih", key, 0, 1, -1))
            connection.wait_closed()
    labels: dict[str, set[str]] = {}
    for family in watched.metrics().values():
        for sample in family.samples:
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    assert labels.keys() == {"core", "api", "reason", "queue", "version", "le", "listener", "backend", "kind"}
    assert labels["kind"] == {kind.value for kind in Kind}
    assert labels["listener"] == {"PLAINTEXT", "TWO"}
    assert labels["core"] == {"0", "1"}
    assert "unknown" in labels["api"] <= API_NAMES | {"unknown"}


def test_latencies_count_every_request(watched: Watched) -> None:
    before = of_produces(watched)
    write(watched)
    after = of_produces(watched)
    added = {name: after[name] - before[name] for name in after}
    assert added["count"] == added["+Inf"] == RECORDS
    assert 0 < added["sum"] < RECORDS * PATIENCE_S
    # A produce that is durable waits for the disk: none is answered in the batch of completions that brought it.
    assert added["1e-06"] == 0


def of_produces(watched: Watched) -> dict[str, float]:
    """Count and sum of their latencies, and what is at most so long."""
    family = watched.metrics()["tpc_request_seconds"]
    assert family.type == "histogram"
    found = {name: sum(samples(family, f"tpc_request_seconds_{name}", api="Produce")) for name in ("count", "sum")}
    for le in ("1e-06", "+Inf"):
        found[le] = sum(samples(family, "tpc_request_seconds_bucket", api="Produce", le=le))
    return found


def test_counters_are_those_of_what_was_done(watched: Watched) -> None:
    found = watched.metrics()
    assert sum(samples(found["tpc_batches_appended"], "tpc_batches_appended_total")) >= RECORDS
    assert samples(found["tpc_core_up"], "tpc_core_up") == [1, 1]
    assert samples(found["tpc_disk_free_bytes"], "tpc_disk_free_bytes")[0] > 0
    used, size = (samples(found[name], name) for name in ("tpc_journal_used_bytes", "tpc_journal_bytes"))
    assert all(one <= bound for one, bound in zip(used, size, strict=True))
    commits = samples(found["tpc_journal_commits"], "tpc_journal_commits_total", core="0")
    spans = samples(found["tpc_journal_commit_seconds"], "tpc_journal_commit_seconds_bucket", core="0", le="+Inf")
    assert spans[0] >= commits[0] > 0


def test_what_is_written_fills_the_journal_until_a_checkpoint(watched: Watched) -> None:
    def is_filled() -> bool:
        write(watched)
        family = watched.metrics()["tpc_journal_used_bytes"]
        return any(samples(family, "tpc_journal_used_bytes"))

    eventually(is_filled, "bytes in use in a journal")


def test_each_listener_has_its_own_figures(watched: Watched) -> None:
    """Of connections that are open, and of those that are no more."""
    nobody = ("connections", "TWO")
    eventually(lambda: listener_figures(watched)[nobody] == 0, "who was there before is seen to have gone")
    before = listener_figures(watched)
    with RawConnection(LOOPBACK, watched.other) as client:
        client.ask("ApiVersions", 0, {})
        after = listener_figures(watched)
    differences = {key: after[key] - before[key] for key in after}
    of_two = {name: count for (name, listener), count in differences.items() if listener == "TWO"}
    assert (of_two["connections"], of_two["opened"], of_two["requests"], of_two["refused"]) == (1, 1, 1, 0)
    assert of_two["received_bytes"] > 10
    assert of_two["sent_bytes"] > 100
    eventually(lambda: listener_figures(watched)[nobody] == 0, "the connection is closed")
    closed = listener_figures(watched)
    assert {name: closed[name, "TWO"] - after[name, "TWO"] for name in of_two} == {
        "connections": -1, "opened": 0, "refused": 0, "requests": 0, "received_bytes": 0, "sent_bytes": 0,
    }  # fmt: skip
    for counters in (core["counters"] for core in watched.cores()):  # there are no links, so listeners are all there is
        for name in of_two:
            assert sum(listener[name] for listener in counters["listeners"]) == counters["connections"][name]


def listener_figures(watched: Watched) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for core in watched.cores():
        for name, numbers in zip(("PLAINTEXT", "TWO"), core["counters"]["listeners"], strict=True):
            for field, count in numbers.items():
                found[field, name] = found.get((field, name), 0) + count
    return found


def test_debug_tells_all_counters_and_the_slowest_requests(watched: Watched) -> None:
    status, kind, _text = watched.get("/debug")
    assert (status, kind.partition(";")[0]) == (200, "application/json")
    slowest: list[dict[str, Any]] = []

    def a_batch_of_ours() -> list[dict[str, Any]]:
        """Other tests have sent what takes longer, or is no batch: the minute after this one knows nothing of it."""
        write(watched)
        slowest[:] = [one for core in watched.cores() for one in core["counters"]["slowest"]]
        assert 0 < len(slowest) <= 2 * 16 * 2
        return [one for one in slowest if one["api"] == "Produce" and one["request_bytes"] > 50]

    produces = eventually(a_batch_of_ours, "one of the slowest requests is a Produce with a batch")
    assert all(one["took_ms"] > 0 and one["ago_s"] >= 0 for one in produces)
    assert not [one for one in slowest if one["api"] == "Fetch"]


def test_what_is_not_there_is_said(watched: Watched) -> None:
    eventually(lambda: watched.get("/ready", "HEAD")[::2] == (200, ""), "ready, without a body")
    assert watched.get("/live") == (200, "text/plain; charset=utf-8", "live\n")
    status, _type, text = watched.get("/metric")
    assert (status, text) == (404, "there is no /metric; there are /metrics, /live, /ready, /debug\n")
    assert watched.get("/metrics", "POST")[0] == 405
    with socket.create_connection((LOOPBACK, watched.port), timeout=PATIENCE_S) as client:
        client.sendall(b"\x00\x00nonsense\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400 ")
    with socket.create_connection((LOOPBACK, watched.port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\n" + b"X: " + b"y" * 100_000)
        assert client.recv(1000).startswith(b"HTTP/1.1 431 ")


def test_ready_tells_the_truth(watched: Watched) -> None:
    """Last in the module: it stops a core for a moment."""

    def nothing_is_missed() -> bool:
        status, _type, text = watched.get("/ready")
        return (status, json.loads(text)["reasons"]) == (200, [])

    eventually(nothing_is_missed, "the broker is ready")
    core = watched.broker.core_process(1)

    def only_that_one_is_missed() -> bool:
        core.suspend()
        try:
            status, _type, text = watched.get("/ready")
        finally:
            core.resume()
        told = json.loads(text)
        assert (status, told["ready"]) == (503, False)
        return [reason.startswith("core 1 ") for reason in told["reasons"]] == [True]

    eventually(only_that_one_is_missed, "the broker says who is missing")
    eventually(nothing_is_missed, "the broker is ready again")


def core_status(**changed: Any) -> CoreStatus:
    counters = {"broker": {"partitions_offline": 0}, "journal": {"error": 0}, "storage": {"disk_full": 0}}
    fine = {"core": 0, "pid": 1, "ready": True, "restarts": 0, "up_ms": 5, "counters": counters}
    return CoreStatus(**{**fine, **changed})


@pytest.mark.parametrize(
    ("changed", "is_draining", "reasons"),
    [
        ({}, False, []),
        ({}, True, ["the broker is draining"]),
        ({"pid": None, "ready": False}, False, ["core 0 is down"]),
        ({"ready": False}, False, ["core 0 is starting: it recovers its journal"]),
        (
            {"counters": {"broker": {"partitions_offline": 0}, "journal": {"error": 28}}}, False,
            ["core 0 cannot write its journal: No space left on device"],
        ),
        (
            {"counters": {
                "broker": {"partitions_offline": 0}, "journal": {"error": 0}, "storage": {"disk_full": 1},
            }}, False,
            ["core 0 refuses records: the disk is full"],
        ),
    ],
)  # fmt: skip
def test_reasons_not_to_be_ready(changed: dict[str, Any], is_draining: bool, reasons: list[str]) -> None:
    assert health_of([core_status(**changed)], is_draining=is_draining).reasons == reasons


def test_a_disk_that_is_nearly_full_is_told() -> None:
    for left_bytes, warnings in ((99, ["the disk is nearly full: 99 bytes are left for records"]), (100, [])):
        health = health_of([core_status()], is_draining=False, disk=Disk(1000, 200, left_bytes))
        assert (health.is_ready, health.warnings) == (True, warnings)


def test_what_the_kernel_placed_is_told_by_listener(tmp_path: Path) -> None:
    steering = {"selected": [3, 4], "fallback_down": 1, "fallback_kernel": 2}
    datagrams = {**steering, "miss_unowned": 5, "miss_malformed": 6}
    listeners = [
        {"name": "INSIDE", "steering": steering}, {"name": "OUTSIDE", "steering": None},
        {"name": "datagrams", "steering": datagrams},
    ]  # fmt: skip
    found = {family.name: family for family in CoreMetrics([], tmp_path, listeners).collect()}
    placed, astray = found["tpc_steering_placed"], found["tpc_steering_fallbacks"]
    assert samples(placed, "tpc_steering_placed_total", listener="INSIDE", core="1") == [4]
    assert samples(placed, "tpc_steering_placed_total", listener="OUTSIDE") == []
    assert samples(astray, "tpc_steering_fallbacks_total", listener="INSIDE") == [1, 2]
    assert samples(astray, "tpc_steering_fallbacks_total", listener="datagrams") == [1, 2, 5, 6]


def test_the_age_of_checkpoints(watched: Watched, tmp_path: Path) -> None:
    """A restart makes one; a backup another."""
    found = watched.metrics()
    ages = samples(found["tpc_checkpoint_age_seconds"], "tpc_checkpoint_age_seconds")
    assert [age >= 0 for age in ages] == [True, True]
    before = samples(found["tpc_checkpoints"], "tpc_checkpoints_total")
    target = tmp_path / "backup"
    assert run_here("backup", str(target), "--data", str(watched.broker.data_folder)).returncode == 0
    assert all(
        now > then for now, then in
        zip(samples(watched.metrics()["tpc_checkpoints"], "tpc_checkpoints_total"), before, strict=True)
    )  # fmt: skip


def test_partitions_without_a_leader_are_told() -> None:
    counters = {"broker": {"partitions_offline": 3}, "journal": {"error": 0}, "storage": {"disk_full": 0}}
    health = health_of([core_status(counters=counters, restarts=2)], is_draining=False)
    assert (health.is_ready, len(health.warnings)) == (True, 2)
    assert health.warnings[0].startswith("core 0: 3 partitions have no leader")


def test_where_it_listens() -> None:
    assert parse_admin("9644") == AdminAddress("127.0.0.1", 9644)
    assert parse_admin(":9644") == AdminAddress("127.0.0.1", 9644)
    assert parse_admin("[::1]:9644") == AdminAddress("::1", 9644)
    for text in ("", "localhost", "h:0", "h:65536", "h:x"):
        with pytest.raises(StartError, match="expected HOST:PORT, or PORT"):
            parse_admin(text)
    for host in ("a..b", "b" * 64, ".b"):
        with pytest.raises(StartError, match=f"^--admin {host}:9644: no host has such a name: between dots there are"):
            parse_admin(f"{host}:9644")


def test_a_port_that_is_taken_is_refused_by_name(tmp_path: Path, watched: Watched) -> None:
    taken = f"{LOOPBACK}:{watched.port}"
    listen = ("--listen", f"{LOOPBACK}:{free_port_range(1)}", "--cores", "1")
    done = run_command("serve", "--data", str(tmp_path / "data"), *listen, "--admin", taken)
    assert (done.returncode, done.stderr) == (
        2, f"tpc-broker: --admin {taken}: cannot listen there: Address already in use\n",
    )  # fmt: skip
    done = run_command("serve", "--data", str(tmp_path / "data"), *listen, "--admin", "no")
    assert (done.returncode, done.stderr.startswith("tpc-broker: --admin no: expected HOST:PORT")) == (2, True)
