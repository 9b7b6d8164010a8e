"""What replicas and cores tell each other.

Messages of a group carry the group, who sends it and whom it is for, as voters: one for another incarnation of the
addressee is dropped. Messages of a link (`Heartbeat`, `GroupList`, `ReadRound`, `ReadRoundReply`) are between cores.
All may be lost, doubled, delayed without bound and reordered; nothing relies on a session, because what binds
carries the term (raft-rules 3.3). On the wire the group is an ordinal of the link's session; here it is the group.

Which of them bind, that is, promise what is in the sender's journal: `RequestVote`, `Vote` if granted, `Ack`. A
leader's `AppendEntries` does not: its items leave before they are durable at home.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from tpc_broker.raft.items import Address, GroupId, Item, Marker, Position, Voter


class Reason(Enum):
    """Why a replica stands for election."""

    TIMEOUT = "no fresh leader"
    TRANSFER = "told by the leader"
    OWN_NEXT_TERM = "the leader itself, to change the configuration"


# For where an election passes: in Python 3.11 `Reason.TIMEOUT` costs three calls.
TIMEOUT: Final = Reason.TIMEOUT
TRANSFER: Final = Reason.TRANSFER
OWN_NEXT_TERM: Final = Reason.OWN_NEXT_TERM


class RequestVote(NamedTuple):
    """`pre_vote`: would you vote for me in this term? Nothing changes at either side (thesis 9.6)."""

    group: GroupId
    source: Voter
    target: Voter
    term: int
    last: Position
    reason: Reason
    pre_vote: bool = False


class Vote(NamedTuple):
    """`term` is the one asked for if granted, else the voter's own."""

    group: GroupId
    source: Voter
    target: Voter
    term: int
    granted: bool
    pre_vote: bool = False


class AppendEntries(NamedTuple):
    """Items behind `prev`, in log order, markers of older epochs included; without items: a probe or a commit frame."""

    group: GroupId
    source: Voter
    target: Voter
    term: int
    prev: Position
    items: tuple[Item, ...]
    commit: Position


class Ack(NamedTuple):
    """My log is durable up to `position`, and is yours up to there. `commit` only tells the leader whom to tell
    more.
    """

    group: GroupId
    source: Voter
    target: Voter
    term: int
    position: Position
    commit: Position


class Reject(NamedTuple):
    """I do not contain `prev`; `end` is the end of my largest epoch up to that of `prev` (raft-rules 3.2).

    With a `term` above the leader's: your term is over.
    """

    group: GroupId
    source: Voter
    target: Voter
    term: int
    prev: Position
    end: Position


class TimeoutNow(NamedTuple):
    """Stand for election at once (thesis 3.10). `commit` lets the target finish a change of voters (raft-rules 6.2)."""

    group: GroupId
    source: Voter
    target: Voter
    term: int
    commit: Position


class Install(NamedTuple):
    """The segments up to `position` have been shipped: adopt them, with the epochs and configurations that belong
    to them.
    """

    group: GroupId
    source: Voter
    target: Voter
    term: int
    position: Position
    markers: tuple[Marker, ...]
    log_start_offset: int


class Resign(NamedTuple):
    """I lead this group in `term` no longer: do not call me fresh."""

    group: GroupId
    source: Voter
    target: Voter
    term: int


class Heartbeat(NamedTuple):
    """`resigned`: (group, term) of lately given up leaderships, repeated for a while, because a Resign may be lost.
    `silent_ms`: how long its core wants to be waited for; 0: it does not say.
    """

    number: int
    resigned: tuple[tuple[GroupId, int], ...] = ()
    silent_ms: int = 0


class GroupList(NamedTuple):
    """First on a new session: (group, own term, whether I lead it) of the groups that both cores have."""

    groups: tuple[tuple[GroupId, int, bool], ...]


class ReadRound(NamedTuple):
    """Do you still follow me in these (group, term)? One round serves all reads that began before it left (rules
    7.3).
    """

    round_number: int
    groups: tuple[tuple[GroupId, int], ...]


class ReadRoundReply(NamedTuple):
    """(group, asked term, own replica) of the groups of the round whose term here is not above the asked one."""

    round_number: int
    groups: tuple[tuple[GroupId, int, Voter], ...]


GroupMessage = RequestVote | Vote | AppendEntries | Ack | Reject | TimeoutNow | Install | Resign
LinkMessage = Heartbeat | GroupList | ReadRound | ReadRoundReply
Message = GroupMessage | LinkMessage
OF_LINKS: Final = (Heartbeat, GroupList, ReadRound, ReadRoundReply)


class Frame(NamedTuple):
    """Messages of one turn from one core to another, which leave together.

    after_sequence: leave when this sequence of the sender's journal is durable (0: at once). After a failure of the
    journal frames that wait for more than what was durable must not leave any more.
    boot_id: new at each start of the sender's process.
    """

    source: Address
    target: Address
    boot_id: int
    after_sequence: int
    messages: tuple[Message, ...]
