"""What one core knows of the whole node and cluster: the image, which cores are up, every partition's leader epoch.

The image is replayed from the metadata log (durable). Who is up comes from the supervisor, leaders and their epochs
from the leaders themselves (soft: a core that starts asks for them). Of a partition with several replicas the leader
says where it is, too.
"""

from __future__ import annotations

import uuid
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.metadata.image import ClusterImage, TopicImage
from tpc_broker.metadata.listeners import ListenerMode
from tpc_broker.model import (
    NO_LEADER_EPOCH,
    NOT_HERE,
    BrokerId,
    CoreId,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    Replica,
    TopicId,
    TopicPartition,
    broker_id_of,
    core_of,
    node_of,
    shared_broker_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from tpc_broker.metadata.listeners import Listener

TopicKey = str | uuid.UUID


NOBODY: Final = Replica(NodeId(-1), NOT_HERE)
"""In place of a leader's place: that epoch is over."""


class Leader(NamedTuple):
    """What a leader has told of itself. Of one epoch the highest serial counts."""

    epoch: LeaderEpoch
    serial: int = 0
    place: Replica | None = None
    """None: where the image says, since there is one replica."""
    in_sync: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a core answers, as clients are told."""

    broker_id: BrokerId
    core: CoreId
    host: str
    port: int
    rack: str | None


NO_LEADER: Final = Leader(NO_LEADER_EPOCH)


class ClusterView:
    core = NOT_HERE
    """The one that has this view."""

    def __init__(
        self, node: NodeId, cores: int, listeners: Sequence[Listener], rack: str | None, *, in_cluster: bool = False
    ) -> None:
        """`in_cluster`: the node is one of several."""
        self._image = ClusterImage()
        self.on_changed: Callable[[], None] = lambda: None
        """Called at once when anything that Metadata tells is another."""
        self.on_leader: Callable[[TopicPartition], None] = lambda _partition: None
        """Called when a leader has told something new."""
        self.on_told_changed: Callable[[TopicPartition | None], None] = lambda _partition: None
        """Called with a partition of which Metadata tell something else; None: of any. What is another in the image of
        a topic is seen there.
        """
        self.node = node
        self.cores = cores
        self._shared = tuple(listener.mode is ListenerMode.SHARED for listener in listeners)
        self._names = tuple(listener.name for listener in listeners)
        self._absent: frozenset[NodeId] = frozenset()
        self._is_cut_off = False
        self._controller: NodeId | None = None
        self._sharing: frozenset[tuple[str, NodeId]] = frozenset()
        """Listeners, by name, that all cores of a node share."""
        self._of_nodes: dict[int, tuple[Endpoint, ...]] = {}
        """Endpoints of all nodes by listener, made when they are first asked for."""
        self._endpoints = tuple(
            tuple(
                Endpoint(
                    _broker_id(Replica(node, CoreId(core)), listener, in_cluster=in_cluster),
                    CoreId(core), address.host, address.port, rack,
                )
                for core, address in enumerate(listener.advertised)
            )
            for listener in listeners
        )  # fmt: skip
        self._up: set[CoreId] = set()
        self._heard: set[CoreId] = set()
        self._leaders: dict[TopicPartition, Leader] = {}

    @property
    def image(self) -> ClusterImage:
        return self._image

    @image.setter
    def image(self, image: ClusterImage) -> None:
        for node, known in self._image.nodes.items():
            if node not in image.nodes or image.nodes[node].incarnation != known.incarnation:
                self._forget_leaders_on(node)  # its data are others: their epochs have begun anew
        if image.nodes != self._image.nodes:
            self.on_told_changed(None)
        unheard = image.deleted.keys() - self._image.deleted.keys() - self._image.topics.keys()
        self._image = image
        for partition in [each for each in self._leaders if unheard and each.topic_id in unheard]:
            del self._leaders[partition]  # their leaders were faster than the image, in which they never came
        self._sharing = frozenset(_shared_by_all_cores(image))
        self._of_nodes.clear()
        self.on_changed()

    # -- nodes -----------------------------------------------------------------------------------------------------

    @property
    def absent(self) -> frozenset[NodeId]:
        """Nodes of the cluster that seem to be gone: a hint."""
        return self._absent

    @property
    def is_cut_off(self) -> bool:
        """Whether this node is, from most of the others, which know better who leads what, and who is gone."""
        return self._is_cut_off

    def note_absent(self, nodes: frozenset[NodeId], *, is_cut_off: bool = False) -> None:
        self._absent, self._is_cut_off = nodes, is_cut_off
        self._of_nodes.clear()
        self.on_told_changed(None)
        self.on_changed()

    @property
    def controller(self) -> NodeId | None:
        """The node that leads the cluster's metadata: a hint."""
        return self._controller

    @controller.setter
    def controller(self, node: NodeId | None) -> None:
        if node != self._controller:
            self._controller = node
            self.on_changed()

    def place_of(self, topic: TopicImage, index: int) -> Replica:
        """Where the leader of a partition is; of one that has none, where it should be."""
        if topic.is_replicated(index):
            known = self._leaders.get(TopicPartition(topic.topic_id, PartitionIndex(index)))
            if known is not None and known.place is not None and known.place != NOBODY:
                return known.place
        return topic.leader_place(index, self.node)

    def in_sync(self, topic: TopicImage, index: int) -> tuple[Replica, ...]:
        """The replicas that have all of it, as the leader said; those on nodes that are gone have not."""
        known = self._leaders.get(TopicPartition(topic.topic_id, PartitionIndex(index)))
        if not topic.is_replicated(index) or known is None:
            return (self.place_of(topic, index),)
        return tuple(each for each in topic.places(index) if each.node in known.in_sync and self.is_present(each.node))

    # Rule: Whoever is told an address is told that of the listener that its connection came to, also from a prepared
    # answer. See also native/net/connection_accept.c, native/requests/prepared.c. Held by
    # tests/engine/test_connections.py, tests/engine/test_prepared.py, tests/integration/test_listeners.py.
    def endpoint_at(self, listener: int, place: Replica) -> Endpoint | None:
        """Where a core of any node is reached by clients of a listener; None: not by them, or not known."""
        if place.node == self.node:
            return self.endpoint(listener, place.core)
        broker = self.broker_id(self._names[listener], place)
        return next((each for each in self._others(listener) if each.broker_id == broker), None)

    def broker_id(self, listener_name: str, place: Replica) -> BrokerId:
        """What clients of a listener call a core of a node of the cluster."""
        return broker_id_of(place.node, CoreId(0) if self._shares(listener_name, place.node) else place.core)

    def places_of_broker(self, listener_name: str, broker: int) -> tuple[Replica, ...]:
        """The cores that a broker id names to clients of a listener; none when there is no such broker. Where a
        node's cores share the listener its first broker's id names them all, and the others' ids name those.
        """
        if not self._image.nodes:
            numbers = range(len(self._names))
            listener = next((number for number in numbers if self._names[number] == listener_name), 0)
            named = (each for each in self._endpoints[listener] if each.broker_id == broker)
            return tuple(Replica(self.node, each.core) for each in named)
        known = self._image.nodes.get(node_of(BrokerId(broker))) if broker >= 0 else None
        core = core_of(BrokerId(broker))
        if known is None or core >= known.cores:
            return ()
        cores = range(known.cores) if not core and self._shares(listener_name, known.node) else (core,)
        return tuple(Replica(known.node, CoreId(each)) for each in cores)

    def is_meant(self, listener: int, core: CoreId, broker: int) -> bool:
        """Whether a client of a listener that means a broker is right at this core. Where the cores share an address it
        cannot choose, so any core of the node is right.
        """
        if broker == self.endpoint(listener, core).broker_id:
            return True
        return self.is_shared(listener) and node_of(BrokerId(broker)) == self.node

    def _shares(self, listener_name: str, node: NodeId) -> bool:
        """Whether all cores of a node of the cluster are at one address, to clients of a listener."""
        return (listener_name, node) in self._sharing

    def is_present(self, node: NodeId) -> bool:
        return node == self.node or self._is_cut_off or node not in self._absent

    def _others(self, listener: int) -> tuple[Endpoint, ...]:
        """Endpoints of the other nodes: of their listener of the same name."""
        found = self._of_nodes.get(listener)
        if found is None:
            name = self._names[listener]
            found = self._of_nodes[listener] = tuple(
                Endpoint(broker_id_of(node, CoreId(core)), CoreId(core), *address, registered.rack or None)
                for node, registered in sorted(self._image.nodes.items())
                if node != self.node and self.is_present(node)
                for core, address in enumerate(dict(registered.listeners).get(name, ()))
                if not core or not self._shares(name, node)
            )
        return found

    # -- cores -----------------------------------------------------------------------------------------------------

    def is_shared(self, listener: int) -> bool:
        """Whether its clients see one broker in place of all cores."""
        return self._shared[listener]

    def controller_id(self, listener: int) -> BrokerId:
        """The broker that decides changes of the metadata; while none is known this node's, which takes them too, or
        any other one's where this one is cut off.
        """
        node = self.node if self._controller is None else self._controller
        found = self.endpoint_at(listener, Replica(node, CoreId(0)))
        if self.is_cut_off and node == self.node and (others := self._others(listener)):
            found = others[0]
        return (found or self.endpoint(listener, CoreId(0))).broker_id

    def listener_name(self, listener: int) -> str:
        return self._names[listener]

    def endpoints(self, listener: int) -> tuple[Endpoint, ...]:
        """All brokers as clients of a listener know them, also a core that is being restarted: it stays in Metadata.
        Nodes that are gone do not.
        """
        own, others = self._own(listener), self._others(listener)
        return tuple(sorted((*own, *others), key=lambda each: each.broker_id)) if others else own

    def to_be_asked(self, listener: int, leaders: Collection[int]) -> tuple[Endpoint, ...]:
        """The same for clients that work with partitions of these leaders. Those of a node that is cut off are to ask
        the others, where it leads nothing of what they work with.
        """
        others = self._others(listener)
        leads = any(each.broker_id in leaders for each in self._own(listener))
        return others if others and self.is_cut_off and not leads else self.endpoints(listener)

    def _own(self, listener: int) -> tuple[Endpoint, ...]:
        return self._endpoints[listener][:1] if self._shared[listener] else self._endpoints[listener]

    def endpoint(self, listener: int, core: CoreId) -> Endpoint:
        return self._endpoints[listener][core]

    def set_up(self, cores: Iterable[CoreId]) -> set[CoreId]:
        """Which cores are up now; returns those that came up since the last time."""
        up = set(cores)
        came = up - self._up
        self._up = up
        self._heard.clear()
        self.on_told_changed(None)
        self.on_changed()
        return came

    def note_heard(self, core: CoreId) -> None:
        """A core called, so it is up: its word may be faster than the supervisor's."""
        if core not in self._heard:
            self._heard.add(core)
            self.on_told_changed(None)
            self.on_changed()

    def is_up(self, core: CoreId) -> bool:
        return core in self._up or core in self._heard

    def others_up(self, me: CoreId) -> list[CoreId]:
        return sorted(core for core in self._up | self._heard if core != me)

    # -- topics and leaders ----------------------------------------------------------------------------------------

    def topic(self, key: TopicKey) -> TopicImage | None:
        return self.image.topic(key) if isinstance(key, str) else self.image.topic_by_id(TopicId(key))

    def note_leaders(self, leaders: Iterable[tuple[TopicPartition, Leader]]) -> None:
        """What leaders have told. An epoch never falls: an old message that arrives late changes nothing. Epoch -1:
        the only replica had to be given up, and there is no leader. Of a deleted topic nothing is taken: that its
        leaders end comes behind the image in which it is gone, and nobody would forget it again.
        """
        for partition, leader in leaders:
            if self._image.is_deleted(partition.topic_id):
                continue
            if leader.epoch == NO_LEADER_EPOCH:
                self._leaders.pop(partition, None)
                self.on_told_changed(partition)
                self.on_changed()
            elif leader[:2] > self._leaders.get(partition, NO_LEADER)[:2]:
                self._leaders[partition] = leader
                self.on_told_changed(partition)
                self.on_changed()
                self.on_leader(partition)

    def told(self, partition: TopicPartition) -> Leader:
        """What its leader has told last; NO_LEADER: nothing."""
        return self._leaders.get(partition, NO_LEADER)

    def forget_leaders(self, topic: TopicImage) -> None:
        for index in range(topic.partitions_count):
            self._leaders.pop(TopicPartition(topic.topic_id, PartitionIndex(index)), None)
        self.on_told_changed(None)
        self.on_changed()

    def leader_epoch(self, partition: TopicPartition) -> LeaderEpoch | None:
        """None: nobody leads it, or has not said so yet."""
        known = self._leaders.get(partition)
        return None if known is None or known.place == NOBODY else known.epoch

    def is_led_since(self, topic: TopicImage, index: PartitionIndex, epoch: LeaderEpoch) -> bool:
        """Of a partition that leaves this core, which knew it in that epoch: whether clients can be sent to who leads
        it, or it is nowhere on this node. A follower changes cores in the midst of its leader's epoch.
        """
        partition, owner = TopicPartition(topic.topic_id, index), topic.owner_on(self.node, index)
        known, place = self.leader_epoch(partition), self.told(partition).place
        if owner is None or known is None:
            return owner is None
        if not topic.is_replicated(index):
            return owner != self.core and known > epoch
        is_on_another_node = place is not None and place.node != self.node
        return known > epoch or (known == epoch and is_on_another_node)

    def leaders_known(self, partitions: Iterable[TopicPartition]) -> list[tuple[TopicPartition, Leader]]:
        """As they are to be told; NO_LEADER for those that nobody leads."""
        return [(partition, self._leaders.get(partition, NO_LEADER)) for partition in partitions]

    def leaders_of(self, core: CoreId) -> Iterator[tuple[TopicPartition, Leader]]:
        for partition, leader in self._leaders.items():
            if self._place(partition, leader) == (self.node, core):
                yield partition, leader

    def _place(self, partition: TopicPartition, leader: Leader) -> Replica | None:
        """None: there is no such partition."""
        topic = self.image.topics.get(partition.topic_id)
        if topic is None or partition.partition >= topic.partitions_count:
            return None
        return topic.leader_place(partition.partition, self.node) if leader.place is None else leader.place

    def leads_of_nodes(self) -> Counter[NodeId]:
        """How many partitions each node is known to lead, in one pass."""
        found: Counter[NodeId] = Counter()
        for partition, leader in self._leaders.items():
            topic = self._image.topics.get(partition.topic_id)
            if leader.place != NOBODY and topic is not None and partition.partition < topic.partitions_count:
                place = leader.place if topic.is_replicated(partition.partition) else None
                found[(place or topic.leader_place(partition.partition, self.node)).node] += 1
        return found

    def leaders_elsewhere(self) -> Iterator[tuple[TopicPartition, Leader]]:
        """Those not led on this node."""
        for partition, leader in self._leaders.items():
            place = self._place(partition, leader)
            if place is not None and place.node != self.node:
                yield partition, leader

    def leaders_on(self, nodes: Collection[NodeId]) -> Iterator[tuple[TopicPartition, Leader]]:
        """Those that are known to be led on some nodes."""
        for partition, leader in self._leaders.items():
            place = self._place(partition, leader)
            if place is not None and place.node in nodes:
                yield partition, leader

    def _forget_leaders_on(self, node: NodeId) -> None:
        for partition, leader in list(self._leaders.items()):
            place = self._place(partition, leader)
            topic = self.image.topics.get(partition.topic_id)
            if topic is not None and topic.replicas and place is not None and place.node == node:
                del self._leaders[partition]

    def leader_of(self, listener: int, key: TopicKey, index: int) -> tuple[BrokerId, LeaderEpoch] | None:
        """Broker id and epoch of a partition's leader, for clients of a listener; None when it is not known or not
        available.
        """
        topic = self.topic(key)
        if topic is None:
            return None
        partition = TopicPartition(topic.topic_id, PartitionIndex(index))
        epoch = self.leader_epoch(partition)
        if not 0 <= index < topic.partitions_count or epoch is None:
            return None
        place = self.place_of(topic, index)
        if topic.is_replicated(index) and place == (self.node, self.core):
            return None  # not any more, or not yet
        endpoint = self.endpoint_at(listener, place)
        return None if endpoint is None else (endpoint.broker_id, epoch)


def _broker_id(place: Replica, listener: Listener, *, in_cluster: bool) -> BrokerId:
    """A node of several that has one address is called what its first core is called elsewhere: tools name nodes so,
    and one with a single core has no other name.
    """
    if listener.mode is not ListenerMode.SHARED:
        return broker_id_of(*place)
    return broker_id_of(place.node, CoreId(0)) if in_cluster else shared_broker_id_of(place.node)


def _shared_by_all_cores(image: ClusterImage) -> Iterator[tuple[str, NodeId]]:
    """Names of listeners, and the nodes whose cores have registered one address for all."""
    for node, registered in image.nodes.items():
        for name, addresses in registered.listeners:
            if len(set(addresses)) == 1:
                yield name, node
