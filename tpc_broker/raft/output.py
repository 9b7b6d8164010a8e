"""What a turn gives the driver: entries for the journal, frames for the links, events for everybody else."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tpc_broker.raft.items import Config, GroupId, Position, Voter
    from tpc_broker.raft.journal import JournalEntry
    from tpc_broker.raft.links import LinkStatistics
    from tpc_broker.raft.messages import Frame, Message


class Role(Enum):
    """A learner is a follower that its own log's configuration does not name."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


# For where an election passes: in Python 3.11 `Role.LEADER` costs three calls.
FOLLOWER: Final = Role.FOLLOWER
PRE_CANDIDATE: Final = Role.PRE_CANDIDATE
CANDIDATE: Final = Role.CANDIDATE
LEADER: Final = Role.LEADER


class RoleChanged(NamedTuple):
    """Role, term or known leader are new. Waits of acks=all end when LEADER ends; see `LogCut` for the exception."""

    group: GroupId
    role: Role
    term: int
    leader: Voter | None


class LeaderReady(NamedTuple):
    """The own term's marker is committed: clients may know the epoch and list offsets (raft-rules 7.1, 7.7)."""

    group: GroupId
    term: int
    start_offset: int


class HandOverBegun(NamedTuple):
    """A leader takes no more proposals until another one leads, or the hand-over is given up: what is appended in spite
    of that would be cut. `RaftCore.group(group).refuses()` says when it takes some again.
    """

    group: GroupId


class Committed(NamedTuple):
    """The high watermark is `position.offset`; waits at or below `position` are over."""

    group: GroupId
    position: Position


class LogCut(NamedTuple):
    """What was behind `position` is gone from the log: files are cut before anything is written there again."""

    group: GroupId
    position: Position


class ReadItems(NamedTuple):
    """`target` needs batches that are in files only: read some behind `prev`, at most so many bytes, call
    `items_read`.
    """

    group: GroupId
    target: Voter
    prev: Position
    bytes_max: int


class ShipSegments(NamedTuple):
    """`target` is behind what is in memory: ship everything up to `position`, then call `shipped`."""

    group: GroupId
    target: Voter
    position: Position


class Adopted(NamedTuple):
    """What was shipped has become the log; the AdoptEntry is in this turn's entries."""

    group: GroupId
    position: Position


class ReadReady(NamedTuple):
    """Everything up to `offset` was committed when these reads began, or earlier; answer when it is applied."""

    group: GroupId
    tokens: tuple[object, ...]
    offset: int


class ReadFailed(NamedTuple):
    """The leadership ended first: the reads ask the next leader."""

    group: GroupId
    tokens: tuple[object, ...]


class ConfigCommitted(NamedTuple):
    """A configuration is committed, told by its leader. `removed`: replicas that may be deleted now, and not before."""

    group: GroupId
    config: Config
    removed: frozenset[Voter]


class ChangeAborted(NamedTuple):
    """The change of voters was given up, or the leadership that was to begin it ended before the joint term."""

    group: GroupId
    target: frozenset[Voter]


Event = (
    RoleChanged
    | LeaderReady
    | HandOverBegun
    | Committed
    | LogCut
    | ReadItems
    | ShipSegments
    | Adopted
    | ReadReady
    | ReadFailed
    | ConfigCommitted
    | ChangeAborted
)


class Ready(NamedTuple):
    """The output of a turn.

    entries: (sequence, entry), to be journalled in this order before anything of a later turn.
    """

    entries: list[tuple[int, JournalEntry]]
    frames: list[Frame]
    events: list[Event]


class Accepted(NamedTuple):
    """Proposals have their places; acks=1 when `position` is durable, acks=all when it is committed."""

    position: Position
    base_offset: int


class Refusal(Enum):
    """Why a proposal or command was not taken; nothing has changed."""

    NOT_LEADER = "not the leader"
    HELD = "between two terms of this leader, or handing over: hold it, in order, for at most an election timeout"
    JOURNAL_CLOSED = "the journal has failed and is not open again"
    TOO_MUCH_UNCOMMITTED = "more bytes wait for a quorum than allowed"
    TOO_MANY_REPLICAS = "more than peers_max replicas beside the leader's own"
    CHANGE_UNDER_WAY = "a change of voters is under way"
    NOT_A_VOTER = "the target does not vote"
    NO_VOTERS = "a configuration needs a voter"


@dataclass(frozen=True)
class CoreStatistics:
    """`groups_walked`: groups that a tick or a turn had to look at, since the start."""

    groups: int
    led: int
    armed: int
    sequence: int
    durable_sequence: int
    messages_sent: int
    frames_sent: int
    messages_received: int
    groups_walked: int
    timers: int
    links: tuple[LinkStatistics, ...]


class Outbox:
    """A turn's messages to one core."""

    __slots__ = ("after_sequence", "at_once", "bound")

    def __init__(self) -> None:
        self.at_once: list[Message] = []
        self.bound: list[Message] = []
        self.after_sequence = 0
