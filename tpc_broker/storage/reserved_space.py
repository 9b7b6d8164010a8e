"""Disk space of one partition, taken before its records are admitted.

Before records for a partition are admitted to the journal, `reserve` takes disk space for them (fallocate beyond the
end of the file): what was admitted can then be written behind also on a full disk. Space for the time
after the next roll lies in a spare file, which the roll renames; a roll before the segment is full takes the reserved
space along.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from tpc_broker.log.files import SPARE_FILE
from tpc_broker.storage.files_life import Change
from tpc_broker.storage.segment_reader import SegmentReader
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    import trio

    from tpc_broker.storage.files_life import FilesLife
    from tpc_broker.storage.segments import Segment

RESERVE_STEP_BYTES: Final = 256 * 1024


class ReservedSpace(SegmentReader):
    """The part of `PartitionStorage` that takes space ahead."""

    life: FilesLife
    _lock: trio.Lock
    _spare_reserved_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """How much can certainly be written behind from here on, rolls included: they take the larger of both along."""
        in_active = max(self.active.reserved_end_position - self.active.size_bytes, 0)
        room = max(self.settings.segment_bytes - self.active.size_bytes, 0)
        return in_active if in_active < room else max(in_active, self._spare_reserved_bytes)

    async def reserve(self, ahead_bytes: int) -> None:
        """Make sure that so many bytes behind the written end can be written. OSError (ENOSPC): refuse the append.

        Space is taken in steps, so that most calls find enough. A file system without fallocate reserves nothing.
        """
        if self.reserved_bytes >= ahead_bytes:
            return
        async with UncontendedLock(self._lock):
            self.life.check(Change.RESERVE)
            wanted = -(-ahead_bytes // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES
            active = self.active
            room = max(self.settings.segment_bytes - active.size_bytes, 0)
            in_active = min(wanted, room)
            if active.reserved_end_position < active.size_bytes + in_active:
                await self._take_space(active.log_name, active.size_bytes, in_active)
                active.reserved_end_position = active.size_bytes + in_active
            if ahead_bytes > room and self._spare_reserved_bytes < wanted:
                await self._take_space(SPARE_FILE, 0, wanted)
                self._spare_reserved_bytes = wanted

    async def _take_space(self, name: str, position: int, length: int) -> None:
        if not length:
            return
        async with self.folder.use(name, create=True) as file:
            try:
                await self.folder.disk.fallocate(file.fd, position, length, keep_size=True)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                    raise

    async def _keep_reserved(self, segment: Segment, size: int) -> None:
        """What was admitted may not be written yet when a segment is rolled before it is full; its space moves on."""
        try:
            await self._take_space(segment.log_name, 0, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        else:
            segment.reserved_end_position = size
