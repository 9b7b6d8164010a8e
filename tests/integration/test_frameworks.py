"""Kafka Streams and Kafka Connect as they come: at least once they work, and exactly once they say why it is not to be
had, as clearly as each can.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_peer import JAVA_FLAGS, PeerUnavailable, kafka_jars
from tests.support.ports import free_port_range
from tests.support.server_process import Broker, ServerProcess
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.kafka_jars import framework_jars, java_command
from tpc_broker.limits import CLIENT_ID_SHOWN_MAX

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

REASON = "This broker has no transactions yet: produce without a transactional.id"
LOGGED = "a producer with a transactional.id is refused: there are no transactions yet (client id "
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


def is_logged_once(broker: Broker, client: str) -> bool:
    """By each core that it has asked."""
    said = f"{LOGGED}'{client[:CLIENT_ID_SHOWN_MAX]}"
    lines = [line for line in broker.log_text().splitlines() if said in line]
    return 1 <= len(lines) <= len(broker.ports)


def test_streams_count_at_least_once(java, broker, topic, tmp_path):
    said = streams(java, broker, topic, "at_least_once", tmp_path)
    assert "left: 0 " in said, said
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False})
    consumer.assign([TopicPartition(f"{topic}-counts", 0, 0)])
    found = consumer.consume(len(WORDS), PATIENCE_S)
    consumer.close()
    counts = [int(message.value()) for message in found]
    assert sorted(counts) == sorted(number // 7 + 1 for number in range(70))


def test_streams_end_with_the_reason_where_exactly_once_is_wanted(java, broker, topic, tmp_path):
    said = streams(java, broker, topic, "exactly_once_v2", tmp_path)
    fatal = re.findall("fatal: (.*)", said)
    assert fatal[-1].endswith(f"due to unexpected error: {REASON}"), said
    assert f"left: {len(WORDS)} " in said
    assert is_logged_once(broker, f"{topic}-")


@contextmanager
def connect(java: list[str], broker: Broker, topic: str, folder: Path) -> Iterator[ServerProcess]:
    """A worker of a Connect cluster that wants sources to be exactly once."""
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
        yield worker
    finally:
        worker.kill()


def test_connect_says_the_reason_where_exactly_once_is_wanted(java, broker, topic, tmp_path):
    """It goes on trying, whatever it is told; what is asked of it by REST waits meanwhile."""
    with connect(java, broker, topic, tmp_path) as worker:
        tries = "Unable to claim write privileges for config topic"
        eventually(lambda: worker.log_text().count(tries) > 1, "it has tried again")
        assert worker.log_text().count(f"due to unexpected error: {REASON}") > 1
    assert is_logged_once(broker, f"{topic}-config-leader"), "however often it tries"
