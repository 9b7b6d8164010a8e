"""A replica whose steady state somebody else carries: C, for one term, between `carry` and `take_back`.

Theory of operation
-------------------
A group is driven by exactly one of two. While it is carried the machine is asleep: its log ends where it did, nothing
of it is sent, and it has no deadline. Whoever carries it does what the rows of `steady` say, for the epoch of the term
alone, and changes neither term, vote, role nor configuration; what no row takes comes back as a message, and for every
input that is not steady `RaftCore` takes the group back first. Taking back is synchronous and total: the machine
learns where the log ends, what of it is durable and committed, and what each peer has; then it goes on as if it had
done all of that itself. What was sent and not answered counts as one message under way, so it is tried again when no
answer comes.

Only what is quiet is carried: a leader of a simple configuration whose marker is committed, without hand-over or reads
under way, whose peers replicate with nothing under way, or are silent, or left alone, or wait for segments; a follower
that has its leader's marker durable. How much a peer lacks does not matter. A leader that is never quiet under load
*holds* for a moment: it sends nothing new until what is under way is answered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.raft.items import Position
from tpc_broker.raft.journal import TakenEntry
from tpc_broker.raft.membership import Membership
from tpc_broker.raft.output import FOLLOWER
from tpc_broker.raft.steady import INSTALL, NONE, PROBE, REPLICATE

if TYPE_CHECKING:
    from tpc_broker.raft.items import Voter
    from tpc_broker.raft.messages import Ack, Reason
    from tpc_broker.raft.replica import Peer

HOLD_MS_MIN: Final = 20
HOLD_MS_MAX: Final = 300
"""A leader that waits for answers so that it may be carried sends nothing new for so long at most: twice as long each
time that they have not come, and not again for four times as long.
"""


class CarriedPeer(NamedTuple):
    """As in `SteadyPeer`; of one that nothing was sent to `is_sent_to` is False, and the machine knows better."""

    match: int
    next: int
    known: int
    is_sent_to: bool


class Carried(NamedTuple):
    """What has become of a group. `sequence`: of the journal that carries the last of the log; 0: all is durable.
    `peers` in the order of the leader's rows.
    """

    end_offset: int
    durable_offset: int
    commit_offset: int
    leader_commit_offset: int
    uncommitted_bytes: int
    sequence: int
    peers: tuple[CarriedPeer, ...]


class Carrying(Membership):
    """The layer that lets a replica be carried."""

    __slots__ = ("carried", "carries", "hold_ms", "holds_until_ms", "is_awaited")

    def init_layers(self) -> None:
        super().init_layers()
        self.carried = False
        self.carries = 0
        """How often it was given away, or one of its peers came to be in sync or not meanwhile."""
        self.holds_until_ms = 0
        self.hold_ms = 0
        """How long the last hold was, if it has brought nothing."""
        self.is_awaited = False
        """Somebody would carry it, and read for its peers, too."""

    # Whether.

    def may_be_carried(self) -> bool:
        """Whether it is quiet. All of its entries are in the journal: that is for the driver to know."""
        settled = self.host.journal_open and not self.leaving and not self.must_reopen and self.adopting is None
        bound = max(self.hard_sequence, self.binding_floor) <= self.host.durable_sequence
        if self.carried or self.steady is None or not settled or not bound:
            return False
        if self.durable.epoch != self.term or self.log.last.epoch != self.term:
            return False
        return self._leader_is_quiet() if self.is_leader else self._follower_is_quiet()

    def _leads_plainly(self) -> bool:
        config = self.config
        plain = config is not None and not config.is_joint and self.me in config.voters
        busy = self.target is not None or self.transfer is not None or self.reads or self.reads_new
        return self.is_ready and plain and not busy

    # Rule: Whom a carried group sends to, and who of it is in sync, changes with turns of its links alone, or nobody
    # looks again: a link that is late counts until it is called silent. See also tpc_broker/raft/group.py,
    # tpc_broker/node/replicas/lagging.py. Held by tests/raft/test_in_sync.py.
    def _leader_is_quiet(self) -> bool:
        if not self._leads_plainly():
            return False
        return all(self._is_at_rest(peer) or not self._hears(peer) for peer in self.rows)

    def _is_at_rest(self, peer: Peer) -> bool:
        replicates = peer.state is REPLICATE and not peer.is_mute
        return (replicates and not peer.inflight) or self.is_shipped_to(peer) or self.is_left_alone(peer)

    def _answers_soon(self, peer: Peer, now_ms: int) -> bool:
        """What was sent to it has not brought nothing for long: it is worth while to wait for the rest."""
        return peer.state is REPLICATE and not peer.is_mute and now_ms - peer.waits_ms < HOLD_MS_MAX

    def is_sent_to(self, peer: Peer) -> bool:
        """Whether whoever carries it is to send something to a peer."""
        is_reached = self._hears(peer) and not self.is_left_alone(peer)
        return is_reached and not self.is_shipped_to(peer)

    def is_shipped_to(self, peer: Peer) -> bool:
        """Its segments are on their way, which is for the driver to do: until they are there it is sent nothing."""
        return peer.state is INSTALL and peer.install is None and peer.awaiting

    # Rule: Who follows a leader that is not believed in is not carried: it may sleep only until a quorum is heard, and
    # whoever is carried learns of its own leader's link alone. See also tpc_broker/raft/core.py (`_concerned_by`). Held
    # by tests/raft/test_carrying.py, tests/simulator/test_cuts.py.
    def _follower_is_quiet(self) -> bool:
        """A link that is late counts until it is called silent: then the group is woken."""
        link = self._link_of_leader()
        is_led = self.role is FOLLOWER and link is not None and link.was_fresh
        return is_led and self.deadline_ms is None and not self.ack_due

    def hold(self, now_ms: int) -> None:
        """Let what is under way be answered, and send nothing new meanwhile. Not again at once."""
        if now_ms >= self.holds_until_ms + 4 * self.hold_ms:
            self.hold_ms = min(max(2 * self.hold_ms, HOLD_MS_MIN), HOLD_MS_MAX)
            self.holds_until_ms = now_ms + self.hold_ms
            self.wake_in(self.hold_ms, now_ms)

    def next_look_ms(self, now_ms: int) -> int | None:
        """What was held leaves when the time is over, whoever has nothing else to do then."""
        found = super().next_look_ms(now_ms)
        if now_ms >= self.holds_until_ms or not self.is_leader:
            return found
        left_ms = self.holds_until_ms - now_ms
        return left_ms if found is None else min(found, left_ms)

    def would_be_quiet(self, now_ms: int) -> bool:
        """Of a leader: all that is in the way is what was sent and not answered."""
        heard = [peer for peer in self.rows if self._hears(peer)]
        follow = all(self._is_at_rest(peer) or self._answers_soon(peer, now_ms) for peer in heard)
        return self.is_leader and self._leads_plainly() and follow

    def campaign(self, reason: Reason, now_ms: int, *, aborting: bool = False) -> None:
        """Nothing is held any more, here and in the next term."""
        self.holds_until_ms = 0
        super().campaign(reason, now_ms, aborting=aborting)
        self.holds_until_ms = 0

    def _replicate(self, index: int, peer: Peer, now_ms: int) -> None:
        if now_ms >= self.holds_until_ms:
            super()._replicate(index, peer, now_ms)

    def lacks_items(self, peer: Peer, prev: Position, now_ms: int) -> None:
        """Whoever carries it reads, too, and nobody else of the group waits: it is left alone for a moment. Peers that
        are read for right now answer meanwhile; of two of them one always would.
        """
        heard = [one for one in self.rows if self._hears(one)]
        plain = self._leads_plainly() and all(one.state is not INSTALL for one in heard)
        if self.is_awaited and plain and not peer.is_mute:
            self.hold(now_ms)
            if now_ms < self.holds_until_ms:
                return
        super().lacks_items(peer, prev, now_ms)

    # Peers that are mute.

    def ask_mute(self, voter: Voter, now_ms: int) -> None:
        """Also of a group that is carried: who carries it sends that peer nothing, and the machine knows all of it."""
        peer = self.peers[voter]
        self._forget_inflight(peer)
        if peer.state is INSTALL and peer.install is not None:
            self._send_install(peer, now_ms)
        elif peer.state in (PROBE, REPLICATE):
            self._probe(peer, self._known_of(peer))
            peer.asks = True
            self._send_probe(peer, now_ms)

    def is_no_news(self, message: Ack) -> bool:
        """Of a group that is carried: a peer that is left alone lacks still what it lacked, and nothing comes of it."""
        peer = self.peers.get(message.source)
        if peer is None or message.term != self.term or not self.is_left_alone(peer):
            return False
        lacks = message.position <= self._known_of(peer) and peer.match < self.log.end_offset
        return lacks and not self.host.mute.may_try(self.address_of(peer.voter), self.group)

    # Carried and taken back.

    def carry(self) -> None:
        """From now on somebody else does what is steady."""
        assert not self.carried
        self.carried = True
        self.carries += 1
        self.holds_until_ms = self.hold_ms = 0
        self.is_awaited = False
        self.deadline_ms = None
        self.log.release(self.log.last)

    def look(self, found: Carried) -> None:
        """Learn how it stands; it goes on being carried."""
        term, steady = self.term, self.steady
        assert steady is not None
        if found.end_offset > self.log.end_offset:
            self.log.extend(found.end_offset)
        durable = Position(term, min(found.durable_offset, self.log.end_offset))
        self.durable = max(self.durable, durable)
        steady.end_offset = self.log.end_offset
        steady.durable_offset = max(steady.durable_offset, self.durable_in(term))
        steady.leader_commit_offset = max(steady.leader_commit_offset, found.leader_commit_offset)
        if found.commit_offset >= steady.start_offset:
            steady.commit_offset = max(steady.commit_offset, min(found.commit_offset, steady.durable_offset))
        self.take_commit()
        for peer, row in zip(self.rows, found.peers, strict=False):
            if row.is_sent_to:
                peer.match, peer.next = max(peer.match, row.match), max(peer.match, row.next)
                peer.known = max(peer.known, row.known)

    def lags(self, index: int, *, is_silent: bool = False) -> bool:
        """Of one that is carried, after `look`: a peer lacks what is not in memory any more, so it is not in sync
        before it has all that there is now. Whether it was. `is_silent`: it has answered nothing, so what it lacked
        before is not what it waits for.
        """
        peer = self.rows[index]
        was_in_sync = peer.is_in_sync
        if was_in_sync or is_silent:
            peer.lacks = max(self.log.end_offset, peer.match + 1)
        self.carries += was_in_sync
        return was_in_sync

    def take_back(self, found: Carried | None, now_ms: int) -> None:
        """The machine does everything again. None: nothing has become of it, since the partition is gone."""
        self.carried = False
        self.holds_until_ms = 0
        if found is None or self.steady is None:
            return
        self.look(found)
        while self.undurable and self.undurable[0][1] <= self.durable:
            self.undurable.popleft()
        last = self.undurable[-1][1] if self.undurable else self.durable
        if found.sequence and last < self.log.last:
            entry = TakenEntry(self.group, self.log.end_offset, found.sequence)
            self._queued(self.host.journal(self.group, entry))
        if self.is_leader:
            self._lead_again(found, now_ms)
        else:
            self.matched = self.log.last
            self.ack_due = True
        self.host.flush_later(self.group)

    def _lead_again(self, found: Carried, now_ms: int) -> None:
        end_offset, committed = self.log.end_offset, self.commit.offset
        waiting = end_offset > committed
        self.uncommitted = deque([(end_offset, found.uncommitted_bytes)] if waiting else [])
        self.uncommitted_bytes = found.uncommitted_bytes if waiting else 0
        for peer, row in zip(self.rows, found.peers, strict=False):
            if not row.is_sent_to:
                continue
            peer.told = peer.known
            peer.sent_ms = peer.waits_ms = now_ms
            peer.inflight = [(peer.next, 0)] if peer.next > max(peer.match, NONE) else []

    # What a carried replica does itself.

    def became_durable(self, sequence: int, now_ms: int) -> None:
        if not self.carried:
            super().became_durable(sequence, now_ms)
            return
        while self.undurable and self.undurable[0][0] <= sequence:
            self.durable = max(self.durable, self.undurable.popleft()[1])

    def flush_carried(self, now_ms: int) -> None:
        """Reads change nothing that is carried: the round asks after the term. `look` was called before."""
        if not self.is_leader:
            return
        if self.reads_new:
            self._begin_reads()
        if self.reads:
            self.wake_in(self.settings.resend_ms, now_ms)

    def _answer_reads(self) -> None:
        """Nothing else of a carried group is due at any time."""
        super()._answer_reads()
        if self.carried and not self.reads:
            self.deadline_ms = None
