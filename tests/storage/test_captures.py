"""Partitions that are captured together for a checkpoint: as each by itself, in few jobs."""

import errno

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.storage.test_partition_storage import KEY, TOPICS
from tests.storage.test_short_runs import held_elsewhere
from tests.support.fake_disk import FakeDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import PartitionIndex, TopicPartition
from tpc_broker.storage.recovery import captures
from tpc_broker.storage.recovery.captures import capture_together
from tpc_broker.storage.recovery.checkpoint import write_checkpoint
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition

SETTINGS = LogSettings(segment_bytes=1_000_000, index_interval_bytes=200, retention_ms=-1)


@pytest.fixture
def index_lag():
    return 1, 1


async def written(disk, count):
    """`count` partitions of a core, each with some more entries in its indexes than the one before."""
    disk.put_folder(TOPICS)
    files, storages = FileCache(disk), []
    for number in range(count):
        key = TopicPartition(KEY.topic_id, PartitionIndex(number))
        storages.append(await create_partition(files, TOPICS, "t", key, SETTINGS))
    for number, storage in enumerate(storages):
        for offset in range(number):
            await storage.append([batch(offset, [b"x" * 300], timestamp=offset + 1)])
    return storages


def files_of(disk):
    return {path: bytes(inode.content) for path, inode in disk.names.items() if inode is not None}


async def test_files_and_states_are_the_same_either_way(monkeypatch):
    monkeypatch.setattr(captures, "CAPTURED_TOGETHER", 3)
    one_by_one, together = FakeDisk(), FakeDisk()
    ones, others = await written(one_by_one, 8), await written(together, 8)
    for _round in range(2):
        singles = {storage.key: await storage.capture() for storage in ones}
        found = await capture_together(others)
        assert [state.encode() for state in found.values()] == [state.encode() for state in singles.values()]
        assert files_of(one_by_one) == files_of(together)
        for storage in [*ones, *others]:
            offset = storage.written_end_offset
            await storage.append([batch(offset, [b"y" * 500], timestamp=100 + offset)])
    assert [storage.folder.written_names() for storage in ones] == [
        storage.folder.written_names() for storage in others
    ]


async def test_one_that_is_locked_is_waited_for_and_others_are_not_held_up():
    storages = await written(FakeDisk(), 5)
    found = {}

    async def capture():
        found.update(await capture_together(storages))

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, held_elsewhere(storages[2].lock):
            nursery.start_soon(capture)
            await trio.testing.wait_all_tasks_blocked()
            assert not any(storage.lock.locked() for storage in storages if storage is not storages[2])
    assert len(found) == 5


@pytest.mark.parametrize("what", ["write", "create"])
async def test_an_index_that_cannot_be_written_fails_its_partition(what):
    disk = FakeDisk()
    storages = await written(disk, 5)
    disk.effects, disk.fail_with = 0, errno.EIO
    disk.fail_at = 3 if what == "create" else await number_of_effects_until_a_write(5)
    if what == "create":  # it is opened again by itself, which works
        assert len(await capture_together(storages)) == 5
        return
    with pytest.raises(StorageFailedError):
        await capture_together(storages)
    assert len([storage for storage in storages if storage.failed is not None]) == 1
    assert not any(storage.lock.locked() for storage in storages)


async def number_of_effects_until_a_write(count):
    disk = FakeDisk()
    storages = await written(disk, count)
    disk.effects = 0
    disk.log.clear()
    await capture_together(storages)
    return disk.log.index("write") + 1


async def test_a_checkpoint_of_thousands_lets_others_in_while_it_is_encoded():
    disk = FakeDisk()
    [storage] = await written(disk, 1)
    state = storage.state()
    disk.counts.clear()
    await write_checkpoint(disk, storage.folder.path, 0, 1, [state] * 3000)
    assert disk.counts["poll_ring"] >= 3000


async def test_one_that_has_failed_is_not_captured_as_if_it_was_sound():
    storages = await written(FakeDisk(), 4)
    storages[1].fail("a sync, for a test")
    with pytest.raises(StorageFailedError):
        await capture_together(storages)
    assert not any(storage.lock.locked() for storage in storages)


async def test_others_are_let_in_while_thousands_are_captured():
    disk = FakeDisk()
    storages = await written(disk, 30)
    disk.counts.clear()
    await capture_together(storages)
    assert disk.counts["poll_ring"] >= len(storages)
