"""Which nodes hold which partition, who leads it, on which core; and the moves that lead there. Pure functions.

* `replicas.place_in_steps`: from what is to what should be: never two replicas of a partition on one node, racks
  respected, every node within one of its share, and as few replicas moved as that allows.
* `replicas.place_new_replicas`: only where new partitions go.
* `leaders.place_leaders`: one of the replicas leads; every node within one of its share where replicas allow.
* `cores.place_on_cores`: the core of each replica on its node.
* `moves.plan_moves`: the steps (learner, joint, new, remove) of each partition's move; `moves.startable`: which may
  begin.

The metadata store the target; a group's own configuration is the truth, and its leader drives one to the other. All is
computed anew from the present state whenever nodes come or go, so nothing here has to be remembered. Who counts as
gone is the caller's decision: a node that is away for half a minute must not cost a copy of everything it holds.
"""

from tpc_broker.metadata.placement.cores import place_on_cores
from tpc_broker.metadata.placement.leaders import place_leaders
from tpc_broker.metadata.placement.model import PlacementNode, Replicated
from tpc_broker.metadata.placement.moves import Limits, PartitionMove, Phase, Step, plan_moves, startable
from tpc_broker.metadata.placement.replicas import place_in_steps, place_new_replicas

__all__ = [
    "Limits",
    "PartitionMove",
    "Phase",
    "PlacementNode",
    "Replicated",
    "Step",
    "place_in_steps",
    "place_leaders",
    "place_new_replicas",
    "place_on_cores",
    "plan_moves",
    "startable",
]
