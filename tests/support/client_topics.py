"""Topics and batches for tests of the asynchronous client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sniffio import current_async_library

from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.records import Record, build_batch

if TYPE_CHECKING:
    from tpc_broker.client import Client


def here(name: str) -> str:
    """A name of the loop's own."""
    return f"{name}-{current_async_library()}"


async def made_topic(client: Client, name: str, partitions_count: int = 1, **configs: str) -> str:
    """It is there and has leaders."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    await client.admin.topics.create(name, partitions=partitions_count, configs=named)
    for partition in range(partitions_count):
        where = TopicPartition(name, partition)
        await client.fleet.answered(lambda where=where: client.fleet.leader(where))
    return name


async def written(client: Client, where: TopicPartition, records: list[Record], **batch: Any) -> int:
    """One batch; its first offset."""
    return await sent(client, where, build_batch(records, **batch))


async def sent(client: Client, where: TopicPartition, batch: bytes) -> int:
    kind = messages.ProduceRequest
    data = kind.PartitionProduceData(index=where.partition, records=batch)
    topic = kind.TopicProduceData(name=where.topic, partition_data=[data])
    message = kind(acks=-1, timeout_ms=10_000, topic_data=[topic])

    async def ask() -> int:
        channel = await client.fleet.leader(where)
        answer = await channel.call(ApiKey.PRODUCE, lambda _version: message)
        row = answer.responses[0].partition_responses[0]
        if row.error_code:
            raise channel.refusal(row.error_code, f"a batch for {where}")
        return int(row.base_offset)

    return await client.fleet.answered(ask)
