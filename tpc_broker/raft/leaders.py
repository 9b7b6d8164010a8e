"""The leader: proposals, what each peer is sent, commits, hand-over, reads.

raft-rules 3.1-3.4, 6.2; thesis 3.5, 3.10, 10.2.

Theory of operation
-------------------
A leader that has won appends its marker, arms the steady machine, and treats every peer as unknown: PROBE, beginning
at the position in front of its marker. A probe carries items at once; its answer is an Ack, or a Reject that says
where to try. A peer whose acknowledged position is of this leader's own epoch replicates: items leave without
waiting for answers, within bounds of messages, bytes per peer and bytes per link. Items of older epochs are sent
from PROBE, one message at a time. What is under way is not sent again before the peer has said that it lacks it.

    PROBE       one message under way; its answer says where the logs part
    REPLICATE   steady: pipelined
    CATCH_UP    the items it needs are in files: the driver reads them (`ReadItems`)
    INSTALL     it has nothing, or what it needs is not in items any more: the driver ships segments (`ShipSegments`)

Nothing is queued per slow peer: `next` is a place in the log. A peer whose link is silent is not sent anything, and a
message without an answer makes its peer a PROBE again after `resend_ms`, which is asked without items where what it was
sent ends: it has that, be it durable or not, or says what it lacks. So when all who can be heard have everything and
know the commit, the group asks for no time at all.

A peer that is heard and takes nothing is *mute* after two of these, and left alone: it holds up nobody (`mute_peers`).

Commit is the steady machine's. A match counts only from an Ack of the armed term for a position of that term's epoch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tpc_broker.raft.items import START, Batch, Position, item_bytes
from tpc_broker.raft.leading import Reading, Transfer
from tpc_broker.raft.messages import (
    TRANSFER,
    Ack,
    AppendEntries,
    Install,
    Reject,
    RequestVote,
    Resign,
    TimeoutNow,
)
from tpc_broker.raft.output import (
    FOLLOWER,
    Accepted,
    HandOverBegun,
    LeaderReady,
    ReadItems,
    Refusal,
    ShipSegments,
)
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.steady import (
    ACKNOWLEDGE,
    CATCH_UP,
    COMMITTED,
    INSTALL,
    NONE,
    NOT_STEADY,
    NOTHING,
    ON_ACK,
    ON_APPEND,
    ON_RECEIVE,
    ON_SEND,
    ON_SENT,
    OWN_BIT,
    PROBE,
    REPLICATE,
    SEND,
    SEND_COMMIT,
    Outcome,
    SteadyRole,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.raft.items import Item, Proposal, Voter
    from tpc_broker.raft.messages import Reason
    from tpc_broker.raft.steady import Steady

RESENDS_COUNTED = 16


class Leaders(Reading):
    """What a replica does as a leader.

    contiguous_from_offset    below it compaction has left gaps, and an AppendEntries never carries a gap
    """

    __slots__ = (
        "contiguous_from_offset",
        "transfer",
        "uncommitted",
        "uncommitted_bytes",
    )

    def init_layers(self) -> None:
        super().init_layers()
        self.transfer: Transfer | None = None
        self.contiguous_from_offset = 0

    def begin_leading(self, before: Position, now_ms: int) -> None:
        self.begin_reading()
        self.uncommitted: deque[tuple[int, int]] = deque()
        self.uncommitted_bytes = 0
        self.transfer = None
        self.peers = {voter: Peer(voter, before) for voter in self.others()}
        self._arm_leader()
        self.changed_role()
        self.host.flush_later(self.group)
        self.deadline_ms = None
        self.check_quorum(now_ms)

    def _arm_leader(self) -> None:
        config = self.config
        assert config is not None
        self.rows = [self.peers[voter] for voter in sorted(self.peers)]
        bits = {peer.voter: 1 << index for index, peer in enumerate(self.rows)}
        bits[self.me] = OWN_BIT
        old = sum([bits[voter] for voter in config.old])
        new = sum([bits[voter] for voter in config.new]) if config.is_joint else old
        self.arm(SteadyRole.LEADER, self.rows, old, new)

    def is_electing(self) -> bool:
        return super().is_electing() or (self.is_leader and not self.is_ready)

    def campaign(self, reason: Reason, now_ms: int, *, aborting: bool = False) -> None:
        """A leader that stands again sends what it has before it asks for votes. Else those that are to vote would lack
        what is in front of the next term's first item, and it would be found out with one more question and answer.
        """
        if self.is_leader:
            for index, peer in enumerate(self.rows):
                if peer.state is REPLICATE and self._hears(peer):
                    self._replicate(index, peer, now_ms)
        super().campaign(reason, now_ms, aborting=aborting)

    def step_down(self) -> None:
        """Ends a leadership: says so, unless the next term is to be this replica's own, and fails what needs a
        leader.
        """
        if self.is_leader:
            self._end_leading()
        super().step_down()

    def _end_leading(self) -> None:
        if self.led_term != self.term:
            self.tell_resigned(self.term)
        for peer in self.rows:
            self._forget_inflight(peer)
        self.end_reading()
        self.transfer = None
        self.peers, self.rows = {}, []

    def resign(self, now_ms: int) -> None:
        """Leads no more, without a successor: no quorum, no journal, or the replica is taken away."""
        assert self.is_leader
        self.step_down()
        self.leader = None
        self.resigned_term = self.term
        self.changed_role()
        self.schedule_retry(now_ms)

    # Proposals.

    def propose(self, proposals: Sequence[Proposal]) -> Accepted | Refusal:
        refusal = self.refuses()
        if refusal is not None:
            return refusal
        steady = self.steady
        assert steady is not None
        term, base_offset, length = self.term, self.log.end_offset, 0
        end_offset = base_offset
        batches = []
        for records_count, batch_length, payload in proposals:
            batches.append(Batch(term, end_offset + records_count, end_offset, batch_length, payload))
            end_offset += records_count
            length += batch_length
        self._append_batches(batches)
        steady.step(ON_APPEND, end_offset)
        self.uncommitted.append((end_offset, length))
        self.uncommitted_bytes += length
        self.host.flush_later(self.group)
        return Accepted(Position(term, end_offset), base_offset)

    def refuses(self) -> Refusal | None:
        """Why it would take no proposal now."""
        if not self.is_leader:
            return Refusal.HELD if self.led_term else Refusal.NOT_LEADER
        if self.transfer is not None:
            return Refusal.HELD
        if not self.host.journal_open:
            return Refusal.JOURNAL_CLOSED
        if self.uncommitted_bytes >= self.settings.uncommitted_bytes_max:
            return Refusal.TOO_MUCH_UNCOMMITTED
        return None

    # Commit.

    def on_outcome(self, outcome: Outcome, now_ms: int) -> None:
        if outcome is COMMITTED:
            self._committed(now_ms)
        elif outcome is ACKNOWLEDGE:
            self.take_commit()
            self.ack_due = True

    def _committed(self, now_ms: int) -> None:
        self.take_commit()
        while self.uncommitted and self.uncommitted[0][0] <= self.commit.offset:
            self.uncommitted_bytes -= self.uncommitted.popleft()[1]
        self.host.flush_later(self.group)
        if not self.is_ready:
            self.is_ready = True
            self.host.tell(LeaderReady(self.group, self.term, self.log.markers[-1].start_offset))
            self.own_marker_committed(now_ms)

    def own_marker_committed(self, now_ms: int) -> None:
        raise NotImplementedError

    # What peers say.

    def on_ack(self, message: Ack, now_ms: int) -> None:
        peer = self.peers.get(message.source)
        if self.see_term(message.term):
            self.schedule_retry(now_ms)
            return
        if not self.is_leader:
            self._disclaim(message)
            return
        steady = self.steady
        if peer is None or steady is None or not self._is_of_own_term(message):
            return
        known = message.commit.offset if message.commit.epoch == self.term else NONE
        inflight_bytes, before = peer.inflight_bytes, (peer.match, peer.prev)
        index = self.rows.index(peer)
        outcome = steady.step(ON_ACK, index, message.term, message.position.epoch, message.position.offset, known)
        if outcome is NOT_STEADY:
            self._ack_of_unsteady(peer, message, known, now_ms)
        else:
            self._released_inflight(peer, inflight_bytes - peer.inflight_bytes)
            self.on_outcome(outcome, now_ms)
        peer.sent_ms, peer.asks = now_ms, False
        if not peer.inflight:
            peer.waits_ms = now_ms
        if (peer.match, peer.prev) != before or peer.match == self.log.end_offset:
            peer.waits_ms = now_ms
            self._answers(peer)
        elif self.is_left_alone(peer):
            self.host.mute.may_try(self.address_of(peer.voter), self.group)
        if peer.next < steady.end_offset or peer.told < steady.commit_offset:
            self.host.flush_later(self.group)
        self.peer_progressed(peer, now_ms)

    def _disclaim(self, message: Ack | Reject) -> None:
        """Its sender takes this replica for the leader of a term that it leads no more, perhaps after a late message.

        Not while a leader stands for its own next term: that ends in a marker or in a Resign.
        """
        if message.term != self.led_term:
            self.send(Resign(self.group, self.me, message.source, message.term))

    def on_request_vote(self, message: RequestVote, now_ms: int) -> None:
        """Who asks for votes does not know that this replica leads, or is beyond its term: a probe shows which."""
        super().on_request_vote(message, now_ms)
        if self.is_leader:
            self.reset_peer(message.source)

    def _is_of_own_term(self, message: Ack) -> bool:
        """raft-rules 3.3: an ack of another term says nothing about this one."""
        return message.term == self.term

    def _counts(self, message: Ack) -> bool:
        """raft-rules 3.3: only a position of the own epoch is a match."""
        return message.position.epoch == self.term

    def _ack_of_unsteady(self, peer: Peer, message: Ack, known: int, now_ms: int) -> None:
        """The answer to a probe, to an Install, or to something sent before a probe."""
        position = message.position
        peer.known = max(peer.known, known)
        if peer.state in (PROBE, CATCH_UP) and position < peer.upto:
            self._ack_on_the_way(peer, message, now_ms)
        elif self._counts(message):
            assert position.offset <= self.log.end_offset, (peer.voter, position, self.log.last)
            self._forget_inflight(peer)
            if peer.state is not REPLICATE:
                peer.state, peer.lacks = REPLICATE, self.log.end_offset
            self._match(peer, position.offset, now_ms)
        elif peer.state is not REPLICATE and position >= peer.prev and self.log.contains(position):
            self._probe(peer, position)
        self.host.flush_later(self.group)

    # Rule: What a peer was sent is not sent again because only some of it is durable there so far, or because the
    # answer takes long: it is asked where that ends, and says whether it has that. A needless message is answered, too,
    # and if an answer made the next one, there would be as many copies of everything as there are answers under way.
    # Held by tests/raft/test_sent_twice.py.
    def _ack_on_the_way(self, peer: Peer, message: Ack, now_ms: int) -> None:
        """Of some of what it was sent, or of what it was sent before: the answer to the last of it is still to come."""
        position = message.position
        if peer.state is PROBE and position > peer.prev and self.log.contains(position):
            peer.prev = position
        if self._counts(message):
            self._raise_match(peer, position.offset, now_ms)

    def _match(self, peer: Peer, offset: int, now_ms: int) -> None:
        peer.next = max(peer.match, offset)
        self._raise_match(peer, offset, now_ms)

    def _raise_match(self, peer: Peer, offset: int, now_ms: int) -> None:
        assert self.steady is not None
        if offset > peer.match:
            peer.match = offset
            self.on_outcome(self.steady.advance(), now_ms)

    def on_reject(self, message: Reject, now_ms: int) -> None:
        if self.see_term(message.term):
            self.schedule_retry(now_ms)
            return
        if not self.is_leader:
            self._disclaim(message)
            return
        peer = self.peers.get(message.source)
        if peer is None or message.term != self.term:
            return
        self.rejects += 1
        if self.settings.adopts and peer.state is INSTALL and peer.install == message.prev:
            # What was shipped is not there any more. Should this be the answer to an earlier probe, it does no harm.
            peer.awaiting, peer.install = False, None
            self._answers(peer)
            self.host.flush_later(self.group)
            return
        tried = Position(self.term, peer.next) if peer.state is REPLICATE else peer.upto
        if message.prev > tried or (peer.state is PROBE and message.prev not in (peer.prev, peer.upto)):
            return
        matched = Position(self.term, peer.match) if peer.match != NONE else START
        if message.prev <= matched or peer.state in (CATCH_UP, INSTALL):
            return
        found = self.log.common_with(message.end.epoch, message.end.offset)
        if found < message.prev:  # never forward
            if peer.state is PROBE and (message.prev == peer.prev or found > peer.prev):
                self._answers(peer)
            self._probe(peer, max(found, matched))
            peer.asks = False
            self.host.flush_later(self.group)

    def _probe(self, peer: Peer, prev: Position) -> None:
        self._forget_inflight(peer)
        peer.state, peer.awaiting, peer.install = PROBE, False, None
        peer.prev = peer.upto = prev

    def _forget_inflight(self, peer: Peer) -> None:
        self._released_inflight(peer, peer.inflight_bytes)
        peer.inflight.clear()
        peer.inflight_bytes = 0

    def _released_inflight(self, peer: Peer, released: int) -> None:
        link = self.link_to(peer.voter) if released else None
        if link is not None:
            link.inflight_bytes -= released
            if link.waiting and link.has_room():
                waiting, link.waiting = link.waiting, {}
                for group in waiting:
                    self.host.flush_later(group)

    def reset_peer(self, voter: Voter) -> None:
        """Its connection or its process is new: what was under way may be lost."""
        peer = self.peers.get(voter)
        if peer is not None:
            self._probe(peer, self._known_of(peer))
            peer.told, peer.resent, peer.asks = peer.known, 0, False
            self.host.flush_later(self.group)

    def _answers(self, peer: Peer) -> None:
        """It has got somewhere. If it was mute, its core takes what it is sent again."""
        was_mute, peer.resent, peer.asks = peer.is_mute, 0, False
        if was_mute:
            self.host.mute.takes_again(self.address_of(peer.voter))

    def _grows_silent(self, peer: Peer, now_ms: int, *, in_vain: bool) -> None:
        """What it was sent brought nothing, in all the time that it had. `in_vain`: it was sent more and more."""
        peer.resent = min(peer.resent + 1 + in_vain, RESENDS_COUNTED)
        peer.asks = True
        if peer.is_mute:
            peer.lacks = max(peer.lacks, self.log.end_offset, peer.match + 1)
            self.host.mute.takes_nothing(self.address_of(peer.voter), self.group, now_ms)

    def _known_of(self, peer: Peer) -> Position:
        """The furthest position that is known to be its."""
        return Position(self.term, peer.match) if peer.match != NONE else peer.prev

    # What peers are sent.

    def flush_leader(self, now_ms: int) -> None:
        """At the end of a turn: items, probes, commit frames, hand-over and reads; then when to look again."""
        for index, peer in enumerate(self.rows):
            if self._hears(peer) and not self.is_left_alone(peer):
                self._flush_peer(index, peer, now_ms)
        if self.transfer is not None:
            self._flush_transfer(self.transfer, now_ms)
        if self.reads_new and self.is_ready:
            self._begin_reads()
        self._wake_if_busy(now_ms)

    def _hears(self, peer: Peer) -> bool:
        """Its link was not silent when that was last looked at."""
        link = peer.link = peer.link or self.link_to(peer.voter)
        return link is not None and link.was_fresh

    def _flush_peer(self, index: int, peer: Peer, now_ms: int) -> None:
        if peer.state is REPLICATE:
            self._replicate(index, peer, now_ms)
        elif peer.state is PROBE and not peer.awaiting:
            self._send_probe(peer, now_ms)
        elif peer.state is INSTALL and peer.install is None and not peer.awaiting:
            self._ship(peer)

    def _replicate(self, index: int, peer: Peer, now_ms: int) -> None:
        steady, link = self.steady, self.link_to(peer.voter)
        assert steady is not None
        while (outcome := self._next_to_send(steady, index, peer)) is SEND:
            if link is not None and not link.has_room():
                link.waiting[self.group] = None
                return
            prev = Position(self.term, peer.next)
            items = self._items_after(prev)
            if items is None:
                self.lacks_items(peer, prev, now_ms)
                return
            length = sum(map(item_bytes, items))
            self._send_items(peer, prev, items, now_ms)
            steady.step(ON_SENT, index, items[-1].end_offset, length)
            if link is not None:
                link.inflight_bytes += length
        if outcome is SEND_COMMIT and self._may_tell_commit(peer, now_ms):
            self._send_items(peer, Position(self.term, peer.next), [], now_ms)
            steady.step(ON_SENT, index, peer.next, 0)

    def _next_to_send(self, steady: Steady, index: int, peer: Peer) -> Outcome:
        """One message at a time to one that was asked again, until it gets somewhere."""
        return NOTHING if peer.resent and peer.inflight else steady.step(ON_SEND, index)

    def _may_tell_commit(self, peer: Peer, now_ms: int) -> bool:
        """The commit rides on the next items; alone only after some silence."""
        return now_ms - peer.sent_ms >= self.settings.commit_silence_ms

    def _items_after(self, prev: Position) -> list[Item] | None:
        return self.log.items_after(prev, self.settings.append_items_max, self.settings.append_bytes_max)

    def _send_items(self, peer: Peer, prev: Position, items: Sequence[Item], now_ms: int) -> None:
        peer.sent_ms = now_ms
        if not peer.inflight:
            peer.waits_ms = now_ms
        self.send(AppendEntries(self.group, self.me, peer.voter, self.term, prev, tuple(items), self.commit))

    def _send_probe(self, peer: Peer, now_ms: int) -> None:
        link = self.link_to(peer.voter)
        if link is not None and not (peer.asks or peer.is_mute or link.has_room()):
            link.waiting[self.group] = None
            return
        items = [] if peer.asks else self._items_after(peer.prev)
        if items is None:
            self._fetch_from_files(peer)
            return
        peer.awaiting = True
        self._tell_with(peer, peer.upto if peer.asks else peer.prev, items, now_ms)

    def _tell_with(self, peer: Peer, prev: Position, items: Sequence[Item], now_ms: int) -> None:
        """A message from the unsteady side carries the commit too."""
        if self.commit.epoch == self.term:
            peer.told = self.commit.offset
        length, link = sum(map(item_bytes, items)), self.link_to(peer.voter)
        peer.inflight_bytes += length
        peer.upto = items[-1].position if items else prev
        if link is not None:
            link.inflight_bytes += length
        self._send_items(peer, prev, items, now_ms)

    # Peers behind what is in memory.

    def lacks_items(self, peer: Peer, prev: Position, now_ms: int) -> None:  # noqa: ARG002 -- the layer above may wait
        """Of a peer that replicates: what is behind `prev` is not in memory any more."""
        self._forget_inflight(peer)
        peer.prev = prev
        self._fetch_from_files(peer)

    def _fetch_from_files(self, peer: Peer) -> None:
        if self.needs_segments(peer.prev):
            self._begin_install(peer)
        else:
            self._read_items(peer, peer.prev)

    def needs_segments(self, prev: Position) -> bool:
        """What it needs next was deleted or compacted, or, if so set, it has nothing at all: then segments travel."""
        gone = prev.offset < max(self.log.log_start_offset, self.contiguous_from_offset) or not self.log.contains(prev)
        return gone or (self.settings.ships_to_empty and prev == START and self.commit > START)

    def not_read(self, target: Voter, prev: Position, *, ships: bool) -> None:
        """Items that were to be read: so many that segments are better, or it could not be, and is asked for anew."""
        peer = self.peers.get(target)
        if not self.is_leader or peer is None or peer.state is not CATCH_UP or peer.prev != prev:
            return
        if ships:
            self._begin_install(peer)
        else:
            self._fetch_from_files(peer)

    def awaits_segments(self, target: Voter) -> bool:
        """Whether it is led here, and this one still needs what `ShipSegments` asked for."""
        peer = self.peers.get(target)
        return self.is_leader and peer is not None and peer.state is INSTALL and peer.install is None

    def compacted(self, contiguous_from_offset: int) -> None:
        """Whoever needs something below gets segments, also one that is being read for right now."""
        if contiguous_from_offset <= self.contiguous_from_offset:
            return
        assert contiguous_from_offset <= self.high_watermark, (contiguous_from_offset, self.commit)
        self.contiguous_from_offset = contiguous_from_offset
        for peer in self.rows:
            if peer.state is CATCH_UP and self.needs_segments(peer.prev):
                self._fetch_from_files(peer)

    def _read_items(self, peer: Peer, prev: Position) -> None:
        self._forget_inflight(peer)
        peer.state, peer.prev, peer.upto, peer.awaiting = CATCH_UP, prev, prev, True
        self.host.tell(ReadItems(self.group, peer.voter, prev, self.settings.append_bytes_max))

    def items_read(self, target: Voter, prev: Position, batches: Sequence[Batch], now_ms: int) -> None:
        """The batches behind `prev`, from files. Markers are put between them from the log's own table."""
        peer = self.peers.get(target)
        if not self.is_leader or peer is None or peer.state is not CATCH_UP or peer.prev != prev:
            return
        upto = batches[-1].position if batches else self.log.start
        markers = [marker for marker in self.log.markers if prev < marker.position <= upto]
        items: list[Item] = [*batches, *markers]
        items.sort(key=lambda item: item.position)
        peer.state, peer.awaiting = PROBE, True
        self._tell_with(peer, prev, items, now_ms)
        self._wake_if_busy(now_ms)

    def _begin_install(self, peer: Peer) -> None:
        peer.state, peer.awaiting, peer.install, peer.resent = INSTALL, False, None, 0
        self._ship(peer)

    def _ship(self, peer: Peer) -> None:
        """Ships what is committed. Behind it come items, from memory or from files."""
        if self.commit > START:
            peer.awaiting = True
            self.host.tell(ShipSegments(self.group, peer.voter, self.commit))

    def shipped(self, target: Voter, position: Position, now_ms: int) -> None:
        peer = self.peers.get(target)
        if not self.is_leader or peer is None or peer.state is not INSTALL or not self.log.contains(position):
            return
        peer.install = position
        self._send_install(peer, now_ms)
        self._wake_if_busy(now_ms)

    def _send_install(self, peer: Peer, now_ms: int) -> None:
        assert peer.install is not None
        peer.sent_ms = now_ms
        markers = self.log.markers_upto(peer.install)
        starts = self.log.log_start_offset
        self.send(Install(self.group, self.me, peer.voter, self.term, peer.install, markers, starts))

    # Time.

    def _is_busy(self, peer: Peer) -> bool:
        """Something is under way to it, or it does not know the commit."""
        assert self.steady is not None
        if self.is_left_alone(peer):
            return False
        if peer.state is REPLICATE:
            return bool(peer.inflight) or peer.known < self.steady.commit_offset
        return peer.state is PROBE or peer.install is not None

    def _wake_if_busy(self, now_ms: int) -> None:
        """The next look: for a lost message, a commit to be told, or a hand-over; None if there is nothing under
        way.
        """
        assert self.steady is not None
        wait: int | None = None
        for peer in self.rows:
            if self._hears(peer) and self._is_busy(peer):
                tells = peer.state is REPLICATE and peer.told < self.steady.commit_offset
                least = self.settings.commit_silence_ms if tells else self._resend_after_ms(peer)
                wait = least if wait is None else min(wait, least)
        if self.reads or self.transfer is not None:
            wait = min(wait or self.settings.resend_ms, self.settings.resend_ms)
        longer = self.next_look_ms(now_ms)
        if longer is not None:
            wait = longer if wait is None else min(wait, longer)
        if wait is None:
            self.deadline_ms = None
        elif self.deadline_ms is None or not now_ms <= self.deadline_ms <= now_ms + wait:
            self.wake_in(wait, now_ms)

    def next_look_ms(self, now_ms: int) -> int | None:
        raise NotImplementedError

    def _resend_after_ms(self, peer: Peer) -> int:
        """Twice as long each time: a core that does not get to answer must not get more and more to do. Segments take
        their time anyhow, and who tries does so for a moment.
        """
        if peer.state is INSTALL or peer.is_mute:
            return self.settings.resend_ms * (1 + peer.is_mute)
        return min(self.settings.resend_ms << peer.resent, self.settings.resend_ms_max)

    def leader_deadline(self, now_ms: int) -> None:
        """Sends again what was not answered."""
        for peer in self.rows:
            in_vain = bool(peer.inflight) and now_ms - peer.waits_ms >= self.settings.in_vain_ms
            if not self._is_busy(peer) or (now_ms - peer.sent_ms < self._resend_after_ms(peer) and not in_vain):
                continue
            if peer.state is PROBE and not peer.awaiting:
                continue  # there is no room for it
            self._grows_silent(peer, now_ms, in_vain=in_vain)
            if peer.state is REPLICATE:
                peer.told = peer.known
                if peer.inflight:
                    sent = Position(self.term, peer.next)
                    self._probe(peer, self._known_of(peer))
                    peer.upto = sent
            elif peer.state is PROBE:
                self._forget_inflight(peer)
                peer.awaiting = False
            elif peer.install is not None and self.is_heard(peer.voter, now_ms):
                self._send_install(peer, now_ms)
        if self.transfer is not None and now_ms >= self.transfer.deadline_ms:
            self.transfer = None
        if self.reads:
            self._ask_again()
        self.flush_leader(now_ms)

    def check_quorum(self, now_ms: int) -> None:
        """Thesis 6.2: a leader that hears no quorum leads no more (raft-rules 3.5)."""
        if self.is_leader and not self._quorum_is_heard(now_ms):
            self.lost_quorum(now_ms)

    def lost_quorum(self, now_ms: int) -> None:
        self.resign(now_ms)

    def peer_progressed(self, peer: Peer, now_ms: int) -> None:  # noqa: ARG002 -- the layer above goes on with it
        """Its match may have risen: a change of voters or a hand-over may go on."""
        if self.transfer is not None and self.transfer.target == peer.voter:
            self.host.flush_later(self.group)

    # Hand-over.

    def transfer_leadership(self, target: Voter, now_ms: int) -> Refusal | None:
        """Thesis 3.10: no more proposals until the target has everything, then it is told to stand. What was proposed
        is committed before, unless a quorum or the own disk is slow: else who waits is told that this leads no more.
        """
        if not self.is_leader:
            return Refusal.NOT_LEADER
        if self.config is None or target not in self.config.voters or target not in self.peers:
            return Refusal.NOT_A_VOTER
        lasts_ms = self.host.patience.leisure * self.settings.election_timeout_ms
        self.transfer = Transfer(target, now_ms + lasts_ms, now_ms + self.settings.resend_ms)
        self.host.tell(HandOverBegun(self.group))
        self.host.flush_later(self.group)
        return None

    def _flush_transfer(self, transfer: Transfer, now_ms: int) -> None:
        peer, steady = self.peers[transfer.target], self.steady
        assert steady is not None
        told = transfer.told_ms
        due = told is None or now_ms - told >= self.settings.resend_ms
        settled = self.commit.offset == self.log.end_offset or now_ms >= transfer.settles_until_ms
        if due and settled and self._may_hand_over(peer):
            transfer.told_ms = now_ms
            self.send(TimeoutNow(self.group, self.me, peer.voter, self.term, self.commit))

    def _may_hand_over(self, peer: Peer) -> bool:
        return peer.state is REPLICATE and peer.match == self.log.end_offset

    def on_timeout_now(self, message: TimeoutNow, now_ms: int) -> None:
        """raft-rules 6.2: the commit position comes with it, under the same condition as in a commit frame."""
        if message.term != self.term or message.source != self.leader or self.role is not FOLLOWER:
            return
        if self.steady is not None and message.commit.epoch == self.term:
            end_offset = self.log.end_offset
            self.steady.step(ON_RECEIVE, self.term, self.term, end_offset, end_offset, *message.commit)
            self.take_commit()
        if self._may_campaign():
            self.campaign(TRANSFER, now_ms)
