"""Which brokers a partition should be on, as AlterPartitionReassignments asks for it: what stands behind the API.

The handlers take requests apart and answer in Kafka's words; a `Reassignments` decides and carries out. Broker ids are
those of cores (`model.broker_id_of`), whatever a client's listener calls them. What was accepted is under way until
`ongoing` names it no more; nobody waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.assignment_requests import Refusal, assigned_to
from tpc_broker.model import BrokerId, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core


class WantedBrokers(NamedTuple):
    """Where a partition should be; None: it stays where it is, and what is under way is cancelled."""

    topic: str
    partition: int
    brokers: tuple[BrokerId, ...] | None


class Outcome(NamedTuple):
    """Of one of them."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class Ongoing(NamedTuple):
    """A partition on its way: where it is meant to be or still is, and of these what comes and what goes."""

    topic: str
    partition: int
    brokers: tuple[BrokerId, ...]
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]


class Reassignments(Protocol):
    """Asked where the metadata are decided: on core 0, in a cluster on that of the node that leads them."""

    async def alter(self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool) -> list[Outcome]:
        """Begin, or cancel; what came of each, in their order. Accepted is what is durable."""
        ...

    def ongoing(self) -> Sequence[Ongoing]:
        """What is under way now."""
        ...


class NodeReassignments:
    """Of the partitions of one node: a broker is one of its cores, and each partition is on one of them."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def alter(self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool) -> list[Outcome]:  # noqa: ARG002
        return [self._judge(one) for one in wanted]

    def ongoing(self) -> Sequence[Ongoing]:
        return ()

    def _judge(self, one: WantedBrokers) -> Outcome:
        view = self._core.view
        topic = view.topic(one.topic)
        if topic is None or not 0 <= one.partition < topic.partitions_count:
            return Outcome(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if one.brokers is None:
            return Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, None)
        try:
            (place,) = assigned_to(one.brokers, {view.node: view.image.cores_count})
        except Refusal as refusal:
            return Outcome(refusal.code, refusal.message)
        if place.core == topic.owner_on(view.node, one.partition):
            return Outcome()
        present = broker_id_of(*topic.leader_place(one.partition, view.node))
        return Outcome(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The partition is on broker {present}; partitions do not move between the cores of a node yet.",
        )


class NoReassignments:
    """Of a cluster whose nodes do not hand partitions over yet."""

    async def alter(self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool) -> list[Outcome]:  # noqa: ARG002
        refused = Outcome(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "Partitions of a cluster of nodes cannot be reassigned yet."
        )
        return [refused for _ in wanted]

    def ongoing(self) -> Sequence[Ongoing]:
        return ()
