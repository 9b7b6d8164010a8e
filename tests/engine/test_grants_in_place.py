"""Where a large batch will lie is chosen when it begins to come, by what came before it: of those who may write."""

import pytest

from tests.support.connection_bench import frame_of
from tests.support.grant_bench import ALICE, BOB, WRITE, GrantBench
from tests.support.plane_bench import produce_body, records_of
from tpc_broker._ring import ffi, lib
from tpc_broker.error_codes import ErrorCode as E

LARGE_BYTES = 200_000
ANY_API = 17
PLACED_BYTES = 4096
"""Where it matters at which residue a frame lies, it takes so much more."""


@pytest.fixture
def bench(tmp_path):
    bench = GrantBench(tmp_path / "journal", region_blocks=1024)
    handle = bench.make("t")
    window = ffi.new("tpc_in_place_window_params *")
    with (tmp_path / "segment").open("wb") as file:
        window.descriptor, window.batch_bytes_min = file.fileno(), 65_536
        window.segment_bytes_max = window.reserved_position = 1 << 30
        window.written_position = 100
        assert lib.tpc_partition_open_in_place_window(bench.plane.pointer, handle, window) == 0
    yield bench
    lib.tpc_partition_close_in_place_window(bench.plane.pointer, handle)
    bench.shut()


def large_produce():
    records = records_of(1, value=bytes(LARGE_BYTES))
    return frame_of(produce_body([("t", 0, records)]), api_key=0, api_version=7)


def has_place_chosen(bench, client):
    """For the beginning of a large Produce, behind what taught its connection that requests are large."""
    handed_over = []
    bench.on_request = handed_over.append
    bench.feed(client, frame_of(bytes(2 * LARGE_BYTES), api_key=ANY_API, api_version=1))
    bench.until(lambda: handed_over)
    bench.connections.answer(handed_over.pop(), b"\0\0\0\1")
    bench.read_frame(client)
    frame, before = large_produce(), bench.connections.statistics()
    bench.feed(client, frame[:1000])
    bench.until(lambda: bench.connections.statistics().assembling_bytes > before.assembling_bytes)
    return bench.connections.statistics().budget_bytes_used - before.budget_bytes_used - len(frame) >= PLACED_BYTES


def test_only_who_may_write_has_a_place_chosen_for_its_bytes(bench):
    bench.change(add=[(ALICE, WRITE, "t")])
    first = bench.connect_as(ALICE)
    for client, told in ((first, (E.NONE, 0)), (bench.connect_as(BOB), (E.TOPIC_AUTHORIZATION_FAILED, -1))):
        assert bench.produce(client, ("t", 0, records_of(1))) == [told]
    clients = [bench.connect_as(subject) for subject in (ALICE, BOB)]
    assert [has_place_chosen(bench, client) for client in clients] == [True, False]


def test_of_whom_nothing_is_known_no_place_is_chosen(bench):
    bench.change(add=[(ALICE, WRITE, "t")])
    assert not has_place_chosen(bench, bench.connect_as(ALICE))
