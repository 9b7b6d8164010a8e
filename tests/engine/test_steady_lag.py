"""A leader in C whose followers are not all as fast: what it keeps in memory for them (`native/log/tail.c`), and what
it has read for them (`steady_lag.c`).
"""

import random

import pytest

from tests.support.plane_bench import records_of
from tests.support.record_batches import read_batches
from tests.support.steady_peers import ACK, INCARNATION, OWN, TERM, entry, frame
from tests.support.steady_twin import LeaderTwin
from tpc_broker.engine.steady_plane import SteadyPeerState

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


# -- what is in segments only


class Segments:
    """The log as it would be in files, for those who lack what has left memory."""

    def __init__(self, bench, handle):
        self.bench, self.handle = bench, handle
        self.batches = []

    def note(self):
        """Before any of it can be written behind."""
        have = self.batches[-1][1] if self.batches else 0
        data = self.bench.plane.read_log(self.handle, have)
        at = 0
        for one in read_batches(data or b""):
            size = int.from_bytes(data[at + 8 : at + 12]) + 12
            end = one["base_offset"] + one["last_offset_delta"] + 1
            self.batches.append((one["base_offset"], end, data[at : at + size]))
            at += size

    def read(self, offset, count):
        found = [data for base, _end, data in self.batches if base >= offset]
        return b"".join(found[:count])


class LaggingTwin(LeaderTwin):
    """Of which what is durable may leave memory at any time, and is read for peers by and by."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.bench.plane.set_tail_bytes_max(0)
        self.segments = Segments(self.bench, self.handle)
        self.wants = []

    def append(self):
        super().append()
        self.segments.note()

    def forget(self):
        self.durable()
        self.bench.plane.write_behind_done(self.handle, self.bench.plane.state(self.handle).durable_offset)
        self.bench.plane.recycle(self.bench.plane.durable_cursor())

    def give(self):
        self.wants += self.steady.steady_wants()
        self.chance.shuffle(self.wants)
        for want in self.wants:
            data = self.segments.read(want.offset, self.chance.randint(1, 6))
            if self.chance.random() < 0.3:  # nothing becomes of it
                wrong = data[:-1] if self.chance.random() < 0.5 else self.segments.read(want.offset + 1, 9)
                assert self.steady.steady_give(want, wrong) is False
            assert self.steady.steady_give(want, data)
            assert self.steady.steady_give(want, data) is None
        self.wants = []

    def _all_is_sent(self):
        self.give()
        return super()._all_is_sent()


@pytest.mark.parametrize("seed", range(12))
def test_a_leader_does_what_the_machine_does_wherever_its_log_is(bench, steady, replica, seed):
    both = LaggingTwin(bench, steady, replica, random.Random(seed))
    for _ in range(60):
        steps = [both.append, both.acknowledge, both.acknowledge, both.durable, both.forget, both.give, both.meet]
        both.chance.choice([*steps, both.ask])()
        if both.chance.random() < 0.3:
            bench.turn(1)
    both.meet()
    assert steady.steady_statistics()["unsteady"] == 0


def lacking(bench, steady, slow, count=60):
    """What the follower has not had has left memory: what it wants, and all of the log."""
    segments = Segments(bench, slow.handle)
    for _ in range(count):
        bench.plane.append(slow.handle, records_of(1, value=VALUE))
        bench.settle()
        segments.note()
        bench.plane.write_behind_done(slow.handle, bench.plane.state(slow.handle).durable_offset)
        bench.plane.recycle(bench.plane.durable_cursor())
    sent = steady.steady_state(slow.handle).peers[0].next
    bench.until(lambda: (slow.hear(), len(slow.offsets) == sent)[1])
    assert not steady.steady_wants(), "there is no room for more"
    slow.acknowledge()
    wants = []
    bench.until(lambda: wants.extend(steady.steady_wants()) or wants)
    return wants, segments


def test_what_has_left_memory_is_asked_for_and_sent(bench, steady, slow):
    bench.plane.set_tail_bytes_max(0)
    told = []
    steady._on_steady = lambda: told.append(None)
    (want,), segments = lacking(bench, steady, slow)
    assert told, "somebody has to read"
    assert (want.handle, want.term, want.incarnation, want.peer) == (slow.handle, TERM, INCARNATION, 0)
    assert want.offset == len(slow.offsets)
    slow.write(1)
    segments.batches.append((60, 61, records_of(1, value=VALUE, base_offset=60, leader_epoch=TERM)))
    assert not steady.steady_wants(), "it is asked for already"
    assert not steady.steady_stalled(1 << 62), "nobody's answer is waited for"
    while len(slow.offsets) < 61:
        assert steady.steady_give(want, segments.read(want.offset, 7))
        wants = []

        def goes_on(wants=wants):
            slow.hear()
            slow.acknowledge()
            wants += steady.steady_wants()
            return wants or len(slow.offsets) == 61

        bench.until(goes_on)
        want = wants[0] if wants else want
    assert slow.offsets == list(range(61))
    assert bench.plane.state(slow.handle).high_watermark == 61, "nobody else has waited"
    assert steady.steady_statistics()["wanted"] > 1


def test_what_was_read_too_late_goes_nowhere(bench, steady, slow):
    bench.plane.set_tail_bytes_max(0)
    (want,), segments = lacking(bench, steady, slow)
    state = steady.steady_disarm(slow.handle)
    assert steady.steady_give(want, segments.read(want.offset, 1)) is None
    match = len(slow.offsets)
    rows = [SteadyPeerState(slow.peer.link, INCARNATION, match, match, 0, votes=False)]
    assert state.peers[0].match == match
    assert steady.steady_lead(slow.handle, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
    assert steady.steady_give(want, segments.read(want.offset, 1)) is None, "nobody has asked yet"
    again = []
    bench.until(lambda: again.extend(steady.steady_wants()) or again)
    for other in ({"term": TERM - 1}, {"incarnation": 8}, {"link": 0}, {"offset": match - 1}, {"peer": 1}):
        assert steady.steady_give(again[0]._replace(**other), segments.read(match, 1)) is None
    assert steady.steady_give(again[0], b"") is False
    of_earlier = records_of(1, value=VALUE, base_offset=match, leader_epoch=TERM - 1)
    assert steady.steady_give(again[0], of_earlier) is False, "C sends what is of its term"
    assert steady.steady_give(again[0], segments.read(match, 1))


@pytest.mark.parametrize("is_in_memory", [False, True])
def test_what_was_lost_is_sent_again_when_no_more_may_be_under_way(bench, steady, slow, is_in_memory):
    """From memory, or read again: a little at first, and all when there is an answer."""
    bench.plane.set_tail_bytes_max(UNBOUNDED if is_in_memory else 0)
    slow.write(60)
    under_way = steady.steady_state(slow.handle).peers[0].next
    assert under_way < 60
    bench.until(lambda: (slow.hear(), len(slow.offsets) == under_way)[1])
    slow.offsets.clear()
    assert [one.offset for one in steady.steady_ask_again(1 << 62, 0)] == [0]

    def give(count=30):
        for want in steady.steady_wants():
            upto = min(want.offset + count, 60)
            given = [records_of(1, value=VALUE, base_offset=at, leader_epoch=TERM) for at in range(want.offset, upto)]
            assert steady.steady_give(want, b"".join(given))

    bench.until(lambda: (give(), slow.hear(), slow.offsets)[-1])
    bench.settle()
    give()
    slow.hear()
    assert len(slow.offsets) < 15
    taken = steady.steady_statistics()["acks_taken"]
    while len(slow.offsets) < 60:
        slow.acknowledge()
        had = len(slow.offsets)
        bench.until(lambda had=had: (give(), slow.hear(), len(slow.offsets) > had)[-1])
    assert slow.offsets == list(range(60))
    assert steady.steady_statistics()["acks_taken"] > taken
    slow.acknowledge()
    bench.until(lambda: steady.steady_state(slow.handle).peers[0].match == 60)


def test_what_is_read_for_one_that_has_it_after_all_goes_nowhere(bench, steady, slow):
    """It was asked again, and then what it was sent first had only been slow."""
    bench.plane.set_tail_bytes_max(0)
    slow.write(3)
    bench.until(lambda: (slow.hear(), slow.offsets == [0, 1, 2])[-1])
    assert [one.offset for one in steady.steady_ask_again(1 << 62, 0)] == [0]
    wants = []
    bench.until(lambda: wants.extend(steady.steady_wants()) or wants)
    slow.acknowledge()
    bench.until(lambda: steady.steady_state(slow.handle).peers[0].match == 3)
    assert steady.steady_give(wants[0], records_of(1, value=VALUE, base_offset=0, leader_epoch=TERM)) is None
    slow.write(1)
    bench.until(lambda: (slow.hear(), slow.offsets == [0, 1, 2, 3])[-1])


def test_only_so_much_is_read_for_a_link_at_a_time(bench, steady, slow):
    """Each stretch is memory, and is not acknowledged before it has left."""
    bench.plane.set_tail_bytes_max(0)
    handles = [bench.lead(f"more-{number}", bytes_admitted=UNBOUNDED) for number in range(6)]
    logs = {}
    for handle in handles:
        bench.plane.set_replicated(handle)
        bench.plane.arm(handle, TERM)
        slow.write(2, handle)
        rows = [SteadyPeerState(slow.peer.link, INCARNATION, 0, 0, 0, votes=False)]
        assert bench.plane.state(handle).tail_offset == 2
        logs[handle] = records_of(1, value=VALUE, leader_epoch=TERM)
        assert steady.steady_lead(handle, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
    wants = []
    bench.until(lambda: wants.extend(steady.steady_wants()) or len(wants) == 4)
    bench.settle()
    assert not steady.steady_wants()
    assert steady.steady_give(wants[0], logs[wants[0].handle])
    steady.steady_disarm(wants[1].handle)
    bench.until(lambda: wants.extend(steady.steady_wants()) or len(wants) == 6)
    assert len({want.handle for want in wants}) == 6
