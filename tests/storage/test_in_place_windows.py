"""How long a failed partition waits before its segment may be replaced: until nothing is written into it in place."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.support.storage_plane import MemoryStoragePlane, params_of
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.log.state import LogState
from tpc_broker.model import TopicPartition
from tpc_broker.storage.upkeep.in_place_windows import InPlaceWindows

END_OFFSET = 5


@pytest.fixture
def world():
    """A partition of which something was written in place, and is not durable."""
    plane = MemoryStoragePlane()
    plane.holds = True
    handle = plane.register(params_of(TopicPartition(uuid.UUID(int=7), 0)), LogState())
    for number in range(END_OFFSET):
        data = batch(number)
        plane.admit(handle, len(data))
        assert plane.append(handle, data) is not None
    plane.in_place_ends[handle] = END_OFFSET
    led = SimpleNamespace(handle=handle)
    return plane, led, InPlaceWindows(plane, {handle: led}, SimpleNamespace())


async def test_it_is_told_and_looks_at_no_clock(world, autojump_clock):
    plane, led, windows = world
    begun_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.wait_closed, led)
        await trio.testing.wait_all_tasks_blocked()
        assert plane.closed == plane.waits == [led.handle]
        plane.make_durable()
    assert trio.current_time() == begun_s


FAILURES = (LeadershipLostError("its epoch has ended"), PartitionOfflineError("the journal failed"))


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_wait_that_ends_otherwise_is_no_answer(world, failure, autojump_clock):
    plane, led, windows = world
    async with trio.open_nursery() as nursery:
        nursery.start_soon(windows.wait_closed, led)
        await trio.testing.wait_all_tasks_blocked()
        plane.fail_waits(failure)
        await trio.testing.wait_all_tasks_blocked()
        assert len(plane.waits) == 2, "it looks again, and waits again"
        plane.error = 5
        plane.fail_waits(failure)


async def test_what_is_durable_does_not_wait(world):
    plane, led, windows = world
    plane.make_durable()
    await windows.wait_closed(led)
    assert plane.waits == []
