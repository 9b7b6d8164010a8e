"""Faults one after another in one cluster: what counts as being back, and that what is there is compared."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tpc_broker.bench import failing_often
from tpc_broker.bench.bars import BARS, FAULTS
from tpc_broker.bench.failing_often import Silence, SteadyLoad, check_order, in_turn
from tpc_broker.bench.hosts import why_no_namespaces
from tpc_broker.bench.measured import CountsDiffer, Extent, Round, Stage, Workload
from tpc_broker.bench.peers import Shape
from tpc_broker.bench.peers.clusters import TpcHostsPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.plots import draw
from tpc_broker.bench.results import Cell, Results
from tpc_broker.bench.workloads import WORKLOADS

pytestmark = pytest.mark.machine

SECOND = 10**9


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcPeer]:
    peer = TpcPeer(tmp_path / "tpc", "durable")
    peer.start()
    yield peer
    peer.kill()


def test_a_partition_is_back_with_the_first_record_that_was_handed_over_after_the_fault() -> None:
    silence = Silence(10 * SECOND)
    silence.acknowledged(0, 9 * SECOND, 11 * SECOND)
    assert silence.again_s == {}
    silence.acknowledged(0, 10 * SECOND, 12 * SECOND)
    silence.acknowledged(0, 11 * SECOND, 13 * SECOND)
    silence.acknowledged(1, 15 * SECOND, 16 * SECOND)
    assert silence.again_s == {0: 2.0, 1: 6.0}


def test_kinds_of_fault_take_turns() -> None:
    assert in_turn((3, 1, 2)) == ["kill", "pause", "isolation", "kill", "isolation", "kill"]
    assert in_turn((0, 0, 0)) == []


def test_records_are_compared_with_what_was_handed_over(broker: TpcPeer) -> None:
    broker.create_topic("t", 2)
    load = SteadyLoad(broker.bootstrap, "t", Shape(value_bytes=20, partitions=2, rate=200.0))
    load.start()
    load.wait_all(load.begin_silence())
    assert load.stop() == 0
    first, second = load.numbers
    assert load.histogram.count == sum(load.slots) == first + second
    check_order(broker.bootstrap, "t", load.numbers)
    again = SteadyLoad(broker.bootstrap, "t", Shape(value_bytes=20, partitions=2, rate=200.0))
    again.start()
    again.wait_all(again.begin_silence())
    assert again.stop() == 0
    with pytest.raises(CountsDiffer, match=f"record 0 where ({first}|{second}) should be"):
        check_order(broker.bootstrap, "t", [first + 1, second + 1])


def test_nodes_are_killed_paused_and_cut_off_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (why_not := why_no_namespaces()) is not None:
        pytest.skip(why_not)
    monkeypatch.setattr(failing_often, "AWAY_S", 3.0)
    whole = next(one for one in WORKLOADS if one.key == "cluster-failovers")
    few = Workload(whole.key, "", whole.run, Shape(1, 1, 1, 100, 12, 100.0))
    peer = TpcHostsPeer(tmp_path / "hosts", "durable")
    try:
        peer.start()
        made = few.run(few, Stage(peer, Extent(warm_up=0.1, faults=(1, 1, 1))))
    finally:
        peer.kill()
    assert {fault: len(values) for fault, values in made.silences_s.items()} == dict.fromkeys(FAULTS, 1)
    for fault in FAULTS:
        again_s, led_s = made.extra[f"{fault}, worst s"], made.extra[f"led after {fault}, worst s"]
        assert made.silences_s[fault] == [again_s]
        assert again_s > 0
        assert led_s > 0


def test_the_worst_fault_of_all_rounds_is_beside_the_bar(tmp_path: Path) -> None:
    rounds = [Round(extra={"kill, worst s": worst_s, "kill, median s": worst_s / 4}) for worst_s in (1.0, 2.0, 4.0)]
    for one in rounds:
        one.buckets = [(1, 1)]
        one.silences_s = {"kill": [one.extra["kill, worst s"]]}
    results = Results({}, {}, cells=[Cell("cluster-failovers", "tpc-hosts durable", is_durable=True, rounds=rounds)])
    measured = {bar.what: bar.measured(results) for bar in BARS if bar.workload == "cluster-failovers"}
    assert measured["kill, worst s"] == 4.0
    assert measured["kill, median s"] == 0.5
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in draw(results, "r", tmp_path))
