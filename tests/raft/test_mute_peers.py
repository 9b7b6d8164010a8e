"""A peer that is heard and takes nothing holds up nobody, and what it is sent is bounded for all groups together."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import NodeId
from tpc_broker.raft.carrying import Carried, CarriedPeer
from tpc_broker.raft.items import Batch, GroupId, Item, Voter, simple
from tpc_broker.raft.messages import AppendEntries, Install
from tpc_broker.raft.mute_peers import ROUNDS
from tpc_broker.raft.output import ReadItems, ShipSegments
from tpc_broker.raft.replica import Peer
from tpc_broker.raft.settings import Settings
from tpc_broker.raft.steady import INSTALL, REPLICATE

GROUPS = 5
MUTE = 2
STEP_MS = 25


def all_led_by_one(*, before_it_hangs: bool, by_drops: bool = False, groups: int = GROUPS) -> tuple[Cluster, Node]:
    """Node 0 leads all groups, and node 2 takes nothing any more: since before that, or only afterwards."""
    cluster = Cluster(groups=groups)

    def lead() -> None:
        for group in range(groups):
            cluster.hand_to(0, group)
        cluster.run(500, STEP_MS)

    def hang() -> None:
        if by_drops:  # as where there is no segment space: what is dropped is not heard of
            cluster.dropped = lambda frame, message: (
                frame.target.node == MUTE and isinstance(message, AppendEntries) and bool(message.items)
            )
        else:
            cluster.nodes[MUTE].persists = False

    if before_it_hangs:
        lead()
        hang()
    else:
        for group in range(groups):
            cluster.hand_to(1, group)
        cluster.run(500, STEP_MS)
        hang()
        lead()
    return cluster, cluster.nodes[0]


def write(cluster: Cluster, leader: Node, milliseconds: int) -> None:
    for _ in range(milliseconds // 100):
        for group in leader.core.groups:
            cluster.propose(leader, 1, group)
        cluster.run(100, STEP_MS)


def mute_peer(leader: Node, group: GroupId) -> Peer:
    return next(peer for peer in leader.group(group).rows if peer.voter.node == MUTE)


def sent_to_it(cluster: Cluster) -> int:
    return sum(len(message.items) for message in cluster.messages(AppendEntries) if message.target.node == MUTE)


@pytest.mark.parametrize("by_drops", [False, True], ids=["disk", "space"])
@pytest.mark.parametrize("before_it_hangs", [True, False], ids=["led before", "led since"])
def test_what_it_is_sent_is_bounded_for_all_groups_together(*, before_it_hangs: bool, by_drops: bool) -> None:
    cluster, leader = all_led_by_one(before_it_hangs=before_it_hangs, by_drops=by_drops)
    write(cluster, leader, 3_000)
    cluster.sent.clear()
    write(cluster, leader, 10_000)
    tries = 10_000 // leader.core.settings.resend_ms_max + 2
    assert sent_to_it(cluster) <= tries * 150, "one group at a time, with all that it lacks at most"
    assert all(leader.group(group).commit.offset == leader.group(group).log.end_offset for group in range(GROUPS))
    assert not any(mute_peer(leader, group).is_in_sync for group in range(GROUPS))
    assert leader.core.links[cluster.addresses[MUTE]].inflight_bytes <= leader.core.settings.append_bytes_max


@pytest.mark.parametrize("before_it_hangs", [True, False], ids=["led before", "led since"])
def test_all_groups_but_the_one_that_tries_may_be_carried(*, before_it_hangs: bool) -> None:
    cluster, leader = all_led_by_one(before_it_hangs=before_it_hangs)
    write(cluster, leader, 3_000)
    cluster.run(100, STEP_MS)
    found = [leader.group(group).may_be_carried() for group in range(GROUPS)]
    assert found.count(False) <= 1, found
    held = [group for group in range(GROUPS) if leader.group(group).holds_until_ms > cluster.now_ms]
    assert not held


@pytest.mark.parametrize("by_drops", [False, True], ids=["disk", "space"])
@pytest.mark.parametrize("before_it_hangs", [True, False], ids=["led before", "led since"])
def test_it_has_everything_soon_when_it_takes_something_again(*, before_it_hangs: bool, by_drops: bool) -> None:
    cluster, leader = all_led_by_one(before_it_hangs=before_it_hangs, by_drops=by_drops)
    write(cluster, leader, 5_000)
    cluster.dropped = lambda _frame, _message: False
    cluster.nodes[MUTE].persists = True
    cluster.run_until(lambda: all(mute_peer(leader, group).is_in_sync for group in range(GROUPS)), 5_000)
    cluster.run(1_000, STEP_MS)
    rows = [mute_peer(leader, group) for group in range(GROUPS)]
    assert all(peer.state is REPLICATE and peer.match == 50 for peer in rows), [peer.match for peer in rows]
    assert not leader.core.links[cluster.addresses[MUTE]].mute


def answer_reads(cluster: Cluster, leader: Node, files: Mapping[GroupId, list[Item]]) -> None:
    reads, leader.events = leader.told(ReadItems), []
    for group, target, prev, _most in reads:
        found = [item for item in files[group] if isinstance(item, Batch) and item.position > prev]
        leader.core.items_read(group, target, prev, found, cluster.now_ms)


def carry_all(cluster: Cluster, leader: Node) -> None:
    """Whoever may be is carried, by one who does nothing."""

    def told(group: GroupId) -> Carried:
        machine = leader.group(group)
        rows = [
            CarriedPeer(peer.match, peer.next, peer.known, is_sent_to=machine.is_sent_to(peer))
            for peer in machine.rows
        ]
        places = machine.log.end_offset, machine.durable.offset, machine.commit.offset, machine.commit.offset
        return Carried(*places, 0, 0, tuple(rows))

    leader.core.carrier = leader.core.observer = told
    for machine in leader.core.groups.values():
        if not machine.carried and machine.may_be_carried():
            machine.carry()


@pytest.mark.parametrize("by_drops", [False, True], ids=["disk", "space"])
def test_groups_sleep_while_it_is_asked_but_for_the_one_that_tries(*, by_drops: bool) -> None:
    cluster, leader = all_led_by_one(before_it_hangs=True, by_drops=by_drops)
    write(cluster, leader, 3_000)
    cluster.run(1_000, STEP_MS)
    cluster.sent.clear()
    files = {group: list(leader.group(group).log.items) for group in range(GROUPS)}
    awake: list[int] = []
    for _ in range(200):
        carry_all(cluster, leader)
        cluster.run(50, STEP_MS)
        awake.append(sum(not machine.carried for machine in leader.core.groups.values()))
        answer_reads(cluster, leader, files)
    assert max(awake) <= 1
    assert awake.count(1) < 100, "nor is it the machine's all the time"
    asked = {message.group for message in cluster.messages(AppendEntries) if message.target.node == MUTE}
    assert len(asked) == GROUPS, "each has asked in four rounds"
    cluster.dropped = lambda _frame, _message: False
    cluster.nodes[MUTE].persists = True

    def is_back() -> bool:
        answer_reads(cluster, leader, files)
        return all(mute_peer(leader, group).is_in_sync for group in range(GROUPS))

    cluster.run_until(is_back, 5_000)
    assert not any(machine.carried for machine in leader.core.groups.values())


def test_who_is_left_alone_is_sent_nothing_by_whoever_carries_the_group() -> None:
    cluster, leader = all_led_by_one(before_it_hangs=True)
    write(cluster, leader, 3_000)
    cluster.run(1_000, STEP_MS)
    group = next(group for group in range(GROUPS) if leader.group(group).is_left_alone(mute_peer(leader, group)))
    machine, peer = leader.group(group), mute_peer(leader, group)
    assert not machine.is_sent_to(peer)
    before = peer.match
    carry_all(cluster, leader)
    leader.core.take_back(group, cluster.now_ms)
    assert machine.is_left_alone(peer)
    assert peer.match == before


@pytest.mark.parametrize("what", ["deleted", "led by another", "without that replica"])
def test_what_becomes_of_the_group_that_tries_holds_up_no_other(what: str) -> None:
    cluster, leader = all_led_by_one(before_it_hangs=True, by_drops=True)
    write(cluster, leader, 3_000)
    link = leader.core.links[cluster.addresses[MUTE]]
    cluster.run_until(lambda: link.trying is not None)
    trying = link.trying
    assert trying is not None
    if what == "deleted":
        for node in cluster.nodes:
            node.core.remove_group(trying, cluster.now_ms)
    elif what == "led by another":
        cluster.hand_to(1, trying)
    else:
        two = simple([leader.group(trying).me, cluster.nodes[1].group(trying).me]).voters
        assert leader.core.change_voters(trying, two, cluster.now_ms) is None
        cluster.run_until(lambda: len(leader.group(trying).rows) == 1)
    cluster.dropped = lambda _frame, _message: False
    others = [group for group in range(GROUPS) if group != trying]
    cluster.run_until(lambda: all(mute_peer(leader, group).is_in_sync for group in others), 5_000)
    cluster.run(2 * leader.core.settings.resend_ms_max)
    assert not link.mute
    if what == "led by another":
        assert mute_peer(cluster.nodes[1], trying).is_in_sync


def test_who_comes_back_late_does_not_wait_for_those_that_never_do() -> None:
    """A core may lack groups for long, which it will have, while it has others by now."""
    cluster, leader = all_led_by_one(before_it_hangs=True, by_drops=True, groups=4 * GROUPS)
    write(cluster, leader, 3_000)
    last = next(reversed(leader.core.links[cluster.addresses[MUTE]].mute))
    cluster.dropped = lambda frame, message: (
        frame.target.node == MUTE and isinstance(message, AppendEntries) and message.group != last
    )
    soon_ms = (ROUNDS + 1) * leader.core.settings.resend_ms_max
    cluster.run_until(lambda: mute_peer(leader, last).is_in_sync, soon_ms)


def test_one_that_starts_again_is_mute_no_more() -> None:
    cluster, leader = all_led_by_one(before_it_hangs=True)
    write(cluster, leader, 3_000)
    cluster.nodes[MUTE].crash()
    cluster.nodes[MUTE].persists = True
    cluster.nodes[MUTE].restart()
    cluster.run_until(lambda: all(mute_peer(leader, group).is_in_sync for group in range(GROUPS)), 500)


def test_two_of_five_that_are_mute() -> None:
    cluster = Cluster(5)
    leader = cluster.hand_to(0)
    cluster.run(500, STEP_MS)
    for number in (3, 4):
        cluster.nodes[number].persists = False
    for _ in range(30):
        cluster.propose(leader)
        cluster.run(100, STEP_MS)
    machine = leader.group()
    assert machine.commit.offset == machine.log.end_offset
    cluster.run_until(machine.may_be_carried, 2_000)
    cluster.nodes[4].persists = True
    cluster.run_until(lambda: machine.rows[3].is_in_sync, 5_000)
    assert not machine.rows[2].is_in_sync
    cluster.run_until(machine.may_be_carried, 2_000)
    cluster.nodes[3].persists = True
    cluster.run_until(lambda: machine.rows[2].is_in_sync, 5_000)


def test_what_is_shipped_to_one_that_takes_nothing_is_asked_after_until_it_does() -> None:
    """An Install that is not answered keeps nobody from being carried, and is sent now and then."""
    cluster = Cluster(4, groups=0)
    cluster.create(GROUP, [0, 1, 2])
    leader = cluster.hand_to(0)
    cluster.propose(leader, 5)
    cluster.run(500, STEP_MS)
    me = Voter(NodeId(3), 0)
    cluster.nodes[3].create(GROUP, me, None)
    leader.group().log.release(leader.group().log.last)
    cluster.dropped = lambda _frame, message: isinstance(message, Install)
    assert leader.core.change_voters(GROUP, frozenset([*leader.group().config.voters, me]), cluster.now_ms) is None
    cluster.run_until(lambda: leader.told(ShipSegments))
    assert leader.group().peers[me].state is INSTALL
    leader.core.shipped(GROUP, me, leader.told(ShipSegments)[-1].position, cluster.now_ms)
    cluster.run(5_000, STEP_MS)
    peer = leader.group().peers[me]
    assert peer.state is INSTALL
    assert leader.group().is_left_alone(peer)
    cluster.dropped = lambda _frame, _message: False
    cluster.run_until(lambda: peer.match == leader.group().log.end_offset, 5_000)


@pytest.mark.parametrize("is_late", [False, True])
def test_what_the_one_that_tries_needs_is_read_from_files(*, is_late: bool) -> None:
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(500, STEP_MS)
    cluster.nodes[MUTE].persists = False
    for _ in range(30):
        cluster.propose(leader)
        cluster.run(100, STEP_MS)
    machine, peer = leader.group(), mute_peer(leader, GROUP)
    files = {GROUP: list(machine.log.items)}
    machine.log.release(machine.log.last)
    cluster.nodes[MUTE].fail_journal()
    cluster.nodes[MUTE].reopen_journal()
    cluster.nodes[MUTE].persists = True

    def is_back() -> bool:
        if is_late and leader.told(ReadItems):
            cluster.run(2 * leader.core.settings.resend_ms_max)
        answer_reads(cluster, leader, files)
        return peer.is_in_sync

    cluster.run_until(is_back)


def test_what_probes_carry_is_bounded_for_all_groups_of_a_link() -> None:
    settings = Settings(append_bytes_max=30, inflight_bytes_max=30, link_inflight_bytes_max=60, ships_to_empty=False)
    cluster = Cluster(settings=settings, groups=GROUPS)
    for group in range(GROUPS):
        cluster.hand_to(0, group)
    leader, link = cluster.nodes[0], cluster.nodes[0].core.links[cluster.addresses[MUTE]]
    cluster.run(500, STEP_MS)
    cluster.nodes[MUTE].crash()
    cluster.run(3_000, STEP_MS)
    for group in range(GROUPS):
        for _ in range(6):
            cluster.propose(leader, 1, group)
            cluster.run(50, STEP_MS)
    most: list[int] = []
    cluster.nodes[MUTE].persists = False
    cluster.nodes[MUTE].restart()
    for _ in range(1_000):
        cluster.run(5)
        most.append(link.inflight_bytes)
    cluster.nodes[MUTE].persists = True
    cluster.run_until(lambda: all(mute_peer(leader, group).match == 6 for group in range(GROUPS)))
    assert 0 < max(most) <= settings.link_inflight_bytes_max + settings.append_bytes_max
    assert link.inflight_bytes == 0


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_was_asked_again_is_sent_one_message_at_a_time_until_it_gets_somewhere(*, is_lost: bool) -> None:
    """And nothing, as long as it says that it has what it was sent."""
    settings = Settings(append_items_max=1)
    cluster = Cluster(settings=settings)
    leader = cluster.hand_to(0)
    cluster.run(500, STEP_MS)
    peer, most = mute_peer(leader, GROUP), {0: 0, 1: 0, 2: 0}
    cluster.nodes[MUTE].persists = False
    if is_lost:
        cluster.dropped = lambda frame, message: (
            frame.target.node == MUTE and isinstance(message, AppendEntries) and bool(message.items)
        )
    for _ in range(10):
        cluster.propose(leader)
    for _ in range(100):
        cluster.run(50, STEP_MS)
        most[min(peer.resent, 2)] = max(most[min(peer.resent, 2)], len(peer.inflight))
    assert most == {0: 0 if is_lost else 10, 1: 0, 2: 1}
    cluster.nodes[MUTE].persists = True
    cluster.dropped = lambda _frame, _message: False
    cluster.run_until(lambda: peer.is_in_sync, 5_000)
