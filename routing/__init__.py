"""Who owns a partition, and how a client is led there. Pure decisions, no I/O; imported as ``tpc_broker.routing``.

API: `Placement` (the owners of one topic's partitions, and which of them were set by hand), `place`, `extend`,
`adapt_to_cores`, `moves_between`. Runs wherever a decision is made (core 0's controller); the result is a stored table
that all cores read, so that the rule may change in a later release without moving anybody's data.
"""

from tpc_broker.routing.placement import Move, Placement, adapt_to_cores, extend, moves_between, place, start_core

__all__ = ["Move", "Placement", "adapt_to_cores", "extend", "moves_between", "place", "start_core"]
