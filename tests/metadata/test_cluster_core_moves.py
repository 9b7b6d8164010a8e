"""Replicas that go to other cores of their nodes, in the metadata: one of a partition at a time, and not while replicas
move between nodes.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from tests.metadata.test_replica_moves import Moving
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.cluster_core_moves import (
    CoreShift,
    begin_core_moves,
    came_too_late,
    check_on_its_core,
    core_moves,
    end_core_move,
    with_core,
)
from tpc_broker.metadata.controller import Controller
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.node_control import remove_node
from tpc_broker.metadata.records import (
    FeatureLevelChanged,
    MoveBegun,
    MoveDone,
    TopicCreated,
    decode_record,
    encode_record,
)
from tpc_broker.metadata.replica_moves import renewed
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import (
    CoreId,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
    broker_id_of,
)


class OnCores(Moving):
    """Nodes 1, 2 and 3 have two cores each, 4 and 5 one."""

    @property
    def key(self):
        return TopicPartition(self.topic.topic_id, PartitionIndex(0))

    def place(self, node):
        return next(place for place in self.topic.replicas[0] if place.node == node)

    def other(self, node):
        return Replica(NodeId(node), CoreId(1 - self.place(node).core))

    def ask_core(self, node):
        """To the other core of a node that has a replica."""
        return self.ask(("t", 0, with_core(self.image, "t", 0, self.other(node))))

    def end(self, owner=None):
        move = self.image.moving[self.key]
        self.apply(end_core_move(self.image, self.key, move.move_id, move.target if owner is None else owner))


def test_a_replica_is_on_its_core_until_the_move_is_done():
    nodes = OnCores()
    before, target = nodes.topic.replicas[0], nodes.other(2)
    assert nodes.ask_core(2) == [None]
    ((topic, move, source),) = core_moves(nodes.image)
    assert (topic.name, move.node, move.target, source) == ("t", 2, target.core, 1 - target.core)
    assert move.is_on(NodeId(2))
    assert not move.is_on(NodeId(1))
    assert nodes.topic.replicas[0] == before
    version = nodes.image.version
    assert nodes.ask_core(2) == [None], "it is asked for already"
    assert nodes.image.version == version
    assert ClusterImage.from_bytes(nodes.image.to_bytes()) == nodes.image
    nodes.end()
    assert nodes.topic.replicas[0] == tuple(target if place.node == 2 else place for place in before)
    assert nodes.topic.assignment.owners[0] == nodes.topic.replicas[0][0].core
    assert nodes.topic.assignment.manual == frozenset()
    assert not nodes.image.moving
    assert nodes.ask(("t", 0, nodes.brokers(*(place.node for place in before)))) == [None]
    assert not nodes.image.moving, "it is there"


def test_a_move_that_was_given_up_leaves_it_where_it_was():
    nodes = OnCores()
    before = nodes.topic.replicas
    assert nodes.ask_core(1) == [None]
    move = nodes.image.moving[nodes.key]
    assert end_core_move(nodes.image, nodes.key, move.move_id + 1, move.target) == []
    assert end_core_move(nodes.image, nodes.key, move.move_id, CoreId(7)) == []
    nodes.end(owner=nodes.place(1).core)
    assert (nodes.topic.replicas, nodes.image.moving) == (before, {})
    assert end_core_move(nodes.image, nodes.key, move.move_id, move.target) == []


def test_a_move_that_is_cancelled_is_under_way_until_its_node_knows_who_has_the_replica():
    nodes = OnCores()
    assert nodes.ask(("t", 0, None)) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    before = nodes.topic.replicas
    assert nodes.ask_core(2) == [None]
    move = nodes.image.moving[nodes.key]
    assert b"is_cancelled" not in encode_record(move), "as it always was"
    assert nodes.ask(("t", 0, None)) == [None]
    cancelled = nodes.image.moving[nodes.key]
    assert cancelled == replace(move, is_cancelled=True)
    assert decode_record(encode_record(cancelled)) == cancelled
    assert ClusterImage.from_bytes(nodes.image.to_bytes()) == nodes.image
    assert nodes.topic.replicas == before
    assert nodes.ask(("t", 0, None)) == [ErrorCode.NO_REASSIGNMENT_IN_PROGRESS]
    assert nodes.ask_core(2) == [ErrorCode.REASSIGNMENT_IN_PROGRESS], "it cannot be taken up again"
    assert nodes.ask_core(1) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    assert nodes.ask(("t", 0, nodes.brokers(4, 2, 3))) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    nodes.end(owner=nodes.place(2).core)
    assert (nodes.topic.replicas, nodes.image.moving) == (before, {})
    assert came_too_late(nodes.image, cancelled) is None
    assert nodes.ask_core(2) == [None]


def test_a_move_that_was_done_when_it_was_cancelled_stays_done():
    nodes = OnCores()
    target = nodes.other(2)
    assert nodes.ask_core(2) == [None]
    assert nodes.ask(("t", 0, None)) == [None]
    cancelled = nodes.image.moving[nodes.key]
    nodes.end()
    assert nodes.place(2) == target
    assert "had taken the replica on node 2 over" in came_too_late(nodes.image, cancelled)


def test_what_is_on_its_way_goes_nowhere_else_meanwhile():
    nodes = OnCores()
    assert nodes.ask_core(2) == [None]
    assert nodes.ask_core(1) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    assert nodes.ask(("t", 0, nodes.brokers(4, 2, 3))) == [ErrorCode.REASSIGNMENT_IN_PROGRESS]
    assert renewed(nodes.image, nodes.key, NodeId(2), 0, 5) == []
    with pytest.raises(Refusal):
        check_on_its_core(nodes.image, nodes.topic, 0)
    assert nodes.ask(("t", 1, nodes.brokers(4, *(p.node for p in nodes.topic.replicas[1][1:]), index=1))) == [None]
    nodes.end()
    check_on_its_core(nodes.image, nodes.topic, 0)
    assert nodes.ask(("t", 0, nodes.brokers(4, 2, 3))) == [None]
    assert nodes.ask(("t", 0, tuple(broker_id_of(*nodes.other(2)) if broker // 1024 == 2 else broker
                                    for broker in nodes.brokers(*(p.node for p in nodes.topic.places(0))))))  == [
        ErrorCode.REASSIGNMENT_IN_PROGRESS
    ]  # fmt: skip


def test_one_replica_at_a_time_in_the_order_that_there_is_and_not_below_level_3():
    nodes = OnCores()
    places = nodes.topic.replicas[0]
    everywhere = tuple(broker_id_of(*nodes.other(place.node)) for place in places)
    assert nodes.ask(("t", 0, everywhere)) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    one = with_core(nodes.image, "t", 0, nodes.other(places[0].node))
    assert nodes.ask(("t", 0, one[::-1])) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
    assert not nodes.image.moving
    older = OnCores(level=2)
    assert older.ask_core(2) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]


def test_a_node_begins_of_its_plan_what_is_still_as_it_was_planned():
    nodes = OnCores()
    keys = [TopicPartition(nodes.topic.topic_id, PartitionIndex(index)) for index in range(3)]
    ids = iter(range(100, 200))

    def shift(index, core=None):
        place = next(place for place in nodes.topic.replicas[index] if place.node == 2)
        source = place.core if core is None else core
        return CoreShift(keys[index], source, CoreId(1 - source))

    def begun(*wanted, node=2, level=3):
        image = nodes.image.apply([FeatureLevelChanged(level, 2)], nodes.image.version)
        found = begin_core_moves(image, NodeId(node), wanted, new_id=lambda: next(ids), now_ms=5)
        return [(move.partition, move.target, move.node) for move in found]

    good = [(index, shift(index).target, 2) for index in range(3)]
    assert begun(*map(shift, range(3))) == good
    assert begun(shift(0), level=2) == [], "others know of no such moves"
    assert begun(shift(0), node=9) == []
    assert begun(shift(0, core=shift(0).target), shift(1)) == [good[1]], "it is not there"
    assert begun(shift(0)._replace(target=CoreId(2)), shift(1)) == [good[1]], "there is no such core"
    nodes.ask_core(1)
    assert nodes.ask(("t", 1, nodes.brokers(4, 2, 3, index=1))) == [None]
    assert begun(*map(shift, range(3))) == [good[2]], "another replica of the one is on its way, and of the other"
    unknown = TopicPartition(TopicId(uuid.UUID(int=9)), PartitionIndex(0))
    assert begun(CoreShift(unknown, CoreId(0), CoreId(1))) == []


def test_a_core_names_the_replica_on_its_node_or_itself():
    nodes = OnCores()
    assert with_core(nodes.image, "t", 0, Replica(NodeId(4), CoreId(0))) == (4096,)
    assert with_core(nodes.image, "none", 0, Replica(NodeId(1), CoreId(0))) == (1024,)
    assert with_core(nodes.image, "t", 0, nodes.place(3)) == tuple(broker_id_of(*p) for p in nodes.topic.replicas[0])


def test_a_node_that_is_removed_moves_nothing_any_more():
    nodes = OnCores()
    assert nodes.ask_core(2) == [None]
    nodes.apply(remove_node(nodes.image, NodeId(2), (), accept_loss=False))
    assert not nodes.image.moving
    other = OnCores()
    assert other.ask_core(2) == [None]
    other.apply(remove_node(other.image, NodeId(3), (), accept_loss=False))
    target = other.other(2)
    other.end()
    assert target in other.topic.replicas[0]


def test_records_of_a_broker_alone_are_as_they_were():
    topic_id = OnCores().topic.topic_id
    begun = MoveBegun(topic_id, PartitionIndex(0), CoreId(1), 5, 6)
    for record in (begun, MoveDone(topic_id, PartitionIndex(0), CoreId(1))):
        assert b"node" not in encode_record(record)
        assert decode_record(encode_record(record)) == record
    of_cluster = MoveDone(topic_id, PartitionIndex(0), CoreId(1), NodeId(0))
    assert decode_record(encode_record(of_cluster)) == of_cluster


def test_a_move_of_the_node_that_founds_a_cluster_is_its_own():
    alone = Controller(ClusterImage(), load_settings("", ["node.id=1"]))
    brought = ClusterImage().apply(alone.begin("c", 2), MetadataVersion(1))
    brought = brought.apply([TopicCreated("u", OnCores().topic.topic_id, (CoreId(0),), 1)], MetadataVersion(2))
    moved = Controller(brought, load_settings("", ["node.id=1"])).begin_move("u", 0, [1025], move_id=5, now_ms=6)
    brought = brought.apply(moved, MetadataVersion(3))
    records = Controller(ClusterImage(), load_settings("", ["node.id=1"])).begin_cluster("c", brought, NodeId(1), 3)
    (move,) = ClusterImage().apply(records, MetadataVersion(9)).moving.values()
    assert (move.node, move.target) == (1, 1)
