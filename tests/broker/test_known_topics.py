"""What coordinators of consumer groups know of the cluster's topics."""

from __future__ import annotations

import uuid
from dataclasses import replace

from tpc_broker.broker.known_topics import TopicsOfCore
from tpc_broker.broker.view import ClusterView
from tpc_broker.coordinator.consumer.messages import KnownTopic
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import (
    NodeAddress,
    NodeRegistered,
    ReplicasMoving,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
)
from tpc_broker.model import CoreId, NodeId, PartitionIndex, Replica, TopicId

T, U = TopicId(uuid.UUID(int=1)), TopicId(uuid.UUID(int=2))


def place(node):
    return Replica(NodeId(node), CoreId(0))


def view_of(*records):
    view = ClusterView(NodeId(1), 1, (), None, in_cluster=True)
    view.image = ClusterImage().apply(records, 1)
    return view


def then(view, *records):
    view.image = view.image.apply(records, view.image.version + 1)


def topic(name, topic_id, *replicas):
    return TopicCreated(
        name, topic_id, (CoreId(0),) * len(replicas), 0, replicas=tuple(tuple(map(place, each)) for each in replicas)
    )


def test_topics_are_found_by_name_and_by_id_as_long_as_they_are_there():
    view = view_of(TopicCreated("t", T, (CoreId(0),) * 3, 0))
    topics = TopicsOfCore(view, None)
    assert topics.named("t") == topics.of_id(T) == KnownTopic(T, "t", 3)
    assert (topics.named("u"), topics.of_id(U), topics.version) == (None, None, 1)
    then(view, TopicCreated("u", U, (CoreId(0),), 0))
    assert (set(topics.names()), topics.version) == ({"t", "u"}, 2)
    then(view, TopicDeleted(T))
    assert (topics.named("t"), topics.of_id(T)) == (None, None)
    then(view, TopicCreated("t", TopicId(uuid.UUID(int=3)), (CoreId(0),), 0))
    assert topics.named("t") == KnownTopic(TopicId(uuid.UUID(int=3)), "t", 1)


def test_what_was_made_of_a_topic_is_kept_until_it_changes():
    view = view_of(TopicCreated("t", T, (CoreId(0),), 0), TopicCreated("u", U, (CoreId(0),), 0))
    topics = TopicsOfCore(view, None)
    known = topics.named("t"), topics.named("u")
    then(view, TopicConfigChanged(U, "retention.ms", "1"))
    assert topics.of_id(T) is known[0]
    assert topics.of_id(U) is not known[1]
    then(view, TopicDeleted(U))
    topics.named("t")
    assert topics._known.keys() == {T}, "nothing of what is gone"


def test_racks_are_those_of_the_nodes_that_have_a_replica():
    nodes = [
        NodeRegistered(NodeId(number), number, 1, rack, "1", NodeAddress("here", 1), ())
        for number, rack in ((1, "a"), (2, "b"), (3, ""))
    ]
    view = view_of(*nodes, topic("t", T, (1, 2), (2, 3), (3,)))
    topics = TopicsOfCore(view, None)
    a, b = frozenset("a"), frozenset("b")
    assert topics.named("t").racks == (a | b, b, frozenset())
    then(view, replace(nodes[2], rack="a"))
    assert topics.named("t").racks == (a | b, a | b, a)
    move = ReplicasMoving(T, PartitionIndex(2), (place(2),), (place(2), place(3)), "asked", 1, 0)
    then(view, move)
    assert topics.named("t").racks == (a | b, a | b, a | b), "those that are to have one, too"


def test_a_cluster_or_a_node_without_racks_has_none():
    view = view_of(topic("t", T, (1, 2)))
    assert TopicsOfCore(view, None).named("t").racks == ()
    alone = view_of(TopicCreated("t", T, (CoreId(0),) * 2, 0))
    assert TopicsOfCore(alone, None).named("t").racks == ()
    assert TopicsOfCore(alone, "r").named("t").racks == (frozenset("r"), frozenset("r"))
