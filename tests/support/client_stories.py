"""What clients do over a listener, whatever has to be done to be let in there: write, read again, make a topic."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from tests.support.kafka_peer import run_tool
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.cli.main import main as tpc
from tpc_broker.cli.profile_file import Profile, Profiles, save_profiles


def consume(settings: dict[str, Any], topic: str, count: int, partition: int | None = None) -> list[bytes]:
    """Values of all records, sorted; of one partition, or as the only member of a group."""
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    if partition is None:
        consumer.subscribe([topic])
    else:
        consumer.assign([TopicPartition(topic, partition, 0)])
    found: list[bytes] = []

    def has_come() -> bool:
        found.extend(one.value() for one in consumer.consume(100, 0.2) if one.error() is None)
        return len(found) >= count

    eventually(has_come, "all records")
    consumer.close()
    return sorted(found)


def write_and_read_by_librdkafka(settings: dict[str, Any], topic: str) -> None:
    values = [b"%03d" % number for number in range(100)]
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    assert consume(settings, topic, len(values)) == values


def write_and_read_by_kafka_python(settings: dict[str, Any], topic: str) -> None:
    producer = KafkaProducer(**settings)
    for number in range(20):
        producer.send(topic, b"%d" % number)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = KafkaConsumer(topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=1000 * PATIENCE_S)
    assert sorted(int(next(consumer).value) for _ in range(20)) == list(range(20))
    consumer.close()


def write_and_read_by_aiokafka(settings: dict[str, Any], topic: str) -> None:
    async def story() -> list[int]:
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        for number in range(20):
            await producer.send_and_wait(topic, b"%d" % number)
        await producer.stop()
        consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
        await consumer.start()
        found = [int((await consumer.getone()).value) for _ in range(20)]
        await consumer.stop()
        return found

    assert sorted(asyncio.run(asyncio.wait_for(story(), PATIENCE_S))) == list(range(20))


def write_and_read_by_java(place: str, properties: Path, topic: str) -> None:
    """By Kafka's tools, with a file of the client's settings."""

    def run(tool: str, *arguments: str, given: str | None = None) -> str:
        where = ["--bootstrap-server", place, "--command-config", str(properties)]
        done = run_tool(tool, *where, *arguments, standard_input=given)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("topics", "--create", "--topic", topic, "--partitions", "2")
    lines = [f"line {number}" for number in range(20)]
    run("console-producer", "--topic", topic, given="\n".join(lines) + "\n")
    bounds = ["--topic", topic, "--from-beginning", "--max-messages", "20", "--timeout-ms", "60000"]
    assert sorted(run("console-consumer", *bounds).splitlines()) == sorted(lines)


def make_a_topic_by_tpc(properties: dict[str, Any], topic: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a profile of these properties, as of librdkafka."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    rest = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    save_profiles(Profiles("safe", {"safe": Profile(properties["bootstrap.servers"], rest)}))
    environment = {"TPC_PROFILE": "safe"}
    made = CliRunner().invoke(tpc, ["topic", "create", topic], env=environment)
    assert made.exit_code == 0, made.output
    assert topic in CliRunner().invoke(tpc, ["topic", "list"], env=environment).output
