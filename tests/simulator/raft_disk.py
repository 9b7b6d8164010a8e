"""The disk under a simulated core: one journal for all groups, durable in order, that tears, stalls and fails.

What the journal has durable is a prefix of what was written. The write that was under way at a crash may be there all
the same, whole (its checksum covers it) or not at all; what was queued behind it never is. A write that *failed* may be
on the disk too, as a ghost: the journal goes on behind it, and what comes next has to undo it.

`Mirror` is the simulator's own record of a log, made from the journal's entries by code that shares nothing with the
machine's: what the machine believes is compared with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from tests.simulator.world import MS, Process, World
from tpc_broker.raft.items import START, GroupId, Item, Marker, Position, Voter
from tpc_broker.raft.journal import (
    AdoptEntry,
    AppendEntry,
    Checkpoint,
    CutEntry,
    JournalEntry,
    MarkerEntry,
    VoteEntry,
)

Numbered = tuple[int, JournalEntry]
Done = Callable[[list[Numbered] | None], None]


class Shipped(list[Item]):
    """What segments hold that travel, and up to where those were cleaned where they come from."""

    def __init__(self, items: list[Item], cleaned_upto: int) -> None:
        super().__init__(items)
        self.cleaned_upto = cleaned_upto


class Mirror:
    """Every item of one replica's log, those below its start included, and its term and vote."""

    def __init__(self, other: Mirror | None = None) -> None:
        self.items: list[Item] = list(other.items) if other else []
        self.cleaned_upto = other.cleaned_upto if other else 0
        """Below this offset the files have lost records by compaction; the log has not."""
        self.term = other.term if other else 0
        self.voted_for: Voter | None = other.voted_for if other else None

    def begin_named(self, first: Voter | None) -> None:
        """The record that made the group gives the vote of the first term: it is as durable as that."""
        if first is not None and self.term <= 1 and self.voted_for is None:
            self.term, self.voted_for = 1, first

    def apply(self, entry: JournalEntry, shipped: Callable[[Position], Shipped]) -> None:
        """Carries out one entry. `shipped` gives the items behind an AdoptEntry."""
        if isinstance(entry, MarkerEntry):
            self.items.append(entry.marker)
            if entry.marker.epoch > self.term:
                self.term, self.voted_for = entry.marker.epoch, None
        elif isinstance(entry, AppendEntry):
            self.items += entry.batches
        elif isinstance(entry, CutEntry):
            offset, epoch = entry.offset, entry.last_epoch_kept
            self.items = [item for item in self.items if not _goes(item, offset, epoch)]
        elif isinstance(entry, VoteEntry):
            self.term, self.voted_for = entry.term, entry.voted_for
        elif isinstance(entry, AdoptEntry):
            found = shipped(entry.position)
            self.items, self.cleaned_upto = list(found), found.cleaned_upto
            self.term, self.voted_for = entry.term, entry.voted_for

    @property
    def last(self) -> Position:
        return self.items[-1].position if self.items else START

    def index_of(self, position: Position) -> int:
        """Index of the item that ends at a position; -1 when there is none."""
        index = bisect_left(self.items, tuple(position))
        found = index < len(self.items) and self.items[index].position == position
        return index if found else -1

    def contains(self, position: Position) -> bool:
        return position == START or self.index_of(position) >= 0

    def upto(self, position: Position) -> list[Item]:
        return self.items[: self.index_of(position) + 1]

    def marker(self, epoch: int) -> Marker | None:
        index = bisect_left(self.items, (epoch,))
        item = self.items[index] if index < len(self.items) else None
        return item if isinstance(item, Marker) and item.epoch == epoch else None


def _goes(item: Item, offset: int, last_epoch_kept: int) -> bool:
    if isinstance(item, Marker):
        return item.epoch > last_epoch_kept
    return item.end_offset > offset


class Journal:
    """One core's journal. `entries` is what lies on the disk, under the life of the core that wrote it."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._random = world.stream(f"disk {name}")
        self.entries: list[tuple[int, int, JournalEntry]] = []
        self.checkpoints: dict[GroupId, Checkpoint] = {}
        self.life = 0
        self.durable_sequence = 0
        """Of this life."""
        self.delay_us_max = 2 * MS
        self.stalled_until_us = 0
        self.fails = False
        self.is_open = True
        self._queued: list[list[Numbered]] = []
        self._writing: list[Numbered] = []
        self._forgotten: dict[GroupId, int] = {}

    def write(self, entries: list[Numbered], process: Process, done: Done) -> None:
        """Writes behind what was written before. `done` gets what has become durable, or None: the write failed."""
        if entries and self.is_open:
            self._queued.append(entries)
            self._submit(process, done)

    def _submit(self, process: Process, done: Done) -> None:
        if self._writing or not self._queued or not self.is_open:
            return
        commits = 1 + int(self._random.random() * len(self._queued))
        self._writing = [entry for commit in self._queued[:commits] for entry in commit]
        del self._queued[:commits]
        when_us = self._world.now_us + 50 + int(self._random.random() * self.delay_us_max)
        process.call_at(max(when_us, self.stalled_until_us), lambda: self._written(process, done))

    def _written(self, process: Process, done: Done) -> None:
        written, self._writing = self._writing, []
        if self.fails:
            if self._random.random() < 0.5:
                self._put(written)
            self._queued.clear()
            self.is_open = False
            done(None)
            return
        self._put(written)
        self.durable_sequence = written[-1][0]
        done(written)
        self._submit(process, done)

    def _put(self, written: list[Numbered]) -> None:
        self.entries += [
            (self.life, sequence, entry) for sequence, entry in written
            if sequence > self._forgotten.get(entry.group, 0)
        ]  # fmt: skip

    def reopen(self) -> None:
        """The disk is well again."""
        self.fails, self.is_open = False, True

    def crash(self) -> None:
        """What was under way is there or not; what was queued is not. A new life follows."""
        if self._writing and self._random.random() < 0.5:
            self._put(self._writing)
        self._writing = []
        self._queued.clear()
        self.reopen()
        self.life += 1
        self.durable_sequence = 0
        self._forgotten.clear()

    def checkpoint(self, checkpoints: dict[GroupId, Checkpoint], life: int, upto_sequence: int) -> None:
        """Takes the place of the entries up to a sequence of a life, which are recycled, and of the one before."""
        self.checkpoints = dict(checkpoints)
        self.entries = [entry for entry in self.entries if entry[:2] > (life, upto_sequence)]

    def of_group(self, group: GroupId) -> list[JournalEntry]:
        """Entries of one group, in order."""
        return [entry for _life, _sequence, entry in self.entries if entry.group == group]

    def forget(self, group: GroupId, upto_sequence: int) -> None:
        """The replica's files are deleted, and what is still under way for it will not be believed."""
        self._forgotten[group] = upto_sequence
        self.checkpoints.pop(group, None)
        self.entries = [entry for entry in self.entries if entry[2].group != group]
