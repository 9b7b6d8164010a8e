"""How many bytes a follower is sent for what it appends, when it is behind, slow, or comes back."""

from __future__ import annotations

from collections import deque

import pytest

from tests.raft.cluster import GROUP, Cluster, Node
from tpc_broker.raft.items import Batch, Item, item_bytes
from tpc_broker.raft.messages import AppendEntries
from tpc_broker.raft.output import ReadItems
from tpc_broker.raft.settings import Settings

BEHIND = 2
SETTINGS = Settings(append_bytes_max=200, inflight_bytes_max=800, ships_to_empty=False)
STEP_MS = 5
MOST = 1.2
"""So many bytes it may be sent for each that it appends."""


class Journal:
    """Of a node, whose entries are durable so long after it has written them."""

    def __init__(self, cluster: Cluster, node: Node, takes_ms: int) -> None:
        self._cluster, self._node, self.takes_ms = cluster, node, takes_ms
        self._written: deque[tuple[int, int]] = deque()
        self._seen = 0
        node.persists = False

    def step(self) -> None:
        last, now_ms = self._node.journal[-1][0], self._cluster.now_ms
        if last > self._seen:
            self._written.extend((now_ms + self.takes_ms, number) for number in range(self._seen + 1, last + 1))
            self._seen = last
        while self._written and self._written[0][0] <= now_ms:
            number = self._written.popleft()[1]
            if number > self._node.durable:
                self._node.persist(number)


class Load:
    """Of a leader that keeps no more in memory than what is not committed; all of it is in its files."""

    def __init__(self, cluster: Cluster, leader: Node, *, takes_ms: int) -> None:
        self.cluster, self.leader = cluster, leader
        self._check, cluster.check = cluster.check, lambda _node: None  # type: ignore[method-assign]  # once: it is slow
        self.files: list[Item] = []
        self.journal = Journal(cluster, cluster.nodes[BEHIND], takes_ms)
        self._kept = leader.group().log.end_offset

    @property
    def lacks(self) -> int:
        """Records."""
        return self.leader.group().log.end_offset - self.cluster.nodes[BEHIND].group().log.end_offset

    def run(self, milliseconds: int, records: int) -> None:
        """So many in each step."""
        until = self.cluster.now_ms + milliseconds
        while self.cluster.now_ms < until:
            self.step(records)

    def step(self, records: int = 0) -> None:
        cluster, leader, machine = self.cluster, self.leader, self.leader.group()
        if records:
            cluster.propose(leader, records)
        self.files += [item for item in machine.log.items if isinstance(item, Batch) and item.base_offset >= self._kept]
        self._kept = machine.log.end_offset
        cluster.run(STEP_MS)
        self.journal.step()
        cluster.settle()
        reads, leader.events = leader.told(ReadItems), []
        for group, target, prev, most in reads:
            found = [item for item in self.files if item.position > prev][: most // 10]
            leader.core.items_read(group, target, prev, found, cluster.now_ms)
        cluster.settle()
        leader.core.release(GROUP, machine.commit)

    def is_led_by(self, number: int) -> None:
        """From now on; nobody writes meanwhile."""
        self.leader = self.cluster.hand_to(number)
        self._kept = self.leader.group().log.end_offset

    def until_it_has_all(self) -> None:
        for _ in range(6_000):
            self.step()
            if self.leader.group().peers[self.cluster.nodes[BEHIND].group().me].match == self._kept:
                for node in self.cluster.nodes:
                    self._check(node)
                return
        raise AssertionError(f"it lacks {self.lacks} still")

    def sent_bytes(self) -> int:
        """To the one that is behind."""
        sent = [one for one in self.cluster.messages(AppendEntries) if one.target.node == BEHIND]
        return sum(item_bytes(item) for one in sent for item in one.items if isinstance(item, Batch))

    def appended_bytes(self) -> int:
        return 10 * self.cluster.nodes[BEHIND].group().log.end_offset


def begin(takes_ms: int) -> Load:
    cluster = Cluster(settings=SETTINGS)
    leader = cluster.hand_to(0)
    cluster.run(500)
    cluster.sent.clear()
    return Load(cluster, leader, takes_ms=takes_ms)


@pytest.mark.parametrize("takes_ms", [5, 40, 200, 400])
def test_a_follower_whose_disk_is_slow_is_sent_everything_once(takes_ms: int) -> None:
    """What is not in memory any more is read for it, while what it was sent before is acknowledged bit by bit."""
    load = begin(takes_ms)
    load.run(1_000, 2)
    load.until_it_has_all()
    assert load.sent_bytes() <= MOST * load.appended_bytes()


@pytest.mark.parametrize("takes_ms", [5, 40, 200, 400])
def test_a_follower_that_comes_back_is_sent_once_what_it_lacks(takes_ms: int) -> None:
    load = begin(takes_ms)
    load.run(500, 2)
    load.cluster.isolate(BEHIND)
    load.run(1_500, 2)
    load.cluster.heal()
    load.run(500, 1)
    load.until_it_has_all()
    assert load.sent_bytes() <= MOST * load.appended_bytes()


@pytest.mark.parametrize("takes_ms", [5, 40, 200, 400])
def test_a_follower_that_comes_back_to_another_leader_is_sent_once_what_it_lacks(takes_ms: int) -> None:
    """Nearly all of that is of older terms."""
    load = begin(takes_ms)
    load.run(500, 2)
    load.cluster.isolate(BEHIND)
    for number in (1, 0, 1):
        load.run(500, 2)
        load.is_led_by(number)
    load.cluster.heal()
    load.run(500, 1)
    load.until_it_has_all()
    assert load.sent_bytes() <= MOST * load.appended_bytes()
