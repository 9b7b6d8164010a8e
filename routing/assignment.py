"""The rule that gives every partition its core.

Theory of operation
-------------------
A topic starts at a core derived from its id and goes round from there: partition p belongs to
``(start_core(topic_id) + p) % cores_count``. So one topic's partitions differ by at most one between cores, many topics
with one partition each spread by their ids, and no table of loads is needed.

What the rule says is *stored* (in the cluster image), and the stored table is what counts. It changes in three ways:

* partitions are added: the new ones follow the rule, the old ones stay;
* an administrator names a core for a partition: it stays there (`Assignment.manual`) for as long as that core exists;
* the number of cores differs from what the table was made for: everything is computed again, except manual assignments
  whose core still exists. Keeping what exists and filling only the gaps was rejected: after 4 cores → 2 → 4 it would
  leave two cores idle for ever.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.model import CORES_PER_NODE_MAX, CoreId, PartitionIndex, TopicId

if TYPE_CHECKING:
    from collections.abc import Mapping

_NOTHING_ASSIGNED: Mapping[PartitionIndex, CoreId] = {}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Owners of one topic's partitions: `owners[p]` is the core of partition p; `manual` were named by hand."""

    owners: tuple[CoreId, ...]
    manual: frozenset[PartitionIndex] = frozenset()

    def __post_init__(self) -> None:
        """A partition that does not exist cannot have been assigned."""
        assert all(0 <= partition < len(self.owners) for partition in self.manual), self

    def owner_of(self, partition: PartitionIndex) -> CoreId | None:
        """The owning core, None for a partition that does not exist."""
        return self.owners[partition] if 0 <= partition < len(self.owners) else None


def start_core(topic_id: TopicId, cores_count: int) -> CoreId:
    """Core of partition 0, before anything is assigned by hand. The CRC evens out ids that were not drawn at random."""
    assert 1 <= cores_count <= CORES_PER_NODE_MAX, cores_count
    return CoreId(zlib.crc32(topic_id.bytes) % cores_count)


def assign_all(
    topic_id: TopicId,
    partitions_count: int,
    cores_count: int,
    assigned: Mapping[PartitionIndex, CoreId] = _NOTHING_ASSIGNED,
) -> Assignment:
    """Owners of a new topic. Every assigned core must exist."""
    return extend(Assignment(()), topic_id, partitions_count, cores_count, assigned)


def extend(
    assignment: Assignment,
    topic_id: TopicId,
    partitions_count: int,
    cores_count: int,
    assigned: Mapping[PartitionIndex, CoreId] = _NOTHING_ASSIGNED,
) -> Assignment:
    """Owners after growth to `partitions_count`: what is placed stays, the new follow the rule or `assigned`."""
    present = len(assignment.owners)
    assert partitions_count >= present, (partitions_count, present)
    assert all(present <= partition < partitions_count for partition in assigned), assigned
    assert all(0 <= core < cores_count for core in assigned.values()), assigned
    added = (
        assigned.get(PartitionIndex(partition), _core_by_rule(topic_id, partition, cores_count))
        for partition in range(present, partitions_count)
    )
    return Assignment((*assignment.owners, *added), assignment.manual | assigned.keys())


def adapt_to_cores(
    assignment: Assignment, topic_id: TopicId, cores_count: int, *, rebalance: bool = False
) -> Assignment:
    """Owners on a node whose number of cores changed: by the rule, but for manual assignments to cores that exist.

    `rebalance` forgets manual assignments too.
    """
    kept = {p for p in assignment.manual if assignment.owners[p] < cores_count and not rebalance}
    owners = tuple(
        assignment.owners[partition] if partition in kept else _core_by_rule(topic_id, partition, cores_count)
        for partition in range(len(assignment.owners))
    )
    return Assignment(owners, frozenset(kept))


def _core_by_rule(topic_id: TopicId, partition: int, cores_count: int) -> CoreId:
    return CoreId((start_core(topic_id, cores_count) + partition) % cores_count)
