"""A replica goes from one core of its node to another (rules 5): what the journals say at each moment, and who acts."""

from __future__ import annotations

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import START, Address, Batch, Marker, Position, Voter, simple
from tpc_broker.raft.journal import (
    EMPTY_CHECKPOINT,
    AdoptEntry,
    AppendEntry,
    Checkpoint,
    MarkerEntry,
    ReleasedEntry,
    VoteEntry,
    is_adopted,
    released_by,
    replay,
)
from tpc_broker.raft.messages import Ack, AppendEntries, Frame, Reason, Reject, RequestVote, Resign, Vote
from tpc_broker.raft.output import Refusal, Role

TARGET = CoreId(1)


class Target:
    """The other core of node 0, with links to all nodes and a journal that is durable when told."""

    def __init__(self, cluster: Cluster) -> None:
        self.core = RaftCore(Address(NodeId(0), TARGET), 77, cluster.now_ms, cluster.settings)
        for address in cluster.addresses[1:]:
            self.core.add_link(address, cluster.now_ms)
        self.entries: list = []
        self.frames: list[Frame] = []

    def turn(self, now_ms: int) -> None:
        ready = self.core.ready(now_ms)
        self.entries += ready.entries
        self.frames += ready.frames

    def binding(self, kind: type) -> list:
        """(sequence to wait for, message) of messages of a kind."""
        return [
            (frame.after_sequence, message)
            for frame in self.frames for message in frame.messages if isinstance(message, kind)
        ]  # fmt: skip


def follower_with_records() -> tuple[Cluster, Node]:
    """Node 0 follows node 1 and has records; node 2 hears nobody, so nothing more is committed than is told here."""
    cluster = Cluster()
    leader = cluster.hand_to(1)
    cluster.propose(leader, 3)
    cluster.run(50)
    return cluster, cluster.nodes[0]


def released(cluster: Cluster, node: Node) -> ReleasedEntry:
    node.core.leave(GROUP, cluster.now_ms)
    node.turn()
    assert node.core.has_left(GROUP)
    node.core.release_group(GROUP, TARGET, cluster.now_ms)
    assert node.core.moves.released(GROUP) is None, "not before it is durable"
    node.configs.pop(GROUP)
    node.turn()
    found = node.core.moves.released(GROUP)
    assert found is not None
    return found


def adopted(cluster: Cluster, entry: ReleasedEntry) -> Target:
    target = Target(cluster)
    me, config = Voter(NodeId(0), 0), simple([Voter(NodeId(number), 0) for number in range(3)])
    target.core.adopt_group(me, config, entry, cluster.now_ms, {NodeId(1): CoreId(0), NodeId(2): CoreId(0)})
    target.turn(cluster.now_ms)
    return target


def test_term_vote_log_and_commit_go_over_and_nothing_else_is_invented() -> None:
    cluster, node = follower_with_records()
    before = node.group()
    term, vote, last, commit = before.term, before.vote, before.log.last, before.commit
    entry = released(cluster, node)
    after = adopted(cluster, entry).core.group(GROUP)
    assert (after.term, after.vote, after.log.last, after.commit) == (term, vote, last, commit)
    assert after.role is Role.FOLLOWER
    assert after.moves == 1


def test_what_is_not_committed_is_not_called_committed_by_the_move() -> None:
    """Against the adoption of shipped segments, which are committed: here `commit` is the replica's own."""
    cluster, _node = follower_with_records()
    cluster.hand_to(0)
    committed = cluster.nodes[0].group().commit
    cluster.isolate(0)
    cluster.propose(cluster.nodes[0], 2)
    cluster.nodes[0].turn()
    last = cluster.nodes[0].group().log.last
    entry = released(cluster, cluster.nodes[0])
    target = adopted(cluster, entry)
    found = replay(EMPTY_CHECKPOINT, [entry for _, entry in target.entries])
    assert found.log.end_offset == last.offset > committed.offset
    assert found.commit_hint == target.core.group(GROUP).commit == committed


def test_a_leader_resigns_before_it_leaves_and_is_silent_behind_the_release() -> None:
    cluster, _node = follower_with_records()
    node = cluster.hand_to(0)
    cluster.sent.clear()
    entry = released(cluster, node)
    assert {message.target.node for message in cluster.messages(Resign)} == {1, 2}
    cluster.sent.clear()
    vote = RequestVote(GROUP, Voter(NodeId(1), 0), Voter(NodeId(0), 0), 99, Position(98, 99), Reason.TRANSFER)
    node.core.receive(Frame(cluster.addresses[1], node.address, 1001, 0, (vote,)), cluster.now_ms)
    node.turn()
    assert not cluster.messages(Vote)
    assert entry.checkpoint.moves == 1


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
    with pytest.raises(AssertionError, match="not durable"):
        node.core.release_group(GROUP, TARGET, cluster.now_ms)
    node.persist()
    assert node.core.has_left(GROUP)


def test_it_has_not_left_while_a_vote_of_it_is_not_durable() -> None:
    """The release carries the vote; one that is durable before the vote could not be."""
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


def test_what_the_target_promises_waits_for_its_own_entry() -> None:
    cluster, node = follower_with_records()
    target = adopted(cluster, released(cluster, node))
    me, machine = Voter(NodeId(0), 0), target.core.group(GROUP)
    (adopt_sequence, adopt), *_ = target.entries
    assert isinstance(adopt, AdoptEntry)
    leader = cluster.nodes[1].group()
    message = AppendEntries(GROUP, leader.me, me, leader.term, leader.log.last, (), leader.commit)
    target.core.receive(Frame(cluster.addresses[1], target.core.address, 1001, 0, (message,)), cluster.now_ms)
    target.turn(cluster.now_ms)
    assert [after for after, _ack in target.binding(Ack)] == [adopt_sequence]
    ask = RequestVote(GROUP, leader.me, me, leader.term, leader.log.last, Reason.TRANSFER)
    machine.vote = leader.me  # as if it had gone over: the same vote again needs no entry of its own
    machine.journalled_vote = leader.me
    target.core.receive(Frame(cluster.addresses[1], target.core.address, 1001, 0, (ask,)), cluster.now_ms)
    target.turn(cluster.now_ms)
    assert [(after, vote.granted) for after, vote in target.binding(Vote)] == [(adopt_sequence, True)]


def test_a_lost_adoption_is_written_again_and_is_in_no_checkpoint_before() -> None:
    """The write that failed may be on the disk all the same, so a second core must not be tried."""
    cluster, node = follower_with_records()
    entry = released(cluster, node)
    target = adopted(cluster, entry)
    assert target.core.checkpoints() == {}
    target.core.journal_failed(0, cluster.now_ms)
    assert GROUP not in target.core.groups
    target.core.journal_reopened(cluster.now_ms)
    target.turn(cluster.now_ms)
    ghost, again = [entry for _, entry in target.entries]
    assert ghost == again
    assert replay(EMPTY_CHECKPOINT, [ghost, again]) == replay(EMPTY_CHECKPOINT, [again])
    target.core.persisted(target.entries[-1][0], cluster.now_ms)
    found = target.core.checkpoints()[GROUP]
    assert isinstance(found, Checkpoint)
    assert found.moves == 1


def test_a_lost_release_is_written_again() -> None:
    cluster, node = follower_with_records()
    node.core.leave(GROUP, cluster.now_ms)
    node.turn()
    node.core.release_group(GROUP, TARGET, cluster.now_ms)
    node.configs.pop(GROUP)
    node.core.ready(cluster.now_ms)
    node.fail_journal()
    assert node.core.moves.released(GROUP) is None
    node.reopen_journal()
    node.turn()
    assert isinstance(node.journal[-1][1], ReleasedEntry)
    assert node.core.moves.released(GROUP) is not None


def test_a_checkpoint_carries_the_release_on_until_it_is_forgotten() -> None:
    cluster, node = follower_with_records()
    entry = released(cluster, node)
    kept = node.core.checkpoints()
    assert kept == {GROUP: entry}
    assert released_by(entry, []) == entry, "after a restart from that checkpoint"
    node.core.moves.forget(GROUP)
    assert node.core.checkpoints() == {}


def test_a_start_tells_what_is_here_and_what_was_released() -> None:
    kept = EMPTY_CHECKPOINT._replace(moves=3)
    released_4 = ReleasedEntry(GROUP, TARGET, EMPTY_CHECKPOINT._replace(moves=4))
    adopt_5 = AdoptEntry(GROUP, START, (), 0, 7, None, START, 5)
    assert released_by(kept, []) is None
    assert released_by(kept, [VoteEntry(GROUP, 1, None), released_4]) == released_4
    assert released_by(released_4, [adopt_5]) is None
    assert replay(kept, [released_4, adopt_5]) == Checkpoint(7, None, START, EMPTY_CHECKPOINT.log, 5)


def test_what_a_replica_had_before_it_left_is_nothing_when_it_comes_back() -> None:
    """Between, another core cut what this one still has in its journal."""
    config, me = simple([Voter(NodeId(0), 0)]), Voter(NodeId(0), 0)
    marker, batch = Marker(9, 0, config), Batch(9, 5, 0, 1)
    first = [VoteEntry(GROUP, 9, me), MarkerEntry(GROUP, marker), AppendEntry(GROUP, (batch,))]
    gone = ReleasedEntry(GROUP, TARGET, EMPTY_CHECKPOINT._replace(moves=1))
    back = AdoptEntry(GROUP, Position(10, 0), (Marker(10, 0, config),), 0, 10, None, START, 2)
    found = replay(EMPTY_CHECKPOINT, [*first, gone, back])
    assert (found.term, found.log.end_offset, found.commit_hint, found.moves) == (10, 0, START, 2)


@pytest.mark.parametrize(
    ("at_target", "arrived"),
    [(None, False), (2, False), (3, True), (4, True), (-2, False), (-4, True)],
)
def test_of_two_cores_the_one_with_more_moves_is_later(at_target: int | None, *, arrived: bool) -> None:
    """Negative: released there as well, with so many moves."""
    entry = ReleasedEntry(GROUP, TARGET, EMPTY_CHECKPOINT._replace(moves=3))
    found: Checkpoint | ReleasedEntry | None = None
    if at_target is not None:
        found = EMPTY_CHECKPOINT._replace(moves=abs(at_target))
        found = ReleasedEntry(GROUP, CoreId(2), found) if at_target < 0 else found
    assert is_adopted(entry, found) is arrived


def test_the_others_follow_the_replica_to_its_new_core() -> None:
    cluster, node = follower_with_records()
    leader = cluster.nodes[1]
    leader.core.add_link(Address(NodeId(0), TARGET), cluster.now_ms)
    released(cluster, node)
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


def test_an_adoption_that_is_written_again_knows_who_else_has_moved_since() -> None:
    cluster, node = follower_with_records()
    target = adopted(cluster, released(cluster, node))
    target.core.journal_failed(0, cluster.now_ms)
    target.core.replica_moved(GROUP, NodeId(2), TARGET, cluster.now_ms)
    target.core.journal_reopened(cluster.now_ms)
    machine = target.core.group(GROUP)
    assert machine.address_of(Voter(NodeId(2), 0)) == Address(NodeId(2), TARGET)
    assert machine.address_of(Voter(NodeId(1), 0)) == Address(NodeId(1), CoreId(0))


def test_a_release_that_is_not_durable_stands_in_a_checkpoint_as_a_replica_that_is_here() -> None:
    """The checkpoint takes the place of what the journal had of it; the release may never become durable."""
    cluster, node = follower_with_records()
    machine = node.group()
    node.core.leave(GROUP, cluster.now_ms)
    node.turn()
    node.core.release_group(GROUP, TARGET, cluster.now_ms)
    found = node.core.checkpoints()[GROUP]
    assert isinstance(found, Checkpoint)
    assert (found.moves, found.term, found.log.end_offset) == (0, machine.term, machine.log.end_offset)
