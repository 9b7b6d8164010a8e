"""Where the replicas of a node are when it has fewer cores than before.

Two sides decide this, and have to agree: the node, which hands what is on its disk over before it joins its cluster
(`storage.recovery.handover`), and the controller, which says so to all others when the node registers. So it is one
rule, of nothing but the partition, the core that has it and the numbers of cores that the node was started with since
it was registered last, each smaller than the one before. Applied to its own result it changes nothing. More cores move
nothing: new ones get what is placed on them from then on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpc_broker.metadata.records import MoveDone, TopicAssigned
from tpc_broker.model import CoreId, PartitionIndex, Replica, TopicPartition
from tpc_broker.routing import start_core

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import NodeId


def core_of_those_left(key: TopicPartition, core: CoreId, counts: Sequence[int]) -> CoreId:
    """The core that has a replica which `core` had, after the node was started with each of these numbers of cores.

    A core that is left keeps what it has; what the others had goes to all that are left by turns.
    """
    for count in counts:
        if core >= count:
            core = CoreId((start_core(key.topic_id, count) + key.partition) % count)
    return core


def counts_to_tell(told: Sequence[int], had: int, cores: int) -> tuple[int, ...]:
    """The numbers of cores that the metadata have to hear of when a node that had `had` cores is started with `cores`,
    and that had to hear of `told` before. Only fewer cores than ever since then change anything.
    """
    fewest = told[-1] if told else had
    return (*told, cores) if cores < fewest else tuple(told)


# Rule: Disk and metadata agree on the core of each replica when a node has fewer cores, whatever was on its way and
# however often the node was started unheard. See also tpc_broker/node/membership/identity.py,
# tpc_broker/process/assembly.py. Held by tests/metadata/test_core_counts.py, tests/storage/test_handover.py,
# tests/cluster/test_core_counts.py.
def with_fewer_cores(image: ClusterImage, node: NodeId, counts: Sequence[int]) -> Iterator[MetadataRecord]:
    """What all others have to know of a node that was started with these numbers of cores; nothing where each of its
    replicas is on a core that it has.
    """
    for topic in image.topics.values():
        replicas = tuple(
            _placed(topic, index, node, each, counts) for index, each in enumerate(topic.replicas)
        )  # fmt: skip
        if replicas != topic.replicas:
            owners = tuple(each[0].core for each in replicas)
            manual = tuple(sorted(topic.assignment.manual))
            yield TopicAssigned(topic.topic_id, owners, manual, replicas, topic.voters)
        for index, move in topic.moves.items():
            changed = replace(
                move,
                wanted=_placed(topic, index, node, move.wanted, counts),
                places=_placed(topic, index, node, move.places, counts),
            )
            if changed != move:
                yield changed
    yield from _moves_between_cores(image, node, counts)


def _placed(
    topic: TopicImage, index: int, node: NodeId, replicas: Sequence[Replica], counts: Sequence[int]
) -> tuple[Replica, ...]:
    key = TopicPartition(topic.topic_id, PartitionIndex(index))
    return tuple(
        Replica(node, core_of_those_left(key, each.core, counts)) if each.node == node else each for each in replicas
    )


def _moves_between_cores(image: ClusterImage, node: NodeId, counts: Sequence[int]) -> Iterator[MetadataRecord]:
    """Of the node: they go on between the cores that have what the two had, or are over where that is one core."""
    for key, move in image.moving.items():
        if move.node != node:
            continue
        before = image.topics[key.topic_id].core_on(node, key.partition)
        source = core_of_those_left(key, before, counts)
        target = core_of_those_left(key, move.target, counts)
        if source == target:
            yield MoveDone(key.topic_id, key.partition, target, node)
        elif target != move.target:
            yield replace(move, target=target)
