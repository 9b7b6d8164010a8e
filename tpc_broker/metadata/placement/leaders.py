"""Who leads: one of each partition's replicas, spread evenly, with few changes.

A partition keeps its leader where that is one of its replicas and alive; else the replica leads whose node is farthest
below its share. Then leadership is passed along chains of partitions, from the node with too many to the nearest one
with too few (a leads p, of which b has a replica, which leads q, of which c …). When there is no such chain left, no
other choice of leaders is more even (an optimal semi-matching: Harvey, Ladner, Lovász, Tamir 2006, theorem 1). No data
moves for it, but clients refresh their metadata, so direct passes come first and nothing is passed without need.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tpc_broker.metadata.placement.model import Shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.placement.model import PlacementNode
    from tpc_broker.model import NodeId


def place_leaders(
    nodes: Sequence[PlacementNode], placed: Sequence[tuple[NodeId, ...]], present: Sequence[NodeId | None]
) -> list[NodeId | None]:
    """The leader of each partition, given its replicas and its present leader.

    A node that is draining or not there leads nothing, unless it is all that a partition has: then whoever leads
    goes on, and a partition without any replica that is there has no leader (None).
    """
    usable = [node for node in nodes if not node.is_draining] or list(nodes)
    able = {node.node for node in usable}
    shares = Shares(usable)
    choices = [tuple(node for node in replicas if node in able) for replicas in placed]
    leaders: list[NodeId | None] = [
        leader if leader in choice else None for leader, choice in zip(present, choices, strict=True)
    ]
    for leader in leaders:
        if leader is not None:
            shares.add(leader)
    for index, choice in enumerate(choices):
        if leaders[index] is None and choice:
            chosen = shares.emptiest(choice)
            leaders[index] = chosen
            shares.add(chosen)
        elif leaders[index] is None:
            leaders[index] = present[index] if present[index] in placed[index] else None
    _level(shares, choices, leaders)
    return leaders


def _level(shares: Shares, choices: Sequence[tuple[NodeId, ...]], leaders: list[NodeId | None]) -> None:
    led: dict[NodeId, dict[int, None]] = {node: {} for node in shares.counts}
    for index, leader in enumerate(leaders):
        if leader in led:
            led[leader][index] = None
    while True:
        lowest = min(map(shares.excess, shares.counts), default=0)
        for source in sorted(shares.counts, key=lambda node: (-shares.excess(node), node)):
            if shares.excess(source) - lowest <= shares.unit:
                return
            chain = _chain(shares, choices, led, source)
            if chain:
                break
        else:
            return
        for index, giver, taker in chain:
            leaders[index] = taker
            del led[giver][index]
            led[taker][index] = None
            shares.give(giver, taker)


def _chain(
    shares: Shares, choices: Sequence[tuple[NodeId, ...]], led: dict[NodeId, dict[int, None]], source: NodeId
) -> list[tuple[int, NodeId, NodeId]]:
    """The shortest chain of passes (partition, from, to) to the emptiest node in reach that is more than one below.

    Each node is reached once, so no partition is passed twice.
    """
    came_from: dict[NodeId, tuple[int, NodeId]] = {}
    reached, layer = {source}, deque([source])
    while layer:
        following: deque[NodeId] = deque()
        for here in layer:
            for index in led[here]:
                for target in choices[index]:
                    if target not in reached:
                        reached.add(target)
                        came_from[target] = index, here
                        following.append(target)
        best = min(following, key=lambda node: (shares.excess(node), node), default=None)
        if best is not None and shares.excess(source) - shares.excess(best) > shares.unit:
            chain = []
            while best != source:
                index, giver = came_from[best]
                chain.append((index, giver, best))
                best = giver
            return chain
        layer = following
    return []
