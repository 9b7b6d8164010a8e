"""Locks that are taken without a turn when they are free, and in order when they are not."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tpc_broker.storage.uncontended_lock import UncontendedLock, all_held


async def test_a_free_lock_costs_no_turn_and_a_held_one_is_had_in_order():
    order: list[str] = []

    async def take(lock: trio.Lock, name: str) -> None:
        async with UncontendedLock(lock):
            order.append(name)

    lock = trio.Lock()
    async with trio.open_nursery() as nursery:
        async with UncontendedLock(lock):
            nursery.start_soon(take, lock, "first")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(take, lock, "second")
            await trio.testing.wait_all_tasks_blocked()
            assert order == []
        async with UncontendedLock(lock):  # it was handed to the first one: no overtaking
            order.append("again")
    assert order == ["first", "second", "again"]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, trio.Lock(), "other")
        async with UncontendedLock(lock), UncontendedLock(trio.CapacityLimiter(1)):
            assert order[-1] == "again", "no other task had a turn"
    assert not lock.locked()


def are_held(locks: list[trio.Lock]) -> list[bool]:
    return [lock.locked() for lock in locks]


async def test_all_are_held_inside_and_none_afterwards() -> None:
    locks = [trio.Lock() for _ in range(3)]
    seen: list[list[bool]] = []
    async with all_held(locks, lambda: seen.append(are_held(locks))):
        assert are_held(locks) == [True] * 3
    assert seen == [[True, False, False], [True, True, False], [True, True, True]]
    assert are_held(locks) == [False] * 3


async def test_one_that_another_task_holds_is_waited_for(nursery: trio.Nursery) -> None:
    locks = [trio.Lock() for _ in range(3)]
    go_on, order = trio.Event(), list[str]()

    async def other() -> None:
        async with locks[1]:
            await go_on.wait()
            order.append("other")

    nursery.start_soon(other)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(_hold, locks, order)
    await trio.testing.wait_all_tasks_blocked()
    assert are_held(locks) == [True, True, False]
    go_on.set()
    await trio.testing.wait_all_tasks_blocked()
    assert order == ["other", "all"]


async def _hold(locks: list[trio.Lock], order: list[str]) -> None:
    async with all_held(locks, lambda: None):
        order.append("all")


async def test_none_is_held_after_an_error_or_when_the_wait_is_cancelled() -> None:
    locks = [trio.Lock() for _ in range(2)]
    with pytest.raises(OSError, match="full"):
        async with all_held(locks, lambda: None):
            raise OSError("full")
    assert are_held(locks) == [False] * 2
    async with trio.open_nursery() as nursery:
        taken = trio.Event()

        async def other() -> None:
            async with locks[1]:
                taken.set()
                await trio.sleep_forever()

        nursery.start_soon(other)
        await taken.wait()
        with trio.move_on_after(0):
            await _hold(locks, [])
        assert are_held(locks) == [False, True]
        nursery.cancel_scope.cancel()
