"""A group whose steady state somebody else carries: when it may be, and what the machine makes of it afterwards."""

from __future__ import annotations

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.raft.carrying import HOLD_MS_MAX, HOLD_MS_MIN, Carried, CarriedPeer
from tpc_broker.raft.items import Position
from tpc_broker.raft.journal import AppendEntry, TakenEntry
from tpc_broker.raft.messages import Ack, AppendEntries, ReadRound
from tpc_broker.raft.output import Committed, ReadItems, ReadReady, ShipSegments
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.steady import CATCH_UP, INSTALL, PROBE, REPLICATE, PeerState


def quiet(count: int = 3) -> tuple[Cluster, Node]:
    """A leader with a record that everybody has, and whose peers know that it is committed."""
    cluster = Cluster(count)
    leader = cluster.elect()
    cluster.propose(leader)
    cluster.run(1_000)
    return cluster, leader


def carried(leader: Node, end: int, durable: int, commit: int, peers: list[tuple[int, int]], sequence: int = 0) -> None:
    """Somebody carries it, and will say this when asked."""
    rows = tuple(CarriedPeer(match, sent, commit, is_sent_to=True) for match, sent in peers)
    found = Carried(end, durable, commit, commit, 100 * (end - commit), sequence, rows)
    assert leader.group().may_be_carried()
    leader.group().carry()
    leader.core.carrier = leader.core.observer = lambda _group: found


def test_a_carried_group_has_no_time_and_says_nothing() -> None:
    cluster, leader = quiet()
    carried(leader, 1, 1, 1, [(1, 1), (1, 1)])
    assert leader.group().deadline_ms is None
    sent = len(cluster.messages(AppendEntries))
    cluster.run(2_000)
    assert len(cluster.messages(AppendEntries)) == sent
    assert leader.group().carried
    assert leader.group().is_leader


def test_what_became_of_it_is_the_machines_when_it_is_taken_back() -> None:
    cluster, leader = quiet()
    term = leader.group().term
    carried(leader, 9, 7, 6, [(6, 9), (4, 9)], sequence=5)
    leader.core.take_back(GROUP, cluster.now_ms)
    machine = leader.group()
    assert machine.log.last == Position(term, 9)
    assert machine.durable == Position(term, 7)
    assert machine.commit == Position(term, 6)
    assert [(peer.state, peer.match, peer.next) for peer in machine.rows] == [(REPLICATE, 6, 9), (REPLICATE, 4, 9)]
    assert machine.uncommitted_bytes == 300
    ready = leader.core.ready(cluster.now_ms)
    assert [entry for _, entry in ready.entries] == [TakenEntry(GROUP, 9, 5)]
    assert Committed(GROUP, Position(term, 6)) in ready.events
    leader.core.persisted(ready.entries[-1][0], cluster.now_ms)
    assert machine.durable == Position(term, 9)


def test_what_was_sent_and_not_answered_is_asked_after() -> None:
    cluster, leader = quiet()
    machine = leader.group()
    carried(leader, 1, 1, 1, [(1, 1), (1, 1)])
    leader.core.take_back(GROUP, cluster.now_ms)
    machine.rows[0].inflight = [(1, 0)]
    sent = len(cluster.messages(AppendEntries))
    cluster.run(1_000)
    assert len(cluster.messages(AppendEntries)) > sent
    assert not machine.rows[0].inflight


def test_it_is_taken_back_for_what_is_not_steady() -> None:
    cluster, leader = quiet()
    carried(leader, 1, 1, 1, [(1, 1), (1, 1)])
    follower = next(node for node in cluster.nodes if node is not leader)
    assert follower.group().may_be_carried()
    follower.group().carry()
    follower.core.carrier = lambda _group: Carried(1, 1, 1, 1, 0, 0, ())
    cluster.isolate(leader.address.node)
    cluster.run_until(lambda: cluster.leader() not in (None, leader))
    assert not follower.group().carried
    cluster.run_until(lambda: not leader.group().is_leader)
    cluster.heal()
    cluster.propose(cluster.elect())
    cluster.run_until(lambda: all(node.group().commit.offset == 2 for node in cluster.nodes))


def test_an_acknowledgement_is_left_to_who_carries_it_or_ends_it() -> None:
    cluster, leader = quiet()
    machine = leader.group()
    peer = machine.rows[0].voter
    message = Ack(GROUP, peer, machine.me, machine.term, Position(machine.term, 1), machine.commit)
    heard: list[Ack] = []
    carried(leader, 1, 1, 1, [(1, 1), (1, 1)])
    source = machine.address_of(peer)
    leader.core.takes_ack = lambda _machine, ack: not heard.append(ack)  # type: ignore[func-returns-value]
    cluster.nodes[source.node].core.send(leader.address, message)
    cluster.settle()
    assert heard == [message]
    assert machine.carried
    leader.core.takes_ack = lambda _machine, _ack: False
    cluster.nodes[source.node].core.send(leader.address, message)
    cluster.settle()
    assert not machine.carried


def test_a_read_leaves_it_carried() -> None:
    cluster, leader = quiet()
    carried(leader, 5, 5, 4, [(4, 5), (5, 5)])
    assert leader.core.read_index(GROUP, "token", cluster.now_ms) is None
    cluster.settle()
    assert leader.told(ReadReady) == [ReadReady(GROUP, ("token",), 4)]
    assert leader.group().carried


def test_a_read_wakes_it_only_to_ask_again() -> None:
    cluster, leader = quiet()
    machine, token = leader.group(), "answered"
    carried(leader, 5, 5, 4, [(4, 5), (5, 5)])
    leader.core.read_index(GROUP, token, cluster.now_ms)
    cluster.settle()
    assert leader.told(ReadReady) == [ReadReady(GROUP, (token,), 4)]
    assert machine.deadline_ms is None
    cluster.run(2_000)
    assert machine.carried
    cluster.dropped = lambda _frame, message: isinstance(message, ReadRound)
    leader.core.read_index(GROUP, "first", cluster.now_ms)
    cluster.settle()
    cluster.dropped = lambda _frame, _message: False
    leader.core.read_index(GROUP, "second", cluster.now_ms)
    cluster.settle()
    assert machine.carried
    assert machine.deadline_ms is None, "the second round has answered the first, too"
    cluster.dropped = lambda _frame, message: isinstance(message, ReadRound)
    leader.core.read_index(GROUP, "third", cluster.now_ms)
    cluster.run_until(lambda: not machine.carried)
    assert machine.reads
    cluster.dropped = lambda _frame, _message: False
    cluster.run_until(lambda: not machine.reads)


def test_who_is_not_quiet_is_not_carried() -> None:
    cluster, leader = quiet()
    machine, now_ms = leader.group(), cluster.now_ms
    other = machine.rows[0].voter
    machine.rows[0].inflight, machine.rows[0].waits_ms = [(2, 10)], now_ms
    assert not machine.may_be_carried()
    assert machine.would_be_quiet(now_ms)
    machine.rows[0].waits_ms = now_ms - HOLD_MS_MAX
    assert not machine.would_be_quiet(now_ms), "nobody waits for one who has answered nothing for long"
    machine.rows[0].waits_ms = now_ms
    machine.rows[0].inflight = []
    assert machine.may_be_carried()
    leader.core.transfer_leadership(GROUP, other, now_ms)
    assert not machine.may_be_carried()
    machine.transfer = None
    leader.core.read_index(GROUP, "token", now_ms)
    assert not machine.may_be_carried()
    cluster.settle()
    assert machine.may_be_carried()
    assert not any(isinstance(entry, AppendEntry) for _, entry in leader.core.ready(now_ms).entries)


def test_who_has_no_leader_and_hears_no_quorum_is_not_carried_and_stands_when_it_hears_one() -> None:
    """Its own leader's link would be all that wakes it: of the two others, the other one comes back."""
    cluster, leader = quiet()
    follower, back = (node for node in cluster.nodes if node is not leader)
    assert follower.group().may_be_carried()
    cluster.isolate(back.address.node)
    cluster.propose(leader)
    cluster.run(1_000)
    assert follower.group().may_be_carried()
    cluster.isolate(leader.address.node)
    cluster.run(5_000)
    assert follower.group().deadline_ms is None, "it could not be elected"
    assert not follower.group().may_be_carried()
    cluster.heal()
    cluster.isolate(leader.address.node)
    cluster.run_until(lambda: follower.group().is_leader)


def test_a_leader_that_has_more_to_do_than_to_wait_for_answers_would_not_be_quiet_soon() -> None:
    """It would hold back for nothing what its clients wait for: it may be carried only when all that is over."""
    cluster = Cluster(4, groups=0)
    cluster.create(GROUP, [0, 1, 2], learners=[3])
    leader, learner = cluster.hand_to(0), cluster.nodes[3].group().me
    machine = leader.group()
    cluster.run(1_000)
    assert machine.would_be_quiet(cluster.now_ms)
    leader.core.set_learners(GROUP, [learner], cluster.now_ms)
    cluster.run(1_000)
    assert machine.would_be_quiet(cluster.now_ms)
    machine.peers[learner].state = PROBE
    assert not machine.would_be_quiet(cluster.now_ms), "what it has is not found out yet"
    machine.peers[learner].state = REPLICATE
    leader.core.transfer_leadership(GROUP, machine.rows[0].voter, cluster.now_ms)
    assert not machine.would_be_quiet(cluster.now_ms), "it hands over"


def test_it_is_carried_while_segments_travel_to_a_replica() -> None:
    """That takes as long as it takes, and clients wait for nothing of it."""
    cluster = Cluster(4, groups=0)
    cluster.create(GROUP, [0, 1, 2], learners=[3])
    leader, learner = cluster.hand_to(0), cluster.nodes[3].group().me
    machine = leader.group()
    cluster.propose(leader, 5)
    cluster.run(1_000)
    leader.core.release(GROUP, machine.commit)
    leader.core.truncate_start(GROUP, 2)
    leader.core.set_learners(GROUP, [learner], cluster.now_ms)
    cluster.run(1_000)
    assert machine.peers[learner].state is INSTALL
    rows = tuple(CarriedPeer(5, 5, 5, peer.voter != learner) for peer in machine.rows)
    assert machine.may_be_carried()
    machine.carry()
    leader.core.carrier = leader.core.observer = lambda _group: Carried(5, 5, 5, 5, 0, 0, rows)
    (asked,) = leader.told(ShipSegments)
    assert asked.target == learner
    leader.core.shipped(GROUP, learner, asked.position, cluster.now_ms)
    assert not machine.carried
    assert machine.peers[learner].install == asked.position
    assert not machine.may_be_carried(), "the machine asks after what it has sent"
    cluster.run(1_000)
    assert machine.peers[learner].match == machine.log.end_offset == 5


def test_a_leader_that_holds_sends_nothing_new_for_a_moment() -> None:
    """Twice as long each time that it comes to nothing, and not again at once."""
    cluster, leader = quiet()
    machine, offset = leader.group(), 1
    for hold_ms in (HOLD_MS_MIN, 2 * HOLD_MS_MIN, 4 * HOLD_MS_MIN):
        machine.hold(cluster.now_ms)
        cluster.propose(leader)
        cluster.run(hold_ms - 5)
        assert machine.commit.offset == offset
        cluster.run(10)
        offset += 1
        assert machine.commit.offset == offset
        machine.hold(cluster.now_ms)
        assert machine.holds_until_ms <= cluster.now_ms, "not again at once"
        cluster.run(4 * hold_ms)
    carried(leader, 4, 4, 4, [(4, 4), (4, 4)])
    leader.core.take_back(GROUP, cluster.now_ms)
    machine.hold(cluster.now_ms)
    assert machine.holds_until_ms == cluster.now_ms + HOLD_MS_MIN


def lacking(cluster: Cluster, leader: Node, offset: int) -> Peer:
    """A follower that has no more than that, of a log that is in files only."""
    cluster.propose(leader, 6)
    cluster.run(1_000)
    machine = leader.group()
    leader.core.release(GROUP, machine.commit)
    peer = machine.rows[0]
    peer.match = peer.next = peer.known = offset
    return peer


def test_it_is_carried_whatever_a_peer_lacks_and_that_one_is_not_in_sync() -> None:
    cluster, leader = quiet()
    machine = leader.group()
    peer = lacking(cluster, leader, 2)
    carried(leader, 7, 7, 7, [(2, 2), (7, 7)])
    carries = machine.carries
    assert machine.all_in_sync(), "as far as anybody has said"
    leader.core.look(GROUP)
    assert machine.lags(0)
    assert not machine.lags(0), "it was known"
    assert machine.carries == carries + 1
    assert peer.voter not in machine.in_touch()
    assert not machine.all_in_sync()
    rows = (CarriedPeer(7, 7, 7, is_sent_to=True),) * 2
    leader.core.observer = lambda _group: Carried(9, 9, 9, 9, 0, 0, rows)
    assert leader.core.look(GROUP).all_in_sync(), "it has what there was then"
    assert peer.voter in machine.in_touch()


def test_who_is_silent_is_in_sync_when_it_has_what_there_was_when_it_was_asked_last() -> None:
    cluster, leader = quiet()
    machine = leader.group()
    lacking(cluster, leader, 2)
    carried(leader, 7, 7, 7, [(2, 2), (7, 7)])
    leader.core.look(GROUP)
    assert machine.lags(0, is_silent=True)

    def is_in_sync_at(match: int) -> bool:
        rows = (CarriedPeer(match, match, match, is_sent_to=True), CarriedPeer(9, 9, 9, is_sent_to=True))
        leader.core.observer = lambda _group: Carried(9, 9, 9, 9, 0, 0, rows)
        return leader.core.look(GROUP).rows[0].is_in_sync

    assert not is_in_sync_at(2)
    assert not machine.lags(0, is_silent=True), "it was known"
    assert not is_in_sync_at(8)
    assert is_in_sync_at(9)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_nothing_is_read_for_a_peer_of_a_group_that_somebody_would_carry(*, is_awaited: bool) -> None:
    cluster, leader = quiet()
    machine = leader.group()
    peer = lacking(cluster, leader, 2)
    machine.is_awaited = is_awaited
    machine.flush_leader(cluster.now_ms)
    assert peer.state is (REPLICATE if is_awaited else CATCH_UP)
    assert machine.may_be_carried() == is_awaited
    cluster.run(HOLD_MS_MAX)
    assert leader.told(ReadItems), "nobody has come to carry it"


@pytest.mark.parametrize("state", [PROBE, CATCH_UP, INSTALL])
def test_of_two_peers_that_are_read_for_one_waits_for_the_other(state: PeerState) -> None:
    """Under load both never follow in the same moment; one that gets segments takes its time."""
    cluster, leader = quiet()
    machine = leader.group()
    peer = lacking(cluster, leader, 2)
    machine.is_awaited = True
    machine.rows[1].state, machine.rows[1].awaiting = state, True
    machine.flush_leader(cluster.now_ms)
    assert peer.state is (CATCH_UP if state is INSTALL else REPLICATE)


def test_a_peer_that_lacks_what_was_deleted_is_not_sent_items() -> None:
    cluster, leader = quiet()
    machine = leader.group()
    peer = lacking(cluster, leader, 2)
    leader.core.truncate_start(GROUP, 4)
    peer.state, peer.match, peer.next = REPLICATE, 2, 2
    machine.flush_leader(cluster.now_ms)
    assert peer.state is INSTALL
