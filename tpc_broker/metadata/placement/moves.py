"""The steps from the present replicas of a partition to those it should have, and which partitions may begin.

A move follows the rules of the replication protocol (joint consensus whose configurations are first entries of terms):

    TRANSFER   leadership, to a voter of both sets, where the leader is about to leave
    LEARN      the nodes that come are learners, and are fed until they have caught up
    JOINT      the leader wins the next term under {old, new}: both majorities count
    SETTLE     once that is committed, the term after it has {new} alone
    REMOVE     once that is committed, the nodes that went delete what they have
    TRANSFER   leadership, to the one that should lead in the end

Each JOINT and SETTLE costs a leader epoch, and clients refresh their metadata, so all nodes of a partition change in
one round if they can. A leader has at most `PEERS_MAX` other voters and learners; with a replication factor of 5 or
more nodes change one at a time. Then one comes and one goes in each round, so that no round has fewer replicas than
before.

The steps are for whoever drives the group to follow; each says what must be so after it, and repeating one that is done
changes nothing. The leader of a group checks them against the configuration in its log, which is the truth.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.model import NodeId, TopicPartition

PEERS_MAX: Final = 6
"""Voters of both sets and learners, without the leader itself."""
ONE_AT_A_TIME_FACTOR: Final = 5


class Phase(enum.Enum):
    """What a step does."""

    TRANSFER = "transfer"
    LEARN = "learn"
    JOINT = "joint"
    SETTLE = "settle"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Step:
    """One step. `nodes`: who leads (TRANSFER), who learns, who goes (REMOVE), or the voters (SETTLE; new in JOINT).

    `old` are the voters before, in JOINT only.
    """

    phase: Phase
    nodes: tuple[NodeId, ...]
    old: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionMove:
    """All steps of one partition. `sender` is the node that feeds the learners; `urgency` says what goes first."""

    partition: TopicPartition
    sender: NodeId | None
    coming: tuple[NodeId, ...]
    going: tuple[NodeId, ...]
    steps: tuple[Step, ...]
    urgency: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """How many partitions may be copied to a node, and from one, at a time."""

    receiving_max: int = 2
    sending_max: int = 2


def plan_move(  # noqa: PLR0913  from, to, and what is known of the nodes
    partition: TopicPartition,
    present: tuple[NodeId, ...],
    target: tuple[NodeId, ...],
    leader: NodeId | None,
    *,
    gone: frozenset[NodeId] = frozenset(),
    draining: frozenset[NodeId] = frozenset(),
) -> PartitionMove | None:
    """The move of one partition from its present voters to `target`, whose first is to lead; None if all is so.

    `leader` is who leads now. Voters on nodes that are gone are replaced first, those on draining ones next.
    """
    coming = tuple(node for node in target if node not in present)
    going = tuple(sorted((node for node in present if node not in target), key=lambda node: (node not in gone, node)))
    steps: list[Step] = []
    voters, leading = present, leader
    width = _width(present, target)
    for start in range(0, max(len(coming), len(going)), width):
        comers, goers = coming[start : start + width], going[start : start + width]
        following = (*(node for node in voters if node not in goers), *comers)
        stay = [node for node in following if node in voters and node not in gone]
        if leading in goers and stay:
            leading = target[0] if target[0] in stay else stay[0]
            steps.append(Step(Phase.TRANSFER, (leading,)))
        if comers:
            steps.append(Step(Phase.LEARN, comers))
        steps += [Step(Phase.JOINT, following, old=voters), Step(Phase.SETTLE, following)]
        if leading in goers:  # nobody was in both sets: the group elects one of the new
            leading = None
        if goers:
            steps.append(Step(Phase.REMOVE, goers))
        voters = following
    if target and leading != target[0] and target[0] not in gone:
        steps.append(Step(Phase.TRANSFER, (target[0],)))
    if not steps:
        return None
    urgency = 2 if gone & set(going) else 1 if draining & set(going) else 0
    return PartitionMove(partition, leader, coming, going, tuple(steps), urgency)


def _width(present: Sequence[NodeId], target: Sequence[NodeId]) -> int:
    """How many nodes may change in one round."""
    if max(len(present), len(target)) >= ONE_AT_A_TIME_FACTOR:
        return 1
    return max(1, PEERS_MAX + 1 - max(len(present), len(target)))


def plan_moves(
    partitions: Iterable[tuple[TopicPartition, tuple[NodeId, ...], tuple[NodeId, ...], NodeId | None]],
    *,
    gone: frozenset[NodeId] = frozenset(),
    draining: frozenset[NodeId] = frozenset(),
) -> list[PartitionMove]:
    """All moves of (partition, present, target, leader), the most urgent first, otherwise in the order given."""
    moves = (plan_move(*partition, gone=gone, draining=draining) for partition in partitions)
    return sorted((move for move in moves if move is not None), key=lambda move: -move.urgency)


def startable(
    pending: Sequence[PartitionMove], running: Sequence[PartitionMove], limits: Limits
) -> list[PartitionMove]:
    """Which of the pending moves may begin beside those that run, in their order.

    A move takes a place at each node that comes and at the one that sends, until it ends. One that copies nothing
    (leadership, or a node that only goes) takes none.
    """
    receiving: dict[NodeId, int] = {}
    sending: dict[NodeId, int] = {}

    def take(move: PartitionMove) -> None:
        for node in move.coming:
            receiving[node] = receiving.get(node, 0) + 1
        if move.coming and move.sender is not None:
            sending[move.sender] = sending.get(move.sender, 0) + 1

    for move in running:
        take(move)
    started = []
    busy = {move.partition for move in running}
    for move in pending:
        has_room = all(receiving.get(node, 0) < limits.receiving_max for node in move.coming) and (
            not move.coming or move.sender is None or sending.get(move.sender, 0) < limits.sending_max
        )
        if has_room and move.partition not in busy:
            take(move)
            started.append(move)
    return started
