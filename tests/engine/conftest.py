"""Connections, and a plane on a journal of its own, with all features of the kernel, with those of 5.8 only, and
without io_uring, or on simulated rings and sockets (`SIMULATED`).

What C does differently without a feature is in how it accepts, receives and sends: the modules that look at that run
with both sets in the gate (`DIFFER`), as do those that choose their features themselves. The others run with 5.8's in
the long tier, as its part ``as-5.8``. Likewise a handful of modules run on the plain backend in the gate (`PLAIN`), and
the others in the part ``plain``; where io_uring is refused all of them do so in the gate.
"""

import pytest

from tests.support.backends import OURS, on_io_uring
from tests.support.bench_world import SimulatedWorld
from tests.support.connection_bench import Bench
from tests.support.link_bench import LinkedNode
from tests.support.plane_bench import PlaneBench, StalledBench
from tests.support.steady_peers import Peer
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.engine.ring import BACKEND_VARIABLE, HIDE_VARIABLE, Backend
from tpc_broker.engine.steady_plane import SteadyPlane

DIFFER = {
    "test_connections", "test_connections_large", "test_connections_many", "test_datagrams", "test_links",
    "test_nobody_is_served", "test_socket_entries", "test_tls",
}  # fmt: skip
PLAIN = {
    "test_connections", "test_connections_many", "test_datagrams", "test_plane_fetch", "test_plane_produce",
    "test_socket_entries", "test_tls",
}  # fmt: skip
SIMULATED = {
    "test_connections", "test_connections_large", "test_connections_many", "test_links", "test_links_fetch",
    "test_plane_fetch", "test_plane_produce", "test_socket_entries", "test_steady", "test_steady_lag", "test_tls",
}  # fmt: skip
OF_THE_KERNEL = {
    "test_out_of_descriptors_accepting_rests_and_goes_on", "test_many_that_fall_idle_together_hold_up_nobody",
    "test_the_time_is_over", "test_deadlines_on_all_sides_of_a_round_of_the_wheel",
    "test_a_crowd_that_comes_at_once_is_served",
    "test_a_wait_that_nothing_ends_answers_more_requests_than_may_be_under_way",
    "test_how_late_beats_were_counts_what_work_took_and_not_that_the_thread_was_stopped",
}  # fmt: skip
"""Bounds of a process; how long work takes."""
HOW = {"all-features": ("", Backend.IO_URING), "as-5.8": ("5.8", Backend.IO_URING), "plain": ("", Backend.PLAIN)}


def pytest_itemcollected(item):
    features = getattr(item, "callspec", None) and item.callspec.params.get("features")
    if features == "as-5.8" and item.path.stem not in DIFFER:
        item.add_marker("as_5_8")
    if features == "plain" and item.path.stem not in PLAIN and OURS is not Backend.PLAIN:
        item.add_marker("plain")


def pytest_generate_tests(metafunc):
    if "features" in metafunc.fixturenames:
        names = [name if name == "plain" else on_io_uring(name) for name in HOW]
        if metafunc.definition.path.stem in SIMULATED and metafunc.definition.name not in OF_THE_KERNEL:
            names.append("simulated")
        metafunc.parametrize("features", names, indirect=True)


@pytest.fixture
def features(request, monkeypatch):
    if request.param == "simulated":
        with SimulatedWorld():
            yield
        return
    hidden, backend = HOW[request.param]
    monkeypatch.setenv(HIDE_VARIABLE, hidden)
    monkeypatch.setenv(BACKEND_VARIABLE, backend)
    yield


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


@pytest.fixture
def steady_of():
    """Makes the face of C's steady state of a bench's plane, with peers by hand."""
    made = []

    def make(bench):
        class Face(SteadyPlane):
            _plane = bench.plane.pointer

            def adopt(self, node):
                peers.append(Peer(self, node))
                return peers[-1]

        peers, lost = [], []
        face = Face()
        face._begin_steady(bench.ring)
        face.on_steady(lambda: None, lost.append)
        made.append((bench, face, peers, lost))
        return face

    yield make
    for bench, face, peers, lost in made:
        for peer in peers:
            peer.socket.close()
            face.steady_close(peer.link)
        bench.until(lambda lost=lost, peers=peers: len(lost) == len(peers))


@pytest.fixture
def steady(bench, steady_of):
    return steady_of(bench)


@pytest.fixture
def replica(bench):
    handle = bench.lead("t", is_led=False)
    bench.plane.set_replicated(handle)
    return handle
