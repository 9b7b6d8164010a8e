"""confluent-kafka (librdkafka), as it is installed, against a running broker."""

from __future__ import annotations

import hashlib
import struct

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.integration.matrix import CODECS, SESSION_MS, owned_exactly_once
from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S, eventually, patiently


@pytest.fixture
def admin(broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def make_topic(admin: AdminClient, name: str, partitions_count: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions_count, 1, config=settings)])[name].result(PATIENCE_S)


def new_producer(broker, **config) -> Producer:
    return Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **config})


def new_consumer(broker, group: str, **config) -> Consumer:
    settings = {"auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": SESSION_MS}
    return Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group, **settings, **config})


def drain(consumer: Consumer, count: int) -> list:
    """The next `count` records; fails when they do not come."""
    received: list = []
    for _ in patiently(lambda: f"{len(received)} of {count} records came"):
        if len(received) >= count:
            break
        for record in consumer.consume(count - len(received), timeout=1.0):
            assert record.error() is None, record.error()
            received.append(record)
    return received


def send_all(producer: Producer, topic: str, values: list[bytes], **options) -> list[tuple[int, int]]:
    """Produce and flush; partition and offset of each, in order. Any failed delivery fails the test."""
    places: list[tuple[int, int]] = []

    def delivered(error, record) -> None:
        assert error is None, error
        places.append((record.partition(), record.offset()))

    for value in values:
        producer.produce(topic, value, on_delivery=delivered, **options)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return places


def wait_empty(admin: AdminClient, group: str) -> None:
    """Who closes a consumer does not wait long for the answer to its leave."""
    eventually(
        lambda: admin.describe_consumer_groups([group])[group].result(PATIENCE_S).members == [], f"{group} is left"
    )


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(broker, admin, topic, codec):
    make_topic(admin, topic)
    values = [b"value-%d-" % number + b"x" * 100 for number in range(500)]
    places = send_all(
        new_producer(broker, **{"compression.type": codec}), topic, values, key=b"key", headers=[("h", b"1")]
    )
    assert places == [(0, offset) for offset in range(500)]
    consumer = new_consumer(broker, f"{topic}-group")
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    received = drain(consumer, 500)
    assert [record.value() for record in received] == values
    assert {record.key() for record in received} == {b"key"}
    assert received[0].headers() == [("h", b"1")]
    consumer.close()


def test_idempotent_producer(broker, admin, topic):
    make_topic(admin, topic, 3)
    producer = new_producer(broker, **{"enable.idempotence": True})
    values = [b"%d" % number for number in range(2000)]
    places = send_all(producer, topic, values)
    assert len(set(places)) == 2000, "no offset is used twice"
    consumer = new_consumer(broker, f"{topic}-group")
    consumer.subscribe([topic])
    assert sorted(int(record.value()) for record in drain(consumer, 2000)) == list(range(2000))
    consumer.close()


def test_no_acknowledgements_asked_for(broker, admin, topic):
    make_topic(admin, topic)
    producer = new_producer(broker, acks=0)
    send_all(producer, topic, [b"%d" % number for number in range(100)])
    consumer = new_consumer(broker, f"{topic}-group")
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(drain(consumer, 100)) == 100
    consumer.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_of_three_rebalances(broker, admin, topic, strategy):
    partitions_count = 6
    make_topic(admin, topic, partitions_count)
    members = [new_consumer(broker, topic, **{"partition.assignment.strategy": strategy}) for _ in range(3)]
    received: list[bytes] = []

    def shared_by(some: list[Consumer]) -> bool:
        for member in some:
            received.extend(record.value() for record in member.consume(100, timeout=0.05) if record.error() is None)
        return owned_exactly_once(
            [[one.partition for one in member.assignment()] for member in some], partitions_count
        ) and all(member.assignment() for member in some)

    for count in (1, 2, 3):
        members[count - 1].subscribe([topic])
        eventually(lambda count=count: shared_by(members[:count]), f"{count} members own all partitions once")
    producer = new_producer(broker)
    for partition in range(partitions_count):
        send_all(producer, topic, [b"%d-%d" % (partition, number) for number in range(50)], partition=partition)
    eventually(lambda: shared_by(members) and len(received) >= 300, "three members receive everything")
    assert len(received) == len(set(received)) == 300
    members.pop(0).close()
    eventually(lambda: shared_by(members), "two members own all partitions once after one left")
    for member in members:
        member.close()


def test_a_consumer_group_of_kip_848(broker, admin, topic):
    """One member after another, by name and by pattern; that many share one is test_consumer_groups_confluent's."""
    make_topic(admin, topic, 2)
    producer = new_producer(broker)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": topic, "group.protocol": "consumer"}
    for turn, wanted in enumerate([topic, f"^{topic}$"]):
        for partition in (0, 1):
            send_all(producer, topic, [b"%d" % turn] * 10, partition=partition)
        consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe([wanted])
        assert {record.value() for record in drain(consumer, 20)} == {b"%d" % turn}, "only what was not committed"
        consumer.commit(asynchronous=False)

        def stable():
            """The member has said that it reads what it was given."""
            found = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
            return found if found.state.name == "STABLE" else None

        described = eventually(stable, "the group is stable")
        assert described.type.name == "CONSUMER"
        [member] = described.members
        assert sorted(one.partition for one in member.assignment.topic_partitions) == [0, 1]
        consumer.close()
        wait_empty(admin, topic)
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)


def test_seek_by_time(broker, admin, topic):
    make_topic(admin, topic)
    producer = new_producer(broker)
    for number in range(100):
        producer.produce(topic, b"%d" % number, timestamp=BASE_MS + number * 1000)
    assert producer.flush(PATIENCE_S) == 0
    consumer = new_consumer(broker, f"{topic}-group")
    for millis, offset in ((0, 0), (5_000, 5), (5_001, 6), (99_000, 99)):
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, BASE_MS + millis)], timeout=PATIENCE_S)
        assert found.offset == offset, millis
    [after] = consumer.offsets_for_times([TopicPartition(topic, 0, BASE_MS + 99_001)], timeout=PATIENCE_S)
    assert after.offset == -1
    consumer.assign([TopicPartition(topic, 0, 42)])
    assert drain(consumer, 1)[0].value() == b"42"
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=PATIENCE_S) == (0, 100)
    consumer.close()


def test_committed_offsets_outlive_a_restart(own_broker, topic):
    """In the gate for all clients: it is the broker that remembers."""
    broker = own_broker
    make_topic(AdminClient({"bootstrap.servers": broker.bootstrap}), topic, 2)
    producer = new_producer(broker)
    for partition in (0, 1):
        send_all(producer, topic, [b"%d" % number for number in range(100)], partition=partition)
    consumer = new_consumer(broker, topic)
    consumer.subscribe([topic])
    drain(consumer, 80)
    consumer.commit(asynchronous=False)
    committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=PATIENCE_S)
    assert sum(max(one.offset, 0) for one in committed) == 80
    consumer.close()
    broker.restart()
    consumer = new_consumer(broker, topic)
    consumer.subscribe([topic])
    rest = drain(consumer, 120)
    starts = {one.partition: max(one.offset, 0) for one in committed}
    for partition in (0, 1):
        got = [record.offset() for record in rest if record.partition() == partition]
        assert got == list(range(starts[partition], 100))
    consumer.close()


def test_admin_calls(broker, admin, topic):
    make_topic(admin, topic, 2, retention_ms="1234567")
    resource = ConfigResource(ResourceType.TOPIC, topic)
    [described] = [one.result(PATIENCE_S) for one in admin.describe_configs([resource]).values()]
    assert described["retention.ms"].value == "1234567"
    change = ConfigEntry("retention.ms", "7654321", incremental_operation=AlterConfigOpType.SET)
    altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    [one.result(PATIENCE_S) for one in admin.incremental_alter_configs([altered]).values()]
    wrong = ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)
    refused = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[wrong])
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        [one.result(PATIENCE_S) for one in admin.incremental_alter_configs([refused]).values()]

    def retention() -> str:
        [found] = [one.result(PATIENCE_S) for one in admin.describe_configs([resource]).values()]
        return found["retention.ms"].value

    eventually(lambda: retention() == "7654321", "the altered setting is described")
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
    eventually(
        lambda: len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 4, "four partitions"
    )
    send_all(new_producer(broker), topic, [b"%d" % number for number in range(10)], partition=0)
    trimmed = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert [one.result(PATIENCE_S).low_watermark for one in trimmed.values()] == [4]
    earliest = admin.list_offsets({TopicPartition(topic, 0): OffsetSpec.earliest()})
    assert [one.result(PATIENCE_S).offset for one in earliest.values()] == [4]
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    eventually(lambda: topic not in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is gone")


def test_group_admin_calls(broker, admin, topic):
    make_topic(admin, topic)
    send_all(new_producer(broker), topic, [b"x"] * 10)
    consumer = new_consumer(broker, topic)
    consumer.subscribe([topic])
    drain(consumer, 10)
    consumer.commit(asynchronous=False)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert topic in [one.group_id for one in listed.valid]
    described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert described.state.name == "STABLE"
    assert len(described.members) == 1
    assert [one.partition for one in described.members[0].assignment.topic_partitions] == [0]
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    consumer.close()
    wait_empty(admin, topic)
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    listed = admin.list_consumer_groups().result(PATIENCE_S)
    assert topic not in [one.group_id for one in listed.valid]


def test_cluster_is_described(broker, admin):
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert sorted(node.port for node in cluster.nodes) == broker.ports
    assert cluster.cluster_id


def test_topics_are_made_on_first_use(broker, admin, topic):
    send_all(new_producer(broker), topic, [b"first"])
    assert len(admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions) == 1


@pytest.mark.clients
def test_a_million_records_arrive_whole_and_in_order(broker, admin, topic):
    """1 KiB each, over four partitions; a sequence per partition and a digest over all bytes."""
    partitions_count, per_partition = 4, 250_000
    make_topic(admin, topic, partitions_count)
    producer = new_producer(broker, **{"queue.buffering.max.messages": 200_000, "linger.ms": 20, "acks": "all"})
    failures: list = []
    body = bytes(range(256)) * 4
    sent = [hashlib.blake2b() for _ in range(partitions_count)]

    def delivered(error, _record) -> None:
        if error is not None:
            failures.append(error)

    for sequence in range(per_partition):
        for partition in range(partitions_count):
            value = struct.pack(">II", partition, sequence) + body[: 1024 - 8]
            sent[partition].update(value)
            while True:
                try:
                    producer.produce(topic, value, partition=partition, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
        if sequence % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0
    assert not failures, failures[:3]

    got = [hashlib.blake2b() for _ in range(partitions_count)]
    expected = [0] * partitions_count
    consumer = new_consumer(broker, topic)
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions_count)])
    while sum(expected) < partitions_count * per_partition:
        records = consumer.consume(10_000, timeout=PATIENCE_S)
        assert records, f"nothing came any more after {expected}"
        for record in records:
            assert record.error() is None, record.error()
            partition, sequence = struct.unpack_from(">II", record.value())
            assert (partition, record.offset()) == (record.partition(), sequence)
            assert sequence == expected[partition]
            expected[partition] += 1
            got[partition].update(record.value())
    consumer.close()
    assert [one.digest() for one in got] == [one.digest() for one in sent]
