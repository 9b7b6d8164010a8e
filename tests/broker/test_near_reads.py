"""Who is sent to which replica, and which follower answers (KIP-392): the rules, with what decides set by hand."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest

from tpc_broker.broker.near_reads import NearReads
from tpc_broker.broker.view import NOBODY, ClusterView, Leader
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.records import BrokerConfigChanged, NodeAddress, NodeRegistered, TopicCreated
from tpc_broker.metadata.replica_config import LEADER_SELECTOR, RACK_AWARE_SELECTOR
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
KEY = TopicPartition(TOPIC, PartitionIndex(0))
HERE = NodeId(1)
RACKS = {1: "a", 2: "b", 3: "b", 4: "c", 5: ""}
NODES = tuple(map(NodeId, RACKS))
TERM = 7
LISTENER = 0


class OneOfFive:
    """A core of node 1, of five that have a replica each."""

    def __init__(self, selector: str | None = RACK_AWARE_SELECTOR) -> None:
        replicas = (tuple(Replica(node, CoreId(0)) for node in NODES),)
        voters = (tuple(FirstVoter(node, 7) for node in NODES),)
        listeners = (Listener("L", ListenerMode.PER_CORE_PORT, (), (Address("h", 1),)),)
        self.view = ClusterView(HERE, 1, listeners, "a")
        self.view.image = ClusterImage().apply(
            [
                *(
                    NodeRegistered(node, 7, 1, RACKS[node], "1", NodeAddress("h", node), (("L", (("h", node),)),))
                    for node in NODES
                ),
                TopicCreated("t", TOPIC, (CoreId(0),), 1, replicas=replicas, voters=voters),
            ],
            MetadataVersion(6),
        )
        self.partition = SimpleNamespace(
            key=KEY, handle=11, is_replicated=True, led_epoch=None, followed_epoch=None, near_racks=0,
            leader_epoch=TERM, bounds=lambda: SimpleNamespace(log_start_offset=50),
        )  # fmt: skip
        self.synced: tuple[NodeId, ...] = NODES
        self.held_offsets = dict.fromkeys(NODES[1:], 100)
        self.following: tuple[NodeId, int] | None = None
        self.told: list[tuple[TopicPartition, int]] = []
        self.is_link_down = False
        self.racks: list[str] = []
        self.near_racks: list[int] = []
        self.served: list[int | None] = []
        core = SimpleNamespace(
            view=self.view,
            settings=SimpleNamespace(replica_selector_class=selector, broker_rack="a"),
            partitions=SimpleNamespace(get=lambda key: self.partition if key == KEY else None,
                                       opened=lambda: [self.partition]),
            plane=SimpleNamespace(set_racks=self._set_racks, serve_reads=lambda _handle, term: self.served.append(term),
                                  set_near_racks=lambda _handle, racks: self.near_racks.append(racks)),
            purgatory=SimpleNamespace(advanced=lambda _handle: None),
        )  # fmt: skip
        self.near = NearReads(core, self, self, self)
        self.view.on_leader = self.near.look

    def _set_racks(self, names: list[str]) -> None:
        self.racks = names

    # The port.

    def on_moved(self, moved) -> None:
        self.moved = moved

    def on_lacking(self, lacks) -> None:
        self.lacks = lacks

    def followed(self, _key) -> tuple[NodeId, int] | None:
        return self.following

    def held(self, _key) -> dict[NodeId, int]:
        return self.held_offsets

    def in_sync(self, _key) -> tuple[NodeId, ...]:
        return self.synced

    async def tell_start(self, key: TopicPartition, log_start_offset: int) -> None:
        if self.is_link_down:
            raise MailboxError("no link")
        self.told.append((key, log_start_offset))

    # What happens.

    def lead(self) -> None:
        self.partition.led_epoch = LeaderEpoch(TERM)
        self.near.led(KEY)

    def preferred(self, rack: str, offset: int = 100) -> int | None:
        found = self.near.preferred(self.partition, offset, rack, LISTENER)
        return None if found is None else found // 1024

    def tell(self, node: int, epoch: int = TERM, serial: int = 0, in_sync: tuple[NodeId, ...] = NODES) -> None:
        place = NOBODY if node < 0 else Replica(NodeId(node), CoreId(0))
        self.view.note_leaders([(KEY, Leader(LeaderEpoch(epoch), serial, place, in_sync))])


def test_a_consumer_is_sent_to_a_replica_in_its_rack_that_is_in_sync_and_has_it():
    world = OneOfFive()
    world.lead()
    assert [world.preferred(rack) for rack in ("a", "b", "c", "", "d")] == [None, 2, 4, None, None]
    world.held_offsets[NodeId(3)] = 101
    assert world.preferred("b") == 3, "it has more"
    assert world.preferred("b", 101) == 3
    assert world.preferred("b", 102) is None
    world.synced = (HERE, NodeId(2))
    assert (world.preferred("b"), world.preferred("b", 101), world.preferred("c")) == (2, None, None)
    world.view.note_absent(frozenset({NodeId(2)}))
    assert world.preferred("b") is None, "it seems to be gone"


def test_nobody_is_sent_to_a_node_that_drains_or_where_a_listener_is_not():
    world = OneOfFive()
    world.lead()
    drains = BrokerConfigChanged(2 * 1024, "node.draining", "true")
    world.view.image = world.view.image.apply([drains], MetadataVersion(7))
    assert world.preferred("b") == 3
    without = NodeRegistered(NodeId(3), 7, 1, "b", "1", NodeAddress("h", 3), ())
    world.view.image = world.view.image.apply([without], MetadataVersion(8))
    assert world.preferred("b") is None


@pytest.mark.parametrize("selector", [None, LEADER_SELECTOR])
def test_nobody_is_sent_anywhere_unless_that_is_set(selector):
    world = OneOfFive(selector)
    world.lead()
    assert world.preferred("b") is None
    assert world.near_racks == []


def test_who_may_be_sent_away_is_asked_about_and_nobody_else():
    world = OneOfFive()
    world.lead()
    bits = {rack: 1 << number for number, rack in enumerate(world.racks)}
    assert set(bits) == {"b", "c"}, "neither the own rack nor none"
    assert world.near_racks == [bits["b"] | bits["c"]]
    world.synced = (HERE, NodeId(3), NodeId(5))
    world.near.led(KEY)
    world.near.led(KEY)
    assert world.near_racks[1:] == [bits["b"]]
    world.partition.led_epoch = None
    world.near.led(KEY)
    assert world.near_racks[2:] == [0]


def test_a_node_that_comes_back_in_another_rack():
    world = OneOfFive()
    world.synced = (HERE, NodeId(5))
    world.lead()
    world.near.look_at_racks()
    assert world.near_racks == []
    again = NodeRegistered(NodeId(5), 7, 1, "e", "1", NodeAddress("h", 5), (("L", (("h", 5),)),))
    world.view.image = world.view.image.apply([again], MetadataVersion(7))
    world.near.look_at_racks()
    assert (world.near_racks, world.racks, world.preferred("e")) == ([1], ["e"], 5)


def test_a_follower_serves_reads_when_its_leader_and_itself_agree():
    world = OneOfFive()
    world.tell(2)
    assert world.served == [], "it does not know yet"
    world.following = NodeId(2), TERM
    world.moved(KEY)
    assert (world.served, world.partition.followed_epoch) == ([TERM], TERM)
    world.tell(2, serial=1, in_sync=(NodeId(2), NodeId(3)))
    assert world.served == [TERM, None], "it is not in sync any more"
    world.tell(2, serial=2)
    world.following = None
    world.moved(KEY)
    assert world.served == [TERM, None, TERM, None], "the leader is silent"
    world.following = NodeId(3), TERM + 1
    world.moved(KEY)
    assert world.partition.followed_epoch is None, "the new leader has not said anything"
    world.tell(3, TERM + 1)
    assert world.partition.followed_epoch == TERM + 1
    world.tell(-1, TERM + 1, serial=1)
    assert world.served[4:] == [TERM + 1, None], "it leads no more"


@pytest.mark.parametrize("following", [(NodeId(2), TERM + 1), (NodeId(2), TERM - 1), (NodeId(3), TERM)])
def test_a_follower_of_another_leader_or_term_serves_none(following):
    world = OneOfFive()
    world.following = following
    world.tell(2)
    assert world.served == []


async def test_a_leader_hears_where_a_follower_begins_before_a_client_comes_back():
    world = OneOfFive()
    await world.near.lacks(world.partition, 51)
    assert world.told == [], "that it lacks what is behind the end its leader knows"
    world.is_link_down = True
    await world.near.lacks(world.partition, 49)
    world.is_link_down = False
    await world.near.lacks(world.partition, 49)
    await world.near.lacks(world.partition, 3)
    assert world.told == [(KEY, 50)], "once, when it was heard"
    world.partition.leader_epoch = TERM + 1
    await world.near.lacks(world.partition, 49)
    assert len(world.told) == 2, "another leader does not know it"


def test_a_leader_sends_nobody_below_where_a_follower_begins():
    world = OneOfFive()
    world.lead()
    world.lacks(KEY, NodeId(2), 60)
    assert (world.preferred("b", 60), world.preferred("b", 59)) == (2, 3)
    world.lacks(KEY, NodeId(3), 60)
    assert world.preferred("b", 59) is None
    world.near.lost(KEY)
    assert world.preferred("b", 59) == 2, "in another term it is to be told anew"


async def test_what_is_told_of_a_partition_that_went_meanwhile_is_not_kept():
    world = OneOfFive()
    world.lacks(KEY, NodeId(2), 60)
    assert not world.near._starts, "it is not led here"
    world.lead()
    world.lacks(KEY, NodeId(2), 60)
    assert world.near._starts
    world.partition.led_epoch = None
    world.near.lost(KEY)
    tell = world.tell_start

    async def goes(key: TopicPartition, log_start_offset: int) -> None:
        await tell(key, log_start_offset)
        world.near._core.partitions.get = lambda _key: None
        world.near.forget(key)

    world.tell_start = goes  # type: ignore[method-assign]
    await world.near.lacks(world.partition, 10)
    assert (world.told, world.near._told, world.near._starts) == ([(KEY, 50)], {}, {})
