"""Stock clients push their metrics when a subscription asks them: librdkafka and Kafka's own in Java; and its tool."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_peer import run_tool, start_tool
from tests.support.raw_client import RawConnection
from tests.support.shared_servers import SharedBroker
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.options import LOOPBACK

CLIENT_METRICS, SET, DELETE = 16, 0, 1
INTERVAL_MS = 200
PRODUCERS, CONSUMERS = (f'tpc_telemetry_instances{{kind="{kind}"}}' for kind in ("producer", "consumer"))
REFUSED = [
    f'tpc_telemetry_refused_total{{reason="{reason}"}}' for reason in ("unreadable", "large", "compression", "invalid")
]


def alter(broker: SharedBroker, name: str, **values: str | None) -> None:
    """Settings of a subscription; None: not set any more."""
    changes = [
        {"Name": key.replace("_", "."), "ConfigOperation": DELETE if value is None else SET, "Value": value}
        for key, value in values.items()
    ]
    asked = {
        "Resources": [{"ResourceType": CLIENT_METRICS, "ResourceName": name, "Configs": changes}],
        "ValidateOnly": False,
    }
    host, _colon, port = broker.bootstrap.partition(",")[0].rpartition(":")
    with RawConnection(host, int(port), PATIENCE_S) as connection:
        (told,) = connection.ask("IncrementalAlterConfigs", 1, asked)["Responses"]
    assert told["ErrorCode"] == 0, told


@contextmanager
def subscription(broker: SharedBroker, name: str, **values: str) -> Iterator[None]:
    alter(broker, name, interval_ms=str(INTERVAL_MS), **values)
    try:
        yield
    finally:
        alter(broker, name, interval_ms=None, **dict.fromkeys(values))


def told(broker: SharedBroker) -> dict[str, float]:
    """Samples of `/metrics`, over all cores."""
    found: dict[str, float] = {}
    with urllib.request.urlopen(f"http://{LOOPBACK}:{broker.admin_port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    for name, value in re.findall(r"^(tpc_(?:client|telemetry)_\w+(?:\{[^}]*\})) (\S+)$", text, re.MULTILINE):
        without_core = re.sub(r'core="\d+",?', "", name).replace("{}", "")
        found[without_core] = found.get(without_core, 0.0) + float(value)
    return found


def refused(broker: SharedBroker) -> dict[str, float]:
    now = told(broker)
    return {name: now[name] for name in REFUSED}


def told_by_nobody(broker: SharedBroker) -> dict[str, float]:
    """Once clients of an earlier test, which are forgotten after a while, are no more among those that are counted."""

    def nobody() -> dict[str, float]:
        now = told(broker)
        return {} if now[PRODUCERS] or now[CONSUMERS] else now

    return eventually(nobody, "who was there before is forgotten")


@pytest.mark.clients
@pytest.mark.parametrize(
    "match", ["client_id=", "client_software_name=confluent-kafka-python,client_id="], ids=["id", "software"]
)
def test_librdkafka_pushes_what_it_is_asked_for(shared_broker, topic, match):
    """Its producer and its consumer, which need no settings for it; another client is not asked."""
    admin = AdminClient({"bootstrap.servers": shared_broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(PATIENCE_S)
    before = told_by_nobody(shared_broker)
    with subscription(shared_broker, topic, metrics="*", match=f"{match}{topic}.*"):
        common = {"bootstrap.servers": shared_broker.bootstrap}
        producer = Producer({**common, "client.id": f"{topic}-p"})
        consumer = Consumer({**common, "client.id": f"{topic}-c", "group.id": topic, "auto.offset.reset": "earliest"})
        other = Producer({**common, "client.id": "another"})
        consumer.subscribe([topic])

        def have_pushed() -> bool:
            for one in (producer, other):
                one.produce(topic, b"a")
                one.poll(0)
            consumer.poll(0.1)
            now = told(shared_broker)
            return (
                all(now[kind] > 0 for kind in (PRODUCERS, CONSUMERS))
                and now.get("tpc_client_consumer_assigned_partitions", 0) > 0
                and "tpc_client_producer_record_queue_avg_seconds" in now
                and now["tpc_telemetry_pushes_total"] >= before["tpc_telemetry_pushes_total"] + 4
            )

        eventually(have_pushed, "producer and consumer have pushed several times")
        for one in (producer, other):
            one.flush(PATIENCE_S)
        consumer.close()
    assert refused(shared_broker) == {name: before[name] for name in REFUSED}
    eventually(lambda: not told(shared_broker)[CONSUMERS], "nothing is left of who has gone")


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_the_java_clients_push_what_they_are_asked_for(shared_broker, topic):
    before = told(shared_broker)
    match = "client_software_name=apache-kafka-java,client_software_version=4\\..*"
    with subscription(shared_broker, topic, metrics="org.apache.kafka.", match=match):
        producing = start_tool(
            "producer-perf-test", "--topic", topic, "--num-records", "1000000", "--record-size", "50",
            "--throughput", "100", "--producer-props", f"bootstrap.servers={shared_broker.bootstrap}", "acks=all",
            "compression.type=zstd",
        )  # fmt: skip
        consuming = start_tool(
            "console-consumer", "--bootstrap-server", shared_broker.bootstrap, "--topic", topic, "--from-beginning"
        )

        def have_pushed() -> bool:
            now = told(shared_broker)
            return (
                now.get("tpc_client_consumer_assigned_partitions", 0) > 0
                and "tpc_client_consumer_fetch_avg_seconds" in now
                and "tpc_client_producer_record_queue_avg_seconds" in now
                and now["tpc_client_producer_connections_opened_total"]
                > before["tpc_client_producer_connections_opened_total"]
            )

        try:
            eventually(have_pushed, "both have pushed")
        finally:
            for process in (producing, consuming):
                process.kill()
                process.communicate()
    assert refused(shared_broker) == {name: before[name] for name in REFUSED}


@pytest.mark.kafka
@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_tool_for_client_metrics(shared_broker, topic):
    def tool(*arguments: str) -> str:
        done = run_tool("client-metrics", "--bootstrap-server", shared_broker.bootstrap, *arguments)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    made = ["--metrics", "org.apache.kafka.producer.,org.apache.kafka.consumer.", "--match", "client_id=orders-.*"]
    tool("--alter", "--name", topic, "--interval", "60000", *made)
    try:
        assert topic in tool("--list").split()
        described = tool("--describe", "--name", topic)
        assert f"Client metrics configs for {topic} are:" in described
        for line in ("interval.ms=60000", "match=client_id=orders-.*",
                     "metrics=org.apache.kafka.producer.,org.apache.kafka.consumer."):  # fmt: skip
            assert line in described

        def all_cores_know() -> bool:
            known = [one["telemetry"]["counts"]["subscriptions"] for one in shared_broker.counters()]
            return known == [1] * shared_broker.cores_count

        eventually(all_cores_know, "each core has heard of it, and of the end of those before")
    finally:
        tool("--delete", "--name", topic)
    assert topic not in tool("--list").split()
