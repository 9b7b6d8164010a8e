"""The broker's whole life with a stock client: an old kernel, another number of cores, a core that dies."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, patiently

PARTITIONS = 6


def create_topic(broker: TpcBroker, name: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)


def produce(broker: TpcBroker, topic: str, numbers: range) -> None:
    """Each number to partition number % PARTITIONS; returns when all are acknowledged."""
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        producer.produce(
            topic, str(number).encode(), partition=number % PARTITIONS,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def consume_all(broker: TpcBroker, topic: str, count: int) -> dict[int, list[int]]:
    """Numbers by partition in the order of their offsets, which must be without gaps."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        for _ in patiently(lambda: f"{sum(map(len, found.values()))} of {count} records"):
            if sum(map(len, found.values())) >= count:
                break
            for message in consumer.consume(1000, 1.0):
                if message.error():
                    raise KafkaException(message.error())
                assert message.offset() == len(found[message.partition()])
                found[message.partition()].append(int(message.value()))
    finally:
        consumer.close()
    return found


def expected(count: int) -> dict[int, list[int]]:
    return {partition: list(range(partition, count, PARTITIONS)) for partition in range(PARTITIONS)}


@pytest.fixture
def make_broker(tmp_path):
    made = []

    def make(cores_count: int, cores_count_max: int) -> TpcBroker:
        broker = TpcBroker(tmp_path / "broker", cores_count=cores_count)
        broker.cores_count_max = cores_count_max
        made.append(broker)
        return broker

    yield make
    for broker in made:
        broker.kill()


def test_everything_works_with_what_kernel_5_8_has(make_broker, monkeypatch) -> None:
    monkeypatch.setenv("TPC_HIDE_FEATURES", "5.8")
    broker = make_broker(2, 2)
    broker.start()
    create_topic(broker, "old-kernel")
    produce(broker, "old-kernel", range(5000))
    assert consume_all(broker, "old-kernel", 5000) == expected(5000)
    broker.kill()
    broker.start()
    assert consume_all(broker, "old-kernel", 5000) == expected(5000)
    broker.stop()


def test_records_stay_when_the_number_of_cores_changes(make_broker) -> None:
    """2 → 3 → 1 → 2, cleanly and by kill, with records added under each number."""
    broker = make_broker(2, 3)
    broker.start()
    create_topic(broker, "moves")
    count = 0
    for cores_count, dies in [(3, True), (1, False), (2, True), (2, False)]:
        produce(broker, "moves", range(count, count + 600))
        count += 600
        broker.kill() if dies else broker.stop()
        broker.cores_count = cores_count
        broker.start()
        assert consume_all(broker, "moves", count) == expected(count)
    journals = sorted(file.name for file in (broker.data_folder / "journals").glob("*.journal"))
    assert journals == ["0000.journal", "0001.journal"]
    broker.stop()


def test_a_core_that_dies_comes_back_and_the_other_goes_on(make_broker) -> None:
    broker = make_broker(2, 2)
    broker.start()
    create_topic(broker, "restarts")
    produce(broker, "restarts", range(1200))
    for core in (1, 0):
        other = broker.core_process(1 - core).pid
        dying = broker.core_process(core).pid
        broker.core_process(core).kill()
        broker.wait_core_replaced(core, dying)
        assert broker.core_process(1 - core).pid == other
    produce(broker, "restarts", range(1200, 2400))
    assert consume_all(broker, "restarts", 2400) == expected(2400)
    broker.stop()
