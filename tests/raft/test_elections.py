"""Elections: a test per claim of the Raft thesis that still holds, and per rule of ours that differs, with its
argument.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Address, Config, Marker, Position, Voter, simple
from tpc_broker.raft.journal import VoteEntry
from tpc_broker.raft.messages import AppendEntries, Frame, Reason, RequestVote, Resign, TimeoutNow, Vote
from tpc_broker.raft.output import HandOverBegun, Refusal, Role, RoleChanged


def voter(number: int, incarnation: int = 0) -> Voter:
    return Voter(NodeId(number), incarnation)


def request(source: int, target: int, term: int, last: Position, reason: Reason = Reason.TRANSFER) -> RequestVote:
    return RequestVote(GROUP, voter(source), voter(target), term, last, reason)


def answers(cluster: Cluster) -> list[Vote]:
    return [message for message in cluster.sent if isinstance(message, Vote) and not message.pre_vote]


def test_thesis_3_4_at_most_one_leader_in_a_term_and_it_has_a_majority() -> None:
    cluster = Cluster(5)
    leader = cluster.elect()
    granted = {m.source for m in answers(cluster) if m.granted and m.term == leader.group().term}
    assert len(granted | {leader.group().me}) >= 3
    assert sum(node.group().is_leader for node in cluster.nodes) == 1


def test_thesis_3_4_a_vote_is_durable_before_it_leaves_and_so_is_the_candidates_own() -> None:
    cluster = Cluster()
    for node in cluster.nodes:
        node.persists = False
    cluster.run_until(lambda: any(node.group().role is Role.CANDIDATE for node in cluster.nodes))
    cluster.run(200)
    assert not [m for m in cluster.messages(RequestVote) if not m.pre_vote], "the own vote is not durable"
    candidate = next(node for node in cluster.nodes if node.group().role is Role.CANDIDATE)
    candidate.persists = True
    cluster.run(50)
    assert [m for m in cluster.messages(RequestVote) if not m.pre_vote]
    assert not [m for m in answers(cluster) if m.granted], "nobody else's is"
    assert candidate.group().role is Role.CANDIDATE
    for node in cluster.nodes:
        node.persists = True
    cluster.settle()
    assert candidate.group().is_leader


def test_thesis_3_4_a_voter_that_restarts_remembers_its_vote() -> None:
    cluster = Cluster()
    node = cluster.nodes[2]
    node.core.receive(frame_of(cluster, request(0, 2, 5, START)), 0)
    cluster.settle()
    node.crash()
    node.restart()
    assert (node.group().term, node.group().vote) == (5, voter(0))
    node.core.receive(frame_of(cluster, request(1, 2, 5, START)), 0)
    cluster.settle()
    assert [m.granted for m in answers(cluster)] == [True, False]


def frame_of(cluster: Cluster, message: RequestVote | Vote) -> Frame:
    node = cluster.nodes[message.source.node]
    return Frame(node.address, cluster.nodes[message.target.node].address, node.core.boot_id, 0, (message,))


def test_thesis_3_6_1_a_candidate_whose_log_is_behind_gets_no_vote() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.propose(leader, 3)
    cluster.run(50)
    other = (leader.address.node + 1) % 3
    third = 3 - leader.address.node - other
    machine = cluster.nodes[other].group()
    for last, granted in [(Position(machine.term, 2), False), (Position(0, 0), False), (machine.log.last, True)]:
        before = len(answers(cluster))
        cluster.nodes[other].core.receive(frame_of(cluster, request(third, other, 50, last)), cluster.now_ms)
        cluster.settle()
        assert [m.granted for m in answers(cluster)[before:]][:1] == [granted], last


def test_difference_up_to_date_counts_markers() -> None:
    """Thesis 3.6.1 compares the last entry's index and term; here the last entry may be a marker of no length.

    The argument: a leader's marker commits everything below it. A voter that compares offsets alone forgets that it
    holds the marker, and elects a log of an older epoch that ends at the same offset, without what is committed.
    """
    cluster = Cluster()
    leader = cluster.elect()
    machine = cluster.nodes[(leader.address.node + 1) % 3].group()
    assert machine.log.end_offset == 0
    assert machine.log.last > START
    behind = request(leader.address.node, machine.me.node, 50, START)
    assert not machine._may_grant(behind)
    assert machine._may_grant(behind._replace(last=machine.log.last))


def test_difference_a_vote_compares_with_undurable_items_too() -> None:
    """The thesis writes each entry before it answers. Here appends and votes share a journal, and the vote lies
    *behind* them.

    The argument: when the vote is durable so is what lies in front of it; a comparison with the durable end would
    grant to a log that lacks what this voter is about to acknowledge.
    """
    cluster = Cluster()
    leader = cluster.elect()
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    cluster.run(50)
    follower.persists = False
    cluster.propose(leader, 2)
    cluster.settle()
    machine = follower.group()
    assert machine.durable < machine.log.last
    assert not machine._may_grant(request(0, machine.me.node, 50, machine.durable))


def test_thesis_4_2_3_a_fresh_leader_is_not_deposed_and_no_term_moves() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    term = leader.group().term
    disturber = (leader.address.node + 1) % 3
    for node in cluster.nodes:
        if node.address.node != disturber:
            wish = request(disturber, node.address.node, term + 7, Position(99, 99), Reason.TIMEOUT)
            node.core.receive(frame_of(cluster, wish), cluster.now_ms)
    cluster.run(50)
    assert [node.group().term for node in cluster.nodes] == [term] * 3
    assert leader.group().is_leader


def test_thesis_9_6_a_replica_that_was_cut_off_does_not_raise_its_term_and_does_not_disturb() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cut = (leader.address.node + 1) % 3
    cluster.isolate(cut)
    cluster.run(10_000)
    assert cluster.nodes[cut].group().term == leader.group().term
    cluster.heal()
    cluster.run(2_000)
    assert leader.group().is_leader
    assert cluster.nodes[cut].group().leader == leader.group().me


def test_thesis_6_2_a_leader_that_hears_no_quorum_steps_down_and_the_others_elect() -> None:
    cluster = Cluster()
    old = cluster.elect()
    cluster.isolate(old.address.node)
    cluster.run(3_000)
    assert not old.group().is_leader
    new = cluster.leader()
    assert new is not None
    assert new is not old
    assert new.group().term > old.group().term
    cluster.heal()
    cluster.run(1_000)
    assert old.group().leader == new.group().me


def test_thesis_3_10_a_transfer_moves_the_leader_without_waiting_for_a_timeout() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(1_000)
    cluster.propose(leader, 3)
    target = (leader.address.node + 1) % 3
    began = cluster.now_ms
    cluster.hand_to(target)
    assert cluster.now_ms - began <= 50
    assert cluster.nodes[target].group().log.end_offset == 3


@pytest.mark.parametrize("is_slow", [False, True])
def test_a_transfer_waits_until_what_was_proposed_is_committed_but_for_no_slow_disk(*, is_slow: bool) -> None:
    """Whoever waits for it would be told that this one leads no more, and not what became of it."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(1_000)
    target = cluster.nodes[(leader.address.node + 1) % 3]
    leader.persists = False
    cluster.propose(leader, 3)
    cluster.settle()
    leader.core.transfer_leadership(GROUP, target.group().me, cluster.now_ms)
    cluster.settle()
    assert leader.group().peers[target.group().me].match == 3 > leader.group().commit.offset
    assert not cluster.messages(TimeoutNow)
    if is_slow:
        cluster.run(cluster.settings.resend_ms)
    else:
        leader.persist()
        cluster.settle()
        assert leader.group().commit.offset == 3
    assert cluster.messages(TimeoutNow)


def test_thesis_3_10_a_transfer_that_comes_to_nothing_is_given_up() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    target = (leader.address.node + 1) % 3
    cluster.block(leader.address.node, target)
    cluster.propose(leader)
    leader.core.transfer_leadership(GROUP, cluster.nodes[target].group().me, cluster.now_ms)
    assert cluster.refused(leader).name == "HELD"
    cluster.settle()
    assert leader.told(HandOverBegun) == [HandOverBegun(GROUP)], "nothing is to be appended meanwhile"
    cluster.run(900)
    cluster.heal()
    cluster.run(2_500)
    assert cluster.leader() is not None


def test_difference_votes_are_of_incarnations() -> None:
    """The thesis knows servers; a replica whose disk was replaced is another server on the same node (raft-rules 0).

    The argument: it has forgotten its votes. Counted under the old name it could vote twice in one term.
    """
    cluster = Cluster()
    node = cluster.nodes[2]
    stranger = request(0, 2, 5, START)._replace(target=voter(2, 1))
    node.core.receive(frame_of(cluster, stranger), 0)
    cluster.settle()
    assert (node.group().term, answers(cluster)) == (0, [])
    machine = cluster.nodes[0].group()
    machine.campaign(Reason.TRANSFER, 0)
    cluster.nodes[0].core.receive(frame_of(cluster, Vote(GROUP, voter(2, 1), voter(0), 1, granted=True)), 0)
    machine.vote_became_durable(0)
    assert machine.role is Role.CANDIDATE


def test_difference_a_voters_own_configuration_plays_no_part() -> None:
    """Thesis 4.1 has it too: a server accepts requests and grants votes whatever its own configuration says.

    Argument: a learner that the candidate's log names may be needed for the quorum before it has that log.
    """
    cluster = Cluster(groups=0)
    cluster.nodes[0].create(GROUP, voter(0), simple([voter(0)]))
    cluster.nodes[1].create(GROUP, voter(1), None)
    assert cluster.nodes[1].group().config is None
    cluster.nodes[1].core.receive(frame_of(cluster, request(0, 1, 3, START)), 0)
    cluster.settle()
    assert [m.granted for m in answers(cluster)] == [True]
    cluster.nodes[1].group().on_no_leader(0)
    assert cluster.nodes[1].group().role is Role.FOLLOWER, "and without a configuration it never stands"


def test_difference_a_core_that_restarts_within_the_timeout_has_lost_its_leaderships() -> None:
    """Thesis 6.2 has timeouts only; a core here is back in 0.7 s, and followers without timers would wait for ever."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    leader.crash()
    leader.restart()
    cluster.run(700)
    found = cluster.leader()
    assert found is not None
    assert found.group().term > 1


def test_difference_a_resignation_makes_a_fresh_link_useless() -> None:
    """Link heartbeats vouch for the core, not for the group: a leader that gives up says so, and again with
    heartbeats.
    """
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    cluster.dropped = lambda _frame, message: isinstance(message, Resign)
    leader.group().resign(cluster.now_ms)
    cluster.run(600)
    found = cluster.leader()
    assert found is not None, "a heartbeat repeated it"
    assert found.group().term > 1


def test_a_new_session_tells_who_leads_no_more() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    leader.group().resign(cluster.now_ms)
    leader.core._resigned.clear()
    leader.core._outboxes.clear()
    assert follower.group()._leader_is_fresh(cluster.now_ms)
    leader.core.connected(follower.address, cluster.now_ms)
    cluster.settle()
    assert not follower.group()._leader_is_fresh(cluster.now_ms)


def test_one_voter_alone_wins_when_its_vote_is_durable() -> None:
    cluster = Cluster(1)
    node = cluster.nodes[0]
    assert node.group().role is Role.CANDIDATE
    cluster.settle()
    assert node.group().is_leader
    assert isinstance(node.journal[0][1], VoteEntry)
    cluster.propose(node, 3)
    cluster.settle()
    assert node.group().high_watermark == 3


def test_nobody_leads_the_same_term_twice_also_over_restarts() -> None:
    cluster = Cluster()
    terms: list[tuple[int, int]] = []
    for _ in range(4):
        leader = cluster.elect()
        terms.append((leader.group().term, leader.address.node))
        leader.crash()
        leader.restart()
        cluster.run(1_500)
    assert len({term for term, _ in terms}) == 4


def test_difference_3_4_voters_stand_in_an_order_and_not_by_chance() -> None:
    """The thesis draws election time-outs at random so that votes do not split. Here links fall silent for thousands of
    groups at once, and random delays would need as many timers and messages. So the voters of a group that are left
    stand one after the other, 50 ms apart, each group beginning with another of them: no vote splits, and the requests
    of all groups with one beginning share a frame. Where the first cannot stand, the second does.
    """
    cluster = Cluster(5, groups=12)
    for group in range(12):
        cluster.hand_to(0, group)
    cluster.run(2_000)
    cluster.nodes[0].crash()
    terms = [cluster.nodes[1].group(group).term for group in range(12)]
    ranks = {group: [node.group(group)._rank() for node in cluster.nodes[1:]] for group in range(12)}
    assert all(sorted(some) == [0, 1, 2, 3] for some in ranks.values())
    cluster.nodes[4].crash()
    cluster.run_until(lambda: all(cluster.leader(group) for group in range(12)))
    for group in range(12):
        found = cluster.leader(group)
        assert found is not None
        assert found.group(group).term == terms[group] + 1, "the first vote decided"
        wanted = min(range(1, 4), key=lambda number, group=group: ranks[group][number - 1])
        assert found.address.node == wanted


def test_leaderships_of_a_dead_node_spread_over_the_survivors_in_one_frame_per_link() -> None:
    cluster = Cluster(groups=40)
    for group in range(40):
        cluster.hand_to(0, group)
    cluster.run(2_000)
    cluster.nodes[0].crash()
    frames = [node.core.statistics().frames_sent for node in cluster.nodes]
    cluster.run_until(lambda: all(cluster.leader(group) for group in range(40)))
    led = [node.core.statistics().led for node in cluster.nodes[1:]]
    assert min(led) >= 8, led
    after = [node.core.statistics().frames_sent for node in cluster.nodes]
    assert max(b - a for a, b in zip(frames, after, strict=True)) < 80, "as many as for one group, heartbeats included"


def test_a_follower_with_a_higher_term_ends_the_leaders_when_that_sends_something() -> None:
    """A voter with a term above the leader's must not keep the group from electing for ever."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(300)
    ahead = cluster.nodes[(leader.address.node + 1) % 3]
    ahead.group().see_term(40)
    cluster.propose(leader)
    cluster.run_until(lambda: (found := cluster.leader()) is not None and found.group().term > 40)


def test_role_changes_are_told() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    told = [event for event in leader.told(RoleChanged) if isinstance(event, RoleChanged)]
    assert told[-1].role is Role.LEADER
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    assert isinstance(follower.events[-1], object)
    assert [e.leader for e in follower.told(RoleChanged) if isinstance(e, RoleChanged)][-1] == leader.group().me


def test_votes_under_a_joint_configuration_need_both_majorities() -> None:
    """Thesis 4.3."""
    old, new = frozenset([voter(0), voter(1), voter(2)]), frozenset([voter(2), voter(3), voter(4)])
    config = Config(old, new)
    assert not config.has_quorum(set(old))
    assert not config.has_quorum(set(new))
    assert config.has_quorum({voter(0), voter(2), voter(3)})


def test_a_leader_that_resigned_during_a_silence_is_not_believed_in_after_it() -> None:
    """The heartbeats that repeat a resignation end before the silence does; the link is fresh again, the leader is not
    there any more.

    Here its core lost the disk, and has another incarnation, a learner of nobody: only the other two can elect.
    """
    cluster = Cluster()
    leader = cluster.hand_to(2)
    cluster.run(500)
    cluster.isolate(1)
    cluster.run(1_300)
    leader.core.remove_group(GROUP, cluster.now_ms)
    del cluster.shown[2, GROUP]
    leader.create(GROUP, voter(2, 1), None)
    cluster.run(4_000)
    cluster.heal()
    cluster.run(3_000)
    found = cluster.leader()
    assert found is not None, [node.group().statistics() for node in cluster.nodes]
    assert found.address.node in (0, 1)


def test_a_silence_that_no_tick_noticed_counts_all_the_same() -> None:
    """A process that stood still meets what has come before it looks at its clock."""
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.run(500)
    follower = cluster.nodes[1]
    late = cluster.now_ms + 10_000
    follower.core.receive(Frame(cluster.nodes[0].address, follower.address, cluster.nodes[0].core.boot_id, 0, ()), late)
    assert not follower.group()._leader_is_fresh(late)
    assert follower.group().deadline_ms is not None


def test_a_follower_that_alone_noticed_a_silence_finds_its_leader_again() -> None:
    """One direction was silent; an idle leader has nothing to say, and says so to who asks for votes."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    term = leader.group().term
    cluster.run(2_000)
    cluster.block(0, 1)
    cluster.run(1_500)
    cluster.heal()
    cluster.run(500)
    assert (leader.group().is_leader, leader.group().term) == (True, term)
    assert cluster.nodes[1].group()._leader_is_fresh(cluster.now_ms)
    assert cluster.nodes[1].group().deadline_ms is None, "and asks for no time"
    assert leader.group().deadline_ms is None


def test_an_idle_group_whose_leader_is_behind_in_terms_elects() -> None:
    """As above, with a replica that cannot follow: the leader learns of the later term without a proposal."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(300)
    ahead = cluster.nodes[(leader.address.node + 1) % 3]
    ahead.group().see_term(40)
    ahead.group().schedule_retry(cluster.now_ms)
    cluster.run_until(lambda: (found := cluster.leader()) is not None and found.group().term > 40)


def test_who_protects_a_leader_asks_it_whether_it_leads() -> None:
    """A late AppendEntries makes a follower believe in a leader whose resignation it could not yet understand."""
    for removed in (False, True):
        cluster = Cluster()
        leader = cluster.hand_to(0)
        cluster.run(500)
        machine = leader.group()
        late = AppendEntries(GROUP, machine.me, voter(1), machine.term, machine.log.last, (), machine.commit)
        frame = Frame(leader.address, cluster.nodes[1].address, leader.core.boot_id, 0, (late,))
        cluster.dropped = lambda _frame, message: isinstance(message, RequestVote) and message.pre_vote
        machine.resign(cluster.now_ms)
        if removed:
            leader.core.remove_group(GROUP, cluster.now_ms)
        cluster.run(leader.core.settings.resign_repeat_ms + 200)
        follower = cluster.nodes[1].group()
        follower.leader, follower.resigned_term = None, 0  # as after a restart in this term
        cluster.nodes[1].core.receive(frame, cluster.now_ms)
        assert follower._leader_is_fresh(cluster.now_ms)
        cluster.settle()
        assert not follower._leader_is_fresh(cluster.now_ms), "the answer to its ack told it"
        assert follower.deadline_ms is not None


def led_by_one_who_ends(end: Callable[[RaftCore, int], None]) -> tuple[Cluster, Node]:
    """A leader whose leadership ends, and all that it says of it is lost."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(500)
    end(leader.core, cluster.now_ms)
    leader.core._outboxes.clear()
    leader.core._resigned.clear()
    return cluster, leader


def test_a_refused_vote_is_a_question_to_the_leader() -> None:
    cluster, leader = led_by_one_who_ends(lambda core, now_ms: core.group(GROUP).resign(now_ms))
    follower = cluster.nodes[1]
    asks = request(2, 1, 9, leader.group().log.last, Reason.TIMEOUT)._replace(pre_vote=True)
    assert follower.group()._leader_is_fresh(cluster.now_ms)
    follower.core.receive(frame_of(cluster, asks), cluster.now_ms)
    cluster.settle()
    assert not follower.group()._leader_is_fresh(cluster.now_ms)


def test_a_group_that_the_list_of_a_new_session_does_not_name_has_no_leader_there() -> None:
    cluster, leader = led_by_one_who_ends(lambda core, now_ms: core.remove_group(GROUP, now_ms))
    follower = cluster.nodes[1]
    assert follower.group()._leader_is_fresh(cluster.now_ms)
    leader.core.connected(follower.address, cluster.now_ms)
    cluster.settle()
    assert not follower.group()._leader_is_fresh(cluster.now_ms)


def test_a_pre_vote_of_the_leader_itself_wakes_who_followed_it() -> None:
    """It leads no more, and may never stand: whoever heard it must not wait for it without a deadline."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(2_000)
    follower = cluster.nodes[1]
    assert follower.group().deadline_ms is None
    last = leader.group().log.last
    asks = request(0, 1, leader.group().term + 1, last, Reason.TIMEOUT)._replace(pre_vote=True)
    follower.core.receive(frame_of(cluster, asks), cluster.now_ms)
    assert follower.group().deadline_ms is not None


def test_a_late_message_that_makes_a_voter_of_a_replica_makes_it_stand_too() -> None:
    """The leader's core has started anew since it was sent, so it is nobody's leader. The replica could not stand when
    it heard of that, for it was no voter; the marker in the message makes it one, and nothing else would wake it.
    """
    cluster = Cluster(3, groups=0)
    cluster.create(GROUP, voters=[0, 1], learners=[2])
    leader, late = cluster.hand_to(0).group(), cluster.nodes[2]
    cluster.run(500)
    assert late.group().config is None
    marker = Marker(leader.term, 0, simple([voter(0), voter(1), voter(2)]))
    append = AppendEntries(GROUP, leader.me, late.group().me, leader.term, START, (marker,), START)
    earlier = leader.host.boot_id - 1
    late.core.receive(Frame(cluster.addresses[0], late.address, earlier, 0, (append,)), cluster.now_ms)
    assert late.group().is_voter
    assert late.group().deadline_ms is not None


def test_a_leader_whose_own_next_term_fails_says_so_and_holds_nothing() -> None:
    """A journal that fails, or a later term, ends the campaign; proposals are refused from then on, not held."""
    for fails in (True, False):
        cluster = Cluster()
        leader = cluster.hand_to(0)
        cluster.run(500)
        machine, term = leader.group(), leader.group().term
        cluster.sent.clear()
        leader.persists = False
        machine.campaign(Reason.OWN_NEXT_TERM, cluster.now_ms)
        assert cluster.refused(leader) is Refusal.HELD
        if fails:
            leader.turn()
            leader.fail_journal()
        else:
            machine.see_term(term + 5)
        assert cluster.refused(leader) is Refusal.NOT_LEADER
        leader.turn()
        assert [m.term for m in cluster.messages(Resign)] == [term, term]


def test_a_leader_where_nobody_listens_any_more_is_replaced_at_once() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    others = [node for node in cluster.nodes if node is not leader]
    leader.crash()
    for node in others:
        node.core.link_refused(leader.address, cluster.now_ms)
        assert not node.group()._leader_is_fresh(cluster.now_ms)
    cluster.run(cluster.settings.link_silent_ms // 2)
    assert sum(node.group().is_leader for node in others) == 1, "without a word the silence would have to end first"


def test_a_refusal_that_was_none_is_over_with_the_next_word_of_the_leader() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    follower = next(node for node in cluster.nodes if node is not leader)
    follower.core.link_refused(leader.address, cluster.now_ms)
    cluster.run(3_000)
    assert leader.group().is_leader
    assert follower.group()._leader_is_fresh(cluster.now_ms)
    assert follower.group().leader == leader.group().me


def test_a_leader_whose_followers_have_all_ended_leads_no_more() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    for node in cluster.nodes:
        if node is not leader:
            node.crash()
            leader.core.link_refused(node.address, cluster.now_ms)
    assert not leader.group().is_leader


def test_a_disk_that_is_another_one_is_heard_whatever_its_boots_are() -> None:
    """Its starts are counted anew, from a clock that may be behind; nothing is compared with the ones before."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(500)
    other, link = cluster.addresses[1], leader.core.links[cluster.addresses[1]]
    late = Frame(other, leader.address, link.boot_id - 1000, 0, ())
    leader.core.link_refused(other, cluster.now_ms)
    leader.core.receive(late, cluster.now_ms)
    assert not link.is_fresh(cluster.now_ms)
    seen = link.starts_seen
    leader.core.another_life(other)
    leader.core.receive(late, cluster.now_ms)
    assert link.is_fresh(cluster.now_ms)
    assert (link.boot_id, link.starts_seen) == (late.boot_id, seen + 1)
    leader.core.another_life(Address(NodeId(99), CoreId(0)))


@pytest.mark.parametrize("which", [1, 2])
def test_difference_who_yields_stands_behind_all_others(which: int) -> None:
    """Whose turn it would be first, too: it has no segment space, and would refuse all that others could take."""
    cluster = Cluster()
    leader = cluster.elect()
    yields, other = ((cluster.nodes[(leader.address.node + step) % 3]) for step in (which, 3 - which))
    yields.group().yields = True
    leader.crash()
    cluster.run_until(lambda: other.group().is_leader)
    cluster.run(2 * cluster.settings.yield_ms)
    assert other.group().is_leader
    assert yields.group().elections_started == 0


def test_difference_who_yields_leads_when_nobody_else_can_win() -> None:
    """Only its log is long enough: yielding is a delay, and no vow."""
    cluster = Cluster()
    leader = cluster.elect()
    yields, behind = ((cluster.nodes[(leader.address.node + step) % 3]) for step in (1, 2))
    cluster.block(leader.address.node, behind.address.node)
    cluster.propose(leader, 3)
    cluster.run_until(lambda: leader.group().high_watermark == 3)
    yields.group().yields = True
    leader.crash()
    cluster.blocked.clear()
    cluster.run_until(lambda: yields.group().is_leader)
    cluster.run_until(lambda: behind.group().high_watermark == 3)


def test_two_that_stand_at_the_same_moment_do_not_split_the_votes() -> None:
    """The one that comes first in the order may have waited for its turn to stand, until the second one's came."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.isolate(leader.group().me.node)
    first, second = (node for node in cluster.nodes if node is not leader)
    cluster.run(800)
    cluster.run_until(lambda: not first.group()._leader_is_fresh(cluster.now_ms))
    cluster.run_until(lambda: not second.group()._leader_is_fresh(cluster.now_ms))
    for node in (first, second):
        node.core.awake(node.group()).campaign(Reason.TIMEOUT, cluster.now_ms)
    cluster.run(200)
    assert first.group().is_leader or second.group().is_leader, "and not after an election timeout"


@pytest.mark.parametrize("forgets", [0, 1])
@pytest.mark.parametrize("name", [f"g{number}" for number in range(12)])
def test_two_of_whom_one_does_not_know_who_led_do_not_split_the_votes_either(name: str, forgets: int) -> None:
    """One that has just started, or has voted, names no leader: their order is the same all the same."""
    cluster = Cluster(groups=0)
    cluster.create(name, range(3))
    cluster.run_until(lambda: any(node.group(name).is_leader for node in cluster.nodes))
    cluster.run(2_000)
    leader = next(node for node in cluster.nodes if node.group(name).is_leader)
    others = [node for node in cluster.nodes if node is not leader]
    leader.crash()
    for node in others:
        cluster.run_until(lambda node=node: not node.group(name)._leader_is_fresh(cluster.now_ms))  # type: ignore[misc]
    others[forgets].group(name).leader = None
    for node in others:
        node.core.awake(node.group(name)).campaign(Reason.TIMEOUT, cluster.now_ms)
    cluster.run(200)
    assert any(node.group(name).is_leader for node in others), "and not after an election timeout"
