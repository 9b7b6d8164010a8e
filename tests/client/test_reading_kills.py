"""A million records in order, while nodes of a cluster are killed, and leaders change."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from confluent_kafka import Producer

from tests.support.both_loops import BACKENDS
from tests.support.cluster_nodes import Cluster, brokers, cluster, create_topic, eventually
from tpc_broker.client import GroupSettings, connect

pytestmark = pytest.mark.clients
RECORDS: Final = 1_000_000
PARTITIONS: Final = 3
TOPIC: Final = "kills"
SECONDS: Final = 600


class Writing:
    """Idempotent, in a thread; partition and number in each value."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 20,
             "message.timeout.ms": 1000 * SECONDS, "queue.buffering.max.messages": 100_000}
        )  # fmt: skip
        self.failures: list[str] = []

    def write(self, first: int, end: int) -> None:
        for number in range(first, end):
            value = b"%d" % (number // PARTITIONS)
            while True:
                try:
                    self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(1)
        assert self._producer.flush(SECONDS) == 0

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failures.append(str(error))


class Reading:
    """What came of each partition, in which order."""

    def __init__(self) -> None:
        self.next = [0] * PARTITIONS
        self.again = 0
        self.grown = anyio.Event()

    def take(self, record: Any, *, may_repeat: bool = False) -> None:
        number = int(record.value)
        if may_repeat and number < self.next[record.partition]:
            self.again += 1
            return
        assert number == self.next[record.partition], (record, self.next)
        self.next[record.partition] += 1

    @property
    def count(self) -> int:
        return sum(self.next)


async def killing(nodes: Cluster, progress: Any, count: int) -> None:
    """Each node once, while so many records are read."""
    for place, number in enumerate((1, 2, 3)):
        while progress() < count * (place + 1) // 4:
            await anyio.sleep(0.05)
        await anyio.to_thread.run_sync(nodes.kill, number)
        await anyio.sleep(2)
        await anyio.to_thread.run_sync(nodes.start, number)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_record_once_and_in_order(module_tmp_path: Path, backend: str) -> None:
    with cluster(module_tmp_path / backend) as nodes:
        nodes.start()
        eventually(lambda: len(brokers(nodes.bootstrap)) == 3, "all nodes are there")
        create_topic(nodes.bootstrap, TOPIC, PARTITIONS, replicas=3)
        writing = Writing(nodes.bootstrap)

        async def play() -> None:
            alone, member = Reading(), Reading()

            async def read_alone() -> None:
                async with connect(nodes.bootstrap) as client, client.read(TOPIC) as stream:
                    async for record in stream:
                        alone.take(record)
                        if alone.count == RECORDS:
                            return

            async def read_in_group() -> None:
                settings = GroupSettings("kills")
                async with connect(nodes.bootstrap) as client, client.read(TOPIC, group=settings) as stream:
                    async for batch in stream.batches():
                        for record in batch.records:
                            member.take(record, may_repeat=True)
                        if member.count == RECORDS:
                            return

            with anyio.fail_after(SECONDS):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read_alone)
                    tasks.start_soon(read_in_group)
                    tasks.start_soon(anyio.to_thread.run_sync, writing.write, 0, RECORDS)
                    tasks.start_soon(killing, nodes, lambda: min(alone.count, member.count), RECORDS)
            assert alone.next == member.next
            assert writing.failures == []

        anyio.run(play, backend=backend)
