"""What many partitions have written, captured for a checkpoint in few jobs.

The first checkpoint behind the first writes of thousands of partitions makes index files for each. One by one that is
two files to be opened and two writes for each, all handed to workers of the ring; together it is two jobs of a helper
thread for a hundred partitions. The journal fills up meanwhile, so a checkpoint must not take long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.storage.ports import FileWrite
from tpc_broker.storage.recovery.side_by_side import for_each
from tpc_broker.storage.segments.files_life import FilesState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import TopicPartition
    from tpc_broker.storage.segments.files import OpenFile
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

CAPTURED_TOGETHER: Final = 128


class _Flush:
    """One partition, which is locked until the end."""

    __slots__ = ("_files", "_lengths", "_writes", "error", "storage")

    def __init__(self, storage: PartitionStorage) -> None:
        self.storage = storage
        storage.lock.acquire_nowait()
        self._writes, self._lengths = storage.folder.index_writes(storage.active, sealed=False)
        self._files: list[tuple[OpenFile, int]] = []
        self.error: OSError | None = None

    @property
    def paths(self) -> list[Path]:
        return [self.storage.folder.path / name for name, _data, _position in self._writes]

    def begin(self) -> list[FileWrite] | None:
        """None: a file could not be opened."""
        writes = []
        for name, data, position in self._writes:
            file = self.storage.folder.begin_write(name)
            if file is None:
                return None
            self._files.append((file, position))
            if data:
                writes.append(FileWrite(file.fd, data, position))
        return writes

    def captured(self) -> PartitionCheckpoint:
        """When all is written. StorageFailedError: it is not."""
        active = self.storage.active
        if self.error is not None:
            raise self.storage.failure(f"indexes of segment {active.base_offset}", self.error) from self.error
        active.flushed_bytes = self._lengths
        return self.storage.captured_now()

    def end(self) -> None:
        for file, position in self._files:
            self.storage.folder.end_write(file, position)
        self.storage.lock.release()


async def capture_together(storages: Sequence[PartitionStorage]) -> dict[TopicPartition, PartitionCheckpoint]:
    """`PartitionStorage.capture` of many. StorageFailedError: at least one has failed."""
    states: dict[TopicPartition, PartitionCheckpoint] = {}
    left: list[PartitionStorage] = []
    for first in range(0, len(storages), CAPTURED_TOGETHER):
        flushes: list[_Flush] = []
        try:
            for storage in storages[first : first + CAPTURED_TOGETHER]:
                storage.folder.disk.poll_ring()
                if storage.life.state is not FilesState.OPEN or storage.lock.locked():
                    left.append(storage)
                else:
                    flushes.append(_Flush(storage))
            written = await _write(flushes)
            left += [flush.storage for flush in flushes if flush not in written]
            states.update({flush.storage.key: flush.captured() for flush in written})
        finally:
            for flush in flushes:
                flush.end()

    async def capture(storage: PartitionStorage) -> None:
        states[storage.key] = await storage.capture()

    await for_each(left, capture)
    return states


async def _write(flushes: Sequence[_Flush]) -> list[_Flush]:
    """Those whose files could be opened; what came of the writes is their `error`."""
    if not flushes:
        return []
    files = flushes[0].storage.folder.files
    await files.open_many([path for flush in flushes for path in flush.paths])
    begun = [(flush, writes) for flush in flushes if (writes := flush.begin()) is not None]
    owners = [flush for flush, writes in begun for _write in writes]
    if owners:
        errors = await files.disk.write_many([write for _flush, writes in begun for write in writes])
        for flush, error in zip(owners, errors, strict=True):
            flush.error = flush.error or error
    return [flush for flush, _writes in begun]
