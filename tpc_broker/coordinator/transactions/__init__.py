"""Transactional ids, and the ends of their transactions.

Purpose: one `TransactionCoordinator` for each partition of `__transaction_state`, on the core that leads the partition.
An id belongs to partition `coordinator_partition(transactional_id, 50)` of `tpc_broker.model`.

Theory of operation
-------------------
Every step of an id is one record, and happens when that is durable: what is stored changes by replay alone. While a
record is under way, and until the markers of a transaction that ends are all written, the id is *pending*: whoever asks
is told CONCURRENT_TRANSACTIONS, before anything else is looked at.

A transaction ends in three steps: PrepareX is written, upon which the client is answered; its markers are written into
each of its partitions; CompleteX is written. Markers are effects: the driver sends them until they are written, and
reports them. After a load those of every PrepareX are effects once more. Where all its partitions stand in the log's
own journal it is one step: markers and CompleteX are appended behind PrepareX without waiting for it.

Clients of version 2 (KIP-890) have a new epoch after each end, so that nothing that comes late is of a later
transaction. Those before keep theirs. An abort for somebody else (InitProducerId, the time-out) raises it for both.

`states` has the tables, `transaction` what is stored of an id and each step, `records` the log's format (Kafka's own),
`messages` requests and responses as plain data. No clock, no randomness, no I/O.
"""

from tpc_broker.coordinator.transactions.limits import TransactionLimits
from tpc_broker.coordinator.transactions.machine import TransactionCoordinator, TransactionEffects

__all__ = ["TransactionCoordinator", "TransactionEffects", "TransactionLimits"]
