"""Which replicas move by themselves: to the end, the most even placement, with few moves; and what stays."""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metadata.test_cluster_of_nodes import Nodes, registered
from tests.support.placing import plan_rebalance
from tpc_broker.metadata.controller import CreatableTopic
from tpc_broker.metadata.node_assignment import grouped
from tpc_broker.metadata.rebalance import Situation
from tpc_broker.metadata.records import BrokerConfigChanged, FeatureLevelChanged
from tpc_broker.metadata.replica_moves import BALANCED, DRAINED, RAISED, REPLACED, all_moves, coming, move_done, moving
from tpc_broker.model import NodeId, PartitionIndex, TopicId, TopicPartition, broker_id_of

CALM = Situation()


class Balanced(Nodes):
    """Nodes with racks; topics whose replicas the planner moves."""

    def __init__(self, racks: str, level: int = 3) -> None:
        super().__init__({})
        self._ids = itertools.count(1)
        self.apply([FeatureLevelChanged(level, 1)])
        for node, rack in enumerate(racks, start=1):
            self.join(node, rack)

    def join(self, node: int, rack: str = "", cores: int = 1) -> None:
        self.apply(self.controller.register_node(replace(registered(node, cores), rack=rack.strip("-"))))

    def drain(self, node: int) -> None:
        self.apply([BrokerConfigChanged(broker_id_of(NodeId(node), 0), "node.draining", "true")])

    def make(self, partitions: int, factor: int) -> None:
        name = f"t{len(self.image.topics)}"
        self.create(CreatableTopic(name=name, num_partitions=partitions, replication_factor=factor))

    def begin(self, planned):
        topic = self.image.topics[planned.key.topic_id]
        assert topic.wanted(planned.key.partition) == planned.before
        move = moving(topic, planned.key.partition, planned.wanted, planned.reason, next(self._ids), 1)
        self.apply([*grouped(self.image, [planned.key]), move])

    def finish(self):
        for _topic, move in list(all_moves(self.image)):
            key = TopicPartition(move.topic_id, move.partition)
            self.apply(move_done(self.image, key, move.move_id, 3))

    def keys(self):
        return [
            TopicPartition(topic_id, PartitionIndex(index))
            for topic_id, topic in self.image.topics.items()
            for index in range(topic.partitions_count)
        ]

    def settle(self, situation: Situation = CALM, at_once: int = 3) -> Counter[str]:
        """Until nothing is to be moved any more; how many replicas came to a node, by reason."""
        came: Counter[str] = Counter()
        for _round in range(1000):
            planned = plan_rebalance(self.image, situation)
            if not planned:
                return came
            for one in planned[:at_once]:
                came[one.reason] += len(set(one.wanted) - set(one.before))
                self.begin(one)
            self.finish()
        raise AssertionError("it moves and moves")

    def held(self, what=lambda replicas: replicas) -> Counter[int]:
        found = Counter(dict.fromkeys(self.image.nodes, 0))
        for topic in self.image.topics.values():
            for index in range(topic.partitions_count):
                found.update(replica.node for replica in what(topic.replicas[index]))
        return found


def spread(held, nodes) -> int:
    counts = [held[node] for node in nodes]
    return max(counts) - min(counts)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(2, 3)), min_size=1, max_size=4), st.integers(1, 4), st.data())
def test_nodes_that_join_get_their_share_and_no_more_moves_than_that(topics, more, data):
    nodes = Balanced("---")
    for partitions, factor in topics:
        nodes.make(partitions, factor)
    total = nodes.held().total()
    for node in range(4, 4 + more):
        nodes.join(node)
    came = nodes.settle(at_once=data.draw(st.integers(1, 5)))
    assert spread(nodes.held(), nodes.image.nodes) <= 1
    assert set(came) <= {BALANCED}
    fewest = sum(total // (3 + more) for _node in range(more))
    assert fewest <= came.total() <= 1.25 * (fewest + more) + 2
    leaders = nodes.held(lambda replicas: replicas[:1])
    if more == 1 and len(nodes.keys()) >= 12:
        assert leaders[4] >= len(nodes.keys()) // 4 - 2, leaders
    for topic in nodes.image.topics.values():
        for index, replicas in enumerate(topic.replicas):
            assert len({replica.node for replica in replicas}) == len(topic.voters[index])


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(2, 3)), min_size=1, max_size=4), st.booleans())
def test_nodes_that_are_drained_or_gone_hold_nothing_in_the_end(topics, is_gone):
    nodes = Balanced("-----")
    for partitions, factor in topics:
        nodes.make(partitions, factor)
    had = nodes.held()[5]
    if not is_gone:
        nodes.drain(5)
    five = frozenset({NodeId(5)})
    came = nodes.settle(Situation(five, five) if is_gone else CALM)
    assert nodes.held()[5] == 0
    assert spread(nodes.held(), [1, 2, 3, 4]) <= 1
    assert came[REPLACED if is_gone else DRAINED] == had


def test_racks_are_respected_when_nodes_come():
    nodes = Balanced("aabb")
    nodes.make(12, 2)
    nodes.join(5, "c")
    nodes.join(6, "c")
    nodes.settle()
    racks = dict(enumerate("aabbcc", start=1))
    for topic in nodes.image.topics.values():
        for replicas in topic.replicas:
            assert len({racks[replica.node] for replica in replicas}) == 2
    assert spread(nodes.held(), nodes.image.nodes) <= 1


def test_while_a_node_is_away_only_what_must_move_does_and_nothing_to_it():
    nodes = Balanced("----")
    nodes.make(8, 2)
    nodes.join(5)
    away = frozenset({NodeId(5)})
    assert plan_rebalance(nodes.image, Situation(away=away)) == []
    nodes.drain(1)
    had = nodes.held()[1]
    came = nodes.settle(Situation(away=away))
    assert came == Counter({DRAINED: had})
    assert (nodes.held()[1], nodes.held()[5]) == (0, 0)
    assert plan_rebalance(nodes.image, Situation(away=frozenset(map(NodeId, range(1, 6))))) == []


@pytest.mark.parametrize("drained", [None, 1, 2])
def test_to_a_full_node_nothing_moves_and_off_it_as_ever(drained):
    nodes = Balanced("---")
    nodes.make(12, 2)
    nodes.join(4)
    nodes.join(5)
    full = Situation(full=frozenset({NodeId(2), NodeId(5)}))
    if drained is not None:
        nodes.drain(drained)
    nodes.settle(full)
    held = nodes.held()
    left = [node for node in (1, 2, 3, 4) if node != drained]
    assert (held[5], held[drained]) == (0, 0)
    assert spread(held, left) <= 1, "a full one gives away what is above its share"
    nodes.settle()
    assert spread(nodes.held(), [*left, 5]) <= 1, "with space it gets its share"


def test_what_has_nowhere_to_go_but_a_full_node_stays():
    nodes = Balanced("---")
    nodes.make(6, 2)
    nodes.join(4)
    full = frozenset(map(NodeId, (2, 3, 4)))
    nodes.drain(1)
    before = nodes.held()
    assert nodes.settle(Situation(full=full)).total() == 0
    assert nodes.settle(Situation(full=full | {NodeId(1)})).total() == 0
    assert nodes.held() == before
    nodes.settle(Situation(full=full - {NodeId(4)}))
    assert nodes.held()[1] == 0


def test_what_was_placed_by_hand_stays_and_what_is_under_way_is_not_moved_again():
    nodes = Balanced("---")
    assigned = tuple((index, tuple(broker_id_of(NodeId(node), 0) for node in (1, 2))) for index in range(6))
    nodes.create(CreatableTopic(name="hand", assignments=assigned))
    assert plan_rebalance(nodes.image, CALM) == []
    nodes.make(6, 2)
    nodes.join(4)
    planned = plan_rebalance(nodes.image, CALM)
    hand = nodes.image.topic("hand").topic_id
    assert planned
    assert hand not in {one.key.topic_id for one in planned}
    for one in planned:
        nodes.begin(one)
    assert plan_rebalance(nodes.image, CALM) == []
    assert plan_rebalance(nodes.image, Situation(may_balance=False)) == []
    nodes.drain(1)
    assert {one.key.topic_id for one in plan_rebalance(nodes.image, CALM)} >= {hand}, "but for a node that drains"


@pytest.mark.parametrize("is_drained", [False, True])
def test_a_move_to_a_node_that_went_away_meanwhile_goes_back_or_elsewhere(is_drained):
    nodes = Balanced("---")
    nodes.make(4, 2)
    had = nodes.held()
    nodes.join(4)
    if is_drained:
        nodes.drain(3)
    for one in plan_rebalance(nodes.image, CALM):
        nodes.begin(one)
    away = Situation(away=frozenset({NodeId(4)}))
    assert {4} <= {node for topic, move in all_moves(nodes.image) for node in coming(topic, move)}
    nodes.settle(away, at_once=9)
    assert nodes.held()[4] == 0
    assert (nodes.held()[3] == 0) == is_drained
    assert is_drained or nodes.held() == had


def test_nothing_is_given_up_where_there_is_nowhere_to_go():
    nodes = Balanced("---")
    nodes.make(4, 3)
    nodes.drain(2)
    assert plan_rebalance(nodes.image, CALM) == []
    nodes.drain(1)
    nodes.drain(3)
    assert plan_rebalance(nodes.image, CALM) == []


@pytest.mark.parametrize(("count", "factor"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_internal_topics_get_as_many_replicas_as_nodes_up_to_three(count, factor):
    nodes = Balanced("-")
    nodes.apply(nodes.controller.create_offsets_topic(TopicId(uuid.UUID(int=99)), 1))
    for node in range(2, count + 1):
        nodes.join(node)
    came = nodes.settle(at_once=64)
    topic = nodes.image.topic("__consumer_offsets")
    assert {len(replicas) for replicas in topic.replicas} == {factor}
    assert spread(nodes.held(), nodes.image.nodes) <= 1
    stay = min(topic.partitions_count, factor * topic.partitions_count // count)
    assert came == Counter({RAISED: factor * topic.partitions_count - stay} if count > 1 else {})


def test_a_core_of_a_node_gets_as_many_as_another():
    nodes = Balanced("---")
    nodes.make(16, 3)
    nodes.join(4, cores=3)
    nodes.settle()
    cores = Counter(
        replica.core for topic in nodes.image.topics.values() for each in topic.replicas for replica in each
        if replica.node == 4
    )  # fmt: skip
    assert max(cores.values()) - min(cores[core] for core in range(3)) <= 1


@pytest.mark.parametrize("level", [2, 3], ids=["made without a group", "made with a group"])
def test_partitions_with_one_replica_move_too(level):
    nodes = Balanced("--", level)
    nodes.make(6, 1)
    nodes.apply([FeatureLevelChanged(3, 2)])
    nodes.join(3)
    assert nodes.settle() == Counter({BALANCED: 2})
    assert nodes.held() == Counter({1: 2, 2: 2, 3: 2})
    nodes.drain(1)
    assert nodes.settle() == Counter({DRAINED: 2})
    assert nodes.held() == Counter({1: 0, 2: 3, 3: 3})
    away = Situation(gone=frozenset({NodeId(2)}), away=frozenset({NodeId(2)}))
    assert plan_rebalance(nodes.image, away) == [], "nobody is there who could give them away"


def test_what_one_node_has_alone_gets_onto_those_that_join():
    nodes = Balanced("-")
    nodes.make(4, 1)
    nodes.join(2)
    nodes.settle()
    assert nodes.held() == Counter({1: 2, 2: 2})
