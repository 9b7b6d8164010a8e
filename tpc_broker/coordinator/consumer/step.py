"""What one decision changes in a group: applied as it is said, and written as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.coordinator.consumer.records import (
    CURRENT_KEY,
    GROUP_EPOCH_KEY,
    MEMBER_KEY,
    TARGET_KEY,
    ConsumerKey,
    GroupEpoch,
    consumer_record,
)

if TYPE_CHECKING:
    from tpc_broker.coordinator.consumer.group import ConsumerGroup
    from tpc_broker.coordinator.consumer.records import ConsumerValue
    from tpc_broker.coordinator.effects import Record


class Step:
    """Of one group. What it has changed is to be written (`Ahead.write`), whatever is found out later."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.records: list[Record] = []

    def put(self, key_type: int, value: ConsumerValue | None, name: str = "") -> None:
        """Stores this, or with None removes it."""
        key = ConsumerKey(key_type, self.group.group_id, name)
        self.records.append(consumer_record(key, value))
        self.group.apply(key, value)

    def remove_member(self, member_id: str) -> None:
        for key_type in (CURRENT_KEY, TARGET_KEY, MEMBER_KEY):
            self.put(key_type, None, member_id)

    def raise_epoch(self, metadata_hash: int) -> None:
        self.put(GROUP_EPOCH_KEY, GroupEpoch(self.group.epoch + 1, metadata_hash))
