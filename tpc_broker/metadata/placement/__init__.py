"""Which nodes hold which partition: from what is to what should be. Pure functions.

* `replicas.place_in_steps`: never two replicas of a partition on one node, racks respected, every node within one of
  its share, and as few replicas moved as that allows.
* `replicas.place_new_replicas`: only where new partitions go.

Who leads, on which core, and what moves when is decided above (`metadata/node_assignment.py`, `rebalance.py`,
`replica_moves.py`). The metadata store the target; a group's own configuration is the truth, and its leader drives one
to the other. All is computed anew from the present state whenever nodes come or go, so nothing here has to be
remembered. Who counts as gone is the caller's decision: a node that is away for half a minute must not cost a copy of
everything it holds.
"""

from tpc_broker.metadata.placement.model import PlacementNode, Replicated
from tpc_broker.metadata.placement.replicas import place_in_steps, place_new_replicas

__all__ = [
    "PlacementNode",
    "Replicated",
    "place_in_steps",
    "place_new_replicas",
]
