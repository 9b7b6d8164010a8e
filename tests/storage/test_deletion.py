"""A deleted partition whose folder cannot be renamed: tried again, and known to the next start while it is there."""

import errno

import pytest
import trio

from tests.log.log_batches import batch
from tests.storage.checkpointed_core import DATA, CheckpointedCore
from tests.support.disk_operations import refusing
from tests.support.storage_plane import MemoryStoragePlane
from tpc_broker.storage.recovery.core_partitions import CorePartitions
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.segments.folders import list_partitions
from tpc_broker.storage.upkeep.deletion import RETRY_MS, Deletions
from tpc_broker.storage.upkeep.journal_room import JournalRoom
from tpc_broker.storage.upkeep.maintenance_requests import MaintenanceRequests
from tpc_broker.storage.upkeep.refusals import Failures


class Clock:
    now_ms = 0

    def wall_ms(self):
        return self.now_ms


def deletions_of(world, clock, plane=None, room=None):
    return Deletions(
        plane or MemoryStoragePlane(), world.disk, DATA, clock,
        partitions=CorePartitions(world.storages, {}, world.checkpointer.kept),
        checkpointer=world.checkpointer, room=room or JournalRoom(world.checkpointer), requests=MaintenanceRequests(),
        failures=Failures(),
    )  # fmt: skip


async def test_a_deletion_waits_for_room_in_the_journal_and_goes_on_at_once(autojump_clock):
    world, plane = CheckpointedCore(seed=1), MemoryStoragePlane()
    plane.has_room = False
    await world.open()
    room, key = JournalRoom(world.checkpointer), world.partitions[0].key
    deletions = deletions_of(world, Clock(), plane, room)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletions.delete_files, world.storages[key], trio.Lock())
        await trio.sleep(0.09)
        assert len(plane.entries) == 1
        plane.has_room, began_s = True, trio.current_time()
        room.made()
    assert trio.current_time() == began_s
    assert key not in world.storages


async def left_behind():
    """A world whose first partition was deleted while its folder could not be renamed."""
    world, clock = CheckpointedCore(seed=1), Clock()
    await world.open()
    for partition in world.partitions:
        await world.storages[partition.key].append([])
    await world.append()
    await world.checkpoint()
    key = world.partitions[0].key
    world.disk.during("rename", do=refusing(errno.EIO))
    deletions = deletions_of(world, clock)
    await deletions.delete_files(world.storages[key], trio.Lock())
    world.disk.during("rename", do=None)
    assert key not in world.storages
    return world, clock, deletions, key


async def test_segments_that_cannot_be_removed_are_tried_again():
    world, clock = CheckpointedCore(seed=1), Clock()
    await world.open()
    files = world.storages[world.partitions[0].key]
    for number in range(40):
        await files.append([batch(number, [bytes(300)])])
    deletions = deletions_of(world, clock)
    gone = await files.advance_log_start(40, clock.now_ms)
    assert gone > 2
    deletions.segments_doomed(files)

    def left():
        return [path for path in world.disk.names if path.name.endswith(".deleted")]

    world.disk.during("unlink", do=refusing(errno.EIO))
    clock.now_ms += files.settings.file_delete_delay_ms
    await deletions.free(clock.now_ms)
    assert len(left()) >= gone
    world.disk.during("unlink", do=None)
    clock.now_ms += RETRY_MS
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(deletions.free_at_once)
    assert not left()


async def is_there(world, key):
    return key in await list_partitions(world.disk, DATA / "topics")


async def test_it_is_tried_again():
    world, clock, deletions, key = await left_behind()
    assert await is_there(world, key)
    clock.now_ms += RETRY_MS
    await deletions.free(clock.now_ms)
    assert not await is_there(world, key)
    assert key not in world.checkpointer.kept


@pytest.mark.parametrize("checkpoints", [0, 1])
async def test_the_next_start_still_knows_of_it(checkpoints):
    """Nothing else would ever remove the folder, and it blocks the topic's name."""
    world, _clock, _deletions, key = await left_behind()
    for _number in range(checkpoints):
        await world.checkpoint()
    world.disk.kill()
    core = await recover_core(world.disk, DATA, 0, new_journal_id=bytes(16))
    assert key in core.storages
    assert await is_there(world, key)


async def test_what_was_opened_while_its_folder_got_another_name_is_closed():
    """Another replica may come under that name: its records are not to be written to the files of this one."""
    world, clock = CheckpointedCore(seed=1), Clock()
    await world.open()
    key = world.partitions[0].key
    files = world.storages[key]
    await files.append([batch(0, [bytes(300)])])
    path, cache = files.folder.path / files.active.log_name, files.folder.files

    async def open_and_rename(go, source, _target):
        await cache.open_many([path])
        assert cache.paths_in(source)
        await go()

    world.disk.during("rename", do=open_and_rename)
    await deletions_of(world, clock).delete_files(files, trio.Lock())
    assert not await is_there(world, key)
    assert not cache.paths_in(path.parent)
