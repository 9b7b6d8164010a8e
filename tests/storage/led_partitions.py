"""Partitions that one core leads, with their files on a disk in memory."""

import uuid

import trio

from tests.storage.test_partition_storage import TOPICS
from tests.support.fake_disk import FakeDisk
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.storage.files import FileCache
from tpc_broker.storage.folders import create_partition
from tpc_broker.storage.leader_partition import LeaderPartition


class LedPartitions:
    """`led`: by handle, of so many topics in turn."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings, self.disk, self.led = settings, FakeDisk(), {}
        self.disk.put_folder(TOPICS)

    async def make(self, count, topics=1):
        files = FileCache(self.disk)
        for handle in range(count):
            topic = handle % topics
            key = TopicPartition(uuid.UUID(int=9 + topic), handle // topics)
            storage = await create_partition(files, TOPICS, f"t{topic}", key, self.settings)
            self.led[handle] = LeaderPartition(storage, handle, trio.Lock(), is_internal=False)
        return self

    def assert_nothing_is_held(self):
        assert not any(led.lock.locked() or led.files.lock.locked() for led in self.led.values())
