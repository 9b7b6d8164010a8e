"""Partitions that one core leads, with their files on a disk in memory."""

import uuid

import trio

from tests.storage.test_partition_storage import TOPICS
from tests.support.fake_disk import FakeDisk
from tests.support.storage_plane import MemoryStoragePlane, params_of
from tpc_broker.log.segment import LogSettings
from tpc_broker.log.state import LogState
from tpc_broker.model import TopicPartition
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.folders import create_partition
from tpc_broker.storage.segments.leader_partition import LeaderPartition


class LedPartitions:
    """`led`: by handle, 0, 1, 2 …, of so many topics in turn; the `first` batches are in the files of each."""

    def __init__(self, settings: LogSettings) -> None:
        self.settings, self.disk, self.plane, self.led = settings, FakeDisk(), MemoryStoragePlane(), {}
        self.disk.put_folder(TOPICS)

    async def make(self, count, topics=1, first=()):
        files = FileCache(self.disk)
        for number in range(count):
            topic = number % topics
            key = TopicPartition(uuid.UUID(int=9 + topic), number // topics)
            storage = await create_partition(files, TOPICS, f"t{topic}", key, self.settings)
            for data in first:
                await storage.append([data])
            handle = self.plane.register(params_of(key, len(first)), LogState())
            assert handle == number
            self.led[handle] = LeaderPartition(storage, handle, trio.Lock(), is_internal=False)
        return self

    def assert_nothing_is_held(self):
        assert not any(led.lock.locked() or led.files.lock.locked() for led in self.led.values())
