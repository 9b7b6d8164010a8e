"""Disk space of one partition, taken before its records are admitted.

Before records for a partition are admitted to the journal, `reserve` takes disk space for them (fallocate beyond the
end of the file): what was admitted can then be written behind also on a full disk. Space for the time
after the next roll lies in a spare file, which the roll renames; a roll before the segment is full takes the reserved
space along.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.log.files import SPARE_FILE
from tpc_broker.storage.ports import FileSpace
from tpc_broker.storage.segments.files_life import Change, FilesState
from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from tpc_broker.storage.segments.files import OpenFile
    from tpc_broker.storage.segments.segment_log import SegmentLog
    from tpc_broker.storage.segments.segments import Segment

RESERVE_STEP_BYTES: Final = 256 * 1024
_NO_FALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})
"""Of a file system that reserves nothing."""


@dataclass(slots=True)
class SpaceBegun:
    """Space of one partition between the two steps."""

    file: OpenFile
    space: FileSpace


class ReservedSpace:
    """See the module."""

    __slots__ = ("_log",)

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    @property
    def bytes_ahead(self) -> int:
        """How much can certainly be written behind from here on, rolls included: they take the larger of both along."""
        active = self._log.active
        in_active = max(active.reserved_end_position - active.size_bytes, 0)
        room = max(self._log.settings.segment_bytes - active.size_bytes, 0)
        return in_active if in_active < room else max(in_active, self._log.spare_bytes)

    async def reserve(self, ahead_bytes: int) -> None:
        """Make sure that so many bytes behind the written end can be written. OSError (ENOSPC): refuse the append.

        Space is taken in steps, so that most calls find enough. A file system without fallocate reserves nothing.
        """
        if self.bytes_ahead >= ahead_bytes:
            return
        async with UncontendedLock(self._log.lock):
            self._log.life.check(Change.RESERVE)
            wanted = -(-ahead_bytes // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES
            active = self._log.active
            room = max(self._log.settings.segment_bytes - active.size_bytes, 0)
            in_active = min(wanted, room)
            if active.reserved_end_position < active.size_bytes + in_active:
                await self._take(active.log_name, active.size_bytes, in_active)
                active.reserved_end_position = active.size_bytes + in_active
            if ahead_bytes > room and self._log.spare_bytes < wanted:
                await self._take(SPARE_FILE, 0, wanted)
                self._log.spare_bytes = wanted

    def begin_reserve(self, ahead_bytes: int) -> SpaceBegun | None:
        """The same in two steps, so that one job can do it for many: the partition is locked until `end_reserve`.

        None: nothing is wanted, or `reserve` has to do it (a file that is not open, a lock that is held, a roll).
        """
        if self.bytes_ahead >= ahead_bytes or self._log.life.state is not FilesState.OPEN:
            return None
        active = self._log.active
        wanted = -(-ahead_bytes // RESERVE_STEP_BYTES) * RESERVE_STEP_BYTES
        if wanted > self._log.settings.segment_bytes - active.size_bytes:
            return None
        try:
            self._log.lock.acquire_nowait()
        except trio.WouldBlock:
            return None
        file = self._log.folder.begin_write(active.log_name)
        if file is None:
            self._log.lock.release()
            return None
        return SpaceBegun(file, FileSpace(file.fd, active.size_bytes, wanted))

    def end_reserve(self, begun: SpaceBegun, error: OSError | None) -> bool:
        """It was taken, or not: then nothing has changed. Whether it was."""
        self._log.folder.files.end_use_nowait(begun.file)
        is_taken = error is None or error.errno in _NO_FALLOCATE
        if is_taken:
            self._log.active.reserved_end_position = begun.space.position + begun.space.length
        self._log.lock.release()
        return is_taken

    async def move_to(self, segment: Segment, size: int) -> None:
        """A roll: space for what was admitted goes on to the new segment, the spare file or as much as was left."""
        if self._log.spare_bytes > size:
            await self._log.folder.rename(SPARE_FILE, segment.log_name)
            segment.reserved_end_position, self._log.spare_bytes = self._log.spare_bytes, 0
            return
        try:
            await self._take(segment.log_name, 0, size)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        else:
            segment.reserved_end_position = size

    async def _take(self, name: str, position: int, length: int) -> None:
        if not length:
            return
        folder = self._log.folder
        async with folder.use(name, create=True) as file:
            try:
                await folder.disk.fallocate(file.fd, position, length, keep_size=True)
            except OSError as error:
                if error.errno not in _NO_FALLOCATE:
                    raise
