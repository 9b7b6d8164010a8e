"""Rules 3.5: a core whose disk owes it an answer for too long leads nothing, until it has it."""

from __future__ import annotations

from tests.raft.cluster import Cluster


def test_a_stalled_journal_ends_all_leaderships_of_the_core() -> None:
    """Rules 3.5: check-quorum counts the own disk."""
    cluster = Cluster(groups=4)
    for group in range(4):
        cluster.hand_to(0, group)
    cluster.nodes[0].persists = False
    cluster.propose(cluster.nodes[0], 1, 2)
    cluster.run(8_000)
    assert cluster.nodes[0].core.statistics().led == 0
    assert all(cluster.leader(group) is not None for group in range(4))


def test_so_does_one_that_others_than_the_machines_wait_for_until_it_goes_on() -> None:
    """What is carried is not the machine's to journal."""
    cluster = Cluster()
    leader, waits_ms = cluster.hand_to(0), [0]
    cluster.run(1_000)
    leader.core.disk.elsewhere_ms = lambda _now_ms: waits_ms[0]
    waits_ms[0] = leader.core.settings.disk_hangs_ms - 1
    cluster.run(1_000)
    assert leader.group().is_leader
    waits_ms[0] += 1
    cluster.run(8_000)
    assert not leader.group().is_leader
    assert cluster.leader() is not None
    assert leader.core.disk_hangs
    waits_ms[0] = 0
    cluster.run(1_000)
    assert not leader.core.disk_hangs
    cluster.hand_to(0)


def test_a_disk_that_hangs_is_not_waited_for_longer_where_cores_are_slow() -> None:
    """`patience` is for cores without a CPU. What counts is the time in which the disk was looked at."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(1_000)
    core, stall_ms = leader.core, leader.core.settings.disk_hangs_ms
    core.patience.slowness = 40
    began_ms = cluster.now_ms
    core.disk.elsewhere_ms = lambda now_ms: now_ms - began_ms
    cluster.run(stall_ms + 100)
    assert core.disk_hangs
    assert not leader.group().is_leader
    core.disk.elsewhere_ms = lambda _now_ms: 0
    cluster.run(1_000)
    cluster.hand_to(0)


def test_time_in_which_nobody_looked_at_the_disk_does_not_count() -> None:
    """Of a process that was stopped: the answer was there long ago, and it could not have seen it."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    core, stall_ms = leader.core, leader.core.settings.disk_hangs_ms
    leader.persists = False
    cluster.propose(leader, 1)
    cluster.run(100)
    stopped_ms = cluster.now_ms + 10 * stall_ms
    core.tick(stopped_ms)
    assert not core.disk_hangs
    for later_ms in range(1_000, stall_ms, 1_000):
        core.tick(stopped_ms + later_ms)
    assert core.disk_hangs, "it owes the answer still"
