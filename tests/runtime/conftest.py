"""Connections, and a plane on a journal of its own, with all features of the kernel and with those of 5.8 only."""

import pytest

from tests.support.connection_bench import Bench
from tests.support.link_bench import LinkedNode
from tests.support.plane_bench import PlaneBench, StalledBench
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


@pytest.fixture
def stalled(tmp_path):
    bench = StalledBench(tmp_path / "stalled.journal")
    yield bench
    bench.let_go()
    bench.shut()


@pytest.fixture
def make_node(features, tmp_path):
    """Cores of a node with links between them, in this process."""
    nodes = []

    def make(cores=2):
        nodes.append(LinkedNode(tmp_path, cores))
        return nodes[-1]

    yield make
    for node in nodes:
        node.shut()


@pytest.fixture
def node(make_node):
    return make_node()
