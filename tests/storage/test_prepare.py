"""Folders of many new partitions at once: ready means durable, whenever the power goes, and few syncs do it."""

import os
import random
import uuid

import pytest

from tests.log.log_batches import batch
from tests.storage.test_partition_storage import SETTINGS, TOPICS
from tests.support.fake_disk import FakeDisk, PowerLoss
from tpc_broker.model import TopicPartition
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition, list_partitions, new_partition, prepare_folders

FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)
WANTED = [(TopicPartition(topic_id, number), str(topic_id.int)) for topic_id in (FIRST, SECOND) for number in range(3)]


async def new_disk():
    disk = FakeDisk()
    disk.put_folder(TOPICS)
    return disk, FileCache(disk), await disk.open(TOPICS.parent / "journal", os.O_RDWR | os.O_CREAT)


async def test_one_sync_for_all_of_them():
    disk, files, fd = await new_disk()
    assert await prepare_folders(files, TOPICS, WANTED, fd) == {key for key, _topic in WANTED}
    assert [label for label in disk.log if "sync" in label] == ["syncfs"]
    disk.crash(random.Random(1))
    assert set(await list_partitions(disk, TOPICS)) == {key for key, _topic in WANTED}


async def test_what_is_ready_takes_records_as_any_other_partition():
    _disk, files, fd = await new_disk()
    await prepare_folders(files, TOPICS, WANTED, fd)
    key, topic = WANTED[0]
    storage = new_partition(files, TOPICS, topic, key, SETTINGS)
    data = batch(0, [b"x"], timestamp=1)
    await storage.append([data])
    assert await storage.read(0, 100) == data


async def test_without_power_at_any_step_nothing_is_ready_and_all_can_be_made_afterwards():
    effects = 0
    while True:
        effects += 1
        disk, files, fd = await new_disk()
        disk.lose_power_at = disk.effects + effects
        try:
            await prepare_folders(files, TOPICS, WANTED, fd)
            break
        except PowerLoss:
            disk.crash(random.Random(effects))
        files = FileCache(disk)
        for key, topic in WANTED:
            storage = await create_partition(files, TOPICS, topic, key, SETTINGS)
            assert storage.key == key
        disk.crash(random.Random(effects))
        assert set(await list_partitions(disk, TOPICS)) == {key for key, _topic in WANTED}, effects
    assert effects > 2 * len(WANTED)


async def test_a_folder_that_is_there_is_left_to_be_looked_into():
    disk, files, fd = await new_disk()
    key, topic = WANTED[2]
    other = TopicPartition(uuid.UUID(int=3), key.partition)
    await create_partition(files, TOPICS, topic, other, SETTINGS)
    assert await prepare_folders(files, TOPICS, WANTED, fd) == {one for one, _topic in WANTED} - {key}
    assert other in await list_partitions(disk, TOPICS)


async def test_when_the_disk_fails_none_is_ready():
    disk, files, fd = await new_disk()
    disk.fail_at = disk.effects + 3 * len(WANTED) // 2
    with pytest.raises(OSError, match="injected"):
        await prepare_folders(files, TOPICS, WANTED, fd)
