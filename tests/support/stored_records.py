"""What a coordinator's machine has stored, as records: `stored_records`. A machine that replays them is the same."""

from __future__ import annotations

from tpc_broker.coordinator import Record
from tpc_broker.coordinator.records import OffsetKey, group_record, offset_of, offset_record
from tpc_broker.coordinator.transactions import TransactionCoordinator


def stored_records(machine):
    """Of a machine of groups or of transactions; in no order that means anything."""
    if isinstance(machine, TransactionCoordinator):
        parts, foreign = machine._stored._values.parts, machine._stored._foreign
        return [Record(*item) for values in (*parts, foreign) for item in values.items()]
    groups = [group_record(group_id, metadata) for group_id, metadata in machine._stored.items()]
    consumers = [record for group in machine._consumers.by_id.values() for record in group.records()]
    offsets = [
        offset_record(OffsetKey(group_id, *partition), offset_of(committed))
        for group_id, of_group in machine._offsets.committed.items()
        for partition, committed in of_group.items()
    ]
    return [*groups, *consumers, *offsets, *(Record(*item) for item in machine._foreign.items())]
