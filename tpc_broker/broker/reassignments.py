"""Which brokers a partition should be on, as AlterPartitionReassignments asks for it: what stands behind the API.

The handlers take requests apart and answer in Kafka's words; a `Reassignments` decides and carries out. Broker ids are
those of cores (`model.broker_id_of`), whatever a client's listener calls them. What was accepted is under way until
`ongoing` names it no more; nobody waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.cluster_core_moves import came_too_late, core_moves
from tpc_broker.metadata.records import MoveBegun
from tpc_broker.metadata.replica_moves import Request, all_moves, alter_replicas
from tpc_broker.model import TopicPartition, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord, ReplicasMoving
    from tpc_broker.model import BrokerId, CoreId

CANCEL_S: Final = 2.0
"""So long who cancels a move between cores waits to hear whether it came too late; calls between nodes take five."""


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


Check = Callable[["ClusterImage"], None]


def nothing_to_check(_image: ClusterImage) -> None:
    """Of what the broker does by itself."""


class Reassignments(Protocol):
    """Asked where the metadata are decided: on core 0, in a cluster on that of the node that leads them."""

    async def alter(
        self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool, check: Check = nothing_to_check
    ) -> list[Outcome]:
        """Begin, or cancel; what came of each, in their order. Accepted is what is durable. NO_REASSIGNMENT_IN_PROGRESS
        with a reason: it came too late to cancel that. `check`: called with the image by which it is decided; what it
        raises is raised, and nothing has changed.
        """
        ...

    def ongoing(self) -> Sequence[Ongoing]:
        """What is under way now."""
        ...


class ClusterReassignments:
    """Of a cluster of nodes: where replicas are to be is in the metadata, and their leaders see to it."""

    def __init__(self, core: CoreGround) -> None:
        self._core = core

    async def alter(
        self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool, check: Check = nothing_to_check
    ) -> list[Outcome]:
        request = Request(wanted, allow_factor_change, self._core.clock.wall_ms(), lambda: new_move_id(self._core))

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], tuple[list[Outcome], list[MoveBegun]]]:
            check(image)
            records, refusals = alter_replicas(image, request)
            outcomes = [Outcome() if one is None else Outcome(one.code, one.message) for one in refusals]
            cancelled = [one for one in records if isinstance(one, MoveBegun) and one.is_cancelled]
            return records, (outcomes, cancelled)

        outcomes, cancelled = await self._core.metadata.change(decide)
        too_late = await self._too_late(cancelled) if cancelled else {}
        return [
            Outcome(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, why) if (why := too_late.get(one[:2])) else outcome
            for one, outcome in zip(wanted, outcomes, strict=True)
        ]

    async def _too_late(self, cancelled: list[MoveBegun]) -> dict[tuple[str, int], str]:
        """Of moves between cores that were cancelled, why some were not taken back. One whose node has not found out
        yet, because it or the core is away, is still under way: that was accepted, too.
        """
        with trio.move_on_after(CANCEL_S):
            await self._core.metadata.wait_image(lambda image: not any(_is_under_way(image, one) for one in cancelled))
        image, found = self._core.view.image, {}
        for one in cancelled:
            why = None if _is_under_way(image, one) else came_too_late(image, one)
            if why is not None:
                found[image.topics[one.topic_id].name, int(one.partition)] = why
        return found

    def ongoing(self) -> Sequence[Ongoing]:
        image = self._core.view.image
        between_cores = [_between_cores(*one) for one in core_moves(image)]
        return [*(_ongoing(topic, move) for topic, move in all_moves(image)), *between_cores]


def new_move_id(core: CoreGround) -> int:
    """One that JSON's readers keep as it is."""
    return core.chance.uuid().int >> 76


def _is_under_way(image: ClusterImage, move: MoveBegun) -> bool:
    found = image.moving.get(TopicPartition(move.topic_id, move.partition))
    return found is not None and found.move_id == move.move_id


def _between_cores(topic: TopicImage, move: MoveBegun, source: CoreId) -> Ongoing:
    coming, going = broker_id_of(move.node, move.target), broker_id_of(move.node, source)
    places = tuple(broker_id_of(*place) for place in topic.replicas[move.partition])
    if move.is_cancelled:
        return Ongoing(topic.name, move.partition, (*places, coming), (), (coming,))
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
