"""The cluster's topics, as the coordinators of consumer groups see them: `TopicsOfCore`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.messages import KnownTopic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.broker.view import ClusterView
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.model import NodeId, TopicId


class TopicsOfCore:
    """All topics of the image that a core has. What was made of a topic is kept until that changes:
    every heartbeat asks for the topics of its group.
    """

    def __init__(self, view: ClusterView, rack: str | None) -> None:
        """`rack`: of this node, for one without a cluster."""
        self._view = view
        self._rack = rack
        self._image: ClusterImage | None = None
        self._racks: Mapping[NodeId, str] = {}
        self._known: dict[TopicId, tuple[TopicImage, KnownTopic]] = {}

    @property
    def version(self) -> int:
        return self._view.image.version

    def named(self, name: str) -> KnownTopic | None:
        topic = self._view.image.topic(name)
        return None if topic is None else self._of(topic)

    def of_id(self, topic_id: TopicId) -> KnownTopic | None:
        topic = self._view.image.topic_by_id(topic_id)
        return None if topic is None else self._of(topic)

    def names(self) -> Iterable[str]:
        return self._view.image.ids.keys()

    def _of(self, topic: TopicImage) -> KnownTopic:
        if self._view.image is not self._image:
            self._take(self._view.image)
        found = self._known.get(topic.topic_id)
        if found is None or found[0] is not topic:
            known = KnownTopic(topic.topic_id, topic.name, topic.partitions_count, self._racks_of(topic))
            self._known[topic.topic_id] = found = topic, known
        return found[1]

    def _take(self, image: ClusterImage) -> None:
        racks = {node: known.rack for node, known in image.nodes.items() if known.rack}
        if racks != self._racks:
            self._racks = racks
            self._known.clear()
        self._known = {key: found for key, found in self._known.items() if image.topics.get(key) is found[0]}
        self._image = image

    def _racks_of(self, topic: TopicImage) -> tuple[frozenset[str], ...]:
        """Of all that have a replica of a partition, or are to have one."""
        if not topic.replicas:
            return () if not self._rack else (frozenset([self._rack]),) * topic.partitions_count
        if not self._racks:
            return ()
        return tuple(
            frozenset(self._racks[place.node] for place in topic.places(index) if place.node in self._racks)
            for index in range(topic.partitions_count)
        )
