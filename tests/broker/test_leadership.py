"""Which leaderships a core gives away by itself: to nodes that lead too little, and all of them when drained."""

from __future__ import annotations

import math
import uuid
from types import SimpleNamespace

import pytest
import trio

from tpc_broker.broker.leadership import GIVEN_UP_S, LOOK_S, STEP_S, Leadership
from tpc_broker.broker.pace import HELD_SHARE, REST_S_MAX
from tpc_broker.broker.view import NOBODY, ClusterView, Leader
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import BrokerConfigChanged, NodeAddress, NodeRegistered, TopicCreated
from tpc_broker.metadata.replica_moves import DRAINED, moving
from tpc_broker.model import (
    CoreId,
    FirstVoter,
    LeaderEpoch,
    MetadataVersion,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
)

TOPIC = TopicId(uuid.UUID(int=5))
HERE = NodeId(1)
NODES = tuple(map(NodeId, (1, 2, 3)))


class Nodes:
    """This core is node 1's, and leads all 20 partitions: half of them should be led by node 2, half by node 1."""

    def __init__(self, should_lead: list[int], draining: int = 0) -> None:
        replicas = tuple(
            tuple(Replica(NodeId(node), CoreId(0)) for node in (first, *(other for other in NODES if other != first)))
            for first in should_lead
        )
        voters = tuple(tuple(FirstVoter(node, 7) for node in NODES) for _ in should_lead)
        records: list = [NodeRegistered(node, 7, 1, "", "1", NodeAddress("h", node), ()) for node in NODES]
        records.append(TopicCreated("t", TOPIC, (CoreId(0),) * len(should_lead), 1, replicas=replicas, voters=voters))
        if draining:
            records.append(BrokerConfigChanged(draining * 1024, "node.draining", "true"))
        self.view = ClusterView(HERE, 1, (Listener("L", ListenerMode.PER_CORE_PORT, (), (Address("h", 1),)),), None)
        self.view.image = ClusterImage().apply(records, MetadataVersion(len(records)))
        self.keys = [TopicPartition(TOPIC, PartitionIndex(index)) for index in range(len(should_lead))]
        self.view.note_leaders((key, Leader(LeaderEpoch(1), 0, Replica(HERE, CoreId(0)), NODES)) for key in self.keys)
        self.settings = SimpleNamespace(
            auto_leader_rebalance_enable=True, leader_imbalance_check_interval_seconds=10,
            leader_imbalance_per_broker_percentage=10,
        )  # fmt: skip
        self.synced = set(NODES)
        self.full: set[NodeId] = set()
        self.given: dict[int, int] = {}
        self.under_way: list[TopicPartition] = []
        self._given_now, self.to_elect = trio.open_memory_channel[TopicPartition](math.inf)
        self.under_way_most = 0
        self.elected_after_s: float | None = 0.01
        """None: never."""

    def in_sync(self, _key) -> tuple[NodeId, ...]:
        return tuple(node for node in NODES if node in self.synced)

    def has_space(self, _key, node) -> bool:
        return node not in self.full

    def transfer(self, key: TopicPartition, node: NodeId) -> bool:
        self.given[key.partition] = node
        self.under_way.append(key)
        self._given_now.send_nowait(key)
        self.under_way_most = max(self.under_way_most, len(self.under_way))
        return True

    async def elect(self, after_s: float) -> None:
        """Whoever is given something leads it so much later, and says so; nobody does meanwhile."""
        async with trio.open_nursery() as nursery:
            async for key in self.to_elect:
                nursery.start_soon(self.have_led, key, after_s)

    async def have_led(self, key: TopicPartition, after_s: float) -> None:
        self.view.note_leaders([(key, Leader(LeaderEpoch(1), 1, NOBODY))])
        await trio.sleep(after_s)
        place = Replica(NodeId(self.given[key.partition]), CoreId(0))
        self.view.note_leaders([(key, Leader(LeaderEpoch(2), 0, place, NODES))])
        self.under_way.remove(key)

    async def run(self, seconds: float) -> dict[int, int]:
        core = SimpleNamespace(
            view=self.view, core_id=CoreId(0), settings=self.settings, mailboxes=SimpleNamespace(serve=lambda *_: None)
        )
        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(Leadership(core, self, self).run)
                if self.elected_after_s is not None:
                    nursery.start_soon(self.elect, self.elected_after_s)
        return self.given


async def test_leaderships_go_back_to_whom_they_belong_when_there_are_many(autojump_clock):
    some = [2] * 2 + [1] * 18
    assert await Nodes(some).run(9) == {}, "not before it is time"
    assert await Nodes(some).run(11) == {0: 2, 1: 2}, "all that node 2 should lead is elsewhere"
    off = Nodes(some)
    off.settings.auto_leader_rebalance_enable = False
    assert await off.run(30) == {}
    tolerant = Nodes(some)
    tolerant.settings.leader_imbalance_per_broker_percentage = 100
    assert await tolerant.run(30) == {}


async def test_a_leadership_goes_to_nobody_who_lacks_something_or_is_gone_or_draining_or_full(autojump_clock):
    behind, gone, draining, full = Nodes([2] * 3), Nodes([2] * 3), Nodes([2] * 3, draining=2), Nodes([2] * 3)
    behind.synced.discard(NodeId(2))
    gone.view.note_absent(frozenset({NodeId(2)}))
    full.full.add(NodeId(2))
    for nodes in (behind, gone, draining, full):
        assert await nodes.run(30) == {}


async def test_a_drained_node_gives_everything_away(autojump_clock):
    assert await Nodes([1, 2, 3], draining=1).run(5) == {0: 2, 1: 2, 2: 3}
    with_one = Nodes([1, 2, 3], draining=1)
    with_one.view.note_absent(frozenset({NodeId(2)}))
    assert await with_one.run(5) == {0: 3, 1: 3, 2: 3}
    alone = Nodes([1, 2, 3], draining=1)
    alone.view.note_absent(frozenset({NodeId(2), NodeId(3)}))
    assert await alone.run(5) == {}, "better led here than by nobody"


@pytest.mark.parametrize(("draining", "should_lead"), [(1, [1] * 30), (0, [2] * 30)], ids=["drained", "preferred"])
async def test_leaderships_are_handed_over_one_at_a_time(autojump_clock, draining, should_lead):
    """Until the others know who leads them now, however long that takes."""
    nodes = Nodes(should_lead, draining)
    nodes.elected_after_s = 0.5
    assert len(await nodes.run(10 + 30 * (0.5 + REST_S_MAX + 2 * STEP_S))) == 30
    assert nodes.under_way_most == 1


async def test_hand_overs_hold_up_producers_for_a_small_share_of_the_time(autojump_clock):
    """And where elections take long, with a rest of a second: a node that is drained is to be empty some time."""
    for took_s, pause_s in ((0.005, STEP_S / HELD_SHARE), (0.5, 0.5 + REST_S_MAX)):
        nodes = Nodes([1] * 30, draining=1)
        nodes.elected_after_s = took_s
        given = len(await nodes.run(20))
        assert (20 - LOOK_S) / (pause_s + 2 * STEP_S) - 2 <= given <= 20 / pause_s + 1


async def test_who_does_not_take_its_leaderships_does_not_hold_up_the_others_for_ever(autojump_clock):
    nodes = Nodes([1] * 10, draining=1)
    nodes.elected_after_s = None
    assert len(await nodes.run(1)) == 1
    assert len(await nodes.run(1 + 10 * (GIVEN_UP_S + REST_S_MAX + STEP_S))) == 10


async def test_a_drained_node_hands_over_to_who_will_be_preferred(autojump_clock):
    """Its replica of the first partition is to go to node 2, and node 3 to be preferred then."""
    nodes = Nodes([1, 1], draining=1)
    topic = nodes.view.image.topics[TOPIC]
    wanted = (Replica(NodeId(3), CoreId(0)), Replica(NodeId(2), CoreId(0)))
    records = [moving(topic, 0, wanted, DRAINED, 1, 1)]
    nodes.view.image = nodes.view.image.apply(records, MetadataVersion(nodes.view.image.version + 1))
    assert await nodes.run(5) == {0: 3, 1: 2}
