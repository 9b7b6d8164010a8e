"""Reading topics with `Client.read`, from a broker of ours, on both loops."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest
from confluent_kafka import Producer

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.client_topics import here, made_topic, written
from tests.support.shared_servers import once
from tpc_broker.client import GroupSettings, Offset, Position, TopicPartition, connect
from tpc_broker.client.errors import ClientError, OffsetsMissingError, UnknownTopicError
from tpc_broker.client.values import Record
from tpc_broker.kafka.records import Record as Written


def numbers(first: int, end: int) -> list[Written]:
    return [Written(b"%d" % number, timestamp_ms=1000 * number + 1000) for number in range(first, end)]


async def taken(stream: Any, count: int) -> list[Record]:
    """The next records; the last one of them is under way."""
    return [await anext(stream) for _ in range(count)]


async def offsets_taken(stream: Any, count: int) -> list[int]:
    return [record.offset for record in await taken(stream, count)]


@on_both_loops
async def test_records_come_as_they_were_written(shared_broker: Any) -> None:
    headers = (("a", b"1"), ("a", b"2"), ("é", None), ("", b""))
    given = [
        Written(b"v", b"k", 1_000, headers),
        Written(None, None, 2_000),
        Written(b"", b"", 3_000, ()),
        Written(b"x" * 100_000, None, 4_000, (("b", b"y" * 1000),)),
    ]
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-as-written")), 0)
        await written(client, where, given)
        async with client.read(where.topic) as stream:
            read = await taken(stream, len(given))
            assert stream.positions == {where: Position(3, 0)}
            assert stream.lag == {where: 1}
    assert [(one.value, one.key, one.timestamp, one.headers) for one in read] == [tuple(one[:4]) for one in given]
    assert [(one.topic, one.partition, one.offset) for one in read] == [(*where, offset) for offset in range(4)]


@on_both_loops
async def test_where_reading_begins(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-begins")), 0)
        await written(client, where, numbers(0, 10))
        for start, first in (("earliest", 0), (Offset(4), 4), (5500, 5), (10_000, 9)):
            async with client.read(where.topic, start=start) as stream:
                assert (await anext(stream)).offset == first, start
        for start in ("latest", 11_001):
            async with client.read(where.topic, start=start) as stream:
                while where not in stream.positions:
                    await anyio.sleep(0.001)
                first = await written(client, where, numbers(10, 11))
                assert (await anext(stream)).offset == first, start
        async with client.read(assignment={where: 3}, wait_seconds=0.05) as stream:
            assert (await anext(stream)).offset == 3
            stream.seek(where, Position(1))
            assert (await anext(stream)).offset == 1
            stream.seek(where, 8000)
            assert (await anext(stream)).offset == 7
            stream.seek(where, "earliest")
            assert await offsets_taken(stream, 12) == list(range(12))
            with pytest.raises(ValueError, match="start is"):
                stream.seek(where, "first")  # type: ignore[arg-type]
            with pytest.raises(KeyError):
                stream.seek(TopicPartition("other", 0), Position(1))


@on_both_loops
async def test_a_loop_that_was_left_goes_on_behind(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-left")), 0)
        await written(client, where, numbers(0, 20))
        async with client.read(where.topic) as stream:
            async for record in stream:
                if record.offset == 3:
                    break
            assert stream.positions[where].offset == 3
            async for record in stream:
                assert record.offset == 4
                break
            assert stream.positions[where].offset == 4
            async for batch in stream.batches(max_records=5):
                assert stream.positions[where].offset == 5
                assert [record.offset for record in batch.records] == [5, 6, 7, 8, 9]
                assert (batch.where, batch.next_offset) == (where, 10)
                break
            batch = await anext(stream.batches())
            assert stream.positions[where].offset == 10
            assert [record.offset for record in batch.records] == list(range(10, 20))
            with pytest.raises(ValueError, match="max_records is 0"):
                stream.batches(max_records=0)


@on_both_loops
async def test_a_cancelled_wait_takes_nothing(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-cancelled")), 0)
        async with client.read(where.topic) as stream:
            given, read = 0, 0
            async for cancelled in at_each_await(lambda: anext(stream)):
                # What arrives behind the cancelled wait is there for the next one, and so is what came with it.
                read += cancelled.result is not None
                await written(client, where, numbers(given, given + 1))
                given += 1
            assert given > read == 1
            rest = await taken(stream, given - read)
            assert [record.offset for record in rest] == list(range(read, given))


@on_both_loops
async def test_a_new_partition_is_read_from_its_beginning(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        name = await made_topic(client, here("reading-grows"))
        expression = re.compile(name.replace("grows", "gr.*"))
        async with client.read(expression, start="latest", topics_seconds=0.05) as stream:
            while not stream.positions:
                await anyio.sleep(0.001)
            await client.admin.topics.add_partitions(name, 2)
            while len((await client.fleet.refresh([name])).topics[name].leaders) < 2:
                await anyio.sleep(0.001)
            await written(client, TopicPartition(name, 1), numbers(0, 1))
            record = await anext(stream)
            assert (record.partition, record.offset) == (1, 0)


@on_both_loops
async def test_pausing(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        name = await made_topic(client, here("reading-pauses"), 2)
        first, second = (TopicPartition(name, partition) for partition in range(2))
        await written(client, first, numbers(0, 5))
        async with client.read(name) as stream:
            assert await offsets_taken(stream, 2) == [0, 1]
            stream.pause([first])
            await written(client, second, numbers(0, 3))
            assert [(one.partition, one.offset) for one in await taken(stream, 3)] == [(1, 0), (1, 1), (1, 2)]
            assert stream.held_bytes <= 100
            stream.resume([first])
            assert await offsets_taken(stream, 3) == [2, 3, 4]


@on_both_loops
async def test_offsets_that_are_missing(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-missing")), 0)
        for number in range(10):
            await written(client, where, numbers(number, number + 1))
        await client.admin.topics.delete_records({where: 6})
        async with client.read(assignment={where: 2}) as stream:
            for _ in range(2):
                with pytest.raises(OffsetsMissingError, match=r"offset 2 .* holds \[6, 10\).*on_missing"):
                    await anext(stream)
            stream.seek(where, "earliest")
            assert (await anext(stream)).offset == 6
        async with client.read(assignment={where: 2}, on_missing="earliest") as stream:
            assert (await anext(stream)).offset == 6
        async with client.read(assignment={where: 20}, on_missing="latest") as stream:
            while stream.positions.get(where) != Position(10, 0):
                await anyio.sleep(0.001)
            await written(client, where, numbers(10, 11))
            assert (await anext(stream)).offset == 10


@on_both_loops
async def test_what_cannot_be_read(shared_broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect(shared_broker.bootstrap) as client:
        name = await made_topic(client, here("reading-cannot"))
        for module in ("consumer.fetching", "net.fleet"):
            monkeypatch.setattr(f"tpc_broker.client.{module}.MISSING_TOPIC_SECONDS", 0.1)
        with pytest.raises(UnknownTopicError, match="no-such-topic"):
            async with client.read("no-such-topic") as stream:
                await anext(stream)
        with pytest.raises(UnknownTopicError, match="has no partition 7; it has 1"):
            async with client.read(assignment={TopicPartition(name, 7): 0}) as stream:
                await anext(stream)
        async with client.read(name) as stream:
            with pytest.raises(ClientError, match="group="):
                await stream.commit()
        with pytest.raises(anyio.ClosedResourceError):
            await anext(stream)
        for wrong in (
            {}, {"topics": "a", "assignment": {}}, {"topics": []}, {"topics": "a", "start": "first"},
            {"topics": "a", "isolation": "none"}, {"topics": "a", "on_missing": "skip"}, {"topics": "a", "memory": 1},
            {"topics": "a", "wait_seconds": 0}, {"topics": "a", "group": ""},
            {"assignment": {TopicPartition("a", 0): -3}},
        ):  # fmt: skip
            with pytest.raises(ValueError, match=r"\w"):
                async with client.read(**wrong):  # type: ignore[arg-type]
                    pytest.fail(str(wrong))


@on_both_loops
async def test_two_tasks_at_once_are_told(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        name = await made_topic(client, here("reading-twice"))
        reads = anyio.Event()

        async def read(stream: Any) -> None:
            reads.set()  # it goes on from here without a pause until it waits for a record
            await anext(stream)

        async with client.read(name) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(read, stream)
            await reads.wait()
            with pytest.raises(anyio.BusyResourceError):
                await anext(stream)
            tasks.cancel_scope.cancel()


COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")


def _compressed(broker: Any) -> None:
    for compression in COMPRESSIONS:
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "compression.type": compression, "linger.ms": 50,
             "batch.num.messages": 40}
        )  # fmt: skip
        for number in range(100):
            producer.produce(
                f"reading-{compression}", b"%d" % number * 20, b"key %d" % number, headers=[("h", b"%d" % number)]
            )
        assert producer.flush(120) == 0


@on_both_loops
async def test_what_librdkafka_compressed(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        names = [f"reading-{compression}" for compression in COMPRESSIONS]
        for name in names:
            await client.admin.topics.create(name, partitions=1, exist_ok=True)
        await anyio.to_thread.run_sync(once, shared_broker, _compressed, shared_broker)
        async with client.read(names) as stream:
            read: dict[str, list[Record]] = {}
            for record in await taken(stream, 100 * len(names)):
                read.setdefault(record.topic, []).append(record)
    for name in names:
        assert [(one.value, one.key, one.headers) for one in read[name]] == [
            (b"%d" % number * 20, b"key %d" % number, (("h", b"%d" % number),)) for number in range(100)
        ]


@on_both_loops
async def test_a_group_is_committed_to_at_intervals_and_at_the_end(shared_broker: Any) -> None:
    """And not with each record."""
    async with connect(shared_broker.bootstrap) as client:
        name = here("reading-group")
        where = TopicPartition(await made_topic(client, name), 0)
        await written(client, where, numbers(0, 300))
        async with client.read(name, group=name, commit_seconds=3600) as stream:
            commits: list[Any] = []
            original = stream._membership.commit

            async def counted(positions: Any) -> None:
                commits.append(dict(positions))
                await original(positions)

            stream._membership.commit = counted  # type: ignore[method-assign]
            await taken(stream, 200)
            assert commits == []
            await stream.commit()
            assert [positions[where].offset for positions in commits] == [199]  # the last one is under way
            await taken(stream, 10)
        assert [positions[where].offset for positions in commits] == [199, 209]
        async with client.read(name, group=name, commit_seconds=0.01) as stream:
            assert (await anext(stream)).offset == 209
            await taken(stream, 3)
            while (await client.admin.groups.offsets(name))[where].offset != 212:
                await anyio.sleep(0.01)


@on_both_loops
async def test_an_error_leaves_its_record_unfinished(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        name = here("reading-error")
        where = TopicPartition(await made_topic(client, name), 0)
        await written(client, where, numbers(0, 5))
        settings = GroupSettings(name, protocol="classic")
        with pytest.raises(ZeroDivisionError):
            async with client.read(where.topic, group=settings, leave_seconds=30) as stream:
                async for record in stream:
                    1 // (2 - record.offset)
        async with client.read(where.topic, group=settings) as stream:
            assert (await anext(stream)).offset == 2
            assert stream.identity is not None
            assert stream.assignment == [where]


def _transactions(broker: Any, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "linger.ms": 0})
    producer.init_transactions(120)
    commit, abort = producer.commit_transaction, producer.abort_transaction
    for number, ends in enumerate((commit, abort, commit)):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(120) == 0
        ends(120)


@on_both_loops
async def test_records_of_transactions_that_were_aborted(shared_broker: Any) -> None:
    async with connect(shared_broker.bootstrap) as client:
        where = TopicPartition(await made_topic(client, here("reading-transactions")), 0)
        await anyio.to_thread.run_sync(_transactions, shared_broker, where.topic)
        async with client.read(where.topic) as stream:
            read = await taken(stream, 6)
            assert [(one.value, one.offset) for one in read] == [
                (b"0", 0), (b"0", 1), (b"0", 2), (b"2", 8), (b"2", 9), (b"2", 10),
            ]  # fmt: skip
            with anyio.CancelScope() as scope:  # to ask for the next one finishes the last, and the marker behind it
                scope.cancel()
                await anext(stream)
            assert (stream.positions[where].offset, stream.lag[where]) == (12, 0)
        async with client.read(where.topic, isolation="read_uncommitted") as stream:
            read = await taken(stream, 9)
            assert [one.value for one in read] == [b"0"] * 3 + [b"1"] * 3 + [b"2"] * 3
