"""A plane's end, and its beginning when that fails: nothing on its ring refers to it then."""

import errno
import os

from tests.support.plane_bench import PlaneBench, records_of
from tpc_broker._ring import ffi, lib


def test_nothing_is_asked_of_a_plane_that_is_gone(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    bench.plane.set_hot(on=True)
    bench.lead("t")
    client = bench.connect()
    assert bench.produce(client, ("t", 0, records_of(1))) == [(0, 0)]
    bench.settle()
    bench.plane.free()
    bench.on_request = bench.requests.append
    bench.send(client, [("t", 0, records_of(1))])
    assert bench.next_request().api_key == 0
    bench.close()
    os.close(bench.descriptor)


def test_a_plane_that_cannot_be_made_leaves_the_memory_to_the_one_before(tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    budget, out, more = bench.connections.budget, ffi.new("tpc_plane **"), []
    params = ffi.new("tpc_plane_params *")
    given = (bench.ring.pointer, bench.plane.journal, bench.connections.pointer, budget, params, out)
    while (result := lib.tpc_plane_new(*given)) == 0:
        more.append(out[0])
    assert result == -errno.ENOSPC, "the ring takes only so many hooks"
    assert budget.reclaim_context == ffi.cast("void *", more[-1])
    for plane in more:
        lib.tpc_plane_free(plane)
    bench.shut()
