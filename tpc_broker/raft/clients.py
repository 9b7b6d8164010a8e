"""What a replica may tell a Kafka client: offsets, epochs, where a Fetch stands, whether acks=all is taken (rules 7).

Questions to one replica, answered from its state at this moment; nothing changes. They are asked in the turn in which
the answer is made: after an await the replica may be another's follower.

A new leader knows what is committed only when its own marker is (7.1): before, its high watermark may lie below what
the old one has shown. A replica that nobody follows any more must not tell a client that an offset does not exist
(7.2): the client would begin anew somewhere else, and pass over records that the true leader has.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpc_broker.raft.group import Group
    from tpc_broker.raft.items import Position


class Unknown(Enum):
    """Why there is no answer. The names are Kafka's error codes."""

    NOT_LEADER_OR_FOLLOWER = "the leader knows"
    OFFSET_NOT_AVAILABLE = "not known yet, or not known here: ask again"


class FetchPlace(Enum):
    """Where a Fetch from an offset stands."""

    READ = "records below the high watermark"
    WAIT = "nothing to be shown yet"
    OFFSET_NOT_AVAILABLE = "perhaps there, but not known here"
    OFFSET_OUT_OF_RANGE = "certainly not there"


def latest_offset(group: Group) -> int | Unknown:
    """ListOffsets LATEST: the high watermark, from a leader whose marker is committed."""
    if not group.is_leader:
        return Unknown.NOT_LEADER_OR_FOLLOWER
    return group.high_watermark if group.is_ready else Unknown.OFFSET_NOT_AVAILABLE


def end_of_epoch(group: Group, epoch: int) -> Position | Unknown:
    """OffsetForLeaderEpoch: the largest epoch up to this one, and where it ends; (0, log start) without any."""
    if not group.is_leader:
        return Unknown.NOT_LEADER_OR_FOLLOWER
    if epoch >= group.term and not group.is_ready:
        return Unknown.OFFSET_NOT_AVAILABLE
    return group.log.largest_end_upto(epoch)


def place_of_fetch(group: Group, offset: int, now_ms: int) -> FetchPlace:
    """Where a Fetch at any replica stands. Only a leader that hears a quorum says that an offset is not there."""
    log = group.log
    if log.log_start_offset <= offset <= log.end_offset:
        return FetchPlace.READ if offset < group.high_watermark else FetchPlace.WAIT
    if group.is_leader and group.hears_quorum(now_ms):
        return FetchPlace.OFFSET_OUT_OF_RANGE
    return FetchPlace.OFFSET_NOT_AVAILABLE


def has_enough_replicas(group: Group, min_insync_replicas: int, now_ms: int) -> bool:
    """Whether a leader takes a Produce with acks=all (7.5): else NOT_ENOUGH_REPLICAS. What commits is another matter.

    Counted are voters whose links are fresh, the leader among them.
    """
    config = group.config
    assert config is not None
    return sum(group.is_heard(voter, now_ms) for voter in config.voters) >= min_insync_replicas


def min_insync_replicas_max(replication_factor: int) -> int:
    """The largest `min.insync.replicas` that a topic may have: a majority, for there is no second commit rule (7.5)."""
    return replication_factor // 2 + 1
