"""What partitions cost their core, by what they have had and by the CPU time that the core has had."""

from __future__ import annotations

import pytest

from tpc_broker.routing import CoreUse, PartitionUse, cost_ns, loads_between
from tpc_broker.routing.load import APPEND_NS, CORRECTION_MAX, READ_NS


def test_batches_and_bytes_cost_appended_and_read():
    assert cost_ns(PartitionUse()) == 0
    assert cost_ns(PartitionUse(appends=2)) == 2 * APPEND_NS
    assert cost_ns(PartitionUse(reads=3)) == 3 * READ_NS
    assert cost_ns(PartitionUse(append_bytes=1000)) > cost_ns(PartitionUse(read_bytes=1000)) > 0


@pytest.mark.parametrize(
    ("cpu_ns", "factor"),
    [(0, 1), (3_000_000, 1), (6_000_000, 2), (900_000_000, CORRECTION_MAX)],
)
def test_a_core_that_needed_more_cpu_time_takes_its_partitions_for_so_much_more(cpu_ns, factor):
    before = CoreUse(50, {"a": 7_000_000})
    after = CoreUse(50 + cpu_ns, {"a": 8_000_000, "b": 2_000_000, "c": 0})
    found = loads_between(before, after, 2.0)
    assert found == pytest.approx({"a": factor * 0.0005, "b": factor * 0.001, "c": 0})


def test_nothing_is_known_of_a_core_that_began_anew_or_a_partition_that_did():
    assert loads_between(CoreUse(100, {"a": 5}), CoreUse(50, {"a": 10}), 1.0) == {}
    assert loads_between(CoreUse(0, {"a": 5}), CoreUse(50, {"a": 5}), 1.0) == {}
    found = loads_between(CoreUse(0, {"a": 5_000, "b": 0}), CoreUse(1_000, {"a": 5, "b": 1_000}), 1.0)
    assert (found["a"], found["b"] > 0) == (0, True)
