"""Segment space of many partitions by few jobs: what waits shares one, others are taken ahead, the account is exact."""

import errno

import trio
import trio.testing

from tests.log.log_batches import batch
from tests.storage.led_partitions import LedPartitions
from tests.storage.test_short_runs import held_elsewhere
from tpc_broker import limits
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.upkeep.space_together import AHEAD_FROM, AHEAD_OF_ONE, TOGETHER, SpaceTogether

FIRST_BYTES = 2000
FIRST = next(data for size in range(1900, FIRST_BYTES) if len(data := batch(0, [bytes(size)])) == FIRST_BYTES)
"""The first batch of a partition."""


class SpacePartitions(LedPartitions):
    """Partitions, and what takes space for them."""

    def __init__(self):
        super().__init__(LogSettings())
        self.left_bytes = 1 << 40
        self.jobs, self.job_seconds, self.refusals = [], 0.0, {}
        self.disk.during("reserve_many", do=self.reserve)

    async def make(self, count, topics=1):
        await super().make(count, topics)
        self.together = SpaceTogether(self.plane, self.disk, self.led, self.has_left)
        return self

    async def reserve(self, _go, spaces):
        """In place of the disk's: it takes its time, and refuses by the job's number and the place in it."""
        self.jobs.append(len(spaces))
        number = len(self.jobs)
        await trio.sleep(self.job_seconds)
        return [self.refusals.get((number, place)) for place in range(len(spaces))]

    async def has_left(self, size):
        return size <= self.left_bytes

    async def ask(self, *handles):
        """All at the same time; then what is taken ahead."""
        async with trio.open_nursery() as nursery:
            for handle in handles:
                nursery.start_soon(self.together.make, self.led[handle], FIRST_BYTES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.together.take_ahead)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    def with_room(self):
        return {handle for handle in self.led if self.plane.state(handle).bytes_admitted}

    def assert_exact(self):
        for handle, led in self.led.items():
            state = self.plane.state(handle)
            assert led.files.reserved_bytes == state.bytes_admitted + state.unwritten_bytes
        self.assert_nothing_is_held()


async def test_what_waits_for_a_job_shares_the_next_one(autojump_clock):
    world = await SpacePartitions().make(60, topics=60)
    world.job_seconds = 1.0
    await world.ask(*range(60))
    assert world.jobs == [1, 59]
    assert world.with_room() == set(range(60))
    world.assert_exact()


async def test_requests_for_one_partition_get_room_for_all_of_them(autojump_clock):
    world = await SpacePartitions().make(2, topics=2)
    world.job_seconds = 1.0
    await world.ask(0, *[1] * 300)
    assert world.jobs[:2] == [1, 1]
    assert world.plane.state(1).bytes_admitted >= 127 * FIRST_BYTES
    world.assert_exact()


async def test_many_of_a_topic_bring_others_along_which_need_not_ask():
    world = await SpacePartitions().make(1000)
    asked = 0
    for handle in world.led:
        if world.plane.append(handle, FIRST) is None:
            waiting = range(handle, min(handle + 64, 1000))
            await world.ask(*[one for one in waiting if not world.plane.state(one).bytes_admitted])
            asked += 1
            assert world.plane.append(handle, FIRST) is not None
    assert asked < 12, "one by one it would be a thousand"
    assert len(world.jobs) < 30
    world.assert_exact()


async def test_no_more_is_taken_ahead_than_a_few_times_what_somebody_has_written_to():
    world = await SpacePartitions().make(1000, topics=2)
    few = range(0, 2 * AHEAD_FROM + 2, 2)
    await world.ask(*few)  # the first of them has a job of its own
    taken = world.with_room()
    assert set(few) <= taken
    assert len(taken) == 1 + AHEAD_FROM * (1 + AHEAD_OF_ONE)
    assert not any(handle % 2 for handle in taken), "nobody asked for that topic"
    for handle in few:
        world.plane.append(handle, FIRST)
    more = [handle for handle in world.led if handle not in taken and handle % 2 == 0][: AHEAD_FROM + 1]
    await world.ask(*more)
    assert len(world.with_room() - set(few) - set(more)) <= 2 * AHEAD_OF_ONE * AHEAD_FROM
    world.assert_exact()


async def test_few_take_nothing_ahead():
    world = await SpacePartitions().make(100)
    await world.ask(*range(AHEAD_FROM - 2))
    await world.ask(50)
    assert world.with_room() == {*range(AHEAD_FROM - 2), 50}


async def test_a_disk_with_little_space_gives_what_is_asked_for_only():
    world = await SpacePartitions().make(100)
    step = 2 * 256 * limits.KIB
    world.left_bytes = 2 * AHEAD_FROM * step
    await world.ask(*range(2 * AHEAD_FROM))
    assert world.with_room() == set(range(2 * AHEAD_FROM))
    world.left_bytes = step - 1
    await world.ask(98, 99)
    assert world.with_room() == set(range(2 * AHEAD_FROM)), "this is refused by the usual way, or not"
    world.assert_exact()


async def test_what_the_disk_refuses_is_left_as_it_was_and_the_others_have_theirs():
    world = await SpacePartitions().make(5, topics=5)
    world.refusals = {(1, 1): OSError(errno.ENOSPC, "no"), (1, 3): OSError(errno.EOPNOTSUPP, "cannot")}
    await world.together.take([(led, FIRST_BYTES) for led in world.led.values()])
    assert world.with_room() == {0, 2, 3, 4}, "a file system without fallocate reserves nothing, and refuses nobody"
    world.assert_exact()


async def test_what_cannot_be_done_in_a_job_is_left():
    world = await SpacePartitions().make(7, topics=7)
    world.led[1].files.fail("for a test")
    world.led[2].is_internal = True
    world.led[3].is_leaving = True
    gone = world.led[6]
    async with held_elsewhere(world.led[4].lock, world.led[5].files.lock):
        del world.led[6]
        await world.together.take([(led, FIRST_BYTES) for led in (*world.led.values(), gone)])
    assert world.with_room() == {0}
    world.assert_exact()


async def test_more_than_a_job_takes_is_several():
    world = await SpacePartitions().make(2 * TOGETHER + 3, topics=2 * TOGETHER + 3)
    await world.together.take([(led, FIRST_BYTES) for led in world.led.values()])
    assert world.jobs == [TOGETHER, TOGETHER, 3]
    world.assert_exact()


async def test_a_cancelled_job_leaves_its_partitions_to_those_who_asked(autojump_clock):
    world = await SpacePartitions().make(3, topics=3)
    world.job_seconds = 10.0

    with trio.move_on_after(1.0):
        await world.ask(*range(3))
    world.assert_nothing_is_held()
    assert world.with_room() == set()
    await world.ask(*range(3))
    assert world.with_room() == set(range(3))


async def test_a_partition_deleted_during_the_job_gets_nothing(autojump_clock):
    world = await SpacePartitions().make(2, topics=2)
    world.job_seconds = 1.0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.together.take, [(led, FIRST_BYTES) for led in world.led.values()])
        await trio.sleep(0.5)
        gone = world.led.pop(1)
    assert world.with_room() == {0}
    assert not world.plane.state(1).bytes_admitted
    assert not any(lock.locked() for lock in (gone.lock, gone.files.lock))


async def test_of_a_partition_deleted_while_it_waited_no_file_is_opened_or_made(autojump_clock):
    """Another one may have its folder by then."""
    world = await SpacePartitions().make(3, topics=3)
    world.job_seconds = 1.0
    deleted = world.led[2]

    async def delete():
        await trio.sleep(0.5)
        world.led.pop(2)

    async with trio.open_nursery() as nursery:
        first, *others = list(world.led.values())
        nursery.start_soon(world.together.make, first, FIRST_BYTES)  # a job by itself, for which the others wait
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(delete)
        for led in others:
            nursery.start_soon(world.together.make, led, FIRST_BYTES)
    assert world.with_room() == {0, 1}
    assert deleted.files.folder.path / deleted.files.active.log_name not in deleted.files.folder.files._files
