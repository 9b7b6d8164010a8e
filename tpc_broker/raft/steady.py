"""The steady state of one replica: append, acknowledge, match, commit. This machine will be carried by C.

Theory of operation
-------------------
A group is driven by exactly one of two machines. `Group` knows elections, conflicts, configurations and everything
rare; it *arms* this one for one term, and from then on the frequent inputs are answered here, until one of them is
not steady: that is handed back, `Group` disarms, does what is to be done, and arms again. Disarming is synchronous
and total.

Everything here is about the epoch of the armed term T: the log has the marker of T, and only batches of T follow. So a
plain offset identifies a prefix, and the state is a few integers and six rows of peers (`tpc_replica` in C):

* Nothing here changes term, vote, role or configuration; nothing is cut; no number is ever lowered but what is in
flight, and `next` and `told` of a peer that answers nothing: what it was sent may be lost, and is sent again.
* `match` is -1 (none) at arming: the marker of an empty log is at offset 0, and a match of 0 means that it is there.
* `durable_offset` is -1 until the marker of T is durable at home. Then it is the end of the durable prefix.
* `commit_offset` is -1 until something of T is committed: the marker itself, at `start_offset`, is the first (thesis
5.4.2). * A leader's own disk counts as one voter of the quorum, and the commit never goes beyond it (raft-rules 3.4).
* A follower commits only what is durable at home, and only with the marker of T durable: then its log is the
leader's prefix.

`ROWS` is the machine: for an input in a role, the first row whose condition holds says what happens. The same table is
printed in docs/raft-steady.md. `step` looks for the row; C is to be compared with it step by step, state for state.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

OWN_BIT: Final = 1 << 7
"""In the bit sets of voters: the replica itself. Bit i is row i of the peers."""
NONE: Final = -1
"""No offset: nothing of the armed term yet."""


class SteadyRole(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    __hash__ = object.__hash__
    """Members are single objects; Enum's own hash is a call of Python, several in each step."""


class PeerState(IntEnum):
    """Only REPLICATE is steady: the others are `Group`'s, and rows in them are passed over here."""

    PROBE = 0
    REPLICATE = 1
    CATCH_UP = 2
    INSTALL = 3


class Input(Enum):
    """What can happen, with its arguments."""

    APPEND = "append(end_offset)"
    DURABLE = "durable(offset)"
    ACK = "ack(peer, term, epoch, offset, commit_offset)"
    SEND = "send(peer)"
    SENT = "sent(peer, end_offset, bytes)"
    SILENT = "silent(peer)"
    RECEIVE = "receive(term, prev_epoch, prev_offset, end_offset, commit_epoch, commit_offset)"
    __hash__ = object.__hash__


class Outcome(Enum):
    """What the caller is to do."""

    NOTHING = "nothing"
    COMMITTED = "the commit offset has risen"
    SEND = "send the items behind next, with the commit offset"
    SEND_COMMIT = "send the commit offset alone"
    APPENDED = "append the items and journal them"
    ACKNOWLEDGE = "an ack is due"
    NOT_STEADY = "disarm; Group handles it"


# Members by names of the module: in Python 3.11 an enumeration looks a member up at the cost of three calls.
PROBE: Final = PeerState.PROBE
REPLICATE: Final = PeerState.REPLICATE
CATCH_UP: Final = PeerState.CATCH_UP
INSTALL: Final = PeerState.INSTALL
ON_APPEND: Final = Input.APPEND
ON_DURABLE: Final = Input.DURABLE
ON_ACK: Final = Input.ACK
ON_SEND: Final = Input.SEND
ON_SENT: Final = Input.SENT
ON_RECEIVE: Final = Input.RECEIVE
NOTHING: Final = Outcome.NOTHING
COMMITTED: Final = Outcome.COMMITTED
SEND: Final = Outcome.SEND
SEND_COMMIT: Final = Outcome.SEND_COMMIT
APPENDED: Final = Outcome.APPENDED
ACKNOWLEDGE: Final = Outcome.ACKNOWLEDGE
NOT_STEADY: Final = Outcome.NOT_STEADY


class SteadyPeer:
    """One row of the table of peers.

    match        its durable end within T, or -1
    next         end of what was sent to it, or is sent again
    sent         how far that went before it was asked again, or -1
    asked        whether it was asked again, and has said nothing new since
    inflight     (end offset, bytes) of each message without an answer
    told         the commit offset that it was last sent
    known        the commit offset that it last said it has
    """

    __slots__ = ("asked", "inflight", "inflight_bytes", "known", "match", "next", "sent", "state", "told")

    def __init__(self) -> None:
        self.state = PROBE
        self.match = NONE
        self.next = 0
        self.inflight: list[tuple[int, int]] = []
        self.inflight_bytes = 0
        self.told = NONE
        self.known = NONE
        self.sent = NONE
        self.asked = False


class Steady:
    """The state while armed; `ROWS` moves it."""

    __slots__ = (
        "commit_offset",
        "durable_offset",
        "end_offset",
        "inflight_bytes_max",
        "inflight_messages_max",
        "leader_commit_offset",
        "peers",
        "role",
        "start_offset",
        "term",
        "voters_new",
        "voters_old",
    )

    def __init__(
        self,
        role: SteadyRole,
        term: int,
        start_offset: int,
        end_offset: int,
        durable_offset: int,
        commit_offset: int,
        peers: list[SteadyPeer],
        voters_old: int,
        voters_new: int,
        inflight_messages_max: int,
        inflight_bytes_max: int,
    ) -> None:
        self.role = role
        self.term = term
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.durable_offset = durable_offset
        self.commit_offset = commit_offset
        self.leader_commit_offset = commit_offset
        self.peers = peers
        self.voters_old = voters_old
        self.voters_new = voters_new
        self.inflight_messages_max = inflight_messages_max
        self.inflight_bytes_max = inflight_bytes_max

    def step(self, given: Input, *arguments: int) -> Outcome:
        """Carries out one input; asserts what must hold after each."""
        for row in _INDEX[self.role, given]:
            if row.holds(self, *arguments):
                outcome = row.effect(self, *arguments)
                assert self.commit_offset <= self.durable_offset <= self.end_offset, (given, arguments, self.state())
                return outcome
        return NOT_STEADY

    def commit_candidate(self) -> int:
        """The largest offset that a quorum of both sets has, by majorities of `match` (raft-rules 3.4)."""
        candidate = self.majority(self.voters_old)
        if self.voters_new != self.voters_old:
            candidate = min(candidate, self.majority(self.voters_new))
        return min(candidate, self.durable_offset)

    def majority(self, voters: int) -> int:
        """The largest offset that a majority of a set of voters has durable; -1 if there is none."""
        have = [peer.match for index, peer in enumerate(self.peers) if voters >> index & 1]
        if voters & OWN_BIT:
            have.append(self.durable_offset)
        have.sort()
        return have[(len(have) - 1) // 2] if have else NONE

    def advance(self) -> Outcome:
        candidate = self.commit_candidate()
        if candidate > self.commit_offset:
            self.commit_offset = candidate
            return COMMITTED
        return NOTHING

    def has_room(self, peer: SteadyPeer) -> bool:
        if peer.asked and peer.inflight:
            return False
        return len(peer.inflight) < self.inflight_messages_max and peer.inflight_bytes < self.inflight_bytes_max

    def state(self) -> tuple[object, ...]:
        """All of it as a value, to be compared with C's."""
        rows = tuple(
            (int(p.state), p.match, p.next, p.told, p.known, p.inflight_bytes, tuple(p.inflight)) for p in self.peers
        )
        numbers = (self.term, self.start_offset, self.end_offset, self.durable_offset)
        commits = (self.commit_offset, self.leader_commit_offset, self.voters_old, self.voters_new)
        return (self.role.value, *numbers, *commits, rows)


class Row(NamedTuple):
    """One line of the table. The texts say what the functions do, and stand in the document."""

    role: SteadyRole
    given: Input
    condition: str
    effect_text: str
    outcome: str
    holds: Callable[..., bool]
    effect: Callable[..., Outcome]


def _always(_steady: Steady, *_arguments: int) -> bool:
    return True


def _nothing(_steady: Steady, *_arguments: int) -> Outcome:
    return NOTHING


def _append(steady: Steady, end_offset: int) -> Outcome:
    assert end_offset >= steady.end_offset
    steady.end_offset = end_offset
    return NOTHING


def _own_durable(steady: Steady, offset: int) -> Outcome:
    steady.durable_offset = offset
    return steady.advance()


def _is_of_this_epoch(steady: Steady, peer: int, term: int, epoch: int, offset: int, _commit: int) -> bool:
    row = steady.peers[peer]
    is_known = row.state == REPLICATE and term == epoch == steady.term
    return is_known and (offset <= row.next or offset <= row.sent)


def _is_stale_ack(steady: Steady, _peer: int, term: int, *_rest: int) -> bool:
    return term < steady.term


def _ack(steady: Steady, index: int, _term: int, _epoch: int, offset: int, commit_offset: int) -> Outcome:
    peer = steady.peers[index]
    if offset > peer.match or commit_offset > peer.known:
        peer.asked = False
    peer.known = max(peer.known, commit_offset)
    while peer.inflight and peer.inflight[0][0] <= offset:
        peer.inflight_bytes -= peer.inflight[0][1]
        del peer.inflight[0]
    if offset <= peer.match:
        return NOTHING
    peer.match = offset
    peer.next = max(peer.next, offset)
    return steady.advance()


def _owes_answer(steady: Steady, index: int) -> bool:
    peer = steady.peers[index]
    has_all = peer.next == steady.end_offset
    return peer.state == REPLICATE and (peer.match < peer.next or (has_all and peer.known < steady.commit_offset))


def _ask_again(steady: Steady, index: int) -> Outcome:
    peer = steady.peers[index]
    peer.sent, peer.next = max(peer.sent, peer.next), peer.match
    peer.told, peer.asked = peer.known, True
    peer.inflight.clear()
    peer.inflight_bytes = 0
    return NOTHING


def _may_send_items(steady: Steady, index: int) -> bool:
    peer = steady.peers[index]
    return peer.state == REPLICATE and peer.next < steady.end_offset and steady.has_room(peer)


def _must_tell_commit(steady: Steady, index: int) -> bool:
    peer = steady.peers[index]
    return peer.state == REPLICATE and peer.next == steady.end_offset and peer.told < steady.commit_offset


def _send(_steady: Steady, _index: int) -> Outcome:
    return SEND


def _send_commit(_steady: Steady, _index: int) -> Outcome:
    return SEND_COMMIT


def _sent(steady: Steady, index: int, end_offset: int, length: int) -> Outcome:
    peer = steady.peers[index]
    peer.told = steady.commit_offset
    if end_offset > peer.next:
        peer.next = end_offset
        peer.inflight.append((end_offset, length))
        peer.inflight_bytes += length
    return NOTHING


def _continues(steady: Steady, term: int, epoch: int, offset: int, end_offset: int, *_commit: int) -> bool:
    return term == epoch == steady.term and offset == steady.end_offset < end_offset


def _is_contained_commit(steady: Steady, term: int, epoch: int, offset: int, end_offset: int, *_commit: int) -> bool:
    return term == epoch == steady.term and steady.start_offset <= offset == end_offset <= steady.end_offset


def _learn_commit(steady: Steady, commit_epoch: int, commit_offset: int) -> None:
    if commit_epoch == steady.term:
        steady.leader_commit_offset = max(steady.leader_commit_offset, commit_offset)
        follow_commit(steady)


def follow_commit(steady: Steady) -> None:
    """raft-rules 3.4, follower: what the leader says, as far as it is durable here, and the marker of T is."""
    steady.commit_offset = max(steady.commit_offset, min(steady.leader_commit_offset, steady.durable_offset))


def _receive(steady: Steady, _t: int, _e: int, _o: int, end_offset: int, commit_epoch: int, commit: int) -> Outcome:
    steady.end_offset = end_offset
    _learn_commit(steady, commit_epoch, commit)
    return APPENDED


def _receive_commit(steady: Steady, _t: int, _e: int, _o: int, _end: int, commit_epoch: int, commit: int) -> Outcome:
    _learn_commit(steady, commit_epoch, commit)
    return ACKNOWLEDGE


def _follower_durable(steady: Steady, offset: int) -> Outcome:
    steady.durable_offset = offset
    follow_commit(steady)
    return ACKNOWLEDGE


def _is_progress(steady: Steady, offset: int) -> bool:
    return steady.durable_offset < offset <= steady.end_offset


_L, _F = SteadyRole.LEADER, SteadyRole.FOLLOWER
ROWS: Final = (
    Row(_L, Input.APPEND, "always", "end := end_offset", "nothing", _always, _append),
    Row(_L, Input.DURABLE, "durable < offset <= end", "durable := offset; advance", "committed, if it rose",
        _is_progress, _own_durable),
    Row(_L, Input.DURABLE, "otherwise", "", "nothing", _always, _nothing),
    Row(_L, Input.ACK, "term < T", "", "nothing", _is_stale_ack, _nothing),
    Row(_L, Input.ACK, "peer replicates, term = epoch = T, offset <= next or sent",
        "known := max(known, commit_offset); drop in-flight up to offset; match := max(match, offset); "
        "next := max(next, match); not asked, if known or match rose; advance",
        "committed, if it rose", _is_of_this_epoch, _ack),
    Row(_L, Input.SEND, "peer replicates, next < end, room in messages and bytes (asked: nothing in flight)", "",
        "send", _may_send_items, _send),
    Row(_L, Input.SEND, "peer replicates, next = end, told < commit", "", "send commit",
        _must_tell_commit, _send_commit),
    Row(_L, Input.SEND, "otherwise", "", "nothing", _always, _nothing),
    Row(_L, Input.SENT, "always", "told := commit; if end_offset > next: next := end_offset, one more in flight",
        "nothing", _always, _sent),
    Row(_L, Input.SILENT, "peer replicates, match < next, or next = end and known < commit",
        "sent := max(sent, next); next := match; told := known; nothing in flight; asked", "nothing",
        _owes_answer, _ask_again),
    Row(_L, Input.SILENT, "otherwise", "", "nothing", _always, _nothing),
    Row(_F, Input.RECEIVE, "term = prev_epoch = T, prev_offset = end < end_offset (all items are batches of T)",
        "end := end_offset; learn commit", "append", _continues, _receive),
    Row(_F, Input.RECEIVE, "term = prev_epoch = T, no items, start <= prev_offset <= end", "learn commit",
        "acknowledge", _is_contained_commit, _receive_commit),
    Row(_F, Input.DURABLE, "durable < offset <= end",
        "durable := offset; commit := max(commit, min(leader's, durable))", "acknowledge",
        _is_progress, _follower_durable),
    Row(_F, Input.DURABLE, "otherwise", "", "nothing", _always, _nothing),
)  # fmt: skip
"""An input that no row takes is not steady."""

_INDEX: Final = {
    (role, given): tuple(row for row in ROWS if row.role is role and row.given is given)
    for role in SteadyRole
    for given in Input
}


def table() -> str:
    """The rows in Markdown, for the document."""
    head = ["| role | input | condition | effect | outcome |", "|---|---|---|---|---|"]
    rows = [(r.role.value, f"`{r.given.value}`", r.condition, r.effect_text or "-", r.outcome) for r in ROWS]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])
