"""How full a core's journal becomes before its next checkpoint begins.

A checkpoint costs work for each partition that was written to, however little: with thousands of them every block of
the journal that is filled before it begins makes it cheaper for the rest. On the other hand the journal must not be
full before it ends. So where runs are short, the next one begins as late as the last ones allow: the longest of them,
by the blocks that were filled meanwhile, is left half as many again. Long runs gain nothing by it, and begin
at three eighths, which the journal knows by itself. So does everybody until there was a checkpoint, and while the
journal grows.

A disk that becomes slow from one checkpoint to the next takes clients' commits as long as its own syncs; what that does
not make up for, the journal's pauses do (`native/journal/journal.c`).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.storage.recovery.checkpoint import SYNCFS_PARTITIONS

if TYPE_CHECKING:
    from tpc_broker.storage.ports import JournalUse

SHORT_RUNS_BYTES_MAX: Final = 128 * limits.KIB
"""What each partition has got since the checkpoint before."""
REMEMBERED: Final = 3
LEFT_FACTOR: Final = 1.5
EARLIEST: Final = 3 / 8
LATEST: Final = 5 / 8


# Rule: A checkpoint of many short runs begins as late as the last ones allow by what they filled, and later only where
# the journal has its full length. Why: docs/decisions/2026-11-26-later-checkpoints.md. See also
# tpc_broker/storage/upkeep/checkpoint_schedule.py. Held by tests/storage/test_checkpoint_beginning.py,
# tests/storage/test_checkpoint_schedule.py, tests/engine/test_journal.py.
class CheckpointBeginning:
    """Of one core. What it knows is of its last checkpoints."""

    def __init__(self) -> None:
        self._filled = deque[int](maxlen=REMEMBERED)
        """Blocks of the journal while each of them was made."""

    def after(self, blocks_covered: int, partitions: int, use: JournalUse) -> int:
        """At how many blocks the next one begins; 0: as ever. `blocks_covered` were in use when the last one began, of
        so many partitions; what is in use now was filled since.
        """
        self._filled.append(use.blocks_used)
        is_short = blocks_covered * limits.BLOCK_BYTES < partitions * SHORT_RUNS_BYTES_MAX
        if partitions < SYNCFS_PARTITIONS or not is_short:
            return 0
        late = use.region_blocks - int(LEFT_FACTOR * max(self._filled))
        earliest = int(EARLIEST * use.region_blocks)
        return min(late, int(LATEST * use.region_blocks)) if late > earliest else 0
