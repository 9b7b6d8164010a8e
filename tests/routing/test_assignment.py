"""The assignment rule, one claim per test."""

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.model import CoreId, PartitionIndex, TopicId
from tpc_broker.routing import adapt_to_cores, assign_all, extend, start_core

TOPIC = TopicId(uuid.UUID("6f2d4c1e-0000-4000-8000-000000000001"))
topic_ids = st.uuids().map(TopicId)


@given(topic_ids, st.integers(1, 200), st.integers(1, 64))
def test_a_topic_spreads_evenly(topic_id, partitions, cores):
    counts = Counter(assign_all(topic_id, partitions, cores).owners)
    per_core = [counts[core] for core in range(cores)]
    assert max(per_core) - min(per_core) <= 1
    assert sum(per_core) == partitions


def test_partitions_go_round_from_the_start_core():
    first = start_core(TOPIC, 3)
    assert assign_all(TOPIC, 7, 3).owners == tuple((first + p) % 3 for p in range(7))


def test_many_small_topics_spread_by_their_ids():
    counts = Counter(assign_all(TopicId(uuid.UUID(int=n)), 1, 4).owners[0] for n in range(4000))
    assert all(800 < counts[core] < 1200 for core in range(4))


@given(topic_ids, st.integers(0, 50), st.integers(0, 50), st.integers(1, 16))
def test_growth_keeps_what_is_placed_and_equals_placing_all_at_once(topic_id, before, more, cores):
    small = assign_all(topic_id, before, cores)
    grown = extend(small, topic_id, before + more, cores)
    assert grown.owners[:before] == small.owners
    assert grown == assign_all(topic_id, before + more, cores)


def test_a_manual_assignment_wins_over_the_rule():
    assignment = assign_all(TOPIC, 4, 4, {PartitionIndex(2): CoreId(0)})
    assert assignment.owners[2] == 0
    assert assignment.manual == {2}
    rule = assign_all(TOPIC, 4, 4)
    assert [o for p, o in enumerate(assignment.owners) if p != 2] == [o for p, o in enumerate(rule.owners) if p != 2]


@given(topic_ids, st.integers(1, 60), st.integers(1, 16), st.integers(1, 16))
def test_another_number_of_cores_gives_what_the_rule_gives(topic_id, partitions, before, after):
    adapted = adapt_to_cores(assign_all(topic_id, partitions, before), topic_id, after)
    assert adapted == assign_all(topic_id, partitions, after)


def test_manual_assignments_survive_only_while_their_core_exists():
    manual = {PartitionIndex(0): CoreId(1), PartitionIndex(1): CoreId(3)}
    on_two = adapt_to_cores(assign_all(TOPIC, 4, 4, manual), TOPIC, 2)
    assert on_two.owners[0] == 1
    assert on_two.manual == {0}
    assert all(core < 2 for core in on_two.owners)
    back_on_four = adapt_to_cores(on_two, TOPIC, 4)
    assert back_on_four.owners[1] == assign_all(TOPIC, 4, 4).owners[1]


def test_a_rebalance_forgets_manual_assignments():
    manual = assign_all(TOPIC, 4, 4, {PartitionIndex(0): CoreId(1), PartitionIndex(1): CoreId(1)})
    assert adapt_to_cores(manual, TOPIC, 4, rebalance=True) == assign_all(TOPIC, 4, 4)


def test_an_assignment_to_a_core_that_does_not_exist_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError):
        assign_all(TOPIC, 1, 2, {PartitionIndex(0): CoreId(2)})
