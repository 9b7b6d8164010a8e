"""The steady state of replication in C (`native/replication/steady.h`), beside the machine that it is held equal to:
random schedules over both, frame by frame, and frames that are none.
"""

import random
import time
from pathlib import Path

import pytest

from tests.support.plane_bench import records_of
from tests.support.plane_values import Left, Verdict
from tests.support.record_batches import read_batches
from tests.support.steady_peers import ACK, APPEND, BEAT, INCARNATION, MACHINES, OWN, TERM, entry, frame, sent
from tests.support.steady_twin import LeaderTwin
from tpc_broker._ring import lib
from tpc_broker.engine.steady_plane import GAP_MS, Machine, SteadyPeerState
from tpc_broker.raft.steady import NONE, Input, Outcome, Steady, SteadyRole

SEEDS = range(12)
UNBOUNDED = 1 << 40


# -- the twin


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_does_what_the_machine_does(bench, steady, replica, seed):
    both = LeaderTwin(bench, steady, replica, random.Random(seed))
    for _ in range(40):
        both.chance.choice([both.append, both.acknowledge, both.acknowledge, both.durable, both.meet, both.ask])()
        if both.chance.random() < 0.3:
            bench.turn(1)
    both.meet()
    assert steady.steady_statistics()["unsteady"] == 0


class FollowerTwin:
    """C and `Steady` as follower of the same leader."""

    def __init__(self, bench, steady, handle, chance):
        self.bench, self.steady, self.handle, self.chance = bench, steady, handle, chance
        self.leader = steady.adopt(1)
        bench.plane.follow(handle, TERM)
        self.twin = Steady(SteadyRole.FOLLOWER, TERM, 0, 0, 0, NONE, [], 0, 0, 1, 1)
        self.arm()
        self.said = self.handed = 0
        self.acked = NONE

    def arm(self):
        who = (1, INCARNATION), self.leader.link
        assert self.steady.steady_follow(self.handle, OWN, TERM, 0, *who, self.twin.leader_commit_offset)

    def step(self):
        """One frame: mostly steady, sometimes of another term or place."""
        end_offset = self.twin.end_offset
        prev = self.chance.choice([end_offset] * 6 + [max(0, end_offset - 1), end_offset + 1])
        term = self.chance.choice([TERM] * 8 + [TERM - 1, TERM + 1])
        counts = [self.chance.randint(1, 3) for _ in range(self.chance.randint(0, 3))]
        batches, upto = b"", prev
        for count in counts:
            batches += sent(upto, count, epoch=term, value=bytes(self.chance.choice([10, 5_000])))
            upto += count
        commit = self.chance.randint(NONE, upto)
        durable = self.bench.plane.state(self.handle).durable_offset
        outcome = self.twin.step(Input.RECEIVE, term, term, prev, upto, term, commit)
        self.leader.say(frame(APPEND, entry(prev, commit, batches, term=term)))
        self.said += 1
        self.bench.until(lambda: self.steady.steady_statistics()["frames_taken"] == self.said)
        if outcome is Outcome.NOT_STEADY:
            self.hand_over((term, prev, commit, batches))
        assert self.bench.plane.state(self.handle).durable_offset >= durable

    def hand_over(self, expected):
        """It is Python's now, with what comes behind it, until it is armed again."""
        behind = frame(APPEND, entry(self.twin.end_offset, NONE, sent(self.twin.end_offset)))
        self.leader.say(behind)
        self.said += 1
        self.bench.until(lambda: self.steady.steady_statistics()["frames_taken"] == self.said)
        found = self.steady.steady_messages()
        assert [(one.term, one.offset, one.commit_offset, one.batches) for one in found[:1]] == [expected]
        assert len(found) == 2
        assert all(one.is_append and one.link == self.leader.link for one in found)
        state = self.steady.steady_disarm(self.handle)
        assert state.is_stopped
        assert state.end_offset == self.twin.end_offset
        self.twin.leader_commit_offset = max(self.twin.leader_commit_offset, state.leader_commit_offset)
        self.arm()

    def meet(self):
        self.bench.settle()
        self.twin.step(Input.DURABLE, self.bench.plane.state(self.handle).durable_offset)
        self.bench.turn(1)
        state, twin = self.steady.steady_state(self.handle), self.twin
        assert (state.end_offset, state.durable_offset) == (twin.end_offset, twin.durable_offset)
        assert state.commit_offset == max(0, twin.commit_offset)
        for kind, offset, commit, _batches in self.leader.heard():
            assert kind == ACK
            assert self.acked <= offset <= twin.durable_offset
            assert commit <= max(0, twin.commit_offset)
            self.acked = offset


@pytest.mark.parametrize("seed", SEEDS)
def test_a_follower_does_what_the_machine_does(bench, steady, replica, seed):
    both = FollowerTwin(bench, steady, replica, random.Random(seed))
    for _ in range(40):
        both.chance.choice([both.step, both.step, both.meet])()
    both.step()
    both.leader.say(frame(APPEND, entry(both.twin.end_offset, NONE, b"")))
    both.said += 1
    both.meet()

    def is_acknowledged():
        both.meet()
        return both.acked == both.twin.durable_offset == both.twin.end_offset

    bench.until(is_acknowledged)


# -- by hand


def test_acks_all_is_answered_when_a_majority_has_it(bench, steady, replica):
    """Of three: one follower is enough, the leader's own disk is one."""
    peers = [steady.adopt(1), steady.adopt(2)]
    bench.plane.arm(replica, TERM)
    rows = [SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True) for peer in peers]
    assert steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(2))], acks=-1)
    bench.until(lambda: bench.plane.state(replica).durable_offset == 2)
    heard = []
    bench.until(lambda: heard.extend(peers[1].heard()) or heard)
    assert bench.plane.state(replica).high_watermark == 0
    assert bench.plane.statistics()["produces_pending"] == 1
    peers[1].say(frame(ACK, entry(2, 0)))
    assert bench.answer(client) == [(0, 0)]
    told = []
    bench.until(lambda: told.extend(one for one in peers[0].heard() if not one[3]) or told)
    assert told[0][1:3] == (2, 2), "the commit is told without records"


def test_what_is_durable_is_acknowledged_at_once(bench, steady, replica):
    """And not when the next thing happens: with one request under way nothing else does."""
    peer = steady.adopt(1)
    bench.plane.follow(replica, TERM)
    assert steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), peer.link, NONE)
    bench.settle()
    for number in range(3):
        peer.say(frame(APPEND, entry(number, number, sent(number))))
        heard = []
        while (ACK, number + 1) not in heard:
            assert bench.is_sent_without_a_deadline(peer.socket)
            heard += [one[:2] for one in peer.heard()]


@pytest.mark.parametrize(("source", "target"), [(8, OWN), (INCARNATION, 6)])
def test_an_acknowledgement_of_another_life_of_a_replica_commits_nothing(bench, steady, replica, source, target):
    peer = steady.adopt(1)
    bench.plane.arm(replica, TERM)
    rows = [SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True)]
    assert steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
    bench.plane.append(replica, records_of(1))
    bench.settle()
    bench.until(peer.heard)
    peer.say(frame(ACK, entry(1, 0, source=source, target=target)))
    bench.until(lambda: steady.steady_statistics()["unsteady"])
    assert bench.plane.state(replica).high_watermark == 0
    peer.say(frame(ACK, entry(1, 0)))
    bench.until(lambda: bench.plane.state(replica).high_watermark == 1)


def test_what_was_undone_is_never_acknowledged_and_ends_it(bench, steady, replica):
    leader = steady.adopt(1)
    bench.plane.follow(replica, TERM)
    assert steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), leader.link, NONE)
    leader.say(frame(APPEND, entry(0, NONE, sent(0, 2))))
    bench.until(lambda: bench.plane.state(replica).durable_offset == 2)
    bench.break_disk()
    leader.say(frame(APPEND, entry(2, 2, sent(2, 2))))
    bench.until(lambda: bench.failures)
    state = steady.steady_disarm(replica)
    assert (state.is_stopped, state.end_offset, state.durable_offset, state.commit_offset) == (True, 2, 2, 2)
    bench.until(lambda: not bench.connections.statistics().answer_bytes_unsent)
    assert max(one[1] for one in leader.heard()) == 2


class Cramped:
    """A follower that has room for one batch, and is sent three, with a commit behind them."""

    def __init__(self, bench, steady):
        self.bench, self.steady = bench, steady
        self.batches = [sent(number) for number in range(3)]
        self.handle = bench.lead("t", is_led=False, bytes_admitted=len(self.batches[0]))
        bench.plane.set_replicated(self.handle)
        self.leader = steady.adopt(1)
        bench.plane.follow(self.handle, TERM)
        assert steady.steady_follow(self.handle, OWN, TERM, 0, (1, INCARNATION), self.leader.link, NONE)
        self.leader.say(b"".join(frame(APPEND, entry(at, NONE, one)) for at, one in enumerate(self.batches)))
        self.leader.say(frame(APPEND, entry(3, 3, b"")))
        bench.until(lambda: self.count("held") == 3)
        self.until_end(1)

    def count(self, name):
        return self.steady.steady_statistics()[name]

    def until_end(self, offset):
        self.bench.until(lambda: self.bench.plane.state(self.handle).durable_offset == offset)


@pytest.mark.parametrize("admitted", [0, 1])
def test_a_follower_asks_for_room_for_all_that_it_holds(bench, steady, admitted):
    """One that never had any room has no append that could ask for more."""
    batches = [sent(number) for number in range(3)]
    size = sum(map(len, batches))
    handle = bench.lead("t", is_led=False, bytes_admitted=admitted)
    bench.plane.set_replicated(handle)
    asked = []
    bench.plane.on_room_wanted = lambda *said: asked.append(said)
    leader = steady.adopt(1)
    bench.plane.follow(handle, TERM)
    assert steady.steady_follow(handle, OWN, TERM, 0, (1, INCARNATION), leader.link, NONE)
    leader.say(frame(APPEND, entry(0, NONE, batches[0])))
    bench.until(lambda: asked == [(handle, len(batches[0]))])
    leader.say(b"".join(frame(APPEND, entry(at, NONE, batches[at])) for at in (1, 2)))
    bench.until(lambda: steady.steady_statistics()["held"] == 3)
    bench.settle()
    assert len(asked) == 1, "it was told already"
    bench.plane.admit(handle, len(batches[0]))
    bench.until(lambda: (handle, size - len(batches[0])) in asked)
    bench.plane.admit(handle, size)
    bench.until(lambda: bench.plane.state(handle).durable_offset == 3)
    assert steady.steady_statistics()["unsteady"] == 0


def test_a_follower_holds_what_it_has_no_room_for(bench, steady):
    it = Cramped(bench, steady)
    bench.plane.admit(it.handle, len(it.batches[1]))
    it.until_end(2)
    bench.plane.admit(it.handle, len(it.batches[2]) + 1)
    it.until_end(3)
    bench.until(lambda: bench.plane.state(it.handle).high_watermark == 3)
    heard = []
    bench.until(lambda: heard.extend(it.leader.heard()) or (heard and heard[-1][:3] == (ACK, 3, 3)))
    assert it.count("unsteady") == 0
    assert [one["base_offset"] for one in read_batches(bytes(bench.plane.read(it.handle, 0, 1 << 30)))] == [0, 1, 2]


def test_what_is_held_is_the_machine_s_in_order_when_it_takes_the_group_back(bench, steady):
    it = Cramped(bench, steady)
    state = steady.steady_disarm(it.handle)
    assert (state.end_offset, state.is_stopped) == (1, False)
    said = [(one.offset, one.batches) for one in steady.steady_messages()]
    assert said == [(1, it.batches[1]), (2, it.batches[2]), (3, b"")]
    assert not steady.steady_messages()


def test_what_is_held_for_long_is_the_machine_s_with_all_that_comes_behind_it(bench, steady):
    """On a full disk: there the machine knows what to answer."""
    it = Cramped(bench, steady)
    bench.until(lambda: it.count("unsteady") == 3)
    it.leader.say(frame(APPEND, entry(3, NONE, sent(3))))
    bench.until(lambda: it.count("unsteady") == 4)
    assert [one.offset for one in steady.steady_messages()] == [1, 2, 3, 3]
    assert steady.steady_disarm(it.handle).is_stopped


def test_what_is_held_goes_with_its_partition(bench, steady):
    it = Cramped(bench, steady)
    bench.plane.withdraw(it.handle)
    assert [one.offset for one in steady.steady_messages()] == [1, 2, 3]


@pytest.mark.parametrize(("node", "source", "target"), [(2, INCARNATION, OWN), (1, 8, OWN), (1, INCARNATION, 6)])
def test_only_the_leader_that_it_follows_is_taken_and_only_for_itself(bench, steady, replica, node, source, target):
    """A replica is a node and an incarnation, and has several in its time."""
    other = steady.adopt(node)
    bench.plane.follow(replica, TERM)
    assert steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), 0, NONE)
    other.say(frame(APPEND, entry(0, NONE, sent(0), source=source, target=target)))
    bench.until(lambda: steady.steady_statistics()["unsteady"])
    (message,) = steady.steady_messages()
    assert (message.source, message.target) == (source, target)
    assert bench.plane.state(replica).log_end_offset == 0


def test_a_leader_takes_nothing_more_when_too_much_waits(bench, steady, replica):
    bench.plane.arm(replica, TERM)
    peer = steady.adopt(1)
    rows = [SteadyPeerState(link, INCARNATION, 0, 0, 0, votes=True) for link in (peer.link, 0)]
    assert steady.steady_lead(replica, OWN, TERM, 0, 10_000, rows, votes=True)
    client = bench.connect()
    bench.send(client, [("t", 0, records_of(1, value=bytes(11_000)))], acks=-1)
    bench.until(lambda: bench.plane.state(replica).durable_offset == 1)
    other = bench.connect()
    bench.send(other, [("t", 0, records_of(1))], acks=1)
    bench.until(lambda: bench.left)
    assert bench.left[0][0] is Left.UNCOMMITTED
    peer.say(frame(ACK, entry(1, 0)))
    assert bench.answer(client) == [(0, 0)]
    assert bench.plane.produce_with(bench.left[0][1], [Verdict()])
    assert bench.answer(other) == [(0, 1)]


def test_damaged_records_are_not_appended(bench, steady, replica):
    leader = steady.adopt(1)
    bench.plane.follow(replica, TERM)
    assert steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), leader.link, NONE)
    damaged = bytearray(sent(0, 3))
    damaged[-1] ^= 1
    leader.say(frame(APPEND, entry(0, NONE, bytes(damaged))))
    bench.until(lambda: steady.steady_statistics()["unsteady"])
    assert bench.plane.state(replica).log_end_offset == 0


def test_a_leader_without_answers_is_told(bench, steady, replica):
    bench.plane.arm(replica, TERM)
    peer = steady.adopt(1)
    rows = [SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True)]
    assert steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
    assert steady.steady_stalled(1 << 62) == []
    bench.plane.append(replica, records_of(1))
    bench.settle()
    bench.until(peer.heard)
    assert steady.steady_stalled(1 << 62) == [replica]
    assert steady.steady_stalled(0) == []
    peer.say(frame(ACK, entry(1, 0)))
    bench.until(lambda: bench.plane.state(replica).high_watermark == 1)
    peer.say(frame(ACK, entry(1, 1)))
    bench.until(lambda: steady.steady_statistics()["acks_taken"] == 2)
    assert steady.steady_stalled(1 << 62) == []


class OneSilent:
    """A leader of two followers, of which one answers nothing; `sent`: what has come to that one, by base offset."""

    def __init__(self, bench, steady, handle):
        self.bench, self.steady, self.handle = bench, steady, handle
        bench.plane.arm(handle, TERM)
        self.silent, self.other = steady.adopt(1), steady.adopt(2)
        rows = [SteadyPeerState(one.link, INCARNATION, 0, 0, 0, votes=True) for one in (self.silent, self.other)]
        assert steady.steady_lead(handle, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
        self.end_offset, self.sent = 0, []

    def append(self, count, size=100):
        for _ in range(count):
            self.end_offset = self.bench.plane.append(self.handle, records_of(1, value=bytes(size))).next_offset
            self.bench.settle()
        self.acknowledge(self.other, self.end_offset)

    def acknowledge(self, peer, offset):
        taken = self.steady.steady_statistics()["acks_taken"]
        peer.say(frame(ACK, entry(offset, 0)))
        self.bench.until(lambda: self.steady.steady_statistics()["acks_taken"] > taken)

    def hear(self):
        self.sent += [one["base_offset"] for *_head, data in self.silent.heard() for one in read_batches(data)]
        return self.sent

    def ask(self, now_ns=1 << 62, after_ns=0):
        return [(one.peer, one.offset) for one in self.steady.steady_ask_again(now_ns, after_ns)]


def test_who_answers_nothing_is_sent_what_it_lacks_again_while_the_others_go_on(bench, steady, replica):
    """One append at a time, until it answers: then all that is behind it."""
    it = OneSilent(bench, steady, replica)
    it.append(3, 6_000)
    assert steady.steady_stalled(bench.world.monotonic_ns() - 10**12) == [], "the other one answers"
    bench.until(lambda: it.hear() == [0, 1, 2])
    for _ in range(5):
        it.sent.clear()
        assert it.ask() == [(0, 0)]
        bench.until(lambda: it.hear() == [0])
        it.append(1)
        assert it.hear() == [0]
    assert bench.plane.state(replica).high_watermark == it.end_offset
    it.acknowledge(it.silent, 1)
    bench.until(lambda: it.hear() == list(range(it.end_offset)))
    it.acknowledge(it.silent, it.end_offset)
    assert it.ask() == [], "it knows the commit only"
    assert steady.steady_statistics()["unsteady"] == 0


def test_an_answer_to_what_was_sent_before_counts_when_it_was_asked_again(bench, steady, replica):
    it = OneSilent(bench, steady, replica)
    it.append(3, 6_000)
    bench.until(lambda: it.hear() == [0, 1, 2])
    assert it.ask() == [(0, 0)]
    it.acknowledge(it.silent, 3)
    assert steady.steady_state(replica).peers[0][2:4] == (3, 3)
    it.sent.clear()
    it.append(1)
    bench.until(lambda: 3 in it.hear())
    it.silent.say(frame(ACK, entry(5, 0)))
    bench.until(lambda: steady.steady_statistics()["unsteady"])
    assert [one.offset for one in steady.steady_messages()] == [5], "it was never sent that"


def test_who_answers_nothing_is_asked_after_twice_as_long_each_time(bench, steady, replica):
    it = OneSilent(bench, steady, replica)
    it.append(1)
    bench.until(lambda: it.hear() == [0])
    hour_ns = 3_600 * 10**9
    for times in (1, 2, 4, 8, 8):
        assert it.ask(bench.world.monotonic_ns() + times * hour_ns - hour_ns // 2, hour_ns) == []
        assert it.ask(bench.world.monotonic_ns() + times * hour_ns, hour_ns) == [(0, 0)]
        it.sent.clear()
        bench.until(lambda: it.hear() == [0])
    it.acknowledge(it.silent, 1)
    it.append(1)
    bench.until(lambda: 1 in it.hear())
    assert it.ask(bench.world.monotonic_ns() + hour_ns, hour_ns) == [(0, 1)], "it has answered since"


# -- heartbeats

BEAT_MS = lib.TPC_STEADY_BEAT_MS


def beat(*machines):
    return frame(BEAT, MACHINES.pack(sum(1 << machine for machine in machines), 0))


def busy_ms():
    """What this thread has run and waited for a CPU."""
    ran_ns, waited_ns, _slices = Path("/proc/thread-self/schedstat").read_text().split()
    return (int(ran_ns) + int(waited_ns)) / 1e6


def late_after(bench, steady, peer, stand_still):
    """How late its beats were by that, and for how long this thread was busy."""
    seen = len(peer.beats)
    bench.until(lambda: peer.heard() == [] and len(peer.beats) > seen)
    steady.steady_late_ms(Machine.OF_PARTITIONS)
    seen, before_ms = len(peer.beats), busy_ms()
    stand_still()
    bench.until(lambda: peer.heard() == [] and len(peer.beats) > seen + 2)  # those behind it are in time again
    return steady.steady_late_ms(Machine.OF_PARTITIONS), busy_ms() - before_ms


def test_how_late_beats_were_counts_what_work_took_and_not_that_the_thread_was_stopped(bench, steady):
    def work():
        until_s = time.thread_time() + 0.5
        while time.thread_time() < until_s:
            pass

    peer = steady.adopt(1)
    assert steady.steady_beat(peer.link, Machine.OF_PARTITIONS, is_said=True)
    late_ms, _busy_ms = late_after(bench, steady, peer, work)
    assert late_ms >= 500 - 2 * BEAT_MS
    late_ms, was_busy_ms = late_after(bench, steady, peer, lambda: bench.world.let_pass(2))
    assert late_ms <= was_busy_ms + 2 * BEAT_MS
    assert late_ms < 1_500 or was_busy_ms > 1_000, "it slept"
    assert steady.steady_late_ms(Machine.OF_PARTITIONS) < 1_000, "told once"


def test_a_machine_is_said_to_be_there_for_as_long_as_it_wants(bench, steady):
    peer, other = steady.adopt(1), steady.adopt(2)
    for wanted, machine, is_said in [
        ([1], Machine.OF_PARTITIONS, True),
        ([3], Machine.OF_METADATA, True),
        ([2], Machine.OF_PARTITIONS, False),
        ([0], Machine.OF_METADATA, False),
    ]:
        assert steady.steady_beat(peer.link, machine, is_said=is_said)
        beats_min = len(peer.beats) + (3 if wanted != [0] else 1)
        bench.until(lambda least=beats_min: peer.heard() == [] and len(peer.beats) >= least)
        assert peer.beats[-1:] == wanted
    sent = steady.steady_statistics()["beats_sent"]
    assert sent == len(peer.beats)
    assert other.heard() == other.beats == []
    assert steady.steady_beat(other.link, Machine.OF_METADATA, is_said=True)
    bench.until(lambda: other.heard() == [] and len(other.beats) >= 5)
    assert peer.heard() == []
    assert len(peer.beats) == sent, "no more of them while another one had five"
    peer.socket.close()
    bench.until(lambda: not steady.steady_beat(peer.link, Machine.OF_PARTITIONS, is_said=True))


def test_who_says_that_it_is_there_is_heard_and_so_is_all_that_it_says_behind_it(bench, steady):
    peer = steady.adopt(1)

    def said(data):
        before = steady.steady_statistics()["frames_taken"]
        peer.say(data)
        bench.until(lambda: steady.steady_statistics()["frames_taken"] > before)
        return steady.steady_heard(peer.link, Machine.OF_METADATA)

    ack = frame(ACK, entry(0))
    assert said(ack) is None
    first = said(beat(Machine.OF_METADATA))
    assert first[0] == first[1]
    assert steady.steady_heard(peer.link, Machine.OF_PARTITIONS) is None
    bench.until(lambda: (now := said(beat(Machine.OF_METADATA)))[0] < now[1])
    before = said(ack)
    bench.until(lambda: said(ack)[1] > before[1])
    ended = said(beat(Machine.OF_PARTITIONS))
    bench.until(lambda: said(ack) == ended and steady.steady_heard(peer.link, Machine.OF_PARTITIONS)[1] > ended[1])
    assert steady.steady_statistics()["unsteady"]
    list(steady.steady_messages())


def test_after_a_gap_another_stretch_begins(bench, steady):
    peer = steady.adopt(1)
    peer.say(beat(Machine.OF_PARTITIONS))
    bench.until(lambda: steady.steady_heard(peer.link, Machine.OF_PARTITIONS))
    before = steady.steady_heard(peer.link, Machine.OF_PARTITIONS)
    bench.world.let_pass(GAP_MS / 1000)
    peer.say(beat(Machine.OF_PARTITIONS))
    bench.until(lambda: steady.steady_heard(peer.link, Machine.OF_PARTITIONS) != before)
    since_ms, last_ms = steady.steady_heard(peer.link, Machine.OF_PARTITIONS)
    assert since_ms == last_ms >= before[1] + GAP_MS


def test_what_was_heard_is_known_of_a_link_that_is_gone_until_its_number_is_another_ones(bench, steady):
    peer = steady.adopt(1)
    peer.say(beat(Machine.OF_PARTITIONS))
    bench.until(lambda: steady.steady_heard(peer.link, Machine.OF_PARTITIONS))
    heard = steady.steady_heard(peer.link, Machine.OF_PARTITIONS)
    peer.socket.close()
    bench.until(lambda: not steady.steady_statistics()["links_up"])
    assert steady.steady_heard(peer.link, Machine.OF_PARTITIONS) == heard
    bench.until(lambda: steady.adopt(2).link % 4096 == peer.link % 4096)
    assert steady.steady_heard(peer.link, Machine.OF_PARTITIONS) is None


@pytest.mark.parametrize(
    "data", [frame(BEAT, MACHINES.pack(1, 0), MACHINES.pack(1, 0)), frame(BEAT, b"four", count=1), frame(BEAT, count=0),
             frame(BEAT, MACHINES.pack(1, 0) + b"more"), frame(4, MACHINES.pack(1, 0))],
    ids=["two", "short", "none", "more behind", "an unknown kind"],
)  # fmt: skip
def test_a_heartbeat_that_is_none_ends_the_link(bench, steady, data):
    peer = steady.adopt(1)
    peer.say(data)
    bench.until(lambda: not steady.steady_statistics()["links_up"])


def mutated(chance, data):
    made = bytearray(data)
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(4, len(made))
        made[place] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.3:
        made = made[: chance.randrange(5, len(made) + 1)]
        made[:4] = (len(made) - 4).to_bytes(4)
    return bytes(made)


@pytest.mark.parametrize("is_leader", [False, True])
def test_any_frame_is_taken_or_ends_the_link(bench, steady, replica, is_leader):
    chance = random.Random(1)
    (bench.plane.arm if is_leader else bench.plane.follow)(replica, TERM)
    for _ in range(200):
        peer = steady.adopt(1)
        end_offset = bench.plane.state(replica).log_end_offset
        if steady.steady_state(replica) is None:
            if is_leader:
                rows = [SteadyPeerState(peer.link, INCARNATION, 0, 0, 0, votes=True)]
                assert steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, rows, votes=True)
            else:
                assert steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), peer.link, NONE)
        valid = [
            frame(APPEND, entry(end_offset, end_offset, sent(end_offset, 2)), entry(end_offset + 2, NONE, b"")),
            frame(ACK, entry(end_offset, NONE), entry(0, 0)),
            frame(APPEND, entry(end_offset, NONE, sent(end_offset, 1, value=bytes(6_000)))),
            frame(BEAT, MACHINES.pack(3, 0)),
        ]
        before = steady.steady_statistics()["frames_taken"]
        peer.say(mutated(chance, chance.choice(valid)))
        bench.until(lambda before=before: steady.steady_statistics()["frames_taken"] > before)
        for message in steady.steady_messages():
            assert len(message.topic_id) == 16
        steady.steady_disarm(replica)
        peer.socket.close()
        steady.steady_close(peer.link)
        bench.until(lambda: not steady.steady_statistics()["links_up"])
        state = bench.plane.state(replica)
        assert state.high_watermark <= state.durable_offset <= state.log_end_offset
    bench.settle()
