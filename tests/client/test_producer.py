"""Sending to a real broker: what is written, where it goes, and how it is read by others."""

from __future__ import annotations

import itertools

import anyio
import pytest

from tests.client.producer_readback import read_back
from tests.support.both_loops import BACKENDS, on_both_loops
from tpc_broker.client import Record, connect
from tpc_broker.client.errors import RecordRefusedError, UnknownTopicError
from tpc_broker.client.producer.partitioning import key_partition, key_partitions
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka.compression import Compression

CODECS = [codec.name.lower() for codec in Compression]
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
"""Of Kafka's own tests (UtilsTest.testMurmur2)."""
_numbers = itertools.count()


async def make_topic(client, name, partitions=1, **configs):
    """With settings like ``max_message_bytes="1000"``. A new one for each loop."""
    request = messages.CreateTopicsRequest
    rows = [request.CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    topic = request.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=rows)
    ask = request(topics=[topic], timeout_ms=10_000)
    answer = await (await client.fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _v: ask)
    assert answer.topics[0].error_code == 0, answer


def new_name(name):
    """For a topic of each loop."""
    return f"{name}-{next(_numbers)}"


@pytest.mark.parametrize(("key", "hashed"), MURMUR2.items())
def test_keys_have_the_partitions_that_java_gives_them(key, hashed):
    for count in (1, 3, 50, 2**31 - 1):
        assert key_partition(key, count) == (hashed & 0x7FFFFFFF) % count
        assert list(key_partitions([b"", key], count)) == [key_partition(b"", count), key_partition(key, count)]


@pytest.mark.parametrize("codec", CODECS)
def test_others_read_what_was_written_in_each_compression(shared_broker, codec):
    topic = f"producer-codec-{codec}"

    async def write():
        async with connect(shared_broker.bootstrap, compression=codec) as client:
            await make_topic(client, topic)
            await client.send(topic, b"v", key=b"k", headers=[("a", b"1"), ("a", None), ("ü", b"")], timestamp=77)
            await client.send(topic, None, key=b"")
            await client.send(topic, b"")
            slips = [await client.post(topic, b"%d" % number * 50) for number in range(500)]
            assert (await slips[-1]).offset == 502

    anyio.run(write, backend=BACKENDS[CODECS.index(codec) % 2])
    found = read_back(shared_broker.bootstrap, topic, 503)
    assert found[0] == (b"k", b"v", [("a", b"1"), ("a", None), ("ü", b"")], 77, 0)
    assert [(one.key, one.value, one.headers) for one in found[1:3]] == [(b"", None, []), (None, b"", [])]
    assert [one.value for one in found[3:]] == [b"%d" % number * 50 for number in range(500)]


@on_both_loops
async def test_an_answer_tells_where_and_when(shared_broker):
    topic = new_name("producer-where")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, 3)
        assert await client.send(topic, b"v", partition=2, timestamp=5) == (topic, 2, 0, 5)
        slip = await client.post(topic, b"w", partition=2)
        assert (slip.topic, slip.partition) == (topic, 2)
        told = await slip
        assert told.offset == 1
        assert told == await slip
        with pytest.raises(UnknownTopicError, match="no partition 3; it has 3"):
            await client.send(topic, b"v", partition=3)


@on_both_loops
async def test_time_stamps_of_the_broker_are_told(shared_broker):
    topic = new_name("producer-append-time")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, message_timestamp_type="LogAppendTime")
        assert (await client.send(topic, b"v", timestamp=5)).timestamp > 5


@on_both_loops
async def test_an_empty_key_is_a_key_and_no_key_goes_anywhere(shared_broker):
    topic = new_name("producer-keys")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, 7)
        assert {(await client.send(topic, b"v", key=b"")).partition for _record in range(5)} == {key_partition(b"", 7)}
        sent = await client.send_all(topic, [b"x" * 1000] * 2000)
        assert len(sent.partitions) > 1
        assert sum(extent.records_count for extent in sent.partitions.values()) == sent.records_count == 2000


@on_both_loops
async def test_a_function_chooses_partitions_or_leaves_them(shared_broker):
    topic = new_name("producer-choice")

    def choose(name, key, count):
        assert (name, count) == (topic, 4)
        return None if key == b"left" else 3

    async with connect(shared_broker.bootstrap, partitioner=choose) as client:
        await make_topic(client, topic, 4)
        assert (await client.send(topic, b"v", key=b"k")).partition == 3
        assert (await client.send(topic, b"v", key=b"left")).partition == key_partition(b"left", 4)
        assert set((await client.send_all(topic, [b"v", (b"k", b"w")])).partitions) == {3}


@on_both_loops
async def test_what_was_read_is_sent_on_as_it_is(shared_broker):
    topic = new_name("producer-onward")
    read = [
        Record("other", 9, 5, 1000, None, None, (), -1),
        Record("other", 9, 6, 1001, b"", b"", (("h", None), ("h", b"2")), 3),
        Record("other", 9, 7, 1002, b"k", None, (("x", b""),), 3),
    ]
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic)
        for record in read:
            assert (await client.send(topic, record=record)).timestamp == record.timestamp
        await (await client.post(topic, record=read[0]))
        await client.send_all(topic, read)
    found = await anyio.to_thread.run_sync(read_back, shared_broker.bootstrap, topic, 7)
    assert [(one.timestamp, one.key, one.value, tuple(one.headers)) for one in found] == [
        (record.timestamp, record.key, record.value, record.headers) for record in [*read, read[0], *read]
    ]


@on_both_loops
async def test_all_kinds_of_items_are_sent_in_order(shared_broker):
    topic = new_name("producer-all")

    async def items():
        for number in range(10):
            yield b"%d" % number

    async with connect(shared_broker.bootstrap, memory="32KiB", batch_bytes=2000) as client:
        await make_topic(client, topic, 2)
        pairs = [(b"%d" % (number % 10), b"%d" % number) for number in range(1000)]
        sent = await client.send_all(topic, pairs)
        assert sent.records_count == 1000
        again = await client.send_all(topic, items(), partition=0)
        assert again == (10, {0: (10, sent.partitions[0].records_count, sent.partitions[0].records_count + 9)})
        mixed = await client.send_all(topic, [b"a", None, (None, b"b"), (b"c", None)], partition=1)
        assert mixed.records_count == 4
        with pytest.raises(TypeError, match="bytes or None, not str"):
            await client.send_all(topic, ["text"])
        big = await client.send_all(topic, [b"x" * 10_000] * 20)
        assert big.records_count == 20
    for partition in range(2):
        count = sent.partitions[partition].records_count
        found = await anyio.to_thread.run_sync(read_back, shared_broker.bootstrap, topic, count, partition)
        mine = [pair for pair in pairs if key_partition(pair[0], 2) == partition]
        assert [(one.key, one.value) for one in found] == mine


@on_both_loops
async def test_a_batch_that_is_too_large_for_the_topic_is_divided(shared_broker):
    topic = new_name("producer-large")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, max_message_bytes="2000")
        first = await client.send(topic, b"first")
        slips = [await client.post(topic, b"%d" % number * 200) for number in range(60)]
        assert [(await slip).offset for slip in slips] == list(range(first.offset + 1, first.offset + 61))
        with pytest.raises(RecordRefusedError, match=rf"{topic}-0 at broker .*MESSAGE_TOO_LARGE.*max\.message\.bytes"):
            await client.send(topic, b"x" * 3000)
        assert (await client.send(topic, b"last")).offset == first.offset + 61


@on_both_loops
async def test_a_record_that_is_refused_does_not_take_others_of_its_batch_along(shared_broker):
    topic = new_name("producer-compacted")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, cleanup_policy="compact")
        slips = [await client.post(topic, b"v", key=None if number == 5 else b"k") for number in range(10)]
        with pytest.raises(RecordRefusedError, match="INVALID_RECORD"):
            await slips[5]
        assert [(await slip).offset for slip in slips if slip is not slips[5]] == list(range(9))


@on_both_loops
async def test_wrong_arguments_are_told_at_once(shared_broker):
    async with connect(shared_broker.bootstrap) as client:
        with pytest.raises(TypeError, match="value of a record is bytes or None, not str"):
            await client.send("producer-wrong", "text")
        with pytest.raises(TypeError, match="key of a record"):
            await client.post("producer-wrong", b"", key=1)
        with pytest.raises(TypeError, match="header 'a'"):
            await client.post("producer-wrong", b"", headers={"a": "text"})
        with pytest.raises(TypeError, match="needs a value"):
            await client.send("producer-wrong")
    for options in ({"compression": "rar"}, {"memory": "much"}, {"acks": 1}, {"acks": 0}, {"delivery_seconds": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            async with connect(shared_broker.bootstrap, **options):
                pass


@on_both_loops
async def test_many_tasks_share_batches(shared_broker):
    topic = new_name("producer-many")
    async with connect(shared_broker.bootstrap) as client:
        await make_topic(client, topic, 2)
        offsets = []

        async def send(number):
            for turn in range(20):
                done = await client.send(topic, b"%d-%d" % (number, turn), key=b"%d" % number)
                offsets.append(TopicPartition(done.topic, done.partition)._replace(topic=str(done.offset)))

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(send, number)
        assert len(offsets) == len(set(offsets)) == 1000
