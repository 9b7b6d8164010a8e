"""Plans that even out what the cores have to do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.routing import plan_balance
from tpc_broker.routing.balance import MOVES_MAX, SLACK

cores = st.integers(1, 6)


@st.composite
def nodes(draw):
    count = draw(cores)
    owners = draw(st.dictionaries(st.integers(0, 50), st.integers(0, count - 1), max_size=40))
    loads = {key: draw(st.floats(0, 1000, allow_nan=False)) for key in owners}
    return loads, owners, count


def totals(loads, owners, count):
    return [sum(loads[key] for key, owner in owners.items() if owner == core) for core in range(count)]


@given(nodes())
def test_each_move_is_from_its_owner_and_the_busiest_core_becomes_no_busier(node):
    loads, owners, count = node
    owners = dict(owners)
    plan = plan_balance(loads, owners, count)
    assert len(plan) <= MOVES_MAX
    for key, source, target in plan:
        before = totals(loads, owners, count)
        assert owners[key] == source != target
        owners[key] = target
        after = totals(loads, owners, count)
        assert max(after[source], after[target]) < before[source] + 1e-6
        assert max(after) <= max(before) + 1e-6


@given(nodes())
def test_it_ends_where_nothing_more_is_to_be_had(node):
    """The busiest core is near the least busy one, or has no partition that is smaller than the difference."""
    loads, owners, count = node
    owners = dict(owners)
    for key, _source, target in plan_balance(loads, owners, count, moves_max=10_000):
        owners[key] = target
    found = totals(loads, owners, count)
    gap, busiest = max(found) - min(found), found.index(max(found))
    movable = [key for key, owner in owners.items() if owner == busiest and 1e-6 < loads[key] < gap - 1e-6]
    assert gap <= SLACK * sum(found) / count + 1e-6 or not movable
    assert len(plan_balance(loads, owners, count)) <= len(owners)


def test_two_busy_partitions_on_one_core_are_parted():
    assert plan_balance({"a": 10, "b": 10, "c": 1}, {"a": 0, "b": 0, "c": 1}, 2) == [("a", 0, 1)]
    assert plan_balance({"a": 10, "b": 9}, {"a": 0, "b": 1}, 2) == []
    assert plan_balance({"a": 10}, {"a": 0}, 2) == [], "one partition is as busy as it is"
    assert plan_balance({}, {}, 3) == []
