"""The workloads of cleaning run, and what they count is what was cleaned and read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpc_broker.bench import beside_cleaning, cleaning
from tpc_broker.bench.bars import CLEANED, CLEANING_P99, FAILED_READS
from tpc_broker.bench.measured import Extent, Stage
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.workloads import WORKLOADS

pytestmark = pytest.mark.machine


def workload_of(key):
    return next(one for one in WORKLOADS if one.key == key)


@pytest.mark.parametrize("codec", CLEANED)
def test_half_of_a_log_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """The log is written once in a run, and cleaned from copies."""
    monkeypatch.setattr(cleaning, "LOG_BYTES", 4 << 20)
    workload = workload_of(f"cleaning-{codec}")
    for _round in range(2):
        stage = Stage(TpcPeer(tmp_path / "peer", "durable"), Extent())
        found = workload.run(workload, stage)
        assert found.mb_per_s > 0
        assert found.cpu_s_per_gb > 0
        assert 50 <= found.extra["% of the log that stays"] < 60
    assert [path.name for path in tmp_path.iterdir() if path.name != "peer"] == [workload.key]
    assert not list((tmp_path / "peer").iterdir())


def test_producers_beside_a_cleaner_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stored is compared with what was acknowledged in the round itself; a reader goes over it meanwhile."""
    monkeypatch.setattr(beside_cleaning, "PAIRS", 1)
    monkeypatch.setattr(beside_cleaning, "CLEANINGS_MIN", 1)
    workload = workload_of("produce-while-cleaning")
    stage = Stage(TpcPeer(tmp_path / "tpc", "durable"), Extent(warm_up=0.1, measured=2.0))
    try:
        found = workload.run(workload, stage).extra
    finally:
        stage.close()
    assert found[CLEANING_P99] > 0
    assert found[FAILED_READS] == 0
    assert found["times that all was read"] > 0
    assert found["swaps"] > 0
