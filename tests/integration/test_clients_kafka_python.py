"""kafka-python, as it is installed, against a running broker."""

from __future__ import annotations

import contextlib
import gc
import threading

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, NewPartitions, NewTopic

from tests.integration.matrix import CODECS, SESSION_MS, owned_exactly_once
from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S, eventually, patiently

PAUSE_S = 0.05

pytestmark = pytest.mark.filterwarnings(
    # The library leaves the sockets of broken connections (a broker restarts here) to the garbage collector.
    "ignore:.*unclosed.*socket:ResourceWarning",
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture(autouse=True)
def _sockets_are_collected_here():
    """So that the library's left-over sockets warn in this module and not in another one's tests."""
    yield
    gc.collect()


@pytest.fixture
def admin(broker):
    client = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    yield client
    client.close()


def make_topic(admin: KafkaAdminClient, name: str, partitions_count: int = 1) -> None:
    admin.create_topics([NewTopic(name, partitions_count, 1)])


def drain(consumer: KafkaConsumer, count: int) -> list:
    received: list = []
    for _ in patiently(lambda: f"{len(received)} of {count} records came"):
        if len(received) >= count:
            break
        for records in consumer.poll(timeout_ms=500, max_records=count - len(received)).values():
            received.extend(records)
    return received


def new_consumer(broker, group: str | None = None, **config) -> KafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "session_timeout_ms": SESSION_MS}
    return KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group, **{**settings, **config})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_what_is_produced_is_consumed(broker, admin, topic, codec, idempotent):
    make_topic(admin, topic)
    kind = None if codec == "none" else codec
    producer = KafkaProducer(
        bootstrap_servers=broker.bootstrap, compression_type=kind, acks="all", enable_idempotence=idempotent
    )
    values = [b"value-%d-" % number + b"x" * 100 for number in range(300)]
    sent = [producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
    assert [one.get(PATIENCE_S).offset for one in sent] == list(range(300))
    producer.close()
    consumer = new_consumer(broker)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    received = drain(consumer, 300)
    assert [record.value for record in received] == values
    assert list(received[0].headers) == [("h", b"1")]
    consumer.close()


def test_a_group_of_three_rebalances(broker, admin, topic):
    make_topic(admin, topic, 6)
    consumers: list[KafkaConsumer] = []
    threads: list[threading.Thread] = []
    owned: list[list[int]] = []
    stops: list[threading.Event] = []

    def member(place: int) -> None:
        settings = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 200}
        consumer = new_consumer(broker, topic, **settings)
        consumers.append(consumer)
        consumer.subscribe([topic])
        # A member that leads the group before it knows of them gives out none, for ever.
        while len(consumer.partitions_for_topic(topic) or ()) < 6 and not stops[place].wait(PAUSE_S):
            pass
        while not stops[place].is_set():
            consumer.poll(timeout_ms=50)
            owned[place] = [one.partition for one in consumer.assignment()]
        consumer.close()
        owned[place] = []

    def shared_by(count: int) -> bool:
        holding = [one for one in owned if one]
        return len(holding) == count and owned_exactly_once(holding, 6)

    try:
        for place in range(3):
            owned.append([])
            stops.append(threading.Event())
            threads.append(threading.Thread(target=member, args=(place,)))
            threads[place].start()
            eventually(lambda place=place: shared_by(place + 1), f"{place + 1} members own all partitions once")
        stops[0].set()
        eventually(lambda: shared_by(2), "two members own all partitions once after one left")
    finally:
        for stop in stops:
            stop.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def test_seek_by_time(broker, admin, topic):
    make_topic(admin, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(50):
        producer.send(topic, b"%d" % number, timestamp_ms=BASE_MS + 1000 * number)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = new_consumer(broker)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    for millis, offset in ((0, 0), (7_000, 7), (7_001, 8)):
        assert consumer.offsets_for_times({place: BASE_MS + millis})[place].offset == offset
    assert consumer.offsets_for_times({place: BASE_MS + 10**6})[place] is None
    assert consumer.end_offsets([place]) == {place: 50}
    assert consumer.beginning_offsets([place]) == {place: 0}
    consumer.seek(place, 31)
    assert drain(consumer, 1)[0].value == b"31"
    consumer.close()


def subscribe(consumer, topic: str, partitions: int) -> None:
    """A member that leads the group before it knows of the partitions gives out none, for ever."""
    consumer.subscribe([topic])
    eventually(lambda: len(consumer.partitions_for_topic(topic) or ()) >= partitions, "they are known")


@pytest.mark.clients
def test_committed_offsets_outlive_a_restart(own_broker, topic):
    broker = own_broker
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap)) as admin:
        make_topic(admin, topic)
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.flush(PATIENCE_S)
    producer.close()
    consumer = new_consumer(broker, topic)
    subscribe(consumer, topic, 1)
    drain(consumer, 60)
    consumer.commit()
    consumer.close()
    broker.restart()
    consumer = new_consumer(broker, topic)
    subscribe(consumer, topic, 1)
    assert [int(record.value) for record in drain(consumer, 40)] == list(range(60, 100))
    consumer.close()


def test_admin_calls(broker, admin, topic):
    make_topic(admin, topic, 2)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "54321"})])

    def retention() -> str:
        described = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
        return described["topic"][topic]["retention.ms"]["value"]

    eventually(lambda: retention() == "54321", "the altered setting is described")
    admin.create_partitions({topic: NewPartitions(4)})
    eventually(lambda: len(admin.describe_topics([topic])[0]["partitions"]) == 4, "four partitions")
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for number in range(10):
        producer.send(topic, b"%d" % number, partition=0).get(PATIENCE_S)
    producer.close()
    trimmed = admin.delete_records({TopicPartition(topic, 0): 4})
    assert trimmed[TopicPartition(topic, 0)]["low_watermark"] == 4
    consumer = new_consumer(broker, topic)
    subscribe(consumer, topic, 4)
    drain(consumer, 6)
    consumer.commit()
    assert topic in [one["group_id"] for one in admin.list_groups()]
    assert admin.describe_groups([topic])[topic]["group_state"] == "Stable"
    consumer.close()
    offsets = admin.list_group_offsets([topic])
    assert offsets[topic][TopicPartition(topic, 0)].offset == 10
    admin.delete_groups([topic])
    assert topic not in [one["group_id"] for one in admin.list_groups()]
    admin.delete_topics([topic])
    eventually(lambda: topic not in admin.list_topics(), "the topic is gone")
    assert sorted(one["port"] for one in admin.describe_cluster()["brokers"]) == broker.ports
