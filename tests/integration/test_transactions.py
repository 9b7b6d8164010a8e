"""Transactions of clients on a broker as it comes: what was committed is read, and what was aborted is not."""

from __future__ import annotations

import asyncio

import confluent_kafka
import kafka
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import PATIENCE_S

SENT = [b"committed 1", b"aborted", b"committed 2"]
"""In a transaction each."""


def made(broker, topic):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    return topic


def read(broker, topic, isolation):
    """To the end of the partition; an offset more for each marker."""
    consumer = confluent_kafka.Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False,
        "isolation.level": isolation, "enable.partition.eof": True,
    })  # fmt: skip
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, found
            if message.error():
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return found, message.offset()
            found.append(message.value())
    finally:
        consumer.close()


def check(broker, topic):
    end = 2 * len(SENT)
    assert read(broker, topic, "read_uncommitted") == (SENT, end)
    assert read(broker, topic, "read_committed") == ([SENT[0], SENT[2]], end)


def test_librdkafka(broker, topic):
    made(broker, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for value in SENT:
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        if value == b"aborted":
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    check(broker, topic)


def test_kafka_python(broker, topic):
    made(broker, topic)
    producer = kafka.KafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
    try:
        producer.init_transactions()
        for value in SENT:
            producer.begin_transaction()
            producer.send(topic, value, partition=0).get(PATIENCE_S)
            if value == b"aborted":
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    finally:
        producer.close(timeout=PATIENCE_S)
    check(broker, topic)


def test_aiokafka(broker, topic):
    made(broker, topic)

    async def main():
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, transactional_id=topic)
        async with asyncio.timeout(PATIENCE_S), producer:
            for value in SENT:
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value, partition=0)
                if value == b"aborted":
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()

    asyncio.run(main())
    check(broker, topic)
