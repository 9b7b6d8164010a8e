"""A commit with batches that are written in place, at the plane: it waits until all of them are on the disk, whole."""

import contextlib
import errno
import fcntl
import os
import resource
import signal

import pytest

from tests.support.journal_file import APPEND, BLOCK_BYTES
from tests.support.plane_bench import PlaneBench, records_of
from tests.support.plane_values import PlaneLimits
from tpc_broker._ring import ffi, lib

BATCH_BYTES_MIN = 65_536
LARGE = records_of(1, value=bytes(100_000))
JOURNAL_BYTES = 258 * BLOCK_BYTES


@pytest.fixture
def bench(tmp_path):
    bench = PlaneBench(tmp_path / "journal", limits=PlaneLimits())
    yield bench
    bench.shut()


def window_of(bench, handle, descriptor, position=0):
    """Opens a window on an empty log, which lies at a position of the file; 0 or -errno."""
    window = ffi.new("tpc_in_place_window_params *")
    window.descriptor, window.batch_bytes_min = descriptor, BATCH_BYTES_MIN
    window.written_position, window.segment_bytes_max = position, 1 << 30
    window.reserved_position = 1 << 30
    window.written_offset = bench.plane.state(handle).written_offset
    return lib.tpc_partition_open_in_place_window(bench.plane.pointer, handle, window)


@pytest.fixture
def segment(tmp_path):
    """A file for direct writes."""
    descriptor = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def slow_segment():
    """A full pipe: no write to it ends before it is emptied, and then it has room for a whole one. Its reading end, and
    the one for writing.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.write(writing, bytes(fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2 * len(LARGE))))
    yield reading, writing
    for descriptor in (reading, writing):
        os.close(descriptor)


def empty(bench, reading):
    os.set_blocking(reading, False)

    def is_idle():
        with contextlib.suppress(BlockingIOError):
            os.read(reading, 1 << 20)
        return bench.plane.idle

    bench.until(is_idle)


def test_a_commit_waits_for_all_of_its_batches_in_place(bench, segment, slow_segment):
    """Of two segments: when the first one has its batch, nothing is written that says where both are."""
    reading, writing = slow_segment
    first, second = bench.lead("a"), bench.lead("b")
    assert window_of(bench, first, segment) == window_of(bench, second, writing) == 0
    for handle in (first, second):
        bench.plane.append(handle, LARGE)
    bench.until(lambda: os.fstat(segment).st_size)
    for _ in range(20):
        bench.turn(1)
    assert [bench.plane.state(handle).durable_offset for handle in (first, second)] == [0, 0]
    assert bench.journal_entries() == []
    empty(bench, reading)
    assert [bench.plane.state(handle).durable_offset for handle in (first, second)] == [1, 1]
    assert len(bench.journal_entries()) == 2
    assert APPEND not in [entry.kind for entry in bench.journal_entries()], "both were in place"


def test_a_batch_of_which_a_part_is_in_place_fails_its_commit(bench, segment):
    """The file-size limit, which the journal stays below, cuts its write."""
    handle = bench.lead("a")
    assert window_of(bench, handle, segment, position=2 * JOURNAL_BYTES) == 0
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * JOURNAL_BYTES + 4 * BLOCK_BYTES, limits[1]))
    try:
        bench.plane.append(handle, LARGE)
        bench.until(lambda: bench.failures or bench.plane.idle)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [error for _sequence, error in bench.failures] == [errno.EIO]
    assert bench.plane.state(handle).log_end_offset == 0
    assert bench.journal_entries() == []


def test_nothing_is_placed_before_what_a_failure_cut_is_cut_in_the_journal(bench, segment):
    """Where the log ends then is not what the segment's replay would find."""
    handle = bench.lead("a")
    bench.break_disk()
    bench.plane.append(handle, records_of(1))
    bench.until(lambda: bench.failures)
    assert window_of(bench, handle, segment) == -errno.EAGAIN
    bench.mend_disk()
    commit = bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    assert window_of(bench, handle, segment) == -errno.EAGAIN
    bench.until(lambda: commit.durable)
    assert window_of(bench, handle, segment) == 0
