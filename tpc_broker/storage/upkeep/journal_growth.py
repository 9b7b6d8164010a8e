"""A core's journal growing with its use: an idle broker keeps a short one.

It becomes four times as long when an eighth of it is in use, which is when a checkpoint is made as well, and grows
as far as an entry needs that is too large for it; up to its bound, and only while the disk has much more left (where
that is not enough for four times the length, less, but not less than twice).
Its blocks are filled with zeros, some at a time and with rests, because clients' commits want the disk too. Meanwhile
checkpoints are made as ever: large batches are written in place only while they keep pace.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.recovery.checkpoint import EXTEND_BLOCKS
from tpc_broker.storage.uncontended_lock import UncontendedLock
from tpc_broker.storage.upkeep.journal_room import is_pressed

if TYPE_CHECKING:
    from tpc_broker.storage.ports import JournalUse, StoragePlane
    from tpc_broker.storage.recovery.checkpoint import JournalFile
    from tpc_broker.storage.upkeep.journal_room import JournalRoom
    from tpc_broker.storage.upkeep.segment_space import SegmentSpace

log = logging.getLogger(__name__)

FACTOR: Final = 4
PIECE_BLOCKS: Final = 2 * EXTEND_BLOCKS
"""Written at once. A step, which costs a sync, a superblock, and some turns of Python, has as many as there are blocks
already, or one piece when more is needed soon.
"""
REST_FACTOR: Final = 3
"""After a piece so many times as long as it took, unless the journal is half full or something waits for more of it."""
REST_S_MAX: Final = 0.5
RETRY_S: Final = 5.0
SPACE_FACTOR: Final = 4
"""The disk has so many times as much left as the journal takes."""


def wanted_blocks(use: JournalUse, blocks_left: int) -> int:
    """How many more there should be, of those `blocks_left` that the journal's bound allows."""
    is_filling = 10 * use.blocks_used >= use.region_blocks
    more = (FACTOR - 1) * use.region_blocks if is_filling else 0
    return max(0, min(max(more, use.blocks_wanted - use.region_blocks), blocks_left))


# Rule: A journal begins small and grows with its use. What has at most half its bound is never refused as too large,
# but waits. See also native/journal/journal_queue.c. Held by tests/engine/test_journal_growth.py.
class JournalGrowth:
    """Of one core. `room` is told when there are more blocks."""

    def __init__(
        self,
        journal_file: JournalFile,
        plane: StoragePlane,
        checkpointing: trio.Lock,
        space: SegmentSpace,
        room: JournalRoom,
    ) -> None:
        self._file = journal_file
        self._plane = plane
        self._checkpointing = checkpointing
        self._space = space
        self._room = room
        self._wanted = trio.Event()
        self._refused = False

    def wanted(self) -> None:
        """The journal says that it is filling up, or that something is too large for it."""
        self._wanted.set()

    async def run(self) -> None:
        """Grow whenever it is wanted, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._grow(self._plane.journal_use())
            if self._refused and self._plane.journal_use().blocks_wanted:
                await trio.sleep(RETRY_S)
                self._wanted.set()

    async def _grow(self, use: JournalUse) -> None:
        wanted = wanted_blocks(use, self._file.blocks_left)
        least = min(wanted, max(use.region_blocks, use.blocks_wanted - use.region_blocks))
        try:
            blocks = min(wanted, await self._space.bytes_left() // (SPACE_FACTOR * BLOCK_BYTES)) if wanted else 0
            if blocks < least:
                raise OSError("the disk has little space left")
            if blocks:
                async with self._file.growing(blocks):
                    await self._by_steps(blocks)
        except OSError as error:
            if not self._refused:
                log.warning("the journal cannot grow now: %s", error)
            self._refused = True
        else:
            self._refused = False

    async def _by_steps(self, blocks: int) -> None:
        rest_s = 0.0
        while blocks > 0:
            longest = max(PIECE_BLOCKS, self._plane.journal_use().region_blocks)
            more, rest_s = await self._write(min(blocks, longest), rest_s)
            if not more:
                return
            await self._file.sync()
            async with UncontendedLock(self._checkpointing):
                await self._file.add(more, self._plane)
            self._room.made()
            blocks -= more

    async def _write(self, blocks: int, rest_s: float) -> tuple[int, float]:
        """Piece by piece, each after a rest; how many, fewer where more is needed soon, and the next rest."""
        written = 0
        while written < blocks:
            await trio.sleep(rest_s)
            begun_s = trio.current_time()
            piece = await self._file.write_more(min(PIECE_BLOCKS, blocks - written), written)
            written += piece
            is_needed = self._is_needed_soon()
            rest_s = 0.0 if is_needed else min(REST_FACTOR * (trio.current_time() - begun_s), REST_S_MAX)
            if is_needed or not piece:
                break
        return written, rest_s

    def _is_needed_soon(self) -> bool:
        return is_pressed(self._plane) or self._plane.journal_use().blocks_wanted > 0
