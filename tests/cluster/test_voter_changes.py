"""Leaders that change the voters of their groups as the metadata want it, with machines in one process."""

from __future__ import annotations

import uuid

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ASKED, CANCELLED, NodeRegistered, ReplicasMoving, TopicCreated
from tpc_broker.metadata.replica_moves import move_done, moving
from tpc_broker.model import CoreId, MetadataVersion, NodeId, PartitionIndex, Replica, TopicId, TopicPartition
from tpc_broker.raft.items import Voter, simple
from tpc_broker.runtime.cluster.voter_changes import VoterChanges

KEY = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
PLACES = [Replica(NodeId(number), CoreId(0)) for number in range(3)]


def voters_of(*numbers: int):
    return simple([Voter(NodeId(number), 0) for number in numbers])


class World:
    """Nodes 0 and 1 have a partition. `versions` are the metadata, each node sees one of them."""

    def __init__(self) -> None:
        self.cluster = Cluster(3, groups=0)
        self.cluster.create(GROUP, [0, 1], learners=[2])
        members = [
            NodeRegistered(NodeId(number), 0, 1, "", "1", (f"host{number}", 1), ()) for number in range(3)
        ]  # fmt: skip
        created = TopicCreated(
            "t", KEY.topic_id, (CoreId(0),), 1, replicas=(tuple(PLACES[:2]),), voters=(((0, 0), (1, 0)),)
        )
        self.versions = [ClusterImage().apply([*members, created], MetadataVersion(1))]
        self.changes = [VoterChanges(node.core) for node in self.cluster.nodes]
        for number in range(3):
            self.see(number)

    def write(self, *records) -> None:
        newest = self.versions[-1]
        self.versions.append(newest.apply(records, MetadataVersion(newest.version + 1)))

    def move(self, reason: str, *wanted: int) -> None:
        topic = self.versions[-1].topic_by_id(KEY.topic_id)
        places, version = tuple(PLACES[number] for number in wanted), len(self.versions)
        if reason == ASKED:
            self.write(moving(topic, 0, places, reason, version, version))
        else:
            self.write(
                ReplicasMoving(topic.topic_id, KEY.partition, places, topic.places(0), reason, version, version)
            )

    def see(self, number: int, version: int = -1) -> None:
        self.changes[number].image = self.versions[version]
        self.changes[number].allowed = frozenset({KEY})

    def look(self) -> None:
        for node, changes in zip(self.cluster.nodes, self.changes, strict=True):
            if node.up and node.group().is_leader:
                changes.look([(KEY, node.group())], self.cluster.now_ms)

    def run(self, milliseconds: int = 3_000) -> None:
        for _look in range(milliseconds // 100):
            self.look()
            self.cluster.run(100)

    def confirm(self, number: int) -> None:
        """The controller is asked, and has the newest version."""
        changes = self.changes[number]
        changes.confirm(changes.to_confirm(), self.versions[-1].version)

    def commits(self) -> bool:
        node = self.cluster.elect()
        position = self.cluster.propose(node).position
        self.cluster.run(1_000)
        return node.group().is_leader and node.group().commit >= position


def test_a_move_goes_on_when_the_metadata_are_known_to_be_no_older_than_the_leadership():
    world = World()
    world.move(ASKED, 1, 2)
    world.cluster.hand_to(0)
    world.see(0)
    world.see(1)
    world.run()
    assert world.cluster.elect().group().config == voters_of(0, 1), "nobody was asked yet"
    assert world.cluster.nodes[2].group().log.end_offset == world.cluster.nodes[0].group().log.end_offset, "it learns"
    world.confirm(0)
    world.run()
    assert world.cluster.elect().group().config == voters_of(1, 2)
    assert world.commits()


def test_a_confirmation_is_of_one_term():
    world = World()
    world.move(ASKED, 1, 2)
    world.cluster.hand_to(0)
    world.see(0)
    world.look()
    terms = world.changes[0].to_confirm()
    world.cluster.hand_to(1)
    world.changes[0].forget(KEY)
    world.cluster.hand_to(0)
    world.look()
    world.changes[0].confirm(terms, world.versions[-1].version)
    world.run()
    assert world.cluster.elect().group().config == voters_of(0, 1)


def test_a_leader_that_has_not_read_that_a_move_was_cancelled_does_not_go_on_with_it():
    """The end of the cancelled move lets node 2 give its files up. When that core starts again it has no replica."""
    world = World()
    world.move(ASKED, 1, 2)
    world.see(1)
    world.move(CANCELLED, 0, 1)
    world.see(0)
    leader = world.cluster.hand_to(0)
    world.run(500)
    term = world.changes[0].settled_term(KEY, leader.group())
    assert term is not None
    move = world.versions[-1].topic_by_id(KEY.topic_id).moves[KEY.partition]
    world.cluster.hand_to(1)
    world.run()
    world.confirm(1)
    world.run()
    world.write(*move_done(world.versions[-1], KEY, move.move_id, term))
    assert world.versions[-1].topic_by_id(KEY.topic_id).lives
    world.cluster.nodes[2].crash()
    world.see(0)
    world.see(1)
    world.run()
    assert world.commits()
    assert world.cluster.elect().group().config == voters_of(0, 1)
