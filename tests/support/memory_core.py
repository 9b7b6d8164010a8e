"""A core's storage in memory, and the part of `Core` that partitions look at, for unit tests of what stands on them.

`MemoryCore` has the real view, configuration and `Partitions`. What storage was asked for is in `MemoryStorage.asked`,
in its order. A whole `Core`, and several of them, are in `memory_node`.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import ClassVar

import trio

from tests.support.memory_plane import MemoryFiles, MemoryPlane
from tpc_broker.broker.access import AccessControl
from tpc_broker.broker.partitions import Partitions
from tpc_broker.broker.view import ClusterView, Leader
from tpc_broker.log.checkpoint import PartitionCheckpoint, Release
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import TopicCreated
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, LeaderEpoch, MetadataVersion, Offset, TopicId
from tpc_broker.storage.cleaning_status import CleaningBook

CORES = 2
_ADDRESSES = tuple(Address("here", 9092 + core) for core in range(CORES))


class CoreFiles(dict):
    """What a core's storage leaves to its next life: files by partition, and in `away` those that it has released."""

    def __init__(self):
        self.away = {}


class MemoryStorage:
    """`CoreStorage`. `refuses[key]` is raised by the next `open` of a partition, once if it is in `once`. `files` are
    what a storage before this one has left.
    """

    folders: ClassVar[dict] = {}
    """Files of partitions that were released, by any core."""

    def __init__(self, plane, files=None):
        self.plane = plane
        self.files = CoreFiles() if files is None else files
        self.away = self.files.away
        self.asked, self.refuses, self.once = [], {}, set()
        self.handles, self.left_over = {}, set()
        self.has_space = True
        self.cleaning = CleaningBook()
        self._tell_given_up = None

    async def prepare(self, wanted):
        self.asked.append(("prepare", [key for key, _topic in wanted]))

    def has(self, key):
        return key in self.files

    def remembers(self, keys):
        return any(self.has(key) for key in keys)

    def unclaimed(self):
        opened = {files.key for files in self.handles.values()}
        return [key for key in self.files if key not in opened]

    def unclaimed_terms(self):
        return [(key, -1) for key in self.unclaimed()]

    async def is_left_over(self, key, _topic):
        await trio.lowlevel.checkpoint()
        return key in self.left_over and not self.has(key)

    async def forget_mark(self, key):
        self.asked.append(("forget_mark", key))

    def released(self, key):
        return self.away.get(key)

    def all_released(self):
        return list(self.away)

    def forget_release(self, key):
        self.asked.append(("forget_release", key))
        del self.away[key]

    async def release(self, handle, target, move_id, then, leave=None):
        files = self.handles.pop(handle)
        self.asked.append(("release", files.key, target, move_id))
        if leave is not None:
            await leave()
        if files.key in self.refuses:
            self.handles[handle] = files
            raise self.refuses[files.key]
        await trio.lowlevel.checkpoint()
        files.moves = getattr(files, "moves", 0) + 1
        self.folders[files.key] = self.files.pop(files.key)
        self.away[files.key] = released = PartitionCheckpoint(
            *files.key, files.topic, moves=files.moves, released=Release(target, move_id)
        )
        self.plane.withdraw(handle)
        then()
        return released

    async def adopt(self, released, _config):
        await trio.lowlevel.checkpoint()
        self.asked.append(("adopt", released.key))
        if released.key in self.refuses:
            raise self.refuses[released.key]
        self.away.pop(released.key, None)
        self.files[released.key] = self.folders.pop(released.key)

    async def open(self, key, topic, _config):
        await trio.lowlevel.checkpoint()
        self.asked.append(("open", key))
        if self.away.pop(key, None) is not None:  # taken back
            self.files[key] = self.folders.pop(key)
        error = self.refuses.pop(key, None) if key in self.once else self.refuses.get(key)
        if error is not None:
            raise error
        return self.files.setdefault(key, MemoryFiles(key, topic))

    async def begin_epoch(self, files, _note=b""):
        await trio.lowlevel.checkpoint()
        files.leader_epoch += 1
        files.epochs.assign(LeaderEpoch(files.leader_epoch), Offset(files.log.log_end_offset))

    async def begin_epochs(self, opened):
        for files in opened:
            await self.begin_epoch(files)

    def register(self, files, _config, *, is_internal, is_replicated=False):
        assert not is_replicated, "not in memory"
        self.asked.append(("register", files.key, is_internal))
        handle = self.plane.register(files)
        self.handles[handle] = files
        return handle

    def begin_term(self, handle, term, note=b""):
        files = self.handles[handle]
        files.leader_epoch = term
        files.epochs.assign(LeaderEpoch(term), Offset(self.plane.bounds(handle).log_end_offset))
        self.asked.append(("begin_term", files.key, term, note))
        return len(self.asked)

    def note_term(self, handle, term, note=b""):
        self.handles[handle].leader_epoch = term
        self.asked.append(("note_term", self.handles[handle].key, term, note))
        return len(self.asked)

    async def cut(self, handle, offset, last_epoch_kept):
        await trio.lowlevel.checkpoint()
        self.asked.append(("cut", self.handles[handle].key, offset, last_epoch_kept))

    def damaged(self):
        return []

    def keep_aside(self, key, reason):
        raise AssertionError(f"nothing is damaged in memory: {key}, {reason}")

    async def install(self, key, _config, _judge, _then):
        raise AssertionError(f"nothing is filled in memory: {key}")

    def alter(self, files, _handle, config, *, is_internal, is_replicated=False):
        self.asked.append(("alter", files.key, config.retention_ms, is_internal))

    async def delete(self, files, handle):
        self.plane.withdraw(handle)
        await trio.lowlevel.checkpoint()
        self.asked.append(("delete", files.key))
        del self.files[files.key], self.handles[handle]

    async def delete_offline(self, key):
        await trio.lowlevel.checkpoint()
        self.away.pop(key, None)
        self.asked.append(("delete_offline", key))

    async def set_log_start(self, handle, offset):
        await trio.lowlevel.checkpoint()
        log = self.plane.logs[handle]
        log.log_start_offset = max(log.log_start_offset, offset)

    def follow_level(self, _image):
        """Nothing is written here."""

    async def forget_unclaimed(self, _image):
        self.asked.append(("forget_unclaimed",))

    async def make_room(self, _files, _handle, _size):
        await trio.lowlevel.checkpoint()
        if not self.has_space:
            raise OSError("no space, for a test")

    async def wait_journal_room(self):
        await trio.lowlevel.checkpoint()

    async def retain(self, files, _handle, now_ms):
        self.asked.append(("retain", files.key, now_ms))
        return 1

    async def purge_folders(self):
        self.asked.append(("purge_folders",))

    async def checkpoint(self):
        return True

    async def drain(self):
        return True

    def on_given_up(self, callback):
        self._tell_given_up = callback

    def on_epochs_begun(self, callback):
        self.tell_epochs = callback

    def give_up(self, key, reason):
        """As mending does, after the handle was withdrawn."""
        for handle in [handle for handle, files in self.handles.items() if files.key == key]:
            self.plane.withdraw(handle)
        self._tell_given_up(key, reason)


class MemoryGroups:
    """Coordinators that came and went."""

    def __init__(self):
        self.ended, self.followed = [], 0

    def end(self, key):
        self.ended.append(key)

    async def follow(self, _before, _after):
        await trio.lowlevel.checkpoint()
        self.followed += 1


class MemoryCore:
    """Core 0 of two."""

    def __init__(self):
        self.core_id = CoreId(0)
        self.plane = MemoryPlane()
        self.storage = MemoryStorage(self.plane)
        listener = Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, _ADDRESSES, _ADDRESSES)
        self.view = ClusterView(0, CORES, (listener,), None)
        self.view.core = self.core_id
        self.replicated = None
        self.configuration = load_settings()
        self.settings = self.configuration.settings
        self.access = AccessControl(self)
        self.clock = SimpleNamespace(wall_ms=lambda: 1000, monotonic_ms=lambda: 1000)
        self.advanced, self.without_leader, self.owners_asked, self.in_new_epochs = [], [], [], []
        self.coordinators = MemoryGroups()
        self.purgatory = SimpleNamespace(advanced=self.advanced.append)
        self.partitions = Partitions(self, self.storage)
        self._records = 0

    def note_asked(self, owner):
        self.owners_asked.append(owner)

    def leads_in_new_epochs(self, leaders):
        self.in_new_epochs += leaders

    def has_no_leader(self, key):
        self.without_leader.append(key)

    async def follow(self, *records):
        """The metadata's next records, as `Core` takes them; what was opened, with its epochs."""
        before = self.view.image
        self._records += len(records)
        after = before.apply(records, MetadataVersion(self._records))
        self.view.image = after
        opened = await self.partitions.follow(before, after)
        self.view.note_leaders([(key, Leader(epoch)) for key, epoch in opened])
        return opened


def topic_id_of(number):
    """None of the ids that the broker gives by itself."""
    return TopicId(uuid.UUID(int=100 + number))


def created(number, name, owners=(0,), **configs):
    """A topic's record, with an id made from its number."""
    texts = {key.replace("_", "."): value for key, value in configs.items()}
    return TopicCreated(name, topic_id_of(number), tuple(map(CoreId, owners)), 0, (), texts)
