"""Moves of replicas between nodes in the metadata: asked for, cancelled, done, and cut short by a removal."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from tests.metadata.test_cluster_of_nodes import Nodes, registered
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.controller import CreatableTopic
from tpc_broker.metadata.image import ClusterImage, changed_indexes
from tpc_broker.metadata.node_control import remove_node
from tpc_broker.metadata.records import ASKED, FeatureLevelChanged, ReplicasMoving, TopicAssigned, TopicConfigChanged
from tpc_broker.metadata.replica_moves import (
    BALANCED,
    PEERS_MAX,
    REPLACED,
    Request,
    active_moves,
    alter_replicas,
    left_out,
    move_done,
    moving,
    next_voters,
    renewed,
)
from tpc_broker.model import FirstVoter, NodeId, PartitionIndex, Replica, TopicPartition, broker_id_of


class Moving(Nodes):
    """Five nodes, and a topic `t` of three partitions with three replicas each, the first on nodes 1, 2, 3."""

    def __init__(self, level: int = 3) -> None:
        super().__init__({})
        self._ids = itertools.count(100)
        self.apply([FeatureLevelChanged(level, 1)])
        for node in (1, 2, 3):
            self.apply(self.controller.register_node(registered(node, 2)))
        self.create(CreatableTopic(name="t", num_partitions=3, replication_factor=3))
        for node in (4, 5):
            self.apply(self.controller.register_node(registered(node, 1)))

    @property
    def topic(self):
        return self.image.topic("t")

    def brokers(self, *nodes, index=0):
        """Of nodes: the broker of the replica that each has, or of its first core."""
        there = {place.node: place for place in self.topic.places(index)}
        return tuple(broker_id_of(*there.get(NodeId(node), Replica(NodeId(node), 0))) for node in nodes)

    def ask(self, *wanted, factor=True):
        records, outcomes = alter_replicas(self.image, Request(wanted, factor, 5, lambda: next(self._ids)))
        self.apply(records)
        return [None if refused is None else refused.code for refused in outcomes]

    def nodes_of(self, places):
        return [place.node for place in places]

    def done(self, index=0, term=7):
        move = self.topic.moves[PartitionIndex(index)]
        key = TopicPartition(self.topic.topic_id, PartitionIndex(index))
        self.apply(move_done(self.image, key, move.move_id, term))


def test_replicas_are_put_in_another_order_at_once():
    nodes = Moving(level=2)
    before = nodes.topic
    assert nodes.ask(("t", 1, nodes.brokers(3, 1, 2, index=1))) == [None]
    assert nodes.nodes_of(nodes.topic.replicas[1]) == [3, 1, 2]
    assert nodes.topic.assignment.owners[1] == nodes.topic.replicas[1][0].core
    assert (nodes.topic.replicas[::2], nodes.topic.voters) == (before.replicas[::2], before.voters)
    assert not nodes.topic.moves


def test_a_move_is_under_way_until_its_group_has_committed_it():
    nodes = Moving()
    places = nodes.topic.replicas[0]
    assert nodes.ask(("t", 0, nodes.brokers(4, 2, 3))) == [None]
    topic, come = nodes.topic, Replica(NodeId(4), 0)
    assert topic.replicas[0] == places
    assert set(topic.places(0)) == {*places, come}
    assert topic.is_on(come, 0)
    assert topic.cores_on(NodeId(4))[0] == 0
    assert nodes.nodes_of(topic.wanted(0)) == [4, 2, 3]
    stale = topic.moves[PartitionIndex(0)].move_id - 1
    assert not move_done(nodes.image, TopicPartition(topic.topic_id, PartitionIndex(0)), stale, 7)
    nodes.done(term=7)
    topic = nodes.topic
    assert nodes.nodes_of(topic.replicas[0]) == [4, 2, 3]
    assert topic.assignment.owners[0] == 0
    assert not topic.moves
    assert not topic.is_on(places[0], 0) or places[0].node != 1
    assert topic.lives == {(0, 1): (1, 7)}
    assert nodes.ask(("t", 0, nodes.brokers(1, 2, 3))) == [None]
    nodes.done(term=9)
    assert nodes.topic.lives == {(0, 1): (1, 7), (0, 4): (1, 9)}, "it keeps its second life"


def test_a_snapshot_has_moves_and_lives():
    nodes = Moving()
    nodes.ask(("t", 0, nodes.brokers(4, 2, 3)))
    nodes.done()
    nodes.ask(("t", 1, nodes.brokers(5, 1, 2, index=1)))
    again = ClusterImage.from_bytes(nodes.image.to_bytes())
    assert again == nodes.image
    assert again.apply(again.snapshot(), again.version) == again


def test_a_move_that_is_cancelled_goes_back():
    nodes = Moving()
    before = nodes.topic.replicas[0]
    nodes.ask(("t", 0, nodes.brokers(4, 5, 3)))
    assert nodes.ask(("t", 0, None)) == [None]
    assert nodes.topic.wanted(0) == before
    assert set(nodes.nodes_of(nodes.topic.places(0))) == {1, 2, 3, 4, 5}
    assert nodes.ask(("t", 0, None)) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    nodes.done(term=4)
    assert nodes.topic.replicas[0] == before
    assert set(nodes.topic.lives) == {(0, 4), (0, 5)}


def test_what_is_refused():
    nodes = Moving()
    here = nodes.topic.replicas[0][0]
    other_core = broker_id_of(here.node, 1 - here.core)
    stay = nodes.brokers(*(place.node for place in nodes.topic.replicas[0][1:]))
    nodes.create(CreatableTopic(name="alone", num_partitions=1, replication_factor=1))
    nodes.create(CreatableTopic(name="safe", num_partitions=1, replication_factor=3,
                                configs=(("min.insync.replicas", "2"),)))  # fmt: skip
    safe = nodes.image.topic("safe").replicas[0][0]
    assert nodes.ask(
        ("t", 9, (1024,)), ("u", 0, None), ("t", 0, None), ("t", 0, (other_core, stay[0], 4096)), ("t", 0, (9 * 1024,)),
        ("alone", 0, (9 * 1024,)), ("safe", 0, (broker_id_of(*safe),)),
    ) == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_REPLICA_ASSIGNMENT, ErrorCode.INVALID_CONFIG,
    ]  # fmt: skip
    assert nodes.ask(("t", 0, nodes.brokers(1, 4)), factor=False) == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert not nodes.topic.moves
    before = nodes.image
    assert nodes.ask(("alone", 0, nodes.brokers(4, 5)), factor=False) == [ErrorCode.INVALID_REPLICATION_FACTOR]
    assert nodes.image.topic("alone") == before.topic("alone")
    assert Moving(level=2).ask(("t", 0, (4096, 1024, 2048))) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


@pytest.mark.parametrize("level", [2, 3], ids=["made without a group", "made with a group"])
def test_partitions_with_one_replica_move(level):
    """Those without a group get one in the same records; in it the replica votes that is there, and no other."""
    nodes = Moving(level)
    nodes.create(CreatableTopic(name="alone", num_partitions=3, replication_factor=1))
    made = nodes.image.topic("alone")
    assert [made.is_replicated(index) for index in range(3)] == [level == 3] * 3
    nodes.apply([FeatureLevelChanged(3, 2)])
    (there,) = made.replicas[1]
    assert nodes.ask(("alone", 1, (broker_id_of(NodeId(4), 0), broker_id_of(NodeId(5), 0)))) == [None]
    topic = nodes.image.topic("alone")
    assert [topic.is_replicated(index) for index in range(3)] == [level == 3, True, level == 3]
    assert topic.voters[1] == (FirstVoter(there.node, nodes.image.nodes[there.node].incarnation),)
    assert (topic.replicas, topic.assignment) == (made.replicas, made.assignment)
    assert set(topic.places(1)) == {there, Replica(NodeId(4), 0), Replica(NodeId(5), 0)}
    move = topic.moves[PartitionIndex(1)]
    nodes.apply(move_done(nodes.image, TopicPartition(topic.topic_id, PartitionIndex(1)), move.move_id, 7))
    assert nodes.nodes_of(nodes.image.topic("alone").replicas[1]) == [4, 5]


def test_the_replication_factor_is_another():
    nodes = Moving()
    assert nodes.ask(("t", 0, nodes.brokers(1, 2, 3, 4, 5))) == [None]
    nodes.done()
    assert len(nodes.topic.replicas[0]) == 5
    assert nodes.ask(("t", 0, nodes.brokers(5))) == [None]
    nodes.done()
    assert nodes.nodes_of(nodes.topic.replicas[0]) == [5]


@pytest.mark.parametrize(
    ("wanted", "gone", "replicas", "target"),
    [
        ((4, 2, 3), 4, {1, 2, 3}, {5, 2, 3}),
        ((4, 2, 3), 1, {2, 3}, {4, 2, 3}),
        ((4, 2, 3), 2, {1, 3}, {4, 5, 3}),
    ],
)
def test_a_node_is_removed_while_replicas_move(wanted, gone, replicas, target):
    nodes = Moving()
    nodes.ask(("t", 0, nodes.brokers(*wanted)))
    before = nodes.topic.moves[PartitionIndex(0)].move_id
    nodes.apply(remove_node(nodes.image, NodeId(gone), (), accept_loss=False))
    topic = nodes.topic
    assert {place.node for place in topic.replicas[0]} == replicas
    assert {place.node for place in topic.wanted(0)} == target
    assert {place.node for place in topic.places(0)} == replicas | target
    assert topic.moves[PartitionIndex(0)].move_id != before


@pytest.mark.parametrize("core", range(2))
def test_who_was_to_leave_stays_on_its_core_when_who_was_to_come_is_removed(core):
    nodes = Moving()
    topic, here = nodes.topic, Replica(NodeId(1), core)
    first = tuple(here if place.node == here.node else place for place in topic.replicas[0])
    replicas = (first, *topic.replicas[1:])
    nodes.apply([TopicAssigned(topic.topic_id, tuple(each[0].core for each in replicas), (), replicas, topic.voters)])
    assert nodes.ask(("t", 0, nodes.brokers(4, 2, 3))) == [None]
    nodes.apply(remove_node(nodes.image, NodeId(4), {NodeId(5)}, accept_loss=False))
    assert sorted(nodes.topic.wanted(0)) == sorted(nodes.topic.places(0)) == sorted(first)


def test_so_many_moves_go_on_for_each_node_that_receives_and_the_urgent_ones_first():
    nodes = Moving()
    nodes.create(CreatableTopic(name="more", num_partitions=6, replication_factor=3))
    topic = nodes.image.topic("more")
    reasons = [BALANCED, ASKED, REPLACED, BALANCED, ASKED, BALANCED]
    for index, reason in enumerate(reasons):
        free = {1, 2, 3, 4, 5} - {place.node for place in topic.replicas[index]}
        come = 5 if 5 in free else min(free)
        wanted = (*topic.replicas[index][:2], Replica(NodeId(come), 0))
        nodes.apply([moving(topic, index, wanted, reason, index, index)])
        topic = nodes.image.topic("more")
    for most in (1, 2, 6):
        active = {key.partition for key in active_moves(nodes.image, most)}
        for node in range(1, 6):
            comers = [
                (reasons.index(move.reason), index) for index, move in topic.moves.items()
                if node == move.wanted[2].node
            ]  # fmt: skip
            here = [index for _reason, index in comers if index in active]
            assert len(here) == min(most, len(comers))
    first = min(topic.moves, key=lambda index: ([REPLACED, ASKED, BALANCED].index(reasons[index]), index))
    assert first in {key.partition for key in active_moves(nodes.image, 1)}
    back = ReplicasMoving(topic.topic_id, PartitionIndex(5), topic.replicas[5], topic.places(5), ASKED, 77, 77)
    nodes.apply([back])
    assert 5 in {key.partition for key in active_moves(nodes.image, 1)}, "it brings nothing to any node"


def test_moves_of_partitions_without_a_majority_take_nobodys_place():
    """Their groups have no leader: others would wait for them until the nodes come back."""
    nodes = Moving()
    nodes.create(CreatableTopic(name="more", num_partitions=12, replication_factor=3))
    topic = nodes.image.topic("more")
    for index, places in enumerate(topic.replicas):
        come = next(node for node in (5, 4, 3, 2) if node not in {place.node for place in places})
        wanted = (*places[:2], Replica(NodeId(come), 0))
        nodes.apply([moving(topic, index, wanted, REPLACED, index, index)])
    topic = nodes.image.topic("more")
    for away in (set(), {1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4, 5}):
        lost = {index for index, places in enumerate(topic.replicas) if len(away & {one.node for one in places}) > 1}
        active = {key.partition for key in active_moves(nodes.image, 1, frozenset(map(NodeId, away)))}
        counted = Counter(topic.moves[index].wanted[2].node for index in active - lost)
        assert set(counted) == {topic.moves[index].wanted[2].node for index in set(range(12)) - lost}, away
        assert set(counted.values()) <= {1}


def test_what_a_node_had_alone_begins_anew_with_another_data_directory():
    nodes = Moving()
    nodes.ask(("t", 0, nodes.brokers(4)), ("t", 1, nodes.brokers(4, 5, index=1)))
    nodes.done()
    nodes.done(index=1)
    nodes.ask(("t", 0, nodes.brokers(5)))
    nodes.done()
    nodes.ask(("t", 0, nodes.brokers(4)))
    nodes.done()
    before = nodes.topic.voters
    nodes.apply(nodes.controller.register_node(registered(4, 1)))
    assert nodes.topic.voters == before
    nodes.apply(nodes.controller.register_node(registered(4, 1, incarnation=90)))
    assert nodes.topic.voters[0] == ((4, 91),), "in its second life there"
    assert nodes.topic.voters[1:] == before[1:]


def test_voters_change_as_far_as_a_group_has_room():
    chooser = random.Random(5)
    for _ in range(2_000):
        voters = [(NodeId(node), chooser.randrange(2)) for node in range(12)]
        present = frozenset(chooser.sample(voters, chooser.randint(1, 5)))
        wanted = frozenset(chooser.sample(voters, chooser.randint(1, 5)))
        least = min(len(present), len(wanted))
        for _step in range(10):
            following = next_voters(present, wanted)
            assert len(present | following) - 1 <= PEERS_MAX
            assert least <= len(following) <= 5
            present = following
            if present == wanted:
                break
        assert present == wanted


def test_a_replica_that_is_damaged_begins_another_life_in_its_place_once():
    made = Moving()
    key, before = TopicPartition(made.topic.topic_id, PartitionIndex(0)), made.topic.replicas[0]
    made.apply(renewed(made.image, key, NodeId(2), 0, 7))
    assert made.topic.replicas[0] == before
    assert [made.topic.life_of(0, NodeId(node)) for node in (1, 2, 3)] == [0, 1, 0]
    assert not renewed(made.image, key, NodeId(2), 0, 7), "it has been done"
    assert not renewed(made.image, key, NodeId(4), 0, 7), "it has none"
    assert not renewed(made.image, key._replace(partition=PartitionIndex(9)), NodeId(2), 1, 7)
    made.apply(renewed(made.image, key, NodeId(2), 1, 9))
    assert made.topic.life_of(0, NodeId(2)) == 2
    assert made.ask(("t", 0, made.brokers(1, 2, 4))) == [None]
    assert not renewed(made.image, key, NodeId(2), 2, 11), "its replicas move"


def test_what_was_left_out_is_so_in_a_later_term():
    made = Moving()
    key = TopicPartition(made.topic.topic_id, PartitionIndex(0))
    assert made.ask(("t", 0, made.brokers(1, 2, 4))) == [None]
    assert not left_out(made.image, key, NodeId(3), 0, 7), "it is not yet"
    made.apply(move_done(made.image, key, made.topic.moves[PartitionIndex(0)].move_id, 5))
    before = made.topic.replicas[0]
    assert made.topic.lives == {(0, 3): (1, 5)}
    assert not left_out(made.image, key, NodeId(3), 1, 5), "that is known"
    assert not left_out(made.image, key, NodeId(3), 0, 7), "of an earlier life"
    assert not left_out(made.image, key, NodeId(4), 0, 7), "it has one"
    assert not left_out(made.image, key, NodeId(5), 0, 7), "it never had one"
    made.apply(left_out(made.image, key, NodeId(3), 1, 7))
    assert made.topic.lives == {(0, 3): (1, 7)}
    assert made.topic.replicas[0] == before
    assert made.ask(("t", 0, made.brokers(1, 2, 3))) == [None]
    assert not left_out(made.image, key, NodeId(3), 1, 9), "it comes back"
    made.apply(move_done(made.image, key, made.topic.moves[PartitionIndex(0)].move_id, 9))
    assert not left_out(made.image, key, NodeId(3), 1, 11), "it has come back"


def test_an_older_cluster_begins_no_other_life():
    made = Moving(level=2)
    key = TopicPartition(made.topic.topic_id, PartitionIndex(0))
    assert not renewed(made.image, key, NodeId(2), 0, 7)


def test_the_partitions_that_a_change_is_about_are_those_that_differ_in_anything():
    moving = Moving()
    seen = [moving.topic]

    def differ():
        seen.append(moving.topic)
        return list(changed_indexes(*seen[-2:]))

    assert moving.ask(("t", 1, moving.brokers(1, 2, 4, index=1))) == [None]
    assert differ() == [1], "it has places"
    moving.apply(move_done(moving.image, TopicPartition(moving.topic.topic_id, PartitionIndex(1)), 100, 7))
    assert differ() == [1], "it has other replicas, no move, and a node with another life"
    assert moving.ask(("t", 2, tuple(reversed(moving.brokers(1, 2, 3, index=2))))) == [None]
    assert differ() == [2], "another one is preferred"
    key = TopicPartition(moving.topic.topic_id, PartitionIndex(1))
    moving.apply(left_out(moving.image, key, NodeId(3), 1, 9))
    assert differ() == [1], "a life ended in a later term"
    moving.apply([TopicConfigChanged(moving.topic.topic_id, "retention.ms", "1")])
    assert differ() == [0, 1, 2], "settings are all partitions'"
    assert list(changed_indexes(None, moving.topic)) == [0, 1, 2]
    assert list(changed_indexes(moving.topic, moving.topic)) == []
