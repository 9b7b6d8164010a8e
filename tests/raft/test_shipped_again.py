"""Segments, or an image, that a target has lost before it was told to take them."""

from __future__ import annotations

from tests.raft.cluster import GROUP, Cluster
from tpc_broker.raft.items import START
from tpc_broker.raft.messages import Reject
from tpc_broker.raft.output import ShipSegments
from tpc_broker.raft.steady import INSTALL


def test_segments_that_are_not_there_any_more_are_shipped_again() -> None:
    """The target was started again between them and the Install."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.nodes[2].crash()
    cluster.propose(leader, 6)
    cluster.run(200)
    leader.core.truncate_start(GROUP, 4)
    leader.core.release(GROUP, leader.group().commit)
    learner = cluster.nodes[2]
    learner.journal, learner.durable = [], 0
    learner.restart()
    cluster.run_until(lambda: leader.told(ShipSegments))
    learner.crash()
    (ship,) = leader.told(ShipSegments)
    assert isinstance(ship, ShipSegments)
    leader.core.shipped(GROUP, ship.target, ship.position, cluster.now_ms)
    peer = leader.group().peers[ship.target]
    assert (peer.state, peer.install) == (INSTALL, ship.position)
    lacks = Reject(GROUP, ship.target, leader.group().me, leader.group().term, ship.position, START)
    leader.group().receive(lacks, learner.core.boot_id, cluster.now_ms)
    leader.group().receive(lacks, learner.core.boot_id, cluster.now_ms)
    leader.core.tick(cluster.now_ms)
    leader.turn()
    assert len(leader.told(ShipSegments)) == 2
