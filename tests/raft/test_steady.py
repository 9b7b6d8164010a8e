"""The steady machine by itself: its table, its document, and random schedules that keep its invariants."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.raft.links import Link, jitter
from tpc_broker.raft.messages import AppendEntries
from tpc_broker.raft.settings import Settings
from tpc_broker.raft.steady import (
    NONE,
    OWN_BIT,
    ROWS,
    Input,
    Outcome,
    PeerState,
    Steady,
    SteadyPeer,
    SteadyRole,
    table,
)


def leader(peers: int = 2, old: int = OWN_BIT | 0b11, new: int | None = None, start: int = 10) -> Steady:
    rows = [SteadyPeer() for _ in range(peers)]
    for row in rows:
        row.state, row.next = PeerState.REPLICATE, start
    return Steady(SteadyRole.LEADER, 5, start, start, NONE, NONE, rows, old, old if new is None else new, 4, 100)


def follower(durable: int = NONE) -> Steady:
    return Steady(SteadyRole.FOLLOWER, 5, 10, 10, durable, NONE, [], 0, 0, 4, 100)


def ack(steady: Steady, peer: int, offset: int, term: int = 5, epoch: int = 5) -> Outcome:
    return steady.step(Input.ACK, peer, term, epoch, offset, NONE)


def test_a_match_is_none_at_arming_and_the_marker_itself_is_the_first_to_be_committed() -> None:
    steady = leader(start=0)
    assert [peer.match for peer in steady.peers] == [NONE, NONE]
    assert steady.step(Input.DURABLE, 0) is Outcome.NOTHING, "with a match of 0 the marker would be committed by itself"
    assert steady.commit_offset == NONE
    assert ack(steady, 0, 0) is Outcome.COMMITTED
    assert steady.commit_offset == 0


def test_the_commit_needs_a_quorum_and_the_own_disk() -> None:
    steady = leader()
    steady.step(Input.APPEND, 14)
    for peer in (0, 1):
        steady.step(Input.SENT, peer, 14, 40)
        assert ack(steady, peer, 14) is Outcome.NOTHING, "not durable at home"
    assert steady.step(Input.DURABLE, 12) is Outcome.COMMITTED
    assert steady.commit_offset == 12
    assert steady.step(Input.DURABLE, 12) is Outcome.NOTHING


def test_a_joint_quorum_is_the_lesser_of_two_majorities() -> None:
    steady = leader(4, OWN_BIT | 0b0011, 0b1110)
    steady.step(Input.APPEND, 20)
    steady.step(Input.DURABLE, 20)
    for peer in range(4):
        steady.step(Input.SENT, peer, 20, 1)
    ack(steady, 0, 20)
    assert steady.commit_offset == NONE, "nobody of the new"
    ack(steady, 1, 15)
    ack(steady, 2, 13)
    assert steady.commit_offset == 13


def test_a_leader_outside_of_the_set_does_not_count_itself() -> None:
    steady = leader(3, 0b111)
    steady.step(Input.APPEND, 11)
    steady.step(Input.DURABLE, 11)
    steady.step(Input.SENT, 0, 11, 1)
    assert ack(steady, 0, 11) is Outcome.NOTHING
    steady.step(Input.SENT, 1, 11, 1)
    assert ack(steady, 1, 11) is Outcome.COMMITTED


def test_acks_of_other_terms_and_epochs_are_not_counted() -> None:
    steady = leader()
    steady.step(Input.DURABLE, 10)
    assert ack(steady, 0, 10, term=4) is Outcome.NOTHING
    assert ack(steady, 0, 10, epoch=4) is Outcome.NOT_STEADY
    assert ack(steady, 0, 10, term=6) is Outcome.NOT_STEADY
    assert ack(steady, 0, 99) is Outcome.NOT_STEADY
    assert steady.commit_offset == NONE


def test_the_window_is_bounded_by_messages_and_by_bytes() -> None:
    steady = leader()
    steady.step(Input.APPEND, 30)
    for offset in (11, 12, 13, 14):
        assert steady.step(Input.SEND, 0) is Outcome.SEND
        steady.step(Input.SENT, 0, offset, 10)
    assert steady.step(Input.SEND, 0) is Outcome.NOTHING, "four messages"
    ack(steady, 0, 12)
    assert steady.peers[0].inflight_bytes == 20
    assert steady.step(Input.SEND, 0) is Outcome.SEND
    steady.step(Input.SENT, 0, 30, 100)
    assert steady.step(Input.SEND, 0) is Outcome.NOTHING, "a hundred bytes"


def test_a_commit_alone_is_sent_when_there_is_nothing_else() -> None:
    steady = leader()
    steady.step(Input.DURABLE, 10)
    ack(steady, 0, 10)
    assert steady.step(Input.SEND, 0) is Outcome.SEND_COMMIT
    steady.step(Input.SENT, 0, 10, 0)
    assert steady.step(Input.SEND, 0) is Outcome.NOTHING


def test_a_follower_takes_what_continues_and_hands_back_everything_else() -> None:
    steady = follower(durable=10)
    assert steady.step(Input.RECEIVE, 5, 5, 10, 12, 5, NONE) is Outcome.APPENDED
    for wrong in ([5, 5, 10, 12], [5, 5, 13, 14], [5, 4, 12, 13], [6, 5, 12, 13], [4, 4, 12, 13], [5, 5, 13, 13]):
        before = steady.state()
        assert steady.step(Input.RECEIVE, *wrong, 5, NONE) is Outcome.NOT_STEADY
        assert steady.state() == before, "and nothing has changed"


def test_a_follower_commits_what_is_durable_and_only_with_the_marker_durable() -> None:
    steady = follower()
    assert steady.step(Input.RECEIVE, 5, 5, 10, 14, 5, 14) is Outcome.APPENDED
    assert steady.commit_offset == NONE
    assert steady.step(Input.DURABLE, 12) is Outcome.ACKNOWLEDGE
    assert steady.commit_offset == 12
    steady.step(Input.RECEIVE, 5, 5, 14, 14, 4, 99)
    steady.step(Input.DURABLE, 14)
    assert steady.commit_offset == 14


def test_random_inputs_lower_nothing_and_change_no_identity() -> None:
    chance = random.Random(7)
    for _ in range(300):
        steady = leader(3, OWN_BIT | 0b011, chance.choice([OWN_BIT | 0b011, 0b110]))
        for _ in range(60):
            before = (steady.commit_offset, steady.durable_offset, steady.end_offset, [p.match for p in steady.peers])
            kind = chance.randrange(4)
            if kind == 0:
                steady.step(Input.APPEND, steady.end_offset + chance.randrange(3))
            elif kind == 1:
                steady.step(Input.DURABLE, steady.end_offset - chance.randrange(4))
            elif kind == 2:
                peer = chance.randrange(3)
                ack(steady, peer, steady.peers[peer].next - chance.randrange(4), 5 - (chance.random() < 0.2))
            else:
                peer = chance.randrange(3)
                if steady.step(Input.SEND, peer) is Outcome.SEND:
                    steady.step(Input.SENT, peer, min(steady.end_offset, steady.peers[peer].next + 2), 10)
            after = (steady.commit_offset, steady.durable_offset, steady.end_offset, [p.match for p in steady.peers])
            assert before[:3] <= after[:3]
            assert all(a <= b for a, b in zip(before[3], after[3], strict=True))
            assert (steady.term, steady.start_offset, steady.role) == (5, 10, SteadyRole.LEADER)
            assert all(sum(n for _, n in p.inflight) == p.inflight_bytes for p in steady.peers)


def test_every_row_says_something_and_every_input_is_in_the_table() -> None:
    assert {row.given for row in ROWS} == set(Input)
    assert all(row.condition and row.outcome for row in ROWS)


def test_the_document_is_made_from_the_table() -> None:
    page = Path(__file__).parent.parent.parent / "docs" / "raft-steady.md"
    assert table() in page.read_text()


def test_a_group_is_driven_by_one_of_the_two_and_disarms_for_what_is_not_steady() -> None:
    cluster = Cluster()
    node = cluster.elect()
    cluster.run(100)
    assert all(n.group().steady is not None for n in cluster.nodes)
    other = cluster.nodes[(node.address.node + 1) % 3].group()
    armed = other.steady
    cluster.propose(node)
    cluster.run(50)
    assert other.steady is armed, "steady input does not disarm"
    other.see_term(other.term + 1)
    assert other.steady is None
    with pytest.raises(AssertionError):
        other.arm(SteadyRole.FOLLOWER, [], 0, 0)


def test_what_was_sent_steadily_begins_where_the_last_ended() -> None:
    cluster = Cluster()
    node = cluster.elect()
    cluster.run(50)
    cluster.sent.clear()
    for _ in range(5):
        cluster.propose(node, 2)
        cluster.settle()
    ends: dict[object, int] = {}
    for message in cluster.sent:
        if isinstance(message, AppendEntries) and message.items:
            assert ends.get(message.target, 0) == message.prev.offset
            ends[message.target] = message.items[-1].end_offset
    assert set(ends.values()) == {10}
    assert GROUP in node.core.groups


def test_a_link_is_fresh_for_a_while_and_a_late_frame_of_an_earlier_start_does_not_refresh_it() -> None:
    settings = Settings()
    link = Link(Cluster(1).addresses[0], settings, 1, 0)
    assert not link.is_fresh(0)
    assert link.hear(100, 50), "was silent"
    assert not link.hear(100, 50)
    assert link.is_fresh(50 + settings.link_silent_ms - 1)
    assert not link.is_fresh(50 + settings.link_silent_ms + settings.link_silent_jitter_ms)
    assert link.hear(200, 3_000), "started anew"
    assert not link.hear(100, 9_000)
    assert (link.boot_id, link.heard_ms) == (200, 3_000)


def test_jitter_is_the_same_for_the_same_and_spread_for_others() -> None:
    assert jitter(1_000, 1, 2, 3) == jitter(1_000, 1, 2, 3)
    found = [jitter(1_000, 7, number, 3) for number in range(2_000)]
    assert 450 < sum(found) / len(found) < 550
    assert jitter(0, 1) == 0
