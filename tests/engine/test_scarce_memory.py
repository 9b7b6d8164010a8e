"""Memory that C does not get, one allocation after the other: a link closes, and nobody looks at it any more."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE_S
from tpc_broker.engine.ring import BACKEND_VARIABLE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "support" / "scarce_memory.c"
FAILING = """
import contextlib, ctypes, os, select, sys
from pathlib import Path

scarce, folder = ctypes.CDLL(None), Path(sys.argv[1])

@contextlib.contextmanager
def failing(number):
    scarce.scarce_fail_at(number)
    yield
    failing.has_failed = scarce.scarce_left() == 0
    scarce.scarce_fail_at(0)

def each(story):
    number = 0
    while True:
        number += 1
        print("the allocation", number, flush=True)
        story(number)
        if not failing.has_failed:
            break
    assert number > 1
    print("survived", flush=True)
    os._exit(0)
"""
STEADY = """
from tests.support.plane_bench import PlaneBench, records_of
from tests.support.steady_peers import *
from tpc_broker.engine.steady_plane import SteadyPeerState, SteadyPlane

def begin(number, at=0):
    bench = PlaneBench(folder / f"{number}.journal")

    class Face(SteadyPlane):
        _plane = bench.plane.pointer

    steady = Face()
    steady._begin_steady(bench.ring)
    bench.lost = []
    steady.on_steady(lambda: None, bench.lost.append)
    handle = bench.lead("t", is_led=False, log_end_offset=at)
    bench.plane.set_replicated(handle)
    return bench, steady, handle

def lead(bench, steady, handle, peer, at=0, votes=True):
    bench.plane.arm(handle, TERM)
    rows = [SteadyPeerState(peer.link, INCARNATION, at, at, NONE, votes=False)]
    assert steady.steady_lead(handle, OWN, TERM, 0, 1 << 40, rows, votes=votes)

def end(bench, peer):
    # Its connection had nothing under way: it has gone when the turn is over, and was told of once.
    if failing.has_failed and not peer.heard():
        for _ in range(3):
            bench.turn(0)
        assert bench.lost in ([], [peer.link]), bench.lost
    bench.settle()
"""
ONE_APPEND = """
def story(number):
    bench, steady, handle = begin(number)
    bench.plane.arm(handle, TERM)
    bench.plane.append(handle, records_of(1, value=bytes(SIZE)))
    bench.plane.append(handle, records_of(1, value=bytes(SIZE)))
    bench.settle()
    bench.plane.take_appended()
    peer = Peer(steady, 1)
    lead(bench, steady, handle, peer)
    with failing(number):
        bench.turn(0)
    end(bench, peer)

each(story)
"""
ONE_COMMIT = """
def story(number):
    bench, steady, handle = begin(number, 5)
    peer = Peer(steady, 1)
    lead(bench, steady, handle, peer, 5)
    with failing(number):
        bench.turn(0)
    end(bench, peer)

each(story)
"""
ONE_ACK = """
def story(number):
    bench, steady, handle = begin(number)
    bench.plane.follow(handle, TERM)
    peer = Peer(steady, 1)
    assert steady.steady_follow(handle, OWN, TERM, 0, (1, INCARNATION), peer.link, NONE)
    with failing(number):
        bench.turn(0)
    end(bench, peer)

each(story)
"""
LINKS = """
from tests.engine.test_plane_fetch import LONG_MS, asks
from tests.support.link_bench import LinkedNode
from tests.support.plane_bench import records_of

def begin(number, cores):
    where = folder / str(number)
    where.mkdir()
    return LinkedNode(where, cores)
"""
ONE_RELEASE = """
def story(number):
    node = begin(number, 3)
    handles = node.make("t", [1, 2])
    node.make("u", [2])
    front, owner = node.cores[:2]
    client, others = front.connect(), [front.connect() for _ in range(10)]
    front.send_fetch(client, 12, asks(*[("t", index, 0) for index in range(2)], wait_ms=LONG_MS))
    front.until(lambda: sum(core.fetch_counts().parked_now for core in node.cores) == 2)
    for _ in range(10):  # a burst, whose memory the link gives back
        for other in others:
            front.send(other, [("u", 0, records_of(1))])
    for other in others:
        for _ in range(10):
            front.answer(other)
    owner.plane.append(handles[0], records_of(1))
    with failing(number):
        front.until(lambda: select.select([client], [], [], 0)[0])  # an answer, or the end

each(story)
"""
WAITS = """
from tests.support.plane_bench import PlaneBench, records_of
from tpc_broker._ring import ffi, lib

EVENTS, LEVEL, AT_LAST = 1024, 1, 8  # what a ring has room for before it asks for more

def story(number):
    bench = PlaneBench(folder / f"{number}.journal")
    handle = bench.lead("t")
    appended = bench.plane.append(handle, records_of(1))
    state, begun = bench.plane.state(handle), []

    def begin(token):
        result = lib.tpc_partition_wait(
            bench.plane.pointer, handle, LEVEL, state.log_end_offset, state.leader_epoch, token
        )
        assert result in (0, -12), result
        begun.extend([token] * (result == 0))

    for token in range(EVENTS - AT_LAST // 2):
        begin(token)
    over = []
    bench.plane.on_wait_over = lambda token, *_: over.append(token)
    with failing(number):
        for token in range(EVENTS, EVENTS + AT_LAST):
            begin(token)
        bench.settle()
    bench.until(lambda: len(over) == len(begun))
    assert sorted(over) == begun

each(story)
"""
IN_PLACE = """
from tests.engine.test_in_place_commits import LARGE, window_of
from tests.support.plane_bench import PlaneBench

def story(number):
    bench = PlaneBench(folder / f"{number}.journal")
    handle = bench.lead("t")
    segment = os.open(folder / f"{number}.log", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    assert window_of(bench, handle, segment) == 0
    with failing(number):
        with contextlib.suppress(MemoryError, OSError):
            bench.plane.append(handle, LARGE)
    end = bench.plane.state(handle).log_end_offset
    bench.settle()
    assert bench.plane.state(handle).durable_offset == end == len(bench.readable(handle) or ())

each(story)
"""


@pytest.fixture(scope="module")
def library(module_tmp_path):
    built = module_tmp_path / "scarce_memory.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(SOURCE), "-o", str(built), "-ldl"], check=True)
    return built


@pytest.fixture
def run(library, tmp_path):
    def run(story):
        return subprocess.run(
            [sys.executable, "-c", FAILING + story, str(tmp_path)],
            cwd=ROOT, env=os.environ | {"LD_PRELOAD": str(library), BACKEND_VARIABLE: "plain"},
            capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip

    return run


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(STEADY + "SIZE = 100\n" + ONE_APPEND, id="appends that are copied"),
        pytest.param(STEADY + "SIZE = 100_000\n" + ONE_APPEND, id="appends that lie in the tail"),
        pytest.param(STEADY + ONE_COMMIT, id="a commit"),
        pytest.param(STEADY + ONE_ACK, id="an acknowledgement"),
        pytest.param(LINKS + ONE_RELEASE, id="a fetch over links that has found something"),
    ],
)
def test_a_link_that_finds_no_memory_is_looked_at_no_more(run, story):
    done = run(story)
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stdout[-100:], done.stderr)


@pytest.mark.parametrize(
    "story", [pytest.param(WAITS, id="a wait begins"), pytest.param(IN_PLACE, id="a batch is written in place")]
)
def test_what_finds_no_memory_is_refused_before_it_has_begun(run, story):
    """Who waits is told of the end in an event, and an entry of the journal that names bytes has them written."""
    done = run(story)
    assert done.stdout.endswith("survived\n"), (done.returncode, done.stdout[-100:], done.stderr)
