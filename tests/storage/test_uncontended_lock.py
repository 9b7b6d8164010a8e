"""Locks that are taken without a turn when they are free, and in order when they are not."""

from __future__ import annotations

import trio
import trio.testing

from tpc_broker.storage.uncontended_lock import UncontendedLock


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
