"""A leader in C whose followers are not all as fast: what it keeps in memory for them (`native/ring/tail.c`)."""

import pytest

from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches
from tests.support.steady_peers import ACK, INCARNATION, OWN, TERM, entry, frame
from tpc_broker.runtime.steady_plane import SteadyPeerState

UNBOUNDED = 1 << 40
VALUE = bytes(100_000)


class Slow:
    """A partition that C leads, with a follower that acknowledges when it is told to. `offsets`: of what has come."""

    def __init__(self, bench, steady):
        self.bench, self.steady = bench, steady
        self.handle = bench.lead("t", bytes_admitted=UNBOUNDED)
        bench.plane.set_replicated(self.handle)
        self.peer = steady.adopt(1)
        bench.plane.arm(self.handle, TERM)
        rows = [SteadyPeerState(self.peer.link, INCARNATION, 0, 0, 0, votes=False)]
        assert steady.steady_lead(self.handle, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
        self.offsets = []

    @property
    def tail_offset(self):
        return self.bench.plane.state(self.handle).tail_offset

    def write(self, count, handle=None):
        """Batches of one record, in a segment at once as far as the plane knows."""
        handle = self.handle if handle is None else handle
        for _ in range(count):
            self.bench.plane.append(handle, records_of(1, value=VALUE))
            self.bench.plane.take_appended()
            self.bench.settle()
            end = self.bench.plane.state(handle).durable_offset
            self.bench.plane.write_behind_done(handle, end)
            self.bench.plane.recycle(self.bench.plane.durable_cursor())

    def hear(self):
        before = len(self.offsets)
        for *_head, batches in self.peer.heard():
            self.offsets.extend(batch["base_offset"] for batch in read_batches(batches))
        return len(self.offsets) > before

    def acknowledge(self):
        self.peer.say(frame(ACK, entry(len(self.offsets), 0)))


@pytest.fixture
def slow(bench, steady):
    return Slow(bench, steady)


def test_what_a_slow_peer_has_not_had_stays_in_memory(bench, steady, slow):
    """Within another bound than the cache's; what has left it would be Python's to read from files."""
    bench.plane.set_tail_bytes_max(0)
    slow.write(1)
    assert slow.tail_offset == 1
    bench.plane.set_tail_bytes_behind_max(1 << 30)
    slow.write(59)
    sent_count = steady.steady_statistics()["appends_sent"]
    assert sent_count < 60, "there is no room for more that is not acknowledged"
    assert slow.tail_offset <= sent_count
    while len(slow.offsets) < 60:
        bench.until(slow.hear)
        slow.acknowledge()
    assert slow.offsets == list(range(60))
    bench.until(lambda: steady.steady_state(slow.handle).peers[0].match == 60)
    slow.write(1)
    assert slow.tail_offset == 61, "nobody is behind"
    assert not steady.steady_stalled(0)


def test_nothing_else_stays_for_a_slow_peer(bench, slow):
    """Memory that was used before is used again: a page's first touch costs more than a copy."""
    other = bench.lead("other", bytes_admitted=UNBOUNDED)
    bench.plane.set_tail_bytes_max(0)
    bench.plane.set_tail_bytes_behind_max(1 << 30)
    slow.write(60)
    assert slow.tail_offset < 60, "it lacks some"
    tail_bytes = bench.plane.statistics()["tail_bytes"]
    slow.write(20, other)
    assert bench.plane.state(other).tail_offset == 20
    assert slow.tail_offset < 60
    assert bench.plane.statistics()["tail_bytes"] == tail_bytes
    bench.plane.set_tail_bytes_behind_max(0)
    slow.write(1, other)
    assert bench.plane.statistics()["tail_bytes"] == 0, "nor beyond the bound"
