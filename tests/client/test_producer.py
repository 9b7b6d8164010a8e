"""Sending against a real broker, on both loops."""

from __future__ import annotations

from tests.support.both_loops import on_both_loops
from tpc_broker.client import connect
from tpc_broker.kafka import ApiKey, messages


async def make_topic(client, name, partitions=1, **configs):
    request = messages.CreateTopicsRequest
    rows = [request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=rows)
    ask = request(topics=[topic], timeout_ms=10_000)
    answer = await (await client.fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _v: ask)
    assert answer.topics[0].error_code in (0, 36), answer


@on_both_loops
async def test_a_record_is_sent(shared_broker):
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, "producer-first", 1)
        first = await client.send("producer-first", b"a", key=b"k", headers={"h": b"1"})
        second = await client.send("producer-first", b"b", timestamp=5)
        assert second.offset == first.offset + 1
        assert second.timestamp == 5
        slips = [await client.post("producer-first", b"%d" % i) for i in range(1000)]
        offsets = [(await slip).offset for slip in slips]
        assert offsets == list(range(second.offset + 1, second.offset + 1001))
        sent = await client.send_all("producer-first", (b"x" * 100 for _ in range(20000)))
        assert sent.records_count == 20000
        await client.flush()
