"""Reading from Apache Kafka with `Client.read`: what our own broker may do in another way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from confluent_kafka import Producer

from tests.support.both_loops import on_both_loops
from tests.support.client_topics import here, made_topic, written
from tests.support.kafka_peer import KafkaCluster, PeerUnavailable
from tpc_broker.client import GroupSettings, Position, TopicPartition, connect
from tpc_broker.client.errors import OffsetsMissingError
from tpc_broker.kafka.records import Record

pytestmark = pytest.mark.clients
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kafka(module_tmp_path: Path) -> Iterator[KafkaCluster]:
    """Two nodes, each in a rack of its own."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    settings = {"replica.selector.class": selector, "log.cleaner.backoff.ms": "200"}
    peer = KafkaCluster(module_tmp_path, (1, 2), settings)
    try:
        peer.start()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    try:
        yield peer
    finally:
        peer.kill()


def compressed(bootstrap: str, topic: str, compression: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": compression, "linger.ms": 50})
    for number in range(1000):
        producer.produce(topic, b"%d" % number * 20, b"key", partition=0, headers=[("h", b"%d" % number)])
    assert producer.flush(120) == 0


@on_both_loops
async def test_all_compressions(kafka: KafkaCluster) -> None:
    async with connect(kafka.bootstrap) as client:
        for compression in COMPRESSIONS:
            topic = await made_topic(client, here(compression))
            await anyio.to_thread.run_sync(compressed, kafka.bootstrap, topic, compression)
            async with client.read(topic) as stream:
                for number in range(1000):
                    record = await anext(stream)
                    assert (record.offset, record.value) == (number, b"%d" % number * 20)
                    assert record.headers == (("h", b"%d" % number),)


def transactions(bootstrap: str, topic: str, compression: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "compression.type": compression})
    producer.init_transactions(120)
    for number in range(60):
        producer.begin_transaction()
        for _ in range(5):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(120) == 0
        (producer.abort_transaction if number % 3 == 1 else producer.commit_transaction)(120)


@on_both_loops
async def test_transactions(kafka: KafkaCluster) -> None:
    kept = [b"%d" % number for number in range(60) if number % 3 != 1 for _ in range(5)]
    async with connect(kafka.bootstrap) as client:
        for compression in ("none", "lz4"):
            topic = await made_topic(client, here(f"transactions-{compression}"))
            await anyio.to_thread.run_sync(transactions, kafka.bootstrap, topic, compression)
            for partition_bytes in (100, 1024 * 1024):
                async with client.read(topic, partition_bytes=partition_bytes) as stream:
                    assert [(await anext(stream)).value for _ in kept] == kept
            async with client.read(topic, isolation="read_uncommitted") as stream:
                read = [(await anext(stream)).value for _ in range(300)]
                assert read == [b"%d" % number for number in range(60) for _ in range(5)]


@on_both_loops
async def test_a_compacted_log(kafka: KafkaCluster) -> None:
    async with connect(kafka.bootstrap) as client:
        topic = await made_topic(
            client, here("compacted"), cleanup_policy="compact", segment_bytes="1048576",
            min_cleanable_dirty_ratio="0.01", segment_ms="500",
        )  # fmt: skip
        where = TopicPartition(topic, 0)
        for round_number in range(20):
            records = [Record(b"%d" % round_number, b"%d" % (number % 7)) for number in range(50)]
            await written(client, where, records)
            await anyio.sleep(0.1)
        until = time.monotonic() + 120
        while True:
            await anyio.sleep(1)
            await written(client, where, [Record(b"last", b"last")])
            async with client.read(topic) as stream:
                read = [await anext(stream)]
                while read[-1].offset < await client_end(client, where) - 1:
                    read.append(await anext(stream))
            offsets = [record.offset for record in read]
            assert offsets == sorted(set(offsets))
            assert {record.key: record.value for record in read} == {
                **{b"%d" % key: b"19" for key in range(7)}, b"last": b"last",
            }  # fmt: skip
            if len(read) < 500:
                return
            assert time.monotonic() < until, "the log was not cleaned"


async def client_end(client: Any, where: TopicPartition) -> int:
    return int((await client.admin.topics.offsets({where: -1}))[where])


@on_both_loops
async def test_a_replica_in_the_same_rack(kafka: KafkaCluster) -> None:
    async with connect(kafka.bootstrap) as client:
        topic = here("racks")
        await client.admin.topics.create(topic, assignments=[[1, 2]])
        where = TopicPartition(topic, 0)
        for number in range(20):
            await written(client, where, [Record(b"%d" % number)])
        asked = []
        original = client.fleet.own_channel

        async def watched(broker_id: int, request_seconds: float | None = None) -> Any:
            asked.append(broker_id)
            return await original(broker_id, request_seconds)

        client.fleet.own_channel = watched  # type: ignore[method-assign]
        async with client.read(topic, rack="rack 2", partition_bytes=100) as stream:
            assert [(await anext(stream)).offset for _ in range(20)] == list(range(20))
            assert stream.ledger.stock.partitions[where].source == 2
        assert 2 in asked


@on_both_loops
async def test_offsets_that_are_missing(kafka: KafkaCluster) -> None:
    async with connect(kafka.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("missing")), 0)
        for number in range(10):
            await written(client, where, [Record(b"%d" % number)])
        await client.admin.topics.delete_records({where: 6})
        async with client.read(assignment={where: 2}) as stream:
            with pytest.raises(OffsetsMissingError, match=r"offset 2 .* holds \[6, 10\)"):
                await anext(stream)
        async with client.read(assignment={where: Position(7, 0)}, on_missing="earliest") as stream:
            assert (await anext(stream)).offset == 7


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@on_both_loops
async def test_a_group(kafka: KafkaCluster, protocol: Any) -> None:
    async with connect(kafka.bootstrap) as client:
        topic = await made_topic(client, here(f"group-{protocol}"), 3)
        for partition in range(3):
            await written(client, TopicPartition(topic, partition), [Record(b"%d" % number) for number in range(100)])
        seen: list[tuple[int, int]] = []
        settings = GroupSettings(topic, protocol=protocol)
        for share in (120, 180):
            async with client.read(topic, group=settings) as stream:
                for _ in range(share):
                    record = await anext(stream)
                    seen.append((record.partition, record.offset))
        assert len(set(seen)) >= len(seen) - 1  # the record that was under way comes once more
