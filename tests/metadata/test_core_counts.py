"""A node with another number of cores: where its disk and the cluster's metadata say that its replicas are is the same,
whatever was on its way between cores and nodes, and however often it was started without being heard.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.metadata.test_cluster_core_moves import OnCores
from tests.metadata.test_cluster_of_nodes import Nodes, registered
from tpc_broker.metadata.cluster_core_moves import end_core_move
from tpc_broker.metadata.controller import CreatableTopic
from tpc_broker.metadata.core_counts import core_of_those_left, counts_to_tell
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import ASKED, FeatureLevelChanged, MoveBegun
from tpc_broker.metadata.replica_moves import moving
from tpc_broker.model import CoreId, MetadataVersion, NodeId, PartitionIndex, Replica, TopicPartition

NODE = NodeId(2)
CORES_MAX = 5


def test_a_core_that_is_left_keeps_what_it_has_and_the_others_is_spread():
    topic_id = OnCores().topic.topic_id
    keys = [TopicPartition(topic_id, PartitionIndex(index)) for index in range(120)]
    assert all(core_of_those_left(key, CoreId(2), [3]) == 2 for key in keys)
    found = Counter(core_of_those_left(key, CoreId(3), [3]) for key in keys)
    assert found == {0: 40, 1: 40, 2: 40}
    for key in keys:
        at_once = core_of_those_left(key, CoreId(4), [4, 2])
        by_steps = core_of_those_left(key, core_of_those_left(key, CoreId(4), [4]), [2])
        assert at_once == by_steps == core_of_those_left(key, at_once, [4, 2]) < 2


@pytest.mark.parametrize(
    ("told", "had", "cores", "to_tell"),
    [((), 2, 2, ()), ((), 2, 3, ()), ((), 3, 2, (2,)), ((2,), 2, 3, (2,)), ((2,), 3, 1, (2, 1)), ((2,), 4, 3, (2,))],
)
def test_the_metadata_hear_of_fewer_cores_only(told, had, cores, to_tell):
    assert counts_to_tell(told, had, cores) == to_tell


def test_a_node_with_fewer_cores_has_all_of_its_replicas_on_those():
    nodes = OnCores()
    before = nodes.image
    nodes.apply(nodes.controller.register_node(registered(2, 1)))
    for topic in nodes.image.topics.values():
        for index, replicas in enumerate(topic.replicas):
            old = before.topics[topic.topic_id].replicas[index]
            assert replicas == tuple(Replica(NODE, CoreId(0)) if each.node == 2 else each for each in old)
            assert topic.assignment.owners[index] == replicas[0].core
            assert topic.voters == before.topics[topic.topic_id].voters
    assert nodes.controller.register_node(registered(2, 1)) == []
    version = nodes.image.version
    nodes.apply(nodes.controller.register_node(registered(2, 2)))
    assert nodes.image.version == version + 1, "more cores move nothing"


def test_a_move_between_cores_of_which_one_is_left_is_over():
    nodes = OnCores()
    nodes.ask_core(2)
    nodes.apply(nodes.controller.register_node(registered(2, 1)))
    assert not nodes.image.moving
    assert nodes.place(2) == Replica(NODE, CoreId(0))
    assert ClusterImage.from_bytes(nodes.image.to_bytes()) == nodes.image


def test_another_nodes_moves_stay_as_they_are():
    nodes = OnCores()
    nodes.ask_core(1)
    before = dict(nodes.image.moving)
    nodes.apply(nodes.controller.register_node(registered(2, 1)))
    assert before == dict(nodes.image.moving) != {}


class Life(Nodes):
    """Node 2 with its disk, beside three others: what is on its cores, and what it has to tell."""

    def __init__(self, chooser: random.Random) -> None:
        super().__init__({})
        self.chooser = chooser
        self.apply([FeatureLevelChanged(3, 1)])
        self.cores = 4
        self.told: tuple[int, ...] = ()
        for node in (1, 2, 3, 4):
            self.apply(self.controller.register_node(registered(node, self.cores)))
        self.on_disk: dict[TopicPartition, CoreId] = {}
        self.moved: dict[TopicPartition, MoveBegun] = {}
        """Moves between cores whose end the metadata have not heard."""

    def keys(self) -> list[TopicPartition]:
        return [TopicPartition(topic.topic_id, PartitionIndex(index))
                for topic in self.image.topics.values() for index in range(topic.partitions_count)]  # fmt: skip

    def core_by_metadata(self, key: TopicPartition) -> CoreId:
        return self.image.topics[key.topic_id].core_on(NODE, key.partition)

    def follow(self) -> None:
        """A node that is up has what the metadata give to it."""
        for key in self.keys():
            if self.core_by_metadata(key) >= 0:
                self.on_disk.setdefault(key, self.core_by_metadata(key))

    def create(self) -> None:
        count, factor = self.chooser.randint(1, 4), self.chooser.randint(1, 3)
        super().create(CreatableTopic(name=f"t{len(self.image.topics)}", num_partitions=count,
                                      replication_factor=factor))  # fmt: skip

    def move_core(self) -> None:
        key = self.chooser.choice(self.keys())
        source, topic = self.core_by_metadata(key), self.image.topics[key.topic_id]
        known = self.image.nodes[NODE].cores
        if source < 0 or known < 2 or key in self.image.moving or key.partition in topic.moves:
            return
        target = self.chooser.choice([core for core in range(known) if core != source])
        number = self.chooser.getrandbits(40)
        self.apply([MoveBegun(key.topic_id, key.partition, CoreId(target), number, 1, NODE)])

    def adopt(self) -> None:
        """Some of what is on its way is there, and some of that is told."""
        for key, move in list(self.image.moving.items()):
            if self.chooser.random() < 0.5:
                self.on_disk[key] = move.target
                if self.chooser.random() < 0.5:
                    self.apply(end_core_move(self.image, key, move.move_id, move.target))

    def move_nodes(self) -> None:
        """Replicas are to come to the node, or to go away; it is not done."""
        key = self.chooser.choice(self.keys())
        topic = self.image.topics[key.topic_id]
        if key in self.image.moving or key.partition in topic.moves:
            return
        others = [place for place in topic.replicas[key.partition] if place.node != NODE]
        if len(others) == len(topic.replicas[key.partition]):
            core = self.chooser.randrange(self.image.nodes[NODE].cores)
            wanted = (*others, Replica(NODE, CoreId(core)))
        else:
            free = next(node for node in (1, 3, 4) if node not in {place.node for place in others})
            wanted = (*others, Replica(NodeId(free), CoreId(0)))
        self.apply([moving(topic, key.partition, wanted, ASKED, self.chooser.getrandbits(40), 1)])

    def start(self) -> None:
        """With any number of cores; the metadata may hear of it or not, and of that the node may hear or not."""
        cores = self.chooser.randint(1, CORES_MAX)
        self.told = counts_to_tell(self.told, self.cores, cores)
        self.on_disk = {key: core_of_those_left(key, core, self.told) for key, core in self.on_disk.items()}
        self.cores = cores
        while True:
            ending = self.chooser.random()
            if ending < 0.3:
                return  # it ends before it is heard
            if self.told:
                self.apply(self.controller.register_node(registered(2, self.told[-1]), self.told))
            if ending < 0.5:
                continue  # it does not hear of it, and tells it again
            self.told = ()
            self.apply(self.controller.register_node(registered(2, cores)))
            self.check()
            self.follow()
            return

    def check(self) -> None:
        assert self.image.nodes[NODE].cores == self.cores
        for key in self.keys():
            topic, by_metadata = self.image.topics[key.topic_id], self.core_by_metadata(key)
            assert topic.assignment.owners[key.partition] == topic.replicas[key.partition][0].core
            assert by_metadata < self.cores
            if by_metadata < 0 or key not in self.on_disk:
                continue
            move = self.image.moving.get(key)
            expected = {by_metadata} if move is None else {by_metadata, move.target}
            assert self.on_disk[key] in expected, (key, self.on_disk[key], expected)
            assert len(expected) == 1 + (move is not None)
        assert all(move.target < self.cores for move in self.image.moving.values())
        assert ClusterImage.from_bytes(self.image.to_bytes()) == self.image


@pytest.mark.parametrize("seed", range(30))
def test_disk_and_metadata_agree_after_any_starts(seed):
    life = Life(random.Random(seed))
    life.create()
    life.follow()
    for _step in range(60):
        life.start()
        while life.told:  # nobody acts for a node that is not registered as it is
            life.start()
        for _change in range(life.chooser.randint(0, 4)):
            life.chooser.choice([life.create, life.move_core, life.adopt, life.move_nodes])()
        life.follow()
    assert life.image.version > MetadataVersion(60)
