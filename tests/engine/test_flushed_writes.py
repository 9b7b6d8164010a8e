"""Which writes ask the kernel for the disk itself, by RWF_DSYNC or a flush that is linked behind: all of the journal's,
and those of batches in place. What a kernel takes from C is seen on a simulated ring.
"""

import os

import pytest

from tests.support import bench_world
from tests.support.plane_bench import PlaneBench, records_of
from tests.support.plane_values import JournalMode
from tests.support.simulated_ring import FSYNC, IO_LINK, WRITE, WRITEV
from tpc_broker._ring import ffi, lib

DATA_ONLY = 1
"""IORING_FSYNC_DATASYNC."""
LARGE = records_of(1, value=bytes(100_000))


@pytest.fixture
def asked(monkeypatch):
    """Each operation on a file, with what is linked behind it."""
    operations = []
    begin = bench_world._File.begin

    def note(device, operation):
        operations.append((operation.opcode, operation.operation_flags, bool(operation.flags & IO_LINK)))
        begin(device, operation)

    monkeypatch.setattr(bench_world._File, "begin", note)
    with bench_world.SimulatedWorld():
        yield operations


@pytest.mark.parametrize(
    ("mode", "operations"),
    [
        (JournalMode.DIRECT_DSYNC, [(WRITE, os.RWF_DSYNC, False)]),
        (JournalMode.BUFFERED_DSYNC, [(WRITE, os.RWF_DSYNC, False)]),
        (JournalMode.BUFFERED_FDATASYNC, [(WRITE, 0, True), (FSYNC, DATA_ONLY, False)]),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, JournalMode) else "",
)
def test_each_commit_is_flushed(asked, tmp_path, mode, operations):
    bench = PlaneBench(tmp_path / "journal", mode=mode)
    handle = bench.lead("t")
    for _ in range(3):
        bench.plane.append(handle, records_of(1))
        bench.settle()
    bench.shut()
    assert asked == operations * 3


def test_batches_in_place_are_flushed_before_their_commit_is_written(asked, tmp_path):
    bench = PlaneBench(tmp_path / "journal")
    handle = bench.lead("t")
    segment = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    window = ffi.new("tpc_in_place_window_params *")
    window.descriptor, window.batch_bytes_min = segment, 65_536
    window.segment_bytes_max = window.reserved_position = 1 << 30
    assert lib.tpc_partition_open_in_place_window(bench.plane.pointer, handle, window) == 0
    for _ in range(2):
        bench.plane.append(handle, LARGE)
        bench.settle()
    bench.shut()
    os.close(segment)
    assert asked == [(WRITEV, os.RWF_DSYNC, False), (WRITE, os.RWF_DSYNC, False)] * 2
