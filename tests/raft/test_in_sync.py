"""Which replicas a leader calls in sync: who has had everything that was there when its way was found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.raft.cluster import Cluster, Node
from tpc_broker.raft.messages import AppendEntries
from tpc_broker.raft.settings import Settings

if TYPE_CHECKING:
    from tpc_broker.raft.links import Link
    from tpc_broker.raft.messages import Frame, Message


def in_sync(leader: Node) -> list[int]:
    return [voter.node for voter in leader.group().in_touch()]


@pytest.mark.parametrize("is_new_process", [False, True])
def test_who_was_away_is_in_sync_when_it_has_what_it_missed(is_new_process: bool) -> None:
    cluster = Cluster(3, settings=Settings(append_items_max=2))
    leader, away = cluster.hand_to(0), cluster.nodes[1]
    cluster.propose(leader)
    cluster.run(1_000)
    assert in_sync(leader) == [0, 1, 2]
    away.crash() if is_new_process else cluster.isolate(1)
    cluster.run(3_000)
    cluster.propose(leader, 5)
    cluster.run(1_000)
    assert in_sync(leader) == [0, 2]

    def is_lost(_frame: Frame, message: Message) -> bool:
        appends = isinstance(message, AppendEntries) and message.target == away.group().me
        return appends and any(item.end_offset > 5 for item in message.items)

    cluster.dropped = is_lost
    away.restart() if is_new_process else cluster.heal()
    cluster.run_until(lambda: leader.group().peers[away.group().me].match == 5)
    assert in_sync(leader) == [0, 2], "one record is not there"
    assert not leader.group().may_be_carried(), "nobody would look again"
    cluster.dropped = lambda _frame, _message: False
    cluster.run(2_000)
    assert away.group().durable.offset == 6
    assert in_sync(leader) == [0, 1, 2]
    assert leader.group().may_be_carried()


def test_who_is_in_sync_stays_so_while_the_last_records_are_under_way() -> None:
    cluster = Cluster(3)
    leader = cluster.hand_to(0)
    cluster.run(1_000)
    follower = cluster.nodes[1]
    follower.persists = False
    cluster.propose(leader)
    cluster.settle()
    assert leader.group().commit.offset == 1
    assert follower.group().durable.offset == 0
    assert in_sync(leader) == [0, 1, 2]


def late_link(leader: Node, number: int) -> Link:
    """Nothing came from that node for as long as it is waited for, and no tick has seen it yet."""
    link = leader.core.links[leader.cluster.nodes[number].core.address]
    assert link.heard_ms is not None
    link.heard_ms -= link.silent_after_ms
    assert not link.is_fresh(leader.cluster.now_ms)
    return link


@pytest.mark.parametrize("is_late", [True, False])
def test_who_is_late_is_in_sync_until_its_link_is_called_silent(is_late: bool) -> None:
    """Of a group that C carries nobody looks again before a link turns: what is told in between has to be right
    without that. A link that is late is no silent one when what it is waited for becomes more, or was heard in C.
    """
    cluster = Cluster(3)
    leader = cluster.hand_to(0)
    cluster.run(1_000)
    link, turns = late_link(leader, 1), leader.core.links_changed
    assert in_sync(leader) == [0, 1, 2]
    if is_late:
        link.be_patient(2 * link.silent_after_ms)
    leader.core.tick(cluster.now_ms)
    assert leader.core.links_changed == turns + (not is_late)
    assert in_sync(leader) == ([0, 1, 2] if is_late else [0, 2])


def test_nobody_is_left_out_of_what_is_carried_because_it_is_late() -> None:
    """Whoever carries a group would send it nothing, and nobody would notice when it has everything."""
    cluster = Cluster(3)
    leader = cluster.hand_to(0)
    cluster.run(1_000)
    follower = cluster.nodes[1]
    follower.persists = False
    cluster.propose(leader)
    cluster.settle()
    machine = leader.group()
    peer = machine.peers[follower.group().me]
    peer.lacks = machine.log.end_offset
    assert not machine.may_be_carried(), "it has not answered"
    late_link(leader, 1)
    assert not machine.may_be_carried()
    assert not machine.all_in_sync()
    assert machine.is_sent_to(peer)
