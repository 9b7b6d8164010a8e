"""Rules of replication that C keeps in the steady state (docs/raft-rules.md), each by what would break it."""

import pytest

from tests.support.plane_bench import records_of
from tests.support.steady_peers import ACK, APPEND, INCARNATION, OWN, TERM, entry, frame, sent
from tpc_broker.engine.steady_plane import SteadyPeerState
from tpc_broker.raft.steady import NONE

UNBOUNDED = 1 << 40
ALONE = SteadyPeerState(0, INCARNATION, NONE, 0, 0, votes=True)
"""A voter that nothing is known of."""


def voter(peer, *, votes=True, match=0):
    return SteadyPeerState(peer.link, INCARNATION, match, match, 0, votes=votes)


class Leader:
    """A replica that C leads, behind records of an earlier term that are durable and not committed."""

    def __init__(self, bench, steady, handle, earlier=0):
        self.bench, self.steady, self.handle, self.start_offset = bench, steady, handle, earlier
        bench.plane.follow(handle, TERM)
        for offset in range(earlier):
            bench.plane.append_replica(handle, TERM, sent(offset, epoch=TERM - 1))
        bench.settle()
        bench.plane.arm(handle, TERM)

    def lead(self, *rows, votes=True):
        assert self.steady.steady_lead(self.handle, OWN, TERM, self.start_offset, UNBOUNDED, rows, votes=votes)

    def append(self):
        self.bench.plane.append(self.handle, records_of(1))
        self.bench.settle()

    def hear(self, peer, upto):
        """Until it was sent all below."""
        heard = []
        self.bench.until(lambda: heard.extend(peer.heard()) or sum(bool(one[3]) for one in heard) == upto)
        return heard

    def say(self, peer, *what):
        """An acknowledgement, and whether C has taken it, given it away, or passed it over when this returns."""
        before = self.steady.steady_statistics()["frames_taken"]
        peer.say(frame(ACK, *what))
        self.bench.until(lambda: self.steady.steady_statistics()["frames_taken"] == before + 1)

    @property
    def committed(self):
        return self.bench.plane.state(self.handle).high_watermark


@pytest.fixture
def leader(bench, steady, replica):
    return Leader(bench, steady, replica)


# -- what is committed: raft-rules 3.4


def test_a_learner_counts_for_no_majority(steady, leader):
    learner, follower = steady.adopt(1), steady.adopt(2)
    leader.lead(voter(learner, votes=False), voter(follower), ALONE)
    leader.append()
    leader.hear(learner, 1)
    leader.hear(follower, 1)
    leader.say(learner, entry(1, 0))
    assert steady.steady_statistics()["acks_taken"] == 1
    assert leader.committed == 0
    leader.say(follower, entry(1, 0))
    assert leader.committed == 1


def test_a_leader_that_is_no_voter_needs_a_majority_of_the_others(steady, leader):
    first, second = steady.adopt(1), steady.adopt(2)
    leader.lead(voter(first), voter(second), votes=False)
    leader.append()
    for peer in (first, second):
        leader.hear(peer, 1)
        assert leader.committed == 0
        leader.say(peer, entry(1, 0))
    assert leader.committed == 1


@pytest.mark.parametrize("others", [1, 2, 3, 4])
def test_a_majority_is_more_than_half(steady, leader, others):
    peers = [steady.adopt(node + 1) for node in range(others)]
    leader.lead(*map(voter, peers))
    leader.append()
    for peer in peers:
        leader.hear(peer, 1)
    needed = (others + 1) // 2
    for count, peer in enumerate(peers[:needed]):
        assert leader.committed == 0, count
        leader.say(peer, entry(1, 0))
    assert leader.committed == 1


def test_what_the_own_disk_has_not_is_not_committed(stalled, steady_of):
    """Whatever all others have: readers are shown what is durable here."""
    steady = steady_of(stalled)
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    peers = [steady.adopt(1), steady.adopt(2)]
    stalled.plane.arm(handle, TERM)
    assert steady.steady_lead(handle, OWN, TERM, 0, UNBOUNDED, [voter(peer) for peer in peers], votes=True)
    stalled.plane.append(handle, records_of(1))
    for peer in peers:
        stalled.until(peer.heard)
        peer.say(frame(ACK, entry(1, 0)))
    stalled.until(lambda: steady.steady_statistics()["acks_taken"] == 2)
    assert stalled.plane.state(handle).high_watermark == 0
    stalled.let_go()
    assert stalled.plane.state(handle).high_watermark == 1


def test_a_commit_of_an_earlier_term_is_told_as_none(bench, steady, replica):
    """Its offset is below this term's marker: as a position of this term there is no such one."""
    leader = Leader(bench, steady, replica, earlier=2)
    bench.plane.commit(replica, TERM, 1)
    peer = steady.adopt(1)
    leader.lead(voter(peer, match=2), ALONE, ALONE)
    leader.append()
    assert [one[1:3] for one in leader.hear(peer, 1)] == [(2, NONE)]


def test_a_leader_that_knows_of_no_majority_any_more_takes_nothing_back(bench, steady, leader):
    """What it has committed stays so when C is given the group, with less than the machine had heard."""
    leader.append()
    bench.plane.take_appended()
    bench.plane.commit(leader.handle, TERM, 1)
    peer = steady.adopt(1)
    leader.lead(voter(peer), ALONE)
    leader.hear(peer, 1)
    leader.say(peer, entry(0, 0))
    assert leader.committed == 1


def test_a_follower_takes_nothing_back_that_its_leader_does_not_know_of(bench, steady, replica):
    follower = Follower(bench, steady, replica)
    follower.say(entry(0, NONE, sent(0)))
    bench.until(lambda: bench.plane.state(replica).durable_offset == 1)
    bench.plane.commit(replica, TERM, 1)
    follower.say(entry(1, 0, b""))
    assert bench.plane.state(replica).high_watermark == 1


# -- acknowledgements: raft-rules 3.3


def test_an_acknowledgement_of_an_earlier_term_is_passed_over(steady, leader):
    peer = steady.adopt(1)
    leader.lead(voter(peer))
    leader.append()
    leader.hear(peer, 1)
    leader.say(peer, entry(1, 0, term=TERM - 1))
    assert (leader.committed, steady.steady_messages()) == (0, [])


def test_an_acknowledgement_of_a_later_term_is_the_machine_s(steady, leader):
    """It leads no more: whoever says so follows somebody else."""
    peer = steady.adopt(1)
    leader.lead(voter(peer))
    leader.append()
    leader.hear(peer, 1)
    leader.say(peer, entry(1, 0, term=TERM + 1))
    assert leader.committed == 0
    assert [one.term for one in steady.steady_messages()] == [TERM + 1]


def test_an_acknowledgement_counts_for_the_node_that_says_it(steady, leader):
    """Incarnations are of each node: two may have the same."""
    follower, learner = steady.adopt(1), steady.adopt(2)
    leader.lead(voter(follower), voter(learner, votes=False))
    leader.append()
    leader.hear(learner, 1)
    leader.say(learner, entry(1, 0))
    assert leader.committed == 0
    assert [row.match for row in steady.steady_state(leader.handle).peers] == [0, 1]


def test_what_a_follower_has_never_goes_back(steady, leader):
    peer = steady.adopt(1)
    leader.lead(voter(peer), ALONE)
    for _ in range(2):
        leader.append()
    leader.hear(peer, 2)
    for offset in (2, 1):
        leader.say(peer, entry(offset, 0))
        assert steady.steady_state(leader.handle).peers[0].match == 2
    assert leader.committed == 2


@pytest.mark.parametrize("by", ["link", "message"])
def test_an_acknowledgement_of_what_was_never_sent_is_the_machine_s(steady, leader, by):
    peer = steady.adopt(1)
    leader.lead(voter(peer))
    leader.append()
    leader.hear(peer, 1)
    if by == "link":
        leader.say(peer, entry(2, 0))
        assert [one.offset for one in steady.steady_messages()] == [2]
    else:
        assert not steady.steady_ack(leader.handle, peer.link, INCARNATION, TERM, 2, 0)
    assert leader.committed == 0
    assert steady.steady_state(leader.handle).peers[0].match == 0


# -- the end of a leadership: raft-rules 2


@pytest.mark.parametrize("end", ["disarmed", "armed in the next term", "it follows"])
def test_a_leadership_that_is_over_commits_nothing(bench, steady, leader, end):
    peer = steady.adopt(1)
    leader.lead(voter(peer))
    leader.append()
    leader.hear(peer, 1)
    match end:
        case "disarmed":
            bench.plane.disarm(leader.handle)
        case "armed in the next term":
            bench.plane.arm(leader.handle, TERM + 1)
        case "it follows":
            bench.plane.follow(leader.handle, TERM + 1)
    assert steady.steady_state(leader.handle).is_stopped
    leader.say(peer, entry(1, 0))
    assert leader.committed == 0
    assert [one.offset for one in steady.steady_messages()] == [1]


def test_a_leadership_that_is_over_commits_nothing_that_becomes_durable(stalled, steady_of):
    steady = steady_of(stalled)
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    stalled.plane.arm(handle, TERM)
    assert steady.steady_lead(handle, OWN, TERM, 0, UNBOUNDED, [], votes=True)
    stalled.plane.append(handle, records_of(1))
    stalled.plane.disarm(handle)
    stalled.let_go()
    state = stalled.plane.state(handle)
    assert (state.durable_offset, state.high_watermark) == (1, 0)


def test_a_follower_that_was_disarmed_acknowledges_nothing_that_becomes_durable(stalled, steady_of):
    """It may have voted for another one by now."""
    steady = steady_of(stalled)
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    stalled.plane.follow(handle, TERM)
    peer = steady.adopt(1)
    assert steady.steady_follow(handle, OWN, TERM, 0, (1, INCARNATION), peer.link, NONE)
    peer.say(frame(APPEND, entry(0, 1, sent(0))))
    stalled.until(lambda: stalled.plane.state(handle).log_end_offset == 1)
    stalled.plane.disarm(handle)
    peer.heard()
    stalled.let_go()
    for _ in range(3):
        stalled.turn(1)
    state = stalled.plane.state(handle)
    assert (state.durable_offset, state.high_watermark, peer.heard()) == (1, 0, [])


# -- followers: raft-rules 3.2


class Follower:
    def __init__(self, bench, steady, handle, earlier=0):
        self.bench, self.steady, self.handle = bench, steady, handle
        bench.plane.follow(handle, TERM)
        for offset in range(earlier):
            bench.plane.append_replica(handle, TERM, sent(offset, epoch=TERM - 1))
        bench.settle()
        self.leader = steady.adopt(1)
        assert steady.steady_follow(handle, OWN, TERM, earlier, (1, INCARNATION), self.leader.link, NONE)
        heard = []  # what is durable is acknowledged when it is armed
        bench.until(lambda: heard.extend(self.leader.heard()) or heard)

    def say(self, *what):
        before = self.steady.steady_statistics()["frames_taken"]
        self.leader.say(frame(APPEND, *what))
        self.bench.until(lambda: self.steady.steady_statistics()["frames_taken"] == before + 1)

    def is_given_up(self, end_offset):
        """What it was told last is the machine's, and whatever comes behind; its log is as it was."""
        state = self.steady.steady_state(self.handle)
        return state.is_stopped and state.end_offset == end_offset and len(self.steady.steady_messages()) == 1


@pytest.fixture
def follower(bench, steady, replica):
    return Follower(bench, steady, replica, earlier=2)


@pytest.mark.parametrize(
    ("offset", "batches"),
    [(2, sent(2, epoch=TERM - 1)), (2, sent(2) + sent(3, epoch=TERM - 1)), (3, sent(3)), (2, sent(3)), (1, sent(1)),
     (2, sent(2) + sent(4))],
    ids=["an older epoch", "an older epoch behind", "a gap", "a gap in the records", "an overlap", "a gap within"],
)  # fmt: skip
def test_what_does_not_follow_is_the_machine_s(follower, offset, batches):
    follower.say(entry(offset, NONE, batches))
    assert follower.is_given_up(2)


@pytest.mark.parametrize("term", [TERM - 1, TERM + 1])
def test_what_is_of_another_term_is_the_machine_s(follower, term):
    """A later one is journalled before anything of it is appended (1)."""
    follower.say(entry(2, NONE, sent(2), term=term))
    assert follower.is_given_up(2)


@pytest.mark.parametrize("offset", [1, 3], ids=["in front of the marker", "behind the end"])
def test_a_commit_elsewhere_than_in_the_log_of_the_term_is_the_machine_s(bench, follower, offset):
    follower.say(entry(offset, 2, b""))
    assert follower.is_given_up(2)
    assert bench.plane.state(follower.handle).high_watermark == 0


def test_a_follower_remembers_the_commit_until_it_has_what_is_committed(bench, follower):
    for offset, commit in ((2, 4), (3, 3)):
        follower.say(entry(offset, commit, sent(offset)))
    bench.until(lambda: bench.plane.state(follower.handle).durable_offset == 4)
    assert bench.plane.state(follower.handle).high_watermark == 4


def test_a_follower_acknowledges_its_disk_and_not_its_memory(stalled, steady_of):
    steady = steady_of(stalled)
    handle = stalled.lead("t", is_led=False)
    stalled.plane.set_replicated(handle)
    stalled.plane.follow(handle, TERM)
    leader = steady.adopt(1)
    assert steady.steady_follow(handle, OWN, TERM, 0, (1, INCARNATION), leader.link, NONE)
    leader.say(frame(APPEND, entry(0, 1, sent(0)), entry(1, 1, b"")))
    heard = []
    stalled.until(lambda: stalled.plane.state(handle).log_end_offset == 1)
    stalled.until(lambda: heard.extend(leader.heard()) or heard)
    assert {one[1:3] for one in heard} == {(0, 0)}
    stalled.let_go()
    stalled.until(lambda: heard.extend(leader.heard()) or heard[-1][1:3] == (1, 1))


# -- when a group is given to C


def test_a_group_is_given_to_c_in_its_role_and_term_when_its_marker_is_durable(bench, steady, replica):
    bench.plane.follow(replica, TERM)
    bench.plane.append_replica(replica, TERM, sent(0))
    bench.settle()

    def follow(term=TERM, start_offset=1):
        return steady.steady_follow(replica, OWN, term, start_offset, (1, INCARNATION), 0, NONE)

    assert not steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, [], votes=True), "it follows"
    assert not follow(term=TERM - 1)
    assert not follow(term=TERM + 1)
    assert not follow(start_offset=2)
    assert follow()
    assert not follow(), "it has it"
    bench.plane.arm(replica, TERM + 1)
    assert steady.steady_disarm(replica).is_stopped
    assert not follow(), "it leads"


def test_a_group_is_not_given_to_c_while_what_was_said_to_it_waits(bench, steady, replica):
    """The machine judges that first."""
    bench.plane.follow(replica, TERM)
    leader = steady.adopt(1)
    leader.say(frame(APPEND, entry(0, NONE, sent(0))))
    bench.until(lambda: steady.steady_statistics()["unsteady"])

    def follow():
        return steady.steady_follow(replica, OWN, TERM, 0, (1, INCARNATION), leader.link, NONE)

    assert not follow()
    assert len(steady.steady_messages()) == 1
    assert follow()


def test_a_group_is_not_given_to_c_while_what_it_appended_waits(bench, steady, replica):
    bench.plane.arm(replica, TERM)
    bench.plane.append(replica, records_of(1))
    bench.settle()
    assert not steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, [], votes=True)
    assert len(bench.plane.take_appended()) == 1
    assert steady.steady_lead(replica, OWN, TERM, 0, UNBOUNDED, [], votes=True)
