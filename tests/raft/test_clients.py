"""What a replica tells clients: rules 7.1, 7.2, 7.5; and what learners and compacted logs need: 6.1, trap 13."""

from __future__ import annotations

import pytest

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.model import NodeId
from tpc_broker.raft.clients import (
    FetchPlace,
    Unknown,
    end_of_epoch,
    has_enough_replicas,
    latest_offset,
    min_insync_replicas_max,
    place_of_fetch,
)
from tpc_broker.raft.items import Position, Voter
from tpc_broker.raft.messages import Ack
from tpc_broker.raft.output import ReadItems, ShipSegments
from tpc_broker.raft.settings import Settings


def led_by_0(records: int = 3) -> Cluster:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.propose(leader, records)
    cluster.run(50)
    return cluster


def not_ready() -> Cluster:
    """Node 1 has won, and its marker is not committed."""
    cluster = led_by_0()
    cluster.dropped = lambda _frame, message: isinstance(message, Ack)
    cluster.nodes[0].core.transfer_leadership(GROUP, Voter(NodeId(1), 0), cluster.now_ms)
    cluster.run_until(lambda: cluster.nodes[1].group().is_leader)
    assert not cluster.nodes[1].group().is_ready
    return cluster


def test_7_1_a_new_leader_tells_no_end_before_its_marker_is_committed() -> None:
    cluster = not_ready()
    group = cluster.nodes[1].group()
    assert latest_offset(group) is Unknown.OFFSET_NOT_AVAILABLE
    assert end_of_epoch(group, group.term) is Unknown.OFFSET_NOT_AVAILABLE
    assert end_of_epoch(group, group.term - 1) == (group.term - 1, 3)
    cluster.dropped = lambda _frame, _message: False
    cluster.run_until(lambda: group.is_ready)
    assert latest_offset(group) == 3
    assert end_of_epoch(group, group.term) == (group.term, 3)
    assert latest_offset(cluster.nodes[2].group()) is Unknown.NOT_LEADER_OR_FOLLOWER
    assert end_of_epoch(cluster.nodes[2].group(), 1) is Unknown.NOT_LEADER_OR_FOLLOWER


def test_7_1_a_fetch_between_high_watermark_and_end_waits() -> None:
    cluster = led_by_0()
    cluster.isolate(0)
    cluster.propose(cluster.nodes[0], 2)
    group, now_ms = cluster.nodes[0].group(), cluster.now_ms
    assert (group.high_watermark, group.log.end_offset) == (3, 5)
    assert [place_of_fetch(group, offset, now_ms).name for offset in range(6)] == ["READ"] * 3 + ["WAIT"] * 3


def test_7_2_only_a_leader_with_a_quorum_says_that_an_offset_is_not_there() -> None:
    cluster = led_by_0()
    leader, follower = cluster.nodes[0].group(), cluster.nodes[1].group()
    cluster.nodes[0].core.truncate_start(GROUP, 2)
    cluster.nodes[1].core.truncate_start(GROUP, 2)
    for offset in (1, 9):
        assert place_of_fetch(leader, offset, cluster.now_ms) is FetchPlace.OFFSET_OUT_OF_RANGE
        assert place_of_fetch(follower, offset, cluster.now_ms) is FetchPlace.OFFSET_NOT_AVAILABLE
        assert place_of_fetch(leader, offset, cluster.now_ms + 5_000) is FetchPlace.OFFSET_NOT_AVAILABLE


def test_7_5_min_insync_replicas_counts_fresh_links_and_is_a_majority_at_most() -> None:
    cluster = led_by_0()
    group = cluster.nodes[0].group()
    assert has_enough_replicas(group, 3, cluster.now_ms)
    cluster.nodes[2].crash()
    cluster.run(2_000)
    assert has_enough_replicas(group, 2, cluster.now_ms)
    assert not has_enough_replicas(group, 3, cluster.now_ms)
    before = group.commit
    cluster.propose(cluster.nodes[0], 1)
    cluster.run(50)
    assert group.commit > before, "what commits is another matter"
    assert [min_insync_replicas_max(factor) for factor in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(("round_ms", "may_vote"), [(100, True), (3_000, False)])
def test_6_1_a_learner_has_caught_up_when_a_round_is_short_though_bytes_are_many(
    round_ms: int, *, may_vote: bool
) -> None:
    """Under full load nobody is ever within a MiB of the end: thesis 4.2.1 counts rounds."""
    cluster = Cluster(2, Settings(caught_up_bytes=1, change_timeout_ms=60_000), groups=0)
    cluster.create(GROUP, [0], learners=[1])
    leader = cluster.elect()
    learner = Voter(NodeId(1), 0)
    cluster.dropped = lambda _frame, message: isinstance(message, Ack)
    leader.core.change_voters(GROUP, [leader.group().me, learner], cluster.now_ms)
    group = leader.group()
    peer = group.peers[learner]
    for _round in range(3):  # each ends with more behind it
        if not group.is_leader:
            break  # it stands for the joint term
        cluster.propose(leader, 2)
        leader.turn()
        cluster.now_ms += round_ms
        leader.core.links[group.address_of(learner)].hear(cluster.nodes[1].core.boot_id, cluster.now_ms)
        peer.match = max(peer.match, peer.round_end or 0)
        group.peer_progressed(peer, cluster.now_ms)
    began = group.config is not None and (group.config.is_joint or not group.is_leader)
    assert began is may_vote


def test_trap_13_below_what_was_compacted_only_segments_travel() -> None:
    cluster = led_by_0(6)
    leader = cluster.nodes[0]
    cluster.isolate(2)
    cluster.propose(leader, 6)
    cluster.run(50)
    leader.core.release(GROUP, leader.group().commit)
    cluster.heal()
    cluster.run_until(lambda: leader.told(ReadItems))
    assert not leader.told(ShipSegments)
    leader.core.compacted(GROUP, 12)
    leader.turn()
    [ship] = leader.told(ShipSegments)
    assert ship.position == leader.group().commit
    with pytest.raises(AssertionError):
        leader.core.compacted(GROUP, 13)
    leader.core.compacted(GROUP, 4)
    assert leader.group().contiguous_from_offset == 12, "it never falls"
    assert Position(1, 6) < ship.position
