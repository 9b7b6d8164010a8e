"""Who votes: learners, the change of voters, going back (raft-rules 6; thesis 4).

Theory of operation
-------------------
A configuration is an attribute of a term's marker, so it changes only where a term begins, and every change is the
first item of its leader's own term. The winner of a term writes one of four configurations, and nothing else:

    (a) the one in its log
    (b) {C, C'}   from {C, C}: the change begins. Elected under C
    (c) {C', C'}  from {C, C'}, if its own commit *position* covers the joint marker. Elected under {C, C'}
    (d) {C, C}    from its own uncommitted {C, C'}: going back. Elected under C alone

So a move takes two terms, T+1 joint and T+2 the new voters, and the leader stands for its own next term each time.
What came before T+1's marker was committed is committed before it stands again, if that is soon.
One that will not vote in C' hands over once the joint marker is committed; the commit position travels with the
order to stand, because the target may write C' only if *it* knows that the joint marker is committed. An offset
would not do: at one offset there may be several markers.

Going back (raft-rules 6.3) is for the process that leads T+1 with its joint marker uncommitted, out of that very
leadership, and never after a restart: nobody else can know that no other leader has gone on. Without it, a majority of
C' that dies in the window would block the partition until it returns.

Against the thesis: no single-server changes (4.1), whose known flaw, a change before the own term has committed
anything, cannot be written here; no configuration entry in the midst of a term (4.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.raft.items import Config, Position, Voter, is_majority, simple
from tpc_broker.raft.leaders import Leaders
from tpc_broker.raft.messages import (
    OWN_NEXT_TERM,
)
from tpc_broker.raft.output import ChangeAborted, ConfigCommitted, Refusal
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.steady import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable


class Finish(NamedTuple):
    """The term behind a joint one begins when an offset is committed, or at this time."""

    offset: int
    at_ms: int


class Membership(Leaders):
    """Learners and changes of voters.

    target       voters of the change that this leader is to make, or is making
    changing_ms  since when its joint marker waits to be committed
    finishes     its joint marker is committed, and what came behind it is to be before the next term begins
    """

    __slots__ = ("changing_ms", "finishes", "target")

    def init_layers(self) -> None:
        super().init_layers()
        self.target: frozenset[Voter] | None = None
        self.changing_ms: int | None = None
        self.finishes: Finish | None = None

    # What a new term's marker says.

    def config_of_new_term(self) -> Config:
        config = self.config
        assert config is not None
        if self.aborting:
            return simple(config.old)
        if config.is_joint:
            return simple(config.new) if self._joint_is_committed() else config
        if self.target is not None and self.reason is OWN_NEXT_TERM:
            return Config(config.old, self.target)
        return config

    def _joint_is_committed(self) -> bool:
        """The own commit position covers the last marker, the joint one."""
        return self.commit >= self.log.markers[-1].position

    # Learners.

    def set_learners(self, learners: Iterable[Voter], now_ms: int) -> Refusal | None:
        """Replicas that get everything and do not vote. The leader's alone: the next one is told anew."""
        if not self.is_leader:
            return Refusal.NOT_LEADER
        wanted = frozenset(learners) - self._voters()
        if self.target is not None:
            wanted |= self.target - self._voters()
        if not self._fits(self._voters() | wanted):
            return Refusal.TOO_MANY_REPLICAS
        self._replicate_to(wanted, now_ms)
        return None

    def _voters(self) -> frozenset[Voter]:
        return self.config.voters if self.config is not None else frozenset()

    def _fits(self, replicas: frozenset[Voter]) -> bool:
        """raft-rules 6.4: the table of peers has so many rows."""
        return len(replicas - {self.me}) <= self.settings.peers_max

    def _replicate_to(self, learners: frozenset[Voter], now_ms: int) -> None:
        """The rows of the table are others: the leader is armed anew, in its term, with what it had."""
        self.learners = learners
        steady = self.steady
        assert steady is not None
        before = self.log.last
        wanted = self.others()
        for voter in list(self.peers):
            if voter not in wanted:
                self._forget_inflight(self.peers.pop(voter))
        for voter in wanted:
            self.peers.setdefault(voter, Peer(voter, before))
        self._arm_leader()
        self.host.members_changed(self.group)
        self.host.flush_later(self.group)
        self._wake_if_busy(now_ms)

    # A change of voters.

    def change_voters(self, target: Iterable[Voter], now_ms: int) -> Refusal | None:
        """raft-rules 6.1: the target's new replicas learn first; the joint term begins when a majority is close."""
        voters = frozenset(target)
        refusal = self._refuses_change(voters)
        if refusal is not None:
            return refusal
        if voters == self._voters():
            return None
        self.target = voters
        self._replicate_to(self.learners | (voters - self._voters()), now_ms)
        self._go_on(now_ms)
        return None

    def _refuses_change(self, target: frozenset[Voter]) -> Refusal | None:
        if not self.is_leader or self.config is None:
            return Refusal.NOT_LEADER
        if not target:
            return Refusal.NO_VOTERS
        if self.config.is_joint or self.target is not None:
            return Refusal.CHANGE_UNDER_WAY
        if self.transfer is not None:
            return Refusal.HELD
        if not self._fits(self._voters() | target | self.learners):
            return Refusal.TOO_MANY_REPLICAS
        return None

    def _go_on(self, now_ms: int) -> None:
        """The joint term begins when it can be expected to be committed soon."""
        if self.target is not None and self.is_leader and self.config is not None and not self.config.is_joint:
            ready = {voter for voter in self.target if self._is_caught_up(voter, now_ms)}
            if is_majority(self.target, ready) and self._quorum_is_near() and self._may_begin_change():
                self.campaign(OWN_NEXT_TERM, now_ms)

    def _quorum_is_near(self) -> bool:
        """A quorum of those that vote now has all that is not in memory here, as after a time in which somebody else
        carried this group. Else the next term would begin with reading it for them, and clients wait for that term.
        """
        assert self.config is not None
        start, term = self.log.start, self.term
        near = [peer.voter for peer in self.rows if peer.match != NONE and Position(term, peer.match) >= start]
        return self.config.has_quorum([self.me, *near])

    def begin_next_term(self, now_ms: int) -> None:
        """The leader stands again, for the same voters: somebody has heard of a later term than its own."""
        if self.is_leader and self.target is None and self.transfer is None and self._may_begin_change():
            self.campaign(OWN_NEXT_TERM, now_ms)

    def _may_begin_change(self) -> bool:
        """From any simple configuration, committed or not (checked); here once the own marker is, so that terms
        are few.
        """
        return self.is_ready and self._may_campaign()

    def _is_caught_up(self, voter: Voter, now_ms: int) -> bool:
        if voter == self.me:
            return True
        peer = self.peers.get(voter)
        if peer is None or peer.match < 0 or not self.is_heard(voter, now_ms):
            return False
        most = self.settings.caught_up_bytes
        if self.log.bytes_after(Position(self.term, peer.match), most) < most:
            return True
        rounds = peer.round_ms, now_ms - peer.round_began_ms
        return all(took is not None and took <= self.settings.caught_up_ms for took in rounds)

    def _count_round(self, peer: Peer, now_ms: int) -> None:
        """Thesis 4.2.1: a round is over when what was there at its beginning has arrived; the next begins at once."""
        if peer.round_end is not None:
            if peer.match < peer.round_end:
                return
            peer.round_ms = now_ms - peer.round_began_ms
        peer.round_end, peer.round_began_ms = self.log.end_offset, now_ms

    def peer_progressed(self, peer: Peer, now_ms: int) -> None:
        super().peer_progressed(peer, now_ms)
        if self.target is not None:
            if peer.voter in self.target:
                self._count_round(peer, now_ms)
            self._go_on(now_ms)

    def begin_leading(self, before: Position, now_ms: int) -> None:
        config = self.config
        assert config is not None
        self.learners -= config.voters
        if config.is_joint:
            self.target, self.changing_ms = config.new, now_ms
        elif self.target is not None:
            self._change_ended(config)
        super().begin_leading(before, now_ms)

    def _change_ended(self, config: Config) -> None:
        """The change is done, or this term began without it."""
        target, self.target, self.changing_ms = self.target, None, None
        if target is not None and config.new != target:
            self.host.tell(ChangeAborted(self.group, target))

    def own_marker_committed(self, now_ms: int) -> None:
        config = self.config
        assert config is not None
        removed: frozenset[Voter] = frozenset()
        if len(self.log.markers) > 1 and not config.is_joint:
            removed = self.log.markers[-2].config.voters - config.voters
        self.host.tell(ConfigCommitted(self.group, config, removed))
        if not config.is_joint:
            self._go_on(now_ms)
        elif self.me in config.new and self.commit.offset < self.log.end_offset:
            self.changing_ms = None
            self.finishes = Finish(self.log.end_offset, now_ms + self.settings.finish_ms)
        else:
            self._finish_change(config, now_ms)

    def _committed(self, now_ms: int) -> None:
        """Who waits for what came between the two elections of a change is answered between them, not after both."""
        super()._committed(now_ms)
        if self.finishes is not None and self.commit.offset >= self.finishes.offset and self._must_finish():
            assert self.config is not None
            self._finish_change(self.config, now_ms)

    def _finish_change(self, config: Config, now_ms: int) -> None:
        """The joint marker is committed by both: T+2, by this leader or by one that stays (raft-rules 6.2)."""
        self.changing_ms = self.finishes = None
        if self.me in config.new:
            if self._may_campaign():
                self.campaign(OWN_NEXT_TERM, now_ms)
            return
        heard = [peer for peer in self.rows if peer.voter in config.new and self.is_heard(peer.voter, now_ms)]
        if heard:
            best = max(heard, key=lambda peer: (peer.match, peer.voter))
            self.transfer_leadership(best.voter, now_ms)

    # Going back.

    def abort_change(self, now_ms: int) -> None:
        """Gives the change up: before the joint term just so, in it by a term of the old voters (raft-rules 6.3)."""
        if self.is_leader and self.target is not None and self.config is not None:
            if not self.config.is_joint:
                self._change_ended(self.config)
            elif self._may_abort():
                self.campaign(OWN_NEXT_TERM, now_ms, aborting=True)

    def _may_abort(self) -> bool:
        """raft-rules 6.3: the own joint marker, not committed, directly behind a marker of the old voters alone."""
        markers = self.log.markers
        joint = markers[-1]
        own = joint.epoch == self.term and joint.config.is_joint and not self.is_ready
        below = markers[-2].config if len(markers) > 1 else self.log.creation_config
        return own and self.is_leader and self._may_campaign() and below == simple(joint.config.old)

    def _old_quorum_is_heard(self, now_ms: int) -> bool:
        old = self.log.markers[-1].config.old
        return is_majority(old, {voter for voter in old if self.is_heard(voter, now_ms)})

    def lost_quorum(self, now_ms: int) -> None:
        """A joint term whose new voters are gone is given up for the old ones, if they can carry the next."""
        if self._may_abort() and self._old_quorum_is_heard(now_ms):
            self.abort_change(now_ms)
        else:
            super().lost_quorum(now_ms)

    def next_look_ms(self, now_ms: int) -> int | None:
        if self.config is None or not self.is_leader:
            return None
        if self.changing_ms is not None:
            return max(1, self.changing_ms + self.settings.change_timeout_ms - now_ms)
        if self.finishes is not None:
            return max(1, self.finishes.at_ms - now_ms)
        return self.settings.election_timeout_ms if self._must_finish() else None

    def _must_finish(self) -> bool:
        """A committed joint term that has no successor yet: nobody was heard, or a hand-over came to nothing."""
        return self.is_ready and self.config is not None and self.config.is_joint and self.transfer is None

    def leader_deadline(self, now_ms: int) -> None:
        late = self.changing_ms is not None and now_ms - self.changing_ms >= self.settings.change_timeout_ms
        if late and self._may_abort() and self._old_quorum_is_heard(now_ms):
            self.abort_change(now_ms)
            return
        if late:
            self.changing_ms = now_ms
        super().leader_deadline(now_ms)
        if self.is_leader and self._must_finish() and (self.finishes is None or now_ms >= self.finishes.at_ms):
            assert self.config is not None
            self._finish_change(self.config, now_ms)

    def step_down(self) -> None:
        """A change that has not begun ends with its leadership; one in its joint term is in the log, for the next
        leader.
        """
        if self.is_leader:
            self.changing_ms = self.finishes = None
        super().step_down()

    def follows_now(self) -> None:
        """Somebody else leads: what this replica was to change is told as given up, unless it stands in the log."""
        if self.target is not None and self.config is not None:
            if self.config.is_joint and self.config.new == self.target:
                self.target = None
            else:
                self._change_ended(self.config)
