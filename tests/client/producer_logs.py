"""Logs behind scripted brokers: what a producer's requests leave there by Kafka's rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.client.producer_model import Leader
from tests.support.scripted_broker import Asked, ScriptedBrokers, scripted_brokers
from tpc_broker.client.handle import Client, opened
from tpc_broker.client.net.fleet import FleetSettings
from tpc_broker.client.producer.settings import ProducerSettings
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.records import read_batches

TOPIC = "t"


class Logs:
    """`script` answers what a producer asks. ``instead``: an async function that is asked first about each Produce, and
    may append what it has by `produce`; None: as usual.
    """

    def __init__(self) -> None:
        self.partitions: defaultdict[int, Leader] = defaultdict(lambda: Leader(bytes_max=10**6))
        self.asked_values: set[bytes] = set()
        self.headers: list[Any] = []
        self.instead: Any = None

    def values(self, partition: int = 0) -> list[bytes]:
        return self.partitions[partition].log

    async def script(self, asked: Asked) -> Any:
        if asked.key == ApiKey.INIT_PRODUCER_ID:
            return messages.InitProducerIdResponse(producer_id=7, producer_epoch=0)
        if asked.key != ApiKey.PRODUCE:
            return None
        for topic in asked.message.topic_data:
            for row in topic.partition_data:
                for batch in read_batches(row.records):
                    self.headers.append(batch)
                    self.asked_values |= {record.value or b"" for record in batch.records()}
        answer = None if self.instead is None else await self.instead(asked)
        return self.produce(asked) if answer is None else answer

    def produce(self, asked: Asked) -> Any:
        return answer_of(asked, lambda partition, data: self.partitions[partition].append(data))


def answer_of(asked: Asked, append: Any) -> Any:
    kind = messages.ProduceResponse
    rows = []
    for row in asked.message.topic_data[0].partition_data:
        code, offset = append(row.index, bytes(row.records))
        rows.append(kind.PartitionProduceResponse(index=row.index, error_code=code, base_offset=offset))
    return kind(responses=[kind.TopicProduceResponse(name=TOPIC, partition_responses=rows)])


def refusing(asked: Asked, code: int) -> Any:
    """The same error for each partition, and nothing appended."""
    return answer_of(asked, lambda _partition, _data: (code, -1))


@asynccontextmanager
async def logged_client(
    logs: Logs,
    *,
    partitions: int = 1,
    brokers_count: int = 1,
    fleet: dict[str, Any] | None = None,
    versions: dict[ApiKey, tuple[int, int] | None] | None = None,
    **sending: Any,
) -> AsyncIterator[tuple[Client, ScriptedBrokers]]:
    """``sending``: of `ProducerSettings`; ``fleet``: of `FleetSettings`."""
    async with (
        scripted_brokers(
            logs.script, topics={TOPIC: partitions}, brokers_count=brokers_count, versions=versions
        ) as brokers,
        opened(
            FleetSettings(brokers.bootstrap, **(fleet or {})), dial=brokers.dial, sending=ProducerSettings(**sending)
        ) as client,
    ):
        yield client, brokers
