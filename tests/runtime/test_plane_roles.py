"""A partition in the table of a core is not led by it yet: leading begins and ends by a step of its own."""

import errno

import pytest

from tests.support.plane_bench import PlaneBench, records_of, settings_with
from tests.support.plane_values import Left
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E


@pytest.fixture
def bench(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    yield bench
    bench.shut()


def test_registering_is_not_leading(bench):
    handle = bench.lead("t", log_end_offset=9, is_led=False)
    bench.send(bench.connect(), [("t", 0, records_of(1))])
    bench.until(lambda: bench.left)
    assert bench.left.pop()[0] is Left.UNKNOWN
    records, result = records_of(1), ffi.new("tpc_append_result *")
    assert lib.tpc_plane_append(bench.plane.pointer, handle, records, len(records), result) == -errno.EPERM
    bench.plane.arm(handle, 5)
    assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 9)]
    state = bench.plane.state(handle)
    assert (state.leader_epoch, state.log_end_offset) == (5, 10)
    with pytest.raises(ValueError, match="arm"):
        bench.plane.arm(handle, 4)


def test_disarmed_it_keeps_what_it_has_and_can_be_led_again(bench):
    handle = bench.lead("t", settings=settings_with(leader_epoch=1))
    assert bench.produce(bench.connect(), ("t", 0, records_of(3))) == [(0, 0)]
    bench.plane.disarm(handle)
    assert [base for base, _values in bench.readable(handle)] == [0]
    bench.plane.arm(handle, 2)
    assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 3)]


def test_a_partition_disarmed_during_the_write(stalled):
    handle = stalled.lead("disarmed")
    stalled.lead("led")
    client = stalled.connect()
    stalled.send(client, [("disarmed", 0, records_of(1)), ("led", 0, records_of(1))])
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"])
    stalled.plane.disarm(handle)
    assert stalled.plane.statistics()["produces_pending"] == 1, "the other partition still waits"
    stalled.let_go()
    assert stalled.answer(client) == [(E.NOT_LEADER_OR_FOLLOWER, -1), (E.NONE, 0)]
    assert stalled.plane.state(handle).high_watermark == 1, "it was appended all the same"
