"""Full collections that take long leave out later what they found to stay, and not more often than is due."""

from __future__ import annotations

import gc

import pytest

from tpc_broker.process.collector import FREEZES_MIN, LONG_NS, PARTITIONS_A_FREEZE, Collector


class Process:
    """Collections that take as long as is said."""

    def __init__(self) -> None:
        self.cpu_ns = self.partitions = self.frozen = 0
        self.collector = Collector(lambda: self.partitions, lambda: self.cpu_ns, self.freeze)

    def freeze(self) -> None:
        self.frozen += 1

    def collect(self, took_ns: int, generation: int = 2) -> int:
        """How often was frozen meanwhile."""
        before = self.frozen
        self.collector.seen("start", {"generation": generation})
        self.cpu_ns += took_ns
        self.collector.seen("stop", {"generation": generation})
        return self.frozen - before


def test_what_survives_a_long_full_collection_is_left_out_later() -> None:
    process = Process()
    assert process.collect(LONG_NS - 1) == 0
    assert process.collect(LONG_NS, generation=1) == 0
    assert process.collect(LONG_NS) == 1


def test_it_is_done_only_as_often_as_there_are_partitions() -> None:
    process = Process()
    assert sum(process.collect(LONG_NS) for _ in range(10)) == FREEZES_MIN
    process.partitions = 3 * PARTITIONS_A_FREEZE
    assert sum(process.collect(LONG_NS) for _ in range(10)) == 3


def test_it_hears_of_the_collections_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    process.collector.begin()
    try:
        assert process.frozen == 1, "what is there at the beginning stays"
        monkeypatch.setattr("tpc_broker.process.collector.LONG_NS", 0)
        gc.collect()
        assert process.frozen == 2
    finally:
        process.collector.end()
    gc.collect()
    assert process.frozen == 2
