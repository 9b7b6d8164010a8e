"""The benchmark of the machines runs, and what it says is what happened. Speeds are judged where it is quiet."""

from __future__ import annotations

import pytest

from tpc_broker.bench.raft import Cores, measure_elections, measure_entries

pytestmark = pytest.mark.machine


def test_entries_are_counted_when_they_are_committed() -> None:
    assert measure_entries(0.05, 100) > 0


def test_an_election_of_many_groups_takes_few_frames_and_spreads_the_leaders() -> None:
    found = measure_elections(60)
    assert found["frames"] < 100
    assert found["led_by_the_busier"] < 45
    assert found["decided_after_virtual_ms"] < 1_500


def test_idle_groups_cost_a_tick_nothing() -> None:
    cores = Cores(60)
    cores.elect(0)
    for _ in range(400):
        cores.step()
    walked = [core.statistics().groups_walked for core in cores.cores]
    for _ in range(100):
        cores.step()
    assert [core.statistics().groups_walked for core in cores.cores] == walked


def test_a_replica_has_no_dictionary() -> None:
    """A layer without slots gives each of thousands one, and the election of 10,000 groups costs a sixth more."""
    group = Cores(1).cores[0].group(0)
    assert not hasattr(group, "__dict__")
