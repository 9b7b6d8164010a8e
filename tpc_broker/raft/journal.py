"""What a core's journal holds of its groups, and what a replica is after a restart: checkpoint plus replay.

A core has one journal for all of its groups. Its entries have sequence numbers that rise by one; they become durable in
order, so durability is a prefix. The kinds below are those of the broker's journal: `VoteEntry` and `MarkerEntry`
are EPOCH (with offset -1 and >= 0), the others have their own names there.

Invariant (raft-rules 1): a term stands in the journal in front of every item and every cut that is made under it. Order
is what counts; the same commit will do. Without it, a follower that cuts under term 3, crashes, and is back in term
2 can be made to cut what it has shown by a late message of term 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.raft.items import START, Batch, GroupId, Marker, Position, Voter
from tpc_broker.raft.log import LogImage, ReplicaLog

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.raft.items import Config


class VoteEntry(NamedTuple):
    """EPOCH{offset -1}: this is my term, and whom I voted for in it."""

    group: GroupId
    term: int
    voted_for: Voter | None


class MarkerEntry(NamedTuple):
    """EPOCH{offset >= 0}: a term begins in the log; it raises the term as well."""

    group: GroupId
    marker: Marker


class AppendEntry(NamedTuple):
    """Batches of the last marker's epoch; all or none of them are in the journal after a crash."""

    group: GroupId
    batches: tuple[Batch, ...]


class TakenEntry(NamedTuple):
    """Batches up to `end_offset` that whoever carried the replica has put into the journal itself: the last of them is
    durable with `sequence` of that journal.
    """

    group: GroupId
    end_offset: int
    sequence: int


class CutEntry(NamedTuple):
    """Batches that end above `offset` and markers of epochs above `last_epoch_kept` are gone, and no others."""

    group: GroupId
    offset: int
    last_epoch_kept: int


class AdoptEntry(NamedTuple):
    """The log is what was shipped, up to `position`.

    That is committed, so `commit` is `position`; term and vote are the replica's own.
    """

    group: GroupId
    position: Position
    markers: tuple[Marker, ...]
    log_start_offset: int
    term: int
    voted_for: Voter | None
    commit: Position


class Checkpoint(NamedTuple):
    """What a checkpoint keeps of a group: everything that was durable at its place.

    commit_hint: the replica's own commit position, never a leader's word. The markers of the log's image carry the
    configuration of *every* term from the last committed one on: one configuration would not do, because its marker
    may be cut later, and the one below must then hold.
    """

    term: int
    voted_for: Voter | None
    commit_hint: Position
    log: LogImage


JournalEntry = VoteEntry | MarkerEntry | AppendEntry | TakenEntry | CutEntry | AdoptEntry

EMPTY_CHECKPOINT = Checkpoint(0, None, START, LogImage(START, 0, 0, (), ()))


class ReplayError(Exception):
    """A journal that cannot have been written by this code: the replica is damaged, and must not vote."""


def checkpoint_of(term: int, voted_for: Voter | None, commit: Position, log: ReplicaLog) -> Checkpoint:
    return Checkpoint(term, voted_for, commit, log.image())


def replay(
    checkpoint: Checkpoint,
    entries: Iterable[JournalEntry],
    creation_config: Config | None = None,
    cleaned_upto_offset: int = 0,
) -> Checkpoint:
    """What a replica has durable: its checkpoint, then the entries of its group behind it, in order.

    The commit hint is cut to what is there, and raised to what must have been committed: where the log starts (records
    below were deleted), what was compacted, what was adopted. Raises ReplayError for a batch without the marker of
    its epoch, a gap, or an epoch that falls.
    """
    log = ReplicaLog(creation_config)
    term, voted_for, commit, log_image = checkpoint
    log.load(log_image)
    for entry in entries:
        if isinstance(entry, VoteEntry):
            term, voted_for = entry.term, entry.voted_for
        elif isinstance(entry, MarkerEntry):
            _replay_marker(log, entry.marker)
            if entry.marker.epoch > term:
                term, voted_for = entry.marker.epoch, None
        elif isinstance(entry, AppendEntry):
            _replay_batches(log, entry.batches)
        elif isinstance(entry, CutEntry):
            log.cut(entry.offset, entry.last_epoch_kept)
        elif isinstance(entry, AdoptEntry):
            log.adopt(entry.position, entry.markers, entry.log_start_offset)
            term, voted_for, commit = entry.term, entry.voted_for, max(commit, entry.commit)
    committed_offset = max(log.log_start_offset, cleaned_upto_offset)
    commit = min(commit, log.last)
    if commit.offset < committed_offset:
        commit = log.position_at(committed_offset)
    return Checkpoint(term, voted_for, commit, log.image())


def _replay_marker(log: ReplicaLog, marker: Marker) -> None:
    if marker.epoch <= log.last.epoch or marker.start_offset != log.end_offset:
        raise ReplayError(f"marker of epoch {marker.epoch} at {marker.start_offset} behind {log.last}")
    log.append_marker(marker)


def _replay_batches(log: ReplicaLog, batches: tuple[Batch, ...]) -> None:
    first = batches[0]
    if first.epoch != log.last.epoch or first.base_offset != log.end_offset:
        raise ReplayError(f"batch of epoch {first.epoch} at {first.base_offset} behind {log.last}")
    log.append_batches(batches)
