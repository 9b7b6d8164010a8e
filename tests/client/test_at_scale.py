"""What only numbers show: a million records on Apache Kafka, a thousand partitions in one reader, transactions while
leaders change, and memory while a client writes and reads for minutes (three, or `TPC_TEST_MINUTES`).
"""

from __future__ import annotations

import itertools
import logging
import os
import statistics
import time
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import pytest

from tests.client.test_reading_kills import killing
from tests.support.both_loops import BACKENDS
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import brokers, cluster, create_topic, eventually
from tests.support.shared_servers import new_kafka
from tpc_broker.client import connect
from tpc_broker.client.errors import ClientError

pytestmark = pytest.mark.clients
MINUTES: Final = float(os.environ.get("TPC_TEST_MINUTES", "3"))
SECONDS: Final = 600
MEBIBYTE: Final = 1024 * 1024
logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def kafka(module_tmp_path):
    peer = new_kafka(module_tmp_path / "kafka")
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    peer = TpcBroker(module_tmp_path / "broker", cores_count=1)
    peer.start()
    yield peer
    peer.stop()


class Seen:
    """How often each number was read, and whether each partition's came in order."""

    def __init__(self, count: int) -> None:
        self.times = bytearray(count)
        self.missing = count
        self.last: dict[int, int] = {}
        self.all = anyio.Event()

    def take(self, batch) -> None:
        last = self.last.get(batch.where.partition, -1)
        for record in batch.records:
            number = int(record.value)
            assert number > last, (batch.where, last, number)
            last = number
            self.missing -= not self.times[number]
            self.times[number] += 1
        self.last[batch.where.partition] = last
        if not self.missing:
            self.all.set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_million_records_on_kafka_are_read_once_each_by_a_group_of_three(kafka, backend):
    count, topic = 1_000_000, f"million-{backend}"

    async def play():
        seen, taken, numbers = Seen(count), [0] * 3, iter(range(count))

        async def member(place):
            async with connect(kafka.bootstrap) as own, own.read(topic, group=topic) as stream:
                async for batch in stream.batches():
                    seen.take(batch)
                    taken[place] += len(batch)

        async with connect(kafka.bootstrap) as client:
            await client.admin.topics.create(topic, partitions=6)
            async with anyio.create_task_group() as tasks:
                for place in range(3):
                    tasks.start_soon(member, place)
                    while not taken[place]:  # each joins while the others read
                        await client.send_all(topic, [b"%d" % number for number in itertools.islice(numbers, 1000)])
                        await anyio.sleep(0.02)
                await client.send_all(topic, (b"%d" % number for number in numbers))
                await seen.all.wait()
                tasks.cancel_scope.cancel()
            logger.info("read by each member: %s", taken)
            assert set(seen.times) == {1}
            assert sum(one.records for one in (await client.admin.groups.lag(topic)).values()) == 0

    run(play, backend)


def run(play, backend):
    async def bounded():
        with anyio.fail_after(SECONDS + 60 * MINUTES):
            await play()

    anyio.run(bounded, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_reader_has_a_thousand_partitions(broker, backend):
    count, partitions, topic = 200_000, 1000, f"thousand-{backend}"

    async def play():
        async with connect(broker.bootstrap) as client:
            await client.admin.topics.create(topic, partitions=partitions)
            for group in (None, topic):
                seen = Seen(count if group is None else count + partitions)
                if group is None:
                    await client.send_all(topic, ((b"%d" % number, b"%d" % number) for number in range(count)))
                began = time.process_time()
                async with client.read(topic, group=group) as stream, anyio.create_task_group() as tasks:

                    async def read(stream=stream, seen=seen):
                        async for batch in stream.batches():
                            seen.take(batch)

                    tasks.start_soon(read)
                    if group is not None:
                        for number in range(partitions):
                            await client.send(topic, b"%d" % (count + number), partition=number)
                    await seen.all.wait()
                    tasks.cancel_scope.cancel()
                logger.info("%s: %.1f s of CPU", group, time.process_time() - began)
                assert set(seen.times) == {1}
                assert len(seen.last) == partitions

    run(play, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transactions_are_there_once_while_leaders_change(module_tmp_path: Path, backend: str) -> None:
    count = 20_000
    with cluster(module_tmp_path / f"nodes-{backend}") as nodes:
        nodes.start()
        eventually(lambda: len(brokers(nodes.bootstrap)) == 3, "all nodes are there")
        for topic in ("in", "out"):
            create_topic(nodes.bootstrap, topic, 3, replicas=3)

        async def play():
            moved, failed = Seen(count), 0

            async def check():
                async with connect(nodes.bootstrap) as own, own.read("out") as stream:
                    async for batch in stream.batches():
                        for record in batch.records:
                            number = int(record.value)
                            moved.missing -= not moved.times[number]
                            moved.times[number] += 1
                        if not moved.missing:
                            moved.all.set()

            async def move():
                nonlocal failed
                async with connect(nodes.bootstrap) as own, own.read("in", group="mover") as stream:
                    async for batch in stream.batches(max_records=50):
                        try:
                            async with own.transaction("mover") as tx:
                                for record in batch.records:
                                    await tx.post("out", record=record)
                                tx.done(batch)
                        except ClientError as error:
                            logger.info("a transaction was not committed: %r", error)
                            failed += 1

            async with connect(nodes.bootstrap) as client:
                await client.send_all("in", (b"%d" % number for number in range(count)))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(check)
                tasks.start_soon(move)
                await killing(nodes, lambda: count - moved.missing, count)
                await moved.all.wait()
                await anyio.sleep(2)
                tasks.cancel_scope.cancel()
            logger.info("%d transactions were not committed", failed)
            assert set(moved.times) == {1}

        run(play, backend)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("backend", BACKENDS)
def test_memory_does_not_grow_while_it_writes_and_reads(broker, backend):
    """The median of the last third of the time is not above that of the middle one by more than the allocator moves."""
    topic, samples = f"memory-{backend}", []

    async def play():
        async with connect(broker.bootstrap, memory="16MiB") as client:
            configs = {"retention.bytes": str(64 * MEBIBYTE), "segment.bytes": str(16 * MEBIBYTE)}
            await client.admin.topics.create(topic, partitions=3, configs=configs)
            until, counts = time.monotonic() + 60 * MINUTES, [0, 0]

            async def write():
                while time.monotonic() < until:
                    await client.send(topic, b"one" * 50, headers={"h": b"1"})
                    await client.send_all(topic, [b"%d" % counts[0] * 20] * 200)
                    slips = [await client.post(topic, b"posted" * 20, key=b"%d" % place) for place in range(20)]
                    for slip in slips:
                        await slip
                    counts[0] += 221

            async def read():
                async with client.read(topic, group=topic, memory="16MiB", commit_seconds=0.5) as stream:
                    async for batch in stream.batches():
                        counts[1] += len(batch.records)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                tasks.start_soon(read)
                while time.monotonic() < until:
                    await anyio.sleep(1)
                    samples.append(resident_bytes())
                with anyio.move_on_after(60):
                    while counts[1] < counts[0]:
                        await anyio.sleep(0.1)
                tasks.cancel_scope.cancel()
            logger.info("%d written, %d read", *counts)
            assert counts[0] == counts[1]

    run(play, backend)
    third = len(samples) // 3
    parts = [statistics.median(samples[place * third : (place + 1) * third]) for place in range(3)]
    logger.info("resident: %s MiB, at most %d", [round(one / MEBIBYTE, 1) for one in parts], max(samples) / MEBIBYTE)
    assert parts[2] <= parts[1] + 4 * MEBIBYTE
    assert max(samples) - samples[0] < 96 * MEBIBYTE
