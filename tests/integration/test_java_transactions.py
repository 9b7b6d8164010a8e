"""The Java client's transactions and Kafka's tools for them, of both versions, against a running broker."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.kafka_peer import JAVA_FLAGS, KAFKA_VERSION, kafka_jars, run_tool
from tests.support.server_process import Broker
from tests.support.waiting import PATIENCE_S, eventually
from tools import extract_schema
from tpc_broker.bench.kafka_jars import java_command

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools", "newest_kafka")]

PROGRAM: Final = Path(__file__).parent / "Transactions.java"
VERSIONS: Final = [KAFKA_VERSION, extract_schema.KAFKA_VERSION]
RECORDS: Final = 400
PARTITIONS: Final = 2


def made(broker: Broker, *topics: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for one in admin.create_topics([NewTopic(topic, partitions, 1) for topic in topics]).values():
        one.result(PATIENCE_S)


def tool(broker: Broker, version: str, name: str, *arguments: str) -> str:
    """Run a tool of that version; it must succeed."""
    done = run_tool(name, "--bootstrap-server", broker.bootstrap, *arguments, version=version)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "ERROR" not in done.stderr, done.stderr
    return done.stdout


def rows(told: str) -> list[dict[str, str]]:
    """Of a table as the tools print it: its columns are set off by tabs."""
    head, *others = ([cell.strip() for cell in line.split("\t")] for line in told.splitlines() if line.strip())
    return [dict(zip(head, row, strict=True)) for row in others]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_records_are_moved_with_their_offsets(broker, topic, version, protocol):
    """What is aborted is moved again; who is fenced, or gone, has moved nothing."""
    target = f"{topic}-moved"
    made(broker, topic, target)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    done = subprocess.run(
        [
            java_command(), "-Xmx256m", *JAVA_FLAGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp", f"{kafka_jars(version)}/*", str(PROGRAM), broker.bootstrap, protocol, topic, target, str(RECORDS),
        ],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    aborted = re.search(r"aborted records: (\d+)", done.stdout)
    assert aborted, done.stdout
    assert int(aborted[1]) > 0
    assert "fenced: yes" in done.stdout, done.stdout
    found: dict[str, list[str]] = {}
    for partition, value in re.findall(r"^read: (\d) (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(partition, []).append(value)
    assert found["1"] == [str(number) for number in range(1, RECORDS, 2)]
    assert found["0"] == [*(str(number) for number in range(0, RECORDS, 2)), "committed", "behind it"]


@pytest.mark.parametrize("version", VERSIONS)
def test_transactional_load(broker, topic, version):
    """Transactions of 50 ms by Kafka's own load generator, of which the coordinator then tells the last one."""
    made(broker, topic)
    place = ["--bootstrap-server", broker.bootstrap]
    done = run_tool(
        "producer-perf-test", "--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "5000",
        "--transactional-id", topic, "--transaction-duration-ms", "50", *place, version=version,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert "5000 records sent" in done.stdout, done
    (told,) = [row for row in rows(tool(broker, version, "transactions", "list")) if row["TransactionalId"] == topic]
    assert told["TransactionState"] == "CompleteCommit"
    (told,) = rows(tool(broker, version, "transactions", "describe", "--transactional-id", topic))
    assert (told["TransactionState"], told["TransactionTimeoutMs"]) == ("CompleteCommit", "60000")
    assert int(told["ProducerEpoch"]) >= 5, "an epoch for each transaction"
    bounds = ["--from-beginning", "--max-messages", "5000", "--isolation-level", "read_committed"]
    done = run_tool(
        "console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, *bounds, "--timeout-ms",
        str(1000 * PATIENCE_S), version=version,
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 5000, done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_an_open_transaction_is_found_and_aborted(broker, topic, version):
    made(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x" * 100, partition=0)
    assert producer.flush(PATIENCE_S) == 0
    (told,) = [row for row in rows(tool(broker, version, "transactions", "list")) if row["TransactionalId"] == topic]
    assert told["TransactionState"] == "Ongoing"
    (described,) = rows(tool(broker, version, "transactions", "describe", "--transactional-id", topic))
    assert described["TopicPartitions"] == f"{topic}-0"
    assert int(described["TransactionDurationMs"]) >= 0
    place = ["--topic", topic, "--partition", "0"]
    (row,) = rows(tool(broker, version, "transactions", "describe-producers", *place))
    assert (row["ProducerId"], row["CurrentTransactionStartOffset"]) == (told["ProducerId"], "0")
    hanging = ["find-hanging", "--max-transaction-timeout", "0", "--topic", topic]
    assert not rows(tool(broker, version, "transactions", *hanging)), "its coordinator knows of it"
    tool(broker, version, "transactions", "abort", *place, "--start-offset", "0")
    (row,) = rows(tool(broker, version, "transactions", "describe-producers", *place))
    assert row["CurrentTransactionStartOffset"] == "None"
    producer.purge()


@pytest.mark.parametrize("version", VERSIONS)
def test_ids_are_terminated(broker, topic, version):
    """`forceTerminateTransaction`, by the tool."""
    made(broker, topic, partitions=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    tool(broker, version, "transactions", "forceTerminateTransaction", "--transactionalId", topic)

    def is_over() -> bool:
        (told,) = rows(tool(broker, version, "transactions", "describe", "--transactional-id", topic))
        return told["TransactionState"] in ("CompleteAbort", "Empty")

    eventually(is_over, "it is aborted")
    producer.purge()
