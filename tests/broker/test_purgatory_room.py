"""Fetches in Python that wait for memory: one after the other, and not for clients that are gone."""

import trio
import trio.testing

from tpc_broker.broker.purgatory import Purgatory


async def test_whoever_waits_for_room_gets_it_in_turn(autojump_clock):
    purgatory, room, got = Purgatory(lambda _handle: None), [], []

    async def wait(name):
        reserved = await purgatory.wait_reserved(lambda: room.pop() if room else None, lambda: True)
        got.append((name, reserved))

    async with trio.open_nursery() as nursery:
        for name in "abc":
            nursery.start_soon(wait, name)
            await trio.testing.wait_all_tasks_blocked()
        for size in (7, 8, 9):
            assert len(got) == size - 7
            room.append(size)
            await trio.sleep(0.1)
    assert got == [("a", 7), ("b", 8), ("c", 9)]


async def test_nobody_waits_for_a_client_that_is_gone(autojump_clock):
    looks = [False, True, True]
    assert await Purgatory(lambda _handle: None).wait_reserved(lambda: None, looks.pop) is None
    assert not looks
