"""Learners, changes of voters, going back: raft-rules 6, thesis 4; reads by read index: raft-rules 7.3, thesis 6.4."""

from __future__ import annotations

from collections.abc import Iterable

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import NodeId
from tpc_broker.raft.items import Config, Voter, simple
from tpc_broker.raft.messages import (
    Ack,
    AppendEntries,
    Frame,
    Heartbeat,
    Message,
    ReadRoundReply,
    Reason,
    TimeoutNow,
)
from tpc_broker.raft.output import (
    ChangeAborted,
    Committed,
    ConfigCommitted,
    ReadFailed,
    ReadReady,
    Refusal,
    RoleChanged,
)
from tpc_broker.raft.settings import Settings


def voter(number: int, incarnation: int = 0) -> Voter:
    return Voter(NodeId(number), incarnation)


def voters(*numbers: int) -> frozenset[Voter]:
    return frozenset(voter(number) for number in numbers)


def cluster_of(members: Iterable[int], others: Iterable[int], settings: Settings | None = None) -> Cluster:
    """Nodes that are in the creation record, and nodes that hold an empty replica without a configuration."""
    members, others = list(members), list(others)
    cluster = Cluster(len(members) + len(others), groups=0, settings=settings)
    for number in members:
        cluster.nodes[number].create(GROUP, voter(number), simple(voters(*members)))
    for number in others:
        cluster.nodes[number].create(GROUP, voter(number), None)
    return cluster


def configs(node: Node) -> list[Config]:
    return [marker.config for marker in node.group().log.markers]


def change(cluster: Cluster, leader: Node, *target: int) -> None:
    assert leader.core.change_voters(GROUP, voters(*target), cluster.now_ms) is None


def test_thesis_4_2_1_a_learner_gets_everything_and_does_not_count() -> None:
    cluster = cluster_of([0], [1])
    leader = cluster.elect()
    assert leader.core.set_learners(GROUP, [voter(1)], cluster.now_ms) is None
    cluster.propose(leader, 3)
    cluster.run(100)
    assert cluster.nodes[1].group().commit == leader.group().commit
    cluster.isolate(1)
    accepted = cluster.propose(leader)
    cluster.settle()
    assert leader.group().commit == accepted.position
    assert not cluster.nodes[1].group().is_voter
    cluster.run(5_000)
    assert cluster.nodes[1].group().elections_started == 0


def test_thesis_4_3_a_change_goes_through_a_joint_term_of_both_majorities() -> None:
    cluster = cluster_of([0, 1, 2], [3, 4])
    leader = cluster.elect()
    cluster.propose(leader, 3)
    keep = leader.address.node
    change(cluster, leader, keep, 3, 4)
    cluster.run_until(lambda: (n := cluster.leader()) is not None and n.group().config == simple(voters(keep, 3, 4)))
    found = cluster.leader()
    assert found is not None
    assert configs(found)[-3:] == [
        simple(voters(0, 1, 2)), Config(voters(0, 1, 2), voters(keep, 3, 4)), simple(voters(keep, 3, 4)),
    ]  # fmt: skip
    last = [e for e in found.events if isinstance(e, ConfigCommitted)][-1]
    assert last.removed == voters(0, 1, 2) - voters(keep)
    cluster.propose(found, 2)
    cluster.run(100)
    assert {cluster.nodes[n].group().commit.offset for n in (keep, 3, 4)} == {5}


def test_difference_each_configuration_begins_a_term_of_its_own() -> None:
    """Thesis 4.3 appends configuration entries in the midst of a term; 4.1 changes by one server with a known flaw.

    The argument: a change before the own term has committed anything (the flaw) cannot be written, because the change
    *is* the first item of the term, and electing that term needs a majority of the configuration before.
    """
    cluster = cluster_of([0], [1])
    leader = cluster.elect()
    before = leader.group().term
    change(cluster, leader, 1)
    cluster.run_until(lambda: cluster.nodes[1].group().is_leader and cluster.nodes[1].group().is_ready)
    markers = cluster.nodes[1].group().log.markers
    assert [marker.epoch for marker in markers][-3:] == [before, before + 1, before + 2]
    assert len({marker.epoch for marker in markers}) == len(markers)


def test_6_2_a_leader_that_is_not_in_the_new_set_hands_over_with_the_commit_position() -> None:
    cluster = cluster_of([0], [1])
    leader = cluster.elect()
    change(cluster, leader, 1)
    cluster.run_until(lambda: cluster.nodes[1].group().is_leader)
    (order, *_) = [m for m in cluster.sent if isinstance(m, TimeoutNow)]
    joint = cluster.nodes[1].group().log.markers[-2]
    assert order.commit >= joint.position
    cluster.run(100)
    removed = [e for e in cluster.nodes[1].events if isinstance(e, ConfigCommitted)][-1].removed
    assert removed == voters(0)


def test_6_2_without_the_position_the_joint_configuration_is_written_again() -> None:
    """'Joint committed' is a position, not an offset: several markers may stand at one offset."""
    cluster = cluster_of([0], [1])
    leader = cluster.elect()

    began = leader.group().term

    def forgets(_frame: object, message: object) -> bool:
        late = isinstance(message, AppendEntries) and message.commit.epoch == message.term > began
        return late or isinstance(message, TimeoutNow)

    change(cluster, leader, 1)
    cluster.dropped = forgets
    cluster.run_until(lambda: leader.group().config is not None and leader.group().config.is_joint)
    cluster.run(300)
    machine = cluster.nodes[1].group()
    assert machine.config is not None
    assert machine.config.is_joint
    assert machine.commit < machine.log.markers[-1].position
    assert machine.config_of_new_term() == machine.config
    machine.commit = machine.log.markers[-1].position._replace(epoch=machine.log.markers[-2].epoch)
    assert machine.config_of_new_term() == machine.config, "the same offset, an older epoch"
    machine.commit = machine.log.markers[-1].position
    assert machine.config_of_new_term() == simple(voters(1))


def joint_uncommitted() -> tuple[Cluster, Node]:
    """A leader of a joint term whose marker does not reach the new voters (3 and 4)."""
    cluster = cluster_of([0, 1, 2], [3, 4], settings=Settings(change_timeout_ms=2_000))
    leader = cluster.hand_to(0)
    cluster.run(500)
    began = leader.group().term
    cluster.dropped = lambda _f, m: isinstance(m, AppendEntries) and m.term > began and m.target.node in {3, 4}
    change(cluster, leader, 2, 3, 4)
    cluster.run_until(lambda: leader.group().term > began and leader.group().is_leader)
    return cluster, leader


def test_6_3_the_leader_that_began_goes_back_when_the_new_voters_do_not_answer() -> None:
    cluster, leader = joint_uncommitted()
    assert leader.group().config == Config(voters(0, 1, 2), voters(2, 3, 4))
    accepted = cluster.propose(leader)
    cluster.run(1_000)
    assert leader.group().commit < accepted.position
    cluster.run(2_000)
    assert leader.group().config == simple(voters(0, 1, 2))
    assert leader.told(ChangeAborted) == [ChangeAborted(GROUP, voters(2, 3, 4))]
    assert leader.group().is_committed(accepted.position), "and keeps what was proposed"


def test_6_3_also_when_their_links_fall_silent() -> None:
    cluster, leader = joint_uncommitted()
    cluster.isolate(3)
    cluster.isolate(4)
    cluster.run(1_900)
    assert leader.group().config == simple(voters(0, 1, 2))
    assert leader.group().is_ready


def test_6_3_only_from_the_very_leadership_and_only_while_uncommitted() -> None:
    cluster, leader = joint_uncommitted()
    assert leader.group()._may_abort()
    assert not any(node.group()._may_abort() for node in cluster.nodes if node is not leader)
    cluster.dropped = lambda _f, _m: False
    cluster.run(1_000)
    found = cluster.elect()
    assert found.group().config == simple(voters(2, 3, 4))
    assert not any(node.group()._may_abort() for node in cluster.nodes)


def test_6_3_a_campaign_under_the_old_voters_must_write_them() -> None:
    cluster = cluster_of([0, 1, 2], [3])
    leader = cluster.hand_to(0)
    machine = leader.group()
    cluster.run(200)
    machine.target = voters(0, 3)
    cluster.dropped = lambda _f, m: isinstance(m, AppendEntries)
    machine.peers.setdefault(voter(3), machine.rows[0])
    machine.campaign(Reason.OWN_NEXT_TERM, cluster.now_ms)
    cluster.settle()
    assert machine.config == Config(voters(0, 1, 2), voters(0, 3))
    assert machine._may_abort()
    leader.core.abort_change(GROUP, cluster.now_ms)
    cluster.dropped = lambda _f, _m: False
    cluster.run(100)
    assert machine.config == simple(voters(0, 1, 2))
    assert leader.told(ChangeAborted)
    assert cluster.leader() is leader
    leader.crash()
    leader.restart()
    assert not leader.group()._may_abort()


def test_a_leader_stands_for_its_next_term_as_it_is() -> None:
    """Its followers do not defend it against itself, nothing is cut, and the voters are the same."""
    cluster = cluster_of([0, 1, 2], [])
    leader = cluster.hand_to(0)
    cluster.propose(leader, 3)
    cluster.run(200)
    machine = leader.group()
    term, config, commit = machine.term, machine.config, machine.commit
    machine.begin_next_term(cluster.now_ms)
    cluster.run(200)
    assert (cluster.leader(), machine.term, machine.config) == (leader, term + 1, config)
    assert machine.commit > commit
    assert all(node.group().commit == machine.commit for node in cluster.nodes)
    follower = cluster.nodes[1].group()
    follower.begin_next_term(cluster.now_ms)
    assert follower.term == term + 1, "it does not lead"


def test_what_was_proposed_last_leaves_before_votes_are_asked_for() -> None:
    """Nobody lacks what is in front of the next term's first item, and has to be asked what it has."""
    cluster = cluster_of([0, 1, 2], [])
    leader = cluster.hand_to(0)
    cluster.run(200)
    rejects = sum(node.group().rejects for node in cluster.nodes)
    for _ in range(3):
        cluster.propose(leader, 3)
        leader.group().hold(cluster.now_ms)
        leader.group().begin_next_term(cluster.now_ms)
        cluster.settle()
        assert leader.group().is_ready
        assert leader.group().commit == leader.group().log.last
    assert sum(node.group().rejects for node in cluster.nodes) == rejects


def test_a_change_begins_when_a_quorum_has_what_is_not_in_memory() -> None:
    """As after a time in which somebody else has carried the group."""
    cluster = cluster_of([0, 1, 2], [3])
    leader = cluster.hand_to(0)
    machine = leader.group()
    cluster.propose(leader, 3)
    assert leader.core.set_learners(GROUP, [voter(3)], cluster.now_ms) is None
    cluster.run(1_000)
    assert machine.peers[voter(3)].match == 3
    held: list[Ack] = []

    def hold(frame: Frame, message: Message) -> bool:
        if isinstance(message, Ack) and frame.source.node in (1, 2):
            held.append(message)
            return True
        return False

    cluster.dropped = hold
    cluster.propose(leader, 3)
    cluster.settle()
    machine.log.release(machine.log.last)
    term = machine.term
    change(cluster, leader, 0, 1, 3)
    cluster.settle()
    assert machine.term == term, "as far as is known nobody else that votes has what is in files only"
    cluster.dropped = lambda _frame, _message: False
    machine.on_ack(held[0], cluster.now_ms)
    assert machine.term == term + 1
    cluster.settle()
    assert (machine.term, machine.config, machine.is_ready) == (term + 2, simple(voters(0, 1, 3)), True)


def test_what_comes_between_the_two_terms_of_a_change_is_committed_between_them() -> None:
    cluster = cluster_of([0, 1, 2], [3])
    leader = cluster.hand_to(0)
    machine = leader.group()
    cluster.run(200)
    term, proposed = machine.term, []

    def propose(_frame: Frame, message: Message) -> bool:
        """When the joint term has begun, and its marker is not committed."""
        if isinstance(message, Ack) and not proposed and machine.is_leader and machine.term == term + 1:
            proposed.append(cluster.propose(leader, 2).position)
        return False

    cluster.dropped = propose
    change(cluster, leader, 0, 1, 3)
    cluster.settle()
    assert (machine.term, machine.config, machine.is_ready) == (term + 2, simple(voters(0, 1, 3)), True)
    events = [event for event in leader.events if isinstance(event, Committed | RoleChanged)]
    shown = next(n for n, event in enumerate(events) if isinstance(event, Committed) and event.position == proposed[0])
    begun = next(n for n, event in enumerate(events) if isinstance(event, RoleChanged) and event.term == term + 2)
    assert proposed[0].epoch == term + 1
    assert shown < begun


def test_a_change_goes_on_when_what_came_between_its_terms_is_not_committed_soon() -> None:
    cluster = cluster_of([0, 1, 2], [3])
    leader = cluster.hand_to(0)
    machine = leader.group()
    cluster.run(200)
    term, proposed = machine.term, []

    def withhold(_frame: Frame, message: Message) -> bool:
        if isinstance(message, Ack) and not proposed and machine.is_leader and machine.term == term + 1:
            proposed.append(cluster.propose(leader, 2).position)
        items = message.items if isinstance(message, AppendEntries) else ()
        return bool(proposed) and proposed[0] in [item.position for item in items]

    cluster.dropped = withhold
    change(cluster, leader, 0, 1, 3)
    cluster.settle()
    assert (machine.term, machine.is_ready) == (term + 1, True)
    cluster.dropped = lambda _frame, _message: False
    cluster.run(machine.settings.finish_ms + 10)
    assert (machine.term, machine.config) == (term + 2, simple(voters(0, 1, 3)))
    cluster.run(100)
    assert machine.commit == machine.log.last
    assert machine.log.contains(proposed[0])


def test_a_leader_does_not_stand_again_while_its_voters_change() -> None:
    cluster = cluster_of([0, 1, 2], [3])
    leader = cluster.hand_to(0)
    cluster.run(200)
    machine = leader.group()
    cluster.isolate(3)
    change(cluster, leader, 0, 3)
    machine.begin_next_term(cluster.now_ms)
    assert machine.is_leader


def test_6_4_more_replicas_than_the_table_has_rows_are_refused() -> None:
    cluster = cluster_of([0, 1, 2], [3, 4, 5, 6, 7])
    leader = cluster.hand_to(0)
    cluster.run(100)
    assert leader.core.change_voters(GROUP, voters(3, 4, 5, 6, 7), 0) is Refusal.TOO_MANY_REPLICAS
    assert leader.core.set_learners(GROUP, voters(3, 4, 5, 6, 7), 0) is Refusal.TOO_MANY_REPLICAS
    assert leader.core.change_voters(GROUP, [], 0) is Refusal.NO_VOTERS
    assert cluster.nodes[1].core.change_voters(GROUP, voters(1), 0) is Refusal.NOT_LEADER
    change(cluster, leader, 0, 3, 4)
    assert leader.core.change_voters(GROUP, voters(0), cluster.now_ms) is not None


def test_the_configuration_in_force_is_that_of_the_last_marker_committed_or_not() -> None:
    """Thesis 4.1: a server always uses the latest configuration in its log."""
    cluster, leader = joint_uncommitted()
    for node in cluster.nodes:
        machine = node.group()
        assert machine.config == (machine.log.markers[-1].config if machine.log.markers else None)
    assert leader.group().log.markers


def test_a_replica_that_was_added_never_had_the_target_as_its_creation_configuration() -> None:
    """raft-rules 5: a node added later begins empty, without configuration, even if it knows the target placement."""
    cluster = Cluster(2, groups=0)
    target = simple(voters(1))
    cluster.nodes[0].create(GROUP, voter(0), simple(voters(0)))
    cluster.nodes[1].create(GROUP, voter(1, 1), target)
    assert cluster.nodes[1].group().config is None, "the target names another incarnation than this one"
    cluster.run(3_000)
    assert cluster.nodes[1].group().elections_started == 0


def test_a_removed_replica_that_comes_back_is_another_voter() -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    node = cluster.nodes[2]
    node.core.remove_group(GROUP, cluster.now_ms)
    node.journal = []
    cluster.shown.clear()
    node.create(GROUP, voter(2, 1), None)
    accepted = cluster.propose(leader, 2)
    cluster.run(500)
    assert leader.group().commit == accepted.position, "two of three"
    assert node.group().log.end_offset == 0, "messages for the old incarnation are dropped"
    change(cluster, leader, 0, 1)
    cluster.run(500)
    new = cluster.elect()
    assert new.core.change_voters(GROUP, [voter(0), voter(1), voter(2, 1)], cluster.now_ms) is None
    cluster.run(1_000)
    assert node.group().is_voter
    assert node.group().commit.offset == 2


# Reads.


def reads(node: Node) -> list[ReadReady]:
    return [event for event in node.events if isinstance(event, ReadReady)]


def test_thesis_6_4_a_read_is_answered_after_a_round_of_a_quorum_that_began_behind_it() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.propose(leader, 3)
    cluster.run(50)
    leader.core.read_index(GROUP, "a", cluster.now_ms)
    leader.core.read_index(GROUP, "b", cluster.now_ms)
    cluster.settle()
    assert reads(leader) == [ReadReady(GROUP, ("a", "b"), 3)]
    assert cluster.nodes[(leader.address.node + 1) % 3].core.read_index(GROUP, "c", 0) is Refusal.NOT_LEADER


def test_thesis_6_4_a_deposed_leader_answers_no_read() -> None:
    cluster = Cluster()
    old = cluster.elect()
    cluster.run(300)
    cluster.isolate(old.address.node)
    old.core.read_index(GROUP, "stale", cluster.now_ms)
    cluster.run(4_000)
    assert reads(old) == []
    assert [e for e in old.events if isinstance(e, ReadFailed)] == [ReadFailed(GROUP, ("stale",))]


def test_thesis_6_4_a_new_leader_answers_only_when_its_marker_is_committed() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    leader.group().is_ready = False
    leader.core.read_index(GROUP, "early", cluster.now_ms)
    cluster.settle()
    assert reads(leader) == []


def test_difference_heartbeats_of_a_link_do_not_vouch_for_a_group() -> None:
    """Thesis 6.4 uses the group's own heartbeats. Links here carry those of the core, so the round asks group by group.

    The argument: a core that hears this leader's core may have voted for another leader of this one group.
    """
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(300)
    for node in cluster.nodes:
        if node is not leader:
            node.group().see_term(leader.group().term + 1)
    leader.core.read_index(GROUP, "stale", cluster.now_ms)
    cluster.run(100)
    assert reads(leader) == []
    assert cluster.messages(Heartbeat)


def test_an_answer_to_an_earlier_round_or_of_another_incarnation_confirms_nothing() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    cluster.run(300)
    cluster.dropped = lambda _f, m: isinstance(m, ReadRoundReply)
    leader.core.read_index(GROUP, "a", cluster.now_ms)
    cluster.settle()
    machine = leader.group()
    asked = machine.reads[0].round_number
    other = machine.rows[0].voter
    machine.round_confirmed(asked - 1, other)
    machine.round_confirmed(asked, other._replace(incarnation=7))
    assert reads(leader) == []
    assert len(machine.reads) == 1
    cluster.dropped = lambda _f, _m: False
    cluster.run(700)
    leader.turn()
    assert [r.tokens for r in reads(leader)] == [("a",)]
