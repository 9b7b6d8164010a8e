"""One step of a member towards its part of the target assignment: `reconciled`, a pure function.

The steps are those of KIP-848: a member first gives back what it is to lose and stays in its epoch until it says that
it did; then it takes the epoch of the target, and with it what nobody else has; what others have yet to give back
follows as they do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tpc_broker.coordinator.consumer.group import MemberState
from tpc_broker.coordinator.consumer.records import CurrentAssignment, EpochPartitions

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from tpc_broker.coordinator.assignors.spec import Partitions
    from tpc_broker.model import TopicId


class Target(NamedTuple):
    """A member's part of the target assignment, and its epoch."""

    epoch: int
    partitions: Mapping[TopicId, frozenset[int]]


def reconciled(
    current: CurrentAssignment,
    target: Target,
    owned: Partitions | None,
    is_owned: Callable[[TopicId, int], bool],
    subscribed: Container[TopicId],
) -> CurrentAssignment:
    """What a member has from now on; `current` itself where nothing changes. `owned`: what it says that it has, None
    when it says nothing of it. `is_owned`: by any member. `subscribed`: what it subscribes to; it keeps nothing else,
    whatever the target says.
    """
    is_revoking = current.state == MemberState.UNREVOKED_PARTITIONS
    if is_revoking and (owned is None or _has_any(owned, current.pending_revocation)):
        return _revoking_more(current, subscribed)
    wanted = {topic_id: partitions for topic_id, partitions in target.partitions.items() if topic_id in subscribed}
    if current.state == MemberState.STABLE and current.epoch == target.epoch:
        if all(topic_id in subscribed for topic_id in current.assigned):
            return current
        wanted = {topic_id: wanted[topic_id] for topic_id in current.assigned if topic_id in wanted}
    return _next(current, Target(target.epoch, wanted), owned, is_owned)


def _revoking_more(current: CurrentAssignment, subscribed: Container[TopicId]) -> CurrentAssignment:
    """A member that has yet to give back partitions is also to give back what it does not subscribe to any more. A
    client takes it for an error to be told that it has such a topic.
    """
    if all(topic_id in subscribed for topic_id in current.assigned):
        return current
    kept = {topic_id: partitions for topic_id, partitions in current.assigned.items() if topic_id in subscribed}
    to_revoke = {topic_id: dict(partitions) for topic_id, partitions in current.pending_revocation.items()}
    for topic_id, partitions in current.assigned.items():
        if topic_id not in subscribed:
            to_revoke.setdefault(topic_id, {}).update(partitions)
    return CurrentAssignment(current.epoch, current.epoch, current.state, kept, to_revoke)


def _next(
    current: CurrentAssignment,
    target: Target,
    owned: Partitions | None,
    is_owned: Callable[[TopicId, int], bool],
) -> CurrentAssignment:
    kept: EpochPartitions = {}
    to_revoke: EpochPartitions = {}
    to_give: EpochPartitions = {}
    waits = False
    for topic_id, partitions in current.assigned.items():
        wanted = target.partitions.get(topic_id, frozenset())
        kept_here = {partition: since for partition, since in partitions.items() if partition in wanted}
        if kept_here:
            kept[topic_id] = kept_here
        if len(kept_here) < len(partitions):
            to_revoke[topic_id] = {each: since for each, since in partitions.items() if each not in wanted}
    for topic_id, wanted in target.partitions.items():
        missing = wanted - current.assigned.get(topic_id, {}).keys()
        free = {partition: target.epoch for partition in missing if not is_owned(topic_id, partition)}
        waits = waits or len(free) < len(missing)
        if free:
            to_give[topic_id] = free
    # A member that says nothing of what it has still has it.
    if to_revoke and (owned is None or _has_any(owned, to_revoke)):
        revoking = MemberState.UNREVOKED_PARTITIONS
        return CurrentAssignment(current.epoch, current.epoch, revoking, kept, to_revoke)
    assigned = {topic_id: dict(partitions) for topic_id, partitions in kept.items()}
    for topic_id, given in to_give.items():
        assigned.setdefault(topic_id, {}).update(given)
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    is_same = current == CurrentAssignment(target.epoch, current.previous_epoch, state, assigned, {})
    return current if is_same else CurrentAssignment(target.epoch, current.epoch, state, assigned, {})


def _has_any(owned: Partitions, of: EpochPartitions) -> bool:
    return any(not partitions.keys().isdisjoint(owned.get(topic_id, ())) for topic_id, partitions in of.items())
