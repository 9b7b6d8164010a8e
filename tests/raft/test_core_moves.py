"""A replica goes from one core of its node to another (rules 5): what the machine says, and whom the others follow."""

from __future__ import annotations

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.items import Address, Position, Voter
from tpc_broker.raft.messages import Ack, AppendEntries, Frame, Reason, Reject, RequestVote, Resign, Vote
from tpc_broker.raft.output import Refusal

TARGET = CoreId(1)


def follower_with_records() -> tuple[Cluster, Node]:
    """Node 0 follows node 1 and has records; node 2 hears nobody, so nothing more is committed than is told here."""
    cluster = Cluster()
    leader = cluster.hand_to(1)
    cluster.propose(leader, 3)
    cluster.run(50)
    return cluster, cluster.nodes[0]


def left(cluster: Cluster, node: Node) -> None:
    """It has left, and is removed here: what it was is brought to the other core."""
    node.core.leave(GROUP, cluster.now_ms)
    node.turn()
    assert node.core.has_left(GROUP)
    node.core.remove_group(GROUP, cluster.now_ms)
    node.configs.pop(GROUP)
    node.turn()


def test_a_leader_resigns_before_it_leaves_and_is_silent_when_it_has_left() -> None:
    cluster, _node = follower_with_records()
    node = cluster.hand_to(0)
    cluster.sent.clear()
    left(cluster, node)
    assert {message.target.node for message in cluster.messages(Resign)} == {1, 2}
    cluster.sent.clear()
    vote = RequestVote(GROUP, Voter(NodeId(1), 0), Voter(NodeId(0), 0), 99, Position(98, 99), Reason.TRANSFER)
    node.core.receive(Frame(cluster.addresses[1], node.address, 1001, 0, (vote,)), cluster.now_ms)
    node.turn()
    assert not cluster.messages(Vote)


def test_one_that_leaves_takes_nothing_acknowledges_nothing_and_may_stay() -> None:
    cluster, node = follower_with_records()
    node.core.leave(GROUP, cluster.now_ms)
    cluster.sent.clear()
    cluster.propose(cluster.nodes[1], 1)
    cluster.run(100)
    assert not [message for message in cluster.messages(Ack) if message.source.node == 0]
    assert cluster.refused(node) is Refusal.NOT_LEADER
    node.core.stay(GROUP, cluster.now_ms)
    cluster.run(2_000)
    assert node.group().log.last == cluster.nodes[1].group().log.last


def test_it_has_not_left_while_something_of_it_is_not_durable() -> None:
    cluster, node = follower_with_records()
    node.persists = False
    cluster.propose(cluster.nodes[1], 1)
    cluster.run(20)
    node.core.leave(GROUP, cluster.now_ms)
    assert not node.core.has_left(GROUP)
    node.persist()
    assert node.core.has_left(GROUP)


def test_it_has_not_left_while_a_vote_of_it_is_not_durable() -> None:
    """What goes over has the vote."""
    cluster, node = follower_with_records()
    node.persists = False
    leader, machine = cluster.nodes[1].group(), node.group()
    ask = RequestVote(GROUP, leader.me, machine.me, machine.term + 1, leader.log.last, Reason.TRANSFER)
    node.core.receive(Frame(cluster.addresses[1], node.address, leader.host.boot_id, 0, (ask,)), cluster.now_ms)
    assert machine.vote == leader.me
    node.turn()
    node.core.leave(GROUP, cluster.now_ms)
    assert not node.core.has_left(GROUP)
    node.persist()
    assert node.core.has_left(GROUP)


def test_the_others_follow_the_replica_to_its_new_core() -> None:
    cluster, node = follower_with_records()
    leader = cluster.nodes[1]
    leader.core.add_link(Address(NodeId(0), TARGET), cluster.now_ms)
    left(cluster, node)
    leader.core.replica_moved(GROUP, NodeId(0), TARGET, cluster.now_ms)
    leader.core.receive(Frame(Address(NodeId(0), TARGET), leader.address, 77, 0, ()), cluster.now_ms)
    cluster.propose(leader, 1)
    frames = leader.core.ready(cluster.now_ms).frames
    to_node_0 = {frame.target for frame in frames for message in frame.messages if getattr(message, "items", ())}
    assert Address(NodeId(0), TARGET) in to_node_0
    assert Address(NodeId(0), CoreId(0)) not in to_node_0


def test_a_replica_that_is_not_known_at_the_moment_is_followed_to_its_new_core_too() -> None:
    """A learner lost all that it had of the log, so nobody is named in it any more; then the leader came back to it
    from another core. What was remembered of the leader's place before led every answer, and later every record, to a
    core that had not got it: the replica there was never written to again.
    """
    cluster = Cluster(2, groups=0)
    cluster.create(GROUP, voters=[0], learners=[1])
    leader, learner = cluster.elect(), cluster.nodes[1]
    learner.core.add_link(Address(NodeId(0), TARGET), cluster.now_ms)
    learner.persists = False
    leader.core.set_learners(GROUP, [Voter(NodeId(1), 0)], cluster.now_ms)
    cluster.run(20)
    assert learner.group().leader == Voter(NodeId(0), 0)
    learner.fail_journal()
    assert learner.group().known() == []
    learner.core.replica_moved(GROUP, NodeId(0), TARGET, cluster.now_ms)
    learner.reopen_journal()
    machine = leader.group()
    append = AppendEntries(GROUP, machine.me, learner.group().me, machine.term, machine.log.last, (), machine.commit)
    learner.core.receive(Frame(Address(NodeId(0), TARGET), learner.address, 77, 0, (append,)), cluster.now_ms)
    answers = [
        frame.target for frame in learner.core.ready(cluster.now_ms).frames
        for message in frame.messages if isinstance(message, Reject)
    ]  # fmt: skip
    assert answers == [Address(NodeId(0), TARGET)]
