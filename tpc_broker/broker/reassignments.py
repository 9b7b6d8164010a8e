"""Which brokers a partition should be on, as AlterPartitionReassignments asks for it: what stands behind the API.

The handlers take requests apart and answer in Kafka's words; a `Reassignments` decides and carries out. Broker ids are
those of cores (`model.broker_id_of`), whatever a client's listener calls them. What was accepted is under way until
`ongoing` names it no more; nobody waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.preference import order_replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.model import BrokerId


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


class ClusterReassignments:
    """Of a cluster, whose nodes do not hand partitions over yet: what may change is which replica is preferred."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def alter(self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool) -> list[Outcome]:  # noqa: ARG002
        refusals = await self._core.metadata.change(lambda image: order_replicas(image, wanted))
        return [Outcome() if refusal is None else Outcome(refusal.code, refusal.message) for refusal in refusals]

    def ongoing(self) -> Sequence[Ongoing]:
        return ()
