"""Decides that a node is gone for good.

What it had alone is lost with it. That is the operator's to accept: then such partitions are made anew, empty, on the
others. A partition that others have too has to be moved away first, so that it gets back the copies that it lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.node_assignment import place_over_nodes
from tpc_broker.metadata.records import NodeRemoved, TopicAssigned
from tpc_broker.model import NodeId, PartitionIndex, Replica

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class _Held:
    """How many partitions a node has: those that it has alone, and those that others have too."""

    alone: int
    shared: int
    example: str


def remove_node(
    image: ClusterImage, node: NodeId, absent: Collection[NodeId], *, accept_loss: bool
) -> list[MetadataRecord]:
    """What to write so that a node that is not alive is forgotten. `absent`: others that get nothing new. Refusal."""
    known = image.nodes.get(node)
    if known is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"The cluster has no node {node}.")
    held = _held(image, node)
    if held.shared:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"Node {node} has replicas of {held.shared} partitions (the first: {held.example}), which other nodes have "
            "too: let them be moved away first.",
        )
    if held.alone and not accept_loss:
        raise Refusal(
            ErrorCode.INVALID_REQUEST,
            f"{held.alone} partitions are on node {node} alone (the first: {held.example}): their records are lost "
            "with it. Start it again, or delete their topics, or accept the loss (tpc node remove --accept-loss): then "
            "they are made anew, empty, on other nodes.",
        )
    others = [each for each in image.nodes if each != node]
    if held.alone and not others:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Node {node} is the only one.")
    removal = NodeRemoved(node, known.incarnation)
    left = image.apply([removal], image.version)
    placed: list[tuple[Replica, ...]] = []
    anew = [
        _made_anew(left, topic, node, absent, placed)
        for topic in image.topics.values()
        if any(_is_on(replicas, node) for replicas in topic.replicas)
    ]
    return [*anew, removal]


def _is_on(replicas: tuple[Replica, ...], node: NodeId) -> bool:
    return any(replica.node == node for replica in replicas)


def _held(image: ClusterImage, node: NodeId) -> _Held:
    alone = [
        f"{topic.name}-{index}"
        for _name, topic_id in sorted(image.ids.items())
        for topic in (image.topics[topic_id],)
        for index, replicas in enumerate(topic.replicas)
        if _is_on(replicas, node) and len(replicas) == 1
    ]
    shared = [
        f"{topic.name}-{index}"
        for _name, topic_id in sorted(image.ids.items())
        for topic in (image.topics[topic_id],)
        for index, replicas in enumerate(topic.replicas)
        if _is_on(replicas, node) and len(replicas) > 1
    ]
    return _Held(len(alone), len(shared), (shared or alone or [""])[0])


def _made_anew(
    left: ClusterImage, topic: TopicImage, node: NodeId, absent: Collection[NodeId], placed: list[tuple[Replica, ...]]
) -> TopicAssigned:
    """`placed`: what else is being made anew; this topic's partitions are added to it."""
    replicas = list(topic.replicas)
    for index, each in enumerate(topic.replicas):
        if _is_on(each, node):
            (found,) = place_over_nodes(left, (topic.topic_id, index, index + 1), 1, {}, placed, absent)
            replicas[index] = found
            placed.append(found)
    owners = tuple(each[0].core for each in replicas)
    manual = tuple(
        PartitionIndex(index) for index in sorted(topic.assignment.manual) if replicas[index] == topic.replicas[index]
    )
    return TopicAssigned(topic.topic_id, owners, manual, tuple(replicas), topic.voters)
