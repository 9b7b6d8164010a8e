"""Working on the records of a broker's topics: two members of a group, revocations, dead letters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import anyio
import pytest

from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tpc_broker.client import (
    Client,
    GroupSettings,
    HandlerError,
    Part,
    Record,
    Retry,
    Stream,
    TopicPartition,
    connect,
    dead_letter,
)
from tpc_broker.kafka import ApiKey, messages

GRACE_SECONDS = 60.0


@pytest.fixture
def broker(shared_broker):
    """Another module runs these against Kafka."""
    return shared_broker


@pytest.fixture
def name(request):
    """Of a topic and a group that only this test has."""
    return re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")


async def made_topic(client: Client, name: str, partitions_count: int = 4) -> None:
    topic = messages.CreateTopicsRequest.CreatableTopic(
        name=name, num_partitions=partitions_count, replication_factor=1
    )
    request = messages.CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
    await (await client.fleet.any_channel()).call(ApiKey.CREATE_TOPICS, lambda _version: request)
    await client.fleet.refresh([name])


async def written(client: Client, name: str, count: int, partitions_count: int = 4) -> None:
    for partition in range(partitions_count):
        rows = [(b"%d" % (number % 5), b"%d" % number) for number in range(count)]
        await client.send_all(name, rows, partition=partition)


def group_of(name: str, protocol: Any = "classic") -> GroupSettings:
    return GroupSettings(name, protocol=protocol, heartbeat_seconds=0.1, grace_seconds=GRACE_SECONDS)


async def committed(client: Client, name: str, partitions_count: int = 4) -> dict[int, int]:
    """Where the next reader of the group would begin."""
    every = {TopicPartition(name, number): None for number in range(partitions_count)}
    async with client.read(group=name, assignment=every) as stream:
        while len(stream.positions) < partitions_count:
            await anyio.sleep(0.01)
        return {where.partition: at.offset for where, at in stream.positions.items()}


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0.005)


@pytest.mark.parametrize("protocol", ["classic", pytest.param("consumer", marks=pytest.mark.clients)])
@on_both_loops
async def test_two_members_handle_everything_with_a_revocation_in_between(
    broker: Any, name: str, protocol: str
) -> None:
    count = 200
    seen: dict[TopicPartition, list[int]] = defaultdict(list)
    by_member: dict[str, int] = {"first": 0, "second": 0}
    last: dict[tuple[str, TopicPartition, bytes | None], int] = {}
    second_may = anyio.Event()

    async with connect(broker.bootstrap) as client:
        await made_topic(client, name)
        await written(client, name, count)

        async def member(who: str) -> None:
            async def handle(record: Record) -> None:
                where = TopicPartition(record.topic, record.partition)
                await anyio.lowlevel.checkpoint()
                assert last.get((who, where, record.key), -1) < record.offset
                last[who, where, record.key] = record.offset
                seen[where].append(record.offset)
                by_member[who] += 1
                second_may.set()

            async with client.read(name, group=group_of(name, protocol)) as stream:
                await stream.for_each(handle, concurrency=8)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member, "first")
            await second_may.wait()
            tasks.start_soon(member, "second")
            while not by_member["second"]:
                await written(client, name, 5)
                count += 5
            await until(lambda: all(len(set(seen[TopicPartition(name, n)])) == count for n in range(4)))
            tasks.cancel_scope.cancel()
        assert by_member["second"] > 0
        assert await committed(client, name) == dict.fromkeys(range(4), count)


@on_both_loops
async def test_an_error_leaves_what_is_not_done_to_the_next_reader(broker: Any, name: str) -> None:
    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, 1)
        await written(client, name, 10, 1)
        async with client.read(name, group=group_of(name)) as stream:

            async def handle(record: Record) -> None:
                if record.offset == 6:
                    raise ZeroDivisionError

            with pytest.raises(HandlerError, match=rf"{name}-0 at offset 6"):
                await stream.for_each(handle, order="partition")
            async with stream.work(max_records=2) as batch:
                assert [record.offset for record in batch.records] == [6, 7]
            with pytest.raises(ZeroDivisionError):
                async with stream.work() as batch:
                    assert batch.records[0].offset == 8
                    raise ZeroDivisionError
            assert [record.offset async for record in first_of(stream, 2)] == [8, 9]
        assert await committed(client, name, 1) == {0: 9}


async def first_of(stream: Stream, count: int) -> Any:
    for _ in range(count):
        yield await anext(stream)


@on_both_loops
async def test_at_a_revocation_a_partitions_handler_ends_what_it_has(broker: Any, name: str) -> None:
    """Its sums are written when the loop over the part has ended, and the partition waits for that."""
    count = 100
    sums: list[tuple[str, int, int]] = []

    async with connect(broker.bootstrap) as client:
        await made_topic(client, name)
        await written(client, name, count)

        def handler(who: str) -> Callable[[Part], Any]:
            async def handle(part: Part) -> None:
                begin = end = None
                async for record in part:
                    begin = record.offset if begin is None else begin
                    end = record.offset + 1
                for _ in range(5):
                    await anyio.lowlevel.checkpoint()
                sums.append((who, part.partition, -1 if begin is None or end is None else end - begin))

            return handle

        async with anyio.create_task_group() as tasks, client.read(name, group=group_of(name)) as first:
            tasks.start_soon(first.for_each_partition, handler("first"))
            await until(lambda: sum(at.offset for at in first.positions.values()) > 3 * count)
            async with client.read(name, group=group_of(name)) as second, anyio.create_task_group() as others:
                others.start_soon(second.for_each_partition, handler("second"))
                await until(lambda: len(second.assignment) == len(first.assignment) == 2)
                assert [who for who, _partition, _sum in sums] == ["first", "first"]
                moved = {partition: done for _who, partition, done in sums}
                assert {where.partition for where in second.assignment} == moved.keys()
                await client.send(name, b"more", partition=min(moved))
                await until(lambda: second.positions[TopicPartition(name, min(moved))].offset == count)
                others.cancel_scope.cancel()
            tasks.cancel_scope.cancel()
        assert all(done in {-1, count} for done in moved.values())


@on_both_loops
async def test_dead_letters_are_in_their_topic_and_the_group_goes_on(broker: Any, name: str) -> None:
    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, 1)
        await made_topic(client, f"{name}.dlq", 1)
        await client.send(name, b"good", key=b"k")
        await client.send(name, b"poison", key=b"k", headers=[("a", b"1"), ("a", None)])
        await client.send(name, None, key=b"")
        handled: list[Record] = []

        async def handle(record: Record) -> None:
            if record.value == b"poison":
                raise ValueError("no good")
            handled.append(record)

        policy = Retry(2, delay_seconds=0, then=dead_letter(f"{name}.dlq"))
        async with client.read(name, group=group_of(name)) as stream:
            async with anyio.create_task_group() as tasks:
                stop = anyio.Event()
                tasks.start_soon(lambda: stream.for_each(handle, on_error=policy, stop=stop))
                await until(lambda: stream.positions.get(TopicPartition(name, 0), (0,))[0] == 3)
                stop.set()
            assert stream.handled is not None
            assert (stream.handled.handled, stream.handled.dead_letters, stream.handled.retried) == (3, 1, 2)
        assert [record.value for record in handled] == [b"good", None]
        assert await committed(client, name, 1) == {0: 3}
        async with client.read(f"{name}.dlq") as stream:
            letter = await anext(stream)
            assert letter.topic == f"{name}.dlq", letter
        assert (letter.key, letter.value, letter.headers[:2]) == (b"k", b"poison", (("a", b"1"), ("a", None)))
        own = {key: value for key, value in letter.headers[2:] if value is not None}
        assert own["dead_letter.topic"] == name.encode()
        assert (own["dead_letter.offset"], own["dead_letter.attempts"]) == (b"1", b"3")
        assert (own["dead_letter.error"], own["dead_letter.text"]) == (b"ValueError", b"no good")


@on_both_loops
async def test_one_way_of_reading_at_a_time(broker: Any, name: str) -> None:
    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, 1)
        await written(client, name, 10, 1)
        async with client.read(name) as stream:
            assert (await anext(stream)).offset == 0
            async with stream.work(max_records=3, commit=False) as batch:
                assert batch.records[0].offset == 1, "what was handed out before is done"
                with pytest.raises(anyio.BusyResourceError):
                    await anext(stream)
            assert (await anext(stream)).offset == 4
        with pytest.raises(anyio.ClosedResourceError):
            stream.work()


@on_both_loops
async def test_a_handler_that_is_stuck_is_named_and_its_records_are_read_again(
    broker: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Others may have the partition while it is; here nobody else is there, and it comes back."""
    group = GroupSettings(name, protocol="classic", heartbeat_seconds=0.1, max_work_seconds=0.5)
    begun: list[int] = []
    cancelled: list[int] = []
    told: list[Any] = []

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        if record.offset == 3 and not cancelled:
            try:
                told.extend(stream.under_way())
                await anyio.sleep_forever()
            finally:
                cancelled.append(record.offset)

    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, 1)
        await written(client, name, 10, 1)
        async with client.read(name, group=group) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: stream.for_each(handle, order="partition"))
            await until(lambda: bool(begun) and begun[-1] == 9)
            tasks.cancel_scope.cancel()
        assert cancelled == [3]
        assert [(row.offset, row.key_bytes, row.attempts) for row in told] == [(3, 1, 1)]
        assert begun[4] <= 3
        assert sorted(set(begun)) == list(range(10))
        assert await committed(client, name, 1) == {0: 10}
    assert f"a handler works at {name}-0 at offset 3 for" in caplog.text


@on_loops_in_turn("way", ["work", "for_each", "for_each_partition"])
async def test_within_transactions_every_record_is_written_once(broker: Any, name: str, way: str) -> None:
    """Every third transaction is aborted, and what was read in it is worked on again."""
    count = 12
    attempts = 0

    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, 1)
        await made_topic(client, f"{name}-out", 1)
        await written(client, name, count, 1)

        async def settle(what: Any, records: Sequence[Record]) -> None:
            nonlocal attempts
            attempts += 1
            async with client.transaction(name) as tx:
                for record in records:
                    await tx.post(f"{name}-out", record=record)
                tx.done(what)
                if attempts % 3 == 0:
                    raise ZeroDivisionError

        async def in_batches(stream: Stream) -> None:
            while True:
                with suppress(ZeroDivisionError):
                    async with stream.work(max_records=3, commit=False) as batch:
                        await settle(batch, batch.records)

        async def one_by_one(stream: Stream) -> None:
            policy = Retry(5, delay_seconds=0)
            await stream.for_each(lambda record: settle(record, [record]), order="partition", on_error=policy)

        async def by_partition(stream: Stream) -> None:
            async def handle(part: Part) -> None:
                async for batch in part.batches(3):
                    with suppress(ZeroDivisionError):
                        await settle(batch, batch.records)

            await stream.for_each_partition(handle)

        ways = {"work": in_batches, "for_each": one_by_one, "for_each_partition": by_partition}
        async with client.read(name, group=group_of(name)) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(ways[way], stream)
            async with client.read(f"{name}-out") as out:
                values = [record.value async for record in first_of(out, count)]
            assert values == [b"%d" % number for number in range(count)]
            await until(lambda: stream.positions[TopicPartition(name, 0)].offset == count)
            tasks.cancel_scope.cancel()
        assert await committed(client, name, 1) == {0: count}
        assert attempts > count // 4


@pytest.mark.clients
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@on_both_loops
async def test_members_that_come_and_go_lose_nothing(broker: Any, name: str, protocol: str, seed: int) -> None:
    """Ten members, three at a time, some of which end by an error; handlers fail and are slow."""
    chance = Random(f"{seed} {name}")
    count, partitions_count = 2_000, 6
    done: dict[int, set[int]] = {number: set() for number in range(partitions_count)}
    settings = replace(group_of(name, protocol), grace_seconds=0.2)

    def is_over() -> bool:
        return all(len(offsets) == count for offsets in done.values())

    async with connect(broker.bootstrap) as client:
        await made_topic(client, name, partitions_count)
        await written(client, name, count, partitions_count)

        async def member(turn: int) -> None:
            last: dict[tuple[int, bytes | None], int] = {}

            async def handle(record: Record) -> None:
                await anyio.sleep(chance.choice((0, 0, 0, 0.001)))
                if chance.random() < 0.02:
                    raise ValueError
                if chance.random() < 0.0005 and turn < 7:
                    raise ZeroDivisionError
                last[record.partition, record.key] = record.offset
                done[record.partition].add(record.offset)

            policy = Retry(1_000_000, delay_seconds=0.001, errors=(ValueError,))
            async with client.read(name, group=settings) as stream:
                order: Any = ("key", "partition", "none")[turn % 3]
                with anyio.move_on_after(1.0 if turn < 7 else None), suppress(HandlerError):
                    await stream.for_each(handle, order=order, on_error=policy, concurrency=16)

        async def members(first: int) -> None:
            for turn in range(first, 10, 3):
                await member(turn)

        async with anyio.create_task_group() as tasks:
            for first in range(3):
                tasks.start_soon(members, first)
            while not is_over():
                for partition, offset in (await committed(client, name, partitions_count)).items():
                    assert done[partition] >= set(range(offset)), f"{partition} is committed beyond what is done"
            tasks.cancel_scope.cancel()
        assert await committed(client, name, partitions_count) == dict.fromkeys(range(partitions_count), count)
