"""``work`` and partitions as streams of their own, on a source in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.support.both_loops import on_both_loops
from tests.support.cancelled import at_each_await
from tests.support.memory_source import MemorySource, record_of
from tpc_broker.client.consumer.ports import GroupIdentity
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Record
from tpc_broker.client.work.failures import HandlerError, PartitionRevokedError
from tpc_broker.client.work.for_each import ForEachSettings
from tpc_broker.client.work.fronts import Fronts
from tpc_broker.client.work.parts import Part

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
US = GroupIdentity("billing", 3, "member", None)


async def no_send(*_given: object, **_named: object) -> None:
    raise AssertionError("nothing is to be sent")


def fronts_of(count: int = 10, *partitions: TopicPartition) -> tuple[MemorySource, Fronts]:
    chosen = partitions or (A,)
    source = MemorySource({where: [record_of(where, offset) for offset in range(count)] for where in chosen})
    source.assign(*chosen)
    return source, Fronts(source, no_send, lambda: US)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await checkpoint()


def offsets(batch: Any) -> list[int]:
    return [record.offset for record in batch.records]


# -- work -------------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_leaving_the_block_finishes_the_batch_and_commits():
    source, fronts = fronts_of()
    async with fronts.work(max_records=4, commit=True) as batch:
        assert (batch.where, batch.next_offset, batch.identity) == (A, 4, US)
        assert offsets(batch) == [0, 1, 2, 3]
        assert source.committed == {}
    assert (source.committed, source.commits_count) == ({A: 4}, 1)


@on_both_loops
async def test_without_commit_it_is_finished_and_the_commit_is_anothers():
    source, fronts = fronts_of()
    async with fronts.work(max_records=4, commit=False):
        pass
    assert (source.position(A), source.committed) == (4, {})


@on_both_loops
async def test_an_error_gives_the_batch_back():
    source, fronts = fronts_of()
    with pytest.raises(ZeroDivisionError):
        async with fronts.work(max_records=4, commit=True):
            raise ZeroDivisionError
    assert source.committed == {}
    async with fronts.work(max_records=4, commit=True) as batch:
        assert offsets(batch) == [0, 1, 2, 3]


@on_both_loops
async def test_cancelled_at_any_await_a_batch_is_given_back_or_finished_whole():
    source, fronts = fronts_of(1000)
    done: set[int] = set()

    async def work_once() -> None:
        async with fronts.work(max_records=3, commit=True) as batch:
            await checkpoint()
            await checkpoint()
            done.update(offsets(batch))

    async for turn in at_each_await(work_once):
        assert set(range(source.position(A))) <= done, turn
    assert turn.place >= 4
    async with fronts.work(max_records=3, commit=True) as batch:
        assert offsets(batch)[0] == source.position(A)


@on_both_loops
async def test_a_commit_that_fails_surfaces_and_the_batch_stays_finished():
    source, fronts = fronts_of()
    source.commit_fails = ConnectionError("away")
    with pytest.raises(ConnectionError):
        async with fronts.work(max_records=4, commit=True):
            pass
    assert source.position(A) == 4


@on_both_loops
async def test_several_tasks_never_have_batches_of_one_partition():
    source, fronts = fronts_of(50, A, B)
    under_way: list[TopicPartition] = []

    async def work() -> None:
        while True:
            async with fronts.work(max_records=7, commit=False) as batch:
                assert batch.where not in under_way
                under_way.append(batch.where)
                await checkpoint()
                await checkpoint()
                under_way.remove(batch.where)

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(work)
        await source.wait_until_all_is_finished()
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_who_waits_hears_of_a_partition_that_is_new():
    source, fronts = fronts_of(3, A)
    source.logs[B] = [record_of(B, 0)]
    async with anyio.create_task_group() as tasks, fronts.work(max_records=10, commit=False) as first:
        assert first.where == A

        async def second() -> None:
            async with fronts.work(max_records=10, commit=False) as batch:
                assert batch.where == B

        tasks.start_soon(second)
        for _ in range(10):
            await checkpoint()
        source.assign(B)
        await until(lambda: source.position(B) == 1)


@on_both_loops
async def test_a_batch_whose_partition_is_lost_says_so_and_commits_nothing():
    source, fronts = fronts_of()
    async with fronts.work(max_records=4, commit=True) as batch:
        source.lose(A)
        assert batch.is_lost
        with pytest.raises(PartitionRevokedError, match="orders-0"):
            batch.identity  # noqa: B018 - the fence of a transaction
        assert [list(each.under_way()) for each in source.watchers] == [[A]], "who works at it has not heard"
    assert (source.committed, source.commits_count) == ({}, 0)


@on_both_loops
async def test_a_batch_within_the_grace_is_committed():
    source, fronts = fronts_of()
    async with anyio.create_task_group() as tasks, fronts.work(max_records=4, commit=False) as batch:
        tasks.start_soon(source.revoke, A)
        for _ in range(10):
            await checkpoint()
        assert not batch.is_lost
        assert source.committed == {}
        assert batch.identity == US
    assert source.committed == {A: 4}


@on_both_loops
async def test_two_kinds_at_once_are_refused():
    _, fronts = fronts_of()
    async with fronts.work(max_records=4, commit=False):
        with pytest.raises(RuntimeError, match="read by work already"):
            await fronts.for_each(no_send, ForEachSettings())
        with pytest.raises(RuntimeError, match="read by work already"):
            async with fronts.partitions():
                pass


# -- partitions -------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_each_partition_has_a_task_and_the_position_moves_with_the_next_item():
    source, fronts = fronts_of(5, A, B)
    seen: dict[int, list[int]] = {0: [], 1: []}

    async def handle(part: Part) -> None:
        async for record in part:
            assert source.position(part.where) == record.offset
            seen[part.partition].append(record.offset)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, handle)
        await source.wait_until_all_is_finished()
        tasks.cancel_scope.cancel()
    assert seen == {0: [0, 1, 2, 3, 4], 1: [0, 1, 2, 3, 4]}


@pytest.mark.parametrize("kind", ["records", "batches", "work"])
@on_both_loops
async def test_at_a_revocation_the_loop_ends_and_what_the_handler_does_then_is_waited_for(kind: str):
    source, fronts = fronts_of(6)
    told: list[str] = []
    flushed = anyio.Event()

    async def records(part: Part) -> None:
        async for _ in part:
            pass

    async def batches(part: Part) -> None:
        async for _ in part.batches(2):
            pass

    async def work(part: Part) -> None:
        with pytest.raises(PartitionRevokedError):
            while True:
                async with part.work(max_records=2, commit=False):
                    pass

    async def handle(part: Part) -> None:
        await {"records": records, "batches": batches, "work": work}[kind](part)
        assert part.is_ending
        told.append("loop ended")
        await flushed.wait()
        told.append("flushed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, handle)
        await source.wait_until_all_is_finished()
        tasks.start_soon(source.revoke, A)
        await until(lambda: told == ["loop ended"])
        for _ in range(10):
            await checkpoint()
        assert source.committed == {}
        flushed.set()
        await until(lambda: source.committed == {A: 6})
        assert told == ["loop ended", "flushed"]
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_in_the_middle_of_a_batch_a_revocation_leaves_the_rest_to_others():
    source, fronts = fronts_of(6)
    seen: list[int] = []
    go_on = anyio.Event()

    async def handle(part: Part) -> None:
        async for record in part:
            seen.append(record.offset)
            if record.offset == 2:
                await go_on.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, handle)
        await until(lambda: len(seen) == 3)
        tasks.start_soon(source.revoke, A)
        for _ in range(10):
            await checkpoint()
        go_on.set()
        await until(lambda: A in source.committed)
        tasks.cancel_scope.cancel()
    assert (seen, source.committed) == ([0, 1, 2], {A: 3})


@on_both_loops
async def test_behind_the_grace_the_scope_of_the_part_is_cancelled():
    source, fronts = fronts_of(6, A, B)
    begun: list[int] = []
    ended: list[int] = []

    async def handle(part: Part) -> None:
        try:
            async for record in part:
                if record.offset == 2:
                    begun.append(part.partition)
                    await anyio.sleep_forever()
        finally:
            ended.append(part.partition)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, handle)
        await until(lambda: len(begun) == 2)
        await source.revoke(A, grace_seconds=0)
        await until(lambda: ended == [0])
        assert source.committed == {A: 2}
        source.assign(A)  # it comes back, with a part of its own
        await until(lambda: len(begun) == 3)
        source.lose(A)
        await until(lambda: ended == [0, 0])
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_what_a_loop_was_left_with_is_read_again():
    source, fronts = fronts_of(6)

    async def handle(part: Part) -> None:
        async for record in part:
            if record.offset == 3:
                return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, handle)
        await until(lambda: source.given_back == [(A, 3)])
        tasks.cancel_scope.cancel()
    assert source.position(A) == 3


@on_both_loops
async def test_records_then_batches_of_one_part_go_on_where_the_loop_was_left():
    source, fronts = fronts_of(6)
    async with fronts.partitions() as parts:
        part = await anext(parts)
        async with part:
            assert (await anext(part)).offset == 0
            assert (await anext(part)).offset == 1
            assert offsets(await anext(part.batches(3))) == [2, 3, 4]
            assert source.position(A) == 2
            async with part.work(max_records=9) as batch:
                assert offsets(batch) == [5]
    assert source.committed == {A: 6}


@on_both_loops
async def test_the_error_of_a_partitions_handler_names_where_it_was():
    source, fronts = fronts_of(6)

    async def handle(part: Part) -> None:
        async for record in part:
            if record.offset == 4:
                raise ZeroDivisionError("by hand")

    named = r"^the handler of orders-0 failed at offset 4: ZeroDivisionError: by hand$"
    with pytest.raises(HandlerError, match=named) as found:
        await fronts.for_each_partition(handle)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert (source.position(A), source.given_back[-1]) == (4, (A, 4))
    assert source.watchers == []


@on_both_loops
async def test_cancelled_at_any_await_a_part_counts_nothing_that_was_not_asked_past():
    source, fronts = fronts_of(40)
    seen: list[Record] = []

    async def read_some() -> None:
        async with fronts.partitions() as parts, await anext(parts) as part:
            seen.clear()
            for _ in range(3):
                seen.append(await anext(part))
                await checkpoint()

    async for _ in at_each_await(read_some):
        if seen:
            assert source.position(A) == seen[-1].offset
        async with fronts.work(max_records=1, commit=False) as batch:
            assert batch.records[0].offset == source.position(A)


@on_both_loops
async def test_parts_that_were_lost_before_they_were_asked_for_are_left_out():
    source, fronts = fronts_of(6, A, B)
    async with fronts.partitions() as parts:
        source.lose(A)
        part = await anext(parts)
        assert part.where == B


@on_both_loops
async def test_a_part_outside_of_the_block_has_no_next_item():
    _, fronts = fronts_of(6)
    async with fronts.partitions() as parts:
        part = await anext(parts)
    assert [record async for record in part] == []


@on_both_loops
async def test_what_is_out_is_told_with_its_offset():
    source, fronts = fronts_of(6)
    async with fronts.work(max_records=2, commit=False):
        assert [{where: at for where, (at, _) in each.under_way().items()} for each in source.watchers] == [{A: 0}]
    async with fronts.partitions() as parts:
        part = await anext(parts)
        await anext(part)
        assert {A: 2} in [{where: at for where, (at, _) in each.under_way().items()} for each in source.watchers]




async def forever(_record: Record) -> None:
    await anyio.sleep_forever()


@on_both_loops
async def test_a_part_s_records_are_handled_side_by_side_by_key():
    chosen = (A, B)
    logs = {where: [record_of(where, offset, b"%d" % (offset % 2)) for offset in range(10)] for where in chosen}
    source = MemorySource(logs)
    source.assign(*chosen)
    seen: list[tuple[int, int]] = []
    under_way_max = 0
    under_way: set[tuple[int, bytes | None]] = set()

    async def handle(record: Any) -> None:
        nonlocal under_way_max
        key = record.partition, record.key
        assert key not in under_way
        under_way.add(key)
        under_way_max = max(under_way_max, len([one for one in under_way if one[0] == record.partition]))
        await checkpoint()
        under_way.discard(key)
        seen.append((record.partition, record.offset))

    async def part_handler(part: Part) -> None:
        assert (await anext(part)).offset == 0
        assert (await anext(part)).offset == 1
        await part.for_each(handle, concurrency=8)

    fronts = Fronts(source, no_send, lambda: US)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, part_handler)
        await source.wait_until_all_is_finished()
        tasks.cancel_scope.cancel()
    assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(2, 10)]
    assert under_way_max == 2
    assert source.watchers == []


@on_both_loops
async def test_what_a_part_s_handlers_have_is_ended_within_the_grace_and_no_more_begun():
    source, fronts = fronts_of(10, A, B)
    goes_on, has_begun, rest = anyio.Event(), anyio.Event(), []
    seen: list[Any] = []

    async def handle(record: Any) -> None:
        if record.partition == A.partition:
            has_begun.set()
            await goes_on.wait()
        seen.append((record.partition, record.offset))

    async def part_handler(part: Part) -> None:
        await part.for_each(handle, concurrency=2, order="none")
        rest.append((part.where, part.is_ending))
        await part.for_each(handle)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, part_handler)
        await has_begun.wait()
        tasks.start_soon(source.revoke, A)
        await anyio.wait_all_tasks_blocked()
        assert rest == []
        assert source.is_held(B)
        goes_on.set()
        await until(lambda: A in source.committed)
        assert rest == [(A, True)]
        assert source.committed[A] == len([1 for partition, _offset in seen if partition == A.partition]) == 2
        source.append(record_of(B, 10))
        await until(lambda: (B.partition, 10) in seen)
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_behind_the_grace_a_part_s_handlers_are_cancelled():
    source, fronts = fronts_of(4, A)
    has_begun = anyio.Event()

    async def handle(record: Any) -> None:
        if record.offset == 2:
            has_begun.set()
            await anyio.sleep_forever()

    async def part_handler(part: Part) -> None:
        await part.for_each(handle, concurrency=1)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fronts.for_each_partition, part_handler)
        await has_begun.wait()
        await source.revoke(A, grace_seconds=0.01)
        assert source.committed == {A: 2}
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_an_error_of_a_part_s_handler_names_its_record():
    source, fronts = fronts_of(4, A)

    async def handle(record: Any) -> None:
        if record.offset == 2:
            raise ValueError("odd")

    async def part_handler(part: Part) -> None:
        await part.for_each(handle, concurrency=1)

    with pytest.raises(HandlerError, match=r"orders-0 at offset 2 .*failed: ValueError: odd") as told:
        await fronts.for_each_partition(part_handler)
    assert (told.value.topic, told.value.partition, told.value.offset) == (*A, 2)
    assert source.position(A) == 2

    async with fronts.partitions() as parts, anyio.create_task_group() as tasks:
        part = await anext(parts)
        tasks.start_soon(part.for_each, forever)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(RuntimeError, match="orders-0 is handled by another for_each already"):
            await part.for_each(handle)
        tasks.cancel_scope.cancel()


@on_both_loops
async def test_a_part_s_for_each_says_nothing_of_other_partitions():
    """An aborted transaction's records of another partition are handed out again by who reads that."""
    source, fronts = fronts_of(4, A, B)
    async with fronts.partitions() as parts, anyio.create_task_group() as tasks:
        part = await anext(parts)
        async with part:
            tasks.start_soon(part.for_each, forever)
            await until(lambda: len(source.watchers) == 3)
            other = B if part.where == A else A
            assert not any(watcher.taken_back(other, 0) for watcher in source.watchers)
            assert any(watcher.taken_back(part.where, 0) for watcher in source.watchers)
            tasks.cancel_scope.cancel()
