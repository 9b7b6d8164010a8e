"""What a partition has in memory and the journal has not on the disk yet: no segment and no checkpoint has it."""

import fcntl
import os

import pytest

from tests.support.plane_bench import records_of


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
