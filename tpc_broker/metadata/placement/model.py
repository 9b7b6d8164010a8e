"""What placement is decided from: nodes, partitions with their present replicas, and every node's fair share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.model import NodeId, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementNode:
    """A node that may hold replicas. Its share of them is proportional to `cores_count`.

    Nodes without a rack ("") stand in one rack together. `is_draining` gives up what it holds and gets nothing;
    `is_full` keeps what it holds, or gives it up for evenness, and gets nothing.
    """

    node: NodeId
    cores_count: int = 1
    rack: str = ""
    is_draining: bool = False
    is_full: bool = False

    def __post_init__(self) -> None:
        """A node without cores has no share."""
        assert self.cores_count >= 1, self


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicated:
    """A partition: where its replicas are (the leader first, none for a new one) and how many there should be.

    `load` is any measure of what it costs a node (bytes a second, for example), the same for all partitions.
    """

    partition: TopicPartition
    replication_factor: int
    replicas: tuple[NodeId, ...] = ()
    load: int = 0

    def __post_init__(self) -> None:
        """At least one replica is wanted, and no node holds two."""
        assert self.replication_factor >= 1, self
        assert len(set(self.replicas)) == len(self.replicas), self


class Shares:
    """Counts of something (replicas, leaders) by node, and how far each is above its fair share.

    `excess(n)` is count - total * weight / weights, times the sum of the weights, so that it is a whole number. Giving
    one from a to b makes the whole more even if and only if ``excess(a) - excess(b) > unit`` (for different weights:
    the square of the deviations falls). When no such pair is left, nodes of one weight differ by at most one.
    """

    def __init__(self, nodes: Iterable[PlacementNode]) -> None:
        self.weights = {node.node: node.cores_count for node in nodes}
        self.unit = sum(self.weights.values())
        self.counts: dict[NodeId, int] = dict.fromkeys(self.weights, 0)
        self.loads: dict[NodeId, int] = dict.fromkeys(self.weights, 0)
        self.total = 0

    def add(self, node: NodeId, load: int = 0) -> None:
        """One more on that node."""
        self.counts[node] += 1
        self.loads[node] += load
        self.total += 1

    def give(self, source: NodeId, target: NodeId, load: int = 0) -> None:
        """One less here, one more there."""
        self.counts[source] -= 1
        self.counts[target] += 1
        self.loads[source] -= load
        self.loads[target] += load

    def excess(self, node: NodeId) -> int:
        """How far above its share (below it when negative), in units."""
        return self.counts[node] * self.unit - self.total * self.weights[node]

    def emptiest(self, nodes: Sequence[NodeId]) -> NodeId:
        """The node farthest below its share; of equals that with the least load for its weight, then the least id."""
        return min(nodes, key=lambda node: (self.excess(node), self.loads[node] / self.weights[node], node))
