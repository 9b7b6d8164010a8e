"""Whole clusters of three: they elect, replicate, commit, lose and get back nodes."""

from __future__ import annotations

from tests.raft.cluster import GROUP, Cluster


def test_three_elect_replicate_and_commit() -> None:
    cluster = Cluster()
    leader = cluster.elect()
    accepted = cluster.propose(leader, 5)
    cluster.run(50)
    assert [node.group().commit for node in cluster.nodes] == [accepted.position] * 3
    assert {tuple(node.group().log.items) for node in cluster.nodes} == {tuple(leader.group().log.items)}


def test_a_leader_that_dies_is_replaced_and_comes_back() -> None:
    cluster = Cluster()
    old = cluster.elect()
    cluster.propose(old, 3)
    cluster.run(50)
    old.crash()
    cluster.run_until(lambda: cluster.leader() is not None)
    new = cluster.leader()
    assert new is not None
    cluster.propose(new, 2)
    cluster.run(50)
    old.restart()
    cluster.run(500)
    assert old.group().commit == new.group().commit
    assert old.group().log.items == new.group().log.items


def test_idle_groups_ask_for_no_time() -> None:
    cluster = Cluster(groups=20)
    for group in range(20):
        cluster.elect(group)
    cluster.run(2_000)
    assert all(node.core.group(group).deadline_ms is None for node in cluster.nodes for group in range(20))
    walked = [node.core.statistics().groups_walked for node in cluster.nodes]
    cluster.run(5_000)
    assert [node.core.statistics().groups_walked for node in cluster.nodes] == walked
    assert GROUP not in cluster.nodes[0].core.groups
