"""Replication from C to C, over simulated sockets: fixed seeds."""

import pytest

from tests.simulator.steady_planes import run
from tests.support.steady_group import SteadyGroup

STEPS = 80
SEEDS = range(1, 9)


@pytest.mark.parametrize("seed", SEEDS)
def test_planes_commit_what_a_majority_has(seed, tmp_path):
    planes = run(seed, STEPS, tmp_path)
    assert planes.appended > STEPS / 3
    assert planes.relinked
    assert planes.acknowledged


def test_a_leader_that_believes_too_much_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(SteadyGroup, "match_of", lambda group, _follower: group.leader.state().log_end_offset)
    with pytest.raises(AssertionError, match="high_watermark"):
        run(1, STEPS, tmp_path)
