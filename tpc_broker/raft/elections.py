"""Elections: who may stand, who is voted for, who has won (raft-rules 2; thesis 3.4, 3.6.1, 4.2.3, 9.6).

Theory of operation
-------------------
A replica stands when its leader is not fresh. It first asks whether it would be elected (*pre-vote*): nobody's term
moves by that, so a replica that was cut off does not depose a leader by coming back. Then term and vote go into the
journal, *behind* all items that were appended, and the request leaves when they are durable. That order is why a
vote compares with the whole log: undurable items are in front of the vote in one journal, so whoever has the vote
has them too.

A vote is refused, without a look at the term, while the voter's leader is fresh; so a majority that hears its leader
cannot be disturbed. The leader itself may ask to be deposed: to hand over (TRANSFER) or to begin its own next term,
where a configuration may change (OWN_NEXT_TERM). Any request from the own leader shows that it leads no more.

The voter's configuration plays no part in a vote: who is named by the candidate's log may vote for it, and only the
candidate counts. It counts under the configuration in its log, committed or not, and its own vote only when that is
durable.

Nobody leads one term twice: winning is only for a campaign of this process, and a term is campaigned for only once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpc_broker.raft.items import START, Config, Marker, Position, Voter, simple
from tpc_broker.raft.messages import OWN_NEXT_TERM, TIMEOUT, TRANSFER, Reason, RequestVote, Resign, Vote
from tpc_broker.raft.output import CANDIDATE, FOLLOWER, LEADER, PRE_CANDIDATE
from tpc_broker.raft.replica import Replica

if TYPE_CHECKING:
    from tpc_broker.raft.links import Link

FIRST_LEADER_TIMEOUTS: Final = 10
"""So many election time-outs a named leader has to begin, while it is heard: of thousands each waits for its turn."""


@lru_cache(maxsize=1_024)
def _standing(config: Config, without: Voter | None) -> tuple[Voter, ...]:
    """Who may stand when a leader is gone, in order: the same for all groups of one configuration."""
    return tuple(sorted(config.voters - {without}))


class Elections(Replica):
    """Campaigns and votes.

    granted      who has granted the campaign under way, the own vote included once it is durable
    aborting     the campaign is one under the old voters alone (raft-rules 6.3)
    led_term     the term that this process gave up to stand; told as a Resign if it is not elected at once
    stood_ms     when the campaign began
    is_named     it is to lead the first term by the record that made the group, and has not stood yet in any life
    """

    __slots__ = ("aborting", "granted", "is_named", "led_term", "reason", "stood_ms")

    def init_layers(self) -> None:
        super().init_layers()
        self.granted: set[Voter] = set()
        self.reason = TIMEOUT
        self.aborting = self.is_named = False
        self.led_term = self.stood_ms = 0

    # The first term.

    # Rule: Where the record that makes a group names who leads its first term, every replica that the record names
    # begins in that term with its vote given, whenever it begins: nothing of it may begin below. Who is named stands
    # once, its own vote in the journal first, and never again where that may be on its disk. Why:
    # docs/decisions/2026-11-29-named-leaders.md. Held by tests/raft/test_named_leaders.py,
    # tests/simulator/test_raft.py.
    def begin_named(self, first: Voter) -> None:
        """Before `start`. A restart finds nothing in the journal (this is the beginning), the marker of the first term
        without the vote that the record gave, or more.
        """
        if not self.is_voter or self.term > 1 or self.vote is not None:
            return
        self.is_named = self.term == 0 and first == self.me
        self.term = self.journalled_term = 1
        self.vote = self.journalled_vote = first

    def is_to_lead_first(self) -> bool:
        return self.is_named and self.term == 1

    def awaited(self) -> Voter | None:
        """Who is to lead the first term, of which nothing has come yet."""
        return self.vote if self.term == 1 and self.leader is None and self.log.last == START else None

    def wait_for_named(self, now_ms: int) -> None:
        """Others would stand in vain, and depose it. When its link falls silent they need not wait any more."""
        self.wake_in(FIRST_LEADER_TIMEOUTS * self.host.patience.leisure * self.settings.election_timeout_ms, now_ms)

    def _begin_first_term(self, now_ms: int) -> None:
        """Elected as soon as it cannot be forgotten that it was: a term is led once."""
        self.is_named = False
        self.role = CANDIDATE
        self.granted = set(self._quorum_config().voters - {self.me})
        self.journalled_vote = None
        self.journal_hard_state()
        self.changed_role()
        self.schedule_retry(now_ms)

    # Standing.

    def schedule_campaign(self, now_ms: int) -> None:
        """The leader is gone: the voters stand one after the other, each group beginning with another of them."""
        if self._may_campaign():
            turn_ms = self.settings.notice_ms + self._rank() * self.settings.rank_delay_ms
            self.wake_in(turn_ms + self._yields_ms(), now_ms)

    def schedule_retry(self, now_ms: int) -> None:
        """After a start, or a campaign without result."""
        if self._may_campaign():
            timeout = self.host.patience.leisure * self.settings.election_timeout_ms
            self.wake_in(timeout + self.jitter(timeout) + self._yields_ms(), now_ms)

    def _yields_ms(self) -> int:
        """A replica that yields stands all the same when nobody else was elected: its log may be the only one that
        can win.
        """
        return self.settings.yield_ms if self.yields and not self.votes_alone else 0

    def _rank(self) -> int:
        return self._order().index(self.me)

    def _order(self) -> tuple[Voter, ...]:
        """In which voters stand."""
        return self._turned(self.leader if self.leader != self.me else None)

    def _turned(self, without: Voter | None) -> tuple[Voter, ...]:
        """Each group begins with another voter."""
        assert self.config is not None
        standing = _standing(self.config, without)
        first = self.group_hash % len(standing)
        return standing[first:] + standing[:first]

    def _may_campaign(self) -> bool:
        """Only a voter of the configuration in its own log stands."""
        return self.is_voter and self.host.journal_open and not self.must_reopen and not self.leaving

    def _quorum_is_heard(self, now_ms: int) -> bool:
        """Without a quorum that can answer, standing costs and brings nothing: a link that is heard again wakes
        the group.
        """
        quorum = self._quorum_config()
        return quorum.has_quorum([voter for voter in quorum.voters if self.is_heard(voter, now_ms)])

    def _quorum_config(self) -> Config:
        """Who decides: the configuration in the log (raft-rules 2); to go back, the old voters (raft-rules 6.3)."""
        config = self.log.config
        assert config is not None
        return simple(config.old) if self.aborting else config

    def step_down(self) -> None:
        super().step_down()
        self.aborting = False

    def campaign(self, reason: Reason, now_ms: int, *, aborting: bool = False) -> None:
        """Stands for election. A leader stops leading first; the caller has looked whether it may stand at all."""
        if self.is_leader:
            self.led_term = self.term
        self.step_down()
        self.aborting = aborting
        self.reason = reason
        self.stood_ms = now_ms
        self.elections_started += 1
        if self.is_to_lead_first():
            self._begin_first_term(now_ms)
        elif self._needs_pre_vote(reason):
            self.role = PRE_CANDIDATE
            self.granted = {self.me}
            self._request_votes(self.term + 1, 0, pre_vote=True)
            self.schedule_retry(now_ms)
            self._count_votes(now_ms)
        else:
            self._stand(now_ms)

    def _needs_pre_vote(self, reason: Reason) -> bool:
        return reason is TIMEOUT

    def _stand(self, now_ms: int) -> None:
        self.role = CANDIDATE
        self.leader = None
        self.term += 1
        self.vote = self.me
        self.granted = set()
        sequence = self.journal_hard_state()
        self.changed_role()
        self._request_votes(self.term, sequence, pre_vote=False)
        self.schedule_retry(now_ms)

    def _request_votes(self, term: int, after_sequence: int, *, pre_vote: bool) -> None:
        """Whose link is silent cannot answer: it is asked next time."""
        for voter in sorted(self._quorum_config().voters - {self.me}):
            if not self.may_answer(voter):
                continue
            message = RequestVote(self.group, self.me, voter, term, self.log.last, self.reason, pre_vote)
            self.send(message, after_sequence)

    def may_answer(self, voter: Voter) -> bool:
        """Its link was not silent when that was last looked at."""
        link = self.link_to(voter)
        return link is not None and link.was_fresh

    def vote_became_durable(self, now_ms: int) -> None:
        """raft-rules 2: the own vote counts when it is durable, like anybody's."""
        if self.role is CANDIDATE and self.vote == self.me and self.me not in self.granted:
            self.granted.add(self.me)
            self._count_votes(now_ms)

    def on_vote(self, message: Vote, now_ms: int) -> None:
        if not message.granted:
            if self.see_term(message.term):
                self.schedule_retry(now_ms)
        elif message.pre_vote:
            if self.role is PRE_CANDIDATE and message.term == self.term + 1:
                self.granted.add(message.source)
                self._count_votes(now_ms)
        elif self.role is CANDIDATE and message.term == self.term:
            self.granted.add(message.source)
            self._count_votes(now_ms)

    def _count_votes(self, now_ms: int) -> None:
        if not self._has_won():
            return
        if self.role is PRE_CANDIDATE:
            self._stand(now_ms)
        else:
            self.elections_won += 1
            self.host.patience.elected(now_ms - self.stood_ms)
            self.become_leader(now_ms)

    def _has_won(self) -> bool:
        return self._quorum_config().has_quorum(self.granted)

    def become_leader(self, now_ms: int) -> None:
        """The first item of the term is its marker."""
        before = self.log.last
        config = self.config_of_new_term()
        self.role = LEADER
        self.leader = self.me
        self.led_term = 0
        self.aborting = False
        self.append_marker(Marker(self.term, self.log.end_offset, config))
        self.begin_leading(before, now_ms)

    def config_of_new_term(self) -> Config:
        raise NotImplementedError

    def begin_leading(self, before: Position, now_ms: int) -> None:
        raise NotImplementedError

    def campaign_ended(self, now_ms: int) -> None:
        """No result in time: next time everything is asked anew."""
        self.host.patience.not_elected(now_ms)
        self.own_term_failed()
        self.aborting = False
        self.role = FOLLOWER
        self.on_no_leader(now_ms)

    def own_term_failed(self) -> None:
        """Whoever gave up a leadership for a term of its own that it will not lead says so now."""
        if self.led_term:
            self.tell_resigned(self.led_term)
            self.led_term = 0

    def see_term(self, term: int) -> bool:
        is_higher = super().see_term(term)
        if is_higher:
            self.own_term_failed()
        return is_higher

    def undo(self) -> None:
        super().undo()
        self.own_term_failed()

    def on_no_leader(self, now_ms: int) -> None:
        """Stands if that can come to anything, when its turn has come; else a link that is heard again brings this
        about.
        """
        if self._should_stand(now_ms) and self.host.may_stand(self.group):
            self.campaign(TIMEOUT, now_ms)

    def turn_has_come(self, now_ms: int) -> None:
        """It asked whether it may stand, and now it may: if it still has to, and has voted for nobody meanwhile."""
        if self.role is FOLLOWER and self.deadline_ms is None and self._should_stand(now_ms):
            self.campaign(TIMEOUT, now_ms)

    def _should_stand(self, now_ms: int) -> bool:
        if not self._may_campaign() or self._leader_is_fresh(now_ms):
            return False
        return not self.host.disk_hangs and self._quorum_is_heard(now_ms)

    def is_electing(self) -> bool:
        """Whether its campaign is under way, up to the commit of the term's marker."""
        return self.role is PRE_CANDIDATE or self.role is CANDIDATE

    # Voting.

    def on_request_vote(self, message: RequestVote, now_ms: int) -> None:
        if message.source == self.leader and message.term > self.term and not self.is_leader:
            self.leader_resigned()
            self.schedule_retry(now_ms)
        granted = self._judge_request(message, now_ms)
        if granted and not message.pre_vote:
            self._grant(message, now_ms)
            return
        term = message.term if granted else self.term
        self.send(Vote(self.group, self.me, message.source, term, granted, message.pre_vote))
        if granted and self.role is PRE_CANDIDATE and self._is_before(message.source):
            self._give_way(now_ms)

    def _is_before(self, candidate: Voter) -> bool:
        """One of two that stand at once, since one had to wait for its turn (`standing`). In an order that both know:
        not everybody knows who led.
        """
        order = self._turned(None)
        return candidate in order[: order.index(self.me)]

    def _give_way(self, now_ms: int) -> None:
        """Both would be granted the preliminary vote, stand, and vote each for itself."""
        self.aborting = False
        self.role = FOLLOWER
        self.schedule_retry(now_ms)

    def _judge_request(self, message: RequestVote, now_ms: int) -> bool:
        """raft-rules 2, the vote. A real request with a higher term raises the own one, but for a fresh leader."""
        if self._protects_leader(message, now_ms):
            return False
        if message.pre_vote:
            return self._may_grant(message)
        raised = self.see_term(message.term)
        granted = self._may_grant(message)
        if raised and not granted:
            self.schedule_retry(now_ms)
        return granted

    def _protects_leader(self, message: RequestVote, now_ms: int) -> bool:
        """Thesis 4.2.3: a fresh leader is not deposed, but by itself."""
        if message.reason is TRANSFER:
            return False
        if message.reason is OWN_NEXT_TERM and message.source == self.leader:
            return False
        return self._leader_is_fresh(now_ms)

    # Rule: A leader of a group is believed in only while its core was never silent, or since it sent for the group
    # again. A voter that hears a quorum and no leader always has a deadline. See also tpc_broker/raft/group.py. Held by
    # tests/raft/test_elections.py, tests/simulator (after each turn).
    def _leader_is_fresh(self, now_ms: int) -> bool:
        """raft-rules 3.5: heard lately, the same start of its core, and not resigned."""
        if self.is_leader:
            return True
        link = self._link_of_leader()
        return link is not None and link.is_fresh(now_ms)

    def _link_of_leader(self) -> Link | None:
        """Of a follower: that by which it believes in its leader, silent or not; None: it believes in nobody."""
        if self.leader is None or self.resigned_term == self.term:
            return None
        link = self.link_to(self.leader)
        return link if link is not None and self._same_boot(link.boot_id) else None

    def _same_boot(self, boot_id: int | None) -> bool:
        return boot_id == self.leader_boot_id

    def _may_grant(self, message: RequestVote) -> bool:
        """raft-rules 2: term and vote allow it, the candidate's log is at least as far, undurable items included."""
        free = message.term > self.term or (message.term == self.term and self._vote_is_free(message.source))
        return free and message.last >= self._last_to_compare()

    def _vote_is_free(self, candidate: Voter) -> bool:
        return self.vote is None or self.vote == candidate

    def _last_to_compare(self) -> Position:
        return self.log.last

    def _grant(self, message: RequestVote, now_ms: int) -> None:
        """A grant disarms: nothing is acknowledged for a lower term afterwards, not even what becomes durable now."""
        self.step_down()
        self.leader = None
        self.matched = START
        self.vote = message.source
        sequence = self.journal_hard_state()
        self.send(Vote(self.group, self.me, message.source, message.term, granted=True), self._vote_after(sequence))
        self.schedule_retry(now_ms)

    def _vote_after(self, sequence: int) -> int:
        """The sequence that must be durable before a vote leaves."""
        return sequence

    # Leaders that go.

    def leader_resigned(self) -> None:
        self.resigned_term = self.term

    def doubt_leader(self, now_ms: int) -> None:
        """The leader's core does not vouch for it any more, until an AppendEntries of it does: the news that it
        leads no more may have been lost.
        """
        self.leader_boot_id = None
        self.schedule_campaign(now_ms)

    def on_resign(self, message: Resign, now_ms: int) -> None:
        if message.term == self.term and message.source == self.leader and not self.is_leader:
            self.leader_resigned()
            self.schedule_campaign(now_ms)

    def tell_resigned(self, term: int) -> None:
        """raft-rules 3.5: to all peers, at every end of a leadership that is not the next one's beginning."""
        for voter in self.others():
            self.send(Resign(self.group, self.me, voter, term))
        self.host.resigned(self.group, term)
