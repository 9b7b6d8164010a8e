"""On which core of its node each replica lives.

The rule of `tpc_broker.routing` is asked first: where nodes have the same number of cores it names the same core on all
of them, so that a core has to do with one core of each other node only. It is kept to as long as the node's cores stay
even: with every sixth partition of a topic on a node, the rule alone would give all of them to one core of two. A
replica that has a core keeps it; one goes elsewhere only to bring cores to within one of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.model import CoreId
from tpc_broker.routing import start_core

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.model import TopicPartition


def place_on_cores(
    held: Sequence[TopicPartition], cores_count: int, present: Mapping[TopicPartition, CoreId]
) -> dict[TopicPartition, CoreId]:
    """The core of each partition that one node holds; `present` are the cores of now, where there are any."""
    assert cores_count >= 1, cores_count
    cores: dict[TopicPartition, CoreId] = {}
    on: list[list[TopicPartition]] = [[] for _core in range(cores_count)]
    most = -(-len(held) // cores_count)
    homeless = []
    for partition in held:
        kept = present.get(partition)
        if kept is None or kept >= cores_count or len(on[kept]) >= most:
            homeless.append(partition)
        else:
            on[kept].append(partition)
    for partition in homeless:
        ruled = (start_core(partition.topic_id, cores_count) + partition.partition) % cores_count
        least = min(range(cores_count), key=lambda core: (len(on[core]), core))
        on[ruled if len(on[ruled]) <= len(on[least]) else least].append(partition)
    while True:
        fullest = max(range(cores_count), key=lambda core: (len(on[core]), -core))
        least = min(range(cores_count), key=lambda core: (len(on[core]), core))
        if len(on[fullest]) - len(on[least]) <= 1:
            break
        on[least].append(on[fullest].pop())
    for core, partitions in enumerate(on):
        cores |= dict.fromkeys(partitions, CoreId(core))
    return cores
