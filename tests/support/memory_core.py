"""A core's storage in memory, and the part of `Core` that partitions look at, for unit tests of what stands on them.

`MemoryCore` has the real view, configuration and `Partitions`. What storage was asked for is in `MemoryStorage.asked`,
in its order. A whole `Core`, and several of them, are in `memory_node`.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import trio

from tests.support.memory_plane import MemoryPlane
from tpc_broker.broker.access import AccessControl
from tpc_broker.broker.partitions import Partitions
from tpc_broker.broker.view import ClusterView, Leader
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import TopicCreated
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, MetadataVersion, TopicId
from tpc_broker.testing.storage import MemoryStorage as Storage

CORES = 2
_ADDRESSES = tuple(Address("here", 9092 + core) for core in range(CORES))


class MemoryStorage(Storage):
    """`refuses[key]` is raised by the next `open` of a partition, once if it is in `once`. `left_over`: partitions
    whose folders are there, though nothing knows of them.
    """

    def __init__(self, plane, files=None, folders=None):
        super().__init__(plane, files, folders)
        self.asked, self.refuses, self.once = [], {}, set()
        self.left_over = set()
        self.has_space = True

    def note(self, *what):
        self.asked.append(what)

    def check(self, key, operation):
        is_once = operation == "open" and key in self.once
        error = self.refuses.pop(key, None) if is_once else self.refuses.get(key)
        if error is not None:
            raise error

    async def is_left_over(self, key, topic):
        return await super().is_left_over(key, topic) or (key in self.left_over and not self.has(key))

    async def make_room(self, files, handle, size):
        await super().make_room(files, handle, size)
        if not self.has_space:
            raise OSError("no space, for a test")

    async def retain(self, files, handle, now_ms):
        return await super().retain(files, handle, now_ms) + 1

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
