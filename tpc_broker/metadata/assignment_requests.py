"""Manual assignments in CreateTopics and CreatePartitions: broker ids as clients name them, to cores of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import BrokerId, NodeId, PartitionIndex, Replica, core_of, node_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REPLICAS_MAX: Final = 5
"""Of a partition. A group has places for one more, so that one replica can be replaced by another."""


class Refusal(Exception):  # noqa: N818 - an expected result inside the controller, which turns it into a response
    """A request, or one item of it, that is answered with an error code."""

    def __init__(self, code: ErrorCode, message: str | None) -> None:
        super().__init__(code.name, message)
        self.code = code
        self.message = message


def assigned_for_creation(
    assignments: Sequence[tuple[int, Sequence[int]]],
    cores: Mapping[NodeId, int],
    *,
    num_partitions: int,
    replication_factor: int,
) -> dict[PartitionIndex, tuple[Replica, ...]] | None:
    """Where all partitions of a topic go that names it; None when it leaves the choice to us. `assignments`:
    (partition, broker ids) pairs; `cores`: how many each node has.
    """
    if not assignments:
        return None
    for value, name in ((replication_factor, "replication factor"), (num_partitions, "numPartitions")):
        if value != -1:
            raise Refusal(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was specified, but {name} was not set to -1.",
            )
    assigned: dict[PartitionIndex, tuple[Replica, ...]] = {}
    for partition, brokers in assignments:
        if partition in assigned:
            raise _bad(f"Found multiple manual partition assignments for partition {partition}")
        assigned[PartitionIndex(partition)] = assigned_to(brokers, cores)
        if len(brokers) != len(assignments[0][1]):
            raise _bad(
                "Inconsistent replication factor between partitions, partition "
                f"{assignments[0][0]} has {len(assignments[0][1])} while partition {partition} has "
                f"replication factor {len(brokers)}."
            )
    if sorted(assigned) != list(range(len(assigned))):
        raise _bad("partitions should be a consecutive 0-based integer sequence")
    return assigned


def assigned_for_growth(
    assignments: Sequence[Sequence[int]] | None, added: range, replication_factor: int, cores: Mapping[NodeId, int]
) -> dict[PartitionIndex, tuple[Replica, ...]]:
    """Where the partitions to be added go; empty when the choice is ours. `assignments`: broker ids of each."""
    if assignments is None:
        return {}
    if len(assignments) != len(added):
        raise _bad(
            f"Attempted to add {len(added)} additional partition(s), but only {len(assignments)} "
            "assignment(s) were specified."
        )
    found = {}
    for index, brokers in zip(added, assignments, strict=True):
        found[PartitionIndex(index)] = assigned_to(brokers, cores)
        if len(brokers) != replication_factor:
            raise _bad(
                f"Inconsistent replication factor between partitions, partition 0 has {replication_factor} while "
                f"partition {index} has replication factor {len(brokers)}."
            )
    return found


def assigned_to(brokers: Sequence[int], cores: Mapping[NodeId, int]) -> tuple[Replica, ...]:
    """The cores that one partition's broker ids name: one of a node, because the cores of a node share its disk."""
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
    if len(brokers) > REPLICAS_MAX:
        raise _bad(f"A partition has at most {REPLICAS_MAX} replicas; the assignment names {len(brokers)} brokers.")
    return tuple(Replica(node_of(BrokerId(broker)), core_of(BrokerId(broker))) for broker in brokers)


def check_min_insync_replicas(configs: Mapping[str, str], replication_factor: int) -> None:
    """Refusal above a majority: that is what commits a record, and there is no second rule beside it."""
    majority = replication_factor // 2 + 1
    asked = configs.get("min.insync.replicas")
    if asked is not None and int(asked) > majority:
        raise Refusal(
            ErrorCode.INVALID_CONFIG,
            f"min.insync.replicas={asked}: with {replication_factor} replica(s) at most {majority} is possible: a "
            "record is committed when a majority has it on disk",
        )


def _bad(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
