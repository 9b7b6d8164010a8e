"""The workloads of security run, and what they count is what the broker holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpc_broker.bench import securing
from tpc_broker.bench.bars import LOGINS_OF_CPU, OF_QUOTA, RIGHTS_RATIO, STORM_LOGINS_P99, STORM_TLS_P99, TLS_RATIO
from tpc_broker.bench.measured import Extent, Stage
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.workloads import WORKLOADS

pytestmark = pytest.mark.machine

TINY = Extent(warm_up=0.05, measured=0.5)


@pytest.mark.parametrize(
    ("key", "figure"),
    [("tls-batches", TLS_RATIO), ("tls-connections", TLS_RATIO), ("rights", RIGHTS_RATIO), ("logins", LOGINS_OF_CPU),
     ("quota", OF_QUOTA), ("connect-storm", STORM_TLS_P99), ("connect-storm", STORM_LOGINS_P99)],
)  # fmt: skip
def test_a_round_gives_its_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, figure: str
) -> None:
    """What is stored is compared with what was acknowledged in the round itself."""
    monkeypatch.setattr(securing, "WARM_S", 0.05)
    monkeypatch.setattr(securing, "HELD_S", 0.5)
    workload = next(one for one in WORKLOADS if one.key == key)
    stage = Stage(TpcPeer(tmp_path / "tpc", "durable"), TINY)
    try:
        if workload.needs_server:
            stage.peer.start()
        assert workload.run(workload, stage).extra[figure] > 0
    finally:
        stage.close()
