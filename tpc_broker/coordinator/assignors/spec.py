"""What an assignor is told of a group, and what it answers. Plain data: nothing here is changed by an assignor."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from tpc_broker.model import TopicId

Partitions = dict[TopicId, frozenset[int]]
"""Of one member; topics without partitions are not in it."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """One member: the topics that it subscribes to (regular expressions among them are resolved), and what it has been
    given so far, in the group's present target: not what it reports to own.
    """

    topics: frozenset[TopicId]
    assigned: Mapping[TopicId, frozenset[int]]
    rack_id: str | None
    instance_id: str | None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic that exists. `racks` has those of each partition's replicas, or nothing when no racks are known."""

    partitions_count: int
    racks: tuple[frozenset[str], ...]


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group by member id. A subscribed topic that is not in `topics` does not exist and is ignored."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[TopicId, TopicSpec]


Assignor = Callable[[GroupSpec], Generator[None, None, dict[str, Partitions]]]
"""Yields after each piece of work that is as long as others may be kept waiting; returns the target of every member."""
