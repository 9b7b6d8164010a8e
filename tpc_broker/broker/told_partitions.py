"""What Metadata tell of each partition, made again only where it is another.

Clients ask for whole topics whenever one partition has another leader, and several times a second while one has none.
What is told takes ten microseconds for each partition to put together, in one step. So it is kept, by listener and
topic, and what has changed since is dropped: of a partition when its leader has told something new, or its part of the
image is another; all of it when anything else has changed that is told (nodes, which of them are there, cores).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.image import changed_indexes
from tpc_broker.model import NO_LEADER_EPOCH, BrokerId, PartitionIndex, Replica, TopicId, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.broker.view import ClusterView
    from tpc_broker.metadata.image import TopicImage

    Row = messages.MetadataResponse.MetadataResponsePartition


class _Kept:
    """Of one listener and topic; None: to be made."""

    __slots__ = ("rows", "topic")

    def __init__(self, topic: TopicImage) -> None:
        self.topic = topic
        self.rows: list[Row | None] = [None] * topic.partitions_count


# Rule: What Metadata says is made anew only of partitions that have changed, and is never kept beyond that. Held by
# tests/broker/test_told_partitions.py.
class ToldPartitions:
    """Of one core. Nobody changes what is told here: rows, and the lists in them, are shared."""

    def __init__(self, view: ClusterView, is_available: Callable[[Replica], bool]) -> None:
        self._view = view
        self._is_available = is_available
        self._kept: dict[TopicId, dict[int, _Kept]] = {}
        """By topic and listener."""
        self._lists: dict[tuple[int, tuple[BrokerId, ...]], list[BrokerId]] = {}
        """Most partitions share theirs with many others."""
        view.on_told_changed = self.changed

    def changed(self, key: TopicPartition | None) -> None:
        """Something else is to be told of a partition; None: of any."""
        if key is None:
            self._kept.clear()
            self._lists.clear()
            return
        for kept in self._kept.get(key.topic_id, {}).values():
            if key.partition < len(kept.rows):
                kept.rows[key.partition] = None

    def of_topic(self, listener: int, topic: TopicImage) -> list[Row]:
        """By their numbers."""
        by_listener = self._kept.setdefault(topic.topic_id, {})
        kept = by_listener.get(listener)
        if kept is None or len(kept.rows) != topic.partitions_count:
            kept = by_listener[listener] = _Kept(topic)
        elif kept.topic is not topic:
            for index in changed_indexes(kept.topic, topic):
                kept.rows[index] = None
            kept.topic = topic
        rows = []
        for index, row in enumerate(kept.rows):
            if row is None:
                row = kept.rows[index] = self._row(listener, topic, index)  # noqa: PLW2901 (it was not there)
            rows.append(row)
        return rows

    def _row(self, listener: int, topic: TopicImage, index: int) -> Row:
        view = self._view
        place = view.place_of(topic, index)
        endpoint = view.endpoint_at(listener, place)
        broker_id = view.broker_id(view.listener_name(listener), place) if endpoint is None else endpoint.broker_id
        epoch = view.leader_epoch(TopicPartition(topic.topic_id, PartitionIndex(index)))
        available = epoch is not None and endpoint is not None and self._is_available(place)
        if topic.is_replicated(index):
            places = topic.places(index)
            replicas, in_sync = self._brokers(listener, places), self._brokers(listener, view.in_sync(topic, index))
            offline = self._brokers(listener, (each for each in places if not self._is_available(each)))
        else:
            replicas = in_sync = [broker_id]
            offline = [] if available else [broker_id]
        return messages.MetadataResponse.MetadataResponsePartition(
            error_code=0 if available else int(ErrorCode.LEADER_NOT_AVAILABLE),
            partition_index=index,
            leader_id=broker_id if available else -1,
            leader_epoch=NO_LEADER_EPOCH if epoch is None else epoch,
            replica_nodes=replicas,
            isr_nodes=in_sync,
            offline_replicas=offline,
        )

    def _brokers(self, listener: int, places: Iterable[Replica]) -> list[BrokerId]:
        name = self._view.listener_name(listener)
        named = tuple(self._view.broker_id(name, place) for place in places)
        return self._lists.setdefault((listener, named), list(named))
