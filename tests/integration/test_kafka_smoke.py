"""Apache Kafka's own clients in one JVM against a running broker: admin, producer and consumer. All of its tools are in
`test_clients_java`.
"""

from __future__ import annotations

import subprocess

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.kafka_peer import run_tool
from tests.support.waiting import PATIENCE_S

RECORDS = 200


@pytest.fixture
def ran(broker, topic, kafka_tools) -> subprocess.CompletedProcess[str]:
    """Kafka's measure of latencies: it makes the topic, sends a record and reads it, again and again, and ends with an
    error where what it reads is not what it has sent.
    """
    sizes = ["--num-records", str(RECORDS), "--record-size", "100", "--producer-acks", "all"]
    return run_tool("e2e-latency", "--bootstrap-server", broker.bootstrap, "--topic", topic, *sizes, level="warn")


def test_kafkas_clients_read_what_they_have_written(ran, broker, topic):
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "Avg latency: " in ran.stdout
    assert not [line for line in ran.stderr.splitlines() if "WARN" in line or "ERROR" in line], ran.stderr
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (0, RECORDS)
    finally:
        consumer.close()
