"""Segments of a partition that another replica reads to become its like.

A shipment is a folder `shipping/CORE-NAME` with second names (hard links) of the files, made at one moment: retention
and deletion take the first names away, and the bytes stay until the shipment ends. Sealed segments never change; no
cleaned one takes the place of another while the links are made, so that log, indexes and seal of each are of one
version. Of the active one so much is shipped as was written then; what is committed of that is never cut. A start
removes all of them (`filled_folders`).
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker import limits
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.files import SEAL_SUFFIX, SNAPSHOT_SUFFIX, segment_file_name
from tpc_broker.storage.recovery.filled_folders import SHIPPING
from tpc_broker.storage.segments.folders import remove_folder
from tpc_broker.storage.segments.segments import SegmentFolder, make_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpc_broker.model import CoreId
    from tpc_broker.storage.segments.files import FileCache
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.segments.segments import Segment

log = logging.getLogger(__name__)

ATTEMPTS: Final = 5
"""Retention may take a file away while its links are made."""


class ShippedFile(NamedTuple):
    """`size_bytes`: as far as it is shipped."""

    name: str
    size_bytes: int


@dataclass(slots=True)
class Shipment:
    """`files`: logs first, by their offsets. `used_ms`: when it was last asked for, by a clock that never goes back."""

    name: str
    folder: SegmentFolder
    files: tuple[ShippedFile, ...]
    used_ms: int

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


# Rule: What another replica fetches stays until it has it, whatever retention does, and each segment is of one version.
# Held by tests/cluster/test_shipping.py, tests/storage/test_shipments_cleaned.py.
class Shipments:
    """Of one core."""

    def __init__(self, files: FileCache, data: Path, core: CoreId) -> None:
        self._files = files
        self._folder = data / SHIPPING
        self._core = core
        self._open: dict[str, Shipment] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def begin(self, storage: PartitionStorage, from_offset: int, upto: int, now_ms: int) -> Shipment:
        """Segments with the records [from_offset, upto), which are written. StorageFailedError: that cannot be now;
        OSError.
        """
        if len(self._open) >= limits.SHIPMENTS_MAX:
            raise StorageFailedError(f"{limits.SHIPMENTS_MAX} shipments are under way already")
        disk, name = self._files.disk, f"{self._core:04d}-{os.urandom(8).hex()}"
        path = self._folder / name
        await make_folder(disk, self._folder)
        for _attempt in range(ATTEMPTS):
            await disk.mkdir(path)
            try:
                async with storage.swaps_held():
                    files = await self._link(storage, path, from_offset, upto)
            except FileNotFoundError:
                await remove_folder(disk, path)
                continue
            except OSError:
                await remove_folder(disk, path)
                raise
            shipment = self._open[name] = Shipment(name, SegmentFolder(self._files, path), tuple(files), now_ms)
            return shipment
        raise StorageFailedError("its segments go faster than they can be kept")

    async def _link(
        self, storage: PartitionStorage, path: Path, from_offset: int, upto: int
    ) -> list[ShippedFile]:
        disk, active = self._files.disk, storage.active
        chosen = [
            (segment, segment.size_bytes) for segment in storage.segments
            if segment.base_offset < upto and storage.end_of(segment) > from_offset
        ]  # fmt: skip
        logs, others = [], []
        for segment, size_bytes in chosen:
            await disk.link(storage.folder.path / segment.log_name, path / segment.log_name)
            logs.append(ShippedFile(segment.log_name, size_bytes))
            for name in _others(segment, is_sealed=segment is not active):
                try:
                    await disk.link(storage.folder.path / name, path / name)
                except FileNotFoundError:
                    if segment.seal is not None and name.endswith(SEAL_SUFFIX):
                        raise  # without it nobody would know that its gaps are right
                    continue
                others.append(ShippedFile(name, (await disk.stat(path / name)).size_bytes))
        return logs + others

    def get(self, name: str, now_ms: int) -> Shipment | None:
        """One that is under way; it is in use."""
        shipment = self._open.get(name)
        if shipment is not None:
            shipment.used_ms = now_ms
        return shipment

    async def read(
        self, shipment: Shipment, name: str, position: int, length: int, buffer: memoryview
    ) -> memoryview:
        """Bytes of one of its files: see `SegmentFolder.read_direct`."""
        return await shipment.folder.read_direct(name, position, length, buffer)

    async def end(self, name: str) -> None:
        """Nobody wants it any more; again: nothing happens. A folder that cannot be removed stays until the next
        start.
        """
        shipment = self._open.pop(name, None)
        if shipment is None:
            return
        try:
            await shipment.folder.close()
            await remove_folder(self._files.disk, shipment.folder.path)
        except OSError as error:
            log.warning("shipment %s: its folder stays until the next start: %s", name, error)

    async def end_unused(self, before_ms: int) -> None:
        """Those that nobody has asked for since then."""
        for shipment in [each for each in self._open.values() if each.used_ms < before_ms]:
            log.info("shipment %s was given up: nobody reads it", shipment.name)
            await self.end(shipment.name)


def _others(segment: Segment, *, is_sealed: bool) -> Sequence[str]:
    """Files beside a log that are what they should be: of the active one only the producers in front of it."""
    return segment.file_names[1:] if is_sealed else [segment_file_name(segment.base_offset, SNAPSHOT_SUFFIX)]
