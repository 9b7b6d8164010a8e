"""What a client may do to a resource, as the bit fields that Metadata, DescribeCluster and DescribeGroups carry.

Here is everything that makes sense for a kind of resource (KIP-430), of which `access.AccessControl.bits` leaves what
is allowed. A bit's number is the operation's code in Kafka's ACLs.
"""

from __future__ import annotations

from typing import Final

from tpc_broker.auth.operations import Operation


def _field(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


NOT_ASKED_FOR: Final = -(2**31)
"""In place of a bit field that the request did not ask for."""

ON_CLUSTER: Final = _field(
    Operation.CREATE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.CLUSTER_ACTION,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
    Operation.IDEMPOTENT_WRITE,
)
ON_TOPIC: Final = _field(
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
ON_GROUP: Final = _field(
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)
