"""Manual assignments in CreateTopics and CreatePartitions: broker ids as clients name them, to cores of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import BrokerId, NodeId, PartitionIndex, Replica, core_of, node_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.metadata.controller import CreatableTopic, GrowableTopic


class Refusal(Exception):  # noqa: N818 - an expected result inside the controller, which turns it into a response
    """A request, or one item of it, that is answered with an error code."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message


def assigned_for_creation(topic: CreatableTopic, cores: Mapping[NodeId, int]) -> dict[PartitionIndex, Replica] | None:
    """Where all partitions of a topic go that names it; None when it leaves the choice to us. `cores`: how many each
    node has.
    """
    if not topic.assignments:
        return None
    for value, name in ((topic.replication_factor, "replication factor"), (topic.num_partitions, "numPartitions")):
        if value != -1:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    assigned: dict[PartitionIndex, Replica] = {}
    for partition, brokers in topic.assignments:
        if partition in assigned:
            raise _bad(f"Found multiple manual partition assignments for partition {partition}")
        assigned[PartitionIndex(partition)] = assigned_to(brokers, cores)
    if sorted(assigned) != list(range(len(assigned))):
        raise _bad("partitions should be a consecutive 0-based integer sequence")
    return assigned


def assigned_for_growth(
    topic: GrowableTopic, present: int, cores: Mapping[NodeId, int]
) -> dict[PartitionIndex, Replica]:
    """Where the partitions to be added go; empty when the choice is ours."""
    if topic.assignments is None:
        return {}
    added_count = topic.count - present
    if len(topic.assignments) != added_count:
        raise _bad(
            f"Attempted to add {added_count} additional partition(s), but only {len(topic.assignments)} "
            "assignment(s) were specified."
        )
    return {
        PartitionIndex(present + index): assigned_to(brokers, cores)
        for index, brokers in enumerate(topic.assignments)
    }


def assigned_to(brokers: Sequence[int], cores: Mapping[NodeId, int]) -> Replica:
    """The core that one partition's broker ids name: exactly one, because the cores of a node share its disk."""
    if not brokers:
        raise _bad("The manual partition assignment includes an empty replica list.")
    for broker in brokers:
        if core_of(BrokerId(broker)) >= cores.get(node_of(BrokerId(broker)), 0):
            raise _bad(f"The manual partition assignment includes broker {broker}, but no such broker is registered.")
        if brokers.count(broker) > 1:
            raise _bad(f"The manual partition assignment includes the broker {broker} more than once.")
    if len({node_of(BrokerId(broker)) for broker in brokers}) < len(brokers):
        raise _bad(
            f"The manual partition assignment names {len(brokers)} brokers of one node; they are its cores and share "
            "its disk, so a partition has one of them."
        )
    if len(brokers) > 1:
        raise _bad("Nodes do not replicate partitions yet; a partition has one broker.")
    return Replica(node_of(BrokerId(brokers[0])), core_of(BrokerId(brokers[0])))


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
