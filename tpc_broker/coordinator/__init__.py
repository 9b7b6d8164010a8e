"""Groups, classic ones and consumer groups of KIP-848, and their offsets.

Purpose: one `GroupCoordinator` for each partition of `__consumer_offsets`, on the core that owns the partition. A group
belongs to partition `coordinator_partition(group_id, 50)` of `tpc_broker.model`.

Theory of operation
-------------------
What is stored (`GroupMetadata`, `CommittedOffset`) changes only when a record is replayed, whether it comes from the
log at the start or from a write that has just become durable; so a coordinator that takes over knows all that any
client was told. What is transient (who is joining, deadlines) lives beside it and is lost with the core: clients then
join again. Consumer groups run ahead of the disk instead, and their answers wait (`consumer`, `consumer.ahead`).

An id is that of a group of one kind. An empty classic group gives way to the first member of the other kind, in one
write with that member. Offsets are of an id, whatever kind of group it is of, and never run ahead: who deletes a
consumer group begins a write of their tombstones, in front of the one of its own.

What the driver of a machine does for it, and what it may rely on, is the contract `driven.Machine`, which knows nothing
of groups. The driver of these machines also tells them, whenever they ask, what is known of a topic (`Fate`), and calls
`topics_changed` when that may be more than before (loaded, topics deleted, all of them known).

`messages` are requests and responses as plain data, `group` one group with its table of states, `membership` and
`offsets` the two halves of the machine, `pending_offsets` what open transactions may yet commit, `records` the log's
format (Kafka's own), `effects` writes and deadlines. No clock, no randomness, no I/O. `consumer` has the same of
consumer groups; `machine` decides which kind a request is for.
"""

from tpc_broker.coordinator.driven import Machine, RecordDamagedError, TransactionalMachine
from tpc_broker.coordinator.effects import Effects, Producer, Record, Reply, Token, TransactionEnd, Write, WriteId
from tpc_broker.coordinator.machine import GroupCoordinator
from tpc_broker.coordinator.membership import GroupLimits
from tpc_broker.coordinator.messages import Statistics
from tpc_broker.coordinator.offsets import Fate

__all__ = [
    "Effects",
    "Fate",
    "GroupCoordinator",
    "GroupLimits",
    "Machine",
    "Producer",
    "Record",
    "RecordDamagedError",
    "Reply",
    "Statistics",
    "Token",
    "TransactionEnd",
    "TransactionalMachine",
    "Write",
    "WriteId",
]
