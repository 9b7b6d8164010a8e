"""What a partition has in memory and the journal has not on the disk yet: no segment and no checkpoint has it, and who
drives its replication is told which commit it waits for.
"""

import fcntl
import os

import pytest

from tests.support.plane_bench import records_of
from tests.support.steady_peers import OWN, TERM
from tpc_broker._ring import ffi, lib


@pytest.fixture
def handle(stalled):
    """A partition with a batch of a producer that is durable, and one behind it on its way to the disk."""
    made = stalled.lead("t")
    stalled.plane.append(made, records_of(1, producer=(7, 0, 0)))
    stalled.let_go()
    os.write(stalled.descriptor, bytes(fcntl.fcntl(stalled.descriptor, fcntl.F_GETPIPE_SZ)))  # it is full again
    stalled.plane.append(made, records_of(1, producer=(7, 0, 1)))
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"] == 1)
    return made


def test_only_what_is_durable_is_written_behind(stalled, handle):
    assert [one.next_offset for one in stalled.plane.write_behind_take(handle, 1 << 20)] == [1]
    with pytest.raises(ValueError, match="written behind"):
        stalled.plane.write_behind_done(handle, 2)
    stalled.plane.write_behind_done(handle, 1)
    assert stalled.plane.write_behind_take(handle, 1 << 20) == []
    assert stalled.plane.dirty() == []
    stalled.let_go()
    assert [one.next_offset for one in stalled.plane.write_behind_take(handle, 1 << 20)] == [2]


def test_a_checkpoint_has_producers_as_durable_batches_left_them(stalled, handle):
    (known,) = stalled.plane.dump_producers(handle)
    assert [one.last_sequence for one in known.batches] == [0]
    stalled.let_go()
    (known,) = stalled.plane.dump_producers(handle)
    assert [one.last_sequence for one in known.batches] == [0, 1]


def test_what_is_durable_ends_with_the_commit_that_is(stalled):
    """Also where the next one has what follows, of the same partition and of no producer."""
    handle = stalled.lead("t")
    for number in (1, 2):
        stalled.plane.append(handle, records_of(1))
        stalled.until(lambda number=number: stalled.plane.journal_statistics()["sequence_next"] == number + 1)
        stalled.turn(1)
    assert stalled.plane.state(handle).appends_undurable == 2
    os.read(stalled.reading, 1 << 20)  # there is room for one of them
    stalled.until(lambda: stalled.plane.state(handle).durable_offset > 0)
    for _ in range(5):
        stalled.turn(1)
    state = stalled.plane.state(handle)
    assert (state.durable_offset, state.high_watermark, state.log_end_offset) == (1, 1, 2)


def test_no_checkpoint_covers_a_commit_of_which_a_segment_lacks_something(bench):
    """A partition's oldest batch says so, whatever came after it."""
    handle = bench.lead("t")
    for _ in range(2):
        bench.plane.append(handle, records_of(1))
        bench.settle()

    def lacks_of(sequence):
        return bool(lib.tpc_plane_is_unwritten_below(bench.plane.pointer, sequence))

    assert [lacks_of(sequence) for sequence in (1, 2, 3)] == [False, True, True]
    bench.plane.write_behind_done(handle, 1)
    assert [lacks_of(sequence) for sequence in (1, 2, 3)] == [False, False, True]
    bench.plane.write_behind_done(handle, 2)
    assert not lacks_of(3)


def test_the_machine_is_told_by_which_commit_an_append_is_durable(stalled, steady_of):
    """Of what was appended while the machine had the group, and while C had it."""
    steady = steady_of(stalled)
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    stalled.plane.arm(handle, TERM)
    stalled.plane.append(handle, records_of(1))
    told = ffi.new("tpc_appended_range[]", 1)
    assert lib.tpc_plane_take_appended(stalled.plane.pointer, told, 1) == 1
    assert (told[0].next_offset, told[0].sequence) == (1, 1)
    assert steady.steady_lead(handle, OWN, TERM, 0, 1 << 40, [], votes=True)
    stalled.until(lambda: stalled.plane.journal_statistics()["commits_in_flight"] == 1)
    stalled.plane.append(handle, records_of(1))
    assert steady.steady_state(handle).sequence == 2
    stalled.let_go()
    state = steady.steady_disarm(handle)
    assert (state.durable_offset, state.sequence) == (2, 0)
