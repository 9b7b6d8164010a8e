"""Nodes that join and leave under load: what is counted in which phase, and that the workload runs."""

from pathlib import Path

import pytest

from tpc_broker.bench import rebalancing
from tpc_broker.bench.bars import JOIN_RATIO, LEAVE_RATIO, UNEVEN
from tpc_broker.bench.measured import Extent, Stage, Workload
from tpc_broker.bench.peers import Shape
from tpc_broker.bench.peers.clusters import TpcClusterPeer
from tpc_broker.bench.plots import DRAINED_AT, JOINED_AT
from tpc_broker.bench.rebalancing import Acknowledged, Phase, rebalance

pytestmark = pytest.mark.machine

MS = 1_000_000


def test_a_latency_belongs_to_the_phase_in_which_the_record_was_due() -> None:
    phase = Phase("p", 100 * MS, 200 * MS)
    found = [Acknowledged(due * MS, ended * MS) for due, ended in ((99, 150), (100, 140), (199, 250), (200, 201))]
    histogram = phase.latencies(found)
    assert histogram.count == 2
    assert histogram.percentile(100) == pytest.approx(51 * MS, rel=0.001)


def test_a_silence_counts_in_each_phase_that_it_touches() -> None:
    found = [Acknowledged(0, ended * MS) for ended in (90, 10, 130, 210)]
    assert Phase("p", 100 * MS, 120 * MS).silence_ms(found) == 40
    assert Phase("p", 100 * MS, 200 * MS).silence_ms(found) == 80
    assert Phase("p", 220 * MS, 300 * MS).silence_ms(found) == 90, "nothing came until its end"
    assert Phase("p", 0, 5 * MS).silence_ms([]) == 0


def test_two_nodes_join_and_leave_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEFORE_S_MIN", "WARM_UP_S_MIN"):
        monkeypatch.setattr(rebalancing, name, 0.5)
    peer = TpcClusterPeer(tmp_path / "peer", "durable")
    (tmp_path / "peer").mkdir(exist_ok=True)
    stage = Stage(peer, Extent(warm_up=0.1, measured=0.5))
    try:
        peer.start()
        made = rebalance(Workload("few", "", rebalance, Shape(1, 1, 1, 100, 10, 100.0)), stage)
        assert len(peer.nodes) == 3
    finally:
        stage.close()
    assert [made.extra[f"{UNEVEN}, {nodes} nodes"] for nodes in (5, 3)] == [0, 0]
    assert 0 < made.extra[JOINED_AT] < made.extra[DRAINED_AT]
    assert min(made.extra[JOIN_RATIO], made.extra[LEAVE_RATIO]) > 0
    assert sum(made.per_100ms) > 0
    assert made.series
