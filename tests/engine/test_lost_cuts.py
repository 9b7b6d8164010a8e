"""What the journal was told and lost is told again by the next one: cuts, and logs that were shipped."""

import fcntl
import os

import pytest

from tests.support.journal_file import APPEND, CUT
from tests.support.plane_bench import records_of
from tpc_broker._ring import ffi, lib
from tpc_broker.log.journal import EntryKind

TERM = 3


def sent(base_offset, epoch):
    return records_of(1, base_offset=base_offset, leader_epoch=epoch)


def followed(bench, topic="t"):
    """Five batches of one record, of which the last two are of the term, and nothing is committed."""
    handle = bench.lead(topic, is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.follow(handle, TERM)
    bench.plane.append_replica(handle, TERM, b"".join(sent(n, 2 if n < 3 else TERM) for n in range(5)))
    return handle


def reopened(bench):
    """What stands in the journal behind what was durable when it failed."""
    before = len(bench.journal_entries())
    bench.mend_disk()
    commit = bench.plane.reopen_journal(bench.descriptor, bench.mode, 2)
    bench.until(lambda: commit.durable)
    return [(entry.kind, entry.offset, entry.argument) for entry in bench.journal_entries()[before:]]


@pytest.mark.parametrize("goes_on", [False, True], ids=["alone", "with appends behind it"])
def test_a_cut_that_was_lost_is_the_first_thing_that_is_written(bench, goes_on):
    """With the epoch that it keeps: appends behind it, which are lost as well, were of another one."""
    handle = followed(bench)
    bench.settle()
    bench.break_disk()
    bench.plane.truncate(handle, 3, 2)
    if goes_on:
        bench.plane.reset_producers(handle, [])
        bench.plane.follow(handle, TERM + 1)
        bench.plane.append_replica(handle, TERM + 1, sent(3, TERM + 1))
    bench.until(lambda: bench.failures)
    assert bench.plane.state(handle).log_end_offset == 3
    assert reopened(bench) == [(CUT, 3, 2)]


def test_a_cut_is_lost_with_its_own_commit_and_not_kept_by_the_one_before(stalled):
    handle = followed(stalled)
    stalled.let_go()
    os.write(stalled.descriptor, bytes(fcntl.fcntl(stalled.descriptor, fcntl.F_GETPIPE_SZ)))  # it is full again
    other = stalled.lead("other")
    stalled.plane.append(other, records_of(1))
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"] == 1)
    stalled.plane.truncate(handle, 3, 2)
    reading = os.open(os.devnull, os.O_RDONLY)
    os.dup2(reading, stalled.descriptor)  # the write that is under way has the pipe
    os.close(reading)
    stalled.let_go()
    stalled.until(lambda: stalled.failures)
    assert stalled.plane.state(other).durable_offset == 1, "that one was written"
    writing = os.open(os.devnull, os.O_WRONLY)
    stalled.plane.reopen_journal(writing, stalled.mode, 2)
    assert stalled.plane.statistics()["cuts_pending"] == 1
    stalled.until(lambda: stalled.plane.statistics()["cuts_pending"] == 0)
    os.close(writing)


def test_a_log_is_cut_where_the_first_of_the_lost_appends_began(bench):
    """They are undone the newest first, of two producers one after the other."""
    handle = bench.lead("t")
    bench.plane.append(handle, records_of(1))
    bench.settle()
    bench.break_disk()
    for producer in (7, 8):
        bench.plane.append(handle, records_of(1, producer=(producer, 0, 0)))
    bench.until(lambda: bench.failures)
    assert reopened(bench)[0] == (CUT, 1, 0)


def test_a_log_that_was_shipped_is_adopted_again(bench):
    sequence = ffi.new("uint64_t *")
    bench.break_disk()
    assert lib.tpc_plane_adopt(bench.plane.pointer, b"t" * 16, 0, 4, b"adopted", 7, sequence) == 0
    bench.until(lambda: bench.failures)
    assert reopened(bench) == [(EntryKind.ADOPTED, 0, 4)]
    assert bench.journal_entries()[-1].payload == b"adopted"


def test_a_cut_that_is_durable_is_not_made_again(bench):
    handle = followed(bench)
    bench.settle()
    commit = bench.plane.truncate(handle, 3, 2)
    bench.until(lambda: commit.durable)
    bench.break_disk()
    bench.plane.append_replica(handle, TERM, sent(3, TERM))
    bench.until(lambda: bench.failures)
    assert [entry.kind for entry in bench.journal_entries()] == [APPEND, CUT]
    assert reopened(bench) == [(CUT, 3, TERM)]
