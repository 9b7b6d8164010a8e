"""What Metadata tell of partitions is kept, and never what was so before."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import replace

import pytest

from tpc_broker.broker.told_partitions import ToldPartitions
from tpc_broker.broker.view import NOBODY, ClusterView, Leader
from tpc_broker.kafka import messages
from tpc_broker.metadata.image import ClusterImage, TopicImage
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import NodeAddress, NodeRegistered, ReplicasMoved, ReplicasMoving, TopicDeleted
from tpc_broker.model import (
    NO_LEADER_EPOCH,
    CoreId,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
)
from tpc_broker.routing import Assignment

COUNT = 12
NODES = range(1, 6)


def registered(number, port=9000):
    listeners = tuple((name, (NodeAddress("h", port + at + number),)) for at, name in enumerate(("IN", "OUT")))
    address = NodeAddress("h", 8000 + number)
    return NodeRegistered(NodeId(number), number, 1, "", "1", address, listeners)


def made_topic(number):
    replicas = tuple(
        tuple(Replica(NodeId((index + at) % 4 + 1), CoreId(0)) for at in range(3)) for index in range(COUNT)
    )
    voters = (*(tuple((each.node, 7) for each in places) for places in replicas[:-2]), (), ())
    owners = tuple(places[0].core for places in replicas)
    return TopicImage(f"t{number}", TopicId(uuid.UUID(int=number)), Assignment(owners), 0, {}, replicas, voters)


class ToldCluster:
    def __init__(self):
        self.view = ClusterView(
            NodeId(1), 1,
            [
                Listener(name, ListenerMode.PER_CORE_PORT, (Address("h", port),), (Address("h", port),))
                for name, port in (("IN", 9001), ("OUT", 9002))
            ],
            None, in_cluster=True,
        )  # fmt: skip
        self.view.core = CoreId(0)
        topics = [made_topic(number) for number in range(2)]
        self.view.image = ClusterImage(
            1, topics={topic.topic_id: topic for topic in topics}, ids={topic.name: topic.topic_id for topic in topics},
            nodes={NodeId(number): registered(number) for number in NODES},
        )  # fmt: skip
        self.told = ToldPartitions(self.view, self.is_available)
        self.made = 0

    def is_available(self, place):
        self.made += 1
        return self.view.is_present(place.node) if place.node != 1 else self.view.is_up(place.core)

    def topics(self):
        return list(self.view.image.topics.values())

    def check_leads(self):
        """What tools are told of nodes, by looking at each partition."""
        view, found = self.view, Counter()
        for key, leader in view._leaders.items():
            topic = view.image.topics.get(key.topic_id)
            if leader.place != NOBODY and topic is not None and key.partition < topic.partitions_count:
                found[view.place_of(topic, key.partition).node] += 1
        assert view.leads_of_nodes() == found

    def check(self):
        self.check_leads()
        on_changed = self.view.on_told_changed
        anew = ToldPartitions(self.view, self.is_available)
        self.view.on_told_changed = on_changed
        for topic in self.topics():
            for listener in (0, 1):
                assert self.told.of_topic(listener, topic) == anew.of_topic(listener, topic)

    def apply(self, *records):
        self.view.image = self.view.image.apply(records, self.view.image.version + 1)


def a_key(chooser, world):
    return TopicPartition(chooser.choice(world.topics()).topic_id, PartitionIndex(chooser.randrange(COUNT)))


def lead(chooser, world):
    key, known = a_key(chooser, world), NO_LEADER_EPOCH
    known = world.view.told(key).epoch
    place = chooser.choice([NOBODY, None, Replica(NodeId(chooser.choice(NODES)), CoreId(0))])
    in_sync = tuple(NodeId(number) for number in chooser.sample(NODES, 2))
    epoch = chooser.choice([LeaderEpoch(known + 1), NO_LEADER_EPOCH, known])
    world.view.note_leaders([(key, Leader(epoch, chooser.randrange(3), place, in_sync))])


def move(chooser, world):
    key = a_key(chooser, world)
    topic = world.view.image.topics[key.topic_id]
    under_way = topic.moves.get(key.partition)
    if under_way is not None:
        world.apply(ReplicasMoved(*key, under_way.wanted, ((under_way.places[0].node, 1, 1),)))
        return
    wanted = tuple(Replica(NodeId(number), CoreId(0)) for number in chooser.sample(NODES, 3))
    more = tuple(each for each in wanted if each not in topic.replicas[key.partition])
    world.apply(ReplicasMoving(*key, wanted, (*topic.replicas[key.partition], *more), "balance", 1, 0))


def absent(chooser, world):
    gone = frozenset(NodeId(number) for number in chooser.sample(range(2, 6), chooser.randrange(3)))
    world.view.note_absent(gone, is_cut_off=chooser.random() < 0.3)


def cores(chooser, world):
    if chooser.random() < 0.5:
        world.view.note_heard(CoreId(0))
    else:
        world.view.set_up([CoreId(0)] if chooser.random() < 0.3 else [])


def node(chooser, world):
    number = chooser.choice(NODES)
    if chooser.random() < 0.5:
        world.apply(registered(number, chooser.choice([9000, 9500])))
    else:
        world.apply(replace(registered(number), incarnation=chooser.randrange(1, 9)))


def again(_chooser, world):
    """A topic is deleted, and another one is made with its name."""
    topic = world.topics()[0]
    made = replace(made_topic(7), name=topic.name, topic_id=TopicId(uuid.UUID(int=topic.topic_id.int + 10)))
    world.view.forget_leaders(topic)
    world.apply(TopicDeleted(topic.topic_id), made.record())


@pytest.mark.parametrize("seed", range(30))
def test_whatever_changes_what_is_told_is_what_is_so(seed):
    chooser, world = random.Random(seed), ToldCluster()
    world.check()
    for _step in range(60):
        chooser.choice([lead, lead, lead, move, move, absent, cores, node, again])(chooser, world)
        if chooser.random() < 0.7:
            world.check()


def test_a_topic_whose_leaders_are_forgotten_is_told_to_have_none():
    world = ToldCluster()
    topic = world.topics()[0]
    key = TopicPartition(topic.topic_id, PartitionIndex(3))
    world.view.note_leaders([(key, Leader(LeaderEpoch(4), 0, Replica(NodeId(2), CoreId(0)), (NodeId(2),)))])
    assert world.told.of_topic(0, topic)[3].leader_epoch == 4
    world.view.forget_leaders(topic)
    assert world.told.of_topic(0, topic)[3].leader_epoch == NO_LEADER_EPOCH
    world.check()


def test_only_what_is_another_is_made_again():
    world = ToldCluster()
    topic = world.topics()[0]
    first = world.told.of_topic(0, topic)
    world.made = 0
    assert world.told.of_topic(0, topic) == first
    assert not world.made
    key = TopicPartition(topic.topic_id, PartitionIndex(3))
    world.view.note_leaders([(key, Leader(LeaderEpoch(4), 0, Replica(NodeId(2), CoreId(0)), (NodeId(2),)))])
    second = world.told.of_topic(0, topic)
    assert [a is b for a, b in zip(first, second, strict=True)] == [index != 3 for index in range(COUNT)]
    assert second[3].leader_epoch == 4
    assert all(type(row) is messages.MetadataResponse.MetadataResponsePartition for row in second)
    places = topic.replicas[6]
    world.apply(ReplicasMoving(topic.topic_id, PartitionIndex(5), places, places, "balance", 1, 0))
    third = world.told.of_topic(0, world.topics()[0])
    assert [a is b for a, b in zip(second, third, strict=True)] == [index != 5 for index in range(COUNT)]


def test_who_is_cut_off_sends_clients_to_the_others_but_for_what_it_leads():
    view = ToldCluster().view
    every, own = [1024 * number for number in NODES], 1024

    def asked(*leaders):
        return [each.broker_id for each in view.to_be_asked(0, leaders)]

    assert asked(-1, 2048) == every
    gone = frozenset(map(NodeId, NODES)) - {NodeId(1)}
    view.note_absent(gone)
    assert asked(-1, 2048) == [own], "it hears enough to say so"
    view.note_absent(gone, is_cut_off=True)
    assert asked(-1, 2048) == every[1:]
    assert asked(-1, own) == every
    assert [each.broker_id for each in view.endpoints(0)] == every, "who asks for nodes only may want this one"
    assert view.controller_id(0) == 2048, "any other one"
    view.controller = NodeId(3)
    assert view.controller_id(0) == 3072
    view.image = replace(view.image, nodes={})
    assert asked(-1) == [own], "there is nobody else"
