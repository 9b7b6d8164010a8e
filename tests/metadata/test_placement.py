"""Placement: what must always be so, and how near to the best it comes."""

from __future__ import annotations

import itertools
import random
import uuid
from collections import Counter
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metadata.exact_placement import best_placement, rack_bounds, unevenness
from tests.support.placing import place_replicas
from tpc_broker.metadata.placement import (
    Limits,
    Phase,
    PlacementNode,
    Replicated,
    place_leaders,
    place_on_cores,
    plan_moves,
    startable,
)
from tpc_broker.metadata.placement.moves import PEERS_MAX
from tpc_broker.model import CoreId, NodeId, PartitionIndex, TopicId, TopicPartition

TOPIC = TopicId(uuid.UUID(int=77))


def partition_of(index: int) -> TopicPartition:
    return TopicPartition(TOPIC, PartitionIndex(index))


def node_of(node: int, rack: str = "", cores_count: int = 1, *, is_draining: bool = False) -> PlacementNode:
    return PlacementNode(node=NodeId(node), rack=rack, cores_count=cores_count, is_draining=is_draining)


def replicated(placed, factors, loads=None) -> list[Replicated]:
    return [
        Replicated(
            partition=partition_of(index),
            replication_factor=factor,
            replicas=tuple(replicas),
            load=0 if loads is None else loads[index],
        )
        for index, (replicas, factor) in enumerate(zip(placed, factors, strict=True))
    ]


def counts_of(placed) -> Counter:
    return Counter(itertools.chain.from_iterable(placed))


def moved(before, after) -> int:
    return sum(len(set(new) - set(old)) for old, new in zip(before, after, strict=True))


def check(nodes, partitions, placed) -> None:
    """What holds of every placement: the number of replicas, never two on a node, racks."""
    there = [node for node in nodes if not node.is_draining]
    racks = {node.node: node.rack for node in there}
    for partition, replicas in zip(partitions, placed, strict=True):
        assert len(set(replicas)) == len(replicas)
        held = [node for node in replicas if node in racks]
        wanted = min(partition.replication_factor, len(there))
        assert len(held) == wanted
        assert len(replicas) == wanted or set(replicas) - set(held) <= set(partition.replicas)
        found = Counter(racks[node] for node in held)
        for rack, (least, most) in rack_bounds(there, wanted).items():
            assert least <= found[rack] <= most, (replicas, rack, found)


clusters = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1, 1, 1, 2, 4])), min_size=1, max_size=7).map(
    lambda drawn: [node_of(number, rack, cores) for number, (rack, cores) in enumerate(drawn)]
)
factor_lists = st.lists(st.sampled_from([1, 2, 3, 3, 5]), min_size=1, max_size=14)


@settings(max_examples=150, deadline=None)
@given(clusters, factor_lists, st.randoms(use_true_random=False))
def test_full_nodes_get_nothing_and_are_not_there_for_what_they_do_not_have(nodes, factors, chance):
    nodes = [replace(node, is_full=chance.random() < 0.4) for node in nodes]
    present = [chance.sample(range(len(nodes) + 2), min(factor, len(nodes) + 2)) for factor in factors]
    partitions = replicated([list(map(NodeId, nodes_of)) for nodes_of in present], factors)
    placed = place_replicas(nodes, partitions)
    for partition, replicas in zip(partitions, placed, strict=True):
        usable = [node for node in nodes if not node.is_full or node.node in partition.replicas]
        assert set(replicas) - set(partition.replicas) <= {node.node for node in usable}
        if usable:
            check(usable, [partition], [replicas])
        else:
            assert replicas == partition.replicas
    held = counts_of(placed)
    if len({(node.rack, node.cores_count) for node in nodes}) == 1:
        least = min((held[node.node] for node in nodes if not node.is_full), default=None)
        assert least is None or max(held[node.node] for node in nodes) - least <= 1
    assert place_replicas(nodes, replicated(placed, factors)) == placed


@settings(max_examples=150, deadline=None)
@given(clusters, factor_lists, st.randoms(use_true_random=False))
def test_any_present_placement_becomes_the_most_even_one_with_near_the_fewest_moves(nodes, factors, chance):
    """Compared with the exact solver; the present placement is anything, on nodes that are there or gone."""
    known = [node.node for node in nodes] + [NodeId(90), NodeId(91)]
    present = [chance.sample(known, min(len(known), chance.randrange(factor + 1))) for factor in factors]
    partitions = replicated(present, factors)
    placed = place_replicas(nodes, partitions)
    check(nodes, partitions, placed)
    there = {node.node for node in nodes}
    counts = Counter({node: count for node, count in counts_of(placed).items() if node in there})
    least, fewest = best_placement(nodes, partitions)
    assert unevenness(nodes, counts) == least
    held = [[node for node in replicas if node in there] for replicas in placed]
    assert fewest <= moved(present, held) <= fewest * 1.25 + 2


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), factor_lists, st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=8))
def test_after_any_joins_and_leaves_nodes_differ_by_at_most_one(nodes_count, factors, changes):
    nodes = [node_of(number) for number in range(nodes_count)]
    placed = [()] * len(factors)
    fresh = itertools.count(nodes_count)
    for is_join, which in [(True, 0), *changes]:
        if is_join:
            nodes.append(node_of(next(fresh)))
        elif len(nodes) > 1:
            nodes.pop(which % len(nodes))
        partitions = replicated(placed, factors)
        placed = place_replicas(nodes, partitions)
        check(nodes, partitions, placed)
        there = {node.node for node in nodes}
        counts = counts_of([[node for node in replicas if node in there] for replicas in placed])
        assert max(counts[node] for node in there) - min(counts[node] for node in there) <= 1
        leaders = place_leaders(nodes, placed, [None] * len(placed))
        assert all(leader in replicas for leader, replicas in zip(leaders, placed, strict=True))
        assert place_replicas(nodes, replicated(placed, factors)) == placed, "a second look moves nothing"


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 9), st.integers(6, 30), st.integers(0, 2**32))
def test_racks_of_one_size_are_even_and_hold_one_replica_each(nodes_count, partitions_count, seed):
    nodes = [node_of(number, "abc"[number % 3]) for number in range(nodes_count // 3 * 3)]
    partitions = replicated([()] * partitions_count, [3] * partitions_count)
    placed = place_replicas(nodes, partitions)
    check(nodes, partitions, placed)
    counts = counts_of(placed)
    assert max(counts.values()) - min(counts.values()) <= 1
    gone = random.Random(seed).choice(nodes)
    fewer = [node for node in nodes if node is not gone]
    again = place_replicas(fewer, replicated(placed, [3] * partitions_count))
    check(fewer, replicated(placed, [3] * partitions_count), again)


def test_a_node_that_joins_gets_its_share_and_nothing_else_moves():
    nodes = [node_of(number) for number in range(5)]
    placed = place_replicas(nodes, replicated([()] * 100, [3] * 100))
    more = place_replicas([*nodes, node_of(5)], replicated(placed, [3] * 100))
    assert counts_of(more)[5] == 50
    assert moved(placed, more) == 50


def test_a_node_that_drains_gives_up_what_it_holds_and_little_else_moves():
    nodes = [node_of(number) for number in range(5)]
    placed = place_replicas(nodes, replicated([()] * 100, [3] * 100))
    draining = [*nodes[:4], node_of(4, is_draining=True)]
    after = place_replicas(draining, replicated(placed, [3] * 100))
    assert counts_of(after)[4] == 0
    assert 60 <= moved(placed, after) <= 63
    leaders = place_leaders(draining, placed, [replicas[0] for replicas in placed])
    assert 4 not in leaders


def test_shares_are_by_cores():
    nodes = [node_of(0, cores_count=2), node_of(1, cores_count=4), node_of(2, cores_count=2), node_of(3, cores_count=8)]
    counts = counts_of(place_replicas(nodes, replicated([()] * 160, [1] * 160)))
    assert counts == {0: 20, 1: 40, 2: 20, 3: 80}


def test_loads_are_spread_where_counts_leave_a_choice():
    """A few partitions are a hundred times as busy as the others."""
    loads = [100 if index % 10 == 0 else 1 for index in range(100)]
    nodes = [node_of(number) for number in range(4)]
    placed = place_replicas(nodes, replicated([()] * 100, [2] * 100, loads))
    by_node = Counter()
    for replicas, load in zip(placed, loads, strict=True):
        for node in replicas:
            by_node[node] += load
    assert max(by_node.values()) <= 1.25 * min(by_node.values()), by_node


def test_of_nodes_with_as_many_replicas_the_least_loaded_gets_the_next():
    nodes = [node_of(number) for number in range(4)]
    placed = place_replicas(nodes, replicated([(0,), (1,), (2,), (3,), ()], [1] * 5, [100, 100, 1, 100, 50]))
    assert placed == [(0,), (1,), (2,), (3,), (2,)]


def test_a_partition_keeps_what_cannot_be_replaced():
    """RF 3 on three nodes, one of which is gone: its group stays one of three voters."""
    partitions = replicated([(0, 1, 2)], [3])
    assert place_replicas([node_of(0), node_of(1)], partitions) == [(0, 1, 2)]
    assert place_replicas([], partitions) == [(0, 1, 2)]
    assert place_replicas([node_of(0), node_of(1), node_of(7)], partitions) == [(0, 1, 7)]


def fewest_most_leaders(choices, nodes) -> int:
    """The least possible maximum, by trying all (small cases)."""
    return min(max(Counter(leaders).values()) for leaders in itertools.product(*choices))


@settings(max_examples=80, deadline=None)
@given(st.integers(2, 5), st.integers(1, 5), st.randoms(use_true_random=False))
def test_leaders_are_as_even_as_replicas_allow(nodes_count, partitions_count, chance):
    nodes = [node_of(number) for number in range(nodes_count)]
    factors = [chance.randint(1, min(3, nodes_count)) for _partition in range(partitions_count)]
    choices = [tuple(chance.sample(range(nodes_count), factor)) for factor in factors]
    present = [chance.choice([None, *choice]) for choice in choices]
    leaders = place_leaders(nodes, choices, present)
    assert all(leader in choice for leader, choice in zip(leaders, choices, strict=True))
    assert max(Counter(leaders).values()) == fewest_most_leaders(choices, nodes)


def test_leaders_are_even_and_stay_where_they_may():
    nodes = [node_of(number) for number in range(6)]
    placed = place_replicas(nodes, replicated([()] * 200, [3] * 200))
    leaders = place_leaders(nodes, placed, [None] * 200)
    counts = Counter(leaders)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert place_leaders(nodes, placed, leaders) == leaders
    lost = place_leaders(nodes[1:], placed, leaders)
    changed = sum(old != new for old, new in zip(leaders, lost, strict=True))
    assert changed <= counts[0] + 5


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.sets(st.integers(0, 60), min_size=1), st.integers(1, 8))
def test_cores_of_a_node_are_within_one_and_stay_when_they_can(cores_count, indexes, cores_before):
    held = [partition_of(index) for index in sorted(indexes)]
    before = place_on_cores(held, cores_before, {})
    cores = place_on_cores(held, cores_count, before)
    counts = Counter(cores.values())
    assert set(cores) == set(held)
    assert max(counts.values()) - min(counts.get(CoreId(core), 0) for core in range(cores_count)) <= 1
    assert place_on_cores(held, cores_count, cores) == cores


def test_whole_topics_follow_the_rule_on_all_nodes_alike():
    held = [partition_of(index) for index in range(12)]
    assert place_on_cores(held, 4, {}) == place_on_cores(list(reversed(held)), 4, {})
    every_sixth = place_on_cores(held[::6], 2, {})
    assert len(set(every_sixth.values())) == 2, "where the rule alone would choose one core"


sets = st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True).map(tuple)


@settings(max_examples=200, deadline=None)
@given(sets, sets, st.data())
def test_the_steps_of_a_move_lead_from_the_present_to_the_target(present, target, data):
    """Followed one by one: each is allowed by the rules of membership changes where it stands."""
    leader = data.draw(st.sampled_from(present))
    gone = frozenset(data.draw(st.sets(st.sampled_from(present), max_size=(len(present) - 1) // 2))) - {leader}
    partition = partition_of(3)
    moves = plan_moves([(partition, present, target, leader)], gone=gone)
    if not moves:
        assert set(present) == set(target)
        assert leader == target[0] or target[0] in gone
        return
    [move] = moves
    voters, learners, joint, removable = set(present), set(), None, set()
    leading = leader
    for step in move.steps:
        match step.phase:
            case Phase.LEARN:
                assert joint is None
                assert not learners
                learners = set(step.nodes)
                assert not learners & voters
            case Phase.JOINT:
                assert set(step.old) == voters
                assert set(step.nodes) - voters == learners
                joint = set(step.nodes)
                peers = len(voters | joint) - 1
                assert peers <= PEERS_MAX
                assert max(len(present), len(target)) < 5 or len(joint - voters) <= 1
            case Phase.SETTLE:
                assert joint == set(step.nodes)
                removable = voters - joint
                voters, joint, learners = joint, None, set()
                leading = leading if leading in voters else None
            case Phase.REMOVE:
                assert set(step.nodes) == removable, "only once the new configuration stands alone"
            case Phase.TRANSFER:
                assert step.nodes[0] in voters
                assert step.nodes[0] not in gone
                leading = step.nodes[0]
    assert voters == set(target)
    assert leading == target[0] or target[0] in gone


def test_the_steps_of_an_ordinary_move():
    [move] = plan_moves([(partition_of(0), (1, 2, 3), (2, 3, 4), 1)])
    assert [(step.phase.value, step.nodes) for step in move.steps] == [
        ("transfer", (2,)),
        ("learn", (4,)),
        ("joint", (2, 3, 4)),
        ("settle", (2, 3, 4)),
        ("remove", (1,)),
    ]


def test_five_replicas_move_one_at_a_time_and_three_at_once():
    [five] = plan_moves([(partition_of(0), (1, 2, 3, 4, 5), (6, 7, 8, 9, 10), 1)])
    assert sum(step.phase is Phase.JOINT for step in five.steps) == 5
    [three] = plan_moves([(partition_of(0), (1, 2, 3), (4, 5, 6), 1)])
    assert sum(step.phase is Phase.JOINT for step in three.steps) == 1
    assert [step.nodes for step in three.steps if step.phase is Phase.TRANSFER] == [(4,)]


def test_what_has_lost_a_replica_goes_first_and_what_drains_next():
    moves = plan_moves(
        [
            (partition_of(0), (1, 2), (1, 3), 1),
            (partition_of(1), (1, 5), (1, 3), 1),
            (partition_of(2), (1, 9), (1, 3), 1),
        ],
        gone=frozenset([NodeId(9)]),
        draining=frozenset([NodeId(5)]),
    )
    assert [move.partition.partition for move in moves] == [2, 1, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sets, sets), min_size=1, max_size=30), st.integers(1, 3), st.integers(1, 3))
def test_moves_keep_to_the_limits_and_all_are_made(pairs, receiving_max, sending_max):
    moves = plan_moves([(partition_of(i), old, new, old[0]) for i, (old, new) in enumerate(pairs)])
    pending, running, made = list(moves), [], 0
    limits = Limits(receiving_max, sending_max)
    while pending or running:
        started = startable(pending, running, limits)
        assert started or running, "never stuck"
        pending = [move for move in pending if move not in started]
        running += started
        receiving = Counter(node for move in running for node in move.coming)
        sending = Counter(move.sender for move in running if move.coming)
        assert max(receiving.values(), default=0) <= receiving_max
        assert max(sending.values(), default=0) <= sending_max
        running.pop(0)
        made += 1
    assert made == len(moves)


def test_ten_thousand_partitions_over_fifty_nodes():
    nodes = [node_of(number, "abcde"[number % 5]) for number in range(50)]
    factors = [3] * 10_000
    placed = place_replicas(nodes, replicated([()] * 10_000, factors))
    counts = counts_of(placed)
    assert max(counts.values()) - min(counts.values()) <= 1
    more = place_replicas([*nodes, node_of(50, "a")], replicated(placed, factors))
    check([*nodes, node_of(50, "a")], replicated(placed, factors), more)
    leaders = place_leaders(nodes, placed, [None] * 10_000)
    assert set(Counter(leaders).values()) == {200}
