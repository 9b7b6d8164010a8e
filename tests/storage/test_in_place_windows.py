"""How long a failed partition waits before its segment may be replaced: until nothing is written into it in place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.storage.in_place_windows import InPlaceWindows

HANDLE = 7


class Plane:
    """One partition, and the events by which its appends become durable."""

    def __init__(self):
        self.closed, self.error, self.durable_offset, self.in_place_end_offset = [], 0, 0, 5
        self.settled: list[trio.Event] = []
        self.failure: Exception | None = None

    def close_in_place_window(self, handle):
        self.closed.append(handle)

    def journal_error(self):
        return self.error

    def state(self, _handle):
        return SimpleNamespace(in_place_end_offset=self.in_place_end_offset, durable_offset=self.durable_offset)

    async def wait_settled(self, handle):
        assert handle == HANDLE
        self.settled.append(trio.Event())
        await self.settled[-1].wait()
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


@pytest.fixture
def world():
    plane = Plane()
    led = SimpleNamespace(handle=HANDLE)
    return plane, led, InPlaceWindows(plane, {HANDLE: led}, SimpleNamespace())


async def test_it_is_told_and_looks_at_no_clock(world, autojump_clock):
    plane, led, windows = world
    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.wait_closed, led)
        await trio.testing.wait_all_tasks_blocked()
        assert plane.closed == [HANDLE]
        assert len(plane.settled) == 1
        plane.durable_offset = 5
        plane.settled[0].set()
    assert trio.current_time() == begun_s


FAILURES = (LeadershipLostError("its epoch has ended"), PartitionOfflineError("the journal failed"))


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_wait_that_ends_otherwise_is_no_answer(world, failure, autojump_clock):
    plane, led, windows = world
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.wait_closed, led)
        await trio.testing.wait_all_tasks_blocked()
        plane.failure = failure
        plane.settled[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(plane.settled) == 2, "it looks again, and waits again"
        plane.error = 5
        plane.settled[1].set()


async def test_what_is_durable_does_not_wait(world):
    plane, led, windows = world
    plane.durable_offset = 5
    await windows.wait_closed(led)
    assert plane.settled == []
