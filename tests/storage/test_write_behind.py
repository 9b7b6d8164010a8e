"""Who writes behind when: short runs of many by one task at a time, and records that wait for a checkpoint."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.support.waiting import PATIENCE_S
from tpc_broker import limits
from tpc_broker.storage.upkeep import write_behind
from tpc_broker.storage.upkeep.write_behind import AGE_OF_MANY_S, AGE_S, BYTES_MIN, DIRTY_BYTES_MAX, WriteBehindWriter

MANY = write_behind.FEW_PARTITIONS + 1


class DirtyPartitions:
    """A writer, so many dirty partitions, and short runs that take until `may_end`."""

    def __init__(self):
        self.handles = list(range(MANY))
        self.asked, self.written, self.watched, self.may_end = [], [], [], trio.Event()
        self.led = {
            handle: SimpleNamespace(handle=handle, files=SimpleNamespace(failed=None)) for handle in range(MANY + 1)
        }
        plane = SimpleNamespace(
            on_due=self.on_due, watch_due=self.watch_due, dirty=lambda: list(self.handles), dirty_due=self.dirty_due,
            state=lambda _handle: SimpleNamespace(dirty_bytes=0),
        )  # fmt: skip
        space = SimpleNamespace(make_ahead_of_many=None)
        self.writer = WriteBehindWriter(plane, None, Path("/data"), self.led, space=space, in_place_windows=None)
        self.writer._short_runs = self
        self.one_by_one = []
        self.writer._write_one = self.write_one

    def on_due(self, callback):
        self.is_due = callback

    def watch_due(self, bytes_min, _bytes_max):
        self.watched.append((trio.current_time(), bytes_min))

    def dirty_due(self, bytes_min, age_s, bytes_max):
        self.asked.append((bytes_min, age_s, bytes_max))
        return list(self.handles) if bytes_max != limits.BYTES_WITHOUT_BOUND else []

    async def write(self, dirty, _written):
        self.written.append([led.handle for led in dirty])
        await self.may_end.wait()
        self.handles = [handle for handle in self.handles if handle >= MANY]
        return []

    async def write_one(self, led, *, all_of_it):
        self.one_by_one.append((led.handle, all_of_it))


@pytest.fixture
async def world():
    return DirtyPartitions()


async def test_while_short_runs_are_written_others_write_long_ones_alone(world, nursery):
    nursery.start_soon(lambda: world.writer.write(all_of_it=True))
    await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(PATIENCE_S):
        await world.writer.write(all_of_it=False)
    assert len(world.written) == 1, "what the first one has locked would be left to be written one by one"
    assert world.asked == [(BYTES_MIN, write_behind.NEVER_S, limits.BYTES_WITHOUT_BOUND)]
    world.may_end.set()


async def test_a_checkpoint_waits_for_them_and_writes_what_is_left_then(world, nursery):
    nursery.start_soon(lambda: world.writer.write(all_of_it=False))
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(lambda: world.writer.write(all_of_it=True))
    await trio.testing.wait_all_tasks_blocked()
    assert len(world.written) == 1
    world.handles.append(MANY)
    world.may_end.set()
    await trio.testing.wait_all_tasks_blocked()
    assert world.written == [list(range(MANY)), [MANY]]


async def test_records_wait_for_a_checkpoint_that_begins_late(world):
    world.handles = []
    for wait_bytes in (0, 2 * DIRTY_BYTES_MAX, DIRTY_BYTES_MAX // 2, 0):
        world.writer.wait_for_more(wait_bytes)
        await world.writer.write(all_of_it=False)
    assert [(age, dirty) for _least, age, dirty in world.asked] == [
        (AGE_S, DIRTY_BYTES_MAX), (AGE_OF_MANY_S, 2 * DIRTY_BYTES_MAX), (AGE_OF_MANY_S, DIRTY_BYTES_MAX),
        (AGE_S, DIRTY_BYTES_MAX),
    ]  # fmt: skip


async def run_beside(world, nursery):
    """`run`, with what `dirty_due` finds written at once."""
    world.writer._disk = SimpleNamespace(poll_ring=lambda: None)
    world.handles, world.looked_s = [], []

    def dirty_due(_bytes_min, _age_s, _bytes_max):
        world.looked_s.append(trio.current_time())
        return []

    world.writer._plane.dirty_due = dirty_due
    nursery.start_soon(world.writer.run)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_core_at_rest_looks_after_nothing_and_one_that_is_not_does_so_with_the_other_tasks(
    autojump_clock, world, nursery
):
    await run_beside(world, nursery)
    await trio.sleep(100)
    assert world.looked_s == []
    assert [bytes_min for _at_s, bytes_min in world.watched] == [write_behind.BYTES_AT_ONCE, 1]
    world.handles = [0]
    world.is_due()
    await trio.sleep(2)
    assert len(world.looked_s) >= 3
    assert all(at_s % write_behind.LOOK_S == pytest.approx(0) for at_s in world.looked_s)
    world.handles = []
    await trio.sleep(write_behind.LOOK_S * 2)
    rested, looked = len(world.watched), len(world.looked_s)
    assert world.watched[-1][1] == 1
    await trio.sleep(100)
    assert (rested, looked) == (len(world.watched), len(world.looked_s))


async def test_who_has_much_is_not_left_until_the_next_look(autojump_clock, world, nursery):
    await run_beside(world, nursery)
    await trio.sleep(2 * write_behind.LOOK_S)
    world.handles = [0]
    world.is_due()
    await trio.sleep(0.01)
    assert world.watched[-1][1] == write_behind.BYTES_AT_ONCE
    assert world.looked_s == []
    world.is_due()
    await trio.sleep(0.01)
    assert world.looked_s == [pytest.approx(trio.current_time() - 0.01)]
    world.is_due()
    await trio.sleep(0.01)
    assert len(world.looked_s) == 1, "two rounds are some time apart"
