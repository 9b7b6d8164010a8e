"""The replicas of one core, as the parts of its replication ask for them: who is here, how its machine stands, and the
links to others.

`replication.CoreReplication` adds and removes them. There are none before the first image, which says who this core is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.errors import PartitionOfflineError
from tpc_broker.metadata.image import ClusterImage, changed_partitions
from tpc_broker.model import NodeId, TopicPartition
from tpc_broker.raft.items import Address

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.model import CoreId
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.replica_links import ReplicaLinks
    from tpc_broker.raft.group import Group
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.ports import Bounds, Clock
    from tpc_broker.storage.segments.partition_storage import PartitionStorage
    from tpc_broker.storage.upkeep.segment_space import Lack

GROUPS_KEPT: Final = 1 << 16
"""Names of groups: they are asked for all the time."""


class CoreReplicas:
    """Of one core, touched by its thread only; an answer is of this moment."""

    def __init__(self, core_id: CoreId, plane: RingDataPlane, storage: JournalledStorage, clock: Clock) -> None:
        self.core_id = core_id
        self._plane = plane
        self._storage = storage
        self._clock = clock
        self._identity: NodeIdentity
        self._driver: ReplicaDriver
        self.links: ReplicaLinks
        self.image = ClusterImage()
        self.groups: Mapping[object, Group] = {}
        """Machines, as they were left, while C carries them."""
        self.keys: dict[str, TopicPartition] = {}
        """Of the replicas that take part, by group."""
        self._handles: dict[str, int] = {}
        self._wanted: set[Address] = set()

    # -- who they are ------------------------------------------------------------------------------------------------

    def begin(self, identity: NodeIdentity, driver: ReplicaDriver, links: ReplicaLinks) -> None:
        """There is an image."""
        self._identity, self._driver, self.links = identity, driver, links
        self.groups = driver.core.groups

    def add(self, key: TopicPartition, handle: int) -> None:
        group = group_of(key)
        self.keys[group], self._handles[group] = key, handle

    def remove(self, key: TopicPartition) -> bool:
        """False: it is not here."""
        group = group_of(key)
        self._handles.pop(group, None)
        return self.keys.pop(group, None) is not None

    @property
    def node(self) -> NodeId:
        return NodeId(self._identity.node)

    @property
    def incarnation(self) -> int:
        """Of the node's data directory."""
        return self._identity.incarnation

    def now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def group_name(self, key: TopicPartition) -> str:
        return group_of(key)

    def key_of(self, group: str) -> TopicPartition | None:
        """None: that group has no replica that takes part here."""
        return self.keys.get(group)

    def known(self, groups: Iterable[str]) -> list[TopicPartition]:
        """Of groups, those that have a replica that takes part here."""
        return [self.keys[group] for group in groups if group in self.keys]

    def replicas_here(self) -> list[TopicPartition]:
        """Of the replicas that take part."""
        return list(self.keys.values())

    # -- how they stand ----------------------------------------------------------------------------------------------

    def machine_of(self, key: TopicPartition) -> Group | None:
        """As it was left, while C carries it."""
        return self.groups.get(group_of(key))

    def look_at(self, key: TopicPartition) -> Group | None:
        """A replica's machine, as it stands now."""
        group = group_of(key)
        return self._driver.core.look(group) if group in self.groups else None

    def bounds_of(self, key: TopicPartition) -> Bounds | None:
        """None: it was withdrawn this moment."""
        handle = self._handles.get(group_of(key))
        try:
            return None if handle is None else self._plane.bounds(handle)
        except PartitionOfflineError:
            return None

    def files_of(self, key: TopicPartition) -> PartitionStorage | None:
        """None: it takes no part."""
        group = group_of(key)
        return self._driver.files_of(group) if group in self.keys else None

    def open_files(self) -> list[tuple[TopicPartition, PartitionStorage]]:
        """Of the replicas that take part."""
        found = ((key, self.files_of(key)) for key in self.keys.values())
        return [(key, files) for key, files in found if files is not None]

    def lacking(self) -> dict[TopicPartition, Lack]:
        """Replicas without segment space."""
        lacking = self._storage.lacking
        found = ((self.keys[group], lacking.get(handle)) for group, handle in self._handles.items()) if lacking else ()
        return {key: lack for key, lack in found if lack is not None}

    async def set_log_start(self, key: TopicPartition, offset: int) -> None:
        """PartitionOfflineError."""
        await self._storage.set_log_start(self._handles[group_of(key)], offset)

    # -- links to others ---------------------------------------------------------------------------------------------

    def others(self) -> list[Address]:
        """Cores that have replicas of what is here."""
        return sorted(self._wanted)

    def want_links(self, addresses: Iterable[Address]) -> None:
        """To cores that have replicas of what is here."""
        new, now_ms = sorted(set(addresses) - self._wanted), self.now_ms()
        for address in new:
            self._driver.core.add_link(address, now_ms)
        if new:
            self._wanted.update(new)
            self._link()

    def follow(self, image: ClusterImage) -> None:
        """Links go to where nodes are by now, and machines know which cores of others have replicas with them."""
        before, self.image = self.image, image
        self._meet_new_replicas(before)
        self._link()

    def _meet_new_replicas(self, before: ClusterImage) -> None:
        """Of partitions that are here: another node may have got one in place of a node that is gone."""
        core, now_ms = self._driver.core, self.now_ms()
        for key in changed_partitions(before, self.image):
            group = group_of(key)
            machine = self.groups.get(group)
            if machine is None:
                continue
            for replica in self.image.topics[key.topic_id].places(key.partition):
                if replica.node == self.node or machine.cores.get(replica.node) == replica.core:
                    continue
                address = Address(*replica)
                if address not in self._wanted:
                    self._wanted.add(address)
                    core.add_link(address, now_ms)
                core.replica_moved(group, replica.node, replica.core, now_ms)

    def _link(self) -> None:
        """To all that there are: a node may have fewer cores than before."""
        nodes = self.image.nodes
        wanted = {
            address: SeedAddress(known.address.host, known.address.port + address.core)
            for address in self._wanted
            if (known := nodes.get(address.node)) is not None and address.core < known.cores
        }
        self.links.follow(wanted)


@lru_cache(maxsize=GROUPS_KEPT)
def group_of(key: TopicPartition) -> str:
    """The name of a partition's group."""
    return f"{key.topic_id.hex}-{key.partition}"
