"""Reading topics with `Client.read`, from a broker of ours, on both loops."""

from __future__ import annotations

from typing import Any

from sniffio import current_async_library

from tests.support.both_loops import on_both_loops
from tpc_broker.client import TopicPartition, connect
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.records import Record, build_batch


def here(name: str) -> str:
    """A topic of the loop's own."""
    return f"{name}-{current_async_library()}"


async def made_topic(client: Any, name: str, partitions_count: int = 1) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions_count, replication_factor=1
    )
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    answer = await (await client.fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _version: request)
    assert answer.topics[0].error_code in {0, 36}, answer


async def written(client: Any, where: TopicPartition, records: list[Record], **batch: Any) -> int:
    """One batch; its first offset."""
    request = messages.ProduceRequest
    data = request.PartitionProduceData(index=where.partition, records=build_batch(records, **batch))
    message = request(
        acks=-1, timeout_ms=10_000, topic_data=[request.TopicProduceData(name=where.topic, partition_data=[data])]
    )
    answer = await (await client.fleet.leader(where)).call(ApiKey.PRODUCE, lambda _version: message)
    row = answer.responses[0].partition_responses[0]
    assert row.error_code == 0, answer
    return int(row.base_offset)


@on_both_loops
async def test_records_come_as_they_were_written(shared_broker: Any) -> None:
    name = here("reading-as-written")
    headers = (("a", b"1"), ("a", b"2"), ("é", None), ("", b""))
    given = [
        Record(b"v", b"k", 1_000, headers),
        Record(None, None, 2_000),
        Record(b"", b"", 3_000, ()),
        Record(b"x" * 100_000, None, 4_000, (("b", b"y" * 1000),)),
    ]
    async with connect(shared_broker.bootstrap) as client:
        await made_topic(client, name)
        where = TopicPartition(name, 0)
        await written(client, where, given)
        async with client.read(name) as stream:
            read = []
            async for record in stream:
                read.append(record)
                if len(read) == len(given):
                    break
    assert [(r.value, r.key, r.timestamp, r.headers) for r in read] == [tuple(r[:4]) for r in given]
    assert [(r.topic, r.partition, r.offset) for r in read] == [(name, 0, offset) for offset in range(4)]
