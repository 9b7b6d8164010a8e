"""Classic consumer groups and their offsets.

Purpose: one `GroupCoordinator` for each partition of `__consumer_offsets`, on the core that owns the partition. A group
belongs to partition `coordinator_partition(group_id, 50)` of `tpc_broker.model`.

Theory of operation
-------------------
What is stored (`GroupMetadata`, `CommittedOffset`) changes only when a record is replayed, whether it comes from the
log at the start or from a write that has just become durable; so a coordinator that takes over knows all that any
client was told. What is transient (who is joining, deadlines) lives beside it and is lost with the core: clients then
join again.

The driver:

1. at the start, calls `replay(key, value)` for every record of the partition, then `finish_loading(now_ms)`;
2. calls the method of a request with an opaque token and does what the returned `Effects` say: send `replies` now,
   append each of `writes` as one batch, in their order;
3. calls `written(write_id, now_ms)` when a batch is durable, or `write_failed`, in the order of the writes, and does
   what the effects say, and so on: the answer to an OffsetCommit comes from here;
4. keeps a timer at `next_deadline_ms()` and calls `on_deadline(now_ms)`;
5. now and then, when no write is under way, appends `snapshot()` and moves the log's start to its first record;
6. tells the machine, whenever it asks, what is known of a topic (`Fate`), calls `topics_changed` when that may be more
   than before (loaded, topics deleted, `has_unknown_topics` no more), and `unload` when the partition goes.

`messages` are requests and responses as plain data, `group` one group with its table of states, `membership` and
`offsets` the two halves of the machine, `records` the log's format (Kafka's own), `effects` writes and deadlines. No
clock, no randomness, no I/O. Transactions will add offsets that are pending until their marker; KIP-848 groups are
another kind of group beside the classic one, with record types of their own.
"""

from tpc_broker.coordinator.effects import Effects, Reply, Token, Write, WriteId
from tpc_broker.coordinator.machine import GroupCoordinator, Statistics
from tpc_broker.coordinator.membership import GroupLimits
from tpc_broker.coordinator.offsets import Fate
from tpc_broker.coordinator.records import Record, RecordDamagedError

__all__ = [
    "Effects",
    "Fate",
    "GroupCoordinator",
    "GroupLimits",
    "Record",
    "RecordDamagedError",
    "Reply",
    "Statistics",
    "Token",
    "Write",
    "WriteId",
]
