"""Placement and plans in one go: the product makes them in steps, between which others have their turn."""

from tpc_broker.metadata.placement import place_in_steps
from tpc_broker.metadata.rebalance import plan_in_steps


def whole(steps):
    """What comes out of all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def place_replicas(nodes, partitions, fixed=()):
    return whole(place_in_steps(nodes, partitions, fixed))


def plan_rebalance(image, situation):
    return whole(plan_in_steps(image, situation))
