"""The leader of the first term, named by what makes the group: every replica begins in that term, its vote given."""

from __future__ import annotations

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import NodeId
from tpc_broker.raft.items import Marker, Voter, simple
from tpc_broker.raft.journal import VoteEntry
from tpc_broker.raft.messages import AppendEntries, RequestVote
from tpc_broker.raft.output import Accepted, Role
from tpc_broker.raft.settings import Settings

NAMED = Voter(NodeId(0), 0)
VOTERS = range(3)
CONFIG = simple(Voter(NodeId(number), 0) for number in VOTERS)


def make(cluster: Cluster, *numbers: int) -> None:
    for number in numbers:
        cluster.nodes[number].create(GROUP, Voter(NodeId(number), 0), CONFIG, NAMED)


def heard() -> Cluster:
    """Three cores that hear each other, and have no group yet."""
    cluster = Cluster(groups=0)
    cluster.run(300)
    return cluster


def named() -> Cluster:
    cluster = heard()
    make(cluster, *VOTERS)
    return cluster


def votes_of(node: Node) -> list[VoteEntry]:
    return [entry for _number, entry in node.journal if isinstance(entry, VoteEntry)]


def test_who_is_named_leads_the_first_term_without_asking() -> None:
    cluster = named()
    cluster.settle()
    leader = cluster.nodes[0].group()
    assert (leader.role, leader.term, leader.commit.epoch) == (Role.LEADER, 1, 1)
    assert not cluster.messages(RequestVote)
    assert votes_of(cluster.nodes[0]) == [VoteEntry(GROUP, 1, NAMED)]
    for other in cluster.nodes[1:]:
        assert (other.group().term, other.group().vote, other.group().leader) == (1, NAMED, NAMED)
        assert votes_of(other) == [], "what made it says so"


def test_nothing_leaves_before_it_is_durable_that_it_leads() -> None:
    cluster = heard()
    cluster.nodes[0].persists = False
    make(cluster, *VOTERS)
    cluster.settle()
    assert cluster.nodes[0].group().role is Role.CANDIDATE
    assert not cluster.messages(AppendEntries)
    cluster.nodes[0].persists = True
    cluster.settle()
    assert cluster.nodes[0].group().is_leader


def test_a_term_is_led_once_and_by_who_has_not_begun_before() -> None:
    cluster = heard()
    cluster.nodes[0].persists = False
    make(cluster, *VOTERS)
    cluster.settle()
    cluster.nodes[0].crash()
    cluster.nodes[0].persists = True
    cluster.nodes[0].restart()
    cluster.run_until(lambda: cluster.nodes[0].group().is_leader)
    assert cluster.nodes[0].group().term == 1, "it had said nothing"
    cluster.nodes[0].crash()
    cluster.nodes[0].restart()
    cluster.run_until(lambda: any(node.group().is_leader for node in cluster.nodes))
    leader = next(node for node in cluster.nodes if node.group().is_leader)
    assert leader.group().term > 1


def test_a_replica_that_restarts_in_the_first_term_has_given_its_vote() -> None:
    cluster = named()
    cluster.settle()
    for crashed_with in ("marker", "nothing"):
        if crashed_with == "nothing":
            cluster = heard()
            make(cluster, 1, 2)
        other = cluster.nodes[1]
        other.crash()
        other.restart()
        assert (other.group().term, other.group().vote) == (1, NAMED)


def test_others_stand_in_the_next_term_where_who_is_named_is_away() -> None:
    cluster = heard()
    cluster.isolate(0)
    cluster.run(2_000)
    make(cluster, *VOTERS)
    cluster.run_until(lambda: any(node.group().is_leader for node in cluster.nodes[1:]))
    assert {m.term for m in cluster.messages(RequestVote)} == {2}
    cluster.heal()
    cluster.run_until(lambda: cluster.nodes[0].group().leader is not None)
    assert cluster.nodes[0].group().leader != NAMED


def test_others_stand_at_once_when_who_is_named_falls_silent() -> None:
    cluster = heard()
    make(cluster, 1, 2)
    cluster.run(3_000)
    assert not cluster.messages(RequestVote), "it is heard, and may have others to begin first"
    cluster.nodes[0].crash()
    cluster.run_until(lambda: any(node.group().is_leader for node in cluster.nodes[1:]), 5_000)


def test_others_stand_where_who_is_named_never_makes_its_replica() -> None:
    cluster = heard()
    make(cluster, 1, 2)
    cluster.run_until(lambda: any(node.group().is_leader for node in cluster.nodes[1:]))


def test_a_replica_that_is_made_late_hears_what_came_before() -> None:
    cluster = heard()
    make(cluster, 0, 1)
    cluster.settle()
    sent = len(cluster.messages(AppendEntries))
    make(cluster, 2)
    assert cluster.nodes[2].group().leader == NAMED
    cluster.settle()
    again = [m for m in cluster.messages(AppendEntries)[sent:] if any(isinstance(item, Marker) for item in m.items)]
    assert not again
    assert cluster.nodes[2].group().log.last.epoch == 1


def test_who_was_not_there_when_the_group_was_made_has_given_no_vote() -> None:
    cluster = Cluster(4, Settings(), groups=0)
    cluster.nodes[3].create(GROUP, Voter(NodeId(3), 0), None, NAMED)
    assert (cluster.nodes[3].group().term, cluster.nodes[3].group().vote) == (0, None)


def test_what_is_written_to_a_named_leader_outlives_it() -> None:
    cluster = named()
    cluster.settle()
    leader = cluster.nodes[0]
    assert isinstance(cluster.propose(leader, 3), Accepted)
    cluster.settle()
    end_offset = leader.group().commit.offset
    assert end_offset > 0
    leader.crash()
    cluster.run_until(lambda: any(node.group().is_leader for node in cluster.nodes[1:]))
    new = next(node for node in cluster.nodes[1:] if node.group().is_leader)
    assert new.group().term > 1
    assert new.group().commit.offset == end_offset
