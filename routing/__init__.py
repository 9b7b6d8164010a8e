"""Who owns a partition, and how a client is led there. Pure decisions, no I/O; imported as ``tpc_broker.routing``.

API: `Assignment` (the owners of one topic's partitions, and which of them were set by hand), `assign_all`, `extend`,
`adapt_to_cores`; `loads_between` of what cores count, `plan_balance`.
Runs wherever a decision is made (core 0's controller); the result is
a stored table that all cores read, so that the rule may change in a later release without moving anybody's data.
"""

from tpc_broker.routing.assignment import (
    Assignment,
    adapt_to_cores,
    assign_all,
    extend,
    start_core,
)
from tpc_broker.routing.balance import Shift, plan_balance
from tpc_broker.routing.load import CoreUse, PartitionUse, cost_ns, loads_between

__all__ = [
    "Assignment", "CoreUse", "PartitionUse", "Shift", "adapt_to_cores", "assign_all", "cost_ns", "extend",
    "loads_between", "plan_balance", "start_core",
]  # fmt: skip
