"""What learners and compacted logs need: rules 6.1, trap 13."""

from __future__ import annotations

import pytest

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.model import NodeId
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
