"""Kafka Streams and Kafka Connect as they come, at least once and exactly once."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_peer import JAVA_FLAGS, PeerUnavailable, kafka_jars
from tests.support.ports import free_port_range
from tests.support.server_process import Broker, ServerProcess
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.kafka_jars import framework_jars, java_command

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

PROGRAM = Path(__file__).parent / "StreamsCounts.java"
WORDS = [f"word {number % 7}" for number in range(70)]


@pytest.fixture(scope="module")
def java() -> list[str]:
    """A command that has the frameworks' classes."""
    try:
        jars = f"{kafka_jars()}/*:{framework_jars()}/*"
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"]
    return [java_command(), "-Xmx256m", *JAVA_FLAGS, *logging, "-cp", jars]


def streams(java: list[str], broker: Broker, topic: str, guarantee: str, folder: Path) -> str:
    """What it said while it counted words, until all were counted or it failed."""
    admin, target = AdminClient({"bootstrap.servers": broker.bootstrap}), f"{topic}-counts"
    for made in admin.create_topics([NewTopic(topic, 2, 1), NewTopic(target, 1, 1)]).values():
        made.result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for word in WORDS:
        producer.produce(topic, word)
    assert producer.flush(PATIENCE_S) == 0
    arguments = [broker.bootstrap, topic, guarantee, topic, target, str(len(WORDS)), str(folder)]
    done = subprocess.run(
        [*java, str(PROGRAM), *arguments], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=True
    )
    return done.stdout


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_streams_count(java, broker, topic, tmp_path, guarantee):
    said = streams(java, broker, topic, guarantee, tmp_path)
    assert "left: 0 " in said, said
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(f"{topic}-counts", 0, 0)])
    found = consumer.consume(len(WORDS), PATIENCE_S)
    consumer.close()
    counts = [int(message.value()) for message in found]
    assert sorted(counts) == sorted(number // 7 + 1 for number in range(70))


@contextlib.contextmanager
def connect(java: list[str], broker: Broker, topic: str, folder: Path) -> Iterator[tuple[ServerProcess, str]]:
    """A worker of a Connect cluster that wants sources to be exactly once, and where it is."""
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "group.id": topic,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{free_port_range(1)}",
        "exactly.once.source.support": "enabled",
    }
    for kind in ("config", "offset", "status"):
        settings |= {f"{kind}.storage.topic": f"{topic}-{kind}", f"{kind}.storage.replication.factor": "1"}
        settings |= {} if kind == "config" else {f"{kind}.storage.partitions": "1"}
    properties = folder / "worker.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    worker = ServerProcess(
        [*java, "org.apache.kafka.connect.cli.ConnectDistributed", str(properties)], folder / "connect.log"
    )
    worker.launch()
    try:
        yield worker, settings["listeners"]
    finally:
        worker.kill()


def asked_of(address: str, body: bytes | None) -> tuple[int, str]:
    """By REST: the status, and what was said."""
    where = urllib.parse.urlsplit(address)
    connection = http.client.HTTPConnection(where.netloc, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("POST" if body else "GET", where.path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_connect_has_sources_that_are_exactly_once(java, broker, topic, tmp_path):
    source = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector", "tasks.max": "1",
        "topic": f"{topic}-data", "file": str(tmp_path / "words"), "exactly.once.support": "required",
    }  # fmt: skip
    (tmp_path / "words").write_text("".join(f"{word}\n" for word in WORDS))
    with connect(java, broker, topic, tmp_path) as (worker, address):
        body = json.dumps({"name": "source", "config": source}).encode()
        eventually(lambda: asked_of(f"{address}/connectors", None) == (200, "[]"), "it is up", not_yet=(OSError,))
        status, said = asked_of(f"{address}/connectors", body)
        assert status == 201, said
        settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.auto.commit": False})
        consumer.assign([TopicPartition(f"{topic}-data", 0, 0)])
        found = [(message.value() or b"").decode() for message in consumer.consume(len(WORDS), PATIENCE_S)]
        consumer.close()
        assert found == WORDS, worker.log_text()
        assert "Unable to claim write privileges for config topic" not in worker.log_text()
