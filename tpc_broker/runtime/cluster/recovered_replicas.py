"""What the machine of a replica is to know of what its core has recovered, or adopted: its log, terms and vote."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.cluster.raft_codec import decode_entry
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.raft.items import START, Marker, Position
from tpc_broker.raft.journal import Checkpoint, MarkerEntry, VoteEntry, replay
from tpc_broker.raft.log import LogImage

if TYPE_CHECKING:
    from tpc_broker.raft.items import Config
    from tpc_broker.storage.partition_storage import PartitionStorage


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
    return replay(Checkpoint(max(files.leader_epoch, 0), voted_for, hint, image), [], config)


def begins_of_group(checkpoint: Checkpoint) -> int:
    """Where the first term of a group begins behind records from before it had one: these travel in segments only."""
    image = checkpoint.log
    starts = image.markers[0].start_offset if image.markers else 0
    return starts if starts > image.log_start_offset else 0
