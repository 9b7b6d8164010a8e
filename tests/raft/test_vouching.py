"""Heartbeats that are said and heard in the machine's place: what a link makes of them, and when it goes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.raft.links import Vouching
from tpc_broker.raft.messages import Heartbeat
from tpc_broker.raft.settings import Settings

if TYPE_CHECKING:
    from tpc_broker.raft.items import Address

SETTINGS = Settings()


class Other(Vouching):
    """Of one node. `stretches`: since when others were heard without a gap, and when last."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.works = True
        self.begun: set[Address] = set()
        self.stretches: dict[Address, tuple[int, int]] = {}

    def begin(self, address: Address) -> bool:
        if self.works:
            self.begun.add(address)
        return self.works

    def end(self, address: Address) -> None:
        self.begun.discard(address)

    def heard(self, address: Address, boot_id: int) -> tuple[int, int] | None:
        is_same = any(node.core.boot_id == boot_id for node in self.node.cluster.nodes if node.address == address)
        return self.stretches.get(address) if is_same else None

    def hear(self, address: Address, now_ms: int) -> None:
        since_ms, last_ms = self.stretches.get(address, (now_ms, now_ms))
        self.stretches[address] = (now_ms if now_ms - last_ms >= 1_000 else since_ms, now_ms)


class Vouched(Cluster):
    """Nodes whose heartbeats leave elsewhere, too; `silenced` ways take none of those."""

    def __init__(self) -> None:
        super().__init__()
        self.others = [Other(node) for node in self.nodes]
        self.silenced: set[tuple[int, int]] = set()
        for node, other in zip(self.nodes, self.others, strict=True):
            node.core.vouching = other

    def settle(self) -> None:
        for source, other in enumerate(getattr(self, "others", [])):
            for address in other.begun:
                if self.nodes[source].up and (source, address.node) not in self.silenced:
                    self.others[address.node].hear(self.addresses[source], self.now_ms)
        super().settle()

    def heartbeats(self, milliseconds: int) -> int:
        before = len(self.messages(Heartbeat))
        self.run(milliseconds)
        return len(self.messages(Heartbeat)) - before


@pytest.fixture
def cluster() -> Vouched:
    made = Vouched()
    made.elect()
    made.run(1_000)
    return made


def test_a_core_that_is_vouched_for_says_little_itself_and_is_believed_in(cluster: Vouched) -> None:
    leader = cluster.elect()
    term = leader.group().term
    changed = [node.core.links_changed for node in cluster.nodes]
    rounds = 10
    assert cluster.heartbeats(rounds * SETTINGS.vouched_heartbeat_ms) <= 6 * (rounds + 1)
    assert cluster.elect() is leader
    assert leader.group().term == term
    assert [node.core.links_changed for node in cluster.nodes] == changed
    assert min(node.core.next_deadline_ms() for node in cluster.nodes) > cluster.now_ms


def test_a_tick_looks_at_all_links_so_that_there_is_about_one_a_second(cluster: Vouched) -> None:
    core = cluster.nodes[0].core
    began_ms, ticks = cluster.now_ms, 0
    while cluster.now_ms - began_ms < 10_000:
        due_ms = core.next_deadline_ms()
        cluster.run(max(5, due_ms - cluster.now_ms))
        ticks += 1
    assert ticks <= 20


def test_what_is_heard_elsewhere_is_no_more_when_it_ends_there(cluster: Vouched) -> None:
    leader = cluster.elect()
    number = leader.address.node
    cluster.isolate(number)
    cluster.silenced = set(cluster.blocked)
    cluster.run_until(lambda: cluster.elect() is not leader, 5_000)
    cluster.heal()
    cluster.silenced.clear()
    cluster.run_until(lambda: leader.group().leader == cluster.elect().group().me)
    assert not leader.group().is_leader


def test_who_has_resigned_says_so_itself_until_it_was_repeated_for_long(cluster: Vouched) -> None:
    leader = cluster.elect()
    other = cluster.others[leader.address.node]
    assert len(other.begun) == 2
    leader.core.take_back(GROUP, cluster.now_ms)
    leader.group().resign(cluster.now_ms)
    assert other.begun == set()
    cluster.settle()
    before = len(cluster.messages(Heartbeat))
    cluster.run(1_000)
    told = [beat for beat in cluster.messages(Heartbeat)[before:] if beat.resigned]
    assert len(told) >= 2 * 9
    assert other.begun == set()
    cluster.run(SETTINGS.resign_repeat_ms + SETTINGS.heartbeat_ms)
    assert len(other.begun) == 2


def test_what_breaks_is_made_good_by_the_machine_at_once(cluster: Vouched) -> None:
    core, other = cluster.nodes[0].core, cluster.others[0]
    told: list[int] = []
    core.on_due_earlier = lambda: told.append(core.next_deadline_ms())
    other.works = False
    core.vouching_lost(cluster.addresses[1], cluster.now_ms)
    assert told == [cluster.now_ms]
    assert other.begun == {cluster.addresses[2]}
    assert cluster.heartbeats(1_000) >= 9


def test_a_silence_that_nobody_looked_at_is_one_all_the_same(cluster: Vouched) -> None:
    core, other = cluster.nodes[0].core, cluster.others[0]
    link = core.links[cluster.addresses[1]]
    core.tick(cluster.now_ms)
    changed = core.links_changed
    cluster.now_ms += 1_500
    other.hear(cluster.addresses[1], cluster.now_ms)
    other.hear(cluster.addresses[2], cluster.now_ms)
    assert not link.is_fresh(cluster.now_ms)
    core.tick(cluster.now_ms)
    assert core.links_changed == changed + 2
    assert not link.was_fresh
    core.tick(cluster.now_ms + 1)
    assert link.was_fresh
    assert core.links_changed == changed + 4


def test_who_was_refused_or_has_started_anew_is_not_heard_elsewhere(cluster: Vouched) -> None:
    core = cluster.nodes[0].core
    link = core.links[cluster.addresses[1]]
    core.link_refused(cluster.addresses[1], cluster.now_ms)
    core.tick(cluster.now_ms)
    assert not link.was_fresh
    cluster.run_until(lambda: link.was_fresh)
    cluster.nodes[1].crash()
    cluster.nodes[1].restart()  # its heartbeats are of another start than the one that is known
    cluster.blocked.add((1, 0))
    cluster.run(1_500)
    assert not link.is_fresh(cluster.now_ms)


def test_a_core_that_is_not_heard_is_not_told_elsewhere_either(cluster: Vouched) -> None:
    cluster.blocked.add((1, 0))
    cluster.silenced.add((1, 0))
    cluster.run(1_500)
    assert cluster.others[0].begun == {cluster.addresses[2]}
    assert not cluster.nodes[0].core.links[cluster.addresses[1]].is_vouched
