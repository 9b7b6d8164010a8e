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
from tpc_broker.metadata.placement import PlacementNode, Replicated
from tpc_broker.model import NodeId, PartitionIndex, TopicId, TopicPartition

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


def test_ten_thousand_partitions_over_fifty_nodes():
    nodes = [node_of(number, "abcde"[number % 5]) for number in range(50)]
    factors = [3] * 10_000
    placed = place_replicas(nodes, replicated([()] * 10_000, factors))
    counts = counts_of(placed)
    assert max(counts.values()) - min(counts.values()) <= 1
    more = place_replicas([*nodes, node_of(50, "a")], replicated(placed, factors))
    check([*nodes, node_of(50, "a")], replicated(placed, factors), more)
