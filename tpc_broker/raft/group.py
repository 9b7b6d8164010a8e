"""One replica of one group, whole: messages and times come in, and go to the layer that knows what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.raft.carrying import Carrying
from tpc_broker.raft.journal import Checkpoint, checkpoint_of
from tpc_broker.raft.log import ReplicaLog
from tpc_broker.raft.messages import Ack, AppendEntries, Install, Reject, RequestVote, Resign, TimeoutNow, Vote
from tpc_broker.raft.output import CANDIDATE, FOLLOWER, LEADER

if TYPE_CHECKING:
    from tpc_broker.model import CoreId, NodeId
    from tpc_broker.raft.items import Position, Voter
    from tpc_broker.raft.messages import GroupMessage


# Rule: Nothing acknowledged is lost where a majority of the nodes has it, whichever of them fails, is paused or is cut
# off. Appends with acks=all and committed offsets are linearizable, and fetches show prefixes. See also
# tpc_broker/node/replicas/replication.py. Held by tests/cluster/test_histories.py (by Porcupine),
# tests/cluster/test_replication.py.
class Group(Carrying):
    """A replica as its core drives it."""

    __slots__ = ()

    def start(self, now_ms: int) -> None:
        """After creation or a restart: follower of nobody; one voter alone stands at once."""
        self.host.members_changed(self.group)
        if self._may_campaign() and (self.others() == [] or self.is_to_lead_first()):
            self.on_no_leader(now_ms)
        elif (first := self.awaited()) is not None and first != self.me and self.is_heard(first, now_ms):
            self.wait_for_named(now_ms)
        else:
            self.schedule_retry(now_ms)

    def start_again(self, now_ms: int) -> None:
        """The journal is open again, or moves again: who has no leader may stand."""
        if self.deadline_ms is None and not self._leader_is_fresh(now_ms):
            self.schedule_retry(now_ms)

    def receive(self, message: GroupMessage, boot_id: int, now_ms: int) -> None:
        """A message for another incarnation is dropped, and so is everything while the journal is closed."""
        if message.target != self.me or not self.host.journal_open or self.leaving:
            return
        kind = type(message)
        if kind is AppendEntries:
            self.on_append(message, boot_id, now_ms)  # type: ignore[arg-type]
        elif kind is Ack:
            self.on_ack(message, now_ms)  # type: ignore[arg-type]
        elif kind is Reject:
            self.on_reject(message, now_ms)  # type: ignore[arg-type]
        elif kind is RequestVote:
            self.on_request_vote(message, now_ms)  # type: ignore[arg-type]
        elif kind is Vote:
            self.on_vote(message, now_ms)  # type: ignore[arg-type]
        elif kind is TimeoutNow:
            self.on_timeout_now(message, now_ms)  # type: ignore[arg-type]
        elif kind is Install:
            self.on_install(message, boot_id, now_ms)  # type: ignore[arg-type]
        elif kind is Resign:
            self.on_resign(message, now_ms)  # type: ignore[arg-type]

    def became_durable(self, sequence: int, now_ms: int) -> None:
        super().became_durable(sequence, now_ms)
        if self.role is CANDIDATE and self.hard_sequence <= sequence:
            self.vote_became_durable(now_ms)

    def flush(self, now_ms: int) -> None:
        """The end of a turn: what is to be sent."""
        if self.carried:
            self.flush_carried(now_ms)
        elif self.role is LEADER:
            self.flush_leader(now_ms)
        else:
            self.flush_follower()

    def on_deadline(self, now_ms: int) -> None:
        self.deadline_ms = None
        if self.role is LEADER:
            self.leader_deadline(now_ms)
        elif self.role is FOLLOWER:
            self.on_no_leader(now_ms)
        else:
            self.campaign_ended(now_ms)

    def changed_role(self) -> None:
        super().changed_role()
        if self.role is FOLLOWER and self.leader is not None:
            self.follows_now()

    # Links.

    def link_up(self, voter: Voter, now_ms: int, *, anew: bool) -> None:
        """`voter`'s core is heard over a new connection, or `anew`: after a silence, or after a start."""
        if self.role is LEADER:
            self.reset_peer(voter)
            self._wake_if_busy(now_ms)
        elif anew and voter == self.leader:
            self.doubt_leader(now_ms)
        elif self.deadline_ms is None and not self._leader_is_fresh(now_ms):
            self.schedule_campaign(now_ms)

    def link_silent(self, voter: Voter, now_ms: int) -> None:
        """`voter`'s core is not heard any more."""
        if self.role is LEADER:
            peer = self.peers.get(voter)
            if peer is not None:
                self.reset_peer(voter)
            self.check_quorum(now_ms)
        elif voter in (self.leader, self.awaited()):
            self.schedule_campaign(now_ms)

    def peer_leads(self, voter: Voter, term: int, now_ms: int, *, leads: bool) -> None:
        """What `voter`'s core says of its replica on a new session, or with a heartbeat that it resigned."""
        if voter == self.leader and term >= self.term and not (leads and term == self.term) and not self.is_leader:
            self.leader_resigned()
            self.schedule_campaign(now_ms)

    # From one core of the node to another (raft-rules 5).

    def leave(self, now_ms: int) -> None:
        """Leads, votes and acknowledges here no more. What it has given the journal becomes durable."""
        self.leaving = True
        if self.is_leader:
            self.resign(now_ms)
        else:
            self.step_down()
            self.own_term_failed()
            self.leader = None
            self.changed_role()
        self.follows_now()
        self.ack_due = False
        self.deadline_ms = None

    def stay(self, now_ms: int) -> None:
        """The move is given up."""
        self.leaving = False
        self.schedule_retry(now_ms)

    def is_settled(self) -> bool:
        """Everything of it is durable: nothing that was promised is still on its way to the disk."""
        under_way = self.undurable or self.hard_sequence > self.host.durable_sequence or self.adopting is not None
        return not under_way and not self.must_reopen

    def replica_moved(self, node: NodeId, core: CoreId, now_ms: int) -> None:
        """Another node's replica lives on another core of it now: what was under way to it is lost."""
        self.cores[node] = core
        for voter in self._ever_reached():
            if voter.node == node:
                self._forget_place(voter)
        self.host.members_changed(self.group)
        if self.deadline_ms is None and not self._leader_is_fresh(now_ms):
            self.schedule_campaign(now_ms)

    def _ever_reached(self) -> list[Voter]:
        """Whoever was written to from here: also one that this replica does not know of now, because its own log has
        lost the configuration that names it. It may be a voter again.
        """
        return list(self.addresses)

    def _forget_place(self, voter: Voter) -> None:
        self.reset_peer(voter)
        self.addresses.pop(voter, None)
        self.links.pop(voter, None)
        if voter in self.peers:
            self.peers[voter].link = None

    def stand_at_once(self, now_ms: int) -> None:
        """It has no leader, and need not wait for its time to ask whether it would be elected; but waits where that can
        come to nothing now.
        """
        if self.role is FOLLOWER and self._should_stand(now_ms):
            self.on_deadline(now_ms)

    def fresh_leader(self, now_ms: int) -> Voter | None:
        """Who leads, as far as this replica has heard lately."""
        return self.leader if self._leader_is_fresh(now_ms) else None

    def in_touch(self) -> tuple[Voter, ...]:
        """Of a leader: itself and the voters that are heard and have had everything since they are."""
        assert self.config is not None
        near = [peer.voter for peer in self.peers.values() if peer.is_in_sync and self._hears(peer)]
        return tuple(sorted({self.me, *near} & self.config.voters))

    def all_in_sync(self) -> bool:
        """Of a leader: whether all peers that are heard are in sync."""
        return all(peer.is_in_sync for peer in self.rows if self._hears(peer))

    # Values.

    # Rule: No checkpoint of a replica has a cut without the term of the cut. Held by tests/raft/test_replication.py,
    # tests/raft/explore.py.
    def checkpoint(self) -> Checkpoint:
        """What is durable of the log; a cut that is under way has been made in it. So term and vote are those that were
        given to the journal, durable or not: no cut may come back without its term (raft-rules 1).
        """
        log = ReplicaLog(self.log.creation_config)
        log.load(self.adopting.log if self.adopting is not None else self.log.image())
        durable = self.adopting.durable if self.adopting is not None else self.durable
        log.cut(durable.offset, durable.epoch)
        return checkpoint_of(self.journalled_term, self.journalled_vote, self.commit, log)

    def is_committed(self, position: Position) -> bool:
        """Whether a wait for this position is over: committed, and still in the log."""
        return position <= self.commit and self.log.contains(position)
