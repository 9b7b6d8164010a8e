"""Cores that stand still now and then: they are waited for, and groups get leaders with any share of a CPU."""

from __future__ import annotations

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.core import RaftCore
from tpc_broker.raft.items import Address, Voter, simple
from tpc_broker.raft.links import Vouching
from tpc_broker.raft.messages import Frame, Heartbeat
from tpc_broker.raft.output import LeaderReady
from tpc_broker.raft.patience import Patience, Resignations
from tpc_broker.raft.settings import Settings

NODES = 3
MESSAGE_MS, WALK_MS, ENTRY_MS, TURN_MS = 0.6, 0.2, 0.4, 0.5
"""What one message, one group that is looked at, one entry and a turn take of a whole CPU: ten times what they do, so
that a thousand groups are as much to do as ten thousand.
"""
BEAT_MS, GAP_MS = 100, 1_000


class Beats(Vouching):
    """As `native/replication/steady_beats.c`: said and heard between turns, and not in them."""

    def __init__(self) -> None:
        self.said: set[Address] = set()
        self.stretches: dict[Address, tuple[int, int]] = {}
        self.due_ms = BEAT_MS
        self.was_late_ms = 0

    def begin(self, address: Address) -> bool:
        self.said.add(address)
        return True

    def end(self, address: Address) -> None:
        self.said.discard(address)

    def late_ms(self) -> int:
        late_ms, self.was_late_ms = self.was_late_ms, 0
        return late_ms

    def heard(self, address: Address, boot_id: int) -> tuple[int, int] | None:
        del boot_id
        return self.stretches.get(address)

    def hear(self, address: Address, now_ms: int) -> None:
        since_ms, last_ms = self.stretches.get(address, (now_ms, now_ms))
        self.stretches[address] = now_ms if now_ms - last_ms >= GAP_MS else since_ms, now_ms

    def say(self, now_ms: int) -> set[Address]:
        if now_ms < self.due_ms:
            return set()
        self.was_late_ms = max(self.was_late_ms, now_ms - self.due_ms)
        self.due_ms = now_ms + BEAT_MS
        return self.said


class SlowCore:
    """Whose turns take as long as what is done in them, by its share of a CPU. Nothing leaves before a turn's end."""

    def __init__(self, number: int, groups: int, share: float) -> None:
        self.core = RaftCore(Address(NodeId(number), CoreId(0)), 1_000 + number, 0)
        self.core.vouching = self.beats = Beats()
        self.share = share
        self.inbox: list[Frame] = []
        self.beaten: list[Address] = []
        self.outbox: list[Frame] = []
        self.written = 0
        self.busy_until_ms = 0.0
        voters = [Voter(NodeId(each), 0) for each in range(NODES)]
        for each in range(NODES):
            if each != number:
                self.core.add_link(Address(NodeId(each), CoreId(0)), 0)
        for group in range(groups):
            self.core.create_group(group, voters[number], simple(voters), 0)

    def turn(self, now_ms: int) -> list[LeaderReady]:
        core, before = self.core, self.done()
        frames, self.inbox = self.inbox, []
        for frame in frames:
            core.receive(frame, now_ms)
        core.tick(now_ms)
        if self.written > core.durable_sequence:
            core.persisted(self.written, now_ms)
        ready = core.ready(now_ms)
        if ready.entries:
            self.written = ready.entries[-1][0]
        self.outbox += ready.frames
        work_ms = self.done() - before + len(ready.entries) * ENTRY_MS + TURN_MS
        self.busy_until_ms = now_ms + work_ms / self.share
        return [event for event in ready.events if isinstance(event, LeaderReady)]

    def done(self) -> float:
        found = self.core.statistics()
        return (found.messages_received + found.messages_sent) * MESSAGE_MS + found.groups_walked * WALK_MS

    def wants_turn(self, now_ms: int) -> bool:
        is_due = self.core.next_deadline_ms() <= now_ms
        return bool(self.inbox) or self.written > self.core.durable_sequence or is_due


class SlowCluster:
    def __init__(self, groups: int, share: float) -> None:
        self.now_ms = 0
        self.cores = [SlowCore(number, groups, share) for number in range(NODES)]
        self.ready: dict[object, int] = {}

    def run(self) -> None:
        """A millisecond."""
        self.now_ms += 1
        for one in self.cores:
            if self.now_ms < one.busy_until_ms:
                continue
            self._leave(one)
            for address in one.beaten:
                one.beats.hear(address, self.now_ms)
            one.beaten.clear()
            for address in one.beats.say(self.now_ms):
                self.cores[address.node].beaten.append(one.core.address)
            if one.wants_turn(self.now_ms):
                self.ready |= {event.group: event.term for event in one.turn(self.now_ms)}

    def _leave(self, one: SlowCore) -> None:
        durable, outbox = one.core.durable_sequence, one.outbox
        one.outbox = [frame for frame in outbox if frame.after_sequence > durable]
        for frame in outbox:
            if frame.after_sequence <= durable:
                self.cores[frame.target.node].inbox.append(frame)

    def skip(self) -> None:
        """To the next millisecond in which anything can happen."""
        if all(self.now_ms < one.busy_until_ms for one in self.cores):
            self.now_ms = max(self.now_ms, int(min(one.busy_until_ms for one in self.cores)) - 1)

    def run_for(self, milliseconds: float) -> None:
        until_ms = self.now_ms + milliseconds
        while self.now_ms < until_ms:
            self.skip()
            self.run()

    @property
    def elections(self) -> int:
        return sum(machine.elections_started for one in self.cores for machine in one.core.groups.values())


@pytest.mark.parametrize("share", [0.3, 0.1, 0.03, 0.01])
def test_thousands_of_groups_come_to_rest_with_any_share_of_a_cpu(share: float) -> None:
    """To look at all of them once is 0.4 s of work here: with a tenth of a CPU a silence, and elections after it."""
    groups = 1_000
    cluster = SlowCluster(groups, share)
    while len(cluster.ready) < groups:
        cluster.skip()
        cluster.run()
        assert cluster.now_ms < 40_000 / share, f"{len(cluster.ready)} of {groups} groups have a leader"
    cluster.run_for(6_000 / share)  # who stood beside the last ones
    elections, links_changed = cluster.elections, [one.core.links_changed for one in cluster.cores]
    cluster.run_for(120_000)
    assert cluster.elections == elections, "it is at rest"
    assert [one.core.links_changed for one in cluster.cores] == links_changed
    assert sum(cluster.ready.values()) - groups < groups / 2, "and terms do not climb"


def stand_still(cluster: Cluster, milliseconds: int, *numbers: int) -> None:
    """Cores whose turns do not come, while the others have theirs."""
    nodes = [cluster.nodes[number] for number in numbers]
    for node in nodes:
        node.core.next_deadline_ms()
        node.up = False
    held: list[Frame] = []
    put = cluster.put

    def hold(frame: Frame) -> None:
        if frame.target.node not in numbers:
            put(frame)
        elif (frame.source.node, frame.target.node) not in cluster.blocked:
            held.append(frame)

    cluster.put = hold  # type: ignore[method-assign]
    cluster.run(milliseconds)
    cluster.put = put  # type: ignore[method-assign]
    for node in nodes:
        node.up = True
    for frame in held:
        cluster.nodes[frame.target.node].core.receive(frame, cluster.now_ms)
    for node in nodes:
        node.core.tick(cluster.now_ms)
    cluster.settle()


def test_who_stood_still_is_waited_for_the_next_time() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.run(2_000)
    stand_still(cluster, 1_500, 0)
    leader = cluster.elect()
    assert leader is not cluster.nodes[0], "the first time it is too late"
    cluster.hand_to(0)
    cluster.run(2_000)
    term = cluster.nodes[0].group().term
    stand_still(cluster, 1_500, 0)
    cluster.run(2_000)
    assert cluster.leader() is cluster.nodes[0]
    assert cluster.nodes[0].group().term == term


class Stopped(Vouching):
    """Says nothing in the machine's place, and knows how much of the time its core has worked."""

    def __init__(self) -> None:
        self.worked_ms = 0

    def busy_ms(self) -> int:
        return self.worked_ms


def test_who_was_stopped_is_missed_as_soon_as_ever() -> None:
    """It neither ran nor waited for a CPU, so its next steps take no longer. One that works may not say that."""
    cluster = Cluster()
    cluster.hand_to(0)
    core = cluster.nodes[0].core
    core.vouching = stopped = Stopped()
    cluster.run(2_000)
    for _ in range(3):
        stand_still(cluster, 8_000, 0)
        cluster.run(2_000)
        assert core.patience.ms == cluster.settings.link_silent_ms
    stopped.worked_ms = 400
    stand_still(cluster, 8_000, 0)
    assert core.patience.ms == 4 * stopped.worked_ms, "what it worked counts"


def test_who_dies_after_it_stood_still_is_waited_for_no_longer_than_it_asked_for() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.run(2_000)
    stand_still(cluster, 900, 0)
    assert cluster.leader() is cluster.nodes[0]
    cluster.nodes[0].crash()
    began_ms = cluster.now_ms
    cluster.run_until(lambda: any(node.up and node.group().is_leader for node in cluster.nodes))
    assert 2_000 <= cluster.now_ms - began_ms < 2_500


def cut_until_silent(cluster: Cluster, one: int, other: int) -> None:
    """Two cores call each other silent."""
    cluster.blocked |= {(one, other), (other, one)}
    cluster.run(1_100)
    for number, silent in ((one, other), (other, one)):
        assert not cluster.nodes[number].core.links[cluster.addresses[silent]].is_fresh(cluster.now_ms)


def cut_off_from_its_leader() -> tuple[Cluster, Node, Node]:
    """The leader, and a follower that it calls silent, and that calls it so."""
    cluster = Cluster()
    leader = cluster.hand_to(0)
    cluster.run(2_000)
    cut_until_silent(cluster, 0, 1)
    return cluster, leader, cluster.nodes[1]


def test_a_leader_that_stood_still_in_a_cut_goes_on_with_who_was_cut_off() -> None:
    """Its patience is longer than the silence by then; but the silence was noticed, and ends when somebody is heard."""
    cluster, leader, other = cut_off_from_its_leader()
    stand_still(cluster, 700, 0)
    assert leader.core.patience.ms == 2_000
    assert leader.group().is_leader
    cluster.heal()
    cluster.propose(leader)
    cluster.run(1_000)
    assert other.group().commit == leader.group().commit == leader.group().log.last


def test_cores_that_stood_still_in_a_cut_stand_when_they_hear_each_other_again() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.run(2_000)
    cluster.nodes[2].crash()
    cut_until_silent(cluster, 0, 1)
    stand_still(cluster, 700, 0, 1)
    assert [node.core.patience.ms for node in cluster.nodes[:2]] == [2_000, 2_000]
    cluster.heal()
    cluster.elect()


def test_who_stood_still_in_a_cut_notices_the_next_silence() -> None:
    cluster, leader, other = cut_off_from_its_leader()
    stand_still(cluster, 700, 1)
    cluster.heal()
    cluster.run(2_000)
    assert other.core.patience.ms == 2_000
    leader.crash()
    changed = other.core.links_changed
    cluster.run(2_500)
    assert other.core.links_changed > changed


def test_who_is_dead_is_not_heard_again_because_of_patience() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    core = cluster.nodes[1].core
    core.vouching = beats = Beats()
    cluster.run(2_000)
    silent = cluster.addresses[2]
    beats.hear(silent, cluster.now_ms)
    cluster.nodes[2].crash()
    cluster.run(1_100)
    assert not core.links[silent].is_fresh(cluster.now_ms)
    changed = core.links_changed
    stand_still(cluster, 700, 1)
    cluster.run(1_000)
    assert core.patience.ms == 2_000
    assert not core.links[silent].is_fresh(cluster.now_ms)
    assert core.links_changed == changed


def test_who_may_not_stand_at_once_stands_when_its_time_has_come() -> None:
    """Asked between two turns that are far apart: by then nobody was heard lately, and nobody has noticed it."""
    cluster = Cluster()
    cluster.run(2_000)
    cluster.create("new", range(3))
    core, machine = cluster.nodes[0].core, cluster.nodes[0].group("new")
    core.next_deadline_ms()
    cluster.now_ms += 1_800
    core.stand_at_once("new", cluster.now_ms)
    core.tick(cluster.now_ms)
    assert machine._quorum_is_heard(cluster.now_ms), "patience has grown, and no silence was noticed"
    assert machine.deadline_ms is not None


def test_patience_is_asked_for_by_who_was_late_and_not_because_of_a_cut() -> None:
    cluster = Cluster()
    cluster.hand_to(0)
    cluster.isolate(0)
    cluster.run(5_000)
    cluster.heal()
    cluster.run(2_000)
    assert {beat.silent_ms for beat in cluster.messages(Heartbeat)} == {cluster.settings.link_silent_ms}
    assert all(node.core.patience.slowness == 1 for node in cluster.nodes)


def test_patience_doubles_at_most_each_time_and_ends_when_it_was_not_needed_for_long() -> None:
    settings = Settings(patience_kept_ms=10_000)
    core = Cluster(settings=settings, groups=0).nodes[0].core
    patience, now_ms = core.patience, 0

    def late(milliseconds: int) -> int:
        patience.look(milliseconds, now_ms)
        return patience.ms

    assert [late(100), late(249), late(10_000), late(10_000), late(600)] == [1_000, 1_000, 2_000, 4_000, 4_000]
    assert core.patience.slowness == 4
    assert {link.silent_after_ms - link.silent_jitter_ms for link in core.links.values()} == {4_000}
    now_ms = 9_999
    assert late(0) == 4_000
    now_ms = 10_000
    assert late(0) == 2_000
    assert late(300) == 2_000, "it is needed"
    now_ms = 19_999
    assert late(0) == 2_000
    now_ms = 30_000
    assert [late(0), core.patience.slowness] == [1_000, 1]
    for _ in range(20):
        late(1_000_000)
    assert patience.ms == settings.link_silent_ms_max


def test_a_resignation_is_repeated_until_it_was_said_after_any_silence() -> None:
    settings = Settings()

    def instants(silent_ms: int) -> list[int]:
        """Seconds in which it was repeated."""
        repeated = Resignations(settings)
        repeated.add(GROUP, 1, 0)
        found = [now_ms for now_ms in range(0, 200_000, 100) if repeated.due(now_ms, silent_ms)]
        assert not repeated
        return sorted({now_ms // 1_000 for now_ms in found})

    assert instants(1_000) == [0, 1, 2, 3]
    assert instants(4_000) == [0, 1, 2, 3, 6]
    assert instants(16_000) == [0, 1, 2, 3, 6, 12, 24]
    assert instants(100_000) == [0, 1, 2, 3, 6, 12, 24, 48, 96, 192]


def test_campaigns_have_longer_only_where_they_were_given_up_and_cores_are_late() -> None:
    patience = Patience(Settings(), {})
    now_ms = 10_000

    def given_up(after_ms: int) -> int:
        nonlocal now_ms
        now_ms += after_ms
        patience.not_elected(now_ms)
        return patience.leisure

    assert given_up(0) == 1, "nobody is late"
    for _ in range(2):
        patience.look(2_000, now_ms)
    assert (patience.slowness, patience.leisure) == (4, 1)
    assert [given_up(after_ms) for after_ms in (1_000, 1, 1_999, 4_000)] == [2, 2, 4, 4]
    patience.elected(1_000)
    assert patience.leisure == 4, "it took its time"
    patience.elected(999)
    assert patience.leisure == 2
    patience.look(0, now_ms + 31_999)
    assert patience.leisure == 2
    patience.look(0, now_ms + 32_000)
    assert patience.leisure == 1
