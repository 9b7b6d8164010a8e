"""Decides that a node is gone for good.

What it had alone is lost with it. That is the operator's to accept: then such partitions are made anew, empty, on the
others. Of a partition that others have too another node gets a replica in its place: the metadata say so here, and the
partition's leader has it vote when it has caught up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.node_assignment import first_voters, place_over_nodes
from tpc_broker.metadata.records import NodeRemoved, ReplicasMoved, ReplicasMoving, TopicAssigned
from tpc_broker.model import CoreId, FirstVoter, NodeId, PartitionIndex, Replica

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord


@dataclass(frozen=True, slots=True)
class _Held:
    """How many partitions a node has alone, and the first of them."""

    alone: int
    example: str


def remove_node(
    image: ClusterImage,
    node: NodeId,
    absent: Collection[NodeId],
    full: Collection[NodeId] = (),
    *,
    accept_loss: bool,
) -> list[MetadataRecord]:
    """What to write so that a node that is not alive is forgotten. `absent`: others that get nothing new; `full`: those
    that get it when there are no others. Refusal.
    """
    known = image.nodes.get(node)
    if known is None:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"The cluster has no node {node}.")
    held = _held(image, node)
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
    heirs = _Heirs(left, absent, full)
    anew: list[MetadataRecord] = []
    for topic in image.topics.values():
        anew += _moves_without(topic, node, heirs)
        if any(_is_on(replicas, node) for replicas in topic.replicas):
            anew.append(_without(left, topic, node, (*full, *absent), heirs))
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
    return _Held(len(alone), (alone or [""])[0])


class _Heirs:
    """Who gets the replicas of a node that is gone: nodes in other racks than the partition's other replicas, where
    there are such, and of these the one with the fewest for its cores; full ones only where there are no others.
    """

    def __init__(self, left: ClusterImage, absent: Collection[NodeId], full: Collection[NodeId]) -> None:
        self._full = full
        self._nodes = {node: known for node, known in left.nodes.items() if node not in absent}
        self._held: Counter[NodeId] = Counter()
        self._on_cores: Counter[Replica] = Counter()
        self.placed: list[tuple[Replica, ...]] = []
        """All of the partitions that are somewhere else by now."""
        for topic in left.topics.values():
            for replicas in topic.replicas:
                self.take(replicas)

    def take(self, replicas: tuple[Replica, ...]) -> None:
        for replica in replicas:
            self._held[replica.node] += 1
            self._on_cores[replica] += 1

    def replaced(
        self, replicas: tuple[Replica, ...], node: NodeId, name: str, places: tuple[Replica, ...] = ()
    ) -> tuple[Replica, ...]:
        """Who has one of the places already keeps it. Refusal where nobody is left to take it."""
        others = {replica.node for replica in replicas}
        racks = {self._nodes[each].rack for each in others if each in self._nodes}
        free = [known for each, known in self._nodes.items() if each not in others]
        if not free:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"No node can take the replica of {name} that node {node} has: the others have one, or are gone or "
                "draining. Start another node first.",
            )
        order = lambda one: (one.node in self._full, one.rack in racks, self._held[one.node] / one.cores, one.node)  # noqa: E731
        heir = min(free, key=order)
        cores = [Replica(heir.node, CoreId(core)) for core in range(heir.cores)]
        there = [place for place in places if place.node == heir.node]
        place = min(there or cores, key=lambda each: (self._on_cores[each], each.core))
        self.take((place,))
        return tuple(place if replica.node == node else replica for replica in replicas)


def _moves_without(topic: TopicImage, node: NodeId, heirs: _Heirs) -> Iterator[ReplicasMoving | ReplicasMoved]:
    """Moves under way that count on the node, or away from it, go on without it."""
    for index, move in topic.moves.items():
        if topic.replicas[index] == (Replica(node, topic.assignment.owners[index]),):
            yield ReplicasMoved(topic.topic_id, index, topic.replicas[index])  # it is made anew
        elif _is_on(move.places, node):
            wanted = move.wanted
            if _is_on(wanted, node):
                wanted = heirs.replaced(wanted, node, f"{topic.name}-{index}", move.places)
            places = (*(place for place in move.places if place.node != node), *wanted)
            yield replace(move, wanted=wanted, places=tuple(dict.fromkeys(places)), move_id=move.move_id + 1)


def _without(
    left: ClusterImage, topic: TopicImage, node: NodeId, absent: Collection[NodeId], heirs: _Heirs
) -> TopicAssigned:
    """What the node had alone is made anew, of the rest another one gets a copy; a move that is under way names it."""
    replicas, voters = list(topic.replicas), list(topic.voters or ((),) * topic.partitions_count)
    for index, each in enumerate(topic.replicas):
        if not _is_on(each, node):
            continue
        if len(each) > 1 and PartitionIndex(index) in topic.moves:
            replicas[index] = tuple(replica for replica in each if replica.node != node)
        elif len(each) > 1:
            replicas[index] = heirs.replaced(each, node, f"{topic.name}-{index}")
        else:
            (found,) = place_over_nodes(left, (topic.topic_id, index, index + 1), 1, {}, heirs.placed, absent)
            replicas[index] = found
            life = topic.life_of(index, found[0].node)
            voters[index] = tuple(one._replace(incarnation=one.incarnation + life) for one in _alone(left, found))
            heirs.take(found)
            heirs.placed.append(found)
    owners = tuple(each[0].core for each in replicas)
    manual = tuple(
        PartitionIndex(index) for index in sorted(topic.assignment.manual) if replicas[index] == topic.replicas[index]
    )
    return TopicAssigned(topic.topic_id, owners, manual, tuple(replicas), tuple(voters) if any(voters) else ())


def _alone(image: ClusterImage, place: tuple[Replica, ...]) -> tuple[FirstVoter, ...]:
    """Who votes on a partition that is made on one node."""
    return next(iter(first_voters(image, (place,))), ())
