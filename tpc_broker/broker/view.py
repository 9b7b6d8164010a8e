"""What one core knows of the whole node: the cluster image, which cores are up, and every partition's leader epoch.

The image is replayed from the metadata log (durable). Who is up comes from the supervisor, leader epochs from the
owners (soft: a core that starts asks for them).
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.metadata.image import ClusterImage, TopicImage
from tpc_broker.model import (
    BrokerId,
    CoreId,
    LeaderEpoch,
    NodeId,
    PartitionIndex,
    TopicId,
    TopicPartition,
    broker_id_of,
    core_of,
    node_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TopicKey = str | uuid.UUID


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a core answers, as clients are told."""

    broker_id: BrokerId
    core: CoreId
    host: str
    port: int
    rack: str | None


class ClusterView:
    def __init__(self, node: NodeId, cores: int, host: str, first_port: int, rack: str | None) -> None:
        self.image = ClusterImage()
        self.node = node
        self.cores = cores
        self._endpoints = tuple(
            Endpoint(broker_id_of(node, CoreId(core)), CoreId(core), host, first_port + core, rack)
            for core in range(cores)
        )
        self._up: set[CoreId] = set()
        self._heard: set[CoreId] = set()
        self._leaders: dict[TopicPartition, LeaderEpoch] = {}

    # -- cores -----------------------------------------------------------------------------------------------------

    @property
    def controller_id(self) -> BrokerId:
        """The broker where the metadata log lives."""
        return self._endpoints[0].broker_id

    def endpoints(self) -> tuple[Endpoint, ...]:
        """All cores, also one that is being restarted: it stays in Metadata."""
        return self._endpoints

    def endpoint(self, core: CoreId) -> Endpoint:
        return self._endpoints[core]

    def core_of_broker(self, broker: int) -> CoreId | None:
        """The core a broker id names; None for a broker of another node or a core that there is not."""
        if broker < 0 or node_of(BrokerId(broker)) != self.node or core_of(BrokerId(broker)) >= self.cores:
            return None
        return core_of(BrokerId(broker))

    def set_up(self, cores: Iterable[CoreId]) -> set[CoreId]:
        """Which cores are up now; returns those that came up since the last time."""
        up = set(cores)
        came = up - self._up
        self._up = up
        self._heard.clear()
        return came

    def note_heard(self, core: CoreId) -> None:
        """A core called, so it is up: its word may be faster than the supervisor's."""
        self._heard.add(core)

    def is_up(self, core: CoreId) -> bool:
        return core in self._up or core in self._heard

    def others_up(self, me: CoreId) -> list[CoreId]:
        return sorted(core for core in self._up | self._heard if core != me)

    # -- topics and leaders ----------------------------------------------------------------------------------------

    def topic(self, key: TopicKey) -> TopicImage | None:
        return self.image.topic(key) if isinstance(key, str) else self.image.topic_by_id(TopicId(key))

    def note_leaders(self, leaders: Iterable[tuple[TopicPartition, LeaderEpoch]]) -> None:
        """Epochs told by the owners. An epoch never falls: an old message that arrives late changes nothing."""
        for partition, epoch in leaders:
            if epoch > self._leaders.get(partition, -1):
                self._leaders[partition] = epoch

    def forget_leaders(self, topic: TopicImage) -> None:
        for index in range(topic.partitions_count):
            self._leaders.pop(TopicPartition(topic.topic_id, PartitionIndex(index)), None)

    def leader_epoch(self, partition: TopicPartition) -> LeaderEpoch | None:
        """None: its owner has not opened it yet."""
        return self._leaders.get(partition)

    def leaders_of(self, core: CoreId) -> Iterator[tuple[TopicPartition, LeaderEpoch]]:
        for partition, epoch in self._leaders.items():
            if self.image.owner_of(partition) == core:
                yield partition, epoch

    def leader_of(self, key: TopicKey, index: int) -> tuple[BrokerId, LeaderEpoch] | None:
        """Broker id and epoch of a partition's leader; None when it is not known or not available."""
        topic = self.topic(key)
        if topic is None:
            return None
        partition = TopicPartition(topic.topic_id, PartitionIndex(index))
        owner = topic.placement.owner_of(partition.partition)
        epoch = self._leaders.get(partition)
        if owner is None or epoch is None:
            return None
        return self._endpoints[owner].broker_id, epoch
