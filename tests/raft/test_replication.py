"""Replication, the journal, snapshots: claims of the thesis (sections named) and what our rules do differently,
with why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Batch, Marker, Position, Voter, simple
from tpc_broker.raft.journal import (
    EMPTY_CHECKPOINT,
    AdoptEntry,
    AppendEntry,
    CutEntry,
    MarkerEntry,
    VoteEntry,
    replay,
)
from tpc_broker.raft.messages import Ack, AppendEntries, Frame, GroupMessage, Install, Reject, Resign
from tpc_broker.raft.output import Adopted, Committed, LeaderReady, LogCut, ReadItems, Refusal, ShipSegments
from tpc_broker.raft.settings import Settings

ABC = simple([Voter(NodeId(number), 0) for number in range(3)])


def follower_of(terms: Sequence[tuple[int, int]], term: int | None = None) -> Node:
    """Node 2 with a log of (epoch, batches), all durable, in a term; messages to it are made up."""
    cluster = Cluster()
    node = cluster.nodes[2]
    machine = node.group()
    for epoch, batches in terms:
        machine.see_term(epoch)
        machine.append_marker(Marker(epoch, machine.log.end_offset, ABC))
        for _ in range(batches):
            end = machine.log.end_offset
            machine._append_batches((Batch(epoch, end + 1, end, 10, f"{epoch}"),))
    machine.see_term(term or machine.term)
    node.turn()
    cluster.wire.clear()
    cluster.sent.clear()
    node.events.clear()
    return node


def give(node: Node, message: GroupMessage) -> list[GroupMessage]:
    """What the node says to it."""
    cluster = node.cluster
    source = cluster.nodes[message.source.node]
    cluster.sent.clear()
    node.core.receive(Frame(source.address, node.address, source.core.boot_id, 0, (message,)), cluster.now_ms)
    while node.turn():
        cluster.wire.clear()
    return [m for m in cluster.sent if isinstance(m, Ack | Reject)]


def append(term: int, prev: tuple[int, int], *items: Marker | Batch, commit: Position = START) -> AppendEntries:
    return AppendEntries(GROUP, Voter(NodeId(0), 0), Voter(NodeId(2), 0), term, Position(*prev), items, commit)


def marker(epoch: int, offset: int) -> Marker:
    return Marker(epoch, offset, ABC)


def batch(epoch: int, base: int) -> Batch:
    return Batch(epoch, base + 1, base, 10, f"{epoch}")


def test_thesis_3_3_an_older_term_is_told_that_it_is_over_and_a_newer_one_is_followed() -> None:
    node = follower_of([(1, 2), (4, 1)])
    (answer,) = give(node, append(3, (1, 2), marker(3, 2)))
    assert isinstance(answer, Reject)
    assert answer.term == 4
    assert node.group().log.last == (4, 3)
    (answer,) = give(node, append(6, (4, 3), marker(6, 3)))
    assert isinstance(answer, Ack)
    assert (node.group().term, node.group().vote, node.group().leader) == (6, None, Voter(NodeId(0), 0))


def test_thesis_3_7_a_message_that_comes_twice_changes_nothing_and_is_answered_again() -> None:
    node = follower_of([(1, 1)], term=2)
    message = append(2, (1, 1), marker(2, 1), batch(2, 1))
    first = give(node, message)
    journal, log = list(node.journal), node.group().log.image()
    assert [type(entry) for _, entry in journal[-2:]] == [MarkerEntry, AppendEntry]
    assert give(node, message) == first
    assert (node.journal, node.group().log.image()) == (journal, log)


def test_thesis_3_5_a_leader_only_appends() -> None:
    """`Cluster.check` demands it after each turn; here a leader meets followers that have less, more, and others'."""
    cluster = Cluster()
    first = cluster.hand_to(0)
    cluster.run(50)
    cluster.isolate(0)
    cluster.propose(first, 3)
    cluster.run_until(lambda: (found := cluster.leader()) is not None and found is not first)
    second = cluster.leader()
    assert second is not None
    cluster.propose(second, 2)
    own = [item for item in second.group().log.items if item.epoch == second.group().term]
    cluster.heal()
    cluster.run_until(lambda: len({node.group().log.last for node in cluster.nodes}) == 1)
    assert [item for item in first.group().log.items if item.epoch == second.group().term] == own
    assert first.group().cuts == 1
    assert second.group().cuts == 0


def test_thesis_3_5_a_follower_refuses_what_does_not_fit_and_says_where_its_epoch_ends() -> None:
    node = follower_of([(1, 2), (4, 3)])
    (reject,) = give(node, append(9, (5, 7)))
    assert isinstance(reject, Reject)
    assert (reject.prev, reject.end) == ((5, 7), (4, 5))
    (reject,) = give(node, append(9, (1, 3)))
    assert isinstance(reject, Reject)
    assert reject.end == (1, 2)


def test_thesis_3_5_conflicting_items_are_overwritten_by_the_leaders() -> None:
    node = follower_of([(1, 2), (3, 3)])
    (ack,) = give(node, append(5, (1, 1), batch(1, 1), marker(5, 2), batch(5, 2)))
    assert isinstance(ack, Ack)
    assert ack.position == (5, 3)
    assert [m.epoch for m in node.group().log.markers] == [1, 5]
    assert [e for e in node.events if isinstance(e, LogCut)] == [LogCut(GROUP, Position(1, 2))]


def test_thesis_3_5_a_late_or_shorter_message_takes_nothing_back() -> None:
    """raft-rules 3.2: only an item that differs cuts, never the mere end of a message."""
    node = follower_of([(1, 5)], term=1)
    machine = node.group()
    for late in (append(1, (1, 0), batch(1, 0)), append(1, (0, 0), marker(1, 0)), append(1, (1, 3))):
        give(node, late)
        assert (machine.log.end_offset, machine.cuts) == (5, 0)


def test_difference_a_batch_needs_the_marker_of_its_epoch() -> None:
    """In the thesis an entry carries its term. Here a batch's epoch is judged by the log's last marker.

    The argument: a batch of an epoch without marker makes a position that `contains` cannot find, so that acknowledged
    records would not count in a vote.
    """
    node = follower_of([(1, 2)], term=3)
    give(node, append(3, (1, 2), batch(3, 2)))
    assert node.group().log.last == (1, 2)
    give(node, append(3, (1, 2), marker(3, 2), batch(3, 2)))
    assert node.group().log.last == (3, 3)


def test_difference_a_term_is_journalled_in_front_of_the_first_cut() -> None:
    """The thesis persists currentTerm before it answers. Here order in one journal is what counts.

    The argument: cut under term 9, crash before the marker of 9 is durable, back in term 3: a late message of 3
    would cut again.
    """
    node = follower_of([(1, 2), (3, 3)])
    before = len(node.journal)
    give(node, append(9, (1, 2), marker(9, 2)))
    kinds = [type(entry) for _, entry in node.journal[before:]]
    assert kinds == [VoteEntry, CutEntry, MarkerEntry]
    assert node.journal[before][1] == VoteEntry(GROUP, 9, None)
    for upto in range(before + 1, len(node.journal) + 1):
        found = replay(node.group().checkpoint()._replace(log=follower_of([]).group().log.image(), term=0),
                       [entry for _, entry in node.journal[:upto]], ABC)  # fmt: skip
        assert found.term == 9, "whatever part is durable, the term is"


def test_difference_a_cut_names_the_last_epoch_kept_and_no_marker_below_is_eaten() -> None:
    """raft-rules 0: markers at one offset. The thesis truncates by index; two markers here share an offset."""
    node = follower_of([(1, 2), (4, 0), (6, 2)])
    give(node, append(7, (4, 2), marker(7, 2)))
    assert [m.epoch for m in node.group().log.markers] == [1, 4, 7]
    assert [entry for _, entry in node.journal if isinstance(entry, CutEntry)] == [CutEntry(GROUP, 2, 4)]
    node.crash()
    node.restart()
    assert [m.epoch for m in node.group().log.markers] == [1, 4, 7]


def test_an_ack_waits_for_the_disk_and_names_only_what_is_the_leaders() -> None:
    node = follower_of([(1, 2), (3, 3)])
    node.persists = False
    assert give(node, append(5, (1, 2), marker(5, 2))) == []
    node.persist()
    node.turn()
    (ack,) = [m for m in node.cluster.sent if isinstance(m, Ack)]
    assert ack.position == (5, 2)
    other = follower_of([(1, 2), (3, 3)])
    (ack,) = [m for m in give(other, append(5, (1, 1))) if isinstance(m, Ack)]
    assert ack.position == (1, 1), "what lies behind is another leader's"


def test_difference_a_commit_counts_only_with_the_terms_marker_durable() -> None:
    """Thesis 3.5: commitIndex = min(leaderCommit, index of last new entry). An offset is no index.

    The argument: what is durable here up to that offset may be of another epoch (raft-rules 3.4): it would be shown.
    """
    node = follower_of([(1, 2), (3, 3)])
    give(node, append(5, (1, 2), commit=Position(5, 4)))
    assert node.group().commit == START
    give(node, append(5, (1, 2), marker(5, 2), batch(5, 2), commit=Position(5, 9)))
    assert node.group().commit == (5, 3)


def test_thesis_3_6_2_an_older_terms_items_are_committed_only_through_the_own_marker() -> None:
    """Figure 3.7: matches of an older epoch do not count. Here no empty entry is needed: the marker is one."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    machine = leader.group()
    steady = machine.steady
    assert steady is not None
    peer = machine.rows[0]
    before = (machine.commit, peer.match)
    ack = Ack(GROUP, peer.voter, machine.me, machine.term, Position(machine.term - 1, 100), START)
    machine.on_ack(ack, cluster.now_ms)
    assert (machine.commit, peer.match) == before
    machine.on_ack(ack._replace(term=machine.term - 1, position=Position(machine.term, 0)), cluster.now_ms)
    assert (machine.commit, peer.match) == before


def test_thesis_10_2_1_the_leader_writes_in_parallel_and_counts_itself_only_when_durable() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    leader.persists = False
    accepted = cluster.propose(leader)
    cluster.settle()
    assert all(n.group().log.end_offset == 1 for n in cluster.nodes), "sent before it was durable at home"
    assert leader.group().commit < accepted.position
    leader.persist()
    cluster.settle()
    assert leader.group().commit == accepted.position


def test_thesis_10_2_2_pipelining_is_bounded_by_messages_and_bytes_and_by_the_link() -> None:
    settings = Settings(inflight_messages_max=4, append_items_max=2, append_bytes_max=100, inflight_bytes_max=1_000)
    cluster = Cluster(settings=settings)
    leader = cluster.elect()
    cluster.run(50)
    cluster.dropped = lambda _frame, message: isinstance(message, Ack)
    cluster.sent.clear()
    cluster.propose(leader, 50)
    cluster.settle()
    sent = [m for m in cluster.messages(AppendEntries) if m.items]
    assert len(sent) == 2 * 4, "four to each peer"
    assert max(len(m.items) for m in sent) == 2
    cluster.dropped = lambda _frame, _message: False
    cluster.run(1_000)
    assert {n.group().commit.offset for n in cluster.nodes} == {50}
    links = leader.core.links.values()
    assert [link.inflight_bytes for link in links] == [0, 0]


def test_a_full_link_makes_groups_wait_and_wakes_them() -> None:
    settings = Settings(append_bytes_max=20, inflight_bytes_max=20, link_inflight_bytes_max=20)
    cluster = Cluster(settings=settings, groups=3)
    for group in range(3):
        cluster.hand_to(0, group)
    cluster.run(100)
    for group in range(3):
        cluster.propose(cluster.nodes[0], 6, group)
    cluster.run(100)
    assert {n.group(group).commit.offset for n in cluster.nodes for group in range(3)} == {6}


def test_lost_messages_are_sent_again_and_nothing_is_asked_of_time_afterwards() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(100)
    cluster.dropped = lambda _frame, message: isinstance(message, AppendEntries)
    cluster.propose(leader, 3)
    cluster.run(100)
    cluster.dropped = lambda _frame, _message: False
    cluster.run(1_500)
    assert {n.group().commit.offset for n in cluster.nodes} == {3}
    assert leader.group().deadline_ms is None


def test_too_much_uncommitted_is_refused_before_anything_changes() -> None:
    cluster = Cluster(settings=Settings(uncommitted_bytes_max=50))
    leader = cluster.elect()
    cluster.isolate(leader.address.node)
    cluster.propose(leader, 5)
    assert cluster.refused(leader) is Refusal.TOO_MUCH_UNCOMMITTED
    assert leader.group().log.end_offset == 5


def test_several_markers_at_one_offset_reach_a_follower_that_missed_them() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.propose(leader, 2)
    cluster.run(50)
    away = (leader.address.node + 1) % 3
    other = 3 - leader.address.node - away
    cluster.nodes[away].crash()
    cluster.run(300)
    for number in (other, leader.address.node, other):
        cluster.hand_to(number)
    cluster.nodes[away].restart()
    cluster.run(1_000)
    epochs = [[m.epoch for m in n.group().log.markers] for n in cluster.nodes]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(epochs[0]) >= 4
    assert len({m.start_offset for m in cluster.nodes[0].group().log.markers[1:]}) == 1


# The journal fails.


def test_difference_after_a_journal_failure_no_offset_is_given_twice_in_one_term() -> None:
    """raft-rules 4. The thesis assumes a disk that works or a server that is gone.

    The argument: what failed here may be durable on followers, even committed; the same (term, offset) for other
    records would be two entries with one name. So the leadership ends, and the journal begins with a cut.
    """
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    leader.persists = False
    accepted = cluster.propose(leader, 2)
    cluster.settle()
    leader.fail_journal()
    assert not leader.group().is_leader
    assert leader.group().log.last < accepted.position
    assert cluster.refused(leader) is not None
    cluster.settle()
    assert cluster.messages(Resign)
    leader.persists = True
    leader.reopen_journal()
    first = leader.core.ready(cluster.now_ms)
    kinds = [type(entry) for _, entry in first.entries]
    assert kinds[:2] == [VoteEntry, CutEntry]
    leader.journal += first.entries
    cluster.run(3_000)
    new = cluster.leader()
    assert new is not None
    assert new.group().log.contains(accepted.position), "it was durable on a majority"
    assert {n.group().commit for n in cluster.nodes} == {new.group().commit}


def test_nothing_that_binds_leaves_before_the_reopened_journals_first_entries_are_durable() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    follower.persists = False
    cluster.propose(leader, 2)
    cluster.settle()
    follower.fail_journal()
    follower.reopen_journal()
    cluster.sent.clear()
    cluster.run(2_000)
    assert not [m for m in cluster.sent if isinstance(m, Ack) and m.source == follower.group().me]
    follower.persists = True
    cluster.run(1_000)
    assert follower.group().commit == leader.group().commit


def test_undurable_markers_are_undone_too() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    follower.persists = False
    third = 3 - leader.address.node - follower.address.node
    cluster.hand_to(third)
    assert follower.group().log.last.epoch == cluster.nodes[third].group().term
    follower.fail_journal()
    assert follower.group().log.last == follower.group().durable
    assert follower.group().log.last.epoch < cluster.nodes[third].group().term


# Segments in place of items.


def test_thesis_5_a_replica_behind_the_log_is_given_segments_then_items() -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.nodes[2].crash()
    cluster.propose(leader, 6)
    cluster.run(200)
    leader.core.truncate_start(GROUP, 4)
    leader.core.release(GROUP, leader.group().commit)
    cluster.propose(leader, 2)
    cluster.run(100)
    learner = cluster.nodes[2]
    learner.journal, learner.durable = [], 0
    learner.restart()
    cluster.run_until(lambda: leader.told(ShipSegments))
    (ship, *_) = leader.told(ShipSegments)
    assert isinstance(ship, ShipSegments)
    leader.core.shipped(GROUP, ship.target, ship.position, cluster.now_ms)
    cluster.run(1_000)
    assert learner.told(Adopted)
    assert learner.group().commit == leader.group().commit
    assert learner.group().log.log_start_offset == 4
    learner.crash()
    learner.restart()
    assert learner.group().log.last == leader.group().log.last


def test_what_is_in_files_only_is_read_for_a_follower_that_needs_it() -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.propose(leader, 2)
    cluster.run(100)
    cluster.nodes[2].crash()
    cluster.propose(leader, 6)
    cluster.run(200)
    batches = [item for item in leader.group().log.items if isinstance(item, Batch)]
    leader.core.release(GROUP, leader.group().commit)
    cluster.nodes[2].restart()
    cluster.run_until(lambda: leader.told(ReadItems))
    (wanted, *_) = leader.told(ReadItems)
    assert isinstance(wanted, ReadItems)
    found = [item for item in batches if item.position > wanted.prev]
    leader.core.items_read(GROUP, wanted.target, wanted.prev, found, cluster.now_ms)
    cluster.run(500)
    assert cluster.nodes[2].group().commit.offset == 8


def test_what_could_not_be_read_is_asked_for_again_and_as_segments_when_it_was_deleted_meanwhile() -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.propose(leader, 2)
    cluster.run(100)
    cluster.nodes[2].crash()
    cluster.propose(leader, 6)
    cluster.run(200)
    leader.core.release(GROUP, leader.group().commit)
    cluster.nodes[2].restart()
    cluster.run_until(lambda: leader.told(ReadItems))
    asked = leader.told(ReadItems)
    wanted = asked[-1]
    assert isinstance(wanted, ReadItems)
    leader.core.not_read(GROUP, wanted.target, START, cluster.now_ms, ships=False)
    cluster.run(100)
    assert leader.told(ReadItems) == asked, "of another moment"
    leader.core.not_read(GROUP, wanted.target, wanted.prev, cluster.now_ms, ships=False)
    cluster.run(100)
    assert leader.told(ReadItems) == [*asked, wanted]
    leader.core.truncate_start(GROUP, 8)
    leader.core.not_read(GROUP, wanted.target, wanted.prev, cluster.now_ms, ships=False)
    cluster.run(100)
    assert leader.told(ReadItems) == [*asked, wanted]
    assert leader.group().awaits_segments(wanted.target)


def install(term: int, position: tuple[int, int], *markers: Marker) -> Install:
    return Install(GROUP, Voter(NodeId(0), 0), Voter(NodeId(2), 0), term, Position(*position), markers, 0)


def test_difference_an_adoption_is_judged_when_it_is_journalled_and_keeps_term_and_vote() -> None:
    """Thesis 5.1 discards the log unless the snapshot is a prefix of it. Here also what is committed forbids it.

    The argument: a late snapshot must not take back acknowledged records; one that overwrites the vote makes two votes.
    """
    node = follower_of([(1, 4)], term=1)
    give(node, install(1, (1, 3), marker(1, 0)))
    assert node.group().log.end_offset == 4, "contained: nothing is done"
    give(node, append(1, (1, 4), commit=Position(1, 4)))
    node.group().vote = Voter(NodeId(1), 0)
    give(node, install(1, (1, 9), marker(1, 0)))
    assert (node.group().log.last, node.group().commit, node.group().vote) == ((1, 9), (1, 9), Voter(NodeId(1), 0))


def test_a_driver_that_replaces_logs_itself_is_not_overtaken_by_the_machine() -> None:
    """An Install for what the log has is acknowledged, one for what it has not is as if it were lost."""
    node = follower_of([(1, 4)], term=1)
    machine = node.group()
    machine.settings = replace(machine.settings, adopts=False)
    give(node, append(1, (1, 4), commit=Position(1, 2)))
    said = give(node, install(1, (1, 9), marker(1, 0)))
    assert machine.log.last == (1, 4)
    assert not node.told(Adopted)
    assert all(message.position <= (1, 4) for message in said if isinstance(message, Ack))
    (ack,) = [message for message in give(node, install(1, (1, 3), marker(1, 0))) if isinstance(message, Ack)]
    assert ack.position >= (1, 3)


def test_a_replica_for_which_much_would_be_read_is_given_segments_when_the_driver_says_so() -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.propose(leader, 2)
    cluster.run(100)
    cluster.nodes[2].crash()
    cluster.propose(leader, 6)
    cluster.run(200)
    leader.core.release(GROUP, leader.group().commit)
    cluster.nodes[2].restart()
    cluster.run_until(lambda: leader.told(ReadItems))
    (wanted, *_) = leader.told(ReadItems)
    assert isinstance(wanted, ReadItems)
    leader.core.not_read(GROUP, wanted.target, START, cluster.now_ms, ships=True)
    assert not leader.group().awaits_segments(wanted.target), "of another moment"
    leader.core.not_read(GROUP, wanted.target, wanted.prev, cluster.now_ms, ships=True)
    assert leader.group().awaits_segments(wanted.target)
    leader.core.items_read(GROUP, wanted.target, wanted.prev, [], cluster.now_ms)  # came too late
    cluster.run(100)
    (ship, *_) = leader.told(ShipSegments)
    assert isinstance(ship, ShipSegments)
    leader.core.shipped(GROUP, ship.target, ship.position, cluster.now_ms)
    assert not leader.group().awaits_segments(wanted.target)
    cluster.run(1_000)
    assert cluster.nodes[2].group().commit.offset == 8


def test_an_adoption_that_the_journal_lost_has_not_happened() -> None:
    node = follower_of([(1, 4)], term=3)
    node.persists = False
    give(node, install(3, (3, 9), marker(1, 0), marker(3, 6)))
    assert node.group().log.last == (3, 9)
    node.fail_journal()
    assert node.group().log.last == (1, 4), "what was acknowledged is there"
    assert node.group().durable == (1, 4)


def test_an_adoption_that_the_journal_lost_is_made_again_for_it_may_be_on_the_disk() -> None:
    """A cut would not bring back the log that it has replaced, and a restart would know neither."""
    node = follower_of([(1, 4)], term=3)
    node.persists = False
    give(node, append(3, (1, 4), marker(3, 4), batch(3, 4)))
    give(node, install(3, (3, 9), marker(1, 0), marker(3, 6)))
    node.turn()
    durable = [entry for number, entry in node.journal if number <= node.durable]
    ghosts = [entry for number, entry in node.journal if number > node.durable]
    assert isinstance(ghosts[-1], AdoptEntry)
    node.fail_journal()
    node.reopen_journal()
    node.turn()
    again = [entry for number, entry in node.journal if number > node.durable]
    found = [
        replay(EMPTY_CHECKPOINT, [*durable, *ghosts[:count], *again], ABC)._replace(voted_for=None)
        for count in range(len(ghosts) + 1)
    ]
    assert found == [found[0]] * len(found)
    assert (found[0].log.end_offset, found[0].commit_hint) == (9, (3, 9))
    assert node.group().commit == START
    node.persist()
    assert (node.group().commit, node.group().log.last) == ((3, 9), (3, 9))


def test_a_second_shipped_log_waits_until_the_first_is_durable() -> None:
    """The log that a failing journal goes back to is the one before the first: it was acknowledged, they were not."""
    node = follower_of([(1, 4)], term=3)
    node.persists = False
    give(node, install(3, (3, 9), marker(1, 0), marker(3, 6)))
    give(node, install(3, (3, 12), marker(1, 0), marker(3, 6)))
    assert node.group().log.last == (3, 9)
    node.fail_journal()
    assert node.group().log.last == (1, 4), "what was acknowledged is there"
    assert node.group().durable == (1, 4)


def test_a_restart_takes_the_hint_of_its_checkpoint_and_never_falls_below_it() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.propose(leader, 4)
    cluster.run(100)
    follower = cluster.nodes[(leader.address.node + 1) % 3]
    follower.checkpoints[GROUP] = (follower.durable, follower.core.checkpoint(GROUP))
    follower.journal = []
    cluster.isolate(follower.address.node)
    follower.crash()
    follower.restart()
    assert follower.group().commit.offset == 4
    assert follower.group().log.last == leader.group().log.last


def test_difference_a_checkpoint_holds_what_is_durable_and_not_committed_with_every_configuration() -> None:
    """raft-rules 4: what a checkpoint lacks is recycled with the journal."""
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    cluster.isolate(leader.address.node)
    accepted = cluster.propose(leader, 3)
    cluster.settle()
    assert leader.group().commit < accepted.position
    checkpoint = leader.core.checkpoint(GROUP)
    assert checkpoint.log.end_offset == 3
    assert checkpoint.commit_hint == leader.group().commit
    assert [m.config for m in checkpoint.log.markers] == [m.config for m in leader.group().log.markers]


def test_difference_a_checkpoint_that_has_a_cut_has_its_term_too() -> None:
    """raft-rules 1: no cut comes back without the term under which it was made. The log in memory is cut at once, so a
    checkpoint has the cut before the journal has: with the older term in it, that term's leader could be answered
    from a log that has lost what it had acknowledged.
    """
    node = follower_of([(1, 2), (3, 3)])
    node.persists = False
    give(node, append(9, (1, 2), marker(9, 2)))
    checkpoint = node.core.checkpoint(GROUP)
    assert checkpoint.log.end_offset == 2
    assert [m.epoch for m in checkpoint.log.markers] == [1]
    assert (checkpoint.term, checkpoint.voted_for) == (9, None)


def test_a_cut_below_commit_stops_the_replica() -> None:
    node = follower_of([(1, 4)], term=1)
    give(node, append(1, (1, 4), commit=Position(1, 4)))
    with pytest.raises(AssertionError, match="below commit"):
        give(node, append(2, (1, 2), marker(2, 2)))


def test_clients_are_told_of_a_leader_when_its_marker_is_committed() -> None:
    cluster = Cluster()
    for node in cluster.nodes:
        node.persists = True
    cluster.dropped = lambda _frame, message: isinstance(message, Ack)
    cluster.run_until(lambda: any(n.group().is_leader for n in cluster.nodes))
    cluster.run(100)
    assert not [e for n in cluster.nodes for e in n.told(LeaderReady)]
    cluster.dropped = lambda _frame, _message: False
    leader = cluster.elect()
    assert leader.told(LeaderReady) == [LeaderReady(GROUP, leader.group().term, 0)]
    first = next(event for event in leader.events if isinstance(event, Committed))
    assert first.position == (leader.group().term, 0)


def test_a_batch_entry_is_all_or_nothing_in_the_journal() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(50)
    cluster.propose(leader, 7)
    cluster.settle()
    assert [len(entry.batches) for _, entry in leader.journal if isinstance(entry, AppendEntry)] == [7]
    assert isinstance(leader.core, RaftCore)


def test_who_does_not_answer_is_asked_less_and_less_often_and_as_before_when_it_does() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(500)
    mute = (leader.address.node + 1) % 3
    cluster.dropped = lambda frame, message: frame.source.node == mute and isinstance(message, Ack)
    cluster.propose(leader)

    def asked(milliseconds: int) -> int:
        before = len(cluster.messages(AppendEntries))
        cluster.run(milliseconds)
        return len([m for m in cluster.messages(AppendEntries)[before:] if m.target.node == mute])

    assert asked(700) >= 2
    asked(4_000)
    assert asked(10 * cluster.settings.resend_ms_max) <= 11
    cluster.dropped = lambda _frame, _message: False
    cluster.run(cluster.settings.resend_ms_max)
    assert all(peer.match == 1 and not peer.resent for peer in leader.group().peers.values())
