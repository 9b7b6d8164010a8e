"""What an assignor is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass

from tpc_broker.model import TopicId

Partitions = dict[TopicId, frozenset[int]]
"""Partitions of topics; no topic without one."""


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A member: what it subscribes to, and its part of the target assignment until now."""

    topics: frozenset[TopicId]
    assigned: Mapping[TopicId, frozenset[int]]
    rack_id: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`racks`: of each partition those of its replicas; () where none are known."""

    partitions_count: int
    racks: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group. Topics that members subscribe to and that are not in `topics` do not exist."""

    members: Mapping[str, MemberSpec]
    topics: Mapping[TopicId, TopicSpec]


Assignor = Callable[[GroupSpec], Generator[None, None, dict[str, Partitions]]]
"""Yields after each bounded piece of work; returns the targets of all members."""
