"""Room in a core's journal: waited for by requests that found none, made by checkpoints and by the journal's growth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from tpc_broker.storage.upkeep.refusals import Refusals

if TYPE_CHECKING:
    from tpc_broker.storage.ports import StoragePlane
    from tpc_broker.storage.recovery.checkpoint import Checkpointer

WAIT_S = 0.1
PATIENCE_S = 2.0


def is_pressed(plane: StoragePlane) -> bool:
    """Whether what holds the journal's space back holds up others soon."""
    use = plane.journal_use()
    return 2 * use.blocks_used >= use.region_blocks


def is_lacking(plane: StoragePlane) -> bool:
    """Whether what holds the journal's space back has to give way: of what is left when a checkpoint is wanted half is
    filled, or something has found no place already. That it is pressed is no reason: with nothing wrong it is that
    most of the time where checkpoints begin late (`checkpoint_beginning`).
    """
    use = plane.journal_use()
    is_filling = 2 * use.blocks_used >= use.region_blocks + use.checkpoint_at
    return is_filling or (use.is_refused and is_pressed(plane))


class JournalRoom:
    """Of one core."""

    def __init__(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self._made = trio.Event()
        self._full = Refusals("the journal is full", patience_s=PATIENCE_S)

    async def wait(self) -> None:
        """Until there is more, or for a short while (there are other reasons to wait)."""
        with trio.move_on_after(WAIT_S) as waiting:
            await self._made.wait()
        if waiting.cancelled_caught:
            self._full.refused(self._checkpointer.statistics().held_back_by or "the checkpoint takes long")

    def made(self) -> None:
        """There is more."""
        self._made.set()
        self._made = trio.Event()
        self._full.succeeded()
