"""Connections, and a plane on a journal of its own, with all features of the kernel and with those of 5.8 only."""

import pytest

from tests.support.connection_bench import Bench
from tests.support.plane_bench import PlaneBench
from tpc_broker.runtime.connections import ConnectionLimits


@pytest.fixture(params=["", "5.8"], ids=["all-features", "as-5.8"])
def features(request, monkeypatch):
    monkeypatch.setenv("TPC_HIDE_FEATURES", request.param)


@pytest.fixture
def make_connections(features):
    """Connections alone, with the limits given; what they receive is the test's to answer."""
    benches = []

    def make(**limits):
        benches.append(Bench(ConnectionLimits(**limits)))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def make_bench(features, tmp_path):
    benches = []

    def make(**options):
        benches.append(PlaneBench(tmp_path / f"{len(benches)}.journal", **options))
        return benches[-1]

    yield make
    for bench in benches:
        bench.shut()


@pytest.fixture
def bench(make_bench):
    return make_bench()
