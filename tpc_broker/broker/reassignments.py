"""Which brokers a partition should be on, as AlterPartitionReassignments asks for it: what stands behind the API.

The handlers take requests apart and answer in Kafka's words; a `Reassignments` decides and carries out. Broker ids are
those of cores (`model.broker_id_of`), whatever a client's listener calls them. What was accepted is under way until
`ongoing` names it no more; nobody waits for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.cluster_core_moves import core_moves
from tpc_broker.metadata.replica_moves import Request, all_moves, alter_replicas
from tpc_broker.model import broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.metadata.image import TopicImage
    from tpc_broker.metadata.records import MoveBegun, ReplicasMoving
    from tpc_broker.model import BrokerId, CoreId


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
    """Of a cluster of nodes: where replicas are to be is in the metadata, and their leaders see to it."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def alter(self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool) -> list[Outcome]:
        request = Request(wanted, allow_factor_change, self._core.clock.wall_ms(), lambda: new_move_id(self._core))
        refusals = await self._core.metadata.change(lambda image: alter_replicas(image, request))
        return [Outcome() if refusal is None else Outcome(refusal.code, refusal.message) for refusal in refusals]

    def ongoing(self) -> Sequence[Ongoing]:
        image = self._core.view.image
        between_cores = [_between_cores(*one) for one in core_moves(image)]
        return [*(_ongoing(topic, move) for topic, move in all_moves(image)), *between_cores]


def new_move_id(core: Core) -> int:
    """One that JSON's readers keep as it is."""
    return core.chance.uuid().int >> 76


def _between_cores(topic: TopicImage, move: MoveBegun, source: CoreId) -> Ongoing:
    coming, going = broker_id_of(move.node, move.target), broker_id_of(move.node, source)
    places = (broker_id_of(*place) for place in topic.replicas[move.partition])
    brokers = tuple(coming if broker == going else broker for broker in places)
    return Ongoing(topic.name, move.partition, (*brokers, going), (coming,), (going,))


def _ongoing(topic: TopicImage, move: ReplicasMoving) -> Ongoing:
    """As Kafka tells it: the brokers that are wanted, then those that go."""
    before = topic.replicas[move.partition]
    removing = [place for place in move.places if place not in move.wanted]
    adding = [place for place in move.wanted if place not in before]
    brokers, coming, going = (
        tuple(broker_id_of(*place) for place in places) for places in ([*move.wanted, *removing], adding, removing)
    )
    return Ongoing(topic.name, move.partition, brokers, coming, going)
