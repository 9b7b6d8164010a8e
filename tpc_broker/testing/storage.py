"""A core's storage in memory: logs that stay for its next life, and nothing on a disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tpc_broker.log.checkpoint import PartitionCheckpoint, Release
from tpc_broker.model import LeaderEpoch, Offset, TopicPartition
from tpc_broker.storage.upkeep.cleaning_status import CleaningBook
from tpc_broker.testing.logs import MemoryFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.topic_config import TopicConfig
    from tpc_broker.model import CoreId
    from tpc_broker.storage.ports import Leave
    from tpc_broker.testing.plane import MemoryPlane


class CoreFiles(dict[TopicPartition, MemoryFiles]):
    """What a core's storage leaves to its next life: files by partition, and in `away` those that it has released."""

    def __init__(self) -> None:
        super().__init__()
        self.away: dict[TopicPartition, PartitionCheckpoint] = {}


class MemoryStorage:
    """`CoreStorage`. `files` are what a storage before this one has left, `folders` those that were released by any
    core of the node. Whoever wants to know what it was asked for, or to refuse it, overrides `note` and `check`.
    """

    def __init__(
        self,
        plane: MemoryPlane,
        files: CoreFiles | None = None,
        folders: dict[TopicPartition, MemoryFiles] | None = None,
    ) -> None:
        self.plane = plane
        self.folders = {} if folders is None else folders
        self.files = CoreFiles() if files is None else files
        self.away = self.files.away
        self.handles: dict[int, MemoryFiles] = {}
        self.cleaning = CleaningBook()
        self._tell_given_up: Callable[[TopicPartition, str], None] = lambda _key, _reason: None
        self._sequence = 0

    def note(self, *what: object) -> None:
        """What storage was asked for, in its order."""

    def check(self, key: TopicPartition, operation: str) -> None:
        """Raises what the operation fails with."""

    async def prepare(self, wanted: Sequence[tuple[TopicPartition, str]]) -> None:
        self.note("prepare", [key for key, _topic in wanted])

    def has(self, key: TopicPartition) -> bool:
        return key in self.files

    def remembers(self, keys: Iterable[TopicPartition]) -> bool:
        return any(self.has(key) for key in keys)

    def unclaimed(self) -> list[TopicPartition]:
        opened = {files.key for files in self.handles.values()}
        return [key for key in self.files if key not in opened]

    def unclaimed_terms(self) -> list[tuple[TopicPartition, int]]:
        return [(key, -1) for key in self.unclaimed()]

    async def is_left_over(self, _key: TopicPartition, _topic: str) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    async def forget_mark(self, key: TopicPartition) -> None:
        self.note("forget_mark", key)

    def released(self, key: TopicPartition) -> PartitionCheckpoint | None:
        return self.away.get(key)

    def all_released(self) -> list[TopicPartition]:
        return list(self.away)

    def forget_release(self, key: TopicPartition) -> None:
        self.note("forget_release", key)
        del self.away[key]

    async def release(
        self, handle: int, target: CoreId, move_id: int, then: Callable[[], None], leave: Leave | None = None
    ) -> PartitionCheckpoint:
        files = self.handles.pop(handle)
        self.note("release", files.key, target, move_id)
        try:
            if leave is not None:
                await leave()
            self.check(files.key, "release")
        except BaseException:
            self.handles[handle] = files
            raise
        await trio.lowlevel.checkpoint()
        files.moves += 1
        self.folders[files.key] = self.files.pop(files.key)
        self.away[files.key] = released = PartitionCheckpoint(
            *files.key, files.topic, moves=files.moves, released=Release(target, move_id)
        )
        self.plane.withdraw(handle)
        then()
        return released

    async def adopt(self, released: PartitionCheckpoint, _config: TopicConfig) -> None:
        await trio.lowlevel.checkpoint()
        self.note("adopt", released.key)
        self.check(released.key, "adopt")
        self.away.pop(released.key, None)
        self.files[released.key] = self.folders.pop(released.key)

    async def open(self, key: TopicPartition, topic: str, _config: TopicConfig) -> MemoryFiles:
        await trio.lowlevel.checkpoint()
        self.note("open", key)
        if self.away.pop(key, None) is not None:  # taken back
            self.files[key] = self.folders.pop(key)
        self.check(key, "open")
        return self.files.setdefault(key, MemoryFiles(key, topic))

    async def begin_epoch(self, files: MemoryFiles, _note: bytes = b"") -> None:
        await trio.lowlevel.checkpoint()
        files.leader_epoch += 1
        files.epochs.assign(LeaderEpoch(files.leader_epoch), Offset(files.log.log_end_offset))

    async def begin_epochs(self, opened: Sequence[MemoryFiles]) -> None:
        for files in opened:
            await self.begin_epoch(files)

    def register(
        self, files: MemoryFiles, config: TopicConfig, *, is_internal: bool, is_replicated: bool = False
    ) -> int:
        assert not is_replicated, "not in memory"
        self.note("register", files.key, is_internal)
        files.config, files.is_internal = config, is_internal
        handle = self.plane.register(files)
        self.handles[handle] = files
        return handle

    def begin_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        files = self.handles[handle]
        files.leader_epoch = term
        files.epochs.assign(LeaderEpoch(term), Offset(self.plane.bounds(handle).log_end_offset))
        self.note("begin_term", files.key, term, note)
        self._sequence += 1
        return self._sequence

    def note_term(self, handle: int, term: int, note: bytes = b"") -> int | None:
        self.handles[handle].leader_epoch = term
        self.note("note_term", self.handles[handle].key, term, note)
        self._sequence += 1
        return self._sequence

    async def cut(self, handle: int, offset: int, last_epoch_kept: int) -> None:
        await trio.lowlevel.checkpoint()
        self.note("cut", self.handles[handle].key, offset, last_epoch_kept)

    def damaged(self) -> list[TopicPartition]:
        return []

    def keep_aside(self, key: TopicPartition, reason: str) -> None:
        raise AssertionError(f"nothing is damaged in memory: {key}, {reason}")

    async def install(self, key: TopicPartition, _config: TopicConfig, _judge: object, _then: object) -> bool:
        raise AssertionError(f"nothing is filled in memory: {key}")

    def alter(
        self, files: MemoryFiles, _handle: int, config: TopicConfig, *, is_internal: bool, is_replicated: bool = False
    ) -> None:
        assert not is_replicated, "not in memory"
        self.note("alter", files.key, config.retention_ms, is_internal)
        files.config, files.is_internal = config, is_internal

    async def delete(self, files: MemoryFiles, handle: int) -> None:
        self.plane.withdraw(handle)
        await trio.lowlevel.checkpoint()
        self.note("delete", files.key)
        del self.files[files.key], self.handles[handle]

    async def delete_offline(self, key: TopicPartition) -> None:
        await trio.lowlevel.checkpoint()
        self.away.pop(key, None)
        self.note("delete_offline", key)

    async def set_log_start(self, handle: int, offset: int) -> None:
        await trio.lowlevel.checkpoint()
        self.plane.logs[handle].begin_at(offset)

    def follow_level(self, _image: ClusterImage) -> None:
        """Nothing is written here."""

    async def forget_unclaimed(self, _image: ClusterImage) -> None:
        self.note("forget_unclaimed")

    async def make_room(self, _files: MemoryFiles, _handle: int, _size: int) -> None:
        await trio.lowlevel.checkpoint()

    async def wait_journal_room(self) -> None:
        await trio.lowlevel.checkpoint()

    async def retain(self, files: MemoryFiles, _handle: int, now_ms: int) -> int:
        """Nothing goes: there are no segments."""
        self.note("retain", files.key, now_ms)
        return 0

    async def purge_folders(self) -> None:
        self.note("purge_folders")

    async def checkpoint(self) -> bool:
        return True

    async def drain(self) -> bool:
        return True

    def on_given_up(self, callback: Callable[[TopicPartition, str], None]) -> None:
        self._tell_given_up = callback

    def on_epochs_begun(self, callback: Callable[[list[tuple[TopicPartition, LeaderEpoch]]], None]) -> None:
        self.tell_epochs = callback
