"""Short runs of many partitions in one job: the same files as one by one, and what is left to be written one by one."""

import errno
import random
from contextlib import asynccontextmanager

import pytest
import trio

from tests.log.log_batches import batch
from tests.storage.direct_writes import append_past_the_page_cache
from tests.storage.led_partitions import LedPartitions
from tests.storage.test_direct_writes import SETTINGS, contents, made_batches, written_and_empty
from tests.storage.test_partition_storage import make
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.segments import segment_appender as storage_module
from tpc_broker.storage.upkeep.short_runs import RUNS_TOGETHER, SHORT_RUN_BYTES_MAX, ShortRunWriter


@pytest.fixture
def index_lag():
    return 1, 1


@asynccontextmanager
async def held_elsewhere(*locks):
    """Another task has the locks."""

    async def hold(task_status):
        for lock in locks:
            await lock.acquire()
        try:
            task_status.started()
            await trio.sleep_forever()
        finally:
            for lock in locks:
                lock.release()

    async with trio.open_nursery() as nursery:
        await nursery.start(hold)
        yield
        nursery.cancel_scope.cancel()


async def in_two_steps(storage, data):
    """Append as the writer of short runs does; False: it is to be done by `append`."""
    run = storage.begin_run(data)
    if run is None:
        return False
    [error] = await storage.folder.disk.write_many([run.write])
    storage.end_run(run, error)
    return True


async def test_files_are_the_same_either_way(monkeypatch):
    monkeypatch.setattr(storage_module, "DIRECT_BYTES_MIN", 4096)
    for seed in range(30):
        chooser = random.Random(seed)
        batches = made_batches(chooser, 80)
        plain, disk, one, other = await written_and_empty(batches)
        two_steps = 0
        while other.written_end_offset < len(batches):
            following = batches[other.written_end_offset :][: chooser.randint(1, 12)]
            if chooser.random() < 0.6 and await in_two_steps(other, b"".join(following)):
                two_steps += 1
            elif chooser.random() < 0.5 or not await append_past_the_page_cache(other, following):
                await other.append(following[: chooser.randint(1, len(following))])
        assert two_steps > 2, seed
        for storage in (one, other):
            await storage.capture()
            await storage.sync()
            await storage.close()
        assert contents(plain) == contents(disk), seed
        assert one.producers.encode_snapshot() == other.producers.encode_snapshot()
        assert len(one.segments) > 3


async def test_a_roll_ends_the_run():
    storage = await make(LogSettings(segment_bytes=3000, index_interval_bytes=200, retention_ms=-1))
    batches = [batch(offset, [b"x" * 900], timestamp=offset) for offset in range(5)]
    await storage.append(batches[:1])
    assert await in_two_steps(storage, b"".join(batches[1:]))
    assert (storage.written_end_offset, len(storage.segments)) == (3, 1)
    assert not await in_two_steps(storage, b"".join(batches[3:]))  # the roll comes first
    assert (storage.written_end_offset, len(storage.segments)) == (3, 1)
    await storage.append(batches[3:])
    assert (storage.written_end_offset, len(storage.segments)) == (5, 2)
    assert [await storage.read(offset, 1) for offset in range(5)] == batches


async def test_what_cannot_be_one_write_is_left_as_it_was():
    storage = await make(SETTINGS)
    data = batch(0, [b"x"], timestamp=1)
    assert storage.begin_run(data) is None  # its file is not open
    await storage.append([data])
    assert storage.begin_run(data) is None  # it was written before
    async with held_elsewhere(storage.lock):
        assert storage.begin_run(batch(1, [b"x"], timestamp=1)) is None
    assert await in_two_steps(storage, batch(1, [b"x"], timestamp=1))
    storage.fail("for a test")
    assert storage.begin_run(batch(2, [b"x"], timestamp=1)) is None
    assert not storage.lock.locked()


async def test_a_file_that_was_given_up_is_not_written_to_by_who_wrote_to_it_last():
    storage = await make(SETTINGS)
    await storage.append([batch(0, [b"x"], timestamp=1)])
    assert await in_two_steps(storage, batch(1, [b"x"], timestamp=1))
    assert storage.path_to_open() is None
    await storage.folder.close()
    assert storage.begin_run(batch(2, [b"x"], timestamp=1)) is None
    path = storage.path_to_open()
    assert path == storage.folder.path / storage.active.log_name
    await storage.folder.files.open_many([path])
    assert await in_two_steps(storage, batch(2, [b"x"], timestamp=1))
    assert storage.path_to_open() is None
    assert await storage.read(2, 1) == batch(2, [b"x"], timestamp=1)


@pytest.mark.parametrize(("error", "in_doubt"), [(errno.ENOSPC, False), (errno.EIO, True)])
async def test_a_write_that_fails_takes_the_partition_out_of_service(error, in_doubt):
    storage = await make(SETTINGS)
    await storage.append([batch(0, [b"x"], timestamp=1)])
    run = storage.begin_run(batch(1, [b"x"], timestamp=1))
    assert storage.lock.locked()
    with pytest.raises(StorageFailedError):
        storage.end_run(run, OSError(error, "no"))
    assert (storage.failed is None, storage.life.pages_in_doubt) == (False, in_doubt)
    assert storage.written_end_offset == 1
    assert not storage.lock.locked()


class ShortRunPartitions(LedPartitions):
    """So many partitions with a batch written and two waiting, and the writer."""

    def __init__(self):
        super().__init__(SETTINGS)
        self.jobs, self.failures, self.reported = [], [], []

    async def make(self, count):
        await super().make(count, first=[batch(0, [b"x"], timestamp=1)])
        for handle in self.led:
            self.plane.admit(handle, 1000 + handle)
            for number in (1, 2):
                self.append(handle, batch(number, [b"x"], timestamp=1))
        self.writer = ShortRunWriter(self.plane, self, self.led, self.failed)
        return self

    def append(self, handle, data):
        self.plane.admit(handle, len(data))
        assert self.plane.append(handle, data) is not None

    def waiting_bytes(self, handle):
        return self.plane.state(handle).unwritten_bytes

    def poll_ring(self):
        pass

    async def write_many(self, writes):
        self.jobs.append(len(writes))
        return await self.disk.write_many(writes)

    async def failed(self, led, error):
        self.failures.append((led.handle, type(error)))

    async def report(self, written):
        assert all(one.bytes_admitted == 1000 + one.led.handle for one in written)
        self.reported += [(one.led.handle, one.written_bytes) for one in written]

    async def write(self):
        return sorted(led.handle for led in await self.writer.write(list(self.led.values()), self.report))


async def test_many_partitions_are_few_jobs_and_all_is_accounted_for():
    world = await ShortRunPartitions().make(2 * RUNS_TOGETHER + 3)
    sizes = {handle: world.waiting_bytes(handle) for handle in world.led}
    assert await world.write() == []
    assert world.jobs == [RUNS_TOGETHER, RUNS_TOGETHER, 3]
    assert dict(world.reported) == sizes
    assert not any(world.waiting_bytes(handle) for handle in world.led)
    assert all(led.files.written_end_offset == 3 for led in world.led.values())
    world.assert_nothing_is_held()
    assert await world.write() == list(world.led)  # there is nothing to write, which the usual way finds out
    world.assert_nothing_is_held()


async def test_what_does_not_fit_into_the_memory_comes_next():
    world = await ShortRunPartitions().make(7)
    world.writer._memory.append(memoryview(bytearray(3 * world.waiting_bytes(0))))
    assert await world.write() == []
    assert world.jobs == [3, 3, 1]
    assert [handle for handle, _bytes in world.reported] == list(range(7))
    assert all(led.files.written_end_offset == 3 for led in world.led.values())
    world.assert_nothing_is_held()


async def test_what_has_begun_is_ended_when_the_writer_is_cancelled():
    """The batches are in the indexes: the next writer would put them there again, or wait for the locks for ever."""
    world = await ShortRunPartitions().make(4)
    with trio.CancelScope() as scope:
        scope.cancel()
        await world.write()
    assert all(led.files.written_end_offset == 3 for led in world.led.values())
    assert not any(world.waiting_bytes(handle) for handle in world.led)
    world.assert_nothing_is_held()


async def test_files_that_were_closed_meanwhile_are_opened_together():
    """Thousands of partitions have more files than stay open."""
    world = await ShortRunPartitions().make(3)
    for led in world.led.values():
        await led.files.folder.close()
    assert await world.write() == []
    assert world.jobs == [3]
    world.assert_nothing_is_held()


async def test_what_a_roll_keeps_back_is_left_to_be_written():
    """A checkpoint gives back the journal's space for all that was durable when it began: nothing may stay behind."""
    world = await ShortRunPartitions().make(3)
    world.led[1].files.settings = LogSettings(segment_bytes=200, index_interval_bytes=200, retention_ms=-1)
    assert await world.write() == [1]
    assert world.led[1].files.written_end_offset == 2
    assert [handle for handle, _bytes in world.reported] == [0, 1, 2]
    assert await world.write() == [0, 1, 2]
    world.assert_nothing_is_held()


async def test_locked_long_and_full_ones_are_left():
    world = await ShortRunPartitions().make(6)
    world.append(1, batch(3, [b"x" * SHORT_RUN_BYTES_MAX], timestamp=1))
    world.led[2].files.fail("for a test")
    async with held_elsewhere(world.led[3].lock, world.led[4].files.lock):
        assert await world.write() == [1, 2, 3, 4]
    world.assert_nothing_is_held()
    assert [handle for handle, _bytes in world.reported] == [0, 5]


async def test_a_failed_write_is_its_own_partitions_alone():
    world = await ShortRunPartitions().make(5)
    world.disk.fail_at = world.disk.effects + 3
    assert await world.write() == []
    assert world.failures == [(2, StorageFailedError)]
    assert [handle for handle, _bytes in world.reported] == [0, 1, 3, 4]
    assert world.waiting_bytes(2) > 0
    world.assert_nothing_is_held()


async def test_a_partition_deleted_meanwhile_is_not_asked_about():
    world = await ShortRunPartitions().make(3)
    write_many = world.write_many

    async def deleted_meanwhile(writes):
        world.led.pop(1)
        return await write_many(writes)

    world.write_many = deleted_meanwhile
    assert await world.write() == []
    assert [handle for handle, _bytes in world.reported] == [0, 2]
    assert [handle for handle in range(3) if world.plane.state(handle).written_offset == 3] == [0, 2]
    world.assert_nothing_is_held()


async def test_of_a_partition_deleted_before_its_turn_no_file_is_opened_or_made():
    """Another one may have its folder by then."""
    world = await ShortRunPartitions().make(RUNS_TOGETHER + 2)
    deleted = world.led[RUNS_TOGETHER]
    files = deleted.files.folder.files
    await deleted.files.folder.close()
    write_many = world.write_many

    async def deleted_meanwhile(writes):
        world.led.pop(RUNS_TOGETHER, None)
        return await write_many(writes)

    world.write_many = deleted_meanwhile
    assert await world.write() == []
    assert world.jobs == [RUNS_TOGETHER, 1]
    assert not files.paths_in(deleted.files.folder.path)
