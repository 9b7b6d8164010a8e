"""``for_each``: what is handled when, what is committed, and what becomes of errors, cancels and revocations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from anyio.lowlevel import checkpoint

from tests.support.both_loops import on_both_loops
from tests.support.memory_source import MemorySource, record_of
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Record
from tpc_broker.client.work.failures import DeadLetterError, HandlerError
from tpc_broker.client.work.for_each import ForEach, ForEachSettings
from tpc_broker.client.work.fronts import Fronts
from tpc_broker.client.work.order_book import Order
from tpc_broker.client.work.policies import DEAD_LETTER_PREFIX, Retry, Skip, dead_letter

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
Handle = Callable[[Record], Awaitable[object]]


def source_of(count: int = 10, *partitions: TopicPartition, keys: int = 3) -> MemorySource:
    chosen = partitions or (A,)
    source = MemorySource({w: [record_of(w, n, b"%d" % (n % keys)) for n in range(count)] for w in chosen})
    source.assign(*chosen)
    return source


async def no_send(*_given: object, **_named: object) -> None:
    raise AssertionError("nothing is to be sent")


@asynccontextmanager
async def running(source: MemorySource, handle: Handle, send: Any = no_send, **settings: Any) -> AsyncIterator[ForEach]:
    """Until the block ends."""
    each = ForEach(source, handle, ForEachSettings(**settings), send, Random(7))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(each.run)
        try:
            yield each
        finally:
            tasks.cancel_scope.cancel()


async def run(source: MemorySource, handle: Handle, send: Any = no_send, **settings: Any) -> None:
    await ForEach(source, handle, ForEachSettings(**settings), send, Random(7)).run()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await checkpoint()


class Gate:
    """A handler that stays in each record of ``held`` until the test lets it go."""

    def __init__(self, *held: int) -> None:
        self.held = {offset: anyio.Event() for offset in held}
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []

    async def __call__(self, record: Record) -> None:
        self.begun.append(record.offset)
        try:
            if record.offset in self.held:
                await self.held[record.offset].wait()
        except BaseException:
            self.cancelled.append(record.offset)
            raise
        self.ended.append(record.offset)


# -- order and bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(Order))
@on_both_loops
async def test_all_are_handled_in_their_order_and_not_too_many_at_once(order: Order):
    source = source_of(300, A, B, keys=7)
    under_way: list[Record] = []
    handled: list[Record] = []
    most = 0

    async def handle(record: Record) -> None:
        nonlocal most
        for other in under_way:
            same = record.partition == other.partition
            assert not (same and (order is Order.PARTITION or (order is Order.KEY and record.key == other.key)))
        under_way.append(record)
        most = max(most, len(under_way))
        for _ in range(record.offset % 3):
            await checkpoint()
        under_way.remove(record)
        handled.append(record)

    async with running(source, handle, order=order, concurrency=5):
        await source.wait_until_all_is_finished()
    assert sorted(handled) == sorted([*source.logs[A], *source.logs[B]])
    lanes: dict[Any, list[int]] = {}
    for record in handled:
        lane = {Order.KEY: record.key, Order.PARTITION: None, Order.NONE: record.offset}[order]
        lanes.setdefault((record.partition, lane), []).append(record.offset)
    assert all(lane == sorted(lane) for lane in lanes.values())
    assert most == (2 if order is Order.PARTITION else 5)


@on_both_loops
async def test_a_slow_record_holds_the_position_and_not_the_others():
    source = source_of(20, keys=20)
    gate = Gate(0, 7)
    async with running(source, gate) as each:
        await until(lambda: len(gate.ended) == 18)
        assert source.position(A) == 0
        assert [row.offset for row in each.records_under_way()] == [0, 7]
        assert each.under_way()[A][0] == 0
        gate.held[0].set()
        await until(lambda: source.position(A) == 7)
        gate.held[7].set()
        await source.wait_until_all_is_finished()
        assert each.records_under_way() == []
        assert each.statistics().handled == 20


@on_both_loops
async def test_a_stuck_record_stops_its_partition_at_the_window_and_no_other():
    source = source_of(30_000, A, B, keys=30_000)

    async def handle(record: Record) -> None:
        if (record.partition, record.offset) == (0, 0):
            await anyio.sleep_forever()

    async with running(source, handle, window=1000) as each:
        await until(lambda: source.position(B) == 30_000)
        assert source.position(A) == 0
        assert 1000 <= each.statistics().held < 1500
        source.append(record_of(B, 30_000))
        await until(lambda: source.position(B) == 30_001)


@on_both_loops
async def test_a_partition_that_was_full_is_taken_from_again():
    source = source_of(5000, A, B, keys=5000)
    gate = Gate(0)
    async with running(source, gate, window=1000):
        await until(lambda: len(gate.begun) > 1500)
        gate.held[0].set()
        await source.wait_until_all_is_finished()


# -- errors -----------------------------------------------------------------------------------------------------------


@on_both_loops
async def test_the_error_that_surfaces_names_the_record_and_nothing_unfinished_counts():
    source = source_of()

    async def handle(record: Record) -> None:
        if record.offset == 4:
            raise ZeroDivisionError("by hand")

    named = r"^the handler of orders-0 at offset 4 \(a key of 1 bytes\) failed: ZeroDivisionError: by hand$"
    with pytest.raises(HandlerError, match=named) as found:
        await run(source, handle, order=Order.PARTITION)
    assert (found.value.topic, found.value.partition, found.value.offset) == ("orders", 0, 4)
    assert isinstance(found.value.__cause__, ZeroDivisionError)
    assert source.position(A) == 4
    assert set(source.given_back) == {(A, 4)}
    assert source.watchers == []


@on_both_loops
async def test_of_two_errors_at_once_one_is_raised_and_notes_the_other():
    source = source_of(2, keys=2)
    both = anyio.Event()

    async def handle(record: Record) -> None:
        if record.offset:
            both.set()
            raise ValueError("one")
        try:
            await anyio.sleep_forever()
        finally:
            raise ValueError("zero")

    with pytest.raises(HandlerError, match="offset 1") as found:
        await run(source, handle)
    assert ["offset 0" in note for note in found.value.__notes__] == [True]
    assert source.position(A) == 0


@on_both_loops
async def test_behind_an_error_nothing_more_is_started():
    source = source_of(1000)
    begun = []

    async def handle(record: Record) -> None:
        begun.append(record.offset)
        if len(begun) == 3:
            raise ValueError

    with pytest.raises(HandlerError):
        await run(source, handle)
    assert len(begun) == 3


@on_both_loops
async def test_what_is_no_error_of_a_handler_is_raised_as_it_is():
    """As KeyboardInterrupt is none."""

    class Halt(BaseException):
        pass

    async def handle(_record: Record) -> None:
        raise Halt

    source = source_of(1)
    with pytest.raises(Halt):
        await run(source, handle, on_error=Retry(3))
    assert source.position(A) == 0


@on_both_loops
async def test_an_error_of_the_source_is_raised_as_it_is():
    class Broken(MemorySource):
        async def take(self, *_given: Any) -> Any:
            raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        await run(Broken({}), no_send)


@on_both_loops
async def test_what_is_skipped_is_finished():
    source = source_of()

    async def handle(record: Record) -> None:
        if record.offset % 2:
            raise ValueError

    async with running(source, handle, on_error=Skip()) as each:
        await source.wait_until_all_is_finished()
        assert (each.statistics().skipped, each.statistics().handled) == (5, 10)


@on_both_loops
async def test_a_retry_keeps_the_order_of_its_key_and_others_go_on():
    source = source_of(9, keys=3)
    seen: list[tuple[int, str]] = []
    go_on = anyio.Event()

    async def handle(record: Record) -> None:
        if record.offset == 0 and not go_on.is_set():
            seen.append((0, "failed"))
            raise ValueError
        seen.append((record.offset, "done"))

    async with running(source, handle, on_error=Retry(10**9, delay_seconds=0)) as each:
        await until(lambda: len([row for row in seen if row[1] == "done"]) == 6)
        await until(lambda: each.statistics().retried > 3)
        assert source.position(A) == 0
        go_on.set()
        await source.wait_until_all_is_finished()
    assert [offset for offset, what in seen if what == "done" and offset % 3 == 0] == [0, 3, 6]


@on_both_loops
async def test_when_all_times_failed_the_error_says_how_many():
    source = source_of(1)

    async def handle(_record: Record) -> None:
        raise ValueError

    with pytest.raises(HandlerError, match=r"failed the last of 3 times: ValueError$"):
        await run(source, handle, on_error=Retry(2, delay_seconds=0))


@on_both_loops
async def test_an_error_of_another_kind_is_not_tried_again():
    async def handle(_record: Record) -> None:
        raise ValueError

    with pytest.raises(HandlerError, match=r"failed: ValueError$"):
        await run(source_of(1), handle, on_error=Retry(2, delay_seconds=0, errors=(OSError,)))


def test_pauses_grow_and_nobody_else_waits_for_them():
    """On a clock that jumps: 1, 2, 4, 4 seconds."""
    times: dict[int, list[float]] = {0: [], 1: []}

    async def main() -> None:
        source = source_of(2, keys=2)
        begin = trio.current_time()

        async def handle(record: Record) -> None:
            times[record.offset].append(round(trio.current_time() - begin, 6))
            if record.offset == 0:
                raise ValueError

        policy = Retry(4, delay_seconds=1, backoff=2, delay_seconds_max=4, jitter=0)
        with pytest.raises(HandlerError):
            await run(source, handle, on_error=policy, concurrency=1)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert times == {0: [0, 1, 3, 7, 11], 1: [0]}


def test_jitter_makes_a_pause_longer_or_shorter_by_a_fraction():
    policy = Retry(3, delay_seconds=10, jitter=0.5, delay_seconds_max=15)
    pauses = [policy.pause_seconds(1, Random(number)) for number in range(200)]
    assert 5 <= min(pauses) < 6
    assert 14 < max(pauses) <= 15
    assert policy.pause_seconds(10**6, Random(1)) <= 22.5


@pytest.mark.parametrize(
    "wrong", [{"times": -1}, {"times": 1, "backoff": 0.5}, {"times": 1, "jitter": 2}, {"times": 1, "delay_seconds": -1}]
)
def test_a_retry_that_makes_no_sense_is_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"window": 0}])
def test_bounds_below_one_are_refused(wrong: dict[str, Any]):
    with pytest.raises(ValueError):
        ForEachSettings(**wrong)


async def cancelled_within(_record: object) -> None:
    found = asyncio.get_running_loop().create_future()
    found.cancel()
    await found


def test_a_cancellation_that_nobody_asked_for_is_an_error_of_the_handler():
    """On asyncio the task would end silently, and its record would never be done."""

    async def main() -> None:
        source = source_of(1)
        with pytest.raises(HandlerError, match=r"offset 0 .* was cancelled"):
            await run(source, cancelled_within)
        letters = Letters()
        async with running(source, cancelled_within, letters, on_error=dead_letter("dlq")):
            await source.wait_until_all_is_finished()
        source = source_of(1)
        with pytest.raises(HandlerError, match=r"orders-0 failed: .* was cancelled"):
            await Fronts(source, no_send, lambda: None).for_each_partition(cancelled_within)

    anyio.run(main, backend="asyncio")


@on_both_loops
async def test_handlers_that_await_nothing_let_other_tasks_run():
    source = source_of(2000, keys=2000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    async def handle(_record: Record) -> None:
        pass

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        async with running(source, handle):
            await source.wait_until_all_is_finished()
        tasks.cancel_scope.cancel()
    assert turns > 3


# -- dead letters -----------------------------------------------------------------------------------------------------


class Letters:
    """A producer that delivers when it may."""

    def __init__(self, *, may: bool = True) -> None:
        self.sent: list[tuple[str, bytes | None, bytes | None, Any]] = []
        self.may = anyio.Event()
        if may:
            self.may.set()

    async def __call__(self, topic: str, value: bytes | None, /, *, key: bytes | None, headers: Any) -> None:
        self.sent.append((topic, value, key, headers))
        await self.may.wait()


async def fail(_record: Record) -> None:
    raise ZeroDivisionError("by hand")


@on_both_loops
async def test_a_dead_letter_is_the_record_with_where_it_came_from_and_why():
    source = MemorySource({A: [record_of(A, 5, key=None, value=None)]}, {A: 5})
    source.assign(A)
    letters = Letters()
    async with running(source, fail, letters, on_error=Retry(2, delay_seconds=0, then=dead_letter("dlq"))) as each:
        await source.wait_until_all_is_finished()
        assert each.statistics().dead_letters == 1
    ((topic, value, key, headers),) = letters.sent
    assert (topic, value, key) == ("dlq", None, None)
    assert headers[:2] == (("h", b"1"), ("h", None))
    own = dict(headers[2:])
    assert all(name.startswith(DEAD_LETTER_PREFIX) for name in own)
    assert int(own.pop("dead_letter.time")) > 1_000_000_000_000
    assert {name.removeprefix(DEAD_LETTER_PREFIX): text.decode() for name, text in own.items()} == {
        "topic": "orders", "partition": "0", "offset": "5", "timestamp": "1005",
        "error": "ZeroDivisionError", "text": "by hand", "attempts": "3",
    }  # fmt: skip


@on_both_loops
async def test_a_record_is_finished_when_its_dead_letter_is_delivered():
    source = source_of(1)
    letters = Letters(may=False)
    async with running(source, fail, letters, on_error=dead_letter("dlq")):
        await until(lambda: len(letters.sent) == 1)
        for _ in range(20):
            await checkpoint()
        assert source.position(A) == 0
        letters.may.set()
        await source.wait_until_all_is_finished()


@on_both_loops
async def test_without_its_dead_letter_a_record_is_not_finished():
    source = source_of(1)

    async def refuse(*_given: object, **_named: object) -> None:
        raise OSError("no room")

    named = r"^no dead letter of orders-0 at offset 0 .* in dlq: OSError: no room .*by hand"
    with pytest.raises(DeadLetterError, match=named):
        await run(source, fail, refuse, on_error=dead_letter("dlq"))
    assert source.position(A) == 0


@on_both_loops
async def test_a_cancelled_dead_letter_does_not_finish_its_record():
    source = source_of(1)
    letters = Letters(may=False)
    async with running(source, fail, letters, on_error=dead_letter("dlq")):
        await until(lambda: len(letters.sent) == 1)
    assert source.position(A) == 0


def test_a_dead_letter_needs_a_topic():
    with pytest.raises(ValueError):
        dead_letter("")


# -- cancel, stop, revoke ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(Order))
@on_both_loops
async def test_cancelled_at_any_step_nothing_unfinished_counts(order: Order):
    """At each step of any handler in turn."""
    for place in range(1, 100):
        source = source_of(12, A, B)
        ended: set[tuple[int, int]] = set()
        steps = 0
        with anyio.CancelScope() as scope:

            async def step(place: int = place, scope: anyio.CancelScope = scope) -> None:
                nonlocal steps
                steps += 1
                if steps == place:
                    scope.cancel()
                await checkpoint()

            async def handle(record: Record, ended: set[tuple[int, int]] = ended) -> None:
                await step()
                if record.offset == 5 and not ended & {(record.partition, -5)}:
                    ended.add((record.partition, -5))
                    raise ValueError
                await step()
                ended.add((record.partition, record.offset))

            async with running(source, handle, order=order, on_error=Retry(1, delay_seconds=0), concurrency=3):
                await source.wait_until_all_is_finished()
        for where in (A, B):
            position = source.position(where)
            assert all((where.partition, offset) in ended for offset in range(position))
            assert source.watchers == []
        if not scope.cancel_called:
            assert place > 48
            return
    raise AssertionError


@on_both_loops
async def test_a_stop_ends_what_is_under_way_and_starts_nothing_more():
    source = source_of(10, keys=1)
    gate = Gate(0)
    stop = anyio.Event()
    each = ForEach(source, gate, ForEachSettings(), no_send)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(each.run, stop)
        await until(lambda: gate.begun == [0])
        stop.set()
        for _ in range(20):
            await checkpoint()
        assert each.records_under_way() != []
        gate.held[0].set()
    assert gate.ended == [0]
    assert (source.position(A), source.given_back) == (1, [(A, 1)])


@on_both_loops
async def test_a_stop_of_what_is_idle_ends_at_once():
    source = source_of(0)
    stop = anyio.Event()
    stop.set()
    await ForEach(source, no_send, ForEachSettings(), no_send).run(stop)
    assert source.watchers == []


@on_both_loops
async def test_what_ends_within_the_grace_is_committed_and_nothing_more_is_handed_out():
    source = source_of(10, keys=2)
    gate = Gate(0, 1)
    async with running(source, gate), anyio.create_task_group() as tasks:
        await until(lambda: len(gate.begun) == 2)
        tasks.start_soon(source.revoke, A)
        for _ in range(20):
            await checkpoint()
        assert A not in source.committed
        gate.held[0].set()
        gate.held[1].set()
        await until(lambda: A in source.committed)
    assert source.committed[A] == 2
    assert sorted(gate.ended) == [0, 1]
    assert sorted(gate.begun) == [0, 1]


@on_both_loops
async def test_behind_the_grace_handlers_are_cancelled_and_what_they_had_is_not_committed():
    source = source_of(10, A, B, keys=2)
    gate = Gate(1)
    async with running(source, gate) as each:
        await until(lambda: source.position(A) == source.position(B) == 1)
        await source.revoke(A, grace_seconds=0)
        await until(lambda: gate.cancelled == [1])
        assert source.committed == {A: 1}
        assert len(each.records_under_way()) == 1, "the other partition's goes on"
        gate.held[1].set()
        await source.wait_until_all_is_finished()


@on_both_loops
async def test_a_partition_that_is_lost_takes_its_handlers_with_it():
    source = source_of(3, keys=3)
    gate = Gate(0, 1, 2)
    async with running(source, gate):
        await until(lambda: len(gate.begun) == 3)
        source.lose(A)
        await until(lambda: sorted(gate.cancelled) == [0, 1, 2])
        assert source.committed == {}


@on_both_loops
async def test_a_revocation_does_not_wait_for_what_pauses():
    source = source_of(1)
    async with running(source, fail, on_error=Retry(1, delay_seconds=3600)) as each:
        await until(lambda: each.statistics().paused == 1)
        await source.revoke(A, grace_seconds=3600)
        assert source.committed == {A: 0}


@on_both_loops
async def test_what_comes_back_waits_for_the_handler_that_does_not_end():
    """Its scope is cancelled, and it takes its time."""
    source = source_of(1)
    begun: list[str] = []
    end = anyio.Event()

    async def handle(_record: Record) -> None:
        begun.append("begun")
        if len(begun) == 1:
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await end.wait()

    async with running(source, handle) as each:
        await until(lambda: len(begun) == 1)
        begun_at = each.under_way()[A][1]
        source.lose(A)
        assert list(each.under_way()) == [A]
        source.assign(A)
        for _ in range(20):
            await checkpoint()
        assert len(begun) == 1
        assert [row.offset for row in each.records_under_way()] == [0]
        assert each.under_way()[A][1] <= begun_at
        end.set()
        await source.wait_until_all_is_finished()
        assert each.under_way() == {}
    assert len(begun) == 2


@on_both_loops
async def test_a_dead_letter_of_a_lost_partition_is_given_up():
    source = source_of(1)
    letters = Letters(may=False)
    async with running(source, fail, letters, on_error=dead_letter("dlq")) as each:
        await until(lambda: len(letters.sent) == 1)
        source.lose(A)
        await until(lambda: each.statistics().under_way == 0)
        assert each.statistics().dead_letters == 0


# -- two members, errors and revocations at any time ------------------------------------------------------------------


@pytest.mark.parametrize("order", list(Order))
@on_both_loops
async def test_two_members_lose_nothing_and_commit_nothing_early(order: Order, seed: int):
    chance = Random(f"{seed} {order}")
    partitions = [TopicPartition("orders", number) for number in range(4)]
    logs = {w: [record_of(w, n, b"%d" % chance.randrange(4)) for n in range(60)] for w in partitions}
    committed: dict[TopicPartition, int] = {}
    members = [MemorySource(logs, committed) for _ in range(2)]
    done: dict[TopicPartition, set[int]] = {w: set() for w in partitions}
    owner = {w: members[n % 2] for n, w in enumerate(partitions)}

    async def handle(record: Record) -> None:
        for _ in range(chance.randrange(4)):
            await checkpoint()
        if chance.random() < 0.1:
            raise ValueError
        done[TopicPartition(record.topic, record.partition)].add(record.offset)

    def check() -> None:
        for where, position in committed.items():
            assert set(range(position)) <= done[where]

    settings: dict[str, Any] = {"order": order, "concurrency": 4, "window": 20}
    settings["on_error"] = Retry(10**9, delay_seconds=0)
    async with running(members[0], handle, **settings), running(members[1], handle, **settings):
        for where, member in owner.items():
            member.assign(where)
        for _ in range(30):
            for _ in range(chance.randrange(30)):
                await checkpoint()
            where = chance.choice(partitions)
            if chance.random() < 0.3:
                owner[where].lose(where)
            else:
                await owner[where].revoke(where, grace_seconds=chance.choice((0, 60)))
            check()
            owner[where] = chance.choice(members)
            owner[where].assign(where)
        for member in members:
            await member.wait_until_all_is_finished()
            await member.commit()
        check()
    assert committed == dict.fromkeys(partitions, 60)
