"""The best placement there is, by minimum-cost flow: racks first, then evenness, then little movement. For small cases.

Successive shortest paths with Bellman and Ford: source → partition → (partition, rack) → node → sink. The demands of
racks are edges of a very low cost; evenness is a convex cost on each node's edges to the sink; a replica that is
already there costs 0 and any other 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from tpc_broker.metadata.placement import PlacementNode, Replicated

RACK = 10**15
EVEN = 10**4


class Flow:
    def __init__(self) -> None:
        self.edges: list[list[int]] = []
        self.leaving: list[list[int]] = []

    def vertex(self) -> int:
        self.leaving.append([])
        return len(self.leaving) - 1

    def edge(self, source: int, target: int, capacity: int, cost: int) -> int:
        for here, there, room, price in ((source, target, capacity, cost), (target, source, 0, -cost)):
            self.leaving[here].append(len(self.edges))
            self.edges.append([there, room, price])
        return len(self.edges) - 2

    def run(self, source: int, sink: int) -> int:
        total = 0
        while True:
            best = {source: 0}
            by: dict[int, int] = {}
            waiting = [source]
            while waiting:
                following = []
                for here in waiting:
                    for number in self.leaving[here]:
                        there, room, cost = self.edges[number]
                        if room and (there not in best or best[here] + cost < best[there]):
                            best[there], by[there] = best[here] + cost, number
                            following.append(there)
                waiting = list(dict.fromkeys(following))
            if sink not in best:
                return total
            total += best[sink]
            here = sink
            while here != source:
                self.edges[by[here]][1] -= 1
                self.edges[by[here] ^ 1][1] += 1
                here = self.edges[by[here] ^ 1][0]


def rack_bounds(nodes: Sequence[PlacementNode], wanted: int) -> dict[str, tuple[int, int]]:
    """Between floor(r / k) and ceil(r / k) in each rack, those with too few nodes full: by taking one after another."""
    sizes: dict[str, int] = {}
    for node in nodes:
        sizes[node.rack] = sizes.get(node.rack, 0) + 1
    level = 0
    while sum(min(size, level + 1) for size in sizes.values()) <= wanted and level < max(sizes.values()):
        level += 1
    left = wanted - sum(min(size, level) for size in sizes.values())
    return {rack: (min(size, level), min(size, level + (left > 0))) for rack, size in sizes.items()}


def unevenness(nodes: Sequence[PlacementNode], counts: dict[int, int]) -> int:
    """The sum over nodes of the square of (count - share), in squares of the sum of weights."""
    weights, total = sum(node.cores_count for node in nodes), sum(counts.values())
    return sum((counts.get(node.node, 0) * weights - total * node.cores_count) ** 2 for node in nodes)


def best_placement(nodes: Sequence[PlacementNode], partitions: Sequence[Replicated]) -> tuple[int, int]:
    """The least unevenness that racks allow, and the fewest movements with it."""
    flow = Flow()
    source, sink = flow.vertex(), flow.vertex()
    at = {node.node: flow.vertex() for node in nodes}
    weights = sum(node.cores_count for node in nodes)
    total = sum(min(partition.replication_factor, len(nodes)) for partition in partitions)
    placed = []
    for partition in partitions:
        here, wanted = flow.vertex(), min(partition.replication_factor, len(nodes))
        flow.edge(source, here, wanted, 0)
        for rack, (least, most) in rack_bounds(nodes, wanted).items():
            inside = flow.vertex()
            flow.edge(here, inside, least, -RACK * 10**6)
            flow.edge(here, inside, most - least, 0)
            for node in nodes:
                if node.rack == rack:
                    edge = flow.edge(inside, at[node.node], 1, 0 if node.node in partition.replicas else 1)
                    placed.append((edge, partition, node.node))
    for node in nodes:
        for count in range(len(partitions)):
            share = total * node.cores_count
            marginal = ((count + 1) * weights - share) ** 2 - (count * weights - share) ** 2
            flow.edge(at[node.node], sink, 1, EVEN * marginal)
    flow.run(source, sink)
    counts: dict[int, int] = {}
    moves = 0
    for edge, partition, node in placed:
        if not flow.edges[edge][1]:
            counts[node] = counts.get(node, 0) + 1
            moves += node not in partition.replicas
    return unevenness(nodes, counts), moves
