"""What the machine of a replica is to know of what its core has recovered, or adopted: its log, terms and vote, and
below which offset segments have gaps, now and whenever some were cleaned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.cluster.raft_codec import decode_entry
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.raft.items import START, Marker, Position
from tpc_broker.raft.journal import Checkpoint, MarkerEntry, VoteEntry, replay
from tpc_broker.raft.log import LogImage

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Config
    from tpc_broker.storage.segments.partition_storage import PartitionStorage


def checkpoint_of(group: str, files: PartitionStorage, config: Config | None) -> Checkpoint:
    """What the machine is to know of a replica that was recovered: all of its log is in files."""
    markers: list[Marker] = []
    voted_for = None
    for epoch, start_offset in files.epochs.entries:
        if not markers and epoch not in files.notes:
            continue  # from before it had a group
        entry = decode_entry(group, files.notes[epoch]).entry
        assert isinstance(entry, MarkerEntry), entry
        markers.append(Marker(epoch, start_offset, entry.marker.config))
    if VOTE_NOTE in files.notes:
        vote = decode_entry(group, files.notes[VOTE_NOTE]).entry
        assert isinstance(vote, VoteEntry), vote
        voted_for = vote.voted_for
    end_offset = files.written_end_offset
    last = Position(markers[-1].epoch, end_offset) if markers else START
    image = LogImage(last, files.log_start_offset, end_offset, tuple(markers), ())
    committed = min(files.checkpointed.committed_end_offset, end_offset)
    below = [marker for marker in markers if marker.start_offset < committed]
    hint = Position(below[-1].epoch, committed) if below else START
    cleaned_upto = min(files.cleaned.end_offset, end_offset)
    if not markers or cleaned_upto <= markers[0].start_offset:
        cleaned_upto = 0  # the group does not vouch for what it began behind
    return replay(Checkpoint(max(files.leader_epoch, 0), voted_for, hint, image), [], config, cleaned_upto)


def begins_of_group(checkpoint: Checkpoint) -> int:
    """Where the first term of a group begins behind records from before it had one: these travel in segments only."""
    image = checkpoint.log
    starts = image.markers[0].start_offset if image.markers else 0
    return starts if starts > image.log_start_offset else 0


# Rule: Nothing is sent as items from below what was cleaned, and what was cleaned is committed, at a start too: a
# follower would take a batch without its dead records for all of it. The machine is told in the step in which readers
# begin to see cleaned segments. See also tpc_broker/raft/leaders.py (compacted), native/replication/steady_lag.c. Held
# by tests/node/test_cleaned_replicas.py, tests/raft/test_learners.py.
def follow_cleaning(
    core: RaftCore, machine: Group, files: PartitionStorage, checkpoint: Checkpoint, wake: Callable[[], None]
) -> None:
    """Tell a machine below which offset its replica's segments have gaps, now and after each cleaning."""

    def cleaned() -> None:
        if core.groups.get(machine.group) is machine:
            core.compacted(machine.group, files.cleaned.end_offset)
            wake()

    machine.contiguous_from_offset = max(begins_of_group(checkpoint), files.cleaned.end_offset)
    files.on_cleaned = cleaned
