"""What a reader tells the fronts that watch it, fed by hand: partitions that come and go, and aborted transactions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from tests.support.both_loops import on_both_loops
from tpc_broker.client.consumer.decoding import Part as FetchedPart
from tpc_broker.client.consumer.fetching import FetchSettings
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.reader import StreamReader
from tpc_broker.client.consumer.starts import Start
from tpc_broker.client.consumer.stock import Fetched
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Record
from tpc_broker.client.work.for_each import ForEachSettings
from tpc_broker.client.work.fronts import Fronts
from tpc_broker.client.work.order_book import Order
from tpc_broker.client.work.policies import Retry
from tpc_broker.kafka.records import Record as WrittenRecord
from tpc_broker.kafka.records import build_batch

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
LOG_END = 12


async def no_send(*_given: object, **_named: object) -> None:
    raise AssertionError("nothing is to be sent")


def feed(reader: StreamReader) -> None:
    """What a broker would answer now: batches of four records, up to `LOG_END`."""
    for found in reader.stock.partitions.values():
        found.leader, found.topic_id = 0, found.where.topic.encode() * 16
        found.needs_check = False
    rows = reader.stock.wanted(0, 0.0)[0]
    fetched = []
    for row in rows:
        begin = row.offset - row.offset % 4
        if begin < LOG_END:
            records = [WrittenRecord(b"%d" % n, b"k", offset=n) for n in range(begin, begin + 4)]
            data = memoryview(build_batch(records, base_offset=begin))
            fetched.append(Fetched(row, FetchedPart(row.where, row.offset, data), begin + 4))
    reader.stock.take_in(fetched)


@asynccontextmanager
async def fed(*partitions: TopicPartition) -> AsyncIterator[StreamReader]:
    """A reader of these from 0 on, to which everything comes that there is."""
    reader = StreamReader(None, FetchSettings(), Start(offset=0))  # type: ignore[arg-type] - nothing is asked of a broker

    async def feeding() -> None:
        while True:
            feed(reader)
            await checkpoint()

    await reader.assign(dict.fromkeys(partitions))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(feeding)
        try:
            yield reader
        finally:
            tasks.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await checkpoint()


def finished(reader: StreamReader, where: TopicPartition = A) -> int:
    return reader.finished().get(where, Position(0)).offset


class Heard:
    """A watcher that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.at: dict[TopicPartition, tuple[int, float]] = {}

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("assigned", list(partitions)))

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoking", list(partitions)))

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("gone", list(partitions)))

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        raise AssertionError

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        return self.at


@on_both_loops
async def test_a_watcher_hears_once_of_each_partition_that_goes() -> None:
    async with fed(A, B) as reader:
        heard = Heard()
        reader.watch(heard)
        await reader.revoke([A], 60)
        reader.forget([A])
        reader.forget([B])
        await reader.assign({A: Position(4)})
        assert heard.told == [("revoking", [A]), ("gone", [A]), ("gone", [B]), ("assigned", [A])]
        assert list(reader.held()) == [A]


@on_both_loops
async def test_a_revocation_that_is_broken_off_ends_with_the_partition_gone() -> None:
    """The member is fenced while it waits for a handler."""
    async with fed(A) as reader:
        heard = Heard()
        reader.watch(heard)
        await reader.take(1)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(reader.revoke, [A], 60)
            await until(lambda: len(heard.told) == 1)
            tasks.cancel_scope.cancel()
        reader.forget([A])
        assert heard.told == [("revoking", [A]), ("gone", [A])]


@on_both_loops
async def test_who_is_at_work_is_told_in_place_of_what_was_handed_out() -> None:
    async with fed(A, B) as reader:
        await reader.take(1, [A])
        await reader.take(1, [B])
        heard = Heard()
        heard.at = {A: (0, 12.5)}
        reader.watch(heard)
        assert reader.handed_out()[A] == 12.5
        assert B in reader.handed_out()
        reader.unwatch(heard)
        assert reader.handed_out()[A] != 12.5


@on_both_loops
async def test_giving_back_what_is_not_handed_out_skips_nothing() -> None:
    async with fed(A) as reader:
        await reader.take(2)
        reader.give_back(A, 0)
        reader.give_back(A, 2)
        assert (await reader.take(2)).records[0].offset == 0


@on_both_loops
async def test_a_seek_counts_for_more_than_what_is_under_way() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        for place in (2, 9):
            reader.seek(A, Position(5))
            with suppress(ZeroDivisionError):
                async with fronts.work(max_records=3, commit=False) as batch:
                    assert batch.records[0].offset == 5
                    reader.seek(A, Position(place))
                    raise ZeroDivisionError
            async with fronts.work(max_records=3, commit=False) as batch:
                assert batch.records[0].offset == place


@on_both_loops
async def test_handlers_go_on_where_a_seek_says() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        begun: list[int] = []
        go_on = anyio.Event()

        async def handle(record: Record) -> None:
            begun.append(record.offset)
            if record.offset == 6:
                await go_on.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fronts.for_each, handle, ForEachSettings(order=Order.PARTITION))
            await until(lambda: begun[-1:] == [6])
            reader.seek(A, Position(3))
            for _ in range(10):
                await checkpoint()
            assert begun == [0, 1, 2, 3, 4, 5, 6]
            go_on.set()
            await until(lambda: begun[-1] == LOG_END - 1)
            assert begun == [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 7, 8, 9, 10, 11]
            reader.seek(A, Position(10))
            await until(lambda: begun[-3:] == [11, 10, 11])
            await until(lambda: finished(reader) == LOG_END)
            tasks.cancel_scope.cancel()


# -- within transactions ----------------------------------------------------------------------------------------------


@on_both_loops
async def test_a_batch_of_an_aborted_transaction_is_worked_on_again() -> None:
    """Also when the program goes on as if nothing had been."""
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        async with fronts.work(max_records=4, commit=False) as batch:
            held = reader.hold(A, 0, None)
            reader.take_back_held(held)
        assert batch.is_taken_back
        async with fronts.work(max_records=2, commit=False) as batch:
            assert batch.records[0].offset == 0
        assert finished(reader) == 2


@on_both_loops
async def test_what_was_taken_behind_an_aborted_batch_is_worked_on_behind_it() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        async with fronts.work(max_records=4, commit=False):
            held = reader.hold(A, 0, None)
        assert finished(reader) == 0, "it is the transaction's"
        async with fronts.work(max_records=4, commit=False) as second:
            assert second.records[0].offset == 4
            reader.take_back_held(held)
        assert finished(reader) == 0
        async with fronts.work(max_records=8, commit=False) as again:
            assert again.records[0].offset == 0


@on_both_loops
async def test_a_batch_of_a_committed_transaction_is_finished() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        async with fronts.work(max_records=4, commit=False) as batch:
            held = reader.hold(A, 0, None)
            reader.commit_held(held, batch.next_offset)
        async with fronts.work(max_records=4, commit=False) as batch:
            assert batch.records[0].offset == 4


@on_both_loops
async def test_a_part_goes_back_to_what_a_transaction_did_not_commit() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        async with fronts.partitions() as parts, await anext(parts) as part:
            assert (await anext(part)).offset == 0
            assert (await anext(part)).offset == 1
            held = reader.hold(A, 1, None)
            reader.take_back_held(held)
            assert [(await anext(part)).offset for _ in range(3)] == [1, 2, 3]
        assert finished(reader) == 3


@on_both_loops
async def test_a_handler_whose_transaction_was_aborted_is_called_again_as_the_policy_says() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        seen: list[int] = []

        async def handle(record: Record) -> None:
            seen.append(record.offset)
            held = reader.hold(A, record.offset, None)
            if seen.count(record.offset) < 3 and record.offset == 5:
                reader.take_back_held(held)
                raise ConnectionError("the transaction was aborted")
            reader.commit_held(held, record.offset + 1)

        settings = ForEachSettings(order=Order.PARTITION, on_error=Retry(5, delay_seconds=0))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fronts.for_each, handle, settings)
            await until(lambda: seen[-1:] == [LOG_END - 1])
            tasks.cancel_scope.cancel()
        assert seen == [0, 1, 2, 3, 4, 5, 5, 5, 6, 7, 8, 9, 10, 11]


# -- the fronts on a real reader --------------------------------------------------------------------------------------


@on_both_loops
async def test_handlers_end_within_the_grace_and_the_rest_is_read_from_the_position() -> None:
    async with fed(A, B) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        begun: dict[TopicPartition, list[int]] = {A: [], B: []}
        go_on = anyio.Event()

        async def handle(record: Record) -> None:
            begun[TopicPartition(record.topic, record.partition)].append(record.offset)
            if record.topic == "a" and record.offset == 6:
                await go_on.wait()

        async def revoke() -> None:
            await reader.revoke([A], 60)
            told.append(finished(reader))
            reader.forget([A])

        told: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fronts.for_each, handle, ForEachSettings())
            await until(lambda: begun[A][-1:] == [6] and len(begun[B]) == LOG_END)
            tasks.start_soon(revoke)
            for _ in range(10):
                await checkpoint()
            assert told == []
            go_on.set()
            await until(lambda: told == [7])
            assert begun[A] == [0, 1, 2, 3, 4, 5, 6]
            await reader.assign({A: Position(7)})
            await until(lambda: begun[A][-1] == LOG_END - 1)
            tasks.cancel_scope.cancel()
        assert begun[A] == list(range(LOG_END))
        assert (finished(reader), finished(reader, B)) == (LOG_END, LOG_END)


@on_both_loops
async def test_on_leaving_for_each_what_it_had_is_handed_out_again() -> None:
    async with fed(A) as reader:
        fronts = Fronts(reader, no_send, lambda: None)
        begun: list[Any] = []

        async def handle(record: Record) -> None:
            begun.append(record.offset)
            if record.offset == 2:
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fronts.for_each, handle, ForEachSettings(order=Order.PARTITION))
            await until(lambda: begun == [0, 1, 2])
            tasks.cancel_scope.cancel()
        assert finished(reader) == 2
        async with fronts.work(max_records=100, commit=False) as batch:
            assert batch.records[0].offset == 2
