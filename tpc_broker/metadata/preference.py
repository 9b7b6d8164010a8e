"""Decides in which order a partition's replicas stand: the first is the preferred leader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal, assigned_to
from tpc_broker.metadata.records import TopicAssigned
from tpc_broker.model import broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import BrokerId, Replica

Wanted = tuple[str, int, "tuple[BrokerId, ...] | None"]
"""Topic, partition, brokers in order; None: whatever is under way is cancelled."""


def order_replicas(
    image: ClusterImage, wanted: Sequence[Wanted]
) -> tuple[list[MetadataRecord], list[Refusal | None]]:
    """What to write, and what was refused of each."""
    changed: dict[str, list[tuple[Replica, ...]]] = {}
    outcomes: list[Refusal | None] = []
    for name, index, brokers in wanted:
        topic = image.topic(name)
        try:
            ordered = _ordered(image, topic, index, brokers)
        except Refusal as refusal:
            outcomes.append(refusal)
            continue
        assert topic is not None
        changed.setdefault(name, list(topic.replicas))[index] = ordered
        outcomes.append(None)
    records: list[MetadataRecord] = []
    for name, replicas in changed.items():
        topic = image.topic(name)
        assert topic is not None
        if tuple(replicas) != topic.replicas:
            owners = tuple(each[0].core for each in replicas)
            manual = tuple(sorted(topic.assignment.manual))
            records.append(TopicAssigned(topic.topic_id, owners, manual, tuple(replicas), topic.voters))
    return records, outcomes


def _ordered(
    image: ClusterImage, topic: TopicImage | None, index: int, brokers: tuple[BrokerId, ...] | None
) -> tuple[Replica, ...]:
    """Refusal."""
    if topic is None or not 0 <= index < topic.partitions_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if brokers is None:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress.")
    present = topic.replicas[index]
    asked = assigned_to(brokers, {node: known.cores for node, known in image.nodes.items()})
    if set(asked) != set(present):
        there = ", ".join(str(broker_id_of(*replica)) for replica in present)
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The partition is on brokers {there}. Replicas do not move between nodes yet; only their order can be "
            "another, whose first is the preferred leader.",
        )
    return asked
