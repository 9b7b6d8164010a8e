"""Where each leader epoch of a partition starts (KIP-101, KIP-320).

The entries answer OffsetForLeaderEpoch: where did the log written under an epoch end? An epoch under which nothing was
written is forgotten when the next one begins at the same offset, so the list grows with the epochs that hold records.
Epochs and start offsets both rise strictly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.log.files import EpochStart
from tpc_broker.model import NO_LEADER_EPOCH, LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable


class LeaderEpochs:
    """The epochs of one log. Mutations keep the order; a lower epoch than the last is ignored as already known."""

    def __init__(self, entries: Iterable[EpochStart] = ()) -> None:
        self._entries: list[EpochStart] = []
        for entry in entries:
            self.assign(entry.epoch, entry.start_offset)

    @property
    def entries(self) -> tuple[EpochStart, ...]:
        return tuple(self._entries)

    @property
    def latest(self) -> LeaderEpoch:
        return self._entries[-1].epoch if self._entries else NO_LEADER_EPOCH

    def assign(self, epoch: LeaderEpoch, start_offset: Offset) -> bool:
        """An epoch begins at an offset. True when the list changed."""
        if epoch < 0 or epoch <= self.latest:
            return False
        while self._entries and self._entries[-1].start_offset >= start_offset:
            self._entries.pop()
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def truncate_end(self, end_offset: Offset) -> None:
        """The log now ends at an offset: epochs that would begin at or behind it are gone."""
        while self._entries and self._entries[-1].start_offset >= end_offset:
            self._entries.pop()

    def truncate_start(self, log_start_offset: Offset) -> None:
        """The log now starts at an offset: the epoch in force there begins there."""
        covering = [entry for entry in self._entries if entry.start_offset <= log_start_offset]
        if covering:
            behind = self._entries[len(covering) :]
            self._entries = [EpochStart(covering[-1].epoch, log_start_offset), *behind]

    def end_offset_for(self, epoch: LeaderEpoch, log_end_offset: Offset) -> tuple[LeaderEpoch, Offset]:
        """The largest known epoch not above the one asked for, and the offset where it ended; (-1, -1) for none.

        For the latest epoch the end is the log's end.
        """
        if not self._entries or epoch < 0 or epoch > self.latest:
            return NO_LEADER_EPOCH, Offset(-1)
        if epoch == self.latest:
            return epoch, log_end_offset
        behind = [entry for entry in self._entries if entry.epoch > epoch]
        before = [entry for entry in self._entries if entry.epoch <= epoch]
        if not before:
            return epoch, behind[0].start_offset
        return before[-1].epoch, behind[0].start_offset
