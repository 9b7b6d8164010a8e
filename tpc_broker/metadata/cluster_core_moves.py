"""Decides that a replica of a cluster's partition goes to another core of its node, and when that is over.

The voters of a group are nodes, so nothing about the group changes: the metadata say that a move is under way
(`MoveBegun`, which allows the adoption), and by `MoveDone` every node knows which core to talk to. The node's core 0
conducts (`broker.core_moves`). One replica of a partition at a time: each is away for a moment. And none of a partition
whose replicas are on their way between nodes, nor the other way round, so that what a move counts on is where it was.

A move that is cancelled is under way until its node has found out who has the replica: the metadata cannot know whether
it was adopted already. From that record on nobody may adopt it, so what a core that has read it says holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.records import ONLY_NODE, MoveBegun, MoveDone
from tpc_broker.model import NOT_HERE, CoreId, NodeId, PartitionIndex, Replica, TopicPartition, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import BrokerId


class CoreShift(NamedTuple):
    """A replica of a node that is to go from one of its cores to another."""

    key: TopicPartition
    source: CoreId
    target: CoreId


def key_of(topic: TopicImage, index: int) -> TopicPartition:
    return TopicPartition(topic.topic_id, PartitionIndex(index))


def changed_cores(before: Sequence[Replica], asked: Sequence[Replica]) -> list[Replica] | None:
    """Of what is asked for the replicas that are on another core now; None: other nodes are asked for."""
    if {place.node for place in asked} != {place.node for place in before}:
        return None
    return [place for place in asked if place not in before]


def begin_core_move(  # noqa: PLR0913 (a move with all that it is)
    image: ClusterImage, topic: TopicImage, index: int, target: Replica, *, move_id: int, now_ms: int
) -> list[MetadataRecord]:
    """The replica on a node that has one is to be on that core of it: nothing where it is there, or on its way.
    Refusal.
    """
    key = key_of(topic, index)
    if image.feature_level < FIRST_WITH_MOVES:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Replicas move between cores from tpc.version={FIRST_WITH_MOVES} on; the cluster is at "
            f"{image.feature_level} (kafka-features.sh upgrade).",
        )
    move = image.moving.get(key)
    if move is not None and (move.node, move.target) == target and not move.is_cancelled:
        return []
    check_on_its_core(image, topic, index)
    if key.partition in topic.moves:
        raise Refusal(
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            "Replicas of the partition are on their way between nodes; cancel that first, or wait until it is done.",
        )
    if target in topic.replicas[index]:
        return []
    return [MoveBegun(topic.topic_id, key.partition, target.core, move_id, now_ms, target.node)]


def can_change_core(image: ClusterImage, key: TopicPartition, place: Replica) -> bool:
    """Whether a partition's replica is there, and may go to another core of its node now."""
    topic = image.topic_by_id(key.topic_id)
    if topic is None or not topic.is_replicated(key.partition) or image.feature_level < FIRST_WITH_MOVES:
        return False
    is_moving = key in image.moving or key.partition in topic.moves
    return place in topic.replicas[key.partition] and not is_moving


def begin_core_moves(
    image: ClusterImage, node: NodeId, wanted: Sequence[CoreShift], *, new_id: Callable[[], int], now_ms: int
) -> list[MetadataRecord]:
    """Those of a node that can still be made as it has planned them."""
    known = image.nodes.get(node)
    return [
        MoveBegun(*one.key, one.target, new_id(), now_ms, node) for one in wanted
        if known is not None and 0 <= one.target < known.cores and one.target != one.source
        and can_change_core(image, one.key, Replica(node, one.source))
    ]  # fmt: skip


def check_on_its_core(image: ClusterImage, topic: TopicImage, index: int) -> None:
    """Refusal: a replica of the partition is on its way between cores."""
    move = image.moving.get(key_of(topic, index))
    if move is None:
        return
    broker = broker_id_of(move.node, move.target)
    if move.is_cancelled:
        text = f"The move of the replica on node {move.node} to broker {broker} is being taken back; wait until it is."
    else:
        text = f"The replica on node {move.node} is on its way to broker {broker}; cancel that first, or wait."
    raise Refusal(ErrorCode.REASSIGNMENT_IN_PROGRESS, text)


def cancel_core_move(move: MoveBegun) -> MoveBegun:
    """Refusal: it is cancelled."""
    if move.is_cancelled:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "The move is cancelled already, and being taken back.")
    return replace(move, is_cancelled=True)


def came_too_late(image: ClusterImage, cancelled: MoveBegun) -> str | None:
    """Why a move that is over was not taken back; None where it was."""
    topic = image.topic_by_id(cancelled.topic_id)
    if topic is None or topic.core_on(cancelled.node, cancelled.partition) != cancelled.target:
        return None
    return (
        f"Broker {broker_id_of(cancelled.node, cancelled.target)} had taken the replica on node {cancelled.node} over "
        "before it was cancelled, and keeps it."
    )


def end_core_move(image: ClusterImage, key: TopicPartition, move_id: int, owner: CoreId) -> list[MetadataRecord]:
    """A core of the node has the replica; nothing where the move is not under way any more."""
    move, topic = image.moving.get(key), image.topic_by_id(key.topic_id)
    if move is None or topic is None or move.move_id != move_id or move.node == ONLY_NODE:
        return []
    if owner not in (move.target, topic.core_on(move.node, key.partition)):
        return []
    return [MoveDone(key.topic_id, key.partition, owner, move.node)]


def core_moves(image: ClusterImage) -> Iterator[tuple[TopicImage, MoveBegun, CoreId]]:
    """Under way, with the core from which each goes."""
    for key, move in image.moving.items():
        topic = image.topics[key.topic_id]
        source = topic.core_on(move.node, key.partition)
        if source != NOT_HERE:
            yield topic, move, source


def with_core(image: ClusterImage, name: str, index: int, target: Replica) -> tuple[BrokerId, ...]:
    """All brokers of a partition, if the replica on a node that has one is to be on that core of it; else that core's
    alone.
    """
    topic = image.topic(name)
    if topic is None or not 0 <= index < topic.partitions_count:
        return (broker_id_of(*target),)
    places = topic.wanted(index)
    if all(place.node != target.node for place in places):
        return (broker_id_of(*target),)
    return tuple(broker_id_of(*(target if place.node == target.node else place)) for place in places)
