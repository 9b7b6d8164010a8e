"""What to do with each partition after a crash: a plan made of the checkpoint, the files that are there, and the
journal.

Theory of operation
-------------------
Segments are written behind, without any sync between checkpoints. So after a crash only that part of a partition's
files is believed which the last checkpoint names; everything that was acknowledged since is in the journal behind the
replay position. Recovery of one partition is therefore

1. *reset*: segments behind the checkpointed one go, that one is cut at its checkpointed position, or behind the last
   batch that the journal says was written in place into the segment (always the checkpointed one);
2. *cut*: when the journal says that the log was cut below its checkpointed end, the segments are cut there too;
3. *append*, in the journal's order, what lies at or behind the end, from the journal; batches written in place are
   checked where they lie, each of their bytes: one that is not there is damage, because its entry was written after it;
4. take over leader epochs, vote, and log start.

The plan says all this without touching anything. Carrying it out twice, or again from the beginning after it was killed
half-way, gives the same files, because each time the reset comes first and the checkpoint is written last.

Why an older entry does no harm: the state of a partition is captured for a checkpoint after the replay position was
chosen, so entries between the two are in both. An append that ends at or below the end is skipped. A cut below the end
removes what later entries of the journal append again. An epoch that is not above the last one is known already. An
append that begins behind the end can be older too: then the log was longer once, and a cut at or below the end follows.
Only when none follows is the gap a loss.

A partition that was moved to another core is not touched, and one that came from there begins with what came over
(`log.lives`).

Damage stays where it is. A partition whose files are shorter than their checkpoint, whose folder carries another
topic's id, or whose journal entries leave a gap is taken offline with a message; the others open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.log.checkpoint import NO_VOTE, VOTE_NOTE, CheckpointError, PartitionCheckpoint
from tpc_broker.log.epochs import LeaderEpochs
from tpc_broker.log.files import partition_folder_name
from tpc_broker.log.journal import EntryKind
from tpc_broker.log.lives import last_life
from tpc_broker.model import LeaderEpoch, Offset, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tpc_broker.log.files import EpochStart
    from tpc_broker.log.journal import JournalEntry

FOLDER_MISSING: Final = "its folder is missing"


class SegmentFile(NamedTuple):
    """A `.log` file that is there."""

    base_offset: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """A partition's folder as it was found. `problem`: its `partition.metadata` is missing or wrong, so that only its
    name says whose it is.
    """

    topic: str
    partition: TopicPartition
    segments: tuple[SegmentFile, ...] = ()
    """By base offset, rising."""
    problem: str | None = None


class PlannedAppend(NamedTuple):
    """Write the batches of a run of the journal's appends whose base offset is in [from_offset, upto_offset)."""

    run_number: int
    from_offset: int
    upto_offset: int
    in_place: JournalEntry | None = None
    """Not to be written: it is one batch that the segment holds already, and that has to be checked."""


@dataclass(slots=True)
class PartitionPlan:
    """What recovery does with one partition; see the module's theory for the order.

    `offline` says why nothing is done; then the partition's files and its checkpoint stay as they are. `deleted`: the
    journal says that the partition was deleted, so its folder goes. `log_end_offset` is the end after recovery.
    """

    start: PartitionCheckpoint
    in_checkpoint: bool
    log_start_offset: int
    log_end_offset: int
    leader_epoch: int
    voted_for: int
    epochs: tuple[EpochStart, ...] = ()
    notes: dict[int, bytes] = field(default_factory=dict)
    cut_offset: int | None = None
    appends: list[PlannedAppend] = field(default_factory=list)
    deleted: bool = False
    offline: str | None = None
    trimmed_bytes: int = 0
    """Bytes in the segments behind the checkpointed position, which come from the journal instead (or not at all)."""

    @property
    def key(self) -> TopicPartition:
        return self.start.key

    @property
    def is_released(self) -> bool:
        """It is another core's, or on its way there: nothing is done, and later checkpoints say what `start` says."""
        return self.start.released is not None

    @property
    def in_place_writes(self) -> list[JournalEntry]:
        """Batches that the active segment holds behind its checkpointed position."""
        return [append.in_place for append in self.appends if append.in_place is not None]

    @property
    def label(self) -> str:
        """For messages: `topic-partition`."""
        return partition_folder_name(self.start.topic, self.start.partition)


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Plans by partition, and what belongs to no partition that is there (for the log)."""

    partitions: dict[TopicPartition, PartitionPlan]
    remarks: tuple[str, ...]


class _Replay:
    """Runs a partition's journal entries over the state that its checkpoint gives."""

    def __init__(self, start: PartitionCheckpoint) -> None:
        self.start = start
        self.end: int = start.log_end_offset
        self.log_start: int = start.log_start_offset
        self.cut: int | None = None
        self.appends: list[PlannedAppend] = []
        self.epochs = LeaderEpochs(start.epochs)
        self.notes = dict(start.notes)
        self.leader_epoch: int = start.leader_epoch
        self.voted_for = start.voted_for
        self.deleted = False
        self.problem: str | None = None
        self.records_known = False

    def take(self, entry: JournalEntry) -> None:
        if self.deleted or (self.start.released is not None and entry.kind != EntryKind.PARTITION_DELETED):
            return
        self.records_known |= entry.kind in (EntryKind.APPEND, EntryKind.CUT, EntryKind.IN_PLACE)
        if entry.kind in (EntryKind.APPEND, EntryKind.IN_PLACE):
            self._append(entry)
        elif entry.kind == EntryKind.CUT:
            self._cut(entry.offset, entry.argument)
        elif entry.kind == EntryKind.EPOCH:
            self._epoch(entry)
        elif entry.kind == EntryKind.LOG_START:
            self.log_start = max(self.log_start, entry.offset)
        elif entry.kind == EntryKind.PARTITION_DELETED:
            self.deleted = True

    def _append(self, entry: JournalEntry) -> None:
        if entry.argument <= self.end or self.problem is not None:
            return
        if entry.offset > self.end:
            self.problem = (
                f"its log ends at offset {self.end}, and the journal (commit {entry.sequence}) goes on at "
                f"offset {entry.offset}"
            )
            return
        in_place = entry if entry.kind == EntryKind.IN_PLACE else None
        if in_place is not None and (entry.offset < self.end or self.cut is not None):
            self.problem = f"commit {entry.sequence} has an in-place batch at offset {entry.offset}, out of order"
            return
        self.appends.append(PlannedAppend(entry.number, self.end, entry.argument, in_place))
        self.end = entry.argument

    def _cut(self, offset: int, last_epoch_kept: int) -> None:
        if offset > self.end:
            return
        self.problem = None
        self.end = offset
        self.epochs.truncate_end(Offset(offset), last_epoch_kept)
        if last_epoch_kept:
            self.notes = {term: note for term, note in self.notes.items() if term <= last_epoch_kept}
        while self.appends and self.appends[-1].from_offset >= offset:
            self.appends.pop()
        if self.appends:
            self.appends[-1] = self.appends[-1]._replace(upto_offset=min(self.appends[-1].upto_offset, offset))
        elif offset < self.start.log_end_offset:
            self.cut = offset if self.cut is None else min(self.cut, offset)

    def _epoch(self, entry: JournalEntry) -> None:
        if entry.argument > self.leader_epoch:
            self.leader_epoch = entry.argument
            self.voted_for = NO_VOTE
            self.notes.pop(VOTE_NOTE, None)
        if entry.argument == self.leader_epoch and entry.voted_for is not None:
            self.voted_for = entry.voted_for
        if entry.offset >= 0:
            self.epochs.assign(LeaderEpoch(entry.argument), Offset(entry.offset))
        if entry.note is not None and (entry.offset >= 0 or entry.argument == self.leader_epoch):
            self.notes[entry.argument if entry.offset >= 0 else VOTE_NOTE] = entry.note


def plan_partition(
    folder: PartitionFolder | None,
    checkpoint: PartitionCheckpoint | None,
    topic: str,
    key: TopicPartition,
    entries: Iterable[JournalEntry],
) -> PartitionPlan:
    """The plan for one partition. `folder` None: there is none with this topic id."""
    unreadable = None
    try:
        checkpoint, entries = last_life(checkpoint, entries)
    except CheckpointError as error:
        unreadable = f"it was moved between cores, and what went over cannot be read ({error})"
    start = checkpoint or PartitionCheckpoint(key.topic_id, key.partition, topic)
    replay = _Replay(start)
    for entry in entries:
        replay.take(entry)
    if start.released is not None:
        folder = None  # it is another core's to judge
    segments = folder.segments if folder else ()
    problem = unreadable or replay.problem or (folder.problem if folder else None)
    if problem is None and not replay.deleted and start.released is None:
        problem = _files_problem(replay, segments, checkpoint)
    if replay.log_start > replay.end and problem is None:
        problem = f"its log ends at offset {replay.end}, below its start at {replay.log_start}"
    if problem is None:
        replay.epochs.truncate_start(Offset(replay.log_start))
    return PartitionPlan(
        start,
        checkpoint is not None,
        replay.log_start,
        replay.end,
        replay.leader_epoch,
        replay.voted_for,
        replay.epochs.entries,
        replay.notes,
        replay.cut,
        replay.appends,
        replay.deleted,
        problem,
        _surplus_bytes(start, segments),
    )


def _surplus_bytes(start: PartitionCheckpoint, segments: Sequence[SegmentFile]) -> int:
    """Bytes that the reset removes."""
    return sum(
        segment.size_bytes - (start.segment_position if segment.base_offset == start.segment_base else 0)
        for segment in segments
        if segment.base_offset >= start.segment_base
    )


def _files_problem(
    replay: _Replay, segments: Sequence[SegmentFile], checkpoint: PartitionCheckpoint | None
) -> str | None:
    """Why the files cannot be what the checkpoint and the journal say (None: they can)."""
    start = replay.start
    sizes = {segment.base_offset: segment.size_bytes for segment in segments}
    if checkpoint is None:
        if not replay.records_known and any(sizes.values()):
            return "its segments hold records that neither the checkpoint nor the journal knows of"
        return None
    held_end = start.log_end_offset if replay.cut is None else replay.cut
    oldest = min((base for base in sizes if base <= start.segment_base), default=held_end)
    if replay.log_start < min(oldest, held_end):
        return f"the records [{replay.log_start}, {oldest}) are missing: no segment holds them"
    if replay.cut is not None or replay.log_start >= start.log_end_offset:
        return None
    held = sizes.get(start.segment_base)
    if held is None and start.segment_position:
        return f"its segment {start.segment_base} is missing, {start.segment_position} bytes of it were durable"
    if held is not None and held < start.segment_position:
        return f"its segment {start.segment_base} has {held} bytes, {start.segment_position} were durable"
    return None


def plan_recovery(
    folders: Mapping[TopicPartition, PartitionFolder],
    checkpoints: Mapping[TopicPartition, PartitionCheckpoint],
    entries: Iterable[JournalEntry],
    *,
    elsewhere: frozenset[TopicPartition] = frozenset(),
) -> RecoveryPlan:
    """Plans for all partitions that one core's checkpoint or journal names.

    `folders` are all partition folders of the data folder, those of other cores among them; the ones that nothing here
    names are left alone. `elsewhere` are partitions that another core's checkpoint holds.
    """
    by_partition: dict[TopicPartition, list[JournalEntry]] = {key: [] for key in checkpoints}
    remarks = []
    for entry in entries:
        by_partition.setdefault(entry.partition, []).append(entry)
    plans = {}
    for key, own in by_partition.items():
        folder, checkpoint = folders.get(key), checkpoints.get(key)
        if key in elsewhere and checkpoint is None:
            continue
        topic = folder.topic if folder else checkpoint.topic if checkpoint else str(key.topic_id)
        plan = plan_partition(folder, checkpoint, topic, key, own)
        if folder is None and not plan.deleted and not plan.is_released:
            if not plan.in_checkpoint and not plan.appends:
                continue
            if plan.offline is None and (plan.appends or plan.log_end_offset > plan.log_start_offset):
                plan.offline = FOLDER_MISSING
            if not plan.in_checkpoint:
                remarks.append(f"{plan.label}: {plan.offline}; journal entries up to offset {plan.log_end_offset}")
        plans[key] = plan
    return RecoveryPlan(plans, tuple(remarks))
