"""What leaders without segment space do, over machines on virtual time: they hand over, and do not go round."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import trio
import trio.testing

from tests.raft.cluster import GROUP, Cluster
from tpc_broker import limits
from tpc_broker.errors import CallFailedError, CoreDownError
from tpc_broker.model import CoreId
from tpc_broker.node.replicas.lacking_space import (
    BELIEVED_S,
    LACKING_SPACE,
    LOOK_S,
    TELL_EVERY_S,
    LackingSpace,
)
from tpc_broker.raft.items import Voter
from tpc_broker.raft.messages import TimeoutNow
from tpc_broker.storage.upkeep.segment_space import Lack

KEY = "t-0"
LEAST_S = limits.SPACELESS_MS_MAX / 1000


class OneNode:
    """`CoreReplicas` and its hand-overs, as far as it is asked, of one node of the cluster."""

    def __init__(self, world, node):
        self.world, self.node = world, node
        self.is_full, self.is_of_disk, self.since_s = False, True, 0.0
        self.image = SimpleNamespace(draining=set())
        self.links = self
        self.down, self.unknown = set(), set()
        self.begun = []
        """Instants at which hand-overs began, and their targets."""
        self.parts = LackingSpace(self)
        self.parts.begin(SimpleNamespace(core=node.core, wake=lambda: None), self)

    # of replication

    def lacking(self):
        return {KEY: Lack(self.since_s, 1000, self.is_of_disk)} if self.is_full else {}

    def replicas_here(self):
        return [KEY]

    def machine_of(self, _key):
        return self.node.group()

    look_at = machine_of

    def now_ms(self):
        return self.world.cluster.now_ms

    def others(self):
        return [other.address for other in self.world.cluster.nodes if other is not self.node]

    def transfer(self, _key, node):
        machine = self.node.group()
        if machine.transfer is not None:
            return False
        (target,) = [voter for voter in machine.config.voters if voter.node == node]
        self.begun.append((trio.current_time(), node))
        return self.node.core.transfer_leadership(GROUP, target, self.now_ms()) is None

    # of links

    def is_up(self, address):
        return address not in self.down

    async def tell(self, address, method, payload):
        assert method == LACKING_SPACE
        if address in self.unknown:
            raise CallFailedError("this node does not know what was asked")
        if address in self.down:
            raise CoreDownError("down")
        hello = SimpleNamespace(node=self.node.address.node, core=CoreId(0))
        await self.world.nodes[address.node].parts.serve(hello, payload, [])

    # of the test

    def fill(self, *, is_of_disk=True):
        self.is_full, self.is_of_disk, self.since_s = True, is_of_disk, trio.current_time()


class NodesWithSpace:
    def __init__(self, nursery, count=3):
        self.cluster = Cluster(count)
        self.nodes = [OneNode(self, node) for node in self.cluster.nodes]
        for node in self.nodes:
            nursery.start_soon(node.parts.run)
        self.cluster.elect()

    @property
    def leader(self):
        return next(one for one in self.nodes if one.node is self.cluster.leader())

    def others(self):
        return [one for one in self.nodes if one is not self.leader]

    def terms(self):
        return len(self.cluster.leaders)

    async def run(self, seconds, until=lambda: False):
        """Both clocks together; whether the condition came true."""
        for _ in range(int(seconds * 10)):
            if until():
                return True
            self.cluster.run(100, 50)
            await trio.sleep(0.1)
        return until()


def over_machines(body, count=3):
    """Runs `body(world)` on virtual time."""

    async def main():
        async with trio.open_nursery() as nursery:
            await body(NodesWithSpace(nursery, count))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_leader_without_space_hands_over_and_does_not_get_it_back(caplog):
    async def body(world):
        first = world.leader
        began_s = trio.current_time()
        first.fill()
        assert await world.run(60, lambda: world.cluster.leader() not in (None, first.node))
        ((at_s, target),) = first.begun
        assert LEAST_S <= at_s - began_s <= LEAST_S + 3 * LOOK_S, "what is full for a moment goes on leading"
        assert world.leader.node.address.node == target
        assert world.terms() == 2, "nobody was elected in between"
        assert first.node.group().yields
        await world.run(TELL_EVERY_S)
        others = [one for one in world.nodes if one is not first]
        assert not any(one.parts.has_space(first.node.address) for one in others)
        assert await world.run(20) is False
        assert world.terms() == 2
        first.is_full = False
        await world.run(TELL_EVERY_S)
        assert not first.node.group().yields
        assert all(one.parts.has_space(first.node.address) for one in others)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 2
        assert told[0].startswith("1 replicas have no segment space")
        assert "1 leaderships were handed over, 0 ended" in told[1]

    over_machines(body)


def test_a_disk_that_is_full_for_a_moment_changes_nothing():
    async def body(world):
        first = world.leader
        for _ in range(5):
            first.fill()
            await world.run(LEAST_S - LOOK_S)
            first.is_full = False
            await world.run(LOOK_S)
        assert world.leader is first
        assert world.terms() == 1

    over_machines(body)


def test_a_leader_whose_hand_over_comes_to_nothing_resigns():
    async def body(world):
        first = world.leader
        world.cluster.dropped = lambda _frame, message: isinstance(message, TimeoutNow)
        first.fill()
        assert await world.run(60, lambda: world.cluster.leader() not in (None, first.node))
        assert len(first.begun) > 1, "it was tried more than once"
        assert trio.current_time() - first.begun[0][0] <= limits.SPACELESS_TRANSFER_MS / 1000 + 2
        assert first.node.group().elections_started <= 1

    over_machines(body)


def test_who_is_known_to_have_no_space_is_given_nothing():
    async def body(world):
        first, (full, free) = world.leader, world.others()
        full.fill()
        await world.run(LEAST_S + TELL_EVERY_S + LOOK_S)
        assert not first.parts.has_space(full.node.address)
        first.fill()
        await world.run(30)
        assert world.leader is first, "the two that are left are no majority without one of the full ones"
        full.is_full = False
        assert await world.run(60, lambda: world.cluster.leader() is free.node or world.cluster.leader() is full.node)

    over_machines(body)


def test_of_five_the_one_with_space_leads():
    async def body(world):
        first, (full, *free) = world.leader, world.others()
        full.fill()
        await world.run(LEAST_S + TELL_EVERY_S + LOOK_S)
        free[0].image.draining.add(free[0].node.address.node)
        first.image = free[0].image
        first.fill()
        assert await world.run(60, lambda: world.cluster.leader() not in (None, first.node))
        assert world.leader in free[1:], "one that drains comes behind the others"

    over_machines(body, 5)


def test_nodes_that_are_all_full_do_not_pass_it_on_and_on():
    """Not even where nobody knows of the others: each is tried, and then ever more seldom."""

    async def body(world):
        for one in world.nodes:
            one.unknown = set(one.others())
            one.fill()
        await world.run(200)
        for one in world.nodes:
            instants = [at_s for at_s, _target in one.begun]
            pauses_s = [after - before for before, after in pairwise(instants)]
            assert all(pause_s >= 10 * 2**times for times, pause_s in enumerate(pauses_s)), pauses_s
        assert 3 <= world.terms() <= 3 * 5, "each gives it up after 10 s, 20 s, 40 s, 80 s"

    over_machines(body)


def test_nodes_that_are_all_full_and_say_so_stay_as_they_are():
    async def body(world):
        for one in world.nodes:
            one.fill()
        await world.run(60)
        assert world.terms() == 1

    over_machines(body)


def test_what_was_said_is_forgotten_when_it_is_not_repeated():
    async def body(world):
        first, (other, _third) = world.leader, world.others()
        first.fill()
        await world.run(LEAST_S + TELL_EVERY_S + LOOK_S)
        assert not other.parts.has_space(first.node.address)
        first.down = set(first.others())
        await world.run(BELIEVED_S + LOOK_S)
        assert other.parts.has_space(first.node.address)
        assert other.parts._others == {}

    over_machines(body)


def test_a_follower_that_is_behind_is_handed_nothing():
    async def body(world):
        first, (behind, _near) = world.leader, world.others()
        world.cluster.block(first.node.address.node, behind.node.address.node)
        world.cluster.propose(first.node, 3)
        first.fill()
        await world.run(20)
        assert world.leader is first, "the one that is near has no majority without this one"
        world.cluster.blocked.clear()
        assert await world.run(60, lambda: world.cluster.leader() not in (None, first.node))

    over_machines(body)


def test_trouble_of_one_partition_is_not_told_as_that_of_the_core():
    async def body(world):
        first = world.leader
        first.fill(is_of_disk=False)
        assert await world.run(60, lambda: world.cluster.leader() not in (None, first.node))
        assert not first.parts.is_short
        assert first.node.group().yields, "of this partition"
        assert all(one.parts.has_space(first.node.address) for one in world.others())

    over_machines(body)


def test_a_replica_that_votes_alone_goes_on_leading():
    async def body(world):
        world.nodes[0].fill()
        await world.run(60)
        assert world.terms() == 1
        assert world.leader is world.nodes[0]
        assert Voter(world.nodes[0].node.address.node, 0) == world.nodes[0].node.group().leader

    over_machines(body, 1)
