"""A producer on Apache Kafka itself, read by Java; and through kills, on Kafka and on three nodes of ours."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from tests.client.producer_readback import read_back
from tests.client.test_producer import CODECS, make_topic, new_name
from tests.support.both_loops import BACKENDS, on_both_loops
from tests.support.cluster_nodes import Cluster
from tests.support.kafka_peer import run_tool
from tests.support.shared_servers import new_kafka
from tpc_broker.client import connect
from tpc_broker.client.producer.partitioning import key_partition

pytestmark = pytest.mark.clients
RECORDS_COUNT = 1_000_000
KILLS = 3


@pytest.fixture(scope="module")
def kafka(module_tmp_path):
    peer = new_kafka(module_tmp_path / "kafka")
    peer.start()
    yield peer
    peer.stop()


def java_reads(bootstrap, topic, count):
    bounds = ["--topic", topic, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000"]
    read = run_tool("console-consumer", "--bootstrap-server", bootstrap, *bounds)
    assert read.returncode == 0, read.stdout + read.stderr
    return read.stdout.splitlines()


def write_in_each_codec(bootstrap, topic):
    """Gives the values in order."""

    async def write(codec):
        async with connect(bootstrap, compression=codec) as client:
            if codec == CODECS[0]:
                await make_topic(client, topic)
            await client.send_all(topic, [f"{codec} {number} {'text ' * 20}".encode() for number in range(200)])
            await client.send(topic, f"{codec} last".encode(), key=b"k", headers={"h": b"1"})

    for place, codec in enumerate(CODECS):
        anyio.run(write, codec, backend=BACKENDS[place % 2])
    return [
        value
        for codec in CODECS
        for value in [*(f"{codec} {number} {'text ' * 20}" for number in range(200)), f"{codec} last"]
    ]


def test_java_reads_each_compression_from_our_broker(shared_broker, kafka):
    written = write_in_each_codec(shared_broker.bootstrap, "producer-java")
    assert java_reads(shared_broker.bootstrap, "producer-java", len(written)) == written


def test_java_and_librdkafka_read_each_compression_from_kafka(kafka):
    written = write_in_each_codec(kafka.bootstrap, "producer-java")
    assert java_reads(kafka.bootstrap, "producer-java", len(written)) == written
    found = read_back(kafka.bootstrap, "producer-java", len(written))
    assert [one.value.decode() for one in found] == written


@on_both_loops
async def test_kafka_takes_keys_nulls_and_too_large_batches(kafka):
    async with connect(kafka.bootstrap) as client:
        topic = new_name("producer-kafka-rest")
        await make_topic(client, topic, 3, max_message_bytes="2000")
        keyed = await client.send(topic, None, key=b"")
        assert keyed.partition == key_partition(b"", 3)
        slips = [await client.post(topic, b"%d" % number * 200, partition=0) for number in range(60)]
        offsets = [(await slip).offset for slip in slips]
        assert offsets == list(range(offsets[0], offsets[0] + 60))


async def write_through_kills(bootstrap, topic, kill, restart):
    async with connect(bootstrap, linger_seconds=0.001, request_seconds=10.0) as client:
        await make_topic(client, topic, 2)
        sent = 0

        async def disturb():
            for turn in range(KILLS):
                while sent < (turn + 1) * RECORDS_COUNT // (KILLS + 1):
                    await anyio.sleep(0.001)
                await anyio.to_thread.run_sync(kill, turn)
                await anyio.to_thread.run_sync(restart, turn)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(disturb)
            for number in range(RECORDS_COUNT):
                slip = await client.post(topic, b"%d" % number, partition=number % 2)
                sent += 1
                if number % 1000 == 0:
                    await slip
        await client.flush()


def check(bootstrap, topic):
    for partition in range(2):
        expected = [b"%d" % number for number in range(partition, RECORDS_COUNT, 2)]
        found = read_back(bootstrap, topic, len(expected), partition)
        assert [one.value for one in found] == expected
        assert [one.offset for one in found] == list(range(len(expected)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kafka_that_is_killed_has_each_record_once_and_in_order(kafka, backend):
    topic = f"producer-kills-{backend}"
    anyio.run(
        write_through_kills, kafka.bootstrap, topic, lambda _turn: kafka.kill(), lambda _turn: kafka.start(),
        backend=backend,
    )  # fmt: skip
    check(kafka.bootstrap, topic)


@pytest.mark.parametrize("backend", BACKENDS)
def test_three_nodes_that_are_killed_in_turn_have_each_record_once_and_in_order(tmp_path, backend):
    cluster = Cluster(tmp_path)
    cluster.start()
    try:
        topic = "producer-kills"
        anyio.run(
            write_through_kills, cluster.bootstrap, topic, lambda turn: cluster.kill(1 + turn % 3),
            lambda turn: cluster.start(1 + turn % 3), backend=backend,
        )  # fmt: skip
        check(cluster.bootstrap, topic)
    finally:
        cluster.kill_all()
