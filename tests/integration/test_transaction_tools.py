"""Apache Kafka's `kafka-transactions`, in Java, and `tpc txn`: what both tell of the same, and what they end."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.cluster_nodes import run_tpc
from tests.support.kafka_peer import run_tool
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]


def tool(broker, *words: str) -> list[list[str]]:
    """The table that it prints, in words, without its head."""
    done = run_tool("transactions", "--bootstrap-server", broker.bootstrap, *words)
    assert (done.returncode, done.stderr) == (0, ""), done
    return [line.split() for line in done.stdout.splitlines()[1:]]


def told(broker, *words: str):
    code, said = run_tpc("txn", *words, "--json", "--bootstrap", broker.bootstrap)
    assert code == 0, said
    return json.loads(said)


def opened(broker, topic: str) -> Producer:
    """A transaction of one record in partition 0 of a new topic; the topic's name is its id."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"moved", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    return producer


def open_from(broker, topic: str) -> str:
    """The first offset of what a partition has open, as the tool shows it."""
    (row,) = tool(broker, "describe-producers", "--topic", topic, "--partition", "0")
    return row[-1]


def test_what_is_open_is_shown_by_both(broker, topic):
    producer = opened(broker, topic)
    rows = {row[0]: row for row in tool(broker, "list")}
    mine = {one["transactional_id"]: one for one in told(broker, "list")}[topic]
    assert rows[topic][1:] == [str(mine["coordinator"]), str(mine["producer_id"]), mine["state"]]
    assert topic not in {row[0] for row in tool(broker, "list", "--duration-filter", "3600000")}
    assert topic in {row[0] for row in tool(broker, "list", "--transactional-id-pattern", f"{topic[:-1]}.")}
    one = told(broker, "describe", topic)
    (row,) = tool(broker, "describe", "--transactional-id", topic)
    who = (one["coordinator"], topic, one["producer_id"], one["producer_epoch"])
    assert row[:5] == [*map(str, who), "Ongoing"]
    assert row[-1] == f"{topic}-0"
    where = told(broker, "describe", "--partition", f"{topic}-0")
    (row,) = tool(broker, "describe-producers", "--topic", topic, "--partition", "0")
    names = ("producer_id", "producer_epoch", "coordinator_epoch", "last_sequence", "last_time_ms", "first_offset")
    assert row == [str(where[name]) for name in names]
    hanging = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "0")
    assert tool(broker, *hanging) == told(broker, "list", "--hanging", topic) == [], "its coordinator has it"
    producer.commit_transaction(PATIENCE_S)
    assert open_from(broker, topic) == "None"


def test_a_partition_s_part_is_aborted_by_its_first_offset(broker, topic):
    producer = opened(broker, topic)
    assert open_from(broker, topic) == "0"
    assert tool(broker, "abort", "--topic", topic, "--partition", "0", "--start-offset", "0") == []
    assert open_from(broker, topic) == "None"
    producer.abort_transaction(PATIENCE_S)


def test_the_producer_of_an_id_is_fenced(broker, topic):
    producer = opened(broker, topic)
    assert tool(broker, "forceTerminateTransaction", "--transactionalId", topic) == []
    assert open_from(broker, topic) == "None"
    with pytest.raises(KafkaException) as caught:
        producer.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()


def test_an_id_that_there_is_not(broker):
    done = run_tool(
        "transactions", "--bootstrap-server", broker.bootstrap, "describe", "--transactional-id", "txn-nobody"
    )
    assert done.returncode != 0
    assert "`txn-nobody` failed because the ID could not be found" in done.stderr
