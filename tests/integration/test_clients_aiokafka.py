"""aiokafka, as it is installed, against a running broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from tests.integration.matrix import CODECS, SESSION_MS, owned_exactly_once
from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S


def run(coroutine) -> None:
    """Run one test's coroutine, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(3 * PATIENCE_S):
            await coroutine

    asyncio.run(bounded())


async def make_topic(broker, name: str, partitions_count: int = 1) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    answer = await admin.create_topics([NewTopic(name, partitions_count, 1)])
    assert [error[1] for error in answer.topic_errors] == [0], answer
    await admin.close()


async def started(client):
    await client.start()
    return client


async def drain(consumer: AIOKafkaConsumer, count: int) -> list:
    received: list = []
    async with asyncio.timeout(PATIENCE_S):
        while len(received) < count:
            batches = await consumer.getmany(timeout_ms=1000, max_records=count - len(received))
            received.extend(record for records in batches.values() for record in records)
    return received


async def until(look: Callable[[], Awaitable[bool]]) -> None:
    """A broker may be asked before it has heard of a change that another one has made."""
    async with asyncio.timeout(PATIENCE_S):
        while not await look():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("codec", CODECS)
def test_what_is_produced_is_consumed(broker, topic, codec):
    async def body() -> None:
        await make_topic(broker, topic)
        kind = None if codec == "none" else codec
        producer = await started(
            AIOKafkaProducer(bootstrap_servers=broker.bootstrap, compression_type=kind, acks="all")
        )
        values = [b"value-%d-" % number + b"x" * 100 for number in range(300)]
        sent = [await producer.send(topic, value, key=b"k", headers=[("h", b"1")]) for value in values]
        places = [(await one).offset for one in sent]
        assert places == list(range(300))
        await producer.stop()
        consumer = await started(
            AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
        )
        received = await drain(consumer, 300)
        assert [record.value for record in received] == values
        assert received[0].headers == (("h", b"1"),)
        await consumer.stop()

    run(body())


def test_idempotent_producer(broker, topic):
    async def body() -> None:
        await make_topic(broker, topic, 3)
        producer = await started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True))
        sent = [await producer.send(topic, b"%d" % number) for number in range(1000)]
        places = {(record.partition, record.offset) for record in [await one for one in sent]}
        assert len(places) == 1000
        await producer.stop()

    run(body())


def test_a_group_of_three_rebalances(broker, topic):
    async def body() -> None:
        await make_topic(broker, topic, 6)
        members: list[AIOKafkaConsumer] = []

        async def shared() -> None:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    owned = [[one.partition for one in member.assignment()] for member in members]
                    if all(owned) and owned_exactly_once(owned, 6):
                        return
                    for member in members:
                        await member.getmany(timeout_ms=20)

        for _ in range(3):
            settings = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 200, "auto_offset_reset": "earliest"}
            member = AIOKafkaConsumer(topic, bootstrap_servers=broker.bootstrap, group_id=topic, **settings)
            starting = asyncio.create_task(started(member))
            while not starting.done():
                for one in members:
                    await one.getmany(timeout_ms=20)
                await asyncio.sleep(0.02)
            members.append(await starting)
            await shared()
        await members.pop(0).stop()
        await shared()
        for member in members:
            await member.stop()

    run(body())


def test_seek_by_time(broker, topic):
    async def body() -> None:
        await make_topic(broker, topic)
        producer = await started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap))
        for number in range(50):
            await producer.send(topic, b"%d" % number, timestamp_ms=BASE_MS + 1000 * number)
        await producer.stop()
        consumer = await started(AIOKafkaConsumer(bootstrap_servers=broker.bootstrap))
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        for millis, offset in ((0, 0), (7_000, 7), (7_001, 8)):
            found = await consumer.offsets_for_times({place: BASE_MS + millis})
            assert found[place].offset == offset
        assert (await consumer.offsets_for_times({place: BASE_MS + 10**6}))[place] is None
        assert await consumer.end_offsets([place]) == {place: 50}
        assert await consumer.beginning_offsets([place]) == {place: 0}
        consumer.seek(place, 31)
        assert (await drain(consumer, 1))[0].value == b"31"
        await consumer.stop()

    run(body())


@pytest.mark.clients
def test_committed_offsets_outlive_a_restart(own_broker, topic):
    broker = own_broker

    async def first() -> None:
        await make_topic(broker, topic)
        producer = await started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap))
        for number in range(100):
            await producer.send(topic, b"%d" % number)
        await producer.stop()
        consumer = await started(_grouped(broker, topic))
        await drain(consumer, 60)
        await consumer.commit()
        await consumer.stop()

    async def second() -> None:
        consumer = await started(_grouped(broker, topic))
        assert await consumer.committed(TopicPartition(topic, 0)) == 60
        assert [int(record.value) for record in await drain(consumer, 40)] == list(range(60, 100))
        await consumer.stop()

    run(first())
    broker.restart()
    run(second())


def _grouped(broker, topic: str) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap,
        group_id=topic,
        session_timeout_ms=SESSION_MS,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )


def test_admin_calls(broker, topic):
    async def body() -> None:
        await make_topic(broker, topic, 2)
        admin = await started(AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap))
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "54321"})
        [altered] = await admin.alter_configs([resource])
        assert altered.resources[0][0] == 0, altered

        async def is_altered() -> bool:
            [described] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
            settings = {entry[0]: entry[1] for entry in described.resources[0][4]}
            return settings["retention.ms"] == "54321"

        async def has_four_partitions() -> bool:
            [found] = await admin.describe_topics([topic])
            return len(found["partitions"]) == 4

        async def is_gone() -> bool:
            return topic not in await admin.list_topics()

        await until(is_altered)
        await admin.create_partitions({topic: NewPartitions(4)})
        await until(has_four_partitions)
        producer = await started(AIOKafkaProducer(bootstrap_servers=broker.bootstrap))
        for number in range(10):
            await producer.send_and_wait(topic, b"%d" % number, partition=0)
        await producer.stop()
        trimmed = await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=4)})
        assert trimmed == {TopicPartition(topic, 0): 4}
        consumer = await started(_grouped(broker, topic))
        await drain(consumer, 6)
        await consumer.commit()
        assert (topic, "consumer") in await admin.list_consumer_groups()
        [group] = (await admin.describe_consumer_groups([topic]))[0].groups
        assert group[1:3] == (topic, "Stable")
        await consumer.stop()
        offsets = await admin.list_consumer_group_offsets(topic)
        assert offsets[TopicPartition(topic, 0)].offset == 10
        answer = await admin.delete_topics([topic])
        assert [error[1] for error in answer.topic_error_codes] == [0]
        await until(is_gone)
        assert len((await admin.describe_cluster())["brokers"]) == len(broker.ports)
        await admin.close()

    run(body())
