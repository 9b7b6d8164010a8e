"""Where each leader epoch of a partition starts (KIP-101, KIP-320).

The entries answer OffsetForLeaderEpoch: where did the log written under an epoch end? The beginning of an epoch is an
item of the log, also when nothing was written under it: epochs rise strictly, start offsets weakly, and a cut says
which is the last epoch that stays. `forget_empty` drops those that nobody can ask for any more, or the list would grow
with every start.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from tpc_broker.log.files import EpochStart
from tpc_broker.model import NO_LEADER_EPOCH, LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable


NO_EPOCH_KEPT: Final = -1
"""Of a cut: the beginning of every epoch went, too."""


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
        while self._entries and self._entries[-1].start_offset > start_offset:
            self._entries.pop()
        self._entries.append(EpochStart(epoch, start_offset))
        return True

    def truncate_end(self, end_offset: Offset, last_epoch_kept: int = 0) -> None:
        """The log was cut at an offset, and behind the beginning of an epoch; NO_EPOCH_KEPT: of none; 0: behind every
        one that begins there or earlier (what journals of the first releases say).
        """
        if last_epoch_kept == NO_EPOCH_KEPT:
            self._entries.clear()
        while self._entries and (
            self._entries[-1].epoch > last_epoch_kept > 0
            or (last_epoch_kept <= 0 and self._entries[-1].start_offset > end_offset)
        ):
            self._entries.pop()

    def truncate_start(self, log_start_offset: Offset) -> None:
        """The log now starts at an offset: the epoch in force there begins there. Those that begin there stay."""
        before = [entry for entry in self._entries if entry.start_offset < log_start_offset]
        behind = self._entries[len(before) :]
        if before and not (behind and behind[0].start_offset == log_start_offset):
            behind.insert(0, EpochStart(before[-1].epoch, log_start_offset))
        self._entries = behind

    def forget_empty(self) -> None:
        """Drop epochs under which nothing was written, but for the last one: all of them are durable and can no longer
        be voted about.
        """
        pairs = itertools.pairwise(self._entries)
        kept = [entry for entry, behind in pairs if entry.start_offset < behind.start_offset]
        self._entries = kept + self._entries[-1:]

    def learn(self, entries: Iterable[EpochStart]) -> None:
        """Take in epochs that batches of the log are written under and no entry names."""
        known = {entry.epoch for entry in self._entries}
        more = [entry for entry in entries if entry.epoch not in known]
        merged = sorted([*self._entries, *more])
        if all(one.start_offset <= other.start_offset for one, other in itertools.pairwise(merged)):
            self._entries = merged

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
